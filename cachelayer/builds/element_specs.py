"""Find the spec of the elements of a source: declared by the user, by the source, or told by its first elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from cachelayer.builds.batches import Batch, ElementBatch, RowBatch
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.iterable_source import IterableSource
from cachelayer.builds.parts import Parts, errors_of
from cachelayer.builds.source import Seekable, Source
from cachelayer.errors import ElementError, InvalidArgumentError
from cachelayer.records import tree
from cachelayer.records.infer import FIRST_ELEMENTS, completed, from_elements, may_lack_keys, overlaid
from cachelayer.records.spec import ArraySpec, EncodedSpec, LeafSpec
from cachelayer.records.tree import Tree

_LOOK_AHEAD = 10_000


def known_spec(source: Source, options: BuildOptions) -> Tree | None:
    """Return the spec of the elements that a build begins with; None if their writer must infer it as it reads them.

    Args:
        source: the source.
        options: the options. What the user declares among them is completed by what the source, or its first elements,
            have besides.
    """
    declared = options.element_spec
    if isinstance(source, Parts):
        # An engine may build parts where their data is: for a declared spec none is opened here.
        return declared if declared is not None and options.engine is not None else _spec_of_parts(source, declared)
    if source.element_spec is not None:
        return overlaid(declared, source.element_spec)
    if declared is not None:
        return _completed(declared, source, options)
    length = options.expected(source.length)
    if isinstance(source, Seekable) and length:
        return _inferred(lambda limit: source.skipped(0).batches(min(limit, length)))
    return None


def _completed(declared: Tree, source: Source, options: BuildOptions) -> Tree:
    """Return a declared spec with the keys of the first elements that it lacks."""
    # If elements may be left out, the first one may be such an element.
    if not isinstance(source, IterableSource) or options.on_error == "skip" or not may_lack_keys(declared):
        return declared
    try:
        return completed(declared, source.peek(declared))
    except ElementError as error:
        raise error.at(record=error.record or 0) from error.__cause__


def _spec_of_parts(parts: Parts, declared: Tree | None) -> Tree | None:
    if not parts.count or (declared is not None and not may_lack_keys(declared)):
        return declared
    own = parts.part(0).source.element_spec
    if own is not None:
        return overlaid(declared, own)
    batches = partial(_batches_of, parts)
    if declared is None:
        return _inferred(batches)
    return completed(declared, list(islice(_elements(batches(FIRST_ELEMENTS)), FIRST_ELEMENTS)))


def _batches_of(parts: Parts, limit: int) -> Iterator[Batch]:
    """Yield the first batches of each part."""
    for number in range(parts.count):
        part = parts.part(number)
        with errors_of(part):
            yield from part.source.batches(limit)


def _inferred(batches: Callable[[int], Iterator[Batch]]) -> Tree | None:
    """Return the spec of a source's first elements, reading as few as possible; None if it has no element."""
    try:
        return from_elements(islice(_elements(batches(FIRST_ELEMENTS)), FIRST_ELEMENTS))
    except ElementError:
        # A leaf is None in all of them: a later one may show what it is.
        return from_elements(_elements(batches(_LOOK_AHEAD)))


def infer_spec(batches: Iterator[Batch]) -> tuple[Tree, Iterator[Batch]]:
    """Return the spec of the first elements, None if there are none, and an iterator over all batches."""
    seen: list[Batch] = []

    def watched() -> Iterator[Batch]:
        for batch in batches:
            seen.append(batch)
            yield batch
            # The source may change what it gave when it makes the next batch.
            seen[-1] = batch.copied() if isinstance(batch, RowBatch) else batch

    def all_batches() -> Iterator[Batch]:
        while seen:
            yield seen.pop(0)
        yield from batches

    return from_elements(_elements(watched())), all_batches()


def _elements(batches: Iterator[Batch]) -> Iterator[Any]:
    for batch in batches:
        if not isinstance(batch, (ElementBatch, RowBatch)):
            raise InvalidArgumentError("a source without an element spec must yield elements, not batches")
        yield from batch.views() if isinstance(batch, RowBatch) else batch.items


def check_fits(name: str, spec: Tree, added: Tree | None) -> None:
    """Raise if a source cannot be appended to a version.

    Args:
        name: the version.
        spec: its spec; a dimension that is None takes any size.
        added: the source's own spec; None if it declares none.
    """
    differences = [] if added is None else _differences(dict(tree.leaves(spec)), dict(tree.leaves(added)))
    if differences:
        raise InvalidArgumentError(
            f"this source cannot be appended to {name}: its elements have another spec: {'; '.join(differences)}. "
            "Convert its elements, or build a new dataset of all records"
        )


def _differences(ours: Mapping[str, LeafSpec], theirs: Mapping[str, LeafSpec]) -> list[str]:
    gone = [f"{_leaf(path)} is missing" for path in ours if path not in theirs]
    new = [f"{_leaf(path)} is {leaf!r} and not in the version" for path, leaf in theirs.items() if path not in ours]
    changed = [
        f"{_leaf(path)} is {theirs[path]!r}, in the version {leaf!r}"
        for path, leaf in ours.items()
        if path in theirs and not _fits(leaf, theirs[path])
    ]
    return [*gone, *new, *changed]


def _leaf(path: str) -> str:
    return f"leaf {path}" if path else "the element"


def _fits(ours: LeafSpec, theirs: LeafSpec) -> bool:
    """Return whether elements of their spec can be stored under ours; unknown dimensions are checked later."""
    if isinstance(ours, EncodedSpec) and isinstance(theirs, ArraySpec):
        return theirs.dtype is bytes
    if type(ours) is not type(theirs) or len(ours.shape) != len(theirs.shape):
        return False
    if isinstance(ours, EncodedSpec):
        return ours.as_nullable() == theirs.as_nullable()
    dims = zip(ours.shape, theirs.shape, strict=True)
    return all(mine is None or dim is None or mine == dim for mine, dim in dims) and ours == replace(
        theirs, shape=ours.shape, nullable=ours.nullable
    )
