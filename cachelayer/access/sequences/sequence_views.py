"""Views of sequences of any length as elements of fixed shape: windows, packs, and padded records."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Literal, TypedDict, cast

from cachelayer.access.record_base import RecordBase
from cachelayer.access.sequences.bucketed import bucketed_stream
from cachelayer.access.sequences.documents import Documents, leaf_names
from cachelayer.access.sequences.fill_values import checked_fill
from cachelayer.access.sequences.pack_planner import LONG, Packing
from cachelayer.access.sequences.packs import Packed, packed_of
from cachelayer.access.sequences.padded import Padded, padded_of
from cachelayer.access.sequences.window_cuts import Windowing
from cachelayer.access.sequences.windows import Windows, windows_of
from cachelayer.access.view import View
from cachelayer.arguments import check_options, integer, is_choice
from cachelayer.arrayrecord.length_column import LengthColumn
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.protocols import T
from cachelayer.streams.buckets import buckets_of
from cachelayer.streams.stream import Stream
from cachelayer.streams.stream_options import check_seed

# Numbers of values and of windows stay far within int64.
_LONGEST = 2**31 - 1


class _Required(TypedDict):
    leaves: str | Sequence[str]
    length: int


class PackArguments(_Required, total=False):
    """The arguments of :meth:`cachelayer.DataRef.packed`."""

    long: Literal["split", "truncate", "drop"]
    seed: int | None


class SequenceViews(View[T], Generic[T]):
    """A view of stored records, of which others can be made whose elements have fixed shapes."""

    _base: RecordBase

    @abstractmethod
    def _length_column(self, leaf: str) -> LengthColumn:
        """Return the lengths of a leaf of the records of this view."""

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
        self, lengths: Mapping[str, int], *, value: Any = 0, long: Literal["truncate", "refuse"] = "truncate"
    ) -> Padded:
        """Return the same records with arrays of varying length padded to a fixed one.

        Args:
            lengths: the length for each leaf, by its name: an array of shape ``[None]``, such as ``"tokens"``.
            value: what stands after the values of a shorter record.
            long: what to do with longer records: "truncate" keeps the beginning, "refuse" raises an ElementError when
                one is read.

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
        if not is_choice(long, ("truncate", "refuse")):
            raise InvalidArgumentError(f"long {long!r}: pass 'truncate' or 'refuse'")
        return padded_of(self, {name: checked_length(length) for name, length in lengths.items()}, value, long)


def checked_length(length: Any) -> int:
    """Return the length of windows or packs.

    Raises:
        InvalidArgumentError, InvalidTypeError: if it is not an integer in [1, 2**31).
    """
    return _at_most("length", integer("length", length, 1))


def _at_most(name: str, number: int) -> int:
    if number > _LONGEST:
        raise InvalidArgumentError(f"{name} {number}: it must be at most {_LONGEST}")
    return number


def checked_pack_arguments(arguments: Any) -> PackArguments:
    """Return the arguments of ``packed`` that a user passed as a dict.

    Raises:
        InvalidTypeError: if they are no dict.
        UnknownOptionError: if there is no such argument, with the nearest name.
        InvalidArgumentError: if one is missing.
    """
    if not isinstance(arguments, Mapping):
        raise InvalidTypeError(f'pack {arguments!r}: pass a dict such as {{"leaves": "tokens", "length": 2048}}')
    check_options(arguments, sorted(PackArguments.__required_keys__ | PackArguments.__optional_keys__))
    for name in sorted(PackArguments.__required_keys__):
        if name not in arguments:
            raise InvalidArgumentError(f"pack {dict(arguments)!r}: it has no {name!r}")
    return cast(PackArguments, dict(arguments))
