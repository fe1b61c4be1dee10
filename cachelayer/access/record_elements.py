"""Elements and batches of encoded records: those of a version, or of several one after another."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NoReturn, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.block_holder import ViewBlocks
from cachelayer.access.elements import Elements, Read, chosen_leaves
from cachelayer.access.held import Held
from cachelayer.arrayrecord.lengths import LengthColumn
from cachelayer.errors import CacheLayerError, CorruptionError, ElementError, ErasedRecordError
from cachelayer.locks import cached_property
from cachelayer.protocols import Failed, ReadingCost
from cachelayer.records.chosen_codec import ChosenCodec
from cachelayer.records.codec import Codec, codec_named
from cachelayer.records.image_sizes import sized_spec
from cachelayer.records.leaf_codecs import leaf_codec
from cachelayer.records.leaf_names import chosen_spec
from cachelayer.records.leaf_parts import fixed_nbytes
from cachelayer.records.media import DecodingCodec, Undecoded, decoding
from cachelayer.records.memory import Ints, splits_of
from cachelayer.records.record_buffers import Records
from cachelayer.records.selection import Selection
from cachelayer.records.spec import ImageSize
from cachelayer.records.tree import Tree, leaves
from cachelayer.records.varying_leaves import VaryingLeaves
from cachelayer.streams.reading.failures import is_of_element
from cachelayer.versions.stored_version import StoredVersion

_FEW = 8
"""Up to so many local records are read faster one by one, if they hold no files to decode."""


class RecordSource(Protocol):
    """Encoded records by number, as a version stores them, or several. Thread-safe and picklable."""

    kind: ClassVar[str]
    """The name of the class of views that show it."""

    @property
    def name(self) -> str:
        """The name for error messages."""

    @property
    def digest(self) -> str:
        """The digest of the records, in hexadecimal."""

    @property
    def original_digest(self) -> str:
        """The digest that they had before any was erased."""

    @property
    def codec(self) -> Codec:
        """The codec that encoded the records."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata of the version; see :attr:`cachelayer.access.view.View.metadata`."""

    @property
    def segments(self) -> tuple[int, ...]:
        """The number of records of each segment: of the first build, and of each append."""

    @property
    def record_nbytes(self) -> int:
        """Approximate bytes of a stored record."""

    @property
    def records_per_read(self) -> int:
        """Number of records that a stream with smaller batches should read at once."""

    @property
    def reads_in_part(self) -> bool:
        """True if only those bytes of a record are read that are used."""

    @property
    def takes_requests(self) -> bool:
        """True if reading records takes requests to an object store."""

    @property
    def home(self) -> StoredVersion | None:
        """The version beside which files about the records are stored; None if there is none."""

    def __len__(self) -> int: ...

    @property
    def erased(self) -> Ints:
        """The numbers of the erased records, ascending. They are stored empty."""

    def erased_error(self, number: int) -> ErasedRecordError:
        """Return the error of an erased record."""

    def record(self, number: int) -> bytearray:
        """Return one record; the caller may change it."""

    def records(self, numbers: Ints) -> Records:
        """Return the records of these numbers, each in [0, len); of local ones, bytes are read when they are used."""

    def lengths(self, leaf: int) -> LengthColumn:
        """Return the lengths of the leaf of this number.

        Raises:
            CorruptionError: if they are not what was published.
        """

    def hold(self, numbers: Ints, share: float) -> Held:
        """Fetch a block of records that is read later.

        Args:
            numbers: the number of each record.
            share: the fraction of all records that the caller is going to fetch.
        """

    def announce(self, numbers: Ints) -> bool:
        """Start to load records from a local disk if they are not in memory; return whether any was not."""


def erased_rows(source: RecordSource, numbers: Ints) -> Ints:
    """Return which of these records were erased, as rows."""
    erased = source.erased
    return np.flatnonzero(np.isin(numbers, erased)) if len(erased) else erased


def refuse_erased(source: RecordSource, numbers: Ints) -> None:
    """Raise if one of these records was erased: whoever decodes or copies records asks here first."""
    rows = erased_rows(source, numbers)
    if len(rows):
        raise source.erased_error(int(numbers[rows[0]]))


