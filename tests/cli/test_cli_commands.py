"""Commands on versions that are there: listed, shown, tagged, compared, copied, deleted; on local disk."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from commands import document, invoke, refused

import cachelayer
from cachelayer.cli.doctor import _probe
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.objects.local_cache import CacheFolder, CopyOutcome

SHARD_BYTES = 35_000


@pytest.fixture
def storage(tmp_path: Path) -> cachelayer.Storage:
    """A storage with two versions of `d`, the second tagged `best`, and a dataset `e`."""
    storage = cachelayer.Storage(tmp_path / "cache")
    rows = [{"image": bytes(200), "label": number} for number in range(500)]
    storage.submit(rows, "d", "v1", shard_bytes=SHARD_BYTES, description="rows [bold]", metadata={"from": "here"})
    storage.append("d", "v1", "v2", rows[:10])
    storage.tag("d", "v2", "best")
    storage.submit([1, 2, 3], "e", "only")
    return storage


def test_ls_lists_datasets(storage: cachelayer.Storage) -> None:
    found = document("ls", storage.url)
    assert [(each["dataset_id"], each["versions"], each["newest"]["version"]) for each in found] == [
        ("d", 2, "v2"),
        ("e", 1, "only"),
    ]
    text = invoke("ls", f"{storage.url}/").stdout
    assert "v2" in text
    assert "510" in text


def test_ls_lists_versions_with_their_tags(storage: cachelayer.Storage) -> None:
    found = document("ls", f"{storage.url}/d")
    assert [(each["version"], each["records"], each["tags"]) for each in found] == [
        ("v1", 500, []),
        ("v2", 510, ["best"]),
    ]
    assert "best" in invoke("ls", f"{storage.url}/d").stdout
    assert "there is nothing at" in refused("ls", f"{storage.url}/x")


def test_ls_of_an_empty_storage_and_an_empty_dataset_is_empty(storage: cachelayer.Storage, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert document("ls", tmp_path / "empty") == []
    assert "no dataset in" in invoke("ls", tmp_path / "empty").stdout
    storage.delete("e", "only")
    assert document("ls", f"{storage.url}/e") == []
    assert [each["dataset_id"] for each in document("ls", storage.url)] == ["d"]


def test_log_tells_who_did_what(storage: cachelayer.Storage) -> None:
    events = document("log", f"{storage.url}/d")
    assert [(event["sequence"], event["kind"]) for event in events] == [(1, "publish"), (2, "publish"), (3, "tag")]
    assert events[2]["details"]["tag"] == "best"
    assert {"time", "user", "host", "pid"} <= set(events[0])
    assert "best" in invoke("log", f"{storage.url}/d").stdout
    refused("log", f"{storage.url}/x")
    assert "name only the dataset" in refused("log", f"{storage.url}/d@v1")


def test_show_tells_everything_of_a_version(storage: cachelayer.Storage) -> None:
    ref = storage.fetch("d", "v1")
    found = document("show", f"{storage.url}/d@v1")
    assert (found["records"], found["nbytes"], found["reference"]) == (500, ref.nbytes, ref.reference)
    assert sum(shard["records"] for shard in found["shards"]) == 500
    assert len(found["shards"]) > 1
    assert found["provenance"]["description"] == "rows [bold]"
    text = invoke("show", ref.reference).stdout
    assert f"reference  {ref.reference}" in text.splitlines()
    assert "image: ArraySpec(bytes)" in text
    assert "rows [bold]" in text
    assert document("show", f"{storage.url}/d@best")["tags"] == ["best"]


def test_show_of_very_many_shards_names_the_first(tmp_path: Path) -> None:
    storage = cachelayer.Storage(tmp_path / "cache")
    storage.submit([bytes(50_000)] * 30, "d", "v1", shard_bytes=100_000)
    text = invoke("show", f"{storage.url}/d").stdout
    assert text.count(".array_record") == 10
    assert "more: --json shows all" in text


def test_show_of_a_nested_spec_is_a_tree(tmp_path: Path) -> None:
    storage = cachelayer.Storage(tmp_path / "cache")
    storage.submit([{"a": ({"b": 1.5}, [True, "x"])}], "d", "v1")
    text = invoke("show", f"{storage.url}/d").stdout
    for line in (
        "element: dict",
        "a: tuple",
        "[0]: dict",
        "b: ArraySpec(float64)",
        "[1]: list",
        "[0]: ArraySpec(bool)",
    ):
        assert line in text


def test_references_that_name_nothing_say_what_there_is(storage: cachelayer.Storage) -> None:
    assert "there are v1, v2, best" in refused("show", f"{storage.url}/d@v3")
    assert "did you mean" in refused("show", f"{storage.url}/d@bst")
    assert "no version has a digest that begins with" in refused("show", f"{storage.url}/d@sha256:{'0' * 64}")


def test_an_ambiguous_digest_prefix_is_refused(tmp_path: Path) -> None:
    storage = cachelayer.Storage(tmp_path / "cache")
    digests = [storage.submit([number], "d", f"v{number}").digest for number in range(17)]
    prefix = next(first for first in "0123456789abcdef" if sum(digest[0] == first for digest in digests) > 1)
    assert "give more digits" in refused("show", f"{storage.url}/d@sha256:{prefix}")
    assert document("show", f"{storage.url}/d@sha256:{digests[3][:20]}")["version"] == "v3"


def test_verify_finds_damage(storage: cachelayer.Storage) -> None:
    good = document("verify", f"{storage.url}/d@v1")
    assert (good["ok"], good["records"], good["problems"]) == (True, 500, [])
    shard = Path(storage.url, "d", storage.fetch("d", "v1")._base.version.manifest.shards[0].name)
    raw = bytearray(shard.read_bytes())
    raw[len(raw) // 3] ^= 1
    shard.write_bytes(raw)
    bad = document("verify", f"{storage.url}/d@v1", code=1)
    assert bad["ok"] is False
    assert shard.name in bad["problems"][0]
    assert shard.name in invoke("verify", f"{storage.url}/d@v1", code=1).stdout


def test_tags_are_set_moved_and_removed(storage: cachelayer.Storage) -> None:
    assert document("tag", f"{storage.url}/d@v1", "best") == {"dataset_id": "d", "version": "v1", "tag": "best"}
    invoke("tag", f"{storage.url}/d", "newest")
    assert storage.tags("d") == {"best": "v1", "newest": "v2"}
    invoke("tag", f"{storage.url}/d", "best", "--delete")
    assert storage.tags("d") == {"newest": "v2"}
    assert "is a version: tags and versions share" in refused("tag", f"{storage.url}/d@v2", "v1")
    assert "reserved" in refused("tag", f"{storage.url}/d@v2", "latest")
    assert "without @VERSION" in refused("tag", f"{storage.url}/d@v2", "newest", "--delete")
    refused("tag", f"{storage.url}/d", "best", "--delete")
    refused("tag", f"{storage.url}/d@v9", "best")
    assert storage.tags("d") == {"newest": "v2"}


def test_rm_deletes_what_is_named(storage: cachelayer.Storage) -> None:
    assert "pass --yes" in refused("rm", f"{storage.url}/d@v1")
    assert "say which version" in refused("rm", f"{storage.url}/d", "--yes")
    assert "d@v2 has the tag best: move it first, or pass --force" in refused("rm", f"{storage.url}/d@v2", "--yes")
    deleted = {"dataset_id": "d", "deleted": "v1"}
    assert document("rm", f"{storage.url}/d@v1", "--yes") == {**deleted, "grace_seconds": 86400.0}
    assert document("gc", storage.url, "--grace", "0") == {"deleted": []}
    assert document("rm", f"{storage.url}/d@v1", "--yes", "--grace", "0") == {**deleted, "grace_seconds": 0.0}
    refused("rm", f"{storage.url}/d@v1", "--yes", "--grace", "0")
    assert "--grace 'soon'" in refused("rm", f"{storage.url}/d@v2", "--yes", "--force", "--grace", "soon")
    assert "freed by gc after 2h" in invoke("rm", f"{storage.url}/d@v2", "--yes", "--force", "--grace", "2h").stdout
    assert (storage.versions("d"), storage.tags("d")) == ({}, {})
    refused("rm", f"{storage.url}/d@v1", "--yes")
    refused("rm", f"{storage.url}/nothing@v1", "--yes")


def test_rm_of_a_tag_deletes_nothing(storage: cachelayer.Storage) -> None:
    assert "name the version itself" in refused("rm", f"{storage.url}/d@best", "--yes", "--force")
    assert list(storage.versions("d")) == ["v1", "v2"]


def test_gc_removes_what_builds_left(storage: cachelayer.Storage) -> None:
    left = Path(storage.url) / paths.build("d", "20200101T000000-000000000000")
    shutil.copytree(next(Path(storage.url).glob("d/_builds/*")), left)
    assert document("gc", storage.url) == {"deleted": []}
    assert document("gc", storage.url, "--grace", "0s") == {"deleted": [f"d/{left.name}"]}
    assert not left.exists()
    assert "there is nothing at" in refused("gc", f"{storage.url}-not")
    assert "--grace 'soon'" in refused("gc", storage.url, "--grace", "soon")


def test_cp_keeps_or_changes_the_names(storage: cachelayer.Storage, tmp_path: Path) -> None:
    other = cachelayer.Storage(tmp_path / "other")
    kept = document("cp", f"{storage.url}/d@best", other.url)
    renamed = document("cp", f"{storage.url}/d@v1", f"{other.url}/copy@w1")
    assert (kept["dataset_id"], kept["version"], kept["digest"]) == ("d", "v2", storage.fetch("d", "v2").digest)
    assert (renamed["dataset_id"], renamed["version"]) == ("copy", "w1")
    assert other.verify("copy@w1")
    assert document("cp", f"{storage.url}/d@best", other.url) == kept
    assert "choose another" in refused("cp", f"{storage.url}/d@v1", f"{other.url}/d@v2")
    refused("cp", f"{storage.url}/d@v9", other.url)


def test_rewrite_shuffles_compresses_and_leaves_fields_out(storage: cachelayer.Storage) -> None:
    options = ("--shuffle-seed", "3", "--compression", "zstd", "--shard-bytes", "20kB", "--field", "label")
    made = document("rewrite", f"{storage.url}/d@best[:100]", "mixed", *options)
    order = [row["label"] for row in storage.fetch("d@best")[:100].stream(shuffle=True, seed=3)]
    ref = storage.fetch("d@mixed")
    assert list(ref) == [{"label": label} for label in order]
    assert (made["version"], made["records"], made["digest"]) == ("mixed", 100, ref.digest)
    assert document("rewrite", f"{storage.url}/d@best[:100]", "mixed", *options) == made
    assert "shuffle_seed was 3 and is 4" in refused(
        "rewrite", f"{storage.url}/d@best[:100]", "mixed", *options, "--shuffle-seed", "4"
    )
    assert "no field 'x'" in refused("rewrite", f"{storage.url}/d", "other", "--field", "x")
    assert "d@mixed: 100 records" in invoke("rewrite", f"{storage.url}/d@v2[:100]", "mixed", *options).stdout
    assert len(storage.fetch("d", "v1")) == document("rewrite", f"{storage.url}/d@v1", "again")["records"]


def test_diff_tells_same_from_different(storage: cachelayer.Storage, tmp_path: Path) -> None:
    invoke("cp", f"{storage.url}/d@v1", tmp_path / "other")
    same = document("diff", f"{storage.url}/d@v1", f"{tmp_path}/other/d")
    assert same["same_data"] is True
    different = document("diff", f"{storage.url}/d@v1", f"{storage.url}/d@v2", code=1)
    assert (different["same_data"], different["records"], different["only_one"]["count"]) == (False, [500, 510], 0)
    assert "500 -> 510 (+10)" in invoke("diff", f"{storage.url}/d@v1", f"{storage.url}/d", code=1).stdout


def test_mirror_of_a_local_storage_has_nothing_to_do(storage: cachelayer.Storage) -> None:
    found = document("mirror", f"{storage.url}/d@v1")
    assert found["local_shards"] == found["shards"] == len(storage.fetch("d", "v1")._base.version.manifest.shards)
    assert found["local_nbytes"] == found["nbytes"]


def checks(found: dict[str, Any]) -> dict[str, bool]:
    return {check["check"]: check["ok"] for check in found["storage"]["checks"]}


def test_doctor_probes_a_storage_and_leaves_nothing(storage: cachelayer.Storage) -> None:
    before = sorted(Path(storage.url).rglob("*"))
    found = document("doctor", storage.url)
    assert list(checks(found).values()) == [True] * 4
    assert found["storage"]["url"] == storage.url
    assert found["versions"]["cachelayer"] == cachelayer.__version__
    assert sorted(Path(storage.url).rglob("*")) == before


def test_doctor_tells_what_cannot_be_published_to(tmp_path: Path) -> None:
    found = document("doctor", tmp_path / "nowhere", code=1)
    assert checks(found) == {"exists": False}
    assert not (tmp_path / "nowhere").exists()
    found = document("doctor", "ftp://host/folder", code=1)
    assert "no put-if-absent" in found["storage"]["checks"][0]["detail"]
    assert "FAILED" in invoke("doctor", "ftp://host/folder", code=1).stdout


class Overwriting(LocalStore):
    """A store that takes the condition of a put for granted."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self.put(name, data)
        return True


