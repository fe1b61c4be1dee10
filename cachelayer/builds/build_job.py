"""The job of a build: everything that is decided before it begins."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.iterable_source import IterableSource
from cachelayer.builds.parts import Parts, divide
from cachelayer.builds.recipe import Recipe
from cachelayer.builds.source import Source, as_source
from cachelayer.builds.source_files import FileFacts, files_of
from cachelayer.errors import ElementError, InvalidArgumentError
from cachelayer.records import spec_json, tree
from cachelayer.records.infer import completed, may_lack_keys, overlaid
from cachelayer.records.spec import ArraySpec, EncodedSpec, LeafSpec
from cachelayer.records.tree import Tree
from cachelayer.versions.stored_version import StoredVersion


@dataclass(frozen=True)
class BuildJob:
    """The job of a build.

    Args:
        source: the source.
        options: the options.
        parts: its parts, if it can be divided.
        recipe: what the version is built from.
        plan: the recipe, and what decides the shards, as JSON values; another build goes on after this one, or helps,
            only if its plan is equal.
        length: the number of elements, if it is known.
        files: the listings of the files that the source reads.
    """

    source: Source
    options: BuildOptions
    parts: Parts | None
    recipe: Recipe
    plan: Mapping[str, Any]
    length: int | None
    files: Sequence[FileFacts]

    @classmethod
    def of(
        cls,
        obj: Any,
        recipe: Recipe,
        options: BuildOptions,
        base: StoredVersion | None = None,
        spec: Tree | None = None,
    ) -> Self:
        """Decide how to build an object; if it is a function, call it.

        Args:
            obj: the user's source.
            recipe: what is known of it before.
            options: the options.
            base: the version that is extended; None for none.
            spec: the spec that the elements must have to extend it; None for any.
        """
        source, how = _source(obj, options, base, spec)
        parts, how = divide(source, how)
        known = how.element_spec if how.element_spec is not None else source.element_spec
        files = files_of(source)
        recipe = recipe.completed(source, files)
        plan = {
            **recipe.facts,
            "compression": options.compression.zstd_level,
            "shard_bytes": options.shard_bytes,
            "base": None if base is None else base.info.digest,
            "source": source.kind,
            "records of the source": getattr(source, "plan", None),
            "parts": None if parts is None else parts.plan,
            "length": source.length,
            "element spec": None if known is None else spec_json.to_json(known),
        }
        plan = json.loads(json.dumps(plan))
        return cls(source, how, parts, recipe, plan, how.expected(source.length), files)


def _source(
    obj: Any, options: BuildOptions, base: StoredVersion | None, spec: Tree | None
) -> tuple[Source, BuildOptions]:
    """Return an object as a source, and the options with a complete spec: the one that extends the base, if any."""
    if base is None or spec is None:
        source = as_source(obj, unbatch=options.unbatch, element_spec=options.element_spec)
        return source, _with_complete_spec(source, options)
    if options.element_spec is not None:
        raise InvalidArgumentError(f"element_spec: appended records have the spec of {base.name}: leave it out")
    try:
        source = as_source(obj, unbatch=options.unbatch, element_spec=spec)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"this source cannot be appended to {base.name}: {error}") from error
    check_fits(base.name, spec, source.element_spec)
    return source, replace(options, element_spec=spec)


def _with_complete_spec(source: Source, options: BuildOptions) -> BuildOptions:
    """Return the options; if their element spec lacks keys of the first elements, with these keys."""
    if options.element_spec is not None and source.element_spec is not None:
        return replace(options, element_spec=overlaid(options.element_spec, source.element_spec))
    if not isinstance(source, IterableSource):
        return options
    # If elements may be left out, the first one may be such an element.
    if options.on_error == "skip" or not may_lack_keys(options.element_spec):
        return options
    try:
        spec = completed(options.element_spec, source.peek(options.element_spec))
    except ElementError as error:
        raise error.at(record=error.record or 0) from error.__cause__
    return replace(options, element_spec=spec)


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
