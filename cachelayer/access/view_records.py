"""The records of a view, as streams, builds and adapters read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.block_holder import ViewBlocks
from cachelayer.access.record_base import RecordBase
from cachelayer.access.stacking import Stacking
from cachelayer.protocols import BlockHolder, Failed, ReadingCost
from cachelayer.records.infer import declared
from cachelayer.records.selection import Selection
from cachelayer.records.tree import Tree

if TYPE_CHECKING:
    from cachelayer.access.view import View


@runtime_checkable
class HasBlocks(Protocol):
    """A base of views that is made of the records of another, and knows how to fetch blocks of them."""

    def block_holder(self, selection: Selection, share: float) -> BlockHolder[Any] | None:
        """Return what fetches blocks of the elements of a view; None if they are best read one by one.

        Args:
            selection: the elements that the view has.
            share: the fraction of them that is going to be fetched.
        """


@dataclass(frozen=True, repr=False)
class ViewRecords:
    """The records of a view, as streams, builds and adapters read them: :class:`cachelayer.protocols.RandomAccess`.

    Args:
        view: the view.
        named_digest: their digest, if it is not that of the view.
    """

    view: View[Any]
    named_digest: str | None = None

    @property
    def digest(self) -> str:
        return self.view.digest if self.named_digest is None else self.named_digest

    @property
    def element_spec(self) -> Tree:
        return self.view.element_spec

    @property
    def declared_spec(self) -> Tree | None:
        return self.view._declared_spec

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.view._source_metadata

    @property
    def record_nbytes(self) -> int:
        return self.view._base.record_nbytes

    @property
    def read_nbytes(self) -> int:
        return self.view._read_nbytes

    @property
    def records_per_read(self) -> int:
        return self.view._base.records_per_read

    @property
    def reading_cost(self) -> ReadingCost:
        return self.view._base.reading_cost

    def __len__(self) -> int:
        return len(self.view)

    def __getitems__(self, indices: NDArray[np.int64]) -> list[Any]:
        return self.view.__getitems__(indices)

    def elements(self, indices: NDArray[np.int64], failed: Failed) -> list[Any]:
        return self.view._elements(indices, failed)

    def read(self, indices: NDArray[np.int64]) -> Any:
        return self.view.read(indices)

    def read_batches(self, batches: Sequence[NDArray[np.int64]]) -> Iterable[Any]:
        selection = self.view._selection
        return self.view._base.batches([selection.numbers_of(indices) for indices in batches])

    def block_holder(self, share: float) -> BlockHolder[Any] | None:
        base = self.view._base
        if isinstance(base, HasBlocks):
            return base.block_holder(self.view._selection, share)
        if not isinstance(base, RecordBase) or not base.is_fetched:
            return None
        return ViewBlocks(base, self.view._selection, share)

    def announce(self, indices: NDArray[np.int64]) -> bool:
        base = self.view._base
        return isinstance(base, RecordBase) and base.announce(self.view._selection.take(indices))

    def alone(self, indices: NDArray[np.int64]) -> Callable[[int], Any] | None:
        view, base = self.view, self.view._base
        are_quick = isinstance(base, RecordBase) and base.are_quick_alone(view._selection.take(indices))
        return view.__getitem__ if are_quick else None

    def stacking(self, element_spec: Tree | None = None) -> Stacking:
        """Return what makes batches of elements that functions have changed.

        Args:
            element_spec: the element spec that the user declares for the changed elements; None if there is none.

        Raises:
            InvalidArgumentError: if it is not an element spec.
        """
        return Stacking(self, None if element_spec is None else declared(element_spec))

    def stored(self) -> View[Any] | None:
        return self.view._stored()

    def __repr__(self) -> str:
        return repr(self.view)
