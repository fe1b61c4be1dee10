"""Show an element as text for people, or as JSON for scripts."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from cachelayer.cli.pictures import Picture
from cachelayer.drawing.class_names import Names, name_of
from cachelayer.drawing.leaf_text import FIRST, TEXT, first_rows, leaf_text, plain_scalar
from cachelayer.drawing.pixels import is_picture
from cachelayer.records import dtypes, tree
from cachelayer.records.values import Ragged, Sparse

# The limit for scripts, in values or bytes.
_WHOLE_IN_JSON = 1000


class ElementView:
    """An element in the terminal: a line for each leaf, and images as pictures if there is colour.

    Args:
        element: an element as ``ref[i]`` returns it.
        names: the class names of leaves that are labels, by path.
    """

    def __init__(self, element: Any, names: Names | None = None) -> None:
        self._leaves = tree.leaf_values(element)
        self._names = names or {}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        has_colour = console.color_system is not None
        shown = Table.grid(padding=(0, 2))
        shown.add_column(style="cyan", overflow="fold", ratio=None)
        shown.add_column(overflow="fold")
        for path, value in self._leaves:
            name = name_of(value, self._names[path]) if path in self._names else ""
            cell: RenderableType = Text(f"{leaf_text(value)}  {leaf_text(name)}" if name else leaf_text(value))
            if has_colour and is_picture(value):
                cell = Picture(value)
            if path:
                shown.add_row(Text(path), cell)
            else:
                shown.add_row(cell)
        yield shown


def element_json(element: Any) -> Any:
    """Convert an element to a value that JSON can hold.

    Dicts and namedtuples are objects; lists, tuples and arrays are lists; NaN and the infinities are the strings
    ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``, which Python's ``float`` reads. Bytes are
    ``{"nbytes": ..., "base64": ...}``. Arrays, strings and bytes of more than 1,000 values are shortened to their
    first few values, with dtype and shape, or the length.
    """
    if isinstance(element, Mapping):
        return {_printable(key): element_json(child) for key, child in element.items()}
    if tree.is_namedtuple(element):
        return {name: element_json(child) for name, child in zip(element._fields, element, strict=True)}
    if isinstance(element, (tuple, list)):
        return [element_json(child) for child in element]
    return _leaf_json(element)


def _leaf_json(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, bytes):
        whole = len(value) <= _WHOLE_IN_JSON
        content = {"base64": base64.b64encode(value).decode()} if whole else {"first": repr(value[:FIRST])}
        return {"nbytes": len(value), **content}
    if isinstance(value, str):
        whole = len(value) <= _WHOLE_IN_JSON
        return _printable(value) if whole else {"characters": len(value), "first": _printable(value[:TEXT])}
    if isinstance(value, Ragged):
        whole = len(value) + value.flat_values.size <= _WHOLE_IN_JSON
        first = [_leaf_json(row) for row in (value if whole else first_rows(value))]
        return first if whole else {"rows": len(value), "first": first}
    if isinstance(value, Sparse):
        count = len(value.values) if len(value.values) <= _WHOLE_IN_JSON else FIRST
        more = {} if count == len(value.values) else {"count": len(value.values)}
        entries = {"indices": value.indices[:count].tolist(), "values": _leaf_json(value.values[:count])}
        return {"dense_shape": value.dense_shape.tolist(), **more, **entries}
    array = np.asarray(value)
    if array.size <= _WHOLE_IN_JSON:
        return _list_json(array)
    name = "strings" if array.dtype == object else dtypes.to_name(array.dtype)
    return {"dtype": name, "shape": list(array.shape), "first": _list_json(array.reshape(-1)[:FIRST])}


def _list_json(array: NDArray[Any]) -> Any:
    if array.ndim:
        return [_list_json(array[place, ...]) for place in range(len(array))]
    value: Any = array[()]
    if isinstance(value, (str, bytes)):
        return _leaf_json(str(value) if isinstance(value, str) else bytes(value))
    plain = plain_scalar(array)
    if isinstance(plain, complex):
        return [_float_json(plain.real), _float_json(plain.imag)]
    return _float_json(plain) if isinstance(plain, float) else plain


def _float_json(number: float) -> float | str:
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _printable(text: str) -> str:
    # No encoding has half a surrogate pair.
    return text.encode("utf-8", "backslashreplace").decode()
