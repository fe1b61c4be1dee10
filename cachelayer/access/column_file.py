"""Rows of an added column file, as records of fixed size: mapped, or fetched from an object store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord.lengths import LengthColumn
from cachelayer.arrayrecord.local_shards import Verify
from cachelayer.arrayrecord.mapping import MappedFile
from cachelayer.errors import CorruptionError, ErasedRecordError
from cachelayer.locks import ProcessLock, cached_property
from cachelayer.objects.local import LocalStore
from cachelayer.protocols import DatasetInfo, Digests, Held, Needed, Sources
from cachelayer.records.codec import Codec, codec_named
from cachelayer.records.memory import Bytes, Ints, distinct
from cachelayer.records.record_buffers import FetchedBlock, HeldBlock, Records, held_records
from cachelayer.versions.columns import BLOCK_NBYTES, ColumnFile
from cachelayer.versions.stored_version import StoredVersion

WHOLE_NBYTES = 1 << 28
"""A column file of at most so many bytes is fetched from a bucket whole, once, and kept in memory."""
_RECORDS_PER_READ = 8192


@dataclass(frozen=True, eq=False)
class ColumnRecords:
    """The rows of a column file: a :class:`RecordSource`.

    Args:
        version: the group of columns as a version of its own.
        file: the file.
        verify: what to check when rows are read from a local disk.
    """

    version: StoredVersion
    file: ColumnFile
    verify: Verify
    kind: ClassVar[str] = "Columns"

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: self.__dict__[field.name] for field in fields(self)}

    def __len__(self) -> int:
        return self.file.records

    @property
    def digests(self) -> Digests:
        return Digests.of(self.file.sha256)

    @cached_property
    def codec(self) -> Codec:
        return codec_named(self.version.manifest.codec, self.version.manifest.element_spec)

    @property
    def references(self) -> tuple[str, ...]:
        return (self.version.reference,)

    @cached_property
    def info(self) -> DatasetInfo:
        nbytes = self.file.record_nbytes
        return DatasetInfo(self.version.name, {}, nbytes, nbytes, _RECORDS_PER_READ)

    @property
    def segments(self) -> tuple[int, ...]:
        return (len(self),)

    def in_shards(self, numbers: Ints) -> Iterator[tuple[Ints, tuple[int, ...], Ints]]:
        yield np.arange(len(numbers)), self.segments, numbers

    @property
    def reads_in_part(self) -> bool:
        return True

    @property
    def takes_requests(self) -> bool:
        return not isinstance(self.version.store, LocalStore) and self.file.nbytes > WHOLE_NBYTES

    @property
    def home(self) -> StoredVersion | None:
        return self.version

    @cached_property
    def erased(self) -> Ints:
        return np.array(self.version.manifest.erased, np.int64)

    def erased_error(self, number: int) -> ErasedRecordError:
        return ErasedRecordError(self.version.name, number, self.version.manifest.reason_of(number))

    @property
    def _name(self) -> str:
        return f"{self.version.dataset_id}/{self.file.name}"

    @cached_property
    def _lock(self) -> ProcessLock:
        return ProcessLock()

    @cached_property
    def _whole(self) -> Bytes:
        """The bytes of the file."""
        store, name = self.version.store, f"{self.version.store.url}/{self._name}"
        with self.version.reporting_deletion():
            if isinstance(store, LocalStore):
                raw = MappedFile.open(store.path(self._name), nbytes=self.file.nbytes).buffer
                checks = self.verify == "always"
            else:
                (body,) = store.read_ranges([(self._name, 0, self.file.nbytes)])
                raw, checks = np.frombuffer(body, np.uint8), True
            if checks:
                self.file.check_blocks(raw, 0, name)
        return raw

    def records(self, numbers: Ints, held: Held | None = None) -> Records:
        if held is not None and self in held:
            found = held_records(held[self], numbers)
            if found is not None:
                return found
        if not self.takes_requests:
            with self._lock.of_process():
                whole = self._whole
            return self._rows(whole, self.file.begin + numbers * self.file.record_nbytes, numbers)
        return self._fetched(numbers)

    def _rows(self, buffer: Bytes, starts: Ints, numbers: Ints) -> Records:
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(self):
            raise CorruptionError(f"{self._name}: there is no row {numbers.max()}")
        nbytes = self.file.record_nbytes
        return Records(buffer, starts, np.full(len(starts), nbytes, np.int64), nbytes, name=self._describe(numbers))

    def _describe(self, numbers: Ints) -> Any:
        return lambda row: f"{self._name}: row {numbers[row]}"

    def _fetched(self, numbers: Ints) -> Records:
        """Fetch the blocks that hold some rows, at once, and check them."""
        begins = self.file.begin + numbers * self.file.record_nbytes
        firsts, lasts = begins // BLOCK_NBYTES, (begins + self.file.record_nbytes - 1) // BLOCK_NBYTES
        wanted = np.unique(np.concatenate([firsts, lasts]))
        # A row of several blocks takes all blocks between.
        longest = int((lasts - firsts).max(initial=0))
        if longest > 1:
            wanted = np.unique(np.concatenate([firsts + step for step in range(longest)] + [lasts]))
        ranges = [(self._name, *self._block(number)) for number in wanted.tolist()]
        with self.version.reporting_deletion():
            bodies = self.version.store.read_ranges(ranges)
            for number, body in zip(wanted.tolist(), bodies, strict=True):
                self.file.check_blocks(body, number, f"{self.version.store.url}/{self._name}")
        buffer = np.frombuffer(b"".join(bodies), np.uint8)
        return self._rows(buffer, wanted.searchsorted(firsts) * BLOCK_NBYTES + begins % BLOCK_NBYTES, numbers)

    def _block(self, number: int) -> tuple[int, int]:
        return number * BLOCK_NBYTES, min((number + 1) * BLOCK_NBYTES, self.file.nbytes)

    def record(self, number: int) -> bytearray:
        return bytearray(self.records(np.array([number])).copied().memory())

    def needed(self, numbers: Ints) -> Needed:
        return {self: distinct(numbers)} if self.takes_requests else {}

    def hold(self, numbers: Ints) -> HeldBlock:
        return HeldBlock(numbers, FetchedBlock(self.records(numbers).copied()))

    def sources(self, numbers: NDArray[np.int64]) -> Sources:
        return Sources.whole(self.version.reference, numbers)

    def lengths(self, leaf: int) -> LengthColumn:
        raise CorruptionError(f"{self._name}: leaf {leaf} of a column file has no lengths")
