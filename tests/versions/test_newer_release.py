"""What a newer release stored: refused by name where it means something, and ignored and kept where it may be."""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from stored import set_facts

import cachelayer
from cachelayer import FormatError, StateError, Storage
from cachelayer.support.json_values import sealed, unsealed
from cachelayer.versions.manifest import Manifest
from cachelayer.versions.snapshot import manifest_name

Change = Callable[[dict[str, Any]], Any]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    storage = Storage(tmp_path)
    storage.submit([{"n": number} for number in range(20)], "d@old", shard_bytes=300)
    storage.derive("d@old", new="v1", keep=[3, 1, 4])
    storage.add_columns("d@old", new="scored", columns=lambda row: {"score": row["n"] / 2})
    # Entry 4 says all again.
    storage.tag("d@v1", tag="named")
    return tmp_path


def change_entry(root: Path, change: Change) -> None:
    """Change the newest entry of the log as a newer release may write it: with its checksum."""
    newest = max((root / "d" / "_log").glob("0*.json"))
    document = unsealed(newest.read_bytes())
    change(document)
    newest.write_bytes(sealed(document))


def change_manifest(root: Path, version: str, change: Change) -> None:
    """Change a manifest, and what the log says of it."""
    info = Storage(root).versions("d")[version]
    old = root / "d" / manifest_name(info)
    document = json.loads(old.read_bytes())
    change(document)
    raw = json.dumps(document).encode()
    facts = {"manifest_sha256": hashlib.sha256(raw).hexdigest()}
    with suppress(FormatError):
        facts["digest"] = Manifest.decode(raw, "m").digest
    new = old.with_name(f"{facts['manifest_sha256'][:32]}-{info.generation}.json")
    new.write_bytes(raw)
    change_entry(root, lambda entry: set_facts(entry, version, **facts))


def rows(manifest: dict[str, Any]) -> Any:
    return manifest["data"]["rows"]


