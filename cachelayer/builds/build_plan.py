"""The plan of a build: everything that is decided before it begins."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.extensions import Extension
from cachelayer.builds.iterable_source import IterableSource
from cachelayer.builds.ordered_records import OrderedRecords
from cachelayer.builds.parts import Parts, Ranges, divide
from cachelayer.builds.recipe import Recipe
from cachelayer.builds.source import Skippable, Source, as_source
from cachelayer.builds.source_files import FileFacts, files_of
from cachelayer.engines import Engine, engine_of
from cachelayer.errors import ElementError, InvalidArgumentError
from cachelayer.objects.local_cache import CacheFolder
from cachelayer.records import spec_json, tree
from cachelayer.records.infer import completed, may_lack_keys, overlaid
from cachelayer.records.spec import ArraySpec, EncodedSpec, LeafSpec
from cachelayer.records.tree import Tree
from cachelayer.versions.log import Log
from cachelayer.versions.stored_version import StoredVersion


@dataclass(frozen=True)
class NewVersion:
    """A version that is to be built.

    Args:
        log: the log of the dataset.
        version: its name.
        copies: keeps local copies of the new shards if the store is not local; None for none.
        progress: whether to show the progress; see :meth:`cachelayer.Storage.submit`.
    """

    log: Log
    version: str
    copies: CacheFolder | None
    progress: bool | None

    @property
    def name(self) -> str:
        return f"{self.log.folder.name}@{self.version}"

    @property
    def url(self) -> str:
        """Its name with the URL of its storage."""
        return f"{self.log.folder.url}@{self.version}"

    @property
    def is_published(self) -> bool:
        """Whether there is a version, or a tag, of this name."""
        head = self.log.head()
        return head.tags.get(self.version, self.version) in head.versions


@dataclass(frozen=True)
class BuildPlan:
    """The plan of a build.

    Args:
        source: the source.
        options: the options, with the spec of the elements if it is known.
        parts: the parts of the source, if it can be divided.
        extension: what is built: records of a version of its own, or what is added to another.
        recipe: what the version is built from.
        facts: the recipe, and what decides the shards, as JSON values; another build goes on after this one, or helps,
            only if its facts are equal.
        length: the number of elements, if it is known.
        files: the listings of the files that the source reads.
    """

    source: Source
    options: BuildOptions
    parts: Parts | None
    extension: Extension
    recipe: Recipe
    facts: Mapping[str, Any]
    length: int | None
    files: Sequence[FileFacts]

    @classmethod
    def of(cls, obj: Any, recipe: Recipe, options: BuildOptions, extension: Extension) -> Self:
        """Decide how to build an object; if it is a function, call it.

        Args:
            obj: the user's source.
            recipe: what is known of it before.
            options: the options.
            extension: what is built.
        """
        base = extension.base
        source, options = _source(obj, options, base, extension.spec)
        parts, options = divide(source, options)
        known = options.element_spec if options.element_spec is not None else source.element_spec
        files = files_of(source)
        recipe = recipe.completed(source, files)
        facts = {
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
        facts = json.loads(json.dumps(facts))
        return cls(source, options, parts, extension, recipe, facts, options.expected(source.length), files)

    @property
    def is_resumable(self) -> bool:
        """Whether a build goes on after what an interrupted one has finished."""
        return self.parts is not None or isinstance(self.source, Skippable)

    @property
    def engine(self) -> Engine | None:
        """What runs the parts in other processes; None if this process writes them.

        Worker processes then make the elements of ranges, and this process writes them: that divides small versions
        too.
        """
        options = self.options
        by_chunks = isinstance(self.parts, Ranges) and not isinstance(self.parts.source, OrderedRecords)
        if options.engine is None and (by_chunks or options.workers == 1):
            return None
        return engine_of(options.engine, options.workers)


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
    if isinstance(source, Parts):
        # divide() knows whether a part may be opened here.
        return options
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
