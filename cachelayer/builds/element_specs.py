"""The spec of the elements of a source: what the user declares, what the source has, what the first elements show.

A declared spec may be partial: what it leaves out is taken from the source, or from the first elements.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from cachelayer.builds.batches import Batch, ElementBatch, RowBatch
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.parts import part_in_errors
from cachelayer.builds.source import Parts, Source
from cachelayer.errors import ElementError, InvalidArgumentError
from cachelayer.records.infer import FIRST_ELEMENTS, MOST_ELEMENTS, infer_spec, may_lack_keys, overlaid
from cachelayer.specs import tree
from cachelayer.specs.spec import ArraySpec, EncodedSpec, JsonSpec, LeafSpec, as_nullable
from cachelayer.specs.tree import Tree


def known_spec(source: Source, options: BuildOptions) -> Tree | None:
    """Return the spec of the elements, or None if it is known only when the build reads the first elements.

    A source that can be read again is read here. A source that is read once is not: its writer finds the spec.
    """
    declared = options.element_spec
    parts = source.parts
    # An engine may build the parts where their data is, so with a declared spec no part is opened here.
    is_enough = declared is not None and (options.engine is not None or not needs_elements(declared, options))
    if parts is not None and source.element_spec is None and is_enough:
        return declared
    spec = own_spec(source)
    if spec is not None:
        return overlaid(declared, spec)
    if parts is not None:
        return _spec_of_first_elements(partial(_first_batches, parts), declared)
    length = options.expected(source.length)
    if source.starts is None or not length or not needs_elements(declared, options):
        return declared
    return _spec_of_first_elements(lambda most: source.batches(0, min(most, length)), declared)


def needs_elements(declared: Tree | None, options: BuildOptions) -> bool:
    """Return whether the first elements are to be looked at, because a declared spec may lack keys."""
    # With on_error="skip", an element that has other keys is left out, even if it is the first.
    return declared is None or (options.on_error == "raise" and may_lack_keys(declared))


def own_spec(source: Source) -> Tree | None:
    """Return the spec that a source, or its first part, has; None if only elements show it."""
    if source.element_spec is not None or source.parts is None:
        return source.element_spec
    return source.parts.part(0).source.element_spec


def _first_batches(parts: Parts, most: int) -> Iterator[Batch]:
    """Yield batches of the first elements of each part."""
    for number in range(parts.count):
        part = parts.part(number)
        with part_in_errors(part):
            yield from part.source.batches(stop=most)


def _spec_of_first_elements(batches: Callable[[int], Iterator[Batch]], declared: Tree | None) -> Tree | None:
    """Return the spec that the first elements show; None if there is no element."""
    try:
        return spec_of_batches(batches(FIRST_ELEMENTS), declared)[0]
    except ElementError:
        # A leaf may be None in all of these; then a later element shows what it is.
        return spec_of_batches(batches(MOST_ELEMENTS), declared)[0]


def spec_of_batches(
    batches: Iterator[Batch], declared: Tree | None = None, *, as_json: bool = False
) -> tuple[Tree, Iterator[Batch]]:
    """Return the spec that the first elements show, and an iterator over all batches, the first among them.

    The spec is None if there is no element. With ``as_json``, a field is JSON if its structure changes among the first.
    """
    first: list[Batch] = []

    def first_elements() -> Iterator[Any]:
        for batch in batches:
            first.append(batch)
            if isinstance(batch, RowBatch):
                yield from batch.views()
                # The source may write into this batch when it makes the next one.
                first[-1] = batch.copied()
            elif isinstance(batch, ElementBatch):
                yield from batch.items
            else:
                raise InvalidArgumentError("a source without an element spec must yield elements, not batches")

    spec = infer_spec(first_elements(), declared, as_json=as_json)
    return spec, chain((first.pop(0) for _ in range(len(first))), batches)


FILL_HINT = (
    "Name each field that only one of both has in fill={name: value or None}, for the others; or convert the elements"
)


def check_fits(name: str, spec: Tree, new_fields: Collection[str], added: Tree | None) -> None:
    """Raise if the elements of a source cannot be appended to a version.

    ``added`` is None if only its elements show the spec of the source. It has ``new_fields`` besides those of ``spec``.
    """
    if added is None:
        zoned = next((path for path, leaf in tree.leaves(spec) if leaf.timezone is not None), None)
        if spec is not None and zoned is not None:
            raise InvalidArgumentError(
                f"this source cannot be appended to {name}: its elements do not tell the time zone of {zoned}: pass a "
                "table or a frame, whose columns do"
            )
        return
    if new_fields:
        spec = {**spec, **{key: added[key] if key in added else ArraySpec(bool) for key in new_fields}}
    differences = _differences(dict(tree.leaves(spec)), dict(tree.leaves(added)))
    if differences:
        raise InvalidArgumentError(
            f"this source cannot be appended to {name}: its elements have another spec: {'; '.join(differences)}. "
            f"{FILL_HINT}"
        )


def _differences(ours: Mapping[str, LeafSpec], theirs: Mapping[str, LeafSpec]) -> list[str]:
    gone = [f"{tree.leaf_title(path)} is missing" for path in ours if path not in theirs]
    new = [
        f"{tree.leaf_title(path)} is {leaf!r} and not in the version"
        for path, leaf in theirs.items()
        if path not in ours
    ]
    changed = [
        f"{tree.leaf_title(path)} is {theirs[path]!r}, in the version {leaf!r}"
        for path, leaf in ours.items()
        if path in theirs and not _fits(leaf, theirs[path])
    ]
    return [*gone, *new, *changed]


def _fits(ours: LeafSpec, theirs: LeafSpec) -> bool:
    """Return whether values of their spec can be stored under ours. Dimensions that are None are checked later."""
    if isinstance(ours, EncodedSpec) and isinstance(theirs, ArraySpec):
        return theirs.dtype is bytes
    if type(ours) is not type(theirs) or len(ours.shape) != len(theirs.shape):
        return False
    if isinstance(ours, (EncodedSpec, JsonSpec)):
        return as_nullable(ours) == as_nullable(theirs)
    dims = zip(ours.shape, theirs.shape, strict=True)
    return all(mine is None or dim is None or mine == dim for mine, dim in dims) and ours == replace(
        theirs, shape=ours.shape, nullable=ours.nullable, nullable_values=ours.nullable_values
    )
