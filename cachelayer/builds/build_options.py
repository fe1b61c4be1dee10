"""The options of a build, and their checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, TypedDict

from cachelayer.arrayrecord.compression import Compression
from cachelayer.builds.encode import ON_ERROR, Checks, OnError
from cachelayer.engines import Engine, engine_of
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.provenance.environment import checked_annotations
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
        >>> ref = cachelayer.Storage(folder).cache(["a", "b", "c"], "letters@v1", **options)
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
class Hosts:
    """This host, and its place among the hosts that build a version together."""

    index: int
    """From 0."""
    count: int

    @classmethod
    def checked(cls, hosts: Any) -> Self:
        """Check what a user passes as ``hosts``."""
        if not isinstance(hosts, tuple) or len(hosts) != 2:
            raise InvalidTypeError(
                f"hosts {hosts!r}: pass (index, count), as (jax.process_index(), jax.process_count())"
            )
        index = integer("the index in hosts", hosts[0], 0)
        count = integer("the count in hosts", hosts[1], 1)
        if index >= count:
            raise InvalidArgumentError(f"hosts {hosts}: the index must be less than the count")
        return cls(index, count)

    def owner_of(self, part: int, part_count: int) -> int:
        """Return the index of the host that has a part in its share: the hosts share out the parts in order."""
        return part * self.count // part_count


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
    hosts: Hosts | None
    """This host among those that build the version together; None if one process builds it."""

    @classmethod
    def of(cls, options: Mapping[str, Any], *keywords: str, hosts: Any = None) -> Self:
        """Check the options that a user passed by name.

        An error about an unknown option also names ``keywords``, the others of the call.
        """
        check_options(options, [*SubmitOptions.__annotations__, *keywords])
        spec = options.get("element_spec")
        most = options.get("max_records")
        shows = options.get("progress")
        engine = options.get("engine")
        resume = options.get("resume", True)
        on_error = options.get("on_error", "raise")
        if on_error not in ON_ERROR:
            raise InvalidArgumentError(f"on_error {on_error!r}: it must be one of {', '.join(map(repr, ON_ERROR))}")
        workers = integer("workers", options.get("workers", 1), 1)
        if hosts is not None and engine is not None:
            raise InvalidArgumentError(
                "hosts= and engine=: the hosts, or the engine, divide the parts: leave out one of them; workers= "
                "divides the parts of a host among its processes"
            )
        if hosts is not None and not resume:
            raise InvalidArgumentError(
                "resume=False: hosts that build together go on from each other's notes: leave it out, or build on one"
            )
        return cls(
            element_spec=None if spec is None else declared(spec),
            compression=Compression.parse(options.get("compression")),
            shard_bytes=integer("shard_bytes", options.get("shard_bytes", DEFAULT_SHARD_BYTES), 1),
            max_records=None if most is None else integer("max_records", most, 0),
            unbatch=boolean("unbatch", options.get("unbatch", False)),
            on_error=on_error,
            validate=boolean("validate", options.get("validate", True)),
            allow_empty=boolean("allow_empty", options.get("allow_empty", False)),
            progress=None if shows is None else boolean("progress", shows),
            resume=boolean("resume", resume),
            workers=workers,
            engine=None if engine is None else engine_of(engine, workers),
            annotations=checked_annotations(options.get("description"), options.get("metadata")),
            hosts=None if hosts is None else Hosts.checked(hosts),
        )

    @property
    def checks(self) -> Checks:
        """How the elements are checked."""
        return Checks(self.on_error == "skip", self.validate)

    def expected(self, length: int | None) -> int | None:
        """Return how many elements are taken from a source of this length; None if the length is unknown."""
        if length is None or self.max_records is None:
            return length
        return min(length, self.max_records)