ENTRIES: dict[str, Change] = {
    "another format": lambda entry: entry.update(format=2),
    "another format of other members": lambda entry: [entry.clear(), entry.update(format=2, trees=[])],
    "a member of the entry": lambda entry: entry.update(branches={}),
    "a member of what is removed": lambda entry: entry["removed"].update(branches=[]),
}
MANIFESTS: dict[str, Change] = {
    "another format": lambda manifest: manifest.update(format=2),
    "another format of other members": lambda manifest: [manifest.clear(), manifest.update(format=2, trees=[])],
    "a member of the manifest": lambda manifest: manifest.update(encryption="aes"),
    "a member of the data": lambda manifest: manifest["data"].update(hidden=[3]),
    "a member of the rows": lambda manifest: rows(manifest).update(hidden=[3]),
    "a member of the shards": lambda manifest: rows(manifest)["shards"].update(keys=[1, 2]),
    "a member of the kept records": lambda manifest: manifest["data"]["kept"].update(weights=[]),
    "a codec": lambda manifest: rows(manifest).update(codec="typed/2"),
    "a compression": lambda manifest: rows(manifest)["shards"].update(
        compression=["brotli" for _ in rows(manifest)["shards"]["records"]]
    ),
    "a kind of leaf": lambda manifest: rows(manifest)["element_spec"]["items"][0].__setitem__(1, {"kind": "mesh"}),
    "a dtype": lambda manifest: rows(manifest)["element_spec"]["items"][0][1].update(dtype="float3"),
    "a member of a leaf": lambda manifest: rows(manifest)["element_spec"]["items"][0][1].update(unit="m"),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_of_a_newer_release_is_refused_and_nothing_is_written(root: Path, name: str) -> None:
    change_entry(root, ENTRIES[name])
    before = sorted(path.name for path in root.rglob("*"))
    storage = Storage(root)
    for use in (storage.fetch, storage.verify, storage.delete, lambda name: storage.tag(name, tag="t")):
        with pytest.raises(FormatError, match=r"_log/0000000004.json: .*update cachelayer"):
            use("d@v1")
    with pytest.warns(cachelayer.CacheLayerWarning, match="update cachelayer"):
        storage.gc(grace=0)
    assert sorted(path.name for path in root.rglob("*")) == before


@pytest.mark.filterwarnings("ignore::cachelayer.CacheLayerWarning")
@pytest.mark.parametrize("name", MANIFESTS)
def test_a_version_of_a_newer_release_is_refused_by_name_and_no_other(root: Path, name: str) -> None:
    version, other = ("v1", "old") if "kept" in name else ("old", "v1")
    change_manifest(root, version, MANIFESTS[name])
    storage = Storage(root)
    with pytest.raises(FormatError, match=rf"(manifests/\w+-0.json|d@{version}): .*update cachelayer"):
        storage.fetch(f"d@{version}").read([0])
    report = storage.verify(f"d@{version}")
    assert "update cachelayer" in report.problems[0]
    assert report.damaged == ()
    assert storage.fetch(f"d@{other}").read([1])["n"] == [1]
    files = sorted(path.name for path in (root / "d" / "shards").iterdir())
    storage.gc(grace=0)
    assert sorted(path.name for path in (root / "d" / "shards").iterdir()) == files


def test_a_member_of_columns_is_refused_too(root: Path) -> None:
    change_manifest(root, "scored", lambda manifest: manifest["data"]["columns"][0]["array"].update(order="F"))
    with pytest.raises(FormatError, match="array has 'order'"):
        Storage(root).fetch("d@scored")


def test_what_may_be_added_is_ignored_and_kept(root: Path) -> None:
    change_manifest(root, "old", lambda manifest: manifest["provenance"].update(carbon={"g": 3}))
    change_entry(root, lambda entry: entry["event"].update(ticket=[7]))
    (root / "d" / "_later").mkdir()
    (root / "d" / "_later" / "file").write_bytes(b"of a newer release")
    storage = Storage(root)
    assert storage.history("d")[-1].details["ticket"] == [7]
    there = Storage(root / "there")
    storage.copy("d@old", to=there)
    storage.erase("d@old", records=[3], reason="asked for", grace=0)
    storage.gc(grace=0)
    for changed in (storage, there):
        info = changed.versions("d")["old"]
        folder = root if changed is storage else root / "there"
        assert json.loads((folder / "d" / manifest_name(info)).read_bytes())["provenance"]["carbon"] == {"g": 3}
    assert storage.history("d")[3].details["ticket"] == [7]
    assert (root / "d" / "_later" / "file").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"format": 2, "position": ...},
        {"curriculum": [1, 2]},
        {"order": {"kind": "curriculum", "version": 1}},
        {"order": {"kind": "exact", "version": 2, "seed": 1, "shuffle": True, "reshuffle": True}},
    ],
)
@pytest.mark.parametrize("of_loops", [False, True])
def test_a_state_of_a_newer_release_is_refused(change: dict[str, Any], of_loops: bool) -> None:
    stream = cachelayer.wrap(list(range(10)), identity="ten").stream(2, shuffle=True, seed=1)
    state = {name: value for name, value in (iter(stream).get_state() | change).items() if value is not ...}
    if of_loops:
        position = state.pop("position", 0)
        state = {"epoch": 0, "position": position, "stream": json.dumps(state)}
    with pytest.raises(StateError, match="update cachelayer"):
        iter(stream).set_state(state)


def test_what_an_order_of_a_newer_release_has_besides_is_refused() -> None:
    iterator = iter(cachelayer.wrap(list(range(10)), identity="ten").stream(2, shuffle=True, seed=1))
    state = iterator.get_state()
    state["order"]["pace"] = 3
    with pytest.raises(StateError, match="pace is 3 in the state, and nothing here"):
        iterator.set_state(state)
