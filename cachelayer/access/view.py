"""What can be done with records that are read by number, wherever they come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, Self, SupportsIndex, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.split import split
from cachelayer.access.stacking import Stacking
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.locks import cached_property
from cachelayer.protocols import ReadingCost, T, records_of
from cachelayer.records.infer import declared
from cachelayer.records.selection import Selection
from cachelayer.records.tree import Tree
from cachelayer.streams.step_reader import StepReader
from cachelayer.streams.stream import Stream
from cachelayer.streams.stream_options import StreamArguments, make_options, takes_stream_options


class Base(Protocol):
    """The records that views show. Safe to use from threads; picklable."""

    @property
    def digest(self) -> str:
        """Identity of the records, in hexadecimal."""

    @property
    def element_spec(self) -> Tree:
        """The spec of the elements."""

    def __len__(self) -> int: ...

    @property
    def record_nbytes(self) -> int:
        """About the bytes of a record."""

    @property
    def read_together(self) -> int:
        """How many records, in batches of fewer, had best be read at once."""

    @property
    def reading_cost(self) -> ReadingCost:
        """What is known beforehand of the cost of a record."""

    @property
    def segments(self) -> tuple[int, ...]:
        """Numbers of records that came to it one after another: what is drawn of one does not depend on later ones."""

    def element(self, number: int) -> Any:
        """One element."""

    def elements(self, numbers: NDArray[np.int64]) -> list[Any]:
        """Elements of these numbers, all within the base."""

    def batch(self, numbers: NDArray[np.int64], names: Sequence[str] | None) -> Any:
        """The same, with leaves stacked on a leading axis; of a dict only the keys in ``names``."""

    def batches(self, parts: Sequence[NDArray[np.int64]]) -> Iterable[Any]:
        """The batches of several sets of numbers, read at once."""


class View(ABC, Generic[T]):
    """Records in an order of their own: a whole base, or a part of it. Slicing copies nothing."""

    def __init__(self, base: Base, selection: Selection | None = None) -> None:
        self._base = base
        self._selection = Selection.all(len(base)) if selection is None else selection

    @abstractmethod
    def _with_selection(self, selection: Selection) -> Self:
        """The same records, shown otherwise."""

    @property
    def element_spec(self) -> Tree:
        """The structure of an element, with :class:`cachelayer.ArraySpec` and the like as leaves."""
        return self._base.element_spec

    @property
    def _declared_spec(self) -> Tree | None:
        """The element spec that all records are known to have; None if only the first of them tells."""
        return self.element_spec

    def _stored(self) -> View[Any] | None:
        """Return the records as they are stored, images and sounds as their files; None if they are not stored."""
        return None

    def __records__(self) -> ViewRecords:
        return ViewRecords(self)

    @cached_property
    def digest(self) -> str:
        """SHA-256 that identifies the records and their numbers, in hexadecimal."""
        return self._selection.digest(self._base.digest, len(self._base))

    def __len__(self) -> int:
        return len(self._selection)

    @overload
    def __getitem__(self, index: SupportsIndex) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: Any) -> Any:
        """One element, or a view of a part.

        Raises:
            RecordIndexError: where there is no such record; it is an IndexError.
        """
        if isinstance(index, slice):
            return self._with_selection(self._selection.slice(index))
        return self._base.element(self._selection.number(index))

    def select(self, indices: Sequence[int] | NDArray[Any] | slice) -> Self:
        """A view of some records, in the order of their indices.

        Args:
            indices: integers, of which negative ones count from the end, and one may stand there more than once; or a
                mask of one bool a record; or a slice.

        Raises:
            RecordIndexError: where there is no such record.
            InvalidArgumentError: where a mask has another length.
            InvalidTypeError: where they are neither integers nor bools.
        """
        return self._with_selection(self._selection.select(indices))

    def split(self, shares: Mapping[str, float], *, seed: int) -> dict[str, Self]:
        """Views of parts that hold each record once, drawn at random and stable.

        Each segment of records that came to the dataset at once is drawn by itself, so no record moves from one part to
        another in a version that was made by appending. Within a part records keep their order.

        Args:
            shares: the share of each part; they sum to 1.
            seed: an integer in [0, 2**64); with the shares it decides the parts.

        Raises:
            InvalidArgumentError: where shares or seed cannot be, or a record stands in this view more than once.
        """
        if self._selection.has_repeats:
            raise InvalidArgumentError("this view has records more than once, which would come into several parts")
        parts = split(self._selection, self._base.segments, shares, seed)
        return {name: self._with_selection(part) for name, part in parts.items()}

    def __iter__(self) -> Iterator[T]:
        return iter(self.stream())

    def __getitems__(self, indices: Sequence[int] | NDArray[Any]) -> list[T]:
        """The elements of these indices, in a list. Each is the caller's own.

        Args:
            indices: integers, of which negative ones count from the end; or a mask of one bool a record.
        """
        return self._base.elements(self._selection.take(indices))

    def read(self, indices: Sequence[int] | NDArray[Any] | slice, fields: Sequence[str] | None = None) -> Any:
        """Many elements at once: the element's structure, with leaves stacked on a leading axis.

        Args:
            indices: integers, of which negative ones count from the end; or a mask of one bool a record; or a slice.
            fields: keys of a dict element: the others are neither read nor returned.

        Returns:
            Leaves of known shape as arrays ``[len(indices), *shape]``; bytes and str as object arrays
            ``[len(indices)]``; arrays with unknown dimensions as :class:`cachelayer.Ragged`; leaves that are None
            somewhere in the version as :class:`cachelayer.Nullable`. All of it is the caller's own.

        Raises:
            RecordIndexError: where there is no such record.
            InvalidArgumentError: where a field does not exist, or a mask has another length.
            InvalidTypeError: where the indices are neither integers nor bools.
        """
        return self._base.batch(self._selection.take(indices), None if fields is None else _names(fields))

    @overload
    def stream(
        self, global_batch_size: int, *, remainder: Literal["pad"], **options: Unpack[StreamArguments]
    ) -> Stream[tuple[Any, NDArray[np.bool_]]]: ...
    @overload
    def stream(
        self,
        global_batch_size: None = ...,
        *,
        remainder: Literal["drop", "keep"] | None = ...,
        **options: Unpack[StreamArguments],
    ) -> Stream[T]: ...
    @overload
    def stream(
        self,
        global_batch_size: int | None,
        *,
        remainder: Literal["drop", "keep"] | None = ...,
        **options: Unpack[StreamArguments],
    ) -> Stream[Any]: ...
    @takes_stream_options()
    def stream(self, global_batch_size: int | None = None, **options: Any) -> Stream[Any]:
        """The records as a sequence, the same for any number of shards, resumable at any place.

        Args:
            global_batch_size: records of a step over all shards; each shard gets batches of its share. None gives one
                element at a time.
            shuffle: permute all records exactly, anew in each epoch.
            seed: an integer in [0, 2**64), required with shuffle.
            reshuffle: False keeps the same order in every epoch.
            num_epochs: epochs from position 0 on; None for no end.
            shard: (index, count), or an object with shard_index and shard_count.
            remainder: what becomes of a shorter last step of an epoch: "keep", the default, shares it out, so that
                shards may get different numbers of records; "drop" skips it; "pad" fills it up and gives
                ``(batch, mask)`` at every step.
            start: a global position in records, over all epochs and all shards.
            prefetch: batches, or elements, that are read ahead in the background. These and one more are held in
                memory; several small ones are read at once, up to 4 MB for each that is asked for. 0 reads none ahead.

        Raises:
            InvalidArgumentError: where an argument cannot be; the message names it and the fix.
            InvalidTypeError: where an argument is of the wrong type.
        """
        checked = make_options(len(self), global_batch_size, **options)
        return Stream(StepReader(records_of(self), checked))


@dataclass(frozen=True, repr=False)
class ViewRecords:
    """The records of a view, as streams, builds and adapters read them: :class:`cachelayer.protocols.RandomAccess`.

    Args:
        view: the view.
        named: their digest, if it is not that of the view.
    """

    view: View[Any]
    named: str | None = None

    @property
    def digest(self) -> str:
        return self.view.digest if self.named is None else self.named

    @property
    def element_spec(self) -> Tree:
        return self.view.element_spec

    @property
    def declared_spec(self) -> Tree | None:
        return self.view._declared_spec

    @property
    def metadata(self) -> Mapping[str, Any]:
        return getattr(self.view, "metadata", {})

    @property
    def record_nbytes(self) -> int:
        return self.view._base.record_nbytes

    @property
    def read_together(self) -> int:
        return self.view._base.read_together

    @property
    def reading_cost(self) -> ReadingCost:
        return self.view._base.reading_cost

    def __len__(self) -> int:
        return len(self.view)

    def __getitems__(self, indices: NDArray[np.int64]) -> list[Any]:
        return self.view.__getitems__(indices)

    def read(self, indices: NDArray[np.int64]) -> Any:
        return self.view.read(indices)

    def read_batches(self, batches: Sequence[NDArray[np.int64]]) -> Iterable[Any]:
        selection = self.view._selection
        return self.view._base.batches([selection.take(indices) for indices in batches])

    def stacking(self, element_spec: Tree | None = None) -> Stacking:
        """Return how elements that functions were applied to become batches.

        Args:
            element_spec: that of the elements, as a user wrote it, if it is not that of the records.

        Raises:
            InvalidArgumentError: if it is no element spec.
        """
        return Stacking(self, None if element_spec is None else declared(element_spec))

    def stored(self) -> View[Any] | None:
        return self.view._stored()

    def __repr__(self) -> str:
        return repr(self.view)


def _names(fields: Any) -> Sequence[str]:
    """Return the keys that a user handed in, of which an iterator is gone through once."""
    if isinstance(fields, (str, bytes)) or not isinstance(fields, Iterable):
        raise InvalidArgumentError(f"fields={fields!r}: pass a tuple of keys")
    names = tuple(fields)
    for name in names:
        if not isinstance(name, str):
            raise InvalidTypeError(
                f"fields={names!r} hold {name!r} of type {type(name).__name__}: pass a tuple of keys"
            )
    return names
