"""Commands on versions that are there: listed, shown, tagged, compared, copied, deleted; on local disk."""

import re
import threading
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import RUNNER, document, invoke, refused

import cachelayer
from cachelayer.cli import change_versions, this_machine
from cachelayer.cli.app import app
from cachelayer.objects.local import LocalStore
from cachelayer.objects.local_cache import CacheFolder
from cachelayer.support import counting
from cachelayer.support.host import process_name

SHARD_BYTES = 35_000


@pytest.fixture
def storage(tmp_path: Path) -> cachelayer.Storage:
    """A storage with two versions of `d`, the second tagged `best`, and a dataset `e`."""
    storage = cachelayer.Storage(tmp_path / "cache")
    rows = [{"image": bytes(200), "label": number} for number in range(500)]
    storage.submit(rows, "d@v1", shard_bytes=SHARD_BYTES, description="rows [bold]", metadata={"from": "here"})
    storage.append("d@v1", "v2", rows[:10])
    storage.tag("d@v2", "best")
    storage.submit([1, 2, 3], "e@only")
    return storage


def test_ls_lists_datasets_and_versions_with_their_tags(storage: cachelayer.Storage, tmp_path: Path) -> None:
    listed = document("ls", storage.url)
    newest = [(each["dataset_id"], each["versions"], each["newest"]) for each in listed]
    assert newest == [("d", 2, "v2"), ("e", 1, "only")]
    assert "510" in invoke("ls", f"{storage.url}/").stdout
    versions = document("ls", f"{storage.url}/d")
    assert [(each["version"], each["tags"]) for each in versions] == [("v1", []), ("v2", ["best"])]
    assert "best" in invoke("ls", f"{storage.url}/d").stdout
    (tmp_path / "empty").mkdir()
    assert document("ls", tmp_path / "empty") == []
    storage.delete("e@only")
    assert document("ls", f"{storage.url}/e") == []


def test_ls_of_a_dataset_lists_builds_that_are_not_published(tmp_path: Path) -> None:
    storage = cachelayer.Storage(tmp_path)
    with pytest.raises(cachelayer.ElementError):
        storage.submit([*[bytes(8000)] * 900, 5], "first@v1", shard_bytes=1_000_000, resume=True)
    shown = invoke("ls", tmp_path / "first").stdout
    assert "no version of first is published" in shown
    assert storage.builds("first")[0].state in shown


def test_a_build_tells_who_runs_it_and_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHELAYER_LEASE_SECONDS", "0.3")
    storage = cachelayer.Storage(tmp_path)
    seen = list[Any]()

    class Rows:
        def __len__(self) -> int:
            return 50_000

        def __getitem__(self, number: int) -> dict[str, int]:
            if number == 49_999:
                # The lease beats as often as before, and who looks takes no late beat for an end.
                monkeypatch.setenv("CACHELAYER_LEASE_SECONDS", "60")
                for _ in range(200):
                    seen.append(document("ls", tmp_path / "d")[0])
                    if seen[-1]["done"]:
                        break
            return {"n": number}

    storage.submit([{"n": 1}], "d@v1")
    storage.submit(Rows(), "d@v2")
    running = seen[-1]
    assert (running["version"], running["state"], running["total"]) == ("v2", "running", 50_000)
    assert running["status"] == process_name()
    assert running["done"] > 0
    assert [(each["version"], each["state"]) for each in document("ls", tmp_path / "d")] == [
        ("v1", "published"),
        ("v2", "published"),
    ]


def test_a_long_url_stands_whole_on_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"s3://bucket/{'a-long-folder/' * 12}d"
    used = CacheFolder(tmp_path / "copies").group(url)
    used.make("shard", 2000, lambda path: path.write_bytes(bytes(2000)) and None)
    other = cachelayer.Storage(tmp_path / ("long" * 30))
    other.submit([1], "d@v1")
    other.copy("d@v1", tmp_path / "copied")
    monkeypatch.setenv("COLUMNS", "40")
    first, rule, row, *_ = invoke("copies", "--local-cache", tmp_path / "copies").stdout.splitlines()
    assert row.endswith(f"   {url}")
    assert (first.index("url"), set(rule)) == (row.index(url), {"\N{BOX DRAWINGS LIGHT HORIZONTAL}"})
    assert other.fetch("d@v1").reference in invoke("log", tmp_path / "copied/d").stdout


