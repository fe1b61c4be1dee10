"""Views of stored records, which know the lengths of leaves and can leave leaves out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Self

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.held import Held
from cachelayer.access.record_base import Read, RecordBase
from cachelayer.access.selected_lengths import selected
from cachelayer.access.sequences.sequence_views import SequenceViews
from cachelayer.arrayrecord.length_column import LengthColumn
from cachelayer.locks import cached_property
from cachelayer.objects.local_cache import CacheFolder
from cachelayer.protocols import T
from cachelayer.records.chosen_codec import ChosenCodec
from cachelayer.records.codec import Codec
from cachelayer.records.image_sizes import image_leaves, image_size
from cachelayer.records.leaf_codecs import leaf_codec
from cachelayer.records.leaf_names import leaf_numbers
from cachelayer.records.leaf_parts import fixed_nbytes
from cachelayer.records.record_buffers import Records
from cachelayer.records.selection import Selection
from cachelayer.records.spec import ImageSize
from cachelayer.records.tree import leaves
from cachelayer.records.varying_leaves import varying_leaf
from cachelayer.versions.stored_version import StoredVersion


class StoredView(SequenceViews[T], Generic[T]):
    """A view of records that are stored."""

    _base: RecordBase

    def lengths(self, leaf: str = "") -> NDArray[np.uint32]:
        """Return the length of a leaf in each record, without reading the records.

        The length of an array of shape ``[None]`` is the number of its values. That of bytes, images and sounds is the
        number of their bytes, and that of a str the number of its bytes in UTF-8. A leaf that is None has the length 0.

        Args:
            leaf: its name, such as ``"tokens"`` or ``"meta/url"``; leave it out if an element is one leaf.

        Returns:
            uint32 of shape ``[len(self)]``, read-only. It is mapped if the records are consecutive ones of one local
            shard, else in memory.

        Raises:
            InvalidArgumentError: if there is no such leaf, or it is of another kind.
            CorruptionError: if the lengths are not those that were published.
        """
        return self._length_column(leaf).values()

    def total(self, leaf: str = "") -> int:
        """Return the sum of :meth:`lengths`, from the manifest: a slice reads at most two pages of 256 lengths more.

        Args:
            leaf: see :meth:`lengths`.

        Raises:
            InvalidArgumentError, CorruptionError: see :meth:`lengths`.
        """
        return self._length_column(leaf).total

    def _length_column(self, leaf: str) -> LengthColumn:
        """Return the lengths of a leaf of the records of this view; see :meth:`lengths`."""
        number = varying_leaf(self._base.codec.spec, leaf)
        columns = self.__dict__.setdefault("_length_columns", {})
        if leaf not in columns:
            columns[leaf] = selected(self._base.lengths(number), self._selection)
        column: LengthColumn = columns[leaf]
        return column

    def __getstate__(self) -> dict[str, Any]:
        derived = ("_length_columns", "_bucket_tables")
        return {name: value for name, value in self.__dict__.items() if name not in derived}

    def fields(self, *names: str) -> FieldsRef[Any]:
        """Return a view of some leaves of the same records: the others are neither decoded nor read.

        Elements keep their structure of dicts, and the order of their keys. Of a local shard without compression only
        the bytes of these leaves are read; over the network records are read whole, so that their checksums tell
        whether they are right.

        Args:
            names: keys of the elements, and of dicts in them, such as ``"tokens"`` or ``"meta/url"``.

        Raises:
            InvalidArgumentError: if there is no such field.
        """
        chosen = leaf_numbers(self._base.codec.spec, names)
        return FieldsRef(_fields_of(self._base, chosen), self._selection)

    def decoded(self, *names: str, size: tuple[int, int], crop: bool = False) -> Self:
        """Return a view of the same records with images decoded to one size, so that a batch of them is one array.

        Pillow resizes them with its bilinear filter, which takes the mean of all pixels that lie under a new one; of
        images of the mode ``"1"`` it takes the nearest pixel. The JPEG decoder itself makes an image smaller by 2, 4 or
        8 if that leaves it at least as large as ``size``. It takes less time then, and the pixels differ slightly from
        those of the whole image. The digest and the states of streams are those of this view.

        Args:
            names: the images, such as ``"image"`` or ``"meta/thumbnail"``, or structures that hold some; none for all
                images.
            size: the height and the width.
            crop: True cuts off what makes the proportions differ, at both sides alike; False stretches the image.

        Raises:
            InvalidArgumentError: if there are no such images, or the size is less than 1.
            InvalidTypeError: if an argument is of the wrong type.
        """
        leaves = image_leaves(self._base.stored().codec.spec, names)
        sizes = dict.fromkeys(leaves, image_size(size, crop))
        return type(self)(self._base.sized(sizes), self._selection)


def _fields_of(base: RecordBase, chosen: Sequence[int]) -> FieldsBase:
    if isinstance(base, FieldsBase):
        return FieldsBase(base.base, [base.chosen[leaf] for leaf in chosen])
    return FieldsBase(base, chosen)


class FieldsBase(RecordBase):
    """Some leaves of the records of another base.

    Args:
        base: the other base.
        chosen: the numbers of the leaves in its records, ascending.
    """

    def __init__(self, base: RecordBase, chosen: Sequence[int]) -> None:
        self.base = base
        self.chosen = tuple(chosen)
        self._codec = ChosenCodec(base.codec, self.chosen)

    def __reduce__(self) -> tuple[Any, ...]:
        return FieldsBase, (self.base, self.chosen)

    @property
    def codec(self) -> Codec:
        return self._codec

    @property
    def decodes(self) -> bool:
        return self.base.decodes

    def stored(self) -> Self:
        return type(self)(self.base.stored(), self.chosen)

    def sized(self, sizes: Mapping[int, ImageSize]) -> Self:
        return type(self)(self.base.sized({self.chosen[leaf]: size for leaf, size in sizes.items()}), self.chosen)

    @property
    def name(self) -> str:
        return self.base.name

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.base.metadata

    @property
    def digest(self) -> str:
        """The digest of the base if its elements are the same.

        Else SHA-256 over the digest of the base (32 bytes), ``fields``, and the numbers of the leaves as int64.
        """
        if self.codec.spec == self.base.codec.spec:
            return self.base.digest
        numbers = np.array(self.chosen, "<i8").tobytes()
        return hashlib.sha256(bytes.fromhex(self.base.digest) + b"fields" + numbers).hexdigest()

    @property
    def home(self) -> StoredVersion | None:
        return self.base.home

    @property
    def copies(self) -> CacheFolder | None:
        return self.base.copies

    @property
    def segments(self) -> tuple[int, ...]:
        return self.base.segments

    @property
    def records_per_read(self) -> int:
        return self.base.records_per_read

    @property
    def reads_in_part(self) -> bool:
        return self.base.reads_in_part

    @cached_property
    def _static_nbytes(self) -> int | None:
        """The bytes of these leaves if all have a known shape, else None."""
        codecs = [leaf_codec(leaf) for _, leaf in leaves(self.codec.spec)]
        if any(codec.variable for codec in codecs):
            return None
        return sum(fixed_nbytes(part) for codec in codecs for part in codec.fixed)

    @property
    def record_nbytes(self) -> int:
        return self.base.record_nbytes

    @property
    def read_nbytes(self) -> int:
        """Approximate bytes that are read of a record."""
        # If records are read whole, these bytes take memory too, whatever is decoded of them.
        nbytes, static = self.base.record_nbytes, self._static_nbytes
        return nbytes if static is None or not self.reads_in_part else min(nbytes, static)

    def __len__(self) -> int:
        return len(self.base)

    def element(self, number: int) -> Any:
        return self.elements(np.array([number]))[0]

    def record(self, number: int) -> bytearray:
        return self.base.record(number)

    def records(self, numbers: NDArray[np.int64], *, in_part: bool = True) -> Records:  # noqa: ARG002
        return self.base.records(numbers, in_part=True)

    def hold(self, numbers: NDArray[np.int64], share: float) -> Held:
        return self.base.hold(numbers, share)

    @property
    def is_fetched(self) -> bool:
        # Blocks hold records whole.
        return self.base.is_fetched and not self.reads_in_part

    def announce(self, numbers: NDArray[np.int64]) -> bool:
        return self.base.announce(numbers)

    def lengths(self, leaf: int) -> LengthColumn:
        return self.base.lengths(self.chosen[leaf])

    def leaf_values(
        self,
        leaves: Sequence[int],
        numbers: NDArray[np.int64],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        ends: NDArray[np.bool_] | None = None,
        read: Read | None = None,
    ) -> list[NDArray[Any]]:
        return self.base.leaf_values([self.chosen[leaf] for leaf in leaves], numbers, starts, counts, ends, read)


class FieldsRef(StoredView[T], Generic[T]):
    """Some leaves of records, with the interface of a DataRef. ``ref.fields(...)`` returns it."""

    _base: FieldsBase

    def _with_selection(self, selection: Selection) -> Self:
        return type(self)(self._base, selection)

    @property
    def _read_nbytes(self) -> int:
        return self._base.read_nbytes

    def _stored(self) -> FieldsRef[Any]:
        return FieldsRef(self._base.stored(), self._selection)

    def __repr__(self) -> str:
        return f"FieldsRef({self._base.name!r}, records={len(self)}, digest='sha256:{self.digest}')"