def test_a_store_that_writes_over_is_found(tmp_path: Path) -> None:
    store = Overwriting(tmp_path)
    assert [(check["check"], check["ok"]) for check in _probe(store)] == [
        ("puts an object where there is none", True),
        ("refuses to put another over it", False),
    ]
    assert store.names("") == []


def test_doctor_measures_local_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHELAYER_LOCAL_CACHE", str(tmp_path / "copies"))
    assert document("doctor")["local_cache"] == {"folder": str(tmp_path / "copies"), "nbytes": 0}
    copies = CacheFolder(tmp_path / "copies")
    assert copies.group("gs://a").make("shard", 1000, lambda path: None) is CopyOutcome.HERE
    assert document("doctor")["local_cache"]["nbytes"] == 1000


def test_what_others_stored_does_not_command_the_terminal(tmp_path: Path) -> None:
    storage = cachelayer.Storage(tmp_path)
    said = "\x1b]0;title\x07\x1b[2J\x9b31mred\rover"
    storage.submit([1], "d", "v1", description=said, metadata={said: said})
    shown = invoke("show", f"{storage.url}/d@v1").stdout
    assert "title" in shown
    assert not {"\x1b", "\x07", "\x9b", "\r"} & set(shown)
    assert document("show", f"{storage.url}/d@v1")["provenance"]["description"] == said
