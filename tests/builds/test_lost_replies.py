"""A write loses its reply, anywhere in a build, while others use what was published: nothing of theirs goes."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from operations import OPERATIONS, Operation, submit_base
from samples import some

import cachelayer
from cachelayer import Storage
from cachelayer.objects.local import LocalStore

# What others delete meanwhile stays until the build has ended.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:a build of 'd' is at work:cachelayer.CacheLayerWarning"),
]


class LosesReply(LocalStore):
    """Of one write, which lands, the reply is lost; others do something before the builder hears of it."""

    def __init__(self, root: Path, lost: int, meanwhile: Callable[[], None]) -> None:
        super().__init__(root)
        self.lost = lost
        self.meanwhile = meanwhile
        # Shared by the stores of its folders.
        self.writes: list[None] = []

    def _answered(self) -> None:
        self.writes.append(None)
        if len(self.writes) == self.lost:
            self.meanwhile()
            raise cachelayer.StorageError("the reply was lost")

    def put(self, name: str, data: bytes) -> None:
        super().put(name, data)
        self._answered()

    def put_if_absent(self, name: str, data: bytes) -> bool:
        is_ours = super().put_if_absent(name, data)
        self._answered()
        return is_ours


def derived(storage: Storage) -> None:
    storage.derive("d@new", "derived", keep=[0, -1])
    storage.delete("d@new", grace=0)


def appended(storage: Storage) -> None:
    storage.append("d@new", "appended", storage.fetch("d@new")[:1])
    storage.delete("d@new", grace=0)


def copied_away(storage: Storage) -> None:
    storage.copy("d@new", storage.url + "-away")
    storage.delete("d@new", grace=0)


def built_again(storage: Storage) -> None:
    derived(storage)
    # A build would wait for the builder that has not heard yet.
    storage.copy("d@v1", storage, new="new")


def collected(storage: Storage) -> None:
    derived(storage)
    storage.gc(grace=0)


MEANWHILE = [derived, appended, copied_away, built_again, collected]


NAMES = [name for name in OPERATIONS if name != "rewrite"]
"""A rewrite writes as often as a build in parts, and more."""
OF_ONE_BUILD = {"submit", "sequence"}
"""They write what ``cache`` writes."""


@pytest.mark.sampled
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.soak] if name in OF_ONE_BUILD else []) for name in NAMES]
)
def test_whatever_reply_is_lost_while_others_use_what_was_published_every_version_stays_whole(
    name: str, tmp_path: Path
) -> None:
    build = OPERATIONS[name]
    lost, published = 1, 0
    while (is_published := loses(tmp_path / str(lost), build, lost)) is not None:
        if is_published:
            published += 1
            for others in some(MEANWHILE, start=published + NAMES.index(name)):
                loses(tmp_path / f"{lost}-{others.__name__}", build, lost, others)
        lost += 1
    assert published


def loses(folder: Path, build: Operation, lost: int, others: Callable[[Storage], None] | None = None) -> bool | None:
    """Lose one reply, and check all versions then, and after the next build and a collection.

    Returns:
        Whether the version was published by then; None if the build does not write so often.
    """
    storage, builder = Storage(folder), Storage(folder)
    submit_base(storage)
    was_published: list[bool] = []

    def meanwhile() -> None:
        was_published.append("new" in storage.versions("d"))
        if others is not None:
            others(storage)

    builder._catalog.store = LosesReply(folder, lost, meanwhile)
    with suppress(cachelayer.StorageError, cachelayer.BuildRevokedError, cachelayer.VersionNotFoundError):
        build(builder, "new")
    check_all(storage)
    if others is copied_away:
        # Under the names that the builder's files had.
        Storage(storage.url + "-away").copy("d@new", storage, new="back")
    with suppress(cachelayer.AlreadyExistsError):
        build(storage, "new")
    storage.gc(grace=0)
    check_all(storage)
    shutil.rmtree(folder)
    return was_published[0] if was_published else None


def check_all(storage: Storage) -> None:
    for version in storage.versions("d"):
        report = storage.verify(f"d@{version}", progress=False)
        assert report, f"{version}: {report}"
