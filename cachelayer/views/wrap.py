"""Views of any object with a length and items, which is not cached: :func:`wrap`, and the dataset that it shows."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from cachelayer.datasets.dataset import BaseDataset, one_by_one
from cachelayer.datasets.dataset_view import DatasetView
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, SourceError
from cachelayer.protocols import Attempted, Digests, Held, Info, Origins, Sources, T, sources_of_records
from cachelayer.records.codec import codec_for
from cachelayer.records.infer import declared, infer_spec
from cachelayer.specs import tree
from cachelayer.streams.reading.failures import attempt, error_text
from cachelayer.support.arguments import explains_options
from cachelayer.support.locks import ProcessLock
from cachelayer.support.memory import Ints
from cachelayer.views.view import View

T_co = TypeVar("T_co", covariant=True)


class Sized(Protocol[T_co]):
    """Anything with a length and items."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> T_co: ...


@dataclass(eq=False)
class WrappedItems(BaseDataset):
    """The items of an object as elements. Threads read the object one at a time."""

    obj: Any
    """The object. If it has ``__getitems__``, that reads several items."""
    identity: str
    """A text that identifies the contents in digests and states."""
    declared: tree.Tree | None = None
    """The spec of the items; None to infer it from them."""
    _lock: ProcessLock = field(default_factory=ProcessLock, init=False, repr=False)
    _records: int = field(init=False)

    def __post_init__(self) -> None:
        self._records = len(self.obj)

    @property
    def origins(self) -> Origins:
        digest = hashlib.sha256(f"wrap:{self._records}:{self.identity}".encode()).hexdigest()
        return Origins(Digests.of(digest), (self._records,))

    def __len__(self) -> int:
        return self._records

    @property
    def info(self) -> Info:
        # Sizes are unknown before items are read. This guess leads to blocks of a few hundred items.
        return Info(
            name=self.identity,
            title=f"Wrapped({self.identity!r})",
            metadata={},
            record_nbytes=4096,
            read_nbytes=4096,
            records_per_read=1024,
            reading_cost="foreign",
            is_declared=self.declared is not None,
        )

    @property
    def element_spec(self) -> tree.Tree:
        """The declared spec; if there is none, that of item 0, and of later ones where it is None."""
        if self.declared is not None or not self._records:
            return self.declared
        return infer_spec(map(self.element, range(self._records)), first=1)

    def element(self, number: int) -> Any:
        return self._call(lambda: _copied(self.obj[number]), [number])

    def elements(self, numbers: Ints, held: Held | None = None) -> list[Any]:  # noqa: ARG002
        if not hasattr(self.obj, "__getitems__"):
            return [self.element(number) for number in numbers.tolist()]
        wanted = numbers.tolist()
        items: list[Any] = self._call(lambda: [_copied(item) for item in self.obj.__getitems__(wanted)], wanted)
        if len(items) != len(numbers):
            raise SourceError(f"{type(self.obj).__name__}.__getitems__ returned {len(items)} items for {len(numbers)}")
        return items

    def try_elements(self, numbers: Ints, held: Held | None = None, *, stops: bool) -> Attempted:  # noqa: ARG002
        if not hasattr(self.obj, "__getitems__"):
            return one_by_one(self.element, numbers, stops=stops)
        elements, together = attempt(self.elements, numbers)
        if together is None:
            return Attempted(elements, {}, {})
        # The items are read once more, one by one, to find the item that the error belongs to.
        attempted = one_by_one(lambda number: self.elements(np.array([number]))[0], numbers, stops=stops)
        errors = attempted.failed | attempted.ended
        if not errors:
            # Each item is read alone, but not all together: the error belongs to no item.
            return attempted._replace(ended={0: together})
        first = errors[min(errors)]
        if error_text(first) != error_text(together):
            first.add_note(f"reading these items together had raised {error_text(together)}")
        return attempted

    def sources(self, numbers: Ints) -> Sources:
        return sources_of_records(self.identity, numbers)

    def _call(self, read: Callable[[], Any], numbers: Sequence[int]) -> Any:
        """Return what ``read`` returns.

        An IndexError or a StopIteration of the object becomes a SourceError, for it would end loops of callers.
        """
        try:
            with self._lock.of_process():
                return read()
        except (IndexError, StopIteration) as error:
            raise SourceError(f"{self._items(numbers)} is not there: {type(error).__name__}: {error}") from error
        except Exception as error:
            error.add_note(f"raised for {self._items(numbers)}")
            raise

    def _items(self, numbers: Sequence[int]) -> str:
        listed = ", ".join(map(str, numbers[:8])) + ", ..." * (len(numbers) > 8)
        what = f"item {listed}" if len(numbers) == 1 else f"one of the items {listed}"
        return f"{what} of the {type(self.obj).__name__} wrapped as {self.identity!r}, which had {self._records} items,"

    def batch(self, numbers: Ints, held: Held | None = None) -> Any:  # noqa: ARG002
        elements = self.elements(numbers)
        spec = self.declared
        if not spec:
            spec = infer_spec(elements, first=1) if elements else self.element_spec
        codec = codec_for(spec)
        columns = codec.columns(elements)
        # Leaves that are None in some of the elements are marked, so that the batch says so.
        return codec_for(codec.schema.marked(codec.null_bits_in(columns))).batch(columns)

    def with_declared_spec(self) -> WrappedItems:
        """Return the same items, all of which are known to have the spec of item 0."""
        # Each item is checked against the spec of item 0 when it is read.
        return self if self.declared is not None else WrappedItems(self.obj, self.identity, self.element_spec)


