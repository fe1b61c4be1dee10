"""Views of stored records: their lengths, some of their leaves, and windows, packs and padded records made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, Literal, Self, TypedDict, cast

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.record_elements import RecordElements
from cachelayer.access.sequences.bucketed import bucketed_stream
from cachelayer.access.sequences.documents import Documents, checked_fill, leaf_names
from cachelayer.access.sequences.pack_planner import LONG, Packing
from cachelayer.access.sequences.packs import Packed, packed_of
from cachelayer.access.sequences.padded import Padded, padded_of
from cachelayer.access.sequences.windows import Windowing, Windows, windows_of
from cachelayer.access.version_lengths import selected_lengths
from cachelayer.access.view import View
from cachelayer.arguments import check_options, integer, is_choice
from cachelayer.arrayrecord.lengths import LengthColumn
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.protocols import T
from cachelayer.records.image_sizes import image_leaves, image_size
from cachelayer.records.leaf_names import leaf_numbers
from cachelayer.records.varying_leaves import varying_leaf
from cachelayer.streams.order.buckets import buckets_of
from cachelayer.streams.stream import Stream
from cachelayer.streams.stream_options import check_seed
from cachelayer.user_warnings import warn

# Numbers of values and of windows stay far within int64.
_LONGEST = 2**31 - 1


class _Required(TypedDict):
    leaves: str | Sequence[str]
    length: int


class PackArguments(_Required, total=False):
    """The arguments of :meth:`cachelayer.DataRef.packed`."""

    long: Literal["split", "truncate", "drop"]
    seed: int | None


class StoredView(View[T], Generic[T]):
    """A view of records that are stored."""

    _elements: RecordElements

    @property
    def erased(self) -> NDArray[np.int64]:
        """The numbers of the erased records of this view, ascending: reading one raises an ErasedRecordError.

        ``ref.exclude(ref.erased)`` is the view without them.
        """
        return self._erased

    def lengths(self, leaf: str = "") -> NDArray[np.uint32]:
        """Return the length of a leaf in each record, without reading the records.

        The length of an array of shape ``[None]`` is the number of its values. That of bytes, images and sounds is the
        number of their bytes, and that of a str the number of its bytes in UTF-8. A leaf that is None has the length 0.

        Args:
            leaf: its name, such as ``"tokens"`` or ``"meta/url"``; leave it out if an element is one leaf.

        Returns:
            uint32 of shape ``[len(self)]``, read-only.

        Raises:
            InvalidArgumentError: if there is no such leaf, or it is of another kind.
        """
        return self._length_column(leaf).values()

    def total(self, leaf: str = "") -> int:
        """Return the sum of :meth:`lengths`, from the manifest: a slice reads the lengths of at most two shards.

        Args:
            leaf: see :meth:`lengths`.

        Raises:
            InvalidArgumentError: see :meth:`lengths`.
        """
        return self._length_column(leaf).total

    def _length_column(self, leaf: str) -> LengthColumn:
        """Return the lengths of a leaf of the records of this view; see :meth:`lengths`."""
        number = varying_leaf(self._elements.codec.spec, leaf)
        columns = self.__dict__.setdefault("_length_columns", {})
        if leaf not in columns:
            columns[leaf] = selected_lengths(self._elements.lengths(number), self._selection)
        column: LengthColumn = columns[leaf]
        return column

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
        chosen = leaf_numbers(self._elements.codec.spec, names)
        return FieldsRef(self._elements.with_fields(chosen), self._selection)

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
        stored = self._elements.stored()
        if stored is None:
            raise InvalidTypeError("these views are joined already: call decoded() on each dataset, before views of it")
        sizes = dict.fromkeys(image_leaves(stored.codec.spec, names), image_size(size, crop))
        return type(self)(self._elements.sized(sizes), self._selection)

    def _stream(self, global_batch_size: int | None, options: Mapping[str, Any]) -> Stream[Any]:
        if options.get("buckets") is None:
            return super()._stream(global_batch_size, options)
        return bucketed_stream(self, buckets_of(options["buckets"]), global_batch_size, options)

    def windows(
        self,
        leaf: str,
        length: int,
        *,
        stride: int | None = None,
        separator: float | None = None,
        remainder: Literal["drop", "pad"] = "drop",
    ) -> Windows:
        """Return windows of fixed length over the values of a leaf, those of all records one after another.

        Window i begins at value ``i * stride``. It is read at once, whichever records its values come from.

        Args:
            leaf: the name of an array of shape ``[None]``, such as ``"tokens"`` or ``"meta/tokens"``; or of bytes or
                str, of which windows hold the bytes as uint8.
            length: the number of values of a window.
            stride: how far a window begins after the one before it; the length by default.
            separator: a value that stands after each record, also after empty ones and None.
            remainder: what to do with values at the end that do not fill a window: "drop" leaves them out, "pad" fills
                the last window up with zeros.

        Returns:
            A view of ``{"tokens": [length]}``; the key is the last part of the leaf's name. With "pad" there are also
            ``tokens_length``, int32, and ``tokens_mask``, bool ``[length]``, True for values.

        Raises:
            InvalidArgumentError: if there is no such leaf, it is of another kind, or another argument is invalid.
            InvalidTypeError: if an argument has the wrong type.
        """
        if not isinstance(leaf, str):
            raise InvalidTypeError(f"leaf {leaf!r}: pass the name of a leaf, such as 'tokens'")
        size = checked_length(length)
        step = size if stride is None else _at_most("stride", integer("stride", stride, 1))
        if not is_choice(remainder, ("drop", "pad")):
            raise InvalidArgumentError(f"remainder {remainder!r}: pass 'drop' or 'pad': all windows have one length")
        documents = Documents(self, [leaf])
        value = None if separator is None else checked_fill("separator", separator, documents.dtypes[0])
        return windows_of(documents, Windowing(size, step, int(value is not None), remainder), value)

    def packed(
        self,
        leaves: str | Sequence[str],
        length: int,
        *,
        long: Literal["split", "truncate", "drop"] = "split",
        seed: int | None = None,
    ) -> Packed:
        """Return whole documents packed into rows of fixed length.

        Which documents share a row is planned once, from their lengths alone, and stored beside the version. Documents
        share a row only with others of the same 16,384 in a row. A row holds its documents in the order of their
        records. Empty ones, and None, are in no row.

        Args:
            leaves: the name of an array of shape ``[None]``, such as ``"tokens"`` or ``"meta/tokens"``; or of bytes or
                str, whose bytes are packed as uint8. Or several, of equal lengths in each record, to pack side by side.
            length: the number of values of a row.
            long: what to do with longer documents: "split" packs pieces of ``length`` and one of the rest, "truncate"
                packs only their beginning, "drop" leaves them out.
            seed: an integer in [0, 2**64) that shuffles which documents share a row; None for a plan without chance.

        Returns:
            A view of ``{"tokens": [length], "tokens_segment_ids": [length], "tokens_positions": [length]}``. Segment
            ids, int32, number the documents of a row from 1; 0 is padding. Positions, int32, begin at 0 in each. The
            keys are the last parts of the names; ids and positions are named after the first leaf.

        Raises:
            InvalidArgumentError: if there is no such leaf, it is of another kind, the leaves of a record have different
                lengths, or another argument is invalid.
            InvalidTypeError: if an argument has the wrong type.
        """
        size = checked_length(length)
        if not is_choice(long, LONG):
            raise InvalidArgumentError(f"long {long!r}: pass 'split', 'truncate' or 'drop'")
        return packed_of(
            Documents(self, leaf_names(leaves)), Packing(size, long, None if seed is None else check_seed(seed))
        )

    def padded(
        self, lengths: Mapping[str, int], *, value: Any = 0, long: Literal["truncate", "refuse"] | None = None
    ) -> Padded:
        """Return the same records with arrays of varying length padded to a fixed one.

        Args:
            lengths: the length for each leaf, by its name: an array of shape ``[None]``, such as ``"tokens"``.
            value: what stands after the values of a shorter record.
            long: what to do with longer records: "truncate" keeps the beginning, "refuse" raises an ElementError when
                one is read. None truncates too, and warns if it does, with the share of the values that is kept.

        Returns:
            A view of the same elements, with ``tokens`` as ``[length]``, and beside it ``tokens_length``, int32, the
            number of values in it, and ``tokens_mask``, bool ``[length]``, True for values and False for padding. If a
            leaf is None, its length is 0.

        Raises:
            InvalidArgumentError: if there is no such leaf, it is of another kind, or another argument is invalid.
            InvalidTypeError: if an argument has the wrong type.
        """
        if not isinstance(lengths, Mapping) or not all(isinstance(name, str) for name in lengths):
            raise InvalidTypeError(f'lengths {lengths!r}: pass a dict of names and lengths, such as {{"tokens": 2048}}')
        if long is not None and not is_choice(long, ("truncate", "refuse")):
            raise InvalidArgumentError(f"long {long!r}: pass 'truncate' or 'refuse'")
        sizes = {name: checked_length(length) for name, length in lengths.items()}
        view = padded_of(self, sizes, value, long or "truncate")
        if long is None and view.kept < 1:
            warn(
                f"padded() keeps {view.kept:.2%} of the values of {', '.join(map(repr, sizes))}: longer records lose "
                "their end. Pass long='truncate' if you want that; else a greater length, or use windows() or packed()"
            )
        return view


class FieldsRef(StoredView[T], Generic[T]):
    """Some leaves of records, with the interface of a DataRef. ``ref.fields(...)`` returns it."""


def checked_length(length: Any) -> int:
    """Return the length of windows or packs."""
    return _at_most("length", integer("length", length, 1))


def _at_most(name: str, number: int) -> int:
    if number > _LONGEST:
        raise InvalidArgumentError(f"{name} {number}: it must be at most {_LONGEST}")
    return number


def checked_pack_arguments(arguments: Any) -> PackArguments:
    """Return the arguments of ``packed`` that a user passed as a dict."""
    if not isinstance(arguments, Mapping):
        raise InvalidTypeError(f'pack {arguments!r}: pass a dict such as {{"leaves": "tokens", "length": 2048}}')
    check_options(arguments, sorted(PackArguments.__required_keys__ | PackArguments.__optional_keys__))
    for name in sorted(PackArguments.__required_keys__):
        if name not in arguments:
            raise InvalidArgumentError(f"pack {dict(arguments)!r}: it has no {name!r}")
    return cast(PackArguments, dict(arguments))
