"""Which parts of elements may be null: the numbers of the null bits of records, and specs that are marked with them.

A record has one null bit for each leaf, one for each dict below the root that has leaves, and one for each leaf with
values of which some may be null, in this order. A spec says which of them are ever set.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from cachelayer.records import tree
from cachelayer.records.spec import LeafSpec, NullableDict
from cachelayer.records.tree import Tree


@dataclass(frozen=True)
class InnerDict:
    """A dict below the root of an element.

    Args:
        bit: the number of its null bit.
        depth: how many dicts are around it.
        leaves: the numbers of the leaves below it.
        nullable: whether it may be None.
    """

    bit: int
    depth: int
    leaves: range
    nullable: bool


@dataclass(frozen=True)
class NullBits:
    """The null bits of the records of a spec.

    Args:
        count: how many there are.
        dicts: the dicts below the root, each before those within it.
        values: the bits of the values of leaves, by the numbers of the leaves.
    """

    count: int
    dicts: tuple[InnerDict, ...]
    values: dict[int, int]

    @classmethod
    def of(cls, spec: Tree) -> NullBits:
        leaves = tree.leaves(spec)
        inner = [node for node in _inner_dicts(spec, 0, 0, is_root=True) if len(node.leaves)]
        dicts = [InnerDict(bit, each.depth, each.leaves, each.nullable) for bit, each in enumerate(inner, len(leaves))]
        with_values = [number for number, (_, leaf) in enumerate(leaves) if leaf.has_values]
        first = len(leaves) + len(dicts)
        return cls(
            first + len(with_values), tuple(dicts), {leaf: first + place for place, leaf in enumerate(with_values)}
        )

    def dicts_around(self, leaf: int) -> tuple[InnerDict, ...]:
        """Return the dicts around a leaf, the outermost first."""
        return tuple(each for each in self.dicts if leaf in each.leaves)


def _inner_dicts(spec: Tree, depth: int, first: int, *, is_root: bool = False) -> Iterator[InnerDict]:
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
    """Return the numbers of the null bits that a spec says may be set."""
    bits = NullBits.of(spec)
    leaves = [leaf for _, leaf in tree.leaves(spec)]
    return frozenset(
        [
            *(number for number, leaf in enumerate(leaves) if leaf.nullable),
            *(each.bit for each in bits.dicts if each.nullable),
            *(bit for number, bit in bits.values.items() if leaves[number].nullable_values),
        ]
    )


def marked(spec: Tree, numbers: Collection[int]) -> Tree:
    """Return a spec in which what the null bits of these numbers stand for may be null, besides what it says."""
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
            leaf = leaf.as_nullable() if number in numbers else leaf
            return leaf.with_nullable_values() if bits.values.get(number) in numbers else leaf
        if isinstance(node, dict):
            is_marked = not is_root and bool(tree.leaves(node)) and next(dicts).bit in numbers
            children = {key: mark(child) for key, child in node.items()}
            return NullableDict(children) if is_marked or isinstance(node, NullableDict) else children
        parts = [mark(child) for _, child in tree.children(node)]
        return type(node)(*parts) if tree.is_namedtuple(node) else type(node)(parts)

    return mark(spec, is_root=True)
