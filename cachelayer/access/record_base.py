"""Elements and batches of encoded records: what stored versions and concatenated datasets share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.held import Held
from cachelayer.access.local_shards import LocalShards
from cachelayer.arrayrecord.length_column import LengthColumn
from cachelayer.errors import CacheLayerError, CorruptionError, ElementError, InvalidArgumentError
from cachelayer.locks import cached_property
from cachelayer.objects.local_cache import CacheFolder
from cachelayer.protocols import Failed, ReadingCost
from cachelayer.records import tree
from cachelayer.records.codec import Codec
from cachelayer.records.media import DecodingCodec, Undecoded, decoding
from cachelayer.records.memory import splits_of
from cachelayer.records.record_buffers import Records
from cachelayer.records.spec import ImageSize
from cachelayer.records.threads import Reading
from cachelayer.records.tree import Tree
from cachelayer.records.varying_leaves import VaryingLeaves
from cachelayer.streams.failures import is_of_element
from cachelayer.tally import DECODING, turn_to
from cachelayer.versions.stored_version import StoredVersion

_FEW = 8
"""Up to so many local records are read faster one by one, if they hold no files to decode."""

Read = Callable[[NDArray[np.int64]], Records]
"""Reads the records of some numbers from blocks in memory instead of the base itself."""


class RecordBase(ABC):
    """A base of views that has records of one codec; see :class:`cachelayer.access.view.ViewBase`."""

    @property
    @abstractmethod
    def codec(self) -> Codec:
        """The codec that encoded the records."""

    @property
    @abstractmethod
    def digest(self) -> str:
        """The digest of the records, in hexadecimal."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of records."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name for error messages."""

    @property
    @abstractmethod
    def metadata(self) -> Mapping[str, Any]:
        """The metadata of the version; see :attr:`cachelayer.access.view.View.metadata`."""

    @property
    @abstractmethod
    def record_nbytes(self) -> int:
        """Approximate bytes of a stored record; see :attr:`cachelayer.access.view.ViewBase.record_nbytes`."""

    @property
    @abstractmethod
    def records_per_read(self) -> int:
        """Number of records that a stream with smaller batches should read at once."""

    @property
    @abstractmethod
    def segments(self) -> tuple[int, ...]:
        """The number of records of each segment: of the first build, and of each append."""

    @property
    @abstractmethod
    def reads_in_part(self) -> bool:
        """True if only those bytes of a record are read that are used."""

    @abstractmethod
    def record(self, number: int) -> bytearray:
        """Return one record; the caller may change it."""

    @abstractmethod
    def records(self, numbers: NDArray[np.int64], *, in_part: bool = False) -> Records:
        """Return the records of these numbers, each in [0, len).

        Args:
            numbers: the records.
            in_part: only some of their bytes are needed: do not read the others if that is possible.
        """

    @abstractmethod
    def lengths(self, leaf: int) -> LengthColumn:
        """Return the lengths of the leaf of this number, which is one of ``varying.numbers``.

        Raises:
            CorruptionError: if they are not what was published.
        """

    @abstractmethod
    def hold(self, numbers: NDArray[np.int64], share: float) -> Held:
        """Fetch a block of records that is read later.

        Args:
            numbers: the number of each record.
            share: the fraction of all records that the caller is going to fetch.
        """

    @property
    @abstractmethod
    def is_fetched(self) -> bool:
        """True if reading records takes requests to an object store."""

    @abstractmethod
    def announce(self, numbers: NDArray[np.int64]) -> bool:
        """Start to load local records if they are not in memory; return whether any was not."""

    def are_quick_alone(self, numbers: NDArray[np.int64]) -> bool:  # noqa: ARG002
        """Return whether reading these records one by one, when each is needed, is faster than reading them at once."""
        return False

    @abstractmethod
    def stored(self) -> Self:
        """Return the same records undecoded: images and audio as the bytes of their files."""

    @abstractmethod
    def sized(self, sizes: Mapping[int, ImageSize]) -> Self:
        """Return the same records, with the images of these leaf numbers decoded to these sizes."""

    @property
    def home(self) -> StoredVersion | None:
        """The version beside which files about the records are stored; None if there is none."""
        return None

    @property
    def copies(self) -> CacheFolder | None:
        """The local cache for files about the records if that version is far; None if there is none."""
        return None

    @property
    def stored_records(self) -> RecordBase | None:
        """The stored records that the elements are made of."""
        return self

    @property
    def local_shards(self) -> LocalShards | None:
        """The shards, if all records lie in those of one version on this host, in their order."""
        return None

    @property
    def decodes(self) -> bool:
        """Whether images and audio are decoded."""
        return True

    @property
    def threads(self) -> int | None:
        """The most threads that work on one read; None for as many as there are cores, at most 8."""
        return None

    @cached_property
    def element_codec(self) -> Codec:
        """The codec of the elements: it decodes images and audio if ``decodes`` is set."""
        return decoding(self.codec) if self.decodes else self.codec

    @cached_property
    def varying(self) -> VaryingLeaves:
        """Reads the leaves of varying length of the records."""
        return VaryingLeaves(self.codec)

    def leaf_values(
        self,
        leaves: Sequence[int],
        numbers: NDArray[np.int64],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        ends: NDArray[np.bool_] | None = None,
        read: Read | None = None,
    ) -> list[NDArray[Any]]:
        """Return consecutive values of some leaves of varying length; see :meth:`VaryingLeaves.values`.

        Each record is read once for all leaves.
        """
        try:
            with Reading(self.threads):
                records = self.records(numbers, in_part=True) if read is None else read(numbers)
                values = [self.varying.values(records, leaf, starts, counts, ends) for leaf in leaves]
        except ValueError as error:
            self._raise_damage(error, numbers)
        turn_to(DECODING)
        return values

    @property
    def reading_cost(self) -> ReadingCost:
        """What is known in advance about the cost of reading a record."""
        return "stored" if self.element_codec is self.codec else "decoded"

    @property
    def element_spec(self) -> Tree:
        return self.element_codec.spec

    def element(self, number: int) -> Any:
        try:
            return self.element_codec.element(self.record(number))
        except ValueError as error:
            self._raise_damage(error, [number])

    def elements(self, numbers: NDArray[np.int64], read: Read | None = None, failed: Failed | None = None) -> list[Any]:
        few = _FEW if self.element_codec is self.codec else 1
        if failed is not None and read is None and len(numbers) <= few and not self.is_fetched:
            return [self._tried(row, number, failed) for row, number in enumerate(numbers.tolist())]
        codec, rows = self.element_codec, None if failed is None else Undecoded()
        try:
            with Reading(self.threads):
                records = (read or self.records)(numbers)
                # Only images and audio may not decode although their records are whole.
                if isinstance(codec, DecodingCodec):
                    columns = codec.decode(records, apart=True, failed=rows)
                else:
                    columns = codec.decode(records, apart=True)
            turn_to(DECODING)
            found = codec.elements(columns, len(numbers))
        except ValueError as error:
            self._raise_damage(error, numbers)
        if failed is not None and rows:
            failed.update({row: _failure(_numbered(error, numbers)) for row, error in rows.items()})
        return found

    def _tried(self, row: int, number: int, failed: Failed) -> Any:
        """Return one element; None if it does not decode, and its error is added."""
        try:
            return self.element(number)
        except ElementError as error:
            failed[row] = _failure(error)
            return None

    def batch(self, numbers: NDArray[np.int64], names: Sequence[str] | None, read: Read | None = None) -> Any:
        chosen = None if names is None else chosen_leaves(self.element_spec, names)
        try:
            with Reading(self.threads):
                records = self.records(numbers, in_part=chosen is not None) if read is None else read(numbers)
                columns = self.element_codec.decode(records, chosen)
            turn_to(DECODING)
            batch = self.element_codec.batch(columns)
        except ValueError as error:
            self._raise_damage(error, numbers)
        return batch if names is None else {name: batch[name] for name in self.element_spec if name in names}

    def batches(self, batches: Sequence[NDArray[np.int64]], read: Read | None = None) -> list[Any]:
        splits = splits_of(np.array([len(batch) for batch in batches], np.int64)).tolist()
        numbers = np.concatenate([*batches, np.empty(0, np.int64)])
        try:
            with Reading(self.threads):
                columns = self.element_codec.decode((read or self.records)(numbers))
            turn_to(DECODING)
            return self.element_codec.batches([column for column in columns if column is not None], splits)
        except ValueError as error:
            self._raise_damage(error, numbers)

    def _raise_damage(self, error: ValueError, numbers: Sequence[int] | NDArray[np.int64]) -> NoReturn:
        """Raise numpy's error as a CorruptionError, and an ElementError with the number of the record in the base."""
        if isinstance(error, ElementError) and error.record is not None:
            raise _numbered(error, numbers) from error.__cause__
        if isinstance(error, CacheLayerError):
            raise error
        raise CorruptionError(f"{self.name}: a record does not decode: {error}. verify() tells which shard") from error


