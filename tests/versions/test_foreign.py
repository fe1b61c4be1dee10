"""What a dataset that somebody else wrote, or edited, can make us do: nothing outside of it, and no error but ours."""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from stored import set_facts

import cachelayer
from cachelayer import CacheLayerError, CorruptionError, Storage
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.support.json_values import sealed, unsealed
from cachelayer.versions.log import Log
from cachelayer.versions.snapshot import Snapshot, manifest_name, manifest_stem


class Foreign:
    """A storage that another hand may have filled, beside what is the user's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root, self.home = folder / "storage" / "below" / "deep", folder / "home"
        (self.home / "thesis").mkdir(parents=True)
        (self.home / "thesis" / "chapter1").write_text("mine")
        (self.home / ".bashrc").write_text("mine")
        storage = Storage(self.root)
        storage.submit([{"n": number, "even": number % 2 == 0} for number in range(20)], "d@all", shard_bytes=200)
        storage.derive("d@all", "v1", keep=[3, 1, 4, 1, 5])
        self.info = storage.versions("d")["v1"]
        self.document = json.loads((self.root / "d" / manifest_name(self.info)).read_bytes())
        self.entry = self.root / "d" / paths.log_entry(2)
        self.logged = unsealed(self.entry.read_bytes())

    def publish(self) -> None:
        """Write the manifest, and what the log says of it, as their author would: with the right hashes."""
        raw, data = json.dumps(self.document).encode(), self.document["data"]
        name = hashlib.sha256(raw).hexdigest()
        folder = self.root / "d" / paths.MANIFESTS
        numbers = self.root / "d" / paths.kept_numbers(manifest_stem(self.info))
        (folder / f"{name[:32]}-0.json").write_bytes(raw)
        (folder / f"{name[:32]}-0.i64").write_bytes(numbers.read_bytes())
        set_facts(self.logged, "v1", manifest_sha256=name, digest=data["kept"]["digest"])
        self.entry.write_bytes(sealed(self.logged))

    def outside(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() if path.is_file() else b"" for path in self.home.rglob("*")}


@pytest.fixture
def foreign(tmp_path: Path) -> Foreign:
    return Foreign(tmp_path)


UP = "../" * 5 + "home/"


@pytest.mark.parametrize("key", ["sha256", "generations"])
@pytest.mark.parametrize("name", [f"{UP}thesis", "/home/thesis"])
def test_deleting_a_version_deletes_nothing_that_its_manifest_names_elsewhere(
    foreign: Foreign, key: str, name: str
) -> None:
    before = foreign.outside()
    foreign.document["data"]["rows"]["shards"][key][0] = name
    foreign.publish()
    storage = Storage(foreign.root)
    for use in (storage.fetch, lambda name: storage.copy(name, Storage(foreign.folder / "there"))):
        with pytest.raises(CorruptionError, match="not a whole manifest"):
            use("d@v1")
    storage.gc(grace=0.0)
    storage.delete("d@v1", grace=0)
    storage.gc(grace=0.0)
    assert foreign.outside() == before
    assert storage.verify("d@all")


@pytest.mark.parametrize(("place", "value"), [(1, f"{UP}thesis"), (1, "ab"), (2, "/etc"), (2, -1)])
def test_an_entry_names_no_file_elsewhere(foreign: Foreign, place: int, value: Any) -> None:
    before = foreign.outside()
    foreign.logged["versions"][-1][place] = value
    foreign.entry.write_bytes(sealed({**foreign.logged, "swept": [f"shards/{UP}thesis"]}))
    (foreign.root / "d" / paths.LOG_HEAD).unlink()
    with pytest.raises(CorruptionError, match="not a whole entry"):
        Storage(foreign.root).fetch("d@all")
    with pytest.warns(cachelayer.CacheLayerWarning, match="'d'"):
        Storage(foreign.root).gc(grace=0.0)
    assert foreign.outside() == before


def uses(foreign: Foreign) -> Iterator[Callable[[], Any]]:
    storage = Storage(foreign.root)
    yield lambda: storage.fetch("d@v1").read([0, 4])
    yield lambda: [storage.fetch("d@v1")[row] for row in (0, -1)]
    yield lambda: storage.fetch("d@v1").metadata
    yield lambda: str(storage.verify("d@v1", progress=False))
    yield lambda: str(storage.diff("d@all", "d@v1"))
    yield lambda: [str(each) for each in storage.history("d")]
    yield lambda: storage.tag("d@v1", "best")
    yield lambda: storage.derive("d@v1", "v2", keep=[0])
    yield lambda: storage.copy("d@v1", Storage(foreign.folder / "there"), progress=False)
    yield lambda: storage.delete("d@v1", force=True)
    yield lambda: storage.gc(grace=0.0)


def shards_of(data: Any) -> Any:
    return data["rows"]["shards"]


HOSTILE = {
    "more numbers than there are": lambda data: data["kept"].update(records=6),
    "a step beyond the shards": lambda data: data.update(
        kept={"records": 3, "digest": "ab" * 32, "start": 10_000_000, "step": 1}
    ),
    "other records in a progression": lambda data: data["kept"].update(start=0, step=1),
    "shards of another size": lambda data: shards_of(data).update(nbytes=[2**50] * len(shards_of(data)["nbytes"])),
    "shards of other records": lambda data: shards_of(data).update(records=[2**40] * len(shards_of(data)["records"])),
    "another spec": lambda data: data["rows"].update(
        element_spec={"kind": "array", "dtype": "float64", "shape": [1 << 20]}
    ),
    "another codec": lambda data: data["rows"].update(codec="bytes/1"),
    "shards that are not there": lambda data: shards_of(data).update(
        generations=[2**63 - 1] * len(shards_of(data)["nbytes"])
    ),
}


@pytest.mark.filterwarnings("ignore::cachelayer.CacheLayerWarning")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_well_formed_lie_is_an_error_of_ours_too(foreign: Foreign, name: str) -> None:
    before = foreign.outside()
    HOSTILE[name](foreign.document["data"])
    foreign.publish()
    with pytest.raises(CacheLayerError):
        Storage(foreign.root).fetch("d@v1").read([0, 4])
    for use in uses(foreign):
        with suppress(CacheLayerError):
            use()
    assert foreign.outside() == before
    # What is collected of it leaves a log that can be read.
    for version in ("v2", "v1"):
        with suppress(cachelayer.VersionNotFoundError):
            Storage(foreign.root).delete(f"d@{version}", grace=0)
    assert Storage(foreign.root).verify("d@all")


def test_a_history_of_more_entries_than_there_are_ends_at_the_first_that_is_missing(foreign: Foreign) -> None:
    store = LocalStore(foreign.root / "e")
    far = 2**57
    store.put(paths.log_entry(far), Snapshot(far).encode("theirs"))
    store.put(paths.LOG_HEAD, sealed({"sequence": far}))
    assert Log(store).head().sequence == far
    with pytest.raises(CorruptionError, match="an entry of the log is missing"):
        Storage(foreign.root).history("e")


def test_numbers_of_records_that_are_not_there_are_refused(foreign: Foreign) -> None:
    kept = foreign.root / "d" / paths.kept_numbers(manifest_stem(foreign.info))
    for number in (-1, 20, 10_000_000, 2**62):
        kept.write_bytes(number.to_bytes(8, "little", signed=True) * 5)
        with pytest.raises(CorruptionError, match="names records outside of the 20 here"):
            Storage(foreign.root).fetch("d@v1")
