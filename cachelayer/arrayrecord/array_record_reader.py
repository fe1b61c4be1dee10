"""Read a shard with array_record's own reader."""

from __future__ import annotations

from pathlib import Path

from cachelayer.errors import CorruptionError

# Callers read runs of records: array_record's readahead would read most of them twice.
_OPTIONS = "readahead_buffer_size:0,max_parallelism:1"


class StockReader:
    """The records of a shard, read by array_record. One thread at a time.

    Args:
        path: the shard.

    Raises:
        CorruptionError: if array_record cannot open it.
    """

    def __init__(self, path: Path) -> None:
        from array_record.python.array_record_module import ArrayRecordReader

        self._path = path
        try:
            self._reader = ArrayRecordReader(str(path), _OPTIONS)
            self._records = int(self._reader.num_records())
        except (RuntimeError, ValueError) as error:
            raise CorruptionError(f"{path}: array_record cannot open it: {error}") from error

    def __len__(self) -> int:
        return self._records

    def read(self, start: int, stop: int) -> list[bytes]:
        """Return the records from ``start`` to before ``stop``, all within the shard.

        Raises:
            CorruptionError: if array_record cannot read them.
        """
        try:
            return list(self._reader.read(start, stop))
        except (RuntimeError, ValueError, IndexError) as error:
            raise CorruptionError(
                f"{self._path}: array_record cannot read records {start} to {stop - 1}: {error}"
            ) from error

    def close(self) -> None:
        """Close the file."""
        self._reader.close()
