"""Trees: nested dicts, tuples, lists and namedtuples. They are taken apart into leaves, and packed again.

An element spec is a tree whose leaves are :class:`cachelayer.records.spec.LeafSpec`; a None in it stands for a value
that is always None::

    spec             {"image": ImageSpec(), "meta": NullableDict(url=ArraySpec(str))}
    leaves(spec)     [("['image']", ImageSpec()), ("['meta']['url']", ArraySpec(str))]

    flatten_rows     elements -> a list of values for each leaf      row_packer    such lists -> elements
    flatten_batch    a batch  -> the stacked values of each leaf     packer        such values -> a batch, or an element

A dict that is None has no leaves. In each of its leaves stands a mark instead, from which a packer makes the None
again: in an element a :class:`NullDict`, in a batch an :class:`OfNullableDict` around the values.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain, islice
from typing import Any

import numpy as np

from cachelayer.errors import ElementError, InvalidArgumentError, InvalidTypeError
from cachelayer.records.spec import LeafSpec, NullableDict, describe_leaf, takes_none
from cachelayer.records.values import BadValue, Nullable, NullDict, OfNullableDict

Tree = Any
LISTED = 12
"""How many names a message lists."""
_BUILTINS = frozenset({bool, int, float, complex, str, bytes, type(None)})


def builtin(value: Any) -> Any:
    """Return an instance of a subclass of Python's own types as an instance of the type itself.

    A member of a ``(str, Enum)`` is a text, though ``str()`` of it may be another text. Other values stay as they are.
    """
    if type(value) in _BUILTINS:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes):
        return bytes(memoryview(value))
    if isinstance(value, np.generic):
        return value
    numbers: tuple[Any, ...] = (int, float, complex)
    for kind in numbers:
        if isinstance(value, kind):
            return kind.__pos__(value)
    return value


def is_namedtuple(value: Any) -> bool:
    """Return whether the class of a value was made by ``collections.namedtuple`` or ``typing.NamedTuple``."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


@cache
def namedtuple_class(name: str, fields: tuple[str, ...]) -> type:
    """Return a namedtuple class that can be pickled: the same class for the same arguments."""
    try:
        base = namedtuple(name, fields)  # type: ignore[misc]
    except ValueError as error:
        raise InvalidArgumentError(f"{name!r} with fields {list(fields)} is not a valid namedtuple: {error}") from error

    def reduce(self: Any) -> tuple[Any, ...]:
        return _rebuild_namedtuple, (name, fields, tuple(self))

    return type(name, (base,), {"__slots__": (), "__reduce__": reduce, "__module__": __name__})


