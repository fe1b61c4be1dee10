"""A dataset and its version are passed as a pair, or as one text, in every call."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cachelayer import CorruptionError, InvalidArgumentError, InvalidNameError, InvalidTypeError, Storage

ROWS = list(range(10))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage that is copied for each test."""
    folder = tmp_path_factory.mktemp("storage")
    Storage(folder).submit(ROWS, "a", "v1")
    Storage(folder).submit(ROWS[:5], "a", "v2")
    return folder


@pytest.fixture
def storage(folder: Path, tmp_path: Path) -> Storage:
    return Storage(shutil.copytree(folder, tmp_path / "storage"))


def others(storage: Storage) -> Storage:
    return Storage(f"{storage.url}-other")


CALLS: dict[str, Callable[[Storage, tuple[str, ...]], Any]] = {
    "fetch": lambda storage, name: storage.fetch(*name).dataset_version,
    "verify": lambda storage, name: storage.verify(*name).reference,
    "tag": lambda storage, name: [storage.tag(*name, tag="best"), storage.tags("a")],
    "delete": lambda storage, name: [storage.delete(*name), list(storage.versions("a"))],
    "diff": lambda storage, name: storage.diff(*name, other="v2").same_data,
    "copy": lambda storage, name: storage.copy(*name, to=others(storage)).digest,
    "cache": lambda storage, name: len(storage.cache(ROWS, *name)),
    "append": lambda storage, name: storage.append(*name, new="v3", source=ROWS)[:].digest,
    "derive": lambda storage, name: storage.derive(*name, new="v3", keep=[1, 2]).digest,
}


@pytest.mark.parametrize("call", CALLS)
def test_every_call_takes_the_dataset_and_its_version_as_one_text(folder: Path, tmp_path: Path, call: str) -> None:
    one = CALLS[call](Storage(shutil.copytree(folder, tmp_path / "one")), ("a@v1",))
    assert one == CALLS[call](Storage(shutil.copytree(folder, tmp_path / "pair")), ("a", "v1"))


NEEDED = ["tag", "delete", "cache", "append", "derive"]


@pytest.mark.parametrize(
    ("call", "name"), [*((call, ("a@v1", "v2")) for call in CALLS), *((call, ("a",)) for call in NEEDED)]
)
def test_a_version_named_twice_or_not_at_all_is_refused(storage: Storage, call: str, name: tuple[str, ...]) -> None:
    with pytest.raises(InvalidArgumentError, match=repr(name[0])):
        CALLS[call](storage, name)
    assert (list(storage.versions("a")), storage.tags("a")) == (["v1", "v2"], {})


@pytest.mark.parametrize("call", ["tag", "delete", "cache"])
@pytest.mark.parametrize("version", ["latest", "sha256:00", "v1@v2", ""])
def test_only_a_plain_name_does_for_what_is_made_tagged_or_deleted(storage: Storage, call: str, version: str) -> None:
    for name in ((f"a@{version}",), ("a", version)):
        with pytest.raises(InvalidNameError, match=f"version {version!r}"):
            CALLS[call](storage, name)


def test_a_digest_pins_what_is_tagged_or_deleted_and_never_what_is_made(storage: Storage) -> None:
    right = f"a@v1@sha256:{storage.fetch('a@v1').digest[:12]}"
    for call in ("tag", "delete"):
        with pytest.raises(CorruptionError, match="a@v1"):
            CALLS[call](storage, ("a@v1@sha256:00",))
    for name in ("a@v1@sha256:00", right):
        with pytest.raises(InvalidNameError, match="version 'v1@sha256:"):
            CALLS["cache"](storage, (name,))
    assert storage.tags("a") == {}
    assert CALLS["delete"](storage, (right,)) == [None, ["v2"]]
    assert CALLS["tag"](storage, (f"a@v2@sha256:{storage.fetch('a@v2').digest[:12]}",)) == [None, {"best": "v2"}]


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


def test_what_follows_a_version_comes_by_position_or_is_asked_for_by_name(storage: Storage) -> None:
    assert storage.diff("a", "v1", "v2").records == (10, 5)
    assert storage.copy("a", "v1", others(storage)).dataset_version == "v1"
    assert len(storage.append("a", "v1", "v3", ROWS)) == 20
    assert len(storage.derive("a", "v1", "v4", keep=[1])) == 1
    wrong: Any = storage
    missing: dict[str, list[Callable[[], Any]]] = {
        "tag": [lambda: wrong.tag("a@v1")],
        "other": [lambda: wrong.diff("a@v1")],
        "to": [lambda: wrong.copy("a@v1")],
        "source": [lambda: wrong.append("a@v1", new="v5")],
        "new": [lambda: wrong.append("a@v1", source=ROWS), lambda: storage.derive("a@v1", keep=[1])],
    }
    for name, calls in missing.items():
        for call in calls:
            with pytest.raises((InvalidTypeError, InvalidNameError), match=f"pass {name}="):
                call()
    with pytest.raises(InvalidArgumentError, match="'other'"):
        storage.tag("a@v1", "other")


def test_a_tag_is_removed_as_one_text_too(storage: Storage) -> None:
    for name in (("a@best",), ("a", "best")):
        storage.tag("a", "v1", "best")
        assert storage.tags("a") == {"best": "v1"}
        storage.untag(*name)
        assert storage.tags("a") == {}
    with pytest.raises(InvalidArgumentError, match="'a@<tag>'"):
        storage.untag("a")
    with pytest.raises(InvalidArgumentError, match="'best'"):
        storage.untag("a@best", "best")


def test_the_other_of_a_diff_is_a_version_or_a_whole_reference(storage: Storage) -> None:
    digest = storage.fetch("a@v2").digest
    storage.submit(ROWS[:4], "b@v1")
    for other in ("v2", "a@v2", f"a@sha256:{digest}", f"a@v2@sha256:{digest}", "latest"):
        assert storage.diff("a@v1", other=other).records == (10, 5)
    assert storage.diff("a@v1", other="b@v1").records == (10, 4)
