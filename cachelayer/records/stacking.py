"""Batches of elements that functions of ``stream.map`` returned.

Leaves that a function replaced are stacked. Leaves that it passed on unchanged are batched as in the dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, cast

import numpy as np

from cachelayer.errors import CacheLayerError, ElementError
from cachelayer.locks import cached_property
from cachelayer.records import tree
from cachelayer.records.codec import Codec, codec_for
from cachelayer.records.infer import leaf_spec
from cachelayer.records.spec import ArraySpec, LeafSpec, SparseSpec
from cachelayer.records.tree import Tree
from cachelayer.records.values import Ragged, Sparse

UNLIKE = "elements of one structure, with leaves of one shape and dtype, from a function passed to map()"
DECLARE = "Pad them to one shape, or declare what varies or may be None: map(fn, element_spec=...)."

Stack = Callable[[str, Sequence[Any], int | None], Any]
# An object of these types belongs to one leaf of one element. Python shares small ints, short strings and the like.
_NULLABLE = "If the function may return None, declare the leaf as nullable, such as ArraySpec(..., nullable=True)."
_OWN = (np.ndarray, Ragged, Sparse)


class HasSpec(Protocol):
    """Records with an element spec."""

    @property
    def declared_spec(self) -> Tree | None:
        """The element spec that all records are known to have; None if it is only inferred from the first record."""


@dataclass(frozen=True, eq=False)
class Stacking:
    """Makes batches of elements of one spec, before or after functions change them.

    Args:
        source: the records; their spec is used if ``declared`` is None.
        declared: the spec that the user declared for the outputs of a function.
    """

    source: HasSpec
    declared: Tree | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Stacking, (self.source, self.declared)

    @cached_property
    def spec(self) -> Tree:
        known = self.source.declared_spec if self.declared is None else self.declared
        # Without a known spec there is no leaf that a function could pass on.
        return () if known is None else known

    @cached_property
    def _codec(self) -> Codec:
        return codec_for(self.spec)

    def conform(self, elements: Sequence[Any]) -> list[Any]:
        """Return elements converted to the dtypes of the spec, without any loss."""
        columns = self._codec.columns(elements)
        for (path, leaf), column in zip(tree.leaves(self.spec), columns, strict=True):
            # Columns take nulls that the spec does not allow: builds learn from them that a leaf may be None.
            if column.nulls is not None and not leaf.nullable:
                row = int(np.flatnonzero(column.nulls)[0])
                raise ElementError(leaf.describe(), "None", path=path, record=row, hint=_NULLABLE)
        return self._codec.elements(columns, len(elements))

    def collator(self, elements: Sequence[Any], kinds: dict[str, bool]) -> Callable[..., Any]:
        """Return a function that stacks elements to a batch after the user's functions have changed them.

        Its arguments are one or more of the changed elements, and the number of rows of the batch, by default one for
        each.

        Args:
            elements: elements of the spec, before functions change them.
            kinds: for each path of a leaf, whether functions pass it on unchanged; filled in by the first batch that
                shows it.
        """
        leaves = tree.leaves(self.spec)
        if all(is_plain(leaf) for _, leaf in leaves):
            return lambda made, rows=None: collate(made, _collected, rows)
        columns = zip(leaves, tree.flatten_rows(self.spec, elements), strict=True)
        return _Collator([(path, leaf, values) for (path, leaf), values in columns if not is_plain(leaf)], kinds)

    def joined(self, collators: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
        """Return a function that stacks elements of which each came through one of these collators, of one spec."""
        first = collators[0]
        parts = [each for each in collators if isinstance(each, _Collator)]
        return parts[0].joined(parts[1:]) if parts and len(collators) > 1 else first


class _Collator:
    """Stacks elements after functions have changed them.

    Args:
        unchanged: for each leaf whose batches are not plain arrays, its path, spec and values before the functions ran.
        kinds: for each path of a leaf, whether functions pass it on unchanged.
    """

    def __init__(self, unchanged: Sequence[tuple[str, LeafSpec, Sequence[Any]]], kinds: dict[str, bool]) -> None:
        # While the values are held, Python does not use their ids again.
        self._unchanged = unchanged
        self._kinds = kinds
        self._specs = {path: spec for path, spec, _ in unchanged}
        self._leaf_of_id = {
            id(value): (path, spec) for path, spec, values in unchanged for value in values if value is not None
        }

    def __call__(self, elements: Sequence[Any], rows: int | None = None) -> Any:
        return collate(elements, self._stacked, rows)

    def joined(self, others: Sequence[_Collator]) -> _Collator:
        """Return one for its elements and those of others."""
        parts = [part for each in (self, *others) for part in each._unchanged]
        return _Collator(parts, self._kinds)

    def _stacked(self, path: str, values: Sequence[Any], rows: int | None) -> Any:
        present = [value for value in values if value is not None]
        has_nulls = len(present) < len(values)
        passed_on = self._passed_on(path, present, has_nulls=has_nulls)
        if present:
            self._check_kind(path, passes_on=passed_on is not None)
        return _collected(path, values, rows) if passed_on is None else _batch(passed_on, values, rows)

    def _passed_on(self, path: str, present: Sequence[Any], *, has_nulls: bool) -> LeafSpec | None:
        """Return the spec of the leaf that these values come from unchanged; None if a function made one of them."""
        specs = set()
        for value in present:
            home, spec = self._leaf_of_id.get(id(value), (None, None))
            if spec is None or (home != path and not isinstance(value, _OWN)):
                return None
            specs.add(spec)
        if not present:
            specs = {self._specs[path]} if path in self._specs else set()
        if len(specs) != 1:
            return None
        spec = specs.pop()
        return spec if spec.nullable or not has_nulls else None

    def _check_kind(self, path: str, *, passes_on: bool) -> None:
        """Raise if functions pass on a leaf in one batch and replace it in another: batches would differ in type."""
        if self._kinds.setdefault(path, passes_on) != passes_on:
            here, before = ("passed on", "replaced") if passes_on else ("replaced", "passed on")
            raise ElementError(
                "a leaf that the function of map() passes on in all batches, or replaces in all batches",
                f"one that it {here} in this batch and {before} in an earlier one",
                path=path,
                hint=DECLARE,
            )


def _collected(path: str, values: Sequence[Any], rows: int | None) -> Any:
    """Return a batch of ragged or sparse values; NotImplemented for others."""
    for kind in (Ragged, Sparse):
        if all(isinstance(value, kind) for value in values):
            try:
                return _batch(_own_spec(values[0]), values, rows)
            except CacheLayerError as error:
                raise ElementError(UNLIKE, str(error), path=path, hint=DECLARE) from error
    return NotImplemented


def _own_spec(value: Any) -> LeafSpec:
    spec = leaf_spec(value)
    return SparseSpec(spec.dtype, (None,) * len(spec.shape)) if isinstance(spec, SparseSpec) else cast(LeafSpec, spec)


@lru_cache(256)
def _codec_of(spec: LeafSpec) -> Codec:
    return codec_for(spec)


def _batch(spec: LeafSpec, values: Sequence[Any], rows: int | None) -> Any:
    codec = _codec_of(spec)
    return codec.batch(codec.columns(values[:rows]))


def is_plain(leaf: LeafSpec) -> bool:
    """Return whether a batch of the leaf is always a plain array, or a list of strings."""
    if not isinstance(leaf, ArraySpec) or None in leaf.shape or leaf.nullable:
        return False
    return leaf.dtype.kind not in "SU" if isinstance(leaf.dtype, np.dtype) else not leaf.shape


def collate(elements: Sequence[Any], stack: Stack | None = None, rows: int | None = None) -> Any:
    """Return the batch of some elements: the same dicts, lists, tuples and namedtuples, with stacked leaves.

    Args:
        elements: one or more, of one structure; str and bytes become object arrays of shape ``[len(elements)]``.
        stack: called first for each leaf, with its path, its values and ``rows``; it returns the batch of the leaf, or
            NotImplemented to decline.
        rows: how many elements the batch has, counted from the first; None for all. Structure and shapes are checked on
            all elements.
    """
    return _collated(elements, "", stack, rows)


def _collated(elements: Sequence[Any], path: str, stack: Stack | None, rows: int | None) -> Any:
    first = elements[0]
    kinds = {type(element) for element in elements}
    if stack is not None and not any(issubclass(kind, (dict, list, tuple)) for kind in kinds):
        stacked = stack(path, elements, rows)
        if stacked is not NotImplemented:
            return stacked
    if isinstance(first, (dict, list, tuple)) or type(None) in kinds:
        sizes = {len(element) for element in elements} if first is not None and len(kinds) == 1 else {0}
        if len(kinds) > 1 or len(sizes) > 1:
            raise _differs(path, sorted(f"{type(element).__name__} {_size(element)}" for element in elements))
    if first is None:
        return None
    if isinstance(first, dict):
        if any(element.keys() != first.keys() for element in elements):
            raise _differs(path, sorted({str(sorted(map(str, element))) for element in elements}))
        return {
            key: _collated([element[key] for element in elements], f"{path}[{key!r}]", stack, rows) for key in first
        }
    if isinstance(first, (list, tuple)):
        names = [f".{field}" for field in first._fields] if hasattr(first, "_fields") else None
        steps = names or [f"[{place}]" for place in range(len(first))]
        columns = enumerate(steps)
        return _like(
            first, [_collated([e[place] for e in elements], path + step, stack, rows) for place, step in columns]
        )
    if isinstance(first, (str, bytes)):
        return _strings(elements, path)[:rows]
    return _stacked(elements, path)[:rows]


def _strings(elements: Sequence[Any], path: str) -> np.ndarray[Any, Any]:
    kinds = {type(element).__name__ for element in elements if not isinstance(element, type(elements[0]))}
    if kinds:
        raise _differs(path, sorted({type(elements[0]).__name__, *kinds}))
    return np.fromiter(elements, dtype=object, count=len(elements))


def _stacked(elements: Sequence[Any], path: str) -> np.ndarray[Any, Any]:
    try:
        arrays = [np.asarray(element) for element in elements]
    except (TypeError, ValueError, RuntimeError) as error:
        kinds = sorted({f"a {type(element).__name__}" for element in elements})
        raise _differs(path, [f"{' and '.join(kinds)}, which numpy cannot turn into arrays ({error})"]) from error
    kinds_of_arrays = {(array.shape, array.dtype) for array in arrays}
    if len(kinds_of_arrays) > 1:
        raise _differs(path, sorted(f"{dtype}{list(shape)}" for shape, dtype in kinds_of_arrays))
    if arrays[0].dtype == object:
        raise _differs(path, [f"a {type(elements[0]).__name__}, which is not an array, number, str or bytes"])
    return np.stack(arrays)


def _like(sequence: Any, children: list[Any]) -> Any:
    if isinstance(sequence, list):
        return children
    return type(sequence)(*children) if hasattr(sequence, "_fields") else tuple(children)


def _size(element: Any) -> str:
    return f"of {len(element)}" if isinstance(element, (dict, list, tuple)) else ""


def _differs(path: str, found: list[str]) -> ElementError:
    return ElementError(UNLIKE, " and ".join(dict.fromkeys(found)), path=path, hint=DECLARE)