def _copied(item: Any) -> Any:
    """Return a copy of an item: the object may return the same item again, or use its memory for another."""
    return tree.map_structure(item, _copied_leaf)


def _copied_leaf(_path: str, leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    # Tensors, Ragged and similar objects.
    return copy.deepcopy(leaf) if hasattr(leaf, "__array__") and not isinstance(leaf, np.generic) else leaf


@explains_options
def wrap(obj: Sized[T], *, identity: str, element_spec: tree.Tree | None = None) -> View[T]:
    """Return an object's items with the streams, order, shards and state of a DataRef, without caching them.

    Args:
        obj: anything with ``__len__`` and ``__getitem__``. Several threads read it, one at a time.
        identity: a text that names the contents. A state fits every object with the same identity and length, so
            change the identity when the contents change.
        element_spec: the structure of an item, with leaf specs, dtypes or objects with shape and dtype. By default,
            the items of a batch decide how it is stacked. Pass a spec if shapes differ between items, or if a leaf is
            None in some items.

    Raises:
        InvalidTypeError: if the object has no length or no items.
        InvalidArgumentError: if the identity is not a text.

    Examples:
        >>> squares = cachelayer.wrap([number**2 for number in range(6)], identity="squares")
        >>> squares[3], squares.read([1, 2]).tolist()
        (9, [1, 4])
        >>> [batch.tolist() for batch in squares.stream(4, shuffle=True, seed=0, remainder="drop")]
        [[9, 0, 25, 1]]
        >>> squares.digest == cachelayer.wrap(range(6), identity="squares").digest  # the identity and the length
        True
    """
    name = type(obj).__name__
    if not hasattr(obj, "__len__") or not hasattr(obj, "__getitem__"):
        raise InvalidTypeError(f"a {name} has no __len__ and __getitem__: it cannot be wrapped")
    if isinstance(obj, Mapping):
        raise InvalidTypeError(f"a {name} has keys instead of items 0, 1, ...: wrap a list of its values, or of dicts")
    if not isinstance(identity, str) or not identity or not _is_unicode(identity):
        raise InvalidArgumentError(f"identity {identity!r}: pass a text that names the contents")
    try:
        len(obj)
    except Exception as error:
        raise InvalidTypeError(f"len() of a {name} failed: {type(error).__name__}: {error}") from error
    spec = None if element_spec is None else declared(element_spec)
    return View(DatasetView.all(WrappedItems(obj, identity, spec)))


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
