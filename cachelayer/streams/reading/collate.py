"""Stack elements of one structure to a batch: each leaf gets a leading axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cachelayer.errors import ElementError

UNLIKE = "elements of one structure, with leaves of one shape and dtype, from a function passed to map()"
DECLARE = "Pad them to one shape, or declare what varies or may be None: map(fn, element_spec=...)."

Stack = Callable[[str, Sequence[Any], int | None], Any]


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
