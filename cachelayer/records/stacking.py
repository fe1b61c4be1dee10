"""Batches of elements that functions of ``stream.map`` returned.

A field that a function makes is stacked. A field that it passes on, the same object at the same path or a container of
its own elsewhere, is batched as in the dataset::

    spec                 {"tokens": ArraySpec(int32, (None,)), "label": ArraySpec(int64)}
    function             lambda element: {"ids": element["tokens"], "label": element["label"] + 1}
    batch of it          {"ids": a Ragged, as "tokens" has in the dataset, "label": an array}
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np

from cachelayer.errors import CacheLayerError, ElementError
from cachelayer.protocols import Dataset, declared_spec
from cachelayer.records.codec import Codec, codec_for
from cachelayer.records.value_conversion import leaf_spec
from cachelayer.specs import tree
from cachelayer.specs.spec import ArraySpec, JsonSpec, LeafSpec, NullableDict, SparseSpec, VideoSpec
from cachelayer.specs.tree import Tree
from cachelayer.specs.values import Nullable, Ragged, Sparse
from cachelayer.support.locks import PickledByFields, cached_property

UNLIKE = "elements of one structure, with leaves of one shape and dtype, from a function passed to map()"
DECLARE = "Pad them to one shape, or declare what varies or may be None: map(fn, element_spec=...)."

_NULLABLE = (
    "If the function may return None, declare it: ArraySpec(..., nullable=True), nullable_values=True for values in "
    "arrays, NullableDict for a dict."
)
# An object of these types belongs to one leaf of one element, so a function that returns it elsewhere has moved it.
# Objects of other types, such as small ints and short strings, are shared by many places.
_OF_ONE_LEAF = (np.ndarray, Nullable, Ragged, Sparse, dict, list)


@dataclass(frozen=True, eq=False)
class Stacking(PickledByFields):
    """Makes batches of elements of one spec, before or after functions change them: a Stacker of the protocols."""

    source: Dataset[Any]
    """The records, whose declared spec counts if ``declared`` is None."""
    declared: Tree | None = None
    """The spec that the user declared for the outputs of a function."""

    @cached_property
    def spec(self) -> Tree:
        known = declared_spec(self.source) if self.declared is None else self.declared
        # Without a known spec there is no leaf that a function could pass on.
        return () if known is None else known

    @cached_property
    def _codec(self) -> Codec:
        return codec_for(self.spec)

    def conform(self, elements: Sequence[Any]) -> list[Any]:
        """Return elements converted to the dtypes of the spec, without any loss."""
        columns = self._codec.columns(elements)
        # Columns take any nulls, because builds learn from them what may be None. Here the spec is fixed.
        allowed = self._codec.schema.marks
        for number, are_null in self._codec.rows_by_null_bit(columns).items():
            if number not in allowed and are_null.any():
                node = self._codec.schema.node_of_bit(number)
                row = int(are_null.argmax())
                raise ElementError(tree.describe(node.spec), "None", path=node.path, record=row, hint=_NULLABLE)
        return self._codec.elements(columns)

    @cached_property
    def varying(self) -> Mapping[str, Tree]:
        return dict(_varying("", self.spec))

    def passing(self, element: Any) -> Callable[[Any], Mapping[str, Tree]]:
        schema = self._codec.schema
        leaves = zip(schema.leaves, schema.flatten(element), strict=True)
        inputs = [(leaf.path, leaf.spec, value) for leaf, value in leaves if not has_plain_batches(leaf.spec)]
        inputs += _nullable_dicts(self.spec, element, "")
        # By the identity of a value, which no other has as long as it is kept beside: its specs by path.
        specs_of: dict[int, tuple[Any, dict[str, Tree]]] = {}
        for path, spec, value in inputs:
            specs_of.setdefault(id(value), (value, {}))[1][path] = spec
        everywhere = {key: _common(specs.values()) for key, (_, specs) in specs_of.items()}

        def passed_on(output: Any, path: str = "") -> Mapping[str, Tree]:
            key = id(output)
            spec = specs_of[key][1].get(path) if key in specs_of else None
            if spec is None and (output is None or isinstance(output, _OF_ONE_LEAF)):
                spec = everywhere.get(key)
            if spec is not None:
                return {path: spec}
            spec_of_path: dict[str, Tree] = {}
            if isinstance(output, (dict, list, tuple)):
                for step, child in tree.children(output):
                    spec_of_path |= passed_on(child, path + step)
            return spec_of_path

        return passed_on

    def collate(self, elements: Sequence[Any], passed_on: Mapping[str, Tree], rows: int | None = None) -> Any:
        return _collated(elements, passed_on, rows, "")


def _varying(path: str, spec: Tree) -> Iterator[tuple[str, Tree]]:
    """Yield the path and the spec of each outermost part of elements whose batches are no plain arrays."""
    if isinstance(spec, NullableDict) or (isinstance(spec, LeafSpec) and not has_plain_batches(spec)):
        yield path, spec
    elif not isinstance(spec, LeafSpec):
        for step, child in tree.children(spec):
            yield from _varying(path + step, child)


def _nullable_dicts(spec: Tree, value: Any, path: str) -> Iterator[tuple[str, Tree, Any]]:
    """Yield the path, the spec and the value of each dict of an element that may be None."""
    if isinstance(spec, NullableDict):
        yield path, spec, value
    if value is None or isinstance(spec, LeafSpec) or spec is None:
        return
    for (step, child), key in zip(tree.children(spec), spec if isinstance(spec, dict) else count(), strict=False):
        yield from _nullable_dicts(child, value[key], path + step)


def _common(specs: Collection[Tree]) -> Tree:
    """Return the spec that all of some are; None if they differ."""
    first = next(iter(specs))
    return first if all(spec == first for spec in specs) else None


def _own_spec(value: Any) -> LeafSpec:
    spec = leaf_spec(value)
    return SparseSpec(spec.dtype, (None,) * len(spec.shape)) if isinstance(spec, SparseSpec) else spec


@lru_cache(256)
def _codec_of(spec: LeafSpec) -> Codec:
    return codec_for(spec)


def _batch(spec: Tree, values: Sequence[Any]) -> Any:
    if isinstance(spec, JsonSpec):
        # Records store JSON as text, but these values are not stored.
        return list(values)
    if isinstance(spec, VideoSpec):
        # They were read, and passed on.
        files = np.fromiter(values, object)
        valid = np.array([file is not None for file in files], np.bool_)
        return Nullable(files, valid) if spec.nullable else files
    if isinstance(spec, NullableDict):
        # Only a dict below the root of an element may be None.
        of_key = codec_for({"": spec})
        return of_key.batch(of_key.columns([{"": value} for value in values]))[""]
    codec = _codec_of(spec)
    return codec.batch(codec.columns(values))


def has_plain_batches(leaf: LeafSpec) -> bool:
    """Return whether a batch of the leaf is always a plain array, of objects for strings."""
    if not isinstance(leaf, ArraySpec) or None in leaf.shape or leaf.nullable or leaf.nullable_values:
        return False
    return leaf.dtype.kind not in "SU" if isinstance(leaf.dtype, np.dtype) else not leaf.shape


def _collated(values: Sequence[Any], passed_on: Mapping[str, Tree], rows: int | None, path: str) -> Any:
    """Return the batch of the values of some elements at a path, or of the first rows of them: all are checked.

    ``[{"x": 1, "y": "a"}, {"x": 2, "y": "b"}]`` gives ``{"x": [1, 2], "y": ["a", "b"]}``, as arrays.
    """
    spec = passed_on.get(path)
    if spec is not None:
        try:
            return _batch(spec, values[:rows])
        except ElementError as error:
            raise ElementError(error.expected, error.got, path=path, hint=DECLARE) from error
    first = values[0]
    kinds = set(map(type, values))
    if kinds in ({Ragged}, {Sparse}):
        try:
            return _batch(_own_spec(first), values[:rows])
        except CacheLayerError as error:
            raise ElementError(UNLIKE, str(error), path=path, hint=DECLARE) from error
    has_parts = isinstance(first, (dict, list, tuple))
    differ = len(kinds) > 1 and (has_parts or type(None) in kinds)
    if differ or (has_parts and len(set(map(len, values))) > 1):
        raise _differs(path, sorted(f"{type(value).__name__} {_size(value)}" for value in values))
    if first is None:
        return None
    if isinstance(first, dict):
        # Dicts mostly have their keys in one order.
        if len(set(map(tuple, values))) > 1 and any(value.keys() != first.keys() for value in values):
            raise _differs(path, sorted({str(sorted(map(str, value))) for value in values}))
        columns = [list(map(itemgetter(key), values)) for key in first]
    elif has_parts:
        columns = list(map(list, zip(*values, strict=True)))
    elif isinstance(first, (str, bytes)):
        return _strings(values, path)[:rows]
    else:
        return _stacked(values, kinds, path)[:rows]
    steps = [step for step, _ in tree.children(first)]
    parts = zip(columns, steps, strict=True)
    batches = [_collated(column, passed_on, rows, path + step) for column, step in parts]
    return dict(zip(first, batches, strict=True)) if isinstance(first, dict) else _like(first, batches)


def _strings(elements: Sequence[Any], path: str) -> np.ndarray[Any, Any]:
    kinds = {type(element).__name__ for element in elements if not isinstance(element, type(elements[0]))}
    if kinds:
        raise _differs(path, sorted({type(elements[0]).__name__, *kinds}))
    return np.fromiter(elements, dtype=object, count=len(elements))


def _stacked(elements: Sequence[Any], kinds: set[type], path: str) -> np.ndarray[Any, Any]:
    kind: Any = type(elements[0])
    if len(kinds) == 1 and issubclass(kind, (int, float, np.number)):
        numbers = np.array(elements)
        # Large integers of Python have other dtypes than small ones.
        if numbers.dtype == np.dtype(kind):
            return numbers
    try:
        arrays = elements if kinds == {np.ndarray} else [np.asarray(element) for element in elements]
    except (TypeError, ValueError, RuntimeError) as error:
        names = sorted({f"a {kind.__name__}" for kind in kinds})
        raise _differs(path, [f"{' and '.join(names)}, which numpy cannot turn into arrays ({error})"]) from error
    kinds_of_arrays = set(map(attrgetter("shape", "dtype"), arrays))
    if len(kinds_of_arrays) > 1:
        raise _differs(path, sorted(f"{dtype}{list(shape)}" for shape, dtype in kinds_of_arrays))
    if arrays[0].dtype == object:
        raise _differs(path, [f"a {kind.__name__}, which is not an array, number, str or bytes"])
    # To join arrays is quicker than to stack them.
    shape = arrays[0].shape
    return np.concatenate(arrays).reshape(len(arrays), *shape) if shape else np.stack(arrays)


def _like(sequence: Any, children: list[Any]) -> Any:
    if isinstance(sequence, list):
        return children
    return type(sequence)(*children) if hasattr(sequence, "_fields") else tuple(children)


def _size(element: Any) -> str:
    return f"of {len(element)}" if isinstance(element, (dict, list, tuple)) else ""


def _differs(path: str, descriptions: list[str]) -> ElementError:
    return ElementError(UNLIKE, " and ".join(dict.fromkeys(descriptions)), path=path, hint=DECLARE)