def _rebuild_namedtuple(name: str, fields: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return namedtuple_class(name, fields)(*values)


def leaves(spec: Tree) -> list[tuple[str, LeafSpec]]:
    """Return the leaves of an element spec with their paths, depth first."""
    pairs: list[tuple[str, LeafSpec]] = []
    _add_leaves(spec, "", pairs)
    return pairs


def _add_leaves(spec: Tree, path: str, pairs: list[tuple[str, LeafSpec]]) -> None:
    if isinstance(spec, LeafSpec):
        pairs.append((path, spec))
    else:
        for step, child in children(spec):
            _add_leaves(child, path + step, pairs)


def children(node: Tree) -> Iterator[tuple[str, Any]]:
    """Yield the step to each child of a node, such as ``['image']`` or ``[0]`` or ``.field``, and the child."""
    if node is None:
        return
    if isinstance(node, Mapping):
        for key, child in node.items():
            yield f"[{builtin(key)!r}]", child
    elif is_namedtuple(node):
        for field, child in zip(node._fields, node, strict=True):
            yield f".{field}", child
    elif isinstance(node, (tuple, list)):
        for index, child in enumerate(node):
            yield f"[{index}]", child
    else:
        raise InvalidTypeError(f"{type(node).__name__} is not part of an element spec")


def map_structure(tree: Tree, leaf: Callable[[str, Any], Any], path: str = "") -> Tree:
    """Return the tree with ``leaf(path, value)`` in place of each leaf.

    Everything but a dict, tuple, list or namedtuple is a leaf, also None. A namedtuple becomes one of the same name
    that can be pickled.
    """
    if isinstance(tree, Mapping):
        fields: dict[str, Any] = NullableDict() if type(tree) is NullableDict else {}
        for key, child in tree.items():
            name = key if type(key) is str else key_name(key, path)
            fields[name] = map_structure(child, leaf, f"{path}[{name!r}]")
        return fields
    if is_namedtuple(tree):
        cls = namedtuple_class(type(tree).__name__, tuple(tree._fields))
        return cls(*(map_structure(child, leaf, path + step) for step, child in children(tree)))
    if isinstance(tree, (tuple, list)):
        mapped = [map_structure(child, leaf, path + step) for step, child in children(tree)]
        return tuple(mapped) if isinstance(tree, tuple) else mapped
    return leaf(path, tree)


def key_name(key: Any, path: str) -> str:
    """Return a key of a dict as a str."""
    if not isinstance(key, str):
        raise ElementError("str keys", f"key {key!r} of type {type(key).__name__}", path=path)
    return str(builtin(key))


def leaf_title(path: str, whole: str = "the element") -> str:
    """Return the name in errors of the leaf at a path; ``whole`` for the empty path of an element that is a leaf."""
    return f"leaf {path}" if path else whole


def leaf_values(value: Tree) -> list[tuple[str, Any]]:
    """Return the leaves of any tree with their paths; None is a leaf too."""
    pairs: list[tuple[str, Any]] = []
    map_structure(value, lambda path, leaf: pairs.append((path, leaf)))
    return pairs


def flatten_like(spec: Tree, value: Any) -> list[Any]:
    """Return the values of an element in the order of ``leaves(spec)``; None for each leaf of a dict that is None."""
    return [None if type(leaf) is NullDict else leaf for leaf in flatten_batch(spec, value)]


def flatten_batch(spec: Tree, batch: Any) -> list[Any]:
    """Return the stacked values of a batch in the order of ``leaves(spec)``; or of an element, with marks of None."""
    out: list[Any] = []
    _flatten(spec, batch, out)
    return out


def flatten_rows(spec: Tree, rows: Sequence[Any]) -> list[list[Any]]:
    """Return a list of the values of all rows for each leaf, in the order of ``leaves(spec)``.

    Dicts may lack keys whose leaves may be None. The record of an ElementError is the index in ``rows``.
    """
    # Rows that have exactly the structure of the spec are split column by column, which is quick. For the others, what
    # may be lacking is filled in. What then still differs is found row by row.
    columns: list[list[Any]] = []
    if _split_rows(spec, list(rows), columns):
        return columns
    columns = []
    rows = [completed(spec, row) for row in rows]
    if _split_rows(spec, rows, columns):
        return columns
    flat = []
    for row, value in enumerate(rows):
        try:
            flat.append(flatten_batch(spec, value))
        except ElementError as error:
            raise error.at(record=row) from None
    return [[leaves[index] for leaves in flat] for index in range(len(leaves(spec)))]


def completed(spec: Tree, value: Any, *, fill: bool = False) -> Any:
    """Return an element with None for keys that its dicts lack, and a dict of lists for a list of dicts.

    A part that does not fit the spec stays as it is. With the spec ``{"a": x, "b": y}`` of which y may be None, ``{"a":
    1}`` becomes ``{"a": 1, "b": None}``, and ``[{"a": 1}, {"a": 2}]`` becomes ``{"a": [1, 2], "b": [None, None]}``.
    With ``fill``, any key may be lacking; else only keys that may be None.
    """
    if isinstance(spec, dict):
        fields = _fields_of(spec, value)
        if fields is None or not fields.keys() <= spec.keys():
            return value
        return {
            key: completed(child, fields.get(key), fill=fill)
            for key, child in spec.items()
            if key in fields or fill or _may_be_none(child)
        }
    is_structure = isinstance(spec, (tuple, list)) and isinstance(value, (tuple, list)) and len(spec) == len(value)
    if not is_structure:
        return value
    parts = [completed(child, part, fill=fill) for child, part in zip(spec, value, strict=True)]
    return type(value)(*parts) if is_namedtuple(value) else type(value)(parts)


def _may_be_none(spec: Tree) -> bool:
    return isinstance(spec, NullableDict) or all(leaf.nullable or takes_none(leaf) for _, leaf in leaves(spec))


def _fields_of(spec: Mapping[str, Tree], value: Any) -> Mapping[str, Any] | None:
    """Return the fields of a dict; or of a list of dicts, as a list of values for each field; else None."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, np.ndarray) and value.dtype == object:
        value = value.tolist()
    if not isinstance(value, (list, tuple)) or is_namedtuple(value):
        return None
    dicts = [_fields_of(spec, item) for item in value]
    known = [fields for fields in dicts if fields is not None]
    if len(known) < len(dicts):
        return None
    return {key: [fields.get(key) for fields in known] for key in dict.fromkeys(chain(spec, *known))}


def _split_rows(spec: Tree, rows: list[Any], columns: list[list[Any]]) -> bool:
    """Append the columns of rows, if all rows have exactly the structure of the spec; return whether they have."""
    if isinstance(spec, LeafSpec):
        columns.append(rows)
        return True
    kinds = set(map(type, rows))
    if is_namedtuple(spec):
        if len(kinds) > 1 or any(not is_namedtuple(row) or row._fields != spec._fields for row in rows[:1]):
            return False
    elif not kinds <= {dict if isinstance(spec, dict) else type(spec)}:
        return False
    if isinstance(spec, dict):
        keys = spec.keys()
        return all(row.keys() == keys for row in rows) and all(
            _split_rows(child, [row[key] for row in rows], columns) for key, child in spec.items()
        )
    if spec is None:
        return True
    return set(map(len, rows)) <= {len(spec)} and all(
        _split_rows(child, [row[index] for row in rows], columns) for index, child in enumerate(spec)
    )


def _flatten(spec: Tree, value: Any, out: list[Any], depth: int = 0) -> None:
    """Append the values of the leaves of an element, or of a part of one that has ``depth`` dicts around it."""
    if isinstance(spec, LeafSpec):
        out.append(value)
    elif isinstance(spec, dict):
        if isinstance(value, Nullable):
            rows: list[Any] = []
            _flatten(spec, value.values, rows, depth)
            out += [OfNullableDict(leaf, value.valid, depth) for leaf in rows]
            return
        if not isinstance(value, Mapping) or value.keys() != spec.keys():
            raise _structure_error(spec, value)
        for key, child in spec.items():
            # The path is built only while an error propagates, so that elements that fit cost nothing extra.
            try:
                _flatten_child(child, value[key], out, depth + 1)
            except ElementError as error:
                raise error.at(path=f"[{key!r}]{error.path}") from None
    elif spec is None:
        if value is not None:
            hint = "It was None in the first elements: say what it is with element_spec=."
            raise ElementError("None", describe(value), hint=hint)
    else:
        if is_namedtuple(spec):
            same_kind = is_namedtuple(value) and value._fields == spec._fields
        else:
            same_kind = isinstance(value, type(spec)) and not is_namedtuple(value)
        if not same_kind or len(value) != len(spec):
            raise _structure_error(spec, value)
        for (step, child), part in zip(children(spec), value, strict=True):
            try:
                _flatten_child(child, part, out, depth)
            except ElementError as error:
                raise error.at(path=step + error.path) from None


def _flatten_child(spec: Tree, value: Any, out: list[Any], depth: int) -> None:
    """Append the values of the leaves of a part; for a dict that is None, a mark for each leaf."""
    if value is None and isinstance(spec, dict) and leaves(spec):
        out += [NullDict(depth)] * len(leaves(spec))
    else:
        _flatten(spec, value, out, depth)


def _structure_error(spec: Tree, value: Any) -> ElementError:
    got = describe(value)
    if isinstance(spec, dict) and isinstance(value, Mapping) and max(len(spec), len(value)) > LISTED:
        missing = [name for name in spec if name not in value]
        others = [name for name in value if name not in spec]
        got = f"a dict with {len(value)} keys, without {listed(missing)}, with others: {listed(others)}"
    return ElementError(describe(spec), got, hint=_structure_hint(spec, value))


def _structure_hint(spec: Tree, value: Any) -> str:
    if isinstance(spec, dict) and isinstance(value, Mapping) and value.keys() < spec.keys():
        return (
            "A key may be missing if its leaf is declared nullable in element_spec=, as ArraySpec(..., nullable=True)."
        )
    if isinstance(spec, dict) and isinstance(value, (list, tuple)) and not is_namedtuple(value):
        return "Dicts in a list have the same keys, and are never None: else declare JsonSpec() in element_spec=."
    if isinstance(spec, list) and isinstance(value, list):
        return (
            "Lists of other things than numbers or texts of one kind are structure: for arrays of any length declare "
            "ArraySpec(dtype, (None,)) in element_spec=."
        )
    if isinstance(spec, (dict, list)) and isinstance(value, (Mapping, str, int, float)):
        return "If its structure differs from element to element, declare JsonSpec() in element_spec=."
    return ""


def describe(value: Any) -> str:
    """Return the structure of a value as text for an error message, such as ``a dict with keys 'a', 'b'``."""
    if isinstance(value, LeafSpec):
        return describe_leaf(value)
    if isinstance(value, Mapping):
        return f"a dict with keys {listed(value)}"
    if is_namedtuple(value):
        return f"a {type(value).__name__} with fields {listed(value._fields)}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype}{list(value.shape)}"
    text = " ".join(repr(value).split())
    if isinstance(value, BadValue):
        return text
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def listed(names: Iterable[Any]) -> str:
    """Return names for a message, of which only the first are shown if there are many."""
    shown = [repr(name) for name in names]
    return ", ".join(shown[:LISTED] + ["..."] * (len(shown) > LISTED)) or "none"


def packer(spec: Tree, depth: int = 0) -> Callable[[Iterator[Any]], Any]:
    """Return a function that packs the values of all leaves, in order, into an element, or if stacked a batch."""
    if isinstance(spec, LeafSpec):
        return next
    if spec is None:
        return lambda _: None
    if isinstance(spec, NullableDict) and leaves(spec):
        return partial(_packed_nullable, packer(dict(spec), depth), len(leaves(spec)), depth)
    packers = [packer(child, depth + isinstance(spec, dict)) for _, child in children(spec)]
    if isinstance(spec, dict):
        keys = list(spec)
        if all(isinstance(child, LeafSpec) for child in spec.values()):
            return lambda leaves: dict(zip(keys, leaves))  # noqa: B905
        return lambda leaves: {key: pack(leaves) for key, pack in zip(keys, packers, strict=True)}
    if is_namedtuple(spec):
        cls = type(spec)
        return lambda leaves: cls(*[pack(leaves) for pack in packers])
    if isinstance(spec, tuple):
        return lambda leaves: tuple([pack(leaves) for pack in packers])
    return lambda leaves: [pack(leaves) for pack in packers]


def _packed_nullable(pack: Callable[[Iterator[Any]], Any], count: int, depth: int, leaves: Iterator[Any]) -> Any:
    """Return a dict that may be None, or in a batch the Nullable of a dict, from marks in its ``count`` leaves."""
    values = list(islice(leaves, count))
    first = values[0]
    if type(first) is NullDict and first.depth <= depth:
        return None
    if type(first) is OfNullableDict and first.depth == depth:
        return Nullable(pack(iter([leaf.values for leaf in values])), first.valid)
    return pack(iter(values))


def row_packer(spec: Tree) -> Callable[[list[list[Any]], int], list[Any]]:
    """Return a function of a list of values for each leaf, and of the number of rows, that packs the elements."""
    if isinstance(spec, LeafSpec):
        return lambda columns, _: columns[0]
    if isinstance(spec, dict) and spec and all(isinstance(child, LeafSpec) for child in spec.values()):
        keys = list(spec)
        return lambda columns, _: [dict(zip(keys, row)) for row in zip(*columns)]  # noqa: B905
    pack = packer(spec)
    if not leaves(spec):
        return lambda _, rows: [pack(iter(())) for _ in range(rows)]
    return lambda columns, _: [pack(iter(row)) for row in zip(*columns)]  # noqa: B905
