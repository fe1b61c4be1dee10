"""Where plans of packs are: beside the version that they are for, made by the first who needs them; else in memory."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cachelayer.access.sequences.documents import Documents
from cachelayer.access.sequences.pack_planner import Packing, plan
from cachelayer.arrayrecord.mapping import MappedFile
from cachelayer.arrayrecord.pack_plan import BytesInMemory, PackPlan, PlanBytes, check_bytes, write_plan
from cachelayer.errors import CorruptionError, FormatError, InvalidArgumentError, StorageError
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.objects.store import ObjectStore
from cachelayer.records.memory import Bytes, Ints
from cachelayer.temporary_files import scratch_folder
from cachelayer.user_warnings import warn
from cachelayer.versions.stored_version import StoredVersion

# A smaller plan in a bucket is read whole.
_READ_WHOLE = 16 << 20


def plan_of(documents: Documents, packing: Packing, digest: str) -> PackPlan:
    """Return the plan of packs: the stored one, or else a new one, which is stored if that is possible.

    Args:
        documents: what is packed.
        packing: how it is packed.
        digest: the digest of the packed view.

    Raises:
        InvalidArgumentError: if the leaves of a record differ in length.
    """
    wanted = _Wanted(documents, packing, digest)
    version = documents.view._base.home
    if version is None:
        return wanted.in_memory()
    name = f"{version.dataset_id}/{paths.plan(paths.attempt_of(version.info.manifest), digest)}"
    return _stored(wanted, version.store, name) or _made(wanted, version, name)


@dataclass(frozen=True)
class _Wanted:
    """The plan that is wanted; the arguments are those of :func:`plan_of`."""

    documents: Documents
    packing: Packing
    digest: str

    def of(self, source: PlanBytes) -> PackPlan:
        """Return the plan in a file.

        Raises:
            FormatError, CorruptionError: if the file is not this plan.
        """
        return PackPlan(source, self.digest, self.packing.length, len(self.documents))

    def write(self, path: Path) -> None:
        """Make the plan and write it to a file."""
        with path.open("wb") as file:
            write_plan(file, plan(self._lengths(), self.packing), self.packing.length, self.digest)

    def in_memory(self) -> PackPlan:
        """Make the plan and keep it in memory."""
        file = io.BytesIO()
        write_plan(file, plan(self._lengths(), self.packing), self.packing.length, self.digest)
        return self.of(BytesInMemory("the plan of packs in memory", np.frombuffer(file.getbuffer(), np.uint8)))

    def _lengths(self) -> Iterator[Ints]:
        """Yield the lengths of all documents, some at a time."""
        names, done = self.documents.names, 0
        for first, *others in zip(*(column.pieces() for column in self.documents.columns), strict=True):
            for name, other in zip(names[1:], others, strict=True):
                wrong = np.flatnonzero(other != first)
                if len(wrong):
                    row = int(wrong[0])
                    raise InvalidArgumentError(
                        f"record {done + row} has {first[row]} values in {names[0]!r} and {other[row]} in {name!r}: "
                        "leaves that are packed side by side have one length in each record"
                    )
            done += len(first)
            yield first


def _stored(wanted: _Wanted, store: ObjectStore, name: str) -> PackPlan | None:
    """Return the plan that is stored; None if there is none, or it is damaged."""
    try:
        source = _opened(store, name)
        return None if source is None else wanted.of(source)
    except (CorruptionError, FormatError) as error:
        warn(f"a stored plan of packs cannot be used, so it is made again: {error}")
        return None


def _made(wanted: _Wanted, version: StoredVersion, name: str) -> PackPlan:
    """Make the plan, store it, and return it; if it cannot be stored, keep it in memory."""
    store = version.store
    try:
        if isinstance(store, LocalStore):
            store.receive(name, wanted.write)
        else:
            with scratch_folder() as folder:
                path = folder / "plan"
                wanted.write(path)
                store.upload(path, name)
        source = _opened(store, name)
    except StorageError as error:
        warn(f"the plan of packs cannot be stored beside {version.name}, so each process makes it in memory: {error}")
        return wanted.in_memory()
    return wanted.in_memory() if source is None else wanted.of(source)


def _opened(store: ObjectStore, name: str) -> PlanBytes | None:
    """Return the bytes of a stored plan; None if there is none.

    Raises:
        FormatError, CorruptionError: if it came over the network as a whole and is damaged.
    """
    nbytes = store.size(name)
    if nbytes is None:
        return None
    if isinstance(store, LocalStore):
        return BytesInMemory(str(store.path(name)), MappedFile.open(store.path(name), nbytes=nbytes).buffer)
    source = _InBucket(store, name, nbytes)
    if nbytes > _READ_WHOLE:
        return source
    raw = source.read(np.zeros(1, np.int64), np.array([nbytes]))
    check_bytes(raw, source.name)
    return BytesInMemory(source.name, raw)


@dataclass(frozen=True)
class _InBucket:
    """The bytes of a plan in a bucket, read by ranges."""

    store: ObjectStore
    object: str
    nbytes: int

    @property
    def name(self) -> str:
        return f"{self.store.url}/{self.object}"

    def read(self, starts: Ints, stops: Ints) -> Bytes:
        ranges = zip(starts.tolist(), stops.tolist(), strict=True)
        return np.frombuffer(b"".join(self.store.read_ranges([(self.object, *each) for each in ranges])), np.uint8)
