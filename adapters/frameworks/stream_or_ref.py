"""Check what an adapter was passed: a stream, records with random access, or a pipeline; and what all batches share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from cachelayer.errors import InvalidTypeError
from cachelayer.protocols import declared_spec
from cachelayer.specs.schema import Schema
from cachelayer.specs.spec import ArraySpec, AudioSpec, ImageSpec, VideoSpec, decoded_leaf
from cachelayer.specs.tree import Tree
from cachelayer.streams.stream import Stream
from cachelayer.support.user_warnings import warn
from cachelayer.views.view import View

CURE_OF_VIDEOS = "stream ref.clips(...), or take frames of it with map()"
CURE_OF_VALUES = (
    "make numbers of one shape of it with map(), or with filled(value) or to_dense(length) in map_batches()"
)


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


def check_numbers(stream: Stream[Any], framework: str, has_dtype: Callable[[np.dtype[Any]], bool]) -> None:
    """Raise if batches have a field that is no array of numbers, for a framework that takes these alone."""
    reader = stream._reader
    # A record of a wrapped object is not read for this.
    spec = stream.element_spec if reader.is_mapped else declared_spec(reader.records)

    def cure(leaf: Tree) -> str | None:
        if isinstance(leaf, VideoSpec):
            return CURE_OF_VIDEOS
        is_array = isinstance(leaf, (ArraySpec, ImageSpec, AudioSpec)) and not (leaf.nullable or leaf.nullable_values)
        dtype = decoded_leaf(leaf).dtype if is_array else None
        return None if isinstance(dtype, np.dtype) and has_dtype(dtype) else CURE_OF_VALUES

    Schema.of(spec).check_taken(framework, cure)


def rows_of_batches(stream: Stream[Any]) -> int | None:
    """Return the number of rows that every batch of a shard has; None if some have fewer."""
    schedule = replace(stream._reader.schedule, num_epochs=None)
    is_even = schedule.step_sizes(schedule.start) == {schedule.global_batch}
    return schedule.global_batch // schedule.shard_count if is_even else None


def warn_of_steps(kind: str, steps: Iterable[str]) -> None:
    """Warn if steps that should be left out, such as ``.shuffle()``, make batches, or draw at random in a ``map``."""
    names = ", ".join(dict.fromkeys(steps))
    what = []
    if "batch" in names:
        what.append("each of its batches becomes one record")
    if "map" in names:
        what.append("what it draws at random is the same in every epoch")
    if what:
        warn(
            f"the {kind} is cached as it is: {' and '.join(what)}. Leave out {names}: a stream shuffles, augments by "
            f"map(fn, rng=True) and batches anew in every epoch"
        )
