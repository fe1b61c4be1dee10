"""Check that an adapter was passed a stream, or records with random access, as it needs; and what all batches share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cachelayer.errors import InvalidTypeError
from cachelayer.protocols import declared_spec
from cachelayer.specs import tree
from cachelayer.specs.spec import JsonSpec, LeafSpec, VideoSpec, describe_leaf
from cachelayer.streams.stream import Stream
from cachelayer.views.view import View


def check_stream(value: Any) -> None:
    """Raise unless a value is a stream."""
    if not isinstance(value, Stream):
        raise InvalidTypeError(
            f"a {type(value).__name__} is not a stream: pass ref.stream(...) itself, which decides the order of "
            "records, not the records or an iterator"
        )


def check_ref(value: Any) -> None:
    """Raise unless a value gives random access to records."""
    if not isinstance(value, View):
        raise InvalidTypeError(
            f"a {type(value).__name__} is not a DataRef: pass the DataRef itself, without stream(...), or wrap() "
            "another object; mixtures and samples, which have no length, go by their stream(...) to what takes streams"
        )


def check_no_json(stream: Stream[Any], framework: str) -> None:
    """Raise if batches have a field of JSON, for a framework that has numbers alone."""
    _refuse_leaves(stream, JsonSpec, framework, "make numbers of one shape of it with map()")


def check_no_videos(stream: Stream[Any], framework: str) -> None:
    """Raise if batches have a field of videos, which no framework has."""
    _refuse_leaves(stream, VideoSpec, framework, "stream ref.clips(...), take frames of it with map()")


def _refuse_leaves(stream: Stream[Any], kind: type[LeafSpec], framework: str, cure: str) -> None:
    reader = stream._reader
    # A record of a wrapped object is not read for this.
    for path, leaf in tree.leaves(stream.element_spec if reader.is_mapped else declared_spec(reader.records)):
        if isinstance(leaf, kind):
            raise InvalidTypeError(
                f"{tree.leaf_title(path)} is {describe_leaf(leaf)}, which {framework} has no array for: {cure}, "
                "or leave it out with ref.fields()"
            )


def rows_of_batches(stream: Stream[Any]) -> int | None:
    """Return the number of rows that every batch of a shard has; None if some have fewer."""
    schedule = replace(stream._reader.schedule, num_epochs=None)
    is_even = schedule.step_sizes(schedule.start) == {schedule.global_batch}
    return schedule.global_batch // schedule.shard_count if is_even else None
