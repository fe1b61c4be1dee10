"""Format leaves, their paths, class names, numbers and times as texts for people."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.specs import dtypes, tree
from cachelayer.specs.spec import LeafSpec, NullableDict, describe_leaf
from cachelayer.specs.values import NoArray, Nullable, Ragged, Sparse

_MOST_VALUES = 16
"""Arrays of up to so many values are shown in full."""
FIRST = 8
"""The values that are shown of longer arrays."""
TEXT = 200


def leaf_text(value: Any) -> str:
    """Format a leaf in one line: a short one in full, a long one by type, shape and first values."""
    if value is None:
        return "None"
    if isinstance(value, bytes):
        return f"{len(value):,} bytes {_clipped(repr(value[:TEXT]), len(value) > TEXT)}"
    if isinstance(value, str):
        return _clipped(repr(value[:TEXT]), len(value) > TEXT)
    if isinstance(value, (dict, list)):
        text = json.dumps(value, ensure_ascii=False)
        return _clipped(text[:TEXT], len(text) > TEXT)
    if isinstance(value, Ragged):
        rows = ", ".join(leaf_text(value[row]) for row in range(min(len(value), FIRST)))
        return f"ragged, {counted(len(value), 'row')}: {_clipped(rows, len(value) > FIRST)}"
    if isinstance(value, Nullable):
        return _array_text(value.values, value.valid)
    if isinstance(value, Sparse):
        places = [tuple(place) for place in value.indices[:FIRST].tolist()]
        entries = ", ".join(f"{at}: {_scalar(one)}" for at, one in zip(places, value.values[:FIRST], strict=True))
        shape = list(value.dense_shape.tolist())
        return f"sparse {shape}, {counted(len(value.values), 'value')}: {_clipped(entries, len(value.values) > FIRST)}"
    return _array_text(np.asarray(value))


def _array_text(array: NDArray[Any], valid: Any = True) -> str:
    """Format an array whose values may be null where they are not valid."""
    valid = np.broadcast_to(valid, array.shape)
    if array.ndim == 0:
        return _nested(array, valid)
    name = "strings" if array.dtype == object else dtypes.to_name(array.dtype)
    kind = f"{name}[{', '.join(map(str, array.shape))}]"
    if array.size <= _MOST_VALUES:
        return f"{kind} {_nested(array, valid)}" if array.size else kind
    first = map(_nested, array.reshape(-1)[:FIRST], valid.reshape(-1)[:FIRST])
    return f"{kind} {_clipped(' '.join(first), is_clipped=True)}"


def _nested(array: Any, valid: Any) -> str:
    if not np.ndim(valid):
        if not valid:
            return "None"
        return _scalar(array[()] if isinstance(array, np.ndarray) else array)
    return "[" + " ".join(map(_nested, array, valid)) + "]"


def _scalar(value: Any) -> str:
    if isinstance(value, (str, bytes)):
        return _clipped(repr(value[: TEXT // 4]), len(value) > TEXT // 4)
    plain = dtypes.plain_scalar(np.asarray(value))
    if isinstance(plain, str):
        return date_text(plain)
    return f"{plain:.6g}" if isinstance(plain, float) else str(plain)


def date_text(text: str) -> str:
    """Format a date without the time if that is midnight, and without decimals that are zero."""
    day, _, time = text.partition("T")
    if not time:
        return text
    time = time.rstrip("0").rstrip(".") if "." in time else time
    return f"{day} {time}" if time.strip("0:") else day


def number_text(value: Any) -> str:
    """Format a number with four significant digits and commas; a text is a date."""
    if isinstance(value, str):
        return date_text(value)
    if isinstance(value, bool) or value is None:
        return "-" if value is None else str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if value == 0 or not 1e-4 <= abs(value) < 1e12:
        return f"{value:.4g}"
    digits = max(0, 3 - math.floor(math.log10(abs(value))))
    shown = f"{value:,.{digits}f}"
    return shown.rstrip("0").rstrip(".") if digits else shown


def _clipped(text: str, is_clipped: bool) -> str:
    return f"{text} …" if is_clipped else text


def counted(number: int, noun: str) -> str:
    """Format a number with its noun: ``60,000 records``, ``1 shard``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


_STEP = re.compile(r"""\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]|\[(\d+)\]|\.(\w+)""")


def shown_path(path: str) -> str:
    """Return the path of a leaf with slashes, as ``ref.fields`` takes it: ``meta/url`` for ``['meta']['url']``."""
    return "/".join(next(filter(None, steps), "") for steps in _STEP.findall(path)) or path or "element"


def spec_rows(spec: Any, name: str = "element", depth: int = 0) -> Iterator[tuple[int, str, str]]:
    """Yield the depth, the name and the spec of each node of an element spec, each before its children."""
    if spec is None or isinstance(spec, LeafSpec):
        yield depth, name, "None" if spec is None else describe_leaf(spec) + " or None" * spec.nullable
        return
    yield depth, name, "dict or None" if isinstance(spec, NullableDict) else type(spec).__name__
    for step, child in tree.children(spec):
        yield from spec_rows(child, step[2:-2] if step.startswith(("['", '["')) else step, depth + 1)


Names = Mapping[str, list[str]]


def class_names(metadata: Mapping[str, Any]) -> Names:
    """Return the class names of each leaf that is a label, by its path.

    Anybody may have written the metadata: values that are no lists of names are ignored.
    """
    names_of = {"['label']": metadata.get("classes")}
    tfds = metadata.get("tfds")
    if isinstance(tfds, Mapping) and isinstance(tfds.get("class_names"), Mapping):
        names_of |= tfds["class_names"]
    names_of |= dict(_labels(metadata.get("huggingface_features"), ""))
    return {path: names for path, names in names_of.items() if isinstance(names, list) and {*map(type, names)} <= {str}}


def _labels(features: Any, path: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(features, Mapping):
        return
    if features.get("_type") == "ClassLabel":
        yield path, features.get("names")
        return
    for name, feature in features.items():
        yield from _labels(feature, f"{path}[{name!r}]")


def named(names: Names, path: str, value: Any) -> str:
    """Return the class name of a label; an empty text if it has none."""
    classes = names.get(path, [])
    if not classes or isinstance(value, NoArray):
        return ""
    array = np.asarray(value)
    is_class = array.ndim == 0 and array.dtype.kind in "iu" and 0 <= array < len(classes)
    return classes[int(array)] if is_class else ""


def ago(seconds: float) -> str:
    """Format a time in the past, such as ``5 min ago``."""
    return f"{duration(seconds)} ago"


def duration(seconds: float) -> str:
    """Format a time, such as ``5 min``."""
    for unit, of in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * of:
            return f"{seconds / of:.0f} {unit}"
    return f"{seconds:.0f} s"
