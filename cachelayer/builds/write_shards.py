"""Write the elements of a source into shards: of all of it, or of any parts of a divided one."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import groupby
from operator import itemgetter

from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.element_specs import needs_elements, spec_of_batches
from cachelayer.builds.encode import Encoder, encode_with_workers
from cachelayer.builds.parts import Part, Parts, Ranges, part_in_errors
from cachelayer.builds.shard_pipeline import ShardPipeline, ShardTarget
from cachelayer.builds.source import Source
from cachelayer.progress import current
from cachelayer.records.codec import codec_for
from cachelayer.records.frames import Frames
from cachelayer.records.memory import keep_freed_memory
from cachelayer.records.tree import Tree
from cachelayer.user_warnings import warn
from cachelayer.versions.notes import Notes, PartResult


def write_whole(source: Source, target: ShardTarget, options: BuildOptions) -> tuple[Tree, PartResult]:
    """Write a source that is not divided.

    Args:
        source: the source.
        target: where shards go.
        options: the options. Without an element spec, the first elements tell it.

    Returns:
        The spec of the elements, and the result.
    """
    keep_freed_memory()
    if options.workers > 1 and source.length != 0:
        warn(
            f"workers={options.workers}: a source of {source.kind} cannot be divided, so one process makes and writes "
            "its elements. More processes can work on a sequence with a length, on most datasets, and on what "
            "cachelayer.sharded(function, count) returns"
        )
    spec = options.element_spec
    batches = current().waiting_for("the source", source.batches(stop=options.max_records))
    if source.element_spec is None and needs_elements(spec, options):
        spec, batches = spec_of_batches(batches, spec)
    encoder = Encoder(codec_for(spec), options.on_error)
    with ShardPipeline(target, replace(options, element_spec=spec)) as pipeline:
        pipeline.write(map(encoder.encode, batches))
        pipeline.end_part(0, encoder.result)
        return spec, pipeline.finish()[0]


def write_parts(
    parts: Parts, numbers: Iterable[int], target: ShardTarget, options: BuildOptions, notes: Notes | None
) -> dict[int, PartResult]:
    """Write parts of a source, in this order, and return them by number.

    Args:
        parts: the source.
        numbers: the numbers of the parts.
        target: where shards go.
        options: the options, with the element spec.
        notes: where each finished part is noted; None for nowhere.
    """
    keep_freed_memory()
    if options.workers > 1 and isinstance(parts, Ranges) and parts.source.workers_make == "elements":
        encoded = _encoded_by_workers(parts, numbers, options)
    else:
        encoded = _encoded_here(parts, numbers, options)
    with ShardPipeline(target, options, notes) as pipeline, closing(encoded) as sequence:
        for number, part, encoder, frames in sequence:
            with part_in_errors(part):
                pipeline.write(frames)
            result = encoder.result
            if part.name:
                result = replace(result, first_left_out=tuple(f"{part.name}: {text}" for text in result.first_left_out))
            pipeline.end_part(number, result)
        return pipeline.finish()


_Encoded = Generator[tuple[int, Part, Encoder, Iterator[Frames]], None, None]


def _encoded_here(parts: Parts, numbers: Iterable[int], options: BuildOptions) -> _Encoded:
    """Yield each part with its encoder, and its records as they are made in this process."""
    for number in numbers:
        part = parts.part(number)
        encoder = Encoder(codec_for(options.element_spec), options.on_error, part.first)
        batches = current().waiting_for("the source", part.batches())
        yield number, part, encoder, map(encoder.encode, batches)


def _encoded_by_workers(parts: Ranges, numbers: Iterable[int], options: BuildOptions) -> _Encoded:
    """Yield each part with its encoder, and its records as worker processes make them."""
    ranges = {number: parts.range(number) for number in numbers}
    chunks = encode_with_workers(parts.source, options.element_spec, options.on_error, options.workers, ranges)
    with closing(chunks):
        waited = current().waiting_for("the worker processes", chunks)
        for number, group in groupby(waited, itemgetter(0)):
            part = parts.part(number)
            encoder = Encoder(codec_for(options.element_spec), options.on_error, part.first)
            yield number, part, encoder, (frames for _, chunk in group for frames in encoder.take(chunk))
