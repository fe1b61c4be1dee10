"""Two clients of one store, one of which may die at any step, against a plain model."""

import threading
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule
from samples import examples

import cachelayer
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.build_plan import BuildRequest
from cachelayer.builds.build_version import build_once, submit
from cachelayer.builds.extensions import NEW_RECORDS
from cachelayer.builds.recipe import Recipe
from cachelayer.errors import StorageError
from cachelayer.objects import paths
from cachelayer.objects.bucket_store import BucketStore
from cachelayer.versions.log import Log, has_log
from cachelayer.versions.snapshot import manifest_stem
from cachelayer.versions.stored_version import StoredVersion

pytestmark = pytest.mark.slow

SHARD_BYTES = 24
CLIENTS = st.sampled_from([0, 1])
VERSIONS = st.sampled_from(["a", "b", "c"])
TAGS = st.sampled_from(["a", "t", "u"])
NUMBERS = st.lists(st.integers(0, 9), min_size=1, max_size=8)


class Killed(BaseException):
    """What the process would not have seen."""


@dataclass(frozen=True)
class Dying(BucketStore):
    """A store whose client dies at one of its writes: before it, or before it hears of it."""

    steps: int = 0
    arrives: bool = True
    done: list[str] = field(default_factory=list)

    @contextmanager
    def _opened(self, what: str, name: str) -> Iterator[Any]:
        # What the thread that renews a claim writes when is a matter of chance.
        counts = what in ("write", "delete") and not beats()
        self.die_if(len(self.done) >= self.steps)
        is_last = counts and len(self.done) + 1 == self.steps
        if counts:
            self.done.append(f"{what} {name}" if self.arrives or not is_last else "died before")
        self.die_if(is_last and not self.arrives)
        with super()._opened(what, name) as opened:
            yield opened
        self.die_if(is_last)

    def die_if(self, is_so: bool) -> None:
        if is_so:
            # The thread that renews a claim ends with its process, without a word.
            raise StorageError("dead") if beats() else Killed


def beats() -> bool:
    """Whether this is the thread that renews a claim."""
    return threading.current_thread().name == "cachelayer-claim"