def test_tables_fit_the_terminal_and_lose_no_letter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, version, tag = "dataset-" * 9, "version-" * 7, "a-tag-" * 6
    storage = cachelayer.Storage(tmp_path)
    storage.submit([1], f"{name}@{version}")
    storage.tag(f"{name}@{version}", tag)
    for columns in (62, 80):
        monkeypatch.setenv("COLUMNS", str(columns))
        for place, column in ((storage.url, name), (f"{storage.url}/{name}", version)):
            _, *lines = invoke("ls", place).stdout.splitlines()
            assert max(map(len, lines)) <= columns
            firsts = [
                line.split(" ")[0] for line in lines[lines.index(max(lines, key=lambda line: line.count("─"))) + 1 :]
            ]
            assert "".join(firsts) == column


@pytest.mark.parametrize("columns", [40, 50, 59])
def test_in_a_narrow_terminal_no_line_of_a_table_is_wider_and_no_number_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    name, version = "dataset-" * 9, "version-" * 7
    storage = cachelayer.Storage(tmp_path)
    storage.submit(list(range(1_234)), f"{name}@{version}", description="why it was made " * 9)
    with pytest.raises(cachelayer.ElementError):
        storage.submit([*[1] * 2_345, "two"], f"{name}@unfinished-{version}", shard_bytes=1000)
    places = {"ls": [storage.url, f"{storage.url}/{name}"], "show": [f"{storage.url}/{name}"]}
    monkeypatch.setenv("COLUMNS", str(columns))
    for command, named in places.items():
        for place in named:
            _, *lines = invoke(command, place).stdout.splitlines()
            assert [line for line in lines if len(line) > columns and "/" not in line] == []
            words = " ".join(lines).split()
            assert "1,234" in words
            assert any(re.fullmatch(r"\d{4}-\d\d-\d\d", word) for word in words) or command == "show"


def test_ls_says_what_it_lists(storage: cachelayer.Storage) -> None:
    assert f"{storage.url} is a storage of 2 datasets" in invoke("ls", storage.url).stdout
    assert f"d is a dataset of 2 versions in {storage.url}" in invoke("ls", f"{storage.url}/d").stdout


def test_each_dataset_is_read_once_for_a_list() -> None:
    url = f"memory://{uuid.uuid4().hex}"
    storage = cachelayer.Storage(url, local_cache_bytes=0)
    for number in range(20):
        storage.submit([number], f"d{number}@v1", progress=False)
    for act in (storage.datasets, lambda: invoke("ls", url)):
        before = counting.counters()["requests"]
        act()
        # The list of datasets; of each, the pointer to its newest entry, the entry, and whether there is a newer one.
        assert counting.counters()["requests"] - before <= 3 * 20 + 10


def test_quiet_commands_print_problems_alone(storage: cachelayer.Storage) -> None:
    named = f"{storage.url}/d@v1"
    assert invoke("verify", named, "--quiet").output == ""
    assert document("verify", named, "-q")["ok"] is True
    assert "v9" in refused("verify", f"{storage.url}/d@v9", "-q")
    assert invoke("doctor", storage.url, "-q").output == ""


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb"), ("TERM", "xterm")])
def test_bold_text_is_for_terminals_that_have_it(storage: cachelayer.Storage, name: str, value: str) -> None:
    shown = RUNNER.invoke(app, ["ls", storage.url], color=True, env={"NO_COLOR": None, "TERM": None, name: value})
    assert ("\x1b[1m" in shown.stdout) is (value == "xterm")


def test_erase_takes_a_condition(storage: cachelayer.Storage) -> None:
    named = f"{storage.url}/d@v1"
    for wrong in (["3", "--where", "label == 3"], ["--where", "label == 1000"], ["--where", "no == 3"], []):
        refused("erase", named, *wrong, "--reason", "asked", "--yes", code=2)
    assert "record 999999999999:" in refused("erase", named, "0:1000000000000", "--reason", "asked", "--yes", code=3)
    # Nobody is asked whether to erase nothing.
    assert "fits no record" in refused("erase", named, "--where", "label == 1000", "--reason", "asked", code=2)
    assert storage.fetch("d@v1").erased.tolist() == []
    storage.derive("d@v1", new="odd", keep=np.arange(1, 500, 2))
    document(
        "erase", f"{storage.url}/d@odd", "--where", "label in [7, 9, 10]", "--reason", "asked", "--yes", "--no-progress"
    )
    assert storage.fetch("d@v1").erased.tolist() == [7, 9]
    assert storage.fetch("d@odd").erased.tolist() == [3, 4]
    assert "2 records erased" in invoke("erase", named, "0", "2", "--reason", "asked", "--yes").stdout