def _numbered(error: ElementError, numbers: Sequence[int] | NDArray[np.int64]) -> ElementError:
    """Return an error whose record is a row with the number of its record in the base, and its cause."""
    found = error.at(record=int(numbers[error.record or 0]))
    found.__cause__ = error.__cause__
    return found


def _failure(error: ElementError) -> ElementError:
    """Return the error of a record that does not decode; raise it if that is not because of the record."""
    cause = error.__cause__
    if isinstance(cause, Exception) and not is_of_element(cause):
        raise error from cause
    return error


def chosen_leaves(spec: Tree, names: Sequence[str]) -> set[int]:
    """Return the indices of the leaves below these keys of a dict.

    Raises:
        InvalidArgumentError: if a field does not exist.
    """
    if isinstance(names, str) or not isinstance(spec, dict):
        raise InvalidArgumentError(f"fields={names!r}: pass a tuple of keys; elements are {tree.describe(spec)}")
    unknown = [name for name in names if name not in spec]
    if unknown:
        raise InvalidArgumentError(f"no field {unknown[0]!r}: the element is {tree.describe(spec)}")
    chosen: set[int] = set()
    first = 0
    for name, child in spec.items():
        count = len(tree.leaves(child))
        if name in names:
            chosen.update(range(first, first + count))
        first += count
    return chosen
