"""The plan of a build: everything that is decided before it begins."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from cachelayer.builds.as_source import as_source
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.element_specs import check_fits, known_spec, own_spec
from cachelayer.builds.extensions import Extension
from cachelayer.builds.parts import Parts, divide
from cachelayer.builds.recipe import Recipe
from cachelayer.builds.source import Source
from cachelayer.builds.source_files import FileFacts
from cachelayer.engines import Engine, Processes
from cachelayer.errors import InvalidArgumentError
from cachelayer.objects.local_cache import CacheFolder
from cachelayer.records import spec_json
from cachelayer.versions.log import Log
from cachelayer.versions.notes import Notes

NOT_RESUMABLE = "build"
"""The key in the facts of a build that nobody may resume."""


@dataclass(frozen=True)
class BuildRequest:
    """The request for a version, as it is known before the user's source is touched.

    Args:
        log: the log of the dataset.
        version: the name of the new version.
        copies: keeps local copies of the new shards if the store is not local; None for none.
        source: the user's source.
        recipe: what the version is built from.
        options: the options.
        extension: what is built: records of a version of its own, or what is added to another.
    """

    log: Log
    version: str
    copies: CacheFolder | None
    source: Any
    recipe: Recipe
    options: BuildOptions
    extension: Extension

    @property
    def name(self) -> str:
        return f"{self.log.folder.name}@{self.version}"

    @property
    def url(self) -> str:
        """The name with the URL of the storage."""
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
        request: what is to be built.
        source: the source that the user's source is.
        options: the options, with the spec of the elements if it is known.
        parts: the parts of the source; None if it cannot be divided.
        recipe: what the version is built from, with what is known of the source.
        facts: the recipe, and what decides the shards, as JSON values. Another build goes on after this one, or helps,
            only if its facts are equal.
        files: the listings of the files that the source reads.
        started: when it was made, in seconds of the monotonic clock.
    """

    request: BuildRequest
    source: Source
    options: BuildOptions
    parts: Parts | None
    recipe: Recipe
    facts: Mapping[str, Any]
    files: Sequence[FileFacts]
    started: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, request: BuildRequest) -> Self:
        """Decide how to build what was requested. If the user's source is a function, this calls it."""
        source, options = _source_and_options(request)
        parts = divide(source, options)
        files = source.files()
        recipe = request.recipe.completed(source, files)
        base, spec = request.extension.base, options.element_spec
        facts = {
            **recipe.facts,
            "compression": options.compression.zstd_level,
            "shard_bytes": options.shard_bytes,
            "base": None if base is None else base.info.digest,
            "source": source.kind,
            "records of the source": source.plan,
            "parts": None if parts is None else parts.plan,
            "length": source.length,
            "element spec": None if spec is None else spec_json.to_json(spec),
            **({} if options.resume else {NOT_RESUMABLE: uuid.uuid4().hex}),
        }
        return cls(request, source, options, parts, recipe, json.loads(json.dumps(facts)), files)

    @property
    def length(self) -> int | None:
        """The number of elements, if it is known."""
        return self.options.expected(self.source.length)

    @property
    def copies(self) -> CacheFolder | None:
        """Keeps local copies of the shards that are built; None for none."""
        # No local copies of what no version names: nobody would remove them when records are erased.
        return None if self.request.extension.is_put_again else self.request.copies

    @property
    def notes(self) -> Notes:
        """The notes of the builds with these facts."""
        return Notes(self.request.log.folder, self.request.version, self.facts)

    @property
    def engine(self) -> Engine | None:
        """What runs the parts in other processes; None if this process writes them.

        Worker processes then make elements, if these take time to make, and this process writes them: that divides
        small versions too.
        """
        engine, workers = self.options.engine, self.options.workers
        if engine is not None or workers == 1 or self.source.workers_make != "parts":
            return engine
        return Processes(workers)


def _source_and_options(request: BuildRequest) -> tuple[Source, BuildOptions]:
    """Return the user's source as a source, and the options with the spec of its elements, if it is known."""
    obj, options, extension = request.source, request.options, request.extension
    if extension.base is None or extension.spec is None:
        source = as_source(obj, unbatch=options.unbatch, element_spec=options.element_spec)
        return source, replace(options, element_spec=known_spec(source, options))
    name = extension.base.name
    if options.element_spec is not None:
        raise InvalidArgumentError(f"element_spec: appended records have the spec of {name}: leave it out")
    try:
        source = as_source(obj, unbatch=options.unbatch, element_spec=extension.spec)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"this source cannot be appended to {name}: {error}") from error
    check_fits(name, extension.spec, own_spec(source))
    return source, replace(options, element_spec=extension.spec)
