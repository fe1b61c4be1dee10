"""Views: records by number, slices, splits and streams, wherever the records come from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, SupportsIndex, TypeAlias, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.elements import Elements, ViewRecords
from cachelayer.access.sampling import Sampled, sampled_of
from cachelayer.access.split import split
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.protocols import T
from cachelayer.records.selection import Selection
from cachelayer.records.tree import Tree
from cachelayer.streams.reading.step_reader import StepReader
from cachelayer.streams.stream import BatchStream, Stream, Untyped, stream_of
from cachelayer.streams.stream_options import StreamArguments, make_options, takes_stream_options

Indices: TypeAlias = Sequence[int] | NDArray[Any] | slice

if TYPE_CHECKING:
    # Views whose batches are arrays.
    Scalars: TypeAlias = "View[int] | View[float] | View[bool] | View[complex] | View[str] | View[bytes]"


class View(Generic[T]):
    """Records of a base in an order of their own: all of them, or some. Slicing copies nothing."""

    def __init__(self, base: Elements, selection: Selection | None = None) -> None:
        self._elements = base
        self._selection = Selection.all(len(base)) if selection is None else selection
        self._records = ViewRecords(base, self._selection)

    def _with_selection(self, selection: Selection) -> Self:
        """Return a view of the same base with another selection."""
        return type(self)(self._elements, selection)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._elements, self._selection)

    @property
    def element_spec(self) -> Tree:
        """The structure of an element; its leaves are :class:`cachelayer.ArraySpec` or another leaf spec."""
        return self._elements.element_spec

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the version that the records come from: what the user passed, and what the source said.

        If they come from several versions, it is what the metadata of all of them have in common.
        """
        return dict(self._elements.metadata)

    def __records__(self) -> ViewRecords:
        return self._records

    def __repr__(self) -> str:
        return repr(self._records)

    def _repr_html_(self) -> str:
        """Return a table with the element spec, which notebooks show. It reads no record."""
        from cachelayer.drawing.ref_html import spec_html

        facts = [("records", f"{len(self):,}"), ("digest", f"sha256:{self.digest}")]
        return spec_html(f"{self._elements.title})", facts, self.element_spec)

    @property
    def digest(self) -> str:
        """SHA-256 that identifies the records and their order, in hexadecimal."""
        return self._records.digest

    def __len__(self) -> int:
        return len(self._selection)

    @overload
    def __getitem__(self, index: SupportsIndex) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: Any) -> Any:
        """Return one element, or a view of a slice."""
        if isinstance(index, slice):
            return self._with_selection(self._selection.slice(index))
        return self._elements.element(self._selection.number(index))

    def select(self, indices: Sequence[int] | NDArray[Any] | slice) -> Self:
        """Return a view of some records, in the order of their indices.

        Args:
            indices: integers, which may repeat, and negative ones count from the end; or a mask with one bool for each
                record; or a slice.

        Raises:
            RecordIndexError: if there is no such record.
            InvalidArgumentError: if a mask has the wrong length.
            InvalidTypeError: if they are neither integers nor bools.
        """
        return self._with_selection(self._selection.select(indices))

    def exclude(self, indices: Sequence[int] | NDArray[Any] | slice) -> Self:
        """Return a view without some records: it is that of ``select`` with the indices of all others, in order.

        Args:
            indices: integers in any order, which may repeat, and negative ones count from the end; or a mask with True
                for each record to leave out; or a slice.

        Raises:
            RecordIndexError, InvalidArgumentError, InvalidTypeError: see :meth:`select`.
        """
        return self._with_selection(self._selection.exclude(indices))

    def sample(self, weights: str | Sequence[float] | NDArray[Any], *, seed: int) -> Sampled[T]:
        """Draw records by their weights, with replacement: what it returns has endless ``stream(...)``.

        Args:
            weights: one number for each record, 0 or more; or the name of a leaf that has it, such as
                ``"meta/weight"``; or ``"balanced:"`` and the name of a leaf with labels, such as ``"balanced:label"``:
                then each class is drawn equally often, and each record of a class too.
            seed: an integer in [0, 2**64), which decides all draws.

        Raises:
            InvalidArgumentError: if a weight is negative, infinite, NaN or None, all are 0, there is another number of
                them, there is no such leaf, or it is of another kind; the message names the record.
            InvalidTypeError: if an argument is of the wrong type.
        """
        return sampled_of(self, self._records, weights, seed)

    def split(self, shares: Mapping[str, float], *, seed: int) -> dict[str, Self]:
        """Split the records at random into views that do not overlap, such as ``train`` and ``val``.

        Records that were appended at once are split by themselves: in a version with more records appended, every
        record stays in its view. The records of each view keep their order.

        Args:
            shares: the fraction of the records that each view gets, by its name; they sum to 1.
            seed: an integer in [0, 2**64). The same seed and shares give the same views.

        Returns:
            The views by their names.

        Raises:
            InvalidArgumentError: if the shares or the seed are invalid, or if this view holds a record more than once.
        """
        if self._selection.has_repeats:
            raise InvalidArgumentError("this view holds a record more than once: split it before you repeat records")
        selections = split(self._selection, self._elements.segments, shares, seed)
        return {name: self._with_selection(selection) for name, selection in selections.items()}

    @property
    def _erased(self) -> NDArray[np.int64]:
        return self._selection.rows_of(self._elements.erased)

    def __iter__(self) -> Iterator[T]:
        return iter(self.stream())

    def __getitems__(self, indices: Sequence[int] | NDArray[Any]) -> list[T]:
        """Return the elements of these indices as a list. The caller may change them.

        Args:
            indices: integers, of which negative ones count from the end; or a mask with one bool for each record.
        """
        return self._elements.elements(self._selection.take(indices))

    @overload
    def read(self: View[Untyped], indices: Indices, fields: Sequence[str] | None = ...) -> Any: ...
    @overload
    def read(self: View[dict[str, Any]], indices: Indices, fields: Sequence[str] | None = ...) -> dict[str, Any]: ...
    @overload
    def read(self: Scalars, indices: Indices, fields: None = ...) -> NDArray[Any]: ...
    @overload
    def read(self, indices: Indices, fields: Sequence[str] | None = ...) -> Any: ...
    def read(self, indices: Indices, fields: Sequence[str] | None = None) -> Any:
        """Return many elements at once, in the structure of one element, with leaves stacked on a leading axis.

        Args:
            indices: integers, of which negative ones count from the end; or a mask with one bool for each record; or a
                slice.
            fields: keys of a dict element: only these are decoded and returned.

        Returns:
            Leaves of known shape as arrays ``[len(indices), *shape]``; bytes and str as object arrays
            ``[len(indices)]``; arrays with unknown dimensions as :class:`cachelayer.Ragged`; leaves that are None
            in some records of the version as :class:`cachelayer.Nullable`. The caller may change all of it.

        Raises:
            RecordIndexError: if there is no such record.
            ErasedRecordError: if one was erased.
            InvalidArgumentError: if a field does not exist, or a mask has the wrong length.
            InvalidTypeError: if the indices are neither integers nor bools.
        """
        return self._elements.batch(self._selection.take(indices), None if fields is None else _names(fields))

    # The last overload must be of one class with those before it: else a call with `**options` would be Any.
    @overload
    def stream(  # type: ignore[overload-overlap]
        self,
        global_batch_size: None = ...,
        *,
        remainder: Literal["drop", "keep"] | None = ...,
        **options: Unpack[StreamArguments],
    ) -> Stream[T]: ...
    @overload
    def stream(
        self, global_batch_size: int, *, remainder: Literal["pad"], **options: Unpack[StreamArguments]
    ) -> BatchStream[T, tuple[Any, NDArray[np.bool_]]]: ...
    @overload
    def stream(
        self: View[Untyped],
        global_batch_size: int,
        *,
        remainder: Literal["drop", "keep"] | None = ...,
        **options: Unpack[StreamArguments],
    ) -> BatchStream[T, Any]: ...
    @overload
    def stream(
        self: View[dict[str, Any]],
        global_batch_size: int,
        *,
        remainder: Literal["drop", "keep"] | None = ...,
        **options: Unpack[StreamArguments],
    ) -> BatchStream[T, dict[str, Any]]: ...
    @overload
    def stream(
        self: Scalars,
        global_batch_size: int,
        *,
        remainder: Literal["drop", "keep"] | None = ...,
        **options: Unpack[StreamArguments],
    ) -> BatchStream[T, NDArray[Any]]: ...
    @overload
    def stream(
        self,
        global_batch_size: int,
        *,
        remainder: Literal["drop", "keep"] | None = ...,
        **options: Unpack[StreamArguments],
    ) -> BatchStream[T, Any]: ...
    @overload
    def stream(
        self,
        global_batch_size: int | None,
        *,
        remainder: Literal["drop", "keep"] | None = ...,
        **options: Unpack[StreamArguments],
    ) -> BatchStream[Any, Any]: ...
    @takes_stream_options()
    def stream(self, global_batch_size: int | None = None, **options: Any) -> Stream[Any]:
        """Return the records as a sequence: the same for any number of shards, resumable at any position.

        Args:
            global_batch_size: the number of records of a step over all shards, which each get a share of them. None
                gives one element at a time.
            shuffle: True permutes all records exactly, differently in each epoch. ``"blocks"``, or a
                :class:`cachelayer.Blocks`, permutes blocks of about 1 MiB, and the records in a window of blocks: from
                an object store that takes a request for each block instead of each record. Each iterator then fetches
                blocks ahead and holds each until its last record is out: the windows of its shard (its share of
                about 1 GiB), 128 MiB more, and the blocks of the steps that are read ahead.
            seed: an integer in [0, 2**64), required with shuffle.
            reshuffle: False uses the same order in every epoch.
            num_epochs: number of epochs, counted from position 0; None for an endless stream.
            shard: (index, count), or an object with shard_index and shard_count.
            remainder: what to do with a shorter last step of an epoch: "keep", the default, distributes it, so shards
                may get different numbers of records; "drop" skips it; "pad" fills it up and gives ``(batch, mask)``
                at every step.
            start: the global position to begin at: a number of records, over all epochs and all shards.
            prefetch: the number of batches, or elements, to read ahead in the background. Memory holds these and one
                more. Several small ones are read at once, up to 4 MB for each of this number. Of batches of at most
                16 MB that no function changes, there are twice as many. Large elements of local files that are in
                memory are copied when they are asked for, which is quicker. 0 reads nothing ahead.
            buckets: a leaf and ascending bounds, such as ``("tokens", [128, 512, 2048])``, or a
                :class:`cachelayer.Buckets`. The records of each batch have similar lengths: above one bound, and at
                most the next, to which they are padded, as by :meth:`cachelayer.DataRef.padded`. Each bucket has a
                shorter last step of its own. Only the starts of steps are valid positions then, and a state holds the
                batch size.

        Raises:
            InvalidArgumentError: if an argument is invalid; the message names it and the fix.
            InvalidTypeError: if an argument is of the wrong type.
        """
        return self._stream(global_batch_size, options)

    def _stream(self, global_batch_size: int | None, options: Mapping[str, Any]) -> Stream[Any]:
        checked = make_options(len(self), global_batch_size, self._elements.record_nbytes, **options)
        return stream_of(StepReader(self._records, checked))


def _names(fields: Any) -> Sequence[str]:
    """Return the keys in a list or an iterator of the user, which is read only once."""
    if isinstance(fields, (str, bytes)) or not isinstance(fields, Iterable):
        raise InvalidArgumentError(f"fields={fields!r}: pass a tuple of keys")
    names = tuple(fields)
    for name in names:
        if not isinstance(name, str):
            raise InvalidTypeError(
                f"fields={names!r} holds {name!r} of type {type(name).__name__}: pass a tuple of keys"
            )
    return names
