"""Elements that are decoded from stored records: of a version, or of several versions one after another.

::

    RecordElements.batch([7, 3])     source.records([7, 3])       the bytes
                                     codec.decode(...)            a column for each leaf
                                     codec.batch(...)             arrays, in the structure of an element
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol, Self

import numpy as np

from cachelayer.access.dataset import LeafRead, RowOrigins, SameRows, StoredLeaves
from cachelayer.errors import CacheLayerError, CorruptionError, ElementError
from cachelayer.locks import cached_property
from cachelayer.protocols import DatasetInfo, Digests, Held
from cachelayer.records.codec import Codec, codec_named
from cachelayer.records.leaf_codecs import leaf_codec_for
from cachelayer.records.leaf_columns import Columns
from cachelayer.records.memory import Ints
from cachelayer.records.spans import Records
from cachelayer.records.spec import ImageSize, SizedImageSpec
from cachelayer.records.tree import Tree, leaves
from cachelayer.versions.manifest import canonical_json
from cachelayer.versions.stored_version import StoredVersion

if TYPE_CHECKING:
    from cachelayer.arrayrecord.lengths import LengthColumn


class RecordSource(RowOrigins, Protocol):
    """Encoded records by number: of a version, or of several. Thread-safe and picklable. Erased records are empty."""

    kind: ClassVar[str]
    """The name of a view of the records, such as ``DataRef``."""

    @property
    def digests(self) -> Digests:
        """The digests of the records; see :class:`BaseDataset`."""

    @property
    def codec(self) -> Codec:
        """The codec of the records."""

    @property
    def info(self) -> DatasetInfo:
        """The facts that are known of the records before any is read."""

    @property
    def reads_in_part(self) -> bool:
        """True if only the bytes of a record that are used are read."""

    @property
    def home(self) -> StoredVersion | None:
        """The version beside which plans of the records are stored; None if they are of no single version."""

    def published(self, *, wait: bool = True) -> RecordSource | None:
        """Return the same records of a version that was being built; see :meth:`cachelayer.protocols.Dataset`."""

    def record(self, number: int) -> bytearray:
        """Return one record; the caller may change it."""

    def records(self, numbers: Ints, held: Held | None = None, *, videos: bool = True) -> Records:
        """Return the records of these numbers, each in [0, len). Bytes of local files are read when they are used.

        Args:
            numbers: the numbers.
            held: records that were fetched.
            videos: whether the files of videos are fetched with their records; else when they are used.

        Raises:
            ErasedRecordError: if one was erased.
        """

    def lengths(self, leaf: int) -> LengthColumn:
        """Return the lengths of a leaf, by its number.

        Raises:
            CorruptionError: if they are not what was published.
        """


@dataclass(frozen=True, eq=False)
class StoredElements(SameRows, StoredLeaves):
    """Elements that are decoded from stored records: of the records alone, or merged with added columns."""

    source: RecordSource
    """The records, without the columns."""
    chosen: tuple[int, ...] | None = field(default=None, kw_only=True)
    """The numbers of the leaves that elements have, ascending; None for all."""

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
        """The digests. Chosen leaves and sizes of images change the digest of the elements, not the rows digest."""
        digests = self._digests_of_all_leaves
        if self.chosen is not None:
            digests = digests.of_elements(b"fields", np.array(self.chosen, "<i8").tobytes())
        sizes = [
            [number, *astuple(leaf.size)]
            for number, (_, leaf) in enumerate(leaves(self.codec.spec))
            if isinstance(leaf, SizedImageSpec)
        ]
        return digests.of_elements(b"decoded", canonical_json(sizes)) if sizes else digests

    @property
    def _digests_of_all_leaves(self) -> Digests:
        """The digests of the same elements with all leaves."""
        return self.source.digests

    @abstractmethod
    def undecoded(self) -> Self: ...

    @abstractmethod
    def with_sources(self, change: Callable[[RecordSource], RecordSource]) -> Self:
        """Return the same elements, whose records and columns come from changed sources."""

    @abstractmethod
    def columns(self, numbers: Ints) -> Columns:
        """Return the stored values of these elements: the columns of :attr:`codec`."""

    @abstractmethod
    def with_image_sizes(self, sizes: Mapping[int, ImageSize]) -> Self:
        """Return the same elements, with images decoded to one size, by the number of their leaf."""


@dataclass(frozen=True, eq=False)
class RecordElements(StoredElements):
    """Elements that are decoded from records of one codec."""

    decodes: bool = True
    """True if images and sounds are decoded; else they are the bytes of their files."""
    image_sizes: tuple[tuple[int, ImageSize], ...] = ()
    """Pairs of the number of a leaf of the records and the size that its images are decoded to."""

    @cached_property
    def info(self) -> DatasetInfo:

        info = self.source.info
        nbytes = info.record_nbytes
        # Of records that are read whole, all bytes take memory, however few are decoded.
        if self._chosen_nbytes is not None and self.source.reads_in_part:
            nbytes = min(nbytes, self._chosen_nbytes)
        if self.source.codec.has_videos and not self.element_codec.reads_videos:
            from cachelayer.arrayrecord.records_without_files import HEAD_NBYTES

            nbytes = min(nbytes, HEAD_NBYTES)
        is_decoded = self.element_codec is not self.codec
        return replace(info, read_nbytes=nbytes, reading_cost="decoded" if is_decoded else info.reading_cost)

    def undecoded(self) -> Self:
        return replace(self, decodes=False, image_sizes=())

    def with_sources(self, change: Callable[[RecordSource], RecordSource]) -> Self:
        return replace(self, source=change(self.source))

    def published(self, *, wait: bool = True) -> Self | None:
        source = self.source.published(wait=wait)
        if source is None or source is self.source:
            return None if source is None else self
        return replace(self, source=source)

    def columns(self, numbers: Ints) -> Columns:
        try:
            return self.codec.decode(self.source.records(numbers, videos=self.codec.reads_videos))
        except (ValueError, CorruptionError) as error:
            self._raise_damage(error, numbers)

    def with_image_sizes(self, sizes: Mapping[int, ImageSize]) -> Self:
        image_sizes = dict(self.image_sizes)
        for leaf, size in sizes.items():
            image_sizes[self._leaf(leaf)] = size
        return replace(self, decodes=True, image_sizes=tuple(image_sizes.items()))

    def with_fields(self, leaves: Sequence[int]) -> Self:
        # All leaves chosen are the elements themselves, with their digest, and are read faster.
        if self.codec.schema.chosen(leaves) == self.codec.spec:
            return self
        return replace(self, chosen=tuple(map(self._leaf, leaves)))

    def _leaf(self, leaf: int) -> int:
        """Return the number that a leaf of the elements has in the records."""
        return leaf if self.chosen is None else self.chosen[leaf]

    @cached_property
    def _all_leaves(self) -> Codec:
        codec = self.source.codec
        if not self.image_sizes:
            return codec
        from cachelayer.records.media import sized_spec

        return codec_named(codec.name, sized_spec(codec.spec, dict(self.image_sizes)))

    @cached_property
    def codec(self) -> Codec:
        return self._all_leaves if self.chosen is None else self._all_leaves.chosen(self.chosen)

    @cached_property
    def element_codec(self) -> Codec:
        """The codec of the elements, which decodes images and audio if ``decodes`` is set."""
        return self.codec.decoding() if self.decodes else self.codec

    @property
    def element_spec(self) -> Tree:
        return self.element_codec.spec

    @cached_property
    def _chosen_nbytes(self) -> int | None:
        """The bytes of the chosen leaves; None if all are chosen, or one has no known shape."""
        if self.chosen is None:
            return None
        parts = [part for _, leaf in leaves(self.codec.spec) for part in leaf_codec_for(leaf).parts]
        if any(part.shape is None for part in parts):
            return None
        return sum(part.nbytes for part in parts)

    def lengths(self, leaf: int) -> LengthColumn:
        return self.source.lengths(self._leaf(leaf))

    def leaf_values(self, numbers: Ints, reads: Sequence[LeafRead], held: Held | None = None) -> list[Any]:
        codec = self.source.codec
        try:
            records = self.source.records(numbers, held, videos=False)
            return [
                codec.fixed_values(records, self._leaf(read.leaf))
                if read.starts is None or read.counts is None
                else codec.leaf_values(records, self._leaf(read.leaf), read.starts, read.counts, read.ends, read.into)
                for read in reads
            ]
        except (ValueError, CorruptionError) as error:
            self._raise_damage(error, numbers)

    @cached_property
    def _reads_columns(self) -> bool:
        """True if a single element is read as several are: of fields, and of videos whose files stay where they are."""
        return self.chosen is not None or (self.decodes and self.codec.has_videos)

    def element(self, number: int) -> Any:
        if self._reads_columns:
            return self.elements(np.array([number]))[0]
        try:
            return self.element_codec.element(self.source.record(number))
        except (ValueError, CorruptionError) as error:
            self._raise_damage(error, [number])

    def elements(self, numbers: Ints, held: Held | None = None) -> list[Any]:
        codec = self.element_codec
        try:
            return codec.elements(self._columns(numbers, held, separate_rows=True))
        except (ValueError, CorruptionError) as error:
            self._raise_damage(error, numbers)

    def batch(self, numbers: Ints, held: Held | None = None) -> Any:
        codec = self.element_codec
        try:
            return codec.batch(self._columns(numbers, held, separate_rows=False))
        except (ValueError, CorruptionError) as error:
            self._raise_damage(error, numbers)

    def _columns(self, numbers: Ints, held: Held | None, *, separate_rows: bool) -> Columns:
        codec = self.element_codec
        records = self.source.records(numbers, held, videos=codec.reads_videos)
        return codec.decode(records, numbers, separate_rows=separate_rows)

    def _raise_damage(self, error: Exception, numbers: Sequence[int] | Ints) -> NoReturn:
        """Raise an error of reading with the name of the version or the record; one of numpy as a CorruptionError."""
        if isinstance(error, ElementError) and error.record is not None:
            raise error.at(record=int(numbers[error.record])) from error.__cause__
        name = self.source.info.name
        if isinstance(error, CorruptionError):
            raise type(error)(f"{name}: {error}") from error
        if isinstance(error, CacheLayerError):
            raise error
        raise CorruptionError(f"{name}: a record does not decode: {error}. verify() tells which shard") from error
