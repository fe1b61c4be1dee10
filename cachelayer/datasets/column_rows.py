"""Rows of the file of an added column, as records of fixed size: mapped, or fetched from an object store."""

from __future__ import annotations

from typing import Any

import numpy as np

from cachelayer.arrayrecord.local_shards import Verify
from cachelayer.arrayrecord.mapping import MappedFile
from cachelayer.datasets.held_blocks import HeldBlock
from cachelayer.errors import CorruptionError
from cachelayer.records.spans import Records, Spans
from cachelayer.support.locks import cached_property
from cachelayer.support.memory import Bytes, Ints
from cachelayer.versions.column_file import CHECKED_NBYTES, ColumnFile
from cachelayer.versions.stored_version import StoredVersion

WHOLE_NBYTES = 1 << 28
"""A column file of at most so many bytes is fetched from a bucket whole, once, and kept in memory."""


class ColumnRows:
    """Random access to the rows of a column file. Thread-safe."""

    def __init__(self, version: StoredVersion, file: ColumnFile, verify: Verify) -> None:
        self._version = version
        self._file = file
        self._verify = verify
        self._name = f"{version.folder.url}/{file.name}"
        self._local_path = version.folder.local_path(file.name)

    def __len__(self) -> int:
        return self._file.records

    @property
    def takes_requests(self) -> bool:
        return self._local_path is None and self._file.nbytes > WHOLE_NBYTES

    def record(self, number: int) -> bytearray:
        """Return one row; the caller may change it."""
        return self.records(np.array([number])).record(0)

    def records(self, numbers: Ints) -> Records:
        """Return the rows of these numbers."""
        begins = self._file.begin + numbers * self._file.record_nbytes
        if self.takes_requests:
            return self._fetched(numbers, begins)
        return self._rows(self._whole, begins, numbers)

    def fetch_block(self, numbers: Ints) -> HeldBlock:
        """Fetch a block of rows."""
        return HeldBlock(numbers, self.records(numbers).packed_copy())

    @cached_property
    def _whole(self) -> Bytes:
        """All bytes of the file."""
        with self._version.reporting_deletion():
            if self._local_path is not None:
                raw = MappedFile.open(self._local_path, nbytes=self._file.nbytes).buffer
                checks = self._verify == "always"
            else:
                (body,) = self._version.folder.read_ranges([(self._file.name, 0, self._file.nbytes)])
                raw = np.frombuffer(body, np.uint8)
                checks = True
            if checks:
                self._file.check_ranges(raw, 0, self._name)
        return raw

    def _rows(self, buffer: Bytes, starts: Ints, numbers: Ints) -> Records:
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(self):
            raise CorruptionError(f"{self._name}: there is no row {numbers.max()}")
        nbytes = self._file.record_nbytes
        return Spans.in_buffer(buffer, starts, nbytes, self._describe(numbers))

    def _describe(self, numbers: Ints) -> Any:
        return lambda row: f"{self._name}: row {numbers[row]}"

    def _fetched(self, numbers: Ints, begins: Ints) -> Records:
        """Fetch the ranges that hold some rows, at once, and check them."""
        # The file has a checksum for each range of CHECKED_NBYTES, so whole ranges are fetched.
        firsts = begins // CHECKED_NBYTES
        lasts = (begins + self._file.record_nbytes - 1) // CHECKED_NBYTES
        range_numbers = np.unique(np.concatenate([firsts, lasts]))
        # A row of several ranges takes all ranges between.
        longest = int((lasts - firsts).max(initial=0))
        if longest > 1:
            range_numbers = np.unique(np.concatenate([firsts + step for step in range(longest)] + [lasts]))
        ranges = [(self._file.name, *self._range(number)) for number in range_numbers.tolist()]
        with self._version.reporting_deletion():
            bodies = self._version.folder.read_ranges(ranges)
            for number, body in zip(range_numbers.tolist(), bodies, strict=True):
                self._file.check_ranges(body, number, self._name)
        buffer = np.frombuffer(b"".join(bodies), np.uint8)
        return self._rows(
            buffer, range_numbers.searchsorted(firsts) * CHECKED_NBYTES + begins % CHECKED_NBYTES, numbers
        )

    def _range(self, number: int) -> tuple[int, int]:
        return number * CHECKED_NBYTES, min((number + 1) * CHECKED_NBYTES, self._file.nbytes)