class Machine(RuleBasedStateMachine):
    """The model is what each version holds, in order of publication, and what each tag names."""

    refs = Bundle("refs")

    @initialize()
    def begin(self) -> None:
        self.root = uuid.uuid4().hex
        self.store = BucketStore("memory", self.root)
        self.clients = [cachelayer.Storage(f"memory://{self.root}", local_cache_bytes=0) for _ in range(2)]
        self.versions: dict[str, list[int]] = {}
        self.tags: dict[str, str] = {}

    def teardown(self) -> None:
        if not hasattr(self, "clients"):
            return
        self.collect(0)
        for version in self.versions:
            assert self.clients[0].verify(f"d@{version}", progress=False)
        # In memory nothing ends by itself.
        self.store.delete_folder("")

    def taken(self, name: str) -> bool:
        return name in self.versions or name in self.tags

    @rule(target=refs, client=CLIENTS, version=VERSIONS, numbers=NUMBERS)
    def submit(self, client: int, version: str, numbers: list[int]) -> Any:
        storage = self.clients[client]
        if self.taken(version):
            with pytest.raises(cachelayer.AlreadyExistsError):
                storage.submit(numbers, f"d@{version}")
            return multiple()
        ref = storage.submit(numbers, f"d@{version}", shard_bytes=SHARD_BYTES)
        self.versions[version] = numbers
        return version, numbers, ref

    @rule(target=refs, client=CLIENTS, version=VERSIONS, numbers=NUMBERS)
    def cache(self, client: int, version: str, numbers: list[int]) -> Any:
        named = self.tags.get(version, version)
        found = self.versions.get(named)
        source = numbers if found is None else lambda: pytest.fail("it was there, and was built again")
        ref = self.clients[client].cache(source, f"d@{version}", shard_bytes=SHARD_BYTES)
        if found is None:
            self.versions[version] = found = numbers
        assert list(ref) == found
        return named, found, ref

    @rule(client=CLIENTS, version=VERSIONS, numbers=NUMBERS)
    def fail(self, client: int, version: str, numbers: list[int]) -> None:
        if not self.taken(version):
            with pytest.raises(cachelayer.ElementError):
                self.clients[client].cache([*numbers, "no number"], f"d@{version}")

    @rule(
        how=st.sampled_from(["submit", "cache"]),
        version=VERSIONS,
        numbers=NUMBERS,
        steps=st.integers(1, 25),
        arrives=st.booleans(),
    )
    def crash(self, how: str, version: str, numbers: list[int], steps: int, arrives: bool) -> None:
        if self.taken(version):
            return
        store = Dying("memory", self.root, steps=steps, arrives=arrives)
        log, options = Log(store.folder("d")), BuildOptions.of({})
        request = BuildRequest(log, version, None, numbers, Recipe(), options, NEW_RECORDS)
        with suppress(Killed):
            (submit if how == "submit" else build_once)(request)
        if version in Log(self.store.folder("d")).head().versions:
            assert [what for what in store.done if what.startswith("write _log/0")]
            self.versions[version] = numbers
        else:
            assert len(store.done) == steps

    @rule(client=CLIENTS, name=st.one_of(VERSIONS, TAGS, st.just("latest")))
    def fetch(self, client: int, name: str) -> None:
        latest = next(reversed(self.versions), None)
        version = latest if name == "latest" else self.tags.get(name, name)
        if version in self.versions:
            assert list(self.clients[client].fetch(f"d@{name}")) == self.versions[version]
        else:
            with pytest.raises(cachelayer.NotFoundError):
                self.clients[client].fetch(f"d@{name}")

    @rule(opened=consumes(refs), client=CLIENTS)
    def read(self, opened: tuple[str, list[int], Any], client: int) -> None:
        version, numbers, ref = opened
        if self.versions.get(version) is numbers:
            assert ref.read(range(len(numbers))).tolist() == numbers
            assert cachelayer.open(ref.reference, local_cache_bytes=0).read([-1]).tolist() == numbers[-1:]

    @rule(client=CLIENTS, version=VERSIONS)
    def delete(self, client: int, version: str) -> None:
        storage = self.clients[client]
        if version not in self.versions:
            with pytest.raises(cachelayer.NotFoundError):
                storage.delete(f"d@{version}", grace=0)
        elif version in self.tags.values():
            with pytest.raises(cachelayer.InvalidArgumentError, match="has the tag"):
                storage.delete(f"d@{version}", grace=0)
        else:
            storage.delete(f"d@{version}", grace=0)
            del self.versions[version]

    @rule(client=CLIENTS, version=VERSIONS, tag=TAGS)
    def tag(self, client: int, version: str, tag: str) -> None:
        storage = self.clients[client]
        if version not in self.versions:
            with pytest.raises(cachelayer.NotFoundError):
                storage.tag(f"d@{version}", tag)
        elif tag in self.versions:
            with pytest.raises(cachelayer.AlreadyExistsError):
                storage.tag(f"d@{version}", tag)
        else:
            storage.tag(f"d@{version}", tag)
            self.tags[tag] = version

    @rule(client=CLIENTS)
    def collect(self, client: int) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "nothing of 'd' is collected: it has manifests and no log")
            self.clients[client].gc(grace=0.0)
        if not has_log(self.store.folder("d")):
            # A build that was killed before the first entry of the log leaves what a dataset without its log has.
            return
        head = Log(self.store.folder("d")).head()
        manifests = {name.partition(".")[0] for name in self.store.names(f"d/{paths.MANIFESTS}")}
        stems = {manifest_stem(info) for info in head.versions.values()}
        assert {f"{paths.MANIFESTS}/{name}" for name in manifests} == stems
        shards = {
            shard.file
            for info in head.versions.values()
            for shard in StoredVersion(self.store.folder("d"), info).manifest.shards
        }
        assert {f"{paths.SHARDS}/{name.partition('.')[0]}" for name in self.store.names(f"d/{paths.SHARDS}")} == shards

    @invariant()
    def all_see_the_same(self) -> None:
        head = Log(self.store.folder("d")).head()
        assert list(head.versions) == list(self.versions)
        assert head.tags == self.tags


TestModel = Machine.TestCase
TestModel.settings = settings(max_examples=examples(15), stateful_step_count=15, deadline=None)


@pytest.mark.soak
class TestModelForLong(Machine.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(max_examples=examples(1000), stateful_step_count=40, deadline=None)
