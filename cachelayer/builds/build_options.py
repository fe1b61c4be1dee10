"""The options of a build, and their checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, TypedDict

from cachelayer.arrayrecord.compression import Compression
from cachelayer.builds.encode import ON_ERROR, OnError
from cachelayer.engines import Engine, engine_of
from cachelayer.errors import InvalidArgumentError
from cachelayer.provenance.environment import checked_description, checked_metadata
from cachelayer.records.infer import declared
from cachelayer.specs.tree import Tree
from cachelayer.support.arguments import boolean, check_options, integer
from cachelayer.versions import DEFAULT_SHARD_BYTES

RECORD_OVERHEAD = 64
"""About the bytes that a record takes in an ArrayRecord file and its index, besides its own."""


class SubmitOptions(TypedDict, total=False):
    """The type of a dict of build options, which :meth:`cachelayer.Storage.submit` explains.

    ``submit``, ``cache``, ``cacheable``, ``append`` and ``add_columns`` take them. A type checker finds what is
    mistyped in a dict that is annotated with this type.

    Examples:
        >>> options: cachelayer.SubmitOptions = {"compression": "zstd", "max_records": 2, "metadata": {"by": "me"}}
        >>> ref = cachelayer.Storage(folder).cache(["a", "b", "c"], "letters", "v1", **options)
        >>> list(ref), ref.metadata
        (['a', 'b'], {'by': 'me'})
    """

    element_spec: Tree | None
    compression: str | None
    shard_bytes: int
    max_records: int | None
    unbatch: bool
    on_error: OnError
    validate: bool
    allow_empty: bool
    workers: int
    engine: str | Engine | None
    resume: bool
    progress: bool | None
    description: str | None
    metadata: Mapping[str, Any] | None


@dataclass(frozen=True)
class BuildOptions:
    """The checked options of a build; :meth:`cachelayer.Storage.submit` explains them."""

    element_spec: Tree | None
    compression: Compression
    shard_bytes: int
    max_records: int | None
    unbatch: bool
    on_error: OnError
    validate: bool
    allow_empty: bool
    progress: bool | None
    resume: bool
    workers: int
    engine: Engine | None
    annotations: Mapping[str, Any]
    """The description and the metadata that are stored with the version."""

    @classmethod
    def of(cls, options: Mapping[str, Any], *beside: str) -> Self:
        """Check the options that a user passed by name.

        Args:
            options: the options.
            beside: the other keywords of the call, which an error about an unknown option names too.
        """
        check_options(options, [*SubmitOptions.__annotations__, *beside])
        return cls.checked(**options)

    @classmethod
    def checked(
        cls,
        *,
        element_spec: Tree | None = None,
        compression: str | None = None,
        shard_bytes: int = DEFAULT_SHARD_BYTES,
        max_records: int | None = None,
        unbatch: bool = False,
        on_error: OnError = "raise",
        validate: bool = True,
        allow_empty: bool = False,
        progress: bool | None = None,
        resume: bool = True,
        workers: int = 1,
        engine: str | Engine | None = None,
        description: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return the options if they are valid."""
        if on_error not in ON_ERROR:
            raise InvalidArgumentError(f"on_error {on_error!r}: it must be one of {', '.join(map(repr, ON_ERROR))}")
        workers = integer("workers", workers, 1)
        return cls(
            element_spec=None if element_spec is None else declared(element_spec),
            compression=Compression.parse(compression),
            shard_bytes=integer("shard_bytes", shard_bytes, 1),
            max_records=None if max_records is None else integer("max_records", max_records, 0),
            unbatch=boolean("unbatch", unbatch),
            on_error=on_error,
            validate=boolean("validate", validate),
            allow_empty=boolean("allow_empty", allow_empty),
            progress=None if progress is None else boolean("progress", progress),
            resume=boolean("resume", resume),
            workers=workers,
            engine=None if engine is None else engine_of(engine, workers),
            annotations={"description": checked_description(description), "metadata": checked_metadata(metadata)},
        )

    def expected(self, length: int | None) -> int | None:
        """Return how many elements are taken from a source of this length; None if the length is unknown."""
        if length is None or self.max_records is None:
            return length
        return min(length, self.max_records)
