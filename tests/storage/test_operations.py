"""What every operation that makes a version is held to, whatever it makes and of what."""

import pickle
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from forks import FORKS
from leftovers import assert_only_versions_are_left, stored_files
from operations import OF_A_BASE, OPERATIONS, OPTIONS, expected, rows, submit_base
from samples import some
from servers import Server, new_place, new_storage

import cachelayer
from cachelayer import Storage
from cachelayer.errors import (
    AlreadyExistsError,
    CorruptionError,
    InvalidArgumentError,
    VersionNotFoundError,
)
from cachelayer.objects.local import LocalStore
from cachelayer.objects.store import Blob


def plain(elements: Any) -> list[dict[str, Any]]:
    return [{key: getattr(value, "tolist", lambda value=value: value)() for key, value in e.items()} for e in elements]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage with the version v1; nobody changes it."""
    folder = tmp_path_factory.mktemp("base")
    submit_base(Storage(folder))
    return folder


@pytest.fixture
def storage(base: Path, tmp_path: Path) -> Storage:
    shutil.copytree(base, tmp_path / "storage")
    return Storage(tmp_path / "storage")


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_version_is_what_was_made_until_it_is_deleted_and_then_nothing_of_it_is_left(
    storage: Storage, name: str
) -> None:
    made, elements = OPERATIONS[name](storage, "v2"), plain(expected(name))
    fetched = Storage(storage.url).fetch("d@v2")
    assert made._base.version.manifest == fetched._base.version.manifest
    assert (made.digest, made.reference, made.provenance) == (fetched.digest, fetched.reference, fetched.provenance)
    for ref in (made, fetched, pickle.loads(pickle.dumps(made)), cachelayer.open(made.reference)):
        assert plain(ref) == elements
        assert ref.read(range(-1, 2))["number"].tolist() == [elements[at]["number"] for at in range(-1, 2)]
    assert made.metadata == ({"of": "tests"} if name in OF_A_BASE else {})
    assert storage.versions("d")["v2"].records == len(made) == len(elements)
    before = stored_files(storage)
    assert OPERATIONS[name](storage, "v3").digest == made.digest
    assert {file for file in stored_files(storage) - before if file.startswith("shards/")} == set()
    assert_only_versions_are_left(storage, "d")
    for version in ("v1", "v3"):
        storage.delete(f"d@{version}", grace=0)
    storage.gc(grace=0)
    assert plain(Storage(storage.url).fetch("d@v2")) == elements
    assert_only_versions_are_left(storage, "d")
    storage.delete("d@v2", grace=0)
    assert stored_files(storage) == set()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*a request for each record")
@pytest.mark.parametrize(
    ("server", "names"), [("gcs", OF_A_BASE), ("s3", ["append"]), ("azure", ["append"])], indirect=["server"]
)
def test_in_an_object_store_it_is_the_same_version(
    storage: Storage, server: Server, names: Iterable[str], tmp_path: Path
) -> None:
    far = new_storage(server, local_cache=tmp_path / "copies")
    storage.copy("d@v1", to=far)
    for name in names:
        made = OF_A_BASE[name](far, name)
        assert made.digest == OF_A_BASE[name](storage, name).digest
        assert plain(made) == plain(expected(name))
    far.delete("d@v1", grace=0)
    assert_only_versions_are_left(far, "d")


TAKEN = {"cache": [], "sequence": [], "parts": [], "copy": ["best"]}
"""The names of which an operation does not return the version that is there."""


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_new_version_has_a_name_of_its_own(storage: Storage, name: str) -> None:
    storage.tag("d@v1", "best")
    before = sorted(Path(storage.url).rglob("*"))
    for new in ["auto", "latest", "a b", *TAKEN.get(name, ["v1", "best"])]:
        with pytest.raises((AlreadyExistsError, InvalidArgumentError), match=new):
            OPERATIONS[name](storage, new)
    assert sorted(Path(storage.url).rglob("*")) == before


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(3, FORKS) as pool:
        yield pool


def operate(url: str, options: Any, name: str, new: str) -> str:
    try:
        return OPERATIONS[name](Storage(url, storage_options=options, local_cache_bytes=0), new).digest
    except AlreadyExistsError:
        return "lost"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "name"), [*(("disk", name) for name in OPERATIONS), ("s3", "append"), ("s3", "copy")]
)
def test_of_those_that_make_it_at_once_one_publishes(
    storage: Storage, pool: ProcessPoolExecutor, where: str, name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url, options = new_place(where, request, tmp_path / "other")
    target = Storage(url, storage_options=options, local_cache_bytes=0)
    storage.copy("d@v1", to=target)
    outcomes = set(pool.map(operate, [url] * 3, [options] * 3, [name] * 3, ["v2", "v2", "v3"]))
    ref = target.fetch("d@v2")
    assert outcomes - {"lost"} == {ref.digest}
    assert plain(ref) == plain(expected(name))
    assert target.fetch("d@v3").digest == ref.digest
    assert sorted(str(event.details.get("version")) for event in target.history("d")) == ["v1", "v2", "v3"]
    assert_only_versions_are_left(target, "d")


class Meanwhile(LocalStore):
    """A store in which something happens before the n-th write."""

    def __init__(self, root: Path, number: int, happens: Callable[[], object]) -> None:
        super().__init__(root)
        # Shared by the stores of its folders.
        self.writes: list[None] = []
        self.number, self.happens = number, happens

    def _count(self) -> None:
        self.writes.append(None)
        if len(self.writes) == self.number:
            self.happens()

    def put(self, name: str, data: bytes) -> None:
        self._count()
        super().put(name, data)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self._count()
        return super().put_if_absent(name, data)

    def put_file(self, path: Path, blob: Blob) -> None:
        self._count()
        super().put_file(path, blob)


def replace_base(storage: Storage) -> None:
    storage.delete("d@v1", grace=0)
    storage.submit(rows(100, 160), "d@v1", **OPTIONS)


MEANWHILE: dict[str, Callable[[Storage], object]] = {
    "deleted": lambda storage: storage.delete("d@v1", grace=0),
    "replaced": replace_base,
    "erased": lambda storage: storage.erase("d@v1", records=[3], reason="asked to", grace=0, progress=False),
}


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.filterwarnings("ignore:a build of 'd' is at work", "ignore:.*equal records")
@pytest.mark.parametrize("meanwhile", MEANWHILE)
@pytest.mark.parametrize("name", OF_A_BASE)
def test_whatever_happens_to_the_base_meanwhile_a_whole_version_is_made_or_none(
    base: Path, tmp_path: Path, name: str, meanwhile: str
) -> None:
    for number in some(range(1, 40)):
        folder = tmp_path / str(number)
        shutil.copytree(base, folder)
        storage, other = Storage(folder), Storage(folder)
        storage._catalog.store = store = Meanwhile(folder, number, partial(MEANWHILE[meanwhile], other))
        with suppress(VersionNotFoundError):
            assert OF_A_BASE[name](storage, "v2").dataset_version in other.versions("d")
        if "v2" in other.versions("d"):
            made, kinds = other.fetch("d@v2"), [event.kind for event in other.history("d")]
            # What was erased stays in no version that was published later.
            knows = "erase" in kinds and kinds[-1] != "erase"
            left = [each for each in expected(name) if each["number"] != 3 or not (knows or len(made.erased))]
            assert plain(made.exclude(made.erased)) == plain(left)
        assert_only_versions_are_left(other, "d")
        if len(store.writes) < store.number:
            break
        shutil.rmtree(folder)


def test_what_names_a_digest_is_tagged_or_deleted_only_with_that_digest(storage: Storage) -> None:
    digest = storage.fetch("d@v1").digest
    storage.tag(f"d@v1@sha256:{digest}", tag="best")
    storage.delete("d@v1", force=True)
    storage.submit(rows(100, 160), "d@v1", **OPTIONS)
    for change in (lambda name: storage.tag(name, tag="best"), storage.delete):
        with pytest.raises(CorruptionError, match="v1 has digest"):
            change(f"d@v1@sha256:{digest}")
    assert storage.tags("d") == {}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:a build of 'd' is at work")
def test_records_are_erased_from_the_version_whose_numbers_were_passed_or_from_none(base: Path, tmp_path: Path) -> None:
    for number in range(1, 12):
        folder = tmp_path / str(number)
        shutil.copytree(base, folder)
        storage, other = Storage(folder), Storage(folder)
        storage._catalog.store = store = Meanwhile(folder, number, partial(replace_base, other))
        with suppress(VersionNotFoundError):
            storage.erase("d@v1", records=[3], reason="asked to", grace=0, progress=False)
        if len(store.writes) < store.number:
            break
        assert plain(other.fetch("d@v1")) == plain(rows(100, 160))
        assert_only_versions_are_left(other, "d")
    assert number > 3
