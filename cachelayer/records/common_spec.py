"""The common element spec of several datasets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cachelayer.errors import InvalidArgumentError
from cachelayer.records import tree
from cachelayer.records.tree import Tree

_FIX = "build them with one element_spec"


def common_spec(specs: Sequence[tuple[str, Tree]]) -> Tree:
    """Return the spec that fits the elements of all specs, which may differ only in which leaves may be None.

    Args:
        specs: the name of each dataset and its spec; at least one.
    """
    (first, common), *others = specs
    for name, spec in others:
        common = _merged(first, common, name, spec)
    return common


def _merged(first: str, common: Tree, name: str, spec: Tree) -> Tree:
    mine, theirs = dict(tree.leaves(common)), dict(tree.leaves(spec))
    if list(mine) != list(theirs) or _skeleton(common) != _skeleton(spec):
        raise InvalidArgumentError(
            f"elements of {first} are {tree.describe(common)} with leaves {_listed(mine)}, those of {name} are "
            f"{tree.describe(spec)} with leaves {_listed(theirs)}: {_FIX}"
        )
    for path, leaf in mine.items():
        other = theirs[path]
        if leaf.as_nullable() != other.as_nullable():
            where = f"leaf {path}" if path else "the element"
            raise InvalidArgumentError(f"{where} is {leaf!r} in {first} and {other!r} in {name}: {_FIX}")
    nullable = {path for path, leaf in theirs.items() if leaf.nullable}
    return tree.map_structure(common, lambda path, leaf: leaf.as_nullable() if path in nullable else leaf)


def _skeleton(spec: Tree) -> Tree:
    return tree.map_structure(spec, lambda _, leaf: leaf is None)


def _listed(paths: Iterable[str]) -> str:
    return ", ".join(path or "(itself)" for path in paths) or "(none)"
