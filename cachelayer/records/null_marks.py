"""The null bits of records: their numbers, and specs that are marked with them.

A record has a null bit for each leaf, for each dict below the root that has leaves, and for each leaf that has values
within it, in this order. A spec says which of them are ever set, and :func:`marks` lists these::

    element      {"meta": {"url": "u7", "tags": [1, 2]}, "label": 3}
    null bits    0: meta/url    1: meta/tags    2: label    3: meta    4: values of meta/tags
    marks        {2, 3} if "label" is ArraySpec(..., nullable=True), and "meta" a NullableDict
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from cachelayer.records import tree
from cachelayer.records.spec import LeafSpec, NullableDict, as_nullable, has_values, with_nullable_values
from cachelayer.records.tree import Tree


@dataclass(frozen=True)
class InnerDict:
    """A dict below the root of an element."""

    bit: int
    """The number of its null bit."""
    depth: int
    """How many dicts are around it."""
    leaves: range
    """The numbers of the leaves below it."""
    nullable: bool
    """Whether it may be None."""


@dataclass(frozen=True)
class NullBits:
    """The null bits of the records of a spec. The null bit of a leaf has the number of the leaf."""

    count: int
    """How many null bits a record has."""
    dicts: tuple[InnerDict, ...]
    """The dicts below the root: an outer dict before those within it."""
    values: dict[int, int]
    """The number of the null bit of the values within a leaf, by the number of the leaf."""

    @classmethod
    def of(cls, spec: Tree) -> NullBits:
        leaves = tree.leaves(spec)
        inner = [node for node in _inner_dicts(spec, 0, 0, is_root=True) if len(node.leaves)]
        dicts = tuple(replace(node, bit=bit) for bit, node in enumerate(inner, len(leaves)))
        with_values = [number for number, (_, leaf) in enumerate(leaves) if has_values(leaf)]
        values = {leaf: bit for bit, leaf in enumerate(with_values, len(leaves) + len(dicts))}
        return cls(len(leaves) + len(dicts) + len(values), dicts, values)

    def dicts_around(self, leaf: int) -> tuple[InnerDict, ...]:
        """Return the dicts around a leaf, the outermost first."""
        return tuple(inner for inner in self.dicts if leaf in inner.leaves)


def _inner_dicts(spec: Tree, depth: int, first: int, *, is_root: bool = False) -> Iterator[InnerDict]:
    """Yield the dicts of a spec within ``depth`` others, without null bits yet; its first leaf is ``first``."""
    if isinstance(spec, LeafSpec) or spec is None:
        return
    is_dict = isinstance(spec, dict)
    if is_dict and not is_root:
        leaves = range(first, first + len(tree.leaves(spec)))
        yield InnerDict(0, depth, leaves, isinstance(spec, NullableDict))
    for _, child in tree.children(spec):
        yield from _inner_dicts(child, depth + is_dict, first)
        first += len(tree.leaves(child))


def marks(spec: Tree) -> frozenset[int]:
    """Return the numbers of the null bits that may be set, as a spec says."""
    bits = NullBits.of(spec)
    leaves = [leaf for _, leaf in tree.leaves(spec)]
    of_leaves = {number for number, leaf in enumerate(leaves) if leaf.nullable}
    of_dicts = {inner.bit for inner in bits.dicts if inner.nullable}
    of_values = {bit for number, bit in bits.values.items() if leaves[number].nullable_values}
    return frozenset(of_leaves | of_dicts | of_values)


def marked(spec: Tree, numbers: Collection[int]) -> Tree:
    """Return the spec with these null bits besides its own: what they stand for may be null too."""
    if not numbers:
        return spec
    bits = NullBits.of(spec)
    leaves = iter(enumerate(leaf for _, leaf in tree.leaves(spec)))
    dicts = iter(bits.dicts)

    def mark(node: Tree, *, is_root: bool = False) -> Tree:
        if node is None:
            return None
        if isinstance(node, LeafSpec):
            number, leaf = next(leaves)
            leaf = as_nullable(leaf) if number in numbers else leaf
            return with_nullable_values(leaf) if bits.values.get(number) in numbers else leaf
        if isinstance(node, dict):
            is_marked = not is_root and bool(tree.leaves(node)) and next(dicts).bit in numbers
            children = {key: mark(child) for key, child in node.items()}
            return NullableDict(children) if is_marked or isinstance(node, NullableDict) else children
        parts = [mark(child) for _, child in tree.children(node)]
        return type(node)(*parts) if tree.is_namedtuple(node) else type(node)(parts)

    return mark(spec, is_root=True)