@dataclass(frozen=True, eq=False)
class RecordElements(Elements):
    """Elements that are decoded from records of one codec.

    Args:
        source: the records.
        decodes: whether images and audio are decoded.
        sizes: the sizes that images are decoded to, by the numbers of their leaves.
        chosen: the numbers of the leaves that elements have, ascending; None for all.
    """

    source: RecordSource
    decodes: bool = True
    sizes: tuple[tuple[int, ImageSize], ...] = ()
    chosen: tuple[int, ...] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: self.__dict__[field.name] for field in fields(self)}

    def __len__(self) -> int:
        return len(self.source)

    @property
    def title(self) -> str:
        return f"{self.source.kind if self.chosen is None else 'FieldsRef'}({self.source.name!r}"

    @property
    def name(self) -> str:
        """The name for error messages."""
        return self.source.name

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.source.metadata

    @property
    def segments(self) -> tuple[int, ...]:
        return self.source.segments

    @property
    def record_nbytes(self) -> int:
        return self.source.record_nbytes

    @property
    def records_per_read(self) -> int:
        return self.source.records_per_read

    @property
    def home(self) -> StoredVersion | None:
        """The version beside which files about the records are stored; None if there is none."""
        return self.source.home

    def stored(self) -> Self:
        return replace(self, decodes=False, sizes=())

    def sized(self, sizes: Mapping[int, ImageSize]) -> Self:
        """Return the same records, with the images of these leaf numbers decoded to these sizes."""
        of_records = {self._leaf(leaf): size for leaf, size in sizes.items()}
        return replace(self, decodes=True, sizes=tuple({**dict(self.sizes), **of_records}.items()))

    def with_fields(self, leaves: Sequence[int]) -> Self:
        """Return some leaves of the same records, by their numbers, ascending."""
        chosen_spec(self.codec.spec, leaves)
        return replace(self, chosen=tuple(map(self._leaf, leaves)))

    def _leaf(self, leaf: int) -> int:
        """Return the number in the records of a leaf of the elements."""
        return leaf if self.chosen is None else self.chosen[leaf]

    @cached_property
    def digest(self) -> str:
        """The digest of the records if the elements have all leaves.

        Else SHA-256 over that digest (32 bytes), ``fields``, and the numbers of the leaves as int64.
        """
        return self._digest_over(self.source.digest)

    @property
    def original_digest(self) -> str:
        return self._digest_over(self.source.original_digest)

    def _digest_over(self, records: str) -> str:
        if self.chosen is None or self.codec.spec == self._all_leaves.spec:
            return records
        numbers = np.array(self.chosen, "<i8").tobytes()
        return hashlib.sha256(bytes.fromhex(records) + b"fields" + numbers).hexdigest()

    @property
    def erased(self) -> Ints:
        return self.source.erased

    @cached_property
    def _all_leaves(self) -> Codec:
        codec = self.source.codec
        return codec_named(codec.name, sized_spec(codec.spec, dict(self.sizes))) if self.sizes else codec

    @cached_property
    def codec(self) -> Codec:
        """The codec of the stored leaves of the elements."""
        return self._all_leaves if self.chosen is None else ChosenCodec(self._all_leaves, self.chosen)

    @cached_property
    def element_codec(self) -> Codec:
        """The codec of the elements: it decodes images and audio if ``decodes`` is set."""
        return decoding(self.codec) if self.decodes else self.codec

    @property
    def element_spec(self) -> Tree:
        return self.element_codec.spec

    @property
    def reading_cost(self) -> ReadingCost:
        return "stored" if self.element_codec is self.codec else "decoded"

    @cached_property
    def _chosen_nbytes(self) -> int | None:
        """The bytes of the chosen leaves if all have a known shape, else None."""
        codecs = [leaf_codec(leaf) for _, leaf in leaves(self.codec.spec)]
        if self.chosen is None or any(codec.variable for codec in codecs):
            return None
        return sum(fixed_nbytes(part) for codec in codecs for part in codec.fixed)

    @property
    def read_nbytes(self) -> int:
        # If records are read whole, these bytes take memory too, whatever is decoded of them.
        nbytes, chosen = self.record_nbytes, self._chosen_nbytes
        return nbytes if chosen is None or not self.source.reads_in_part else min(nbytes, chosen)

    @property
    def is_fetched(self) -> bool:
        """True if records are best fetched in blocks, which hold them whole."""
        return self.source.takes_requests

    def block_holder(self, selection: Selection, share: float) -> ViewBlocks | None:
        return ViewBlocks(self, self.source, selection, share) if self.is_fetched else None

    def announce(self, numbers: Ints) -> bool:
        return self.source.announce(numbers)

    def lengths(self, leaf: int) -> LengthColumn:
        """Return the lengths of the leaf of this number."""
        return self.source.lengths(self._leaf(leaf))

    @cached_property
    def _varying(self) -> VaryingLeaves:
        return VaryingLeaves(self.source.codec)

    def leaf_values(
        self,
        leaves: Sequence[int],
        numbers: Ints,
        starts: Ints,
        counts: Ints,
        ends: NDArray[np.bool_] | None = None,
        read: Read | None = None,
    ) -> list[NDArray[Any]]:
        """Return consecutive values of some leaves of varying length; see :meth:`VaryingLeaves.values`.

        Each record is read once for all leaves.
        """
        of_records = list(map(self._leaf, leaves))
        try:
            records = self._records(numbers, read)
            values = [self._varying.values(records, leaf, starts, counts, ends) for leaf in of_records]
        except ValueError as error:
            self._raise_damage(error, numbers)
        return values

    def _records(self, numbers: Ints, read: Read | None) -> Records:
        refuse_erased(self.source, numbers)
        return self.source.records(numbers) if read is None else read(numbers)

    def element(self, number: int) -> Any:
        if self.chosen is not None:
            return self.elements(np.array([number]))[0]
        if len(self.source.erased):
            refuse_erased(self.source, np.array([number]))
        try:
            return self.element_codec.element(self.source.record(number))
        except ValueError as error:
            self._raise_damage(error, [number])

    def elements(self, numbers: Ints, failed: Failed | None = None, read: Read | None = None) -> list[Any]:
        if failed is not None and len(erased := erased_rows(self.source, numbers)):
            return self._elements_left(numbers, erased, failed)
        few = _FEW if self.element_codec is self.codec else 1
        if failed is not None and read is None and len(numbers) <= few and not self.source.takes_requests:
            return [self._tried(row, number, failed) for row, number in enumerate(numbers.tolist())]
        codec, rows = self.element_codec, None if failed is None else Undecoded()
        try:
            records = self._records(numbers, read)
            # Only images and audio may not decode although their records are whole.
            if isinstance(codec, DecodingCodec):
                columns = codec.decode(records, apart=True, failed=rows)
            else:
                columns = codec.decode(records, apart=True)
            found = codec.elements(columns, len(numbers))
        except ValueError as error:
            self._raise_damage(error, numbers)
        if failed is not None and rows:
            failed.update({row: _failure(_numbered(error, numbers)) for row, error in rows.items()})
        return found

    def _elements_left(self, numbers: Ints, erased: Ints, failed: Failed) -> list[Any]:
        """Return the elements without those of the erased rows, whose errors are added; None is in their place."""
        failed.update({row: self.source.erased_error(int(numbers[row])) for row in erased.tolist()})
        left, errors = np.setdiff1d(np.arange(len(numbers)), erased), Failed()
        elements: list[Any] = [None] * len(numbers)
        for row, element in zip(left.tolist(), self.elements(numbers[left], errors), strict=True):
            elements[row] = element
        failed.update({int(left[row]): error for row, error in errors.items()})
        return elements

    def _tried(self, row: int, number: int, failed: Failed) -> Any:
        """Return one element; None if it does not decode, and its error is added."""
        try:
            return self.element(number)
        except ElementError as error:
            failed[row] = _failure(error)
            return None

    def batch(self, numbers: Ints, names: Sequence[str] | None = None, read: Read | None = None) -> Any:
        wanted = None if names is None else chosen_leaves(self.element_spec, names)
        try:
            records = self._records(numbers, read)
            columns = self.element_codec.decode(records, wanted)
            batch = self.element_codec.batch(columns)
        except ValueError as error:
            self._raise_damage(error, numbers)
        return batch if names is None else {name: batch[name] for name in self.element_spec if name in names}

    def batches(self, batches: Sequence[Ints], read: Read | None = None) -> list[Any]:
        splits = splits_of(np.array([len(batch) for batch in batches], np.int64)).tolist()
        numbers = np.concatenate([*batches, np.empty(0, np.int64)])
        try:
            records = self._records(numbers, read)
            columns = self.element_codec.decode(records)
            return self.element_codec.batches([column for column in columns if column is not None], splits)
        except ValueError as error:
            self._raise_damage(error, numbers)

    def _raise_damage(self, error: ValueError, numbers: Sequence[int] | Ints) -> NoReturn:
        """Raise numpy's error as a CorruptionError, and an ElementError with the number of the record."""
        if isinstance(error, ElementError) and error.record is not None:
            raise _numbered(error, numbers) from error.__cause__
        if isinstance(error, CacheLayerError):
            raise error
        raise CorruptionError(f"{self.name}: a record does not decode: {error}. verify() tells which shard") from error


def _numbered(error: ElementError, numbers: Sequence[int] | Ints) -> ElementError:
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
