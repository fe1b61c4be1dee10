"""Elements and batches of encoded records: those of a version, or of several one after another."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, NoReturn, Protocol, Self

import numpy as np

from cachelayer.access.dataset import RowOrigins, SameRows
from cachelayer.access.stored_leaves import LeafRead, StoredLeaves
from cachelayer.arrayrecord.lengths import LengthColumn
from cachelayer.errors import CacheLayerError, CorruptionError, ElementError
from cachelayer.locks import cached_property
from cachelayer.protocols import DatasetInfo, Digests, Held
from cachelayer.records.codec import Codec, codec_named
from cachelayer.records.leaf_columns import Column
from cachelayer.records.leaf_names import chosen_spec
from cachelayer.records.leaves import leaf_of
from cachelayer.records.media import sized_spec
from cachelayer.records.memory import Ints
from cachelayer.records.record_buffers import Records
from cachelayer.records.spec import ImageSize
from cachelayer.records.tree import Tree, leaves
from cachelayer.versions.stored_version import StoredVersion


class RecordSource(RowOrigins, Protocol):
    """Encoded records by number, as a version stores them, or several. Thread-safe and picklable.

    What is named as in :class:`BaseDataset` is the same of the records. Erased records are stored empty.
    """

    kind: ClassVar[str]
    """The kind of view that shows it."""

    @property
    def digests(self) -> Digests: ...

    @property
    def codec(self) -> Codec: ...

    @property
    def info(self) -> DatasetInfo: ...

    @property
    def reads_in_part(self) -> bool:
        """True if only those bytes of a record are read that are used."""

    @property
    def home(self) -> StoredVersion | None: ...

    def record(self, number: int) -> bytearray:
        """Return one record; the caller may change it."""

    def records(self, numbers: Ints, held: Held | None = None) -> Records:
        """Return the records of these numbers, each in [0, len); of local ones, bytes are read when they are used.

        Raises:
            ErasedRecordError: if one was erased.
        """

    def lengths(self, leaf: int) -> LengthColumn:
        """Return the lengths of the leaf of this number.

        Raises:
            CorruptionError: if they are not what was published.
        """


@dataclass(frozen=True, eq=False)
class StoredElements(SameRows, StoredLeaves):
    """Elements that are decoded from stored records, and from columns that were added to them.

    Args:
        source: the records, without the columns.
        chosen: the numbers of the leaves that elements have, ascending; None for all.
    """

    source: RecordSource
    chosen: tuple[int, ...] | None = field(default=None, kw_only=True)

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: self.__dict__[field.name] for field in fields(self)}

    @property
    def underlying(self) -> RecordSource:
        return self.source

    @property
    def leaves(self) -> Self:
        return self

    @property
    def home(self) -> StoredVersion | None:
        return self.source.home

    @property
    def title(self) -> str:
        return f"{self.source.kind if self.chosen is None else 'Fields'}({self.source.info.name!r})"

    @cached_property
    def digests(self) -> Digests:
        """The digests of all leaves; if only some are chosen, the digest of the elements tells which."""
        if self.chosen is None:
            return self._digests_of_all_leaves
        text = bytes.fromhex(self._digests_of_all_leaves.elements) + b"fields" + np.array(self.chosen, "<i8").tobytes()
        return self._digests_of_all_leaves._replace(elements=hashlib.sha256(text).hexdigest())

    @property
    def _digests_of_all_leaves(self) -> Digests:
        """The digests of the elements with all leaves."""
        return self.source.digests

    @abstractmethod
    def undecoded(self) -> Self: ...

    @abstractmethod
    def with_sources(self, change: Callable[[RecordSource], RecordSource]) -> Self:
        """Return the same elements, with the records and the columns read in another way."""

    @abstractmethod
    def columns(self, numbers: Ints) -> list[Column]:
        """Return a column for each leaf of :attr:`codec`, with the values of these elements as they are stored."""

    @abstractmethod
    def with_image_sizes(self, sizes: Mapping[int, ImageSize]) -> Self:
        """Return the same elements, with the images of these leaf numbers decoded to these sizes."""


@dataclass(frozen=True, eq=False)
class RecordElements(StoredElements):
    """Elements that are decoded from records of one codec.

    Args:
        decodes: whether images and audio are decoded.
        image_sizes: the sizes that images are decoded to, by the numbers of their leaves.
    """

    decodes: bool = True
    image_sizes: tuple[tuple[int, ImageSize], ...] = ()

    @cached_property
    def info(self) -> DatasetInfo:
        info = self.source.info
        nbytes = info.record_nbytes
        chosen = None if self.chosen is None else self._chosen_nbytes
        # If records are read whole, these bytes take memory too, whatever is decoded of them.
        if chosen is not None and self.source.reads_in_part:
            nbytes = min(nbytes, chosen)
        cost = info.reading_cost if self.element_codec is self.codec else "decoded"
        return replace(info, read_nbytes=nbytes, reading_cost=cost)

    def undecoded(self) -> Self:
        return replace(self, decodes=False, image_sizes=())

    def with_sources(self, change: Callable[[RecordSource], RecordSource]) -> Self:
        return replace(self, source=change(self.source))

    def columns(self, numbers: Ints) -> list[Column]:
        try:
            return self.codec.decode(self.source.records(numbers))
        except ValueError as error:
            self._raise_damage(error, numbers)

    def with_image_sizes(self, sizes: Mapping[int, ImageSize]) -> Self:
        of_records = {self._leaf(leaf): size for leaf, size in sizes.items()}
        return replace(self, decodes=True, image_sizes=tuple({**dict(self.image_sizes), **of_records}.items()))

    def with_fields(self, leaves: Sequence[int]) -> Self:
        # All of them are no choice: the view has the digest, and the ways of reading, of the whole.
        if chosen_spec(self.codec.spec, leaves) == self.codec.spec:
            return self
        return replace(self, chosen=tuple(map(self._leaf, leaves)))

    def _leaf(self, leaf: int) -> int:
        """Return the number in the records of a leaf of the elements."""
        return leaf if self.chosen is None else self.chosen[leaf]

    @cached_property
    def _all_leaves(self) -> Codec:
        codec = self.source.codec
        return codec_named(codec.name, sized_spec(codec.spec, dict(self.image_sizes))) if self.image_sizes else codec

    @cached_property
    def codec(self) -> Codec:
        return self._all_leaves if self.chosen is None else self._all_leaves.chosen(self.chosen)

    @cached_property
    def element_codec(self) -> Codec:
        """The codec of the elements: it decodes images and audio if ``decodes`` is set."""
        return self.codec.decoding() if self.decodes else self.codec

    @property
    def element_spec(self) -> Tree:
        return self.element_codec.spec

    @cached_property
    def _chosen_nbytes(self) -> int | None:
        """The bytes of the chosen leaves if all have a known shape, else None."""
        parts = [part for _, leaf in leaves(self.codec.spec) for part in leaf_of(leaf).parts]
        if self.chosen is None or any(part.shape is None for part in parts):
            return None
        return sum(part.nbytes for part in parts)

    def lengths(self, leaf: int) -> LengthColumn:
        return self.source.lengths(self._leaf(leaf))

    def leaf_values(self, numbers: Ints, reads: Sequence[LeafRead], held: Held | None = None) -> list[Any]:
        codec = self.source.codec
        try:
            records = self.source.records(numbers, held)
            return [
                codec.fixed_values(records, self._leaf(read.leaf))
                if read.starts is None or read.counts is None
                else codec.leaf_values(records, self._leaf(read.leaf), read.starts, read.counts, read.ends)
                for read in reads
            ]
        except ValueError as error:
            self._raise_damage(error, numbers)

    def element(self, number: int) -> Any:
        if self.chosen is not None:
            return self.elements(np.array([number]))[0]
        try:
            return self.element_codec.element(self.source.record(number))
        except ValueError as error:
            self._raise_damage(error, [number])

    def elements(self, numbers: Ints, held: Held | None = None) -> list[Any]:
        codec = self.element_codec
        try:
            columns = codec.decode(self.source.records(numbers, held), separate_rows=True)
            return codec.elements(columns, len(numbers))
        except ValueError as error:
            self._raise_damage(error, numbers)

    def batch(self, numbers: Ints, held: Held | None = None) -> Any:
        codec = self.element_codec
        try:
            return codec.batch(codec.decode(self.source.records(numbers, held)))
        except ValueError as error:
            self._raise_damage(error, numbers)

    def _raise_damage(self, error: ValueError, numbers: Sequence[int] | Ints) -> NoReturn:
        """Raise numpy's error as a CorruptionError, and an ElementError with the number of the record."""
        if isinstance(error, ElementError) and error.record is not None:
            raise error.at(record=int(numbers[error.record])) from error.__cause__
        if isinstance(error, CacheLayerError):
            raise error
        name = self.source.info.name
        raise CorruptionError(f"{name}: a record does not decode: {error}. verify() tells which shard") from error
