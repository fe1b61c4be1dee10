"""Schemas: element specs, compiled into the nodes of their structure.

Leaves are numbered from 0, depth first. A record has a null bit for each leaf, for each dict below the root that has
leaves, and for each leaf that has values within it, in this order::

    element      {"meta": {"url": "u7", "tags": [1, 2]}, "label": 3}
    leaves       0: meta/url    1: meta/tags    2: label
    null bits    0: meta/url    1: meta/tags    2: label    3: meta    4: values of meta/tags

A spec says which of them are ever set: 2 and 3 if "label" is ArraySpec(..., nullable=True), and "meta" a NullableDict.

A schema takes values apart into those of the leaves, and packs them again. A dict that is None has no leaves, so the
dicts that are None come beside the values, by their paths::

    split        {"meta": None, "label": 3}    [None, None, 3], {"['meta']": True}         pack
    split        a batch of 2 such elements    [urls, tags, [3, 3]], {"['meta']": [True, True]}    pack
    split_rows   2 such elements               [[None, None], [None, None], [3, 3]], the same      pack_rows
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import ElementError, InvalidArgumentError, InvalidTypeError
from cachelayer.specs import tree
from cachelayer.specs.spec import (
    LeafSpec,
    NullableDict,
    as_nullable,
    has_values,
    takes_none,
    with_nullable_values,
)
from cachelayer.specs.tree import Tree, describe, is_namedtuple
from cachelayer.specs.values import Nullable
from cachelayer.support.locks import PickledByFields, cached_property

Flags = NDArray[np.bool_]
Nulls = Mapping[str, Flags]
"""In which rows leaves and dicts are None, by their paths."""
_NO_NULLS: Mapping[str, Any] = {}
_NONE = type(None)


@dataclass(frozen=True, eq=False)
class Node:
    """A leaf of an element, or a part of its structure."""

    spec: Tree
    path: str
    """Where it is in an element, as errors say it: ``['meta']['url']``."""
    name: str
    """What users call it: ``meta/url``."""
    leaves: range
    """The numbers of the leaves that it has; the number of a leaf."""
    lineage: tuple[str, ...]
    """The paths of the dicts around it, the outermost first, and its own: it is absent where one of them is None."""
    keys: tuple[Any, ...] = ()
    """The keys, or the indices, of its children."""
    children: tuple[Node, ...] = ()
    number: int = field(init=False)
    """The number of a leaf."""
    may_be_absent: bool = field(init=False)
    """True for a dict below the root that has leaves: it has a null bit."""
    is_flat: bool = field(init=False)
    """True for a dict of leaves."""

    def __post_init__(self) -> None:
        is_dict = isinstance(self.spec, dict)
        object.__setattr__(self, "number", self.leaves.start)
        object.__setattr__(self, "may_be_absent", is_dict and bool(self.path) and len(self.leaves) > 0)
        are_leaves = all(isinstance(child.spec, LeafSpec) for child in self.children)
        object.__setattr__(self, "is_flat", is_dict and are_leaves)

    def nodes(self) -> Iterator[Node]:
        """Yield the node, and all nodes below it, a node before its children."""
        yield self
        for child in self.children:
            yield from child.nodes()

    def like(self, parts: Iterable[Any]) -> Any:
        """Return the structure with other children."""
        spec = self.spec
        if isinstance(spec, dict):
            return dict(zip(self.keys, parts, strict=True))
        if is_namedtuple(spec):
            return type(spec)(*parts)
        return None if spec is None else type(spec)(parts)


def _compiled(spec: Tree, path: str, name: str, first: int, around: tuple[str, ...]) -> Node:
    """Return the node of a spec whose first leaf has the number ``first``."""
    lineage = (*around, path)
    if isinstance(spec, LeafSpec):
        return Node(spec, path, name, range(first, first + 1), lineage)
    # The element itself is never None.
    inner = lineage if isinstance(spec, dict) and path else around
    keys: tuple[Any, ...] = tuple(spec) if isinstance(spec, dict) else tuple(range(len(spec or ())))
    names = spec._fields if is_namedtuple(spec) else map(str, keys)
    children = []
    end = first
    for own_name, (step, child) in zip(names, tree.children(spec), strict=True):
        node = _compiled(child, path + step, f"{name}/{own_name}" if name else own_name, end, inner)
        children.append(node)
        end = node.leaves.stop
    return Node(spec, path, name, range(first, end), lineage, keys, tuple(children))


@dataclass(frozen=True, eq=False)
class Schema(PickledByFields):
    """An element spec, compiled."""

    spec: Tree
    root: Node
    leaves: tuple[Node, ...]
    dicts: tuple[Node, ...]
    """The dicts below the root that have leaves: an outer dict before those within it."""

    nullable_dicts: tuple[Node, ...]
    """The dicts that may be None."""
    nullable: tuple[Node, ...]
    """The leaves and the dicts that may be None."""
    bits: dict[str, int]
    """The number of the null bit of each leaf and each dict, by its path."""
    bits_of_values: dict[str, int]
    """The number of the null bit of the values within a leaf, by the path of the leaf."""
    bit_count: int
    """The number of null bits of a record."""

    @classmethod
    def of(cls, spec: Tree) -> Self:
        root = _compiled(spec, "", "", 0, ())
        nodes = list(root.nodes())
        leaves = tuple(node for node in nodes if isinstance(node.spec, LeafSpec))
        dicts = tuple(node for node in nodes if node.may_be_absent)
        nullable_dicts = tuple(node for node in dicts if isinstance(node.spec, NullableDict))
        nullable = (*(leaf for leaf in leaves if leaf.spec.nullable), *nullable_dicts)
        bits = {node.path: bit for bit, node in enumerate((*leaves, *dicts))}
        with_values = (leaf.path for leaf in leaves if has_values(leaf.spec))
        bits_of_values = {path: bit for bit, path in enumerate(with_values, len(bits))}
        bit_count = len(bits) + len(bits_of_values)
        return cls(spec, root, leaves, dicts, nullable_dicts, nullable, bits, bits_of_values, bit_count)

    # Null bits

    def node_of_bit(self, bit: int) -> Node:
        """Return the leaf or the dict of a null bit; for that of the values within a leaf, the leaf."""
        path = {bit: path for bits in (self.bits, self.bits_of_values) for path, bit in bits.items()}[bit]
        return next(node for node in (*self.leaves, *self.dicts) if node.path == path)

    @cached_property
    def marks(self) -> frozenset[int]:
        """The numbers of the null bits that may be set, as the spec says."""
        within = [self.bits_of_values[leaf.path] for leaf in self.leaves if leaf.spec.nullable_values]
        return frozenset([self.bits[node.path] for node in self.nullable] + within)

    def marked(self, numbers: Collection[int]) -> Tree:
        """Return the spec with these null bits besides its own: what they stand for may be None too."""
        nullable = {path for path, bit in self.bits.items() if bit in numbers}
        within = {path for path, bit in self.bits_of_values.items() if bit in numbers}

        def marked(node: Node) -> Tree:
            if isinstance(node.spec, LeafSpec):
                leaf = as_nullable(node.spec) if node.path in nullable else node.spec
                return with_nullable_values(leaf) if node.path in within else leaf
            spec = node.like(map(marked, node.children))
            return NullableDict(spec) if isinstance(node.spec, NullableDict) or node.path in nullable else spec

        return marked(self.root)

    def chosen(self, numbers: Collection[int]) -> Tree:
        """Return the spec of elements that have only these leaves."""
        return _chosen(self.root, set(numbers))

    def check_taken(self, framework: str, cure: Callable[[Tree], str | None]) -> None:
        """Raise for the first leaf, or dict that may be None, that a framework does not take.

        ``cure`` says of such a spec what a user makes of its values, and None of what the framework takes.
        """
        nodes = (*self.nullable_dicts, *self.leaves)
        cures = {node.path: cure(node.spec) for node in nodes}
        refused = next((node for node in nodes if cures[node.path] is not None), None)
        if refused is None:
            return
        may_be_none = isinstance(refused.spec, NullableDict) or refused.spec.nullable
        value = f"{describe(refused.spec)}, or None" if may_be_none else describe(refused.spec)
        taken = [leaf.name for leaf in self.leaves if not any(cures.get(path) for path in leaf.lineage)]
        others = "leave it out"
        if taken and isinstance(self.spec, dict):
            others = f"choose other fields, with ref.fields({tree.listed(taken)})"
        raise not_taken(tree.leaf_title(refused.path), value, framework, f"{cures[refused.path]}, or {others}")

    # Values

    def split(self, value: Any, absent: Any = (_NONE, Nullable)) -> tuple[list[Any], dict[str, Any]]:
        """Return the values of all leaves of an element or a batch, and which dicts are None, by their paths.

        A dict may be of the types in ``absent``: None in an element, which gives True; a Nullable in a batch, which
        gives in which rows the dict, or one around it, is None. An ElementError says where the structure differs.
        """
        values: list[Any] = []
        nulls: dict[str, Any] = {}
        _split(self.root, value, absent, values, nulls)
        return values, nulls

    def flatten(self, value: Any) -> list[Any]:
        """Return the values of all leaves of an element or a batch.

        A leaf is None if a dict around it is None. In a batch, each leaf is in at most one Nullable, which says in
        which rows the leaf, or a dict around it, is None.
        """
        values, nulls = self.split(value)
        masks = {path: null for path, null in nulls.items() if null is not True}
        if not masks:
            return values
        return [_folded(leaf, leaf_value, masks) for leaf, leaf_value in zip(self.leaves, values, strict=True)]

    def split_rows(self, rows: Sequence[Any]) -> tuple[list[list[Any]], dict[str, Flags]]:
        """Return a list of the values of all rows for each leaf, and in which rows dicts are None.

        Dicts may lack keys whose leaves may be None. The record of an ElementError is the index in ``rows``.
        """
        # Rows that have exactly the structure of the spec are split column by column, which is quick. For the others,
        # what may be lacking is filled in. What then still differs is found row by row.
        columns: list[list[Any]] = []
        nulls: dict[str, Any] = {}
        if _split_alike(self.root, list(rows), columns, nulls):
            return columns, nulls
        columns = []
        nulls = {}
        rows = [completed(self.spec, row) for row in rows]
        if _split_alike(self.root, rows, columns, nulls):
            return columns, nulls
        for number, row in enumerate(rows):
            try:
                self.split(row, _NONE)
            except ElementError as error:
                raise error.at(record=number) from None
        raise AssertionError("rows that have the structure of the spec are split")

    def pack(self, values: Sequence[Any], nulls: Mapping[str, Any] = _NO_NULLS) -> Any:
        """Return the element, or the batch, of what :meth:`split` returns."""
        root = self.root
        return dict(zip(root.keys, values)) if root.is_flat else _packed(root, values, nulls)  # noqa: B905

    def pack_rows(self, columns: Sequence[list[Any]], nulls: Nulls, count: int) -> list[Any]:
        """Return the elements of what :meth:`split_rows` returns, given how many they are."""
        return _packed_rows(self.root, columns, nulls, count)


def not_taken(title: str, value: str, framework: str, cure: str) -> InvalidTypeError:
    """Return the error for a leaf that a framework does not take."""
    return InvalidTypeError(f"{title} is {value}, which {framework} does not take: {cure}")


def _folded(leaf: Node, value: Any, nulls: Nulls) -> Any:
    absent = rows_in_any(nulls, leaf.lineage)
    if absent is None:
        return value
    if isinstance(value, Nullable) and value.valid.ndim == 1:
        return Nullable(value.values, value.valid & ~absent)
    return Nullable(value, ~absent)


def rows_in_any(nulls: Nulls, paths: Iterable[str]) -> Flags | None:
    """Return in which rows one of these leaves and dicts is None; None if none of them is None in any."""
    absent: Flags | None = None
    for path in paths:
        absent = either(absent, nulls.get(path))
    return absent


def either(one: Flags | None, other: Flags | None) -> Flags | None:
    """Return in which rows one or the other is true; None is false in all rows."""
    if one is None:
        return other
    return one if other is None else one | other


def _chosen(node: Node, numbers: Collection[int]) -> Tree:
    if not isinstance(node.spec, dict):
        raise InvalidArgumentError(f"fields are keys of dicts, and elements are {describe(node.spec)}")
    fields: dict[str, Tree] = NullableDict() if isinstance(node.spec, NullableDict) else {}
    for key, child in zip(node.keys, node.children, strict=True):
        count = sum(number in numbers for number in child.leaves)
        if not count:
            continue
        if count < len(child.leaves) and not isinstance(child.spec, dict):
            raise InvalidArgumentError(f"{key!r} is {describe(child.spec)}: name it whole, not some of its items")
        fields[key] = child.spec if count == len(child.leaves) else _chosen(child, numbers)
    return fields


def _split(node: Node, value: Any, absent: Any, values: list[Any], nulls: dict[str, Any]) -> None:
    spec = node.spec
    if isinstance(spec, LeafSpec):
        values.append(value)
        return
    if node.may_be_absent and isinstance(value, absent):
        if value is None:
            nulls[node.path] = True
            values += [None] * len(node.leaves)
            return
        nulls[node.path] = ~value.valid
        value = value.values
    if spec is None and value is not None:
        hint = "It was None in the first elements: say what it is with element_spec=."
        raise ElementError("None", describe(value), path=node.path, hint=hint)
    fits = isinstance(value, Mapping) and value.keys() == spec.keys() if isinstance(spec, dict) else _fits(spec, value)
    if not fits:
        raise tree.structure_error(spec, value).at(path=node.path)
    for key, child in zip(node.keys, node.children, strict=True):
        _split(child, value[key], absent, values, nulls)


def _split_alike(node: Node, rows: list[Any], columns: list[list[Any]], nulls: dict[str, Any]) -> bool:
    """Append the columns of rows, if all rows have exactly the structure of the spec; return whether they have."""
    spec = node.spec
    if isinstance(spec, LeafSpec):
        columns.append(rows)
        return True
    kinds = set(map(type, rows))
    if node.may_be_absent and _NONE in kinds:
        nulls[node.path] = np.fromiter((row is None for row in rows), np.bool_, len(rows))
        nothing = _nothing(node)
        rows = [nothing if row is None else row for row in rows]
        kinds = kinds - {_NONE} | {dict}
    if is_namedtuple(spec):
        if len(kinds) > 1 or not all(_fits(spec, row) for row in rows[:1]):
            return False
    elif not kinds <= {dict if isinstance(spec, dict) else type(spec)}:
        return False
    if isinstance(spec, dict):
        keys = spec.keys()
        if not all(row.keys() == keys for row in rows):
            return False
    elif spec is not None and not set(map(len, rows)) <= {len(spec)}:
        return False
    return all(
        _split_alike(child, [row[key] for row in rows], columns, nulls)
        for key, child in zip(node.keys, node.children, strict=True)
    )


def _fits(spec: Any, value: Any) -> bool:
    """Return whether a value has the structure of a spec that is no dict."""
    if is_namedtuple(spec):
        return is_namedtuple(value) and value._fields == spec._fields
    return spec is None or (isinstance(value, type(spec)) and not is_namedtuple(value) and len(value) == len(spec))


def _nothing(node: Node) -> Any:
    """Return the structure with None for each leaf."""
    return None if isinstance(node.spec, LeafSpec) else node.like(map(_nothing, node.children))


def _packed(node: Node, values: Sequence[Any], nulls: Mapping[str, Any]) -> Any:
    if isinstance(node.spec, LeafSpec):
        return values[node.leaves.start]
    null = nulls.get(node.path) if node.may_be_absent else None
    if null is True:
        return None
    packed: Any
    if node.is_flat:
        packed = dict(zip(node.keys, values[node.leaves.start : node.leaves.stop]))  # noqa: B905
    else:
        packed = node.like([_packed(child, values, nulls) for child in node.children])
    return packed if null is None else Nullable(packed, ~null)


def _packed_rows(node: Node, columns: Sequence[list[Any]], nulls: Nulls, count: int) -> list[Any]:
    spec = node.spec
    if isinstance(spec, LeafSpec):
        return columns[node.leaves.start]
    children = [_packed_rows(child, columns, nulls, count) for child in node.children]
    rows: list[Any]
    if not children:
        rows = [node.like(()) for _ in range(count)]
    elif isinstance(spec, dict):
        keys = node.keys
        rows = [dict(zip(keys, row)) for row in zip(*children)]  # noqa: B905
    else:
        rows = list(map(node.like, zip(*children, strict=True)))
    if node.may_be_absent and node.path in nulls:
        for row in np.flatnonzero(nulls[node.path]).tolist():
            rows[row] = None
    return rows


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
    if spec is None or isinstance(spec, LeafSpec) or not _fits(spec, value):
        return value
    parts = [completed(child, part, fill=fill) for child, part in zip(spec, value, strict=True)]
    return type(spec)(*parts) if is_namedtuple(spec) else type(spec)(parts)


def _may_be_none(spec: Tree) -> bool:
    return isinstance(spec, NullableDict) or all(leaf.nullable or takes_none(leaf) for _, leaf in tree.leaves(spec))


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
