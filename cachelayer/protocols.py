"""The boundary between the two layers: below it lies where records are, above it in which order they come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# "stored": about its bytes. "decoded": it may be many times larger in memory. "foreign": the user's object makes it.
ReadingCost = Literal["stored", "decoded", "foreign"]


class Stacking(Protocol):
    """How elements of one spec become batches. Picklable."""

    @property
    def spec(self) -> Any:
        """The spec of the elements."""

    def conform(self, elements: Sequence[Any], /) -> Sequence[Any]:
        """Return elements as the spec has them; an ElementError has the index of the element as its record."""

    def collator(self, elements: Sequence[Any], kinds: dict[str, bool], /) -> Callable[..., Any]:
        """Return a function that makes a batch of what functions make of these elements, or of some of them.

        Its arguments are the elements, one or more, and how many of their rows the batch has; by default all.

        Args:
            elements: elements of the spec.
            kinds: at each path, whether functions pass the leaf on; filled in by the first batch that tells.
        """


class RandomAccess(Protocol[T_co]):
    """Records that can be read in any order. Safe to use from threads."""

    @property
    def digest(self) -> str:
        """Identity of the records and their numbers, in hexadecimal."""

    @property
    def element_spec(self) -> Any:
        """The structure of an element, with leaf specs in it."""

    @property
    def declared_spec(self) -> Any:
        """The element spec that all records are known to have; None if only the first of them tells."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What is kept with the records beside them."""

    @property
    def record_nbytes(self) -> int:
        """About the bytes of a record."""

    @property
    def read_together(self) -> int:
        """How many records, in batches of fewer, a stream had best read at once."""

    @property
    def reading_cost(self) -> ReadingCost:
        """What is known beforehand of the cost of a record."""

    def __len__(self) -> int:
        """Number of records."""

    def __getitems__(self, indices: NDArray[np.int64], /) -> Sequence[T_co]:
        """The elements of these record numbers; each is the caller's own."""

    def read(self, indices: NDArray[np.int64], /) -> Any:
        """The elements of these record numbers, stacked on a leading axis; the caller's own."""

    def stacking(self, element_spec: Any = None, /) -> Stacking:
        """How elements become batches: those of the records, or those that were declared to have this spec."""

    def read_batches(self, batches: Sequence[NDArray[np.int64]], /) -> Iterable[Any]:
        """What ``read`` gives for each of some batches, at once; batches may keep each other's memory."""

    def stored(self) -> HasRecords[Any] | None:
        """Return the records as they are stored, images and sounds as their files; None if they are not stored."""


class HasRecords(Protocol[T_co]):
    """An object for users whose records streams, builds and adapters read: a ref, or a view of one."""

    def __records__(self) -> RandomAccess[T_co]:
        """Return the records."""


def has_records(obj: object) -> TypeGuard[HasRecords[Any]]:
    """Return whether an object hands out records: one of ours, for nobody else has that method."""
    return hasattr(type(obj), "__records__")


def records_of(obj: HasRecords[T]) -> RandomAccess[T]:
    """Return the records of a ref or a view."""
    return obj.__records__()
