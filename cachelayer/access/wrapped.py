"""Any object with a length and items, with the streams, order and state of a DataRef, uncached."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.records import chosen_leaves
from cachelayer.access.selection import Selection
from cachelayer.access.view import View
from cachelayer.codec import codec_for
from cachelayer.elements import tree
from cachelayer.elements.infer import declared, from_element, from_elements
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, SourceError
from cachelayer.locks import ProcessLock
from cachelayer.protocols import ReadingCost, T

T_co = TypeVar("T_co", covariant=True)


class Sized(Protocol[T_co]):
    """Anything with a length and items."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> T_co: ...


class WrappedBase:
    """An object's items as records.

    Args:
        obj: the object; ``__getitems__`` is used where it has it.
        identity: what stands for its contents in digests and states.
        declared: the spec of its items; None to see it from them.
    """

    def __init__(self, obj: Any, identity: str, declared: tree.Tree | None = None) -> None:
        self._obj = obj
        self._declared = declared
        self._lock = ProcessLock()
        self.identity = identity
        self._records = len(obj)
        self.digest = hashlib.sha256(f"wrap:{self._records}:{identity}".encode()).hexdigest()

    def __len__(self) -> int:
        return self._records

    # Unknown without reading; a guess that makes blocks of a few hundred items.
    record_nbytes = 4096
    read_together = 1024
    reading_cost: ReadingCost = "foreign"

    @property
    def segments(self) -> tuple[int, ...]:
        return (self._records,)

    @property
    def element_spec(self) -> tree.Tree:
        """The spec that was declared, else that of item 0."""
        if self._declared is not None or not self._records:
            return self._declared
        return from_element(self.element(0))

    def element(self, number: int) -> Any:
        with self._lock:
            return _own(self._obj[number])

    def elements(self, numbers: NDArray[np.int64]) -> list[Any]:
        if not hasattr(self._obj, "__getitems__"):
            return [self.element(number) for number in numbers.tolist()]
        with self._lock:
            items = list(self._obj.__getitems__(numbers.tolist()))
        if len(items) != len(numbers):
            raise SourceError(f"{type(self._obj).__name__}.__getitems__ gave {len(items)} items for {len(numbers)}")
        return [_own(item) for item in items]

    def batches(self, parts: Sequence[NDArray[np.int64]]) -> Iterator[Any]:
        return (self.batch(part, None) for part in parts)

    def batch(self, numbers: NDArray[np.int64], names: Sequence[str] | None) -> Any:
        elements = self.elements(numbers)
        spec = self._declared or (from_elements(elements) if elements else self.element_spec)
        codec = codec_for(spec)
        batch = codec.batch(codec.columns(elements))
        if names is None:
            return batch
        chosen_leaves(spec, names)
        return {name: batch[name] for name in spec if name in names}


class WrappedRef(View[T], Generic[T]):
    """What :func:`cachelayer.wrap` gives: a DataRef's interface over any object."""

    _base: WrappedBase

    def _with_selection(self, selection: Selection) -> Self:
        return type(self)(self._base, selection)

    def __repr__(self) -> str:
        return f"WrappedRef({self._base.identity!r}, records={len(self)}, digest='sha256:{self.digest}')"


def _own(item: Any) -> Any:
    """An item that its receiver may change: the object may hand out the same one again."""
    return tree.map_structure(item, lambda _, leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf)


def wrap(obj: Sized[T], *, identity: str, element_spec: tree.Tree | None = None) -> WrappedRef[T]:
    """An object's items with the streams, order, shards and state of a DataRef, without caching them.

    Args:
        obj: anything with ``__len__`` and ``__getitem__``; read from several threads, but by one at a time.
        identity: names the contents: states are exchanged between objects of one identity and length, so change it
            when the contents change.
        element_spec: the structure of an item with leaf specs, dtypes or objects with shape and dtype; by default each
            batch is stacked as its items are. Needed where shapes differ, or where something is None in some items.

    Raises:
        InvalidTypeError: where the object has no length or no items.
        InvalidArgumentError: where the identity is no text.
    """
    if not hasattr(obj, "__len__") or not hasattr(obj, "__getitem__"):
        raise InvalidTypeError(f"a {type(obj).__name__} has no __len__ and __getitem__: it cannot be wrapped")
    if not isinstance(identity, str) or not identity:
        raise InvalidArgumentError(f"identity {identity!r}: pass a text that names the contents")
    spec = None if element_spec is None else declared(element_spec)
    return WrappedRef(WrappedBase(obj, identity, spec))
