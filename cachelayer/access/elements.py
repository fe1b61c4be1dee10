"""Elements by number: what views show, and how streams, builds and adapters read them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.stacking import Stacking
from cachelayer.errors import InvalidArgumentError
from cachelayer.locks import cached_property
from cachelayer.protocols import BlockHolder, Failed, ReadingCost
from cachelayer.records import tree
from cachelayer.records.infer import declared
from cachelayer.records.record_buffers import Records
from cachelayer.records.selection import Selection
from cachelayer.records.tree import Tree

Read = Callable[[NDArray[np.int64]], Records]
"""Reads the records of some numbers from blocks in memory instead of those that elements are made of."""


class Elements(ABC):
    """Elements by number, which views select from: those of a version, of several, or made of others.

    Thread-safe and picklable.
    """

    @property
    @abstractmethod
    def title(self) -> str:
        """How a view of them is shown: its class, and what it was made of."""

    @property
    @abstractmethod
    def digest(self) -> str:
        """The digest of the elements and their numbers, in hexadecimal."""

    @property
    def original_digest(self) -> str:
        """The digest that they had before records were erased; the digest, if they had other numbers then."""
        return self.digest

    @property
    def erased(self) -> NDArray[np.int64]:
        """The numbers of those that were erased, ascending."""
        return np.empty(0, np.int64)

    @property
    @abstractmethod
    def element_spec(self) -> Tree:
        """The spec of the elements."""

    @property
    def declared_spec(self) -> Tree | None:
        """The spec that all elements are known to have; None if it is only inferred from the first."""
        return self.element_spec

    @property
    @abstractmethod
    def metadata(self) -> Mapping[str, Any]:
        """The metadata of the version that they come from; see :attr:`cachelayer.access.view.View.metadata`."""

    @property
    @abstractmethod
    def record_nbytes(self) -> int:
        """Approximate bytes of a stored record.

        The default sizes of a shuffle in blocks follow from it, so it depends on what is stored alone: not on where it
        lies, nor on how much of it is read.
        """

    @property
    def read_nbytes(self) -> int:
        """Approximate bytes that are read of a record."""
        return self.record_nbytes

    @property
    @abstractmethod
    def records_per_read(self) -> int:
        """Number of elements that a stream with smaller batches should read at once."""

    @property
    def reading_cost(self) -> ReadingCost:
        """What is known in advance about the cost of reading an element."""
        return "stored"

    @property
    def segments(self) -> tuple[int, ...]:
        """The number of elements of each segment: of the first build, and of each append."""
        return (len(self),)

    def stored(self) -> Self | None:
        """Return the same elements undecoded, images and audio as file bytes; None if they are not stored."""
        return None

    @abstractmethod
    def __len__(self) -> int: ...

    def element(self, number: int) -> Any:
        return self.elements(np.array([number]))[0]

    @abstractmethod
    def elements(self, numbers: NDArray[np.int64], failed: Failed | None = None) -> list[Any]:
        """Return the elements of these numbers, each in [0, len).

        Args:
            numbers: the numbers.
            failed: gets the error of each row that does not decode, whose element is anything; None to raise it.
        """

    @abstractmethod
    def batch(self, numbers: NDArray[np.int64], names: Sequence[str] | None = None) -> Any:
        """Return the elements stacked on a leading axis; with ``names``, only these keys of a dict element."""

    def batches(self, batches: Sequence[NDArray[np.int64]]) -> Iterable[Any]:
        """Return a batch for each array of numbers, all read at once."""
        return (self.batch(numbers) for numbers in batches)

    def block_holder(self, selection: Selection, share: float) -> BlockHolder[Any] | None:  # noqa: ARG002
        """Return what fetches blocks of elements; None if they are best read where they lie.

        Args:
            selection: the elements that the view has.
            share: the fraction of them that is going to be fetched.
        """
        return None

    def announce(self, numbers: NDArray[np.int64]) -> bool:  # noqa: ARG002
        """Start to load elements from a local disk if they are not in memory; return whether any was not."""
        return False


@dataclass(frozen=True, repr=False, eq=False)
class ViewRecords:
    """Some elements, in an order of their own: :class:`cachelayer.protocols.RandomAccess`.

    Args:
        base: the elements.
        selection: which of them, in order.
        named_digest, named_original: their digest and the one before records were erased, if they do not follow from
            these.
    """

    base: Elements
    selection: Selection
    named_digest: str | None = None
    named_original: str | None = None

    @cached_property
    def digest(self) -> str:
        return self.named_digest or self.selection.digest(self.base.digest, len(self.base))

    @cached_property
    def original_digest(self) -> str:
        base = self.base
        if base.original_digest == base.digest:
            return self.digest
        return self.named_original or self.selection.digest(base.original_digest, len(base))

    @property
    def element_spec(self) -> Tree:
        return self.base.element_spec

    @property
    def declared_spec(self) -> Tree | None:
        return self.base.declared_spec

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.base.metadata

    @property
    def record_nbytes(self) -> int:
        return self.base.record_nbytes

    @property
    def read_nbytes(self) -> int:
        return self.base.read_nbytes

    @property
    def records_per_read(self) -> int:
        return self.base.records_per_read

    @property
    def reading_cost(self) -> ReadingCost:
        return self.base.reading_cost

    def __len__(self) -> int:
        return len(self.selection)

    def element(self, index: int) -> Any:
        return self.base.element(self.selection.number(index))

    def __getitems__(self, indices: Sequence[int] | NDArray[Any]) -> list[Any]:
        return self.base.elements(self.selection.take(indices))

    def elements(self, indices: NDArray[np.int64], failed: Failed | None) -> list[Any]:
        return self.base.elements(self.selection.take(indices), failed)

    def read(self, indices: NDArray[np.int64]) -> Any:
        return self.base.batch(self.selection.take(indices))

    def read_batches(self, batches: Sequence[NDArray[np.int64]]) -> Iterable[Any]:
        return self.base.batches([self.selection.numbers_of(indices) for indices in batches])

    def block_holder(self, share: float) -> BlockHolder[Any] | None:
        return self.base.block_holder(self.selection, share)

    def announce(self, indices: NDArray[np.int64]) -> bool:
        return self.base.announce(self.selection.take(indices))

    def stacking(self, element_spec: Tree | None = None) -> Stacking:
        """Return what makes batches of elements that functions have changed.

        Args:
            element_spec: the element spec that the user declares for the changed elements; None if there is none.
        """
        return Stacking(self, None if element_spec is None else declared(element_spec))

    def stored(self) -> ViewRecords | None:
        base = self.base.stored()
        return None if base is None else ViewRecords(base, self.selection)

    def __records__(self) -> ViewRecords:
        return self

    def __repr__(self) -> str:
        return f"{self.base.title}, records={len(self)}, digest='sha256:{self.digest}')"


def chosen_leaves(spec: Tree, names: Sequence[str]) -> set[int]:
    """Return the indices of the leaves below these keys of a dict."""
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
