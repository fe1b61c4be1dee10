"""The plan of a build: everything that is decided before it begins."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Self

from cachelayer.builds.as_source import as_source
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.element_specs import check_fits, known_spec, own_spec
from cachelayer.builds.extensions import Extension
from cachelayer.builds.parts import Ranges, SourceParts, Whole, compared_records, divide
from cachelayer.builds.recipe import Recipe
from cachelayer.builds.source import FileFacts, Parts, Source
from cachelayer.engines import Engine, Processes
from cachelayer.errors import CacheLayerError, InvalidArgumentError
from cachelayer.objects.local_cache import CacheFolder
from cachelayer.specs import spec_json
from cachelayer.specs.spec import DECIMAL_DIGITS, said_of_columns
from cachelayer.specs.tree import Tree
from cachelayer.versions.log import Log
from cachelayer.versions.notes import FORMAT, Notes
from cachelayer.versions.snapshot import Snapshot
from cachelayer.versions.stored_version import StoredVersion

NOT_RESUMABLE = "build"
"""The key in the facts of a build that nobody may resume."""


@dataclass(frozen=True)
class BuildRequest:
    """A request for a version: what is known before the user's source is touched."""

    log: Log
    """The log of the dataset."""
    version: str
    """The name of the new version."""
    copies: CacheFolder | None
    """Keeps local copies of the new shards, if the store is not local; None for none."""
    source: Any
    """What the user passed."""
    recipe: Recipe
    """The recipe, as far as it is known without calling the user's function."""
    options: BuildOptions
    extension: Extension
    """Whether the version has new records alone, or those of another version with more records or columns."""

    @property
    def name(self) -> str:
        return f"{self.log.folder.name}@{self.version}"

    @property
    def url(self) -> str:
        """The name, with the URL of the storage in front."""
        return f"{self.log.folder.url}@{self.version}"

    @property
    def is_published(self) -> bool:
        """True if there is a version, or a tag, of this name."""
        return self.is_published_in(self.log.head())

    def is_published_in(self, head: Snapshot) -> bool:
        """Return whether a head of the log has a version, or a tag, of this name."""
        return head.tags.get(self.version, self.version) in head.versions


@dataclass(frozen=True)
class BuildPlan:
    """The plan of a build: everything that is decided before the first element is read."""

    request: BuildRequest
    source: Source
    """The source that was made of what the user passed."""
    options: BuildOptions
    """The options of the request, with the spec of the elements if it is known."""
    parts: Parts
    """The parts of the source."""
    recipe: Recipe
    """The recipe of the request, with what is known of the source."""
    facts: Mapping[str, Any]
    """The recipe, and what decides how records are cut into shards, as JSON values. Only a build whose facts are equal
    goes on after this one, or helps with it."""
    files: Sequence[FileFacts]
    """The listings of the files that the source reads, as they were when the plan was made."""
    length: int | None
    """The number of elements, if it is known."""
    engine: Engine | None
    """The engine that builds whole parts in other processes; None if this process writes all parts."""
    notes: Notes
    """The notes of the builds with these facts."""
    has_notes: bool
    """Whether finished parts are noted. A build of one part has no need: if it is interrupted, it begins anew."""
    started: float = field(default_factory=time.monotonic)
    """When the plan was made, in seconds of the monotonic clock."""

    @classmethod
    def of(cls, request: BuildRequest) -> Self:
        """Decide how to build a requested version. If the user's source is a function, this calls it."""
        source, options = _source_and_options(request)
        length = options.expected(source.length)
        parts = divide(source, options, length)
        files = source.files
        recipe = request.recipe.completed(source, files)
        base = request.extension.base
        spec = options.element_spec
        facts = {
            "format": FORMAT,
            **recipe.facts,
            "compression": options.compression.zstd_level,
            "shard_bytes": options.shard_bytes,
            "base": None if base is None else base.info.digest,
            "source": source.kind,
            "records of the source": source.plan,
            "parts": parts.plan,
            "length": source.length,
            "element spec": None if spec is None else spec_json.to_json(spec),
        }
        if not any("://" in file.name for file in files):
            # Copies of local files have other times on each machine. Remote files have those of their store.
            identity = facts.get("identity", {})
            identity.pop("files_modified", None)
            is_known = source.plan is not None or identity.keys() & {"elements", "columns", "records"}
            if not is_known and (isinstance(parts, Ranges) or (isinstance(parts, SourceParts) and files)):
                facts |= compared_records(parts, spec)
        if not options.resume:
            # No other build has this value, so none goes on after this one.
            facts[NOT_RESUMABLE] = uuid.uuid4().hex
        facts = json.loads(json.dumps(facts))
        engine = None if isinstance(parts, Whole) else _engine(source, options)
        is_shared = options.resume and parts.count > 1
        return cls(
            request=request,
            source=source,
            options=options,
            parts=parts,
            recipe=recipe,
            facts=facts,
            files=files,
            length=length,
            engine=engine,
            notes=Notes(
                request.log.folder,
                request.version,
                facts,
                recipe.identity.facts.get("files_modified"),
                has_shards=request.extension.puts_again(spec),
            ),
            has_notes=is_shared or engine is not None or (options.hosts is not None and not isinstance(parts, Whole)),
        )


def _engine(source: Source, options: BuildOptions) -> Engine | None:
    """Return the engine that builds whole parts of a source; None for none.

    With ``workers=`` alone, worker processes build whole parts if the source says so. Else they make elements, which
    the process of the build writes: that divides versions of a single part too.
    """
    if options.engine is None and options.workers > 1 and source.workers_make == "parts":
        return Processes(options.workers)
    return options.engine


def _source_and_options(request: BuildRequest) -> tuple[Source, BuildOptions]:
    """Return the source of what the user passed, and the options with the spec of its elements if that is known."""
    obj = request.source
    options = request.options
    extension = request.extension
    if extension.base is None or extension.spec is None:
        source = as_source(obj, unbatch=options.unbatch, element_spec=options.element_spec)
        return source, replace(options, element_spec=known_spec(source, options))
    name = extension.base.name
    if options.element_spec is not None:
        raise InvalidArgumentError(f"element_spec: appended records have the spec of {name}: leave it out")
    try:
        source = as_source(obj, unbatch=options.unbatch, element_spec=extension.spec)
    except InvalidArgumentError as error:
        own = _undeclared_spec(obj, options)
        if own is not None:
            # This names the fields that differ.
            check_fits(name, extension.spec, extension.new_fields, own)
        raise InvalidArgumentError(f"this source cannot be appended to {name}: {error}") from error
    options = replace(options, element_spec=extension.spec)
    check_fits(name, extension.spec, extension.new_fields, own_spec(source))
    _check_digits(extension.base, source)
    if extension.new_fields:
        options = replace(options, element_spec=known_spec(source, options))
    return source, options


def _undeclared_spec(obj: Any, options: BuildOptions) -> Tree | None:
    """Return the spec that a source has by itself; None if it is not known."""
    with suppress(CacheLayerError):
        return own_spec(as_source(obj, unbatch=options.unbatch))
    return None


def _check_digits(base: StoredVersion, source: Source) -> None:
    """Raise if integers of a version, and those that decimals of a source become, count other units."""
    own = said_of_columns(base.manifest.provenance.get("metadata") or {}, DECIMAL_DIGITS)
    for path, digits in said_of_columns(source.metadata, DECIMAL_DIGITS).items():
        if own.get(path) != digits:
            raise InvalidArgumentError(
                f"leaf {path} of {base.name} has integers of {own.get(path, 'no')} digits after the point, and the "
                f"decimals of the source have {digits}: cast them to the same type"
            )
