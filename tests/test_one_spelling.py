"""A version is one text, "id@version", or a DataRef, and the first argument of every call."""

import inspect
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cachelayer
from cachelayer import (
    CorruptionError,
    DatasetNotFoundError,
    InvalidArgumentError,
    InvalidNameError,
    InvalidTypeError,
    Storage,
)

ROWS = list(range(10))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage that is copied for each test."""
    folder = tmp_path_factory.mktemp("storage")
    Storage(folder).submit(ROWS, "a@v1", compression="zstd")
    Storage(folder).submit(ROWS[:5], "a@v2")
    Storage(folder).tag("a@v1", "one")
    return folder


@pytest.fixture
def storage(folder: Path, tmp_path: Path) -> Storage:
    return Storage(shutil.copytree(folder, tmp_path / "storage"))


def others(storage: Storage) -> Storage:
    return Storage(f"{storage.url}-other")


CALLS: dict[str, Callable[[Storage, Any], Any]] = {
    "fetch": lambda storage, name: storage.fetch(name).dataset_version,
    "verify": lambda storage, name: storage.verify(name).reference,
    "repair": lambda storage, name: storage.repair(name, dry_run=True).reference,
    "erase": lambda storage, name: storage.erase(name, records=[3], reason="asked", progress=False).erased.tolist(),
    "tag": lambda storage, name: [storage.tag(name, "best"), storage.tags("a")],
    "delete": lambda storage, name: [storage.delete(name, force=True), list(storage.versions("a"))],
    "diff": lambda storage, name: storage.diff(name, "a@v2").records,
    "diff with": lambda storage, name: storage.diff("a@v2", name).records,
    "copy": lambda storage, name: storage.copy(name, others(storage)).digest,
    "append": lambda storage, name: storage.append(name, "v3", ROWS)[:].digest,
    "derive": lambda storage, name: storage.derive(name, "v3", keep=[1, 2]).digest,
    "rewrite": lambda storage, name: storage.rewrite(name, "v3", progress=False).digest,
    "add_columns": lambda storage, name: storage.add_columns(name, "v3", {"x": ROWS}),
    "open": lambda storage, name: (
        cachelayer.open(f"{storage.url}/{name}" if isinstance(name, str) and "/" not in name else name).digest
    ),
}
DATASET_CALLS = ["versions", "tags", "history", "builds"]
NAMES: dict[str, Callable[[Storage], Any]] = {
    "tag": lambda storage: "a@one",
    "digest": lambda storage: f"a@sha256:{storage.fetch('a@v1').digest}",
    "pinned": lambda storage: f"a@v1@sha256:{storage.fetch('a@v1').digest[:9]}",
    "reference": lambda storage: storage.fetch("a@v1").reference,
    "DataRef": lambda storage: storage.fetch("a@v1"),
}


def answer(call: str, storage: Storage, name: Any) -> Any:
    """The answer of a call, or the class of its error."""
    try:
        return str(CALLS[call](storage, name)).replace(storage.url, "")
    except cachelayer.CacheLayerError as error:
        return type(error)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("call", CALLS)
def test_a_version_is_a_text_or_a_dataref(folder: Path, tmp_path: Path, call: str, name: str) -> None:
    plain, other = (Storage(shutil.copytree(folder, tmp_path / place)) for place in ("plain", "other"))
    expected = answer(call, plain, "a@v1")
    if call == "delete" and name in ("tag", "digest"):
        # Whoever deletes names the version itself.
        expected = cachelayer.VersionNotFoundError if name == "tag" else InvalidNameError
    assert answer(call, other, NAMES[name](other)) == expected


def test_a_dataset_alone_is_its_newest_version_except_for_what_takes_records_away(storage: Storage) -> None:
    for call in CALLS:
        if call in ("delete", "erase"):
            with pytest.raises(InvalidNameError, match="'a@<version>'"):
                CALLS[call](storage, "a")
    assert storage.fetch("a").dataset_version == "v2" == storage.verify("a").reference.partition("@")[2][:2]
    assert storage.diff("a@v1", "a").records == (10, 5)
    assert len(storage.append("a", new="v3", source=ROWS)) == 15


def test_every_method_that_takes_a_version_is_tried_here() -> None:
    methods = {name for name, _ in inspect.getmembers(Storage, inspect.isfunction) if not name.startswith("_")}
    makes = {"submit", "cache", "cacheable"}
    assert methods == {call.partition(" ")[0] for call in CALLS} - {"open"} | makes | {*DATASET_CALLS} | {
        "untag",
        "datasets",
        "gc",
    }


def test_calls_for_a_dataset_take_its_id_or_any_version_of_it(storage: Storage) -> None:
    ref = storage.fetch("a@v1")
    for call in DATASET_CALLS:
        assert getattr(storage, call)(ref) == getattr(storage, call)("a")
        with pytest.raises(InvalidArgumentError, match="a@v1"):
            getattr(storage, call)("a@v1")


PAIRS: dict[str, Callable[[Storage, tuple[str, ...]], Any]] = {
    "fetch": lambda storage, name: storage.fetch(*name).dataset_version,
    "tag": lambda storage, name: [storage.tag(*name, tag="best"), storage.tags("a")],
    "delete": lambda storage, name: [storage.delete(*name, force=True), list(storage.versions("a"))],
    "copy": lambda storage, name: storage.copy(*name, to=others(storage)).digest,
    "cache": lambda storage, name: len(storage.cache(ROWS, *name)),
    "append": lambda storage, name: storage.append(*name, new="v3", source=ROWS)[:].digest,
    "derive": lambda storage, name: storage.derive(*name, new="v3", keep=[1, 2]).digest,
    "rewrite": lambda storage, name: storage.rewrite(*name, new="v3", progress=False).digest,
}


@pytest.mark.parametrize("call", PAIRS)
def test_some_calls_take_the_dataset_and_the_version_as_a_pair_too(folder: Path, tmp_path: Path, call: str) -> None:
    one = PAIRS[call](Storage(shutil.copytree(folder, tmp_path / "one")), ("a@v1",))
    assert one == PAIRS[call](Storage(shutil.copytree(folder, tmp_path / "pair")), ("a", "v1"))
    last = Storage(shutil.copytree(folder, tmp_path / "last"))
    for twice in ("a@v1", last.fetch("a@v1")):
        with pytest.raises(InvalidArgumentError, match="'v2'"):
            PAIRS[call](last, (twice, "v2"))  # type: ignore[arg-type]
    assert (list(last.versions("a")), last.tags("a")) == (["v1", "v2"], {"one": "v1"})


@pytest.mark.parametrize("call", ["verify", "repair", "diff", "untag", "versions"])
def test_a_pair_is_refused_with_the_text_to_write_where_one_version_is_meant(storage: Storage, call: str) -> None:
    with pytest.raises(InvalidTypeError, match=f"{call}.*'a@v1'"):
        getattr(storage, call)("a", "v1", *["a@v2"] * (call == "diff"))


def test_the_pair_of_an_erasure_is_refused_and_of_a_diff_of_the_newest_not_found(storage: Storage) -> None:
    wrong: Any = storage
    with pytest.raises(InvalidTypeError, match="'a@v1'"):
        wrong.erase("a", "v1", records=[1], reason="asked")
    with pytest.raises(DatasetNotFoundError, match="'a@v1'"):
        storage.diff("a", "v1")
    assert storage.erase("a", of="v1", records=[1], reason="asked", progress=False).dataset_version == "v1"


@pytest.mark.parametrize("call", ["delete", "cache"])
@pytest.mark.parametrize("version", ["latest", "sha256:00", "v1@v2", ""])
def test_only_a_plain_name_does_for_what_is_made_or_deleted(storage: Storage, call: str, version: str) -> None:
    for name in ((f"a@{version}",), ("a", version)):
        with pytest.raises(InvalidNameError, match=f"version {version!r}"):
            PAIRS[call](storage, name)


def test_a_digest_pins_what_is_tagged_or_deleted_and_never_what_is_made(storage: Storage) -> None:
    right = f"a@v1@sha256:{storage.fetch('a@v1').digest[:12]}"
    for call in ("tag", "delete"):
        with pytest.raises(CorruptionError, match="a@v1"):
            PAIRS[call](storage, ("a@v1@sha256:00",))
    for name in ("a@v1@sha256:00", right):
        with pytest.raises(InvalidNameError, match="version 'v1@sha256:"):
            PAIRS["cache"](storage, (name,))
    assert PAIRS["delete"](storage, (right,)) == [None, ["v2"]]


def test_a_view_or_a_dataref_of_another_storage_is_refused_where_a_version_is_meant(storage: Storage) -> None:
    ref = storage.fetch("a@v1")
    far = storage.copy(ref, others(storage))
    for call in CALLS:
        if call not in ("fetch", "rewrite", "diff", "diff with", "open"):
            with pytest.raises(InvalidArgumentError, match="view"):
                CALLS[call](storage, ref[2:])
        if call not in ("rewrite", "diff", "diff with", "open"):
            with pytest.raises(InvalidArgumentError, match="another storage"):
                CALLS[call](storage, far)
    assert storage.fetch(ref[2:]).digest == ref[2:].digest == cachelayer.open(ref[2:]).digest
    assert storage.diff(ref[2:], far[2:]).same_data
    assert cachelayer.open(ref, verify="always").digest == ref.digest
    assert storage.rewrite(far[2:], "b@v1").reference.startswith(f"{storage.url}/b@v1@")
    assert len(storage.rewrite(cachelayer.concat([ref, far]), "b@v2")) == 20
    assert len(storage.rewrite("b", far, "v3")) == 10
    with pytest.raises(InvalidNameError, match="'<dataset id>@v3'"):
        storage.rewrite(cachelayer.concat([ref, far]), "v3")


def test_submit_and_cacheable_take_one_text(storage: Storage) -> None:
    assert storage.submit(ROWS, "b@v1").dataset_version == "v1"
    assert storage.submit(ROWS, "b", version="v2").dataset_version == "v2"

    @storage.cacheable("b@size-{size}")
    def rows(size: int) -> list[int]:
        return list(range(size))

    assert rows(3).reference.startswith(f"{storage.url}/b@size-3@")
    assert len(storage.cacheable("b@v1")(lambda: ROWS)()) == 10
    for wrong in ("b", "b@latest", "b@v1@sha256:00"):
        with pytest.raises(InvalidArgumentError):
            storage.submit(ROWS, wrong)
        with pytest.raises(InvalidArgumentError):
            storage.cacheable(wrong)
    with pytest.raises(InvalidArgumentError, match="names a version"):
        storage.cacheable("b@v1", "v1")


def test_what_follows_a_version_is_asked_for_by_name(storage: Storage) -> None:
    wrong: Any = storage
    missing: dict[str, list[Callable[[], Any]]] = {
        "tag": [lambda: wrong.tag("a@v1")],
        "to": [lambda: wrong.copy("a@v1")],
        "source": [lambda: wrong.append("a@v1", "v5")],
        "new": [lambda: wrong.append("a@v1", source=ROWS), lambda: storage.derive("a@v1", keep=[1])],
    }
    for name, calls in missing.items():
        for call in calls:
            with pytest.raises((InvalidTypeError, InvalidNameError), match=f"pass {name}="):
                call()
    with pytest.raises(InvalidArgumentError, match="'b@v3'"):
        storage.append("a@v1", "b@v3", ROWS)
    assert storage.derive("a@v1", "a@v3", keep=[1]).dataset_version == "v3"


def test_a_tag_is_removed_as_one_text(storage: Storage) -> None:
    storage.untag("a@one")
    assert storage.tags("a") == {}
    with pytest.raises(InvalidArgumentError, match="'a@<tag>'"):
        storage.untag("a")


def test_compression_is_that_of_the_base_unless_one_is_named(storage: Storage) -> None:
    def used(ref: Any) -> str:
        return str(ref._base.version.manifest.shards.compressions[-1])

    for call in ("append", "rewrite"):
        for base, chosen, expected in (
            ("v1", None, "zstd"),
            ("v1", "none", "none"),
            ("v2", None, "none"),
            ("v2", "zstd:1", "zstd"),
        ):
            more: Any = {"source": ROWS} if call == "append" else {}
            new = f"{call}-{base}-{expected}"
            assert used(getattr(storage, call)(f"a@{base}", new, compression=chosen, **more)) == expected