def test_records_are_erased_from_the_version_that_was_asked_about(
    storage: cachelayer.Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer_late(*_: object) -> None:
        storage.rewrite("d@v2", new="later", shuffle_seed=1)

    monkeypatch.setattr(change_versions, "_confirm", answer_late)
    invoke("erase", f"{storage.url}/d", "0", "--reason", "asked")
    assert storage.fetch("d@later").erased.tolist() == []
    assert storage.fetch("d@v2").erased.tolist() == [0]


def test_show_tells_everything_of_a_version(storage: cachelayer.Storage) -> None:
    ref = storage.fetch("d@v1")
    found = document("show", f"{storage.url}/d@v1")
    assert (found["records"], found["nbytes"], found["reference"]) == (500, ref.nbytes, ref.reference)
    assert sum(shard["records"] for shard in found["shards"]) == 500
    assert found["provenance"]["description"] == "rows [bold]"
    text = invoke("show", ref.reference).stdout
    assert f"reference   {ref.reference}" in text.splitlines()
    assert "    image: bytes" in text
    assert "rows [bold]" in text
    assert document("show", f"{storage.url}/d@best")["tags"] == ["best"]
    assert document("show", f"{storage.url}/d@sha256:{ref.digest[:20]}")["version"] == "v1"


def test_commands_take_some_records_of_a_version_by_the_reference_of_a_view(storage: cachelayer.Storage) -> None:
    few = storage.fetch("d@v1").where("label > 490")
    for view in (few.split({"a": 0.5, "b": 0.5}, seed=3)["b"][::2], few.folds(3, seed=1, by="label")[2][0]):
        shown = document("show", view.reference)
        assert (shown["records"], shown["reference"], shown["digest"]) == (len(view), view.reference, view.digest)
        assert document("stats", view.reference)["records_read"] == len(view)
    assert "d@v1.where('label > 490')" in invoke("stats", f"{storage.url}/d@v1.where('label > 490')").stdout
    for wrong in (".fields('label')", ".sample('label', seed=1)", ".wher('x')", "[3]"):
        for command in ("show", "head", "stats", "mirror"):
            refused(command, f"{storage.url}/d@v1{wrong}")
    refused("erase", f"{storage.url}/d@v1[5:]", "0", "--reason", "asked", "--yes")


def test_log_tells_who_did_what(storage: cachelayer.Storage) -> None:
    events = document("log", f"{storage.url}/d")
    assert [(event["sequence"], event["kind"]) for event in events] == [(1, "publish"), (2, "publish"), (3, "tag")]
    assert events[2]["details"]["tag"] == "best"
    assert {"time", "user", "host", "pid"} <= set(events[0])
    assert "best" in invoke("log", f"{storage.url}/d").stdout
    refused("log", f"{storage.url}/x")
    assert "name only the dataset" in refused("log", f"{storage.url}/d@v1")


def test_tags_are_set_moved_and_removed(storage: cachelayer.Storage) -> None:
    assert document("tag", f"{storage.url}/d@v1", "best") == {"dataset_id": "d", "version": "v1", "tag": "best"}
    invoke("tag", f"{storage.url}/d", "newest")
    assert storage.tags("d") == {"best": "v1", "newest": "v2"}
    invoke("tag", f"{storage.url}/d", "best", "--delete")
    assert "name only the dataset" in refused("tag", f"{storage.url}/d@v2", "newest", "--delete")
    for wrong in (("d@v2", "v1"), ("d@v2", "latest"), ("d", "best", "--delete"), ("d@v9", "best")):
        refused("tag", f"{storage.url}/{wrong[0]}", *wrong[1:])
    assert storage.tags("d") == {"newest": "v2"}


def test_rm_deletes_what_is_named(storage: cachelayer.Storage) -> None:
    assert "pass --yes" in refused("rm", f"{storage.url}/d@v1")
    assert "'d@<version>'" in refused("rm", f"{storage.url}/d", "--yes")
    assert "has the tag 'best'" in refused("rm", f"{storage.url}/d@v2", "--yes")
    refused("rm", f"{storage.url}/d@best", "--yes", "--force")
    assert document("rm", f"{storage.url}/d@v1", "--yes") == {"deleted": "d@v1"}
    assert document("rm", f"{storage.url}/d@v1", "--yes", "--now") == {"deleted": "d@v1"}
    refused("rm", f"{storage.url}/d@v1", "--yes", "--now")
    said = invoke("rm", f"{storage.url}/d@v2", "--yes", "--force").stdout
    assert "gc frees its files in 24 h" in said
    assert (storage.versions("d"), storage.tags("d")) == ({}, {})


def test_cp_keeps_or_changes_the_names(storage: cachelayer.Storage, tmp_path: Path) -> None:
    other = cachelayer.Storage(tmp_path / "other")
    kept = document("cp", f"{storage.url}/d@best", other.url)
    renamed = document("cp", f"{storage.url}/d@v1", f"{other.url}/copy@w1")
    assert (kept["dataset_id"], kept["version"], kept["digest"]) == ("d", "v2", storage.fetch("d@v2").digest)
    assert (renamed["dataset_id"], renamed["version"]) == ("copy", "w1")
    assert other.verify("copy@w1")
    assert document("cp", f"{storage.url}/d@best", other.url) == {**kept, "copied": False}
    assert "exists already" in invoke("cp", f"{storage.url}/d@v1", f"{other.url}/copy@w1").stdout
    assert "choose another" in refused("cp", f"{storage.url}/d@v1", f"{other.url}/d@v2")
    refused("cp", f"{storage.url}/d@v9", other.url)


def test_repair_fetches_what_is_damaged_from_elsewhere(storage: cachelayer.Storage, tmp_path: Path) -> None:
    backup, other = cachelayer.Storage(tmp_path / "backup"), cachelayer.Storage(tmp_path / "other")
    storage.copy("d@v1", backup, new="kept@w1")
    storage.copy("e@only", other)
    named = f"{storage.url}/d@v1"
    assert "nothing is damaged" in invoke("repair", named, "--from", f"{backup.url}/kept@w1").stdout
    shard = min(Path(storage.url, "d", "shards").glob("*.array_record"))
    shard.unlink()
    found = document("verify", named, code=1)
    assert f"d/shards/{shard.name}" in found["damaged"]
    assert f"cachelayer repair {named} --from STORAGE" in invoke("verify", named, code=1).stdout
    assert document("repair", named, "--dry-run", code=1)["repaired"] is False
    for place in (f"{storage.url}/e@only", f"{other.url}/e"):
        refused("repair", named, "--from", place)
    assert "from_=" in refused("repair", named)
    assert document("repair", named, "--from", f"{backup.url}/kept@w1")["ok"] is True
    assert document("verify", named)["ok"] is True


def test_local_copies_are_listed_and_cleared(tmp_path: Path) -> None:
    folder = tmp_path / "copies"
    assert document("copies", "--local-cache", folder)["nbytes"] == 0
    used = CacheFolder(folder).group("gs://bucket/caches/d")
    used.make("shard", 2000, lambda path: path.write_bytes(bytes(2000)) and None)
    listed = invoke("copies", "--local-cache", folder).stdout
    assert all(text in listed for text in ("gs://bucket/caches/d\n", "2.0 kB"))
    assert "2.0 kB left in use" in invoke("copies", "--clear", "--local-cache", folder).stdout
    del used
    assert document("copies", "--clear", "--local-cache", folder)["groups"] == []
    assert not list(folder.glob("*/shard"))


def test_diff_tells_same_from_different(storage: cachelayer.Storage, tmp_path: Path) -> None:
    invoke("cp", f"{storage.url}/d@v1", tmp_path / "other")
    same = document("diff", f"{storage.url}/d@v1", f"{tmp_path}/other/d")
    assert same["same_data"] is True
    different = document("diff", f"{storage.url}/d@v1", f"{storage.url}/d@v2", code=1)
    assert (different["same_data"], different["records"], different["only_one"]["count"]) == (False, [500, 510], 0)
    assert "500 -> 510 (+10)" in invoke("diff", f"{storage.url}/d@v1", f"{storage.url}/d", code=1).stdout
    assert (different["rows"]["came"]["count"], different["rows"]["same"], different["rows"]["key"]) == (10, 500, [])
    assert (
        "rows:    not compared" in invoke("diff", f"{storage.url}/d@v1", f"{storage.url}/d", "--no-rows", code=1).stdout
    )


def test_diff_compares_rows_by_keys(tmp_path: Path) -> None:
    storage = cachelayer.Storage(tmp_path)
    rows = [{"a": n // 2, "b": n % 2, "x": n / 4} for n in range(10)]
    storage.submit(rows, "d@v1")
    storage.submit([{**rows[3], "x": float("nan")}, *rows[4:]], "d@v2")
    keys = "--key", "a", "--key", "b"
    found = document("diff", f"{tmp_path}/d@v1", f"{tmp_path}/d@v2", *keys, code=1)["rows"]
    assert (found["went"]["count"], found["went"]["first"]["key"], found["same"]) == (3, [0, 0], 6)
    assert found["fields"]["x"] == {
        "count": 1, "first": {"key": [1, 1], "records": [3, 0], "one": 0.75, "other": "nan"}
    }  # fmt: skip
    shown = invoke("diff", f"{tmp_path}/d@v1", f"{tmp_path}/d@v2", *keys, code=1).stdout
    assert "by a, b: 0 came, 3 went, 1 changed, 6 are the same" in shown
    invoke("diff", f"{tmp_path}/d@v1", f"{tmp_path}/d@v2", "--key", "a", code=2)


def test_doctor_probes_a_storage_and_leaves_nothing(
    storage: cachelayer.Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(Path(storage.url).rglob("*"))
    found = document("doctor", storage.url)
    assert found["storage"] == {"url": storage.url, "problem": "", "limit": ""}
    assert found["versions"]["cachelayer"] == cachelayer.__version__
    refused("doctor", tmp_path / "nowhere")
    assert "put-if-absent" in document("doctor", "ftp://host/folder", code=1)["storage"]["problem"]
    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "put_if_absent", lambda store, name, data: store.put(name, data) or True)
        asked = invoke("doctor", storage.url, code=1)
    assert "over another" in asked.stdout
    assert asked.stderr.startswith(f"asking {storage.url}")
    assert sorted(Path(storage.url).rglob("*")) == before


def test_doctor_says_that_nothing_can_be_deleted_and_a_killed_build_goes_on_there(
    storage: cachelayer.Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: LocalStore, name: str) -> None:
        raise cachelayer.StorageError(f"cannot delete {name}: refused")

    monkeypatch.setattr(LocalStore, "delete", refuse)
    asked = invoke("doctor", storage.url)
    assert "can be published to, but nothing can be deleted" in asked.stdout
    assert document("doctor", storage.url)["storage"]["limit"]
    # A process that died holds the claim of the build.
    claim = Path(storage.url) / "new/_builds/v1/claim"
    claim.parent.mkdir(parents=True)
    claim.write_bytes(b"gone.elsewhere-1 0 1")
    monkeypatch.setenv("CACHELAYER_LEASE_SECONDS", "0.2")
    assert len(storage.submit([1, 2], "new@v1")) == 2
    assert len(storage.submit([1, 2, 3], "new@v2")) == 3


def test_doctor_gives_up(storage: cachelayer.Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(this_machine, "PATIENCE", 0.01)
    waits = threading.Event()
    monkeypatch.setattr(LocalStore, "put_if_absent", lambda *_: waits.wait())
    assert "did not answer" in document("doctor", storage.url, code=1)["storage"]["problem"]
    waits.set()


def test_what_others_stored_does_not_command_the_terminal(tmp_path: Path) -> None:
    storage = cachelayer.Storage(tmp_path)
    said = "\x1b]0;title\x07\x1b[2J\x9b31mred\rover"
    storage.submit([1], "d@v1", description=said, metadata={said: said})
    shown = invoke("show", f"{storage.url}/d@v1").stdout
    assert "title" in shown
    assert not {"\x1b", "\x07", "\x9b", "\r"} & set(shown)
    assert document("show", f"{storage.url}/d@v1")["provenance"]["description"] == said


def test_rewrite_shuffles_compresses_and_leaves_fields_out(storage: cachelayer.Storage) -> None:
    options = ("--shuffle-seed", "3", "--compression", "zstd", "--shard-bytes", "20kB", "--field", "label")
    made = document("rewrite", f"{storage.url}/d@best[:100]", "mixed", *options)
    order = [row["label"] for row in storage.fetch("d@best")[:100].stream(shuffle=True, seed=3)]
    ref = storage.fetch("d@mixed")
    assert list(ref) == [{"label": label} for label in order]
    assert (made["version"], made["records"], made["digest"]) == ("mixed", 100, ref.digest)
    assert "'x'" in refused("rewrite", f"{storage.url}/d", "other", "--field", "x")


def test_gc_and_mirror_of_a_local_storage_have_nothing_to_do(storage: cachelayer.Storage) -> None:
    assert document("gc", storage.url, "--grace", "0s") == {"deleted": [], "failed": {}}
    assert "'soon'" in refused("gc", storage.url, "--grace", "soon")
    found = document("mirror", f"{storage.url}/d@v1")
    assert found["local_shards"] == found["shards"]


def test_delete_is_called_rm(storage: cachelayer.Storage) -> None:
    assert "it is called rm" in refused("delete", f"{storage.url}/d@v1")
