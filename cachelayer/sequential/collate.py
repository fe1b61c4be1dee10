"""Elements of one structure as a batch: leaves stacked on a leading axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cachelayer.errors import ElementError


def collate(elements: Sequence[Any]) -> Any:
    """A batch of elements: dicts, lists, tuples and namedtuples as they are, with stacked leaves.

    Args:
        elements: one or more, of one structure; str and bytes become object arrays of shape ``[len(elements)]``.

    Raises:
        ElementError: where structures, shapes or dtypes differ; it names the leaf.
    """
    return _collated(elements, "")


def first_rows(batch: Any, rows: int) -> Any:
    """The first rows of a batch."""
    return _mapped(batch, lambda leaf: leaf[:rows])


def _collated(elements: Sequence[Any], path: str) -> Any:
    first = elements[0]
    kinds = {type(element) for element in elements}
    if isinstance(first, (dict, list, tuple)) or first is None:
        sizes = {len(element) for element in elements} if first is not None and len(kinds) == 1 else {0}
        if len(kinds) > 1 or len(sizes) > 1:
            raise _differs(path, sorted(f"{type(element).__name__} {_size(element)}" for element in elements))
    if first is None:
        return None
    if isinstance(first, dict):
        if any(element.keys() != first.keys() for element in elements):
            raise _differs(path, sorted({str(sorted(map(str, element))) for element in elements}))
        return {key: _collated([element[key] for element in elements], f"{path}[{key!r}]") for key in first}
    if isinstance(first, (list, tuple)):
        children = [_collated([element[i] for element in elements], f"{path}[{i}]") for i in range(len(first))]
        return _like(first, children)
    if isinstance(first, (str, bytes)):
        return np.fromiter(elements, dtype=object, count=len(elements))
    arrays = [np.asarray(element) for element in elements]
    kinds_of_arrays = {(array.shape, array.dtype) for array in arrays}
    if len(kinds_of_arrays) > 1:
        raise _differs(path, sorted(f"{dtype}{list(shape)}" for shape, dtype in kinds_of_arrays))
    if arrays[0].dtype == object:
        raise _differs(path, [f"a {type(first).__name__}, which is no array, number, str or bytes"])
    return np.stack(arrays)


def _mapped(batch: Any, fn: Callable[[Any], Any]) -> Any:
    if batch is None:
        return None
    if isinstance(batch, dict):
        return {key: _mapped(child, fn) for key, child in batch.items()}
    if isinstance(batch, (list, tuple)):
        return _like(batch, [_mapped(child, fn) for child in batch])
    return fn(batch)


def _like(sequence: Any, children: list[Any]) -> Any:
    if isinstance(sequence, list):
        return children
    return type(sequence)(*children) if hasattr(sequence, "_fields") else tuple(children)


def _size(element: Any) -> str:
    return f"of {len(element)}" if isinstance(element, (dict, list, tuple)) else ""


def _differs(path: str, found: list[str]) -> ElementError:
    return ElementError(
        "elements of one structure, with leaves of one shape and dtype, from a function passed to map()",
        " and ".join(dict.fromkeys(found)),
        path=path,
        hint="Make them alike, or use map_batches().",
    )
