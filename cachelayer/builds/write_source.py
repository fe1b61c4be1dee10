"""Write the elements of a source into shards: all of them, or part by part.

::

    source.batches() ──Batch──> Encoder.encode ──Frames──> ShardPipeline.write ──> shards, in the store
                                                           ShardPipeline.end_part ──> note of the part

The element spec must be known before the first record is encoded. The plan of a source in parts has the spec; for other
sources it is inferred from the first elements. With ``workers``, other processes read and encode, and this one writes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby
from operator import itemgetter

from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.element_specs import needs_elements, spec_of_batches
from cachelayer.builds.encode import Encoder, encode, encode_with_workers
from cachelayer.builds.parts import Part, Parts, Ranges, part_in_errors
from cachelayer.builds.shard_pipeline import ShardPipeline
from cachelayer.builds.shard_target import ShardTarget
from cachelayer.builds.source import Source
from cachelayer.progress import current
from cachelayer.records.codec import Codec, codec_for
from cachelayer.records.frames import Frames
from cachelayer.user_warnings import warn
from cachelayer.versions.notes import Notes, PartResult


def write_source(source: Source, target: ShardTarget, options: BuildOptions) -> tuple[Codec, PartResult]:
    """Write a source that cannot be divided.

    Args:
        options: the options. Without an element spec, it is inferred from the first elements.

    Returns:
        The codec of the records, and the result.
    """
    if options.workers > 1 and source.length != 0:
        warn(
            f"workers={options.workers}: a source of {source.kind} cannot be divided, so one process makes and writes "
            "its elements. More processes can work on a sequence with a length, on most datasets, and on what "
            "cachelayer.sharded(function, count) returns"
        )
    spec = options.element_spec
    batches = current().waiting_for("the source", source.batches(stop=options.max_records))
    if source.element_spec is None and needs_elements(spec, options):
        spec, batches = spec_of_batches(batches, spec, as_json=source.as_json)
    codec = codec_for(spec)
    encoder = _encoder(codec, options)
    with ShardPipeline(target, codec, options) as pipeline:
        pipeline.write(map(encoder.encode, batches))
        pipeline.end_part(0, encoder.result)
        return codec, pipeline.finish()[0]


def _encoder(codec: Codec, options: BuildOptions, first: int = 0) -> Encoder:
    return Encoder(codec, options.on_error, first, validate=options.validate)


def write_parts(
    parts: Parts, part_numbers: Iterable[int], target: ShardTarget, options: BuildOptions, notes: Notes | None
) -> dict[int, PartResult]:
    """Write parts of a source, in this order, and return their results by number.

    Args:
        part_numbers: the numbers of the parts to write.
        options: the options, with the element spec.
        notes: gets a note of each finished part; None to note nothing.
    """
    codec = codec_for(options.element_spec)
    if options.workers > 1 and isinstance(parts, Ranges) and parts.source.workers_make == "elements":
        encoded = _encoded_by_workers(parts, part_numbers, codec, options)
    else:
        encoded = _encoded_here(parts, part_numbers, codec, options)
    with ShardPipeline(target, codec, options, notes) as pipeline, closing(encoded) as encoded_parts:
        for encoded_part in encoded_parts:
            part = encoded_part.part
            with part_in_errors(part):
                pipeline.write(encoded_part.frames)
            result = encoded_part.encoder.result
            if part.name:
                left_out = tuple(f"{part.name}: {text}" for text in result.first_left_out)
                reason = result.first_reason and f"{part.name}: {result.first_reason}"
                result = replace(result, first_left_out=left_out, first_reason=reason)
            pipeline.end_part(encoded_part.number, result)
        return pipeline.finish()


@dataclass(frozen=True)
class _EncodedPart:
    """A part whose records are made while ``frames`` is iterated; after that, ``encoder.result`` is complete."""

    number: int
    part: Part
    encoder: Encoder
    frames: Iterator[Frames]


def _encoded_here(
    parts: Parts, part_numbers: Iterable[int], codec: Codec, options: BuildOptions
) -> Generator[_EncodedPart, None, None]:
    """Yield each part, whose records this process makes."""
    for number in part_numbers:
        part = parts.part(number)
        encoder = _encoder(codec, options, part.first)
        batches = current().waiting_for("the source", part.batches())
        yield _EncodedPart(number, part, encoder, map(encoder.encode, batches))


def _encoded_by_workers(
    parts: Ranges, part_numbers: Iterable[int], codec: Codec, options: BuildOptions
) -> Generator[_EncodedPart, None, None]:
    """Yield each part, whose records worker processes make, some ranges of records at a time."""
    ranges = {number: parts.range(number) for number in part_numbers}
    encode_range = partial(encode, parts.source, codec, on_error=options.on_error, validate=options.validate)
    encoded = encode_with_workers(encode_range, options.workers, ranges)
    with closing(encoded):
        waited = current().waiting_for("the worker processes", encoded)
        for number, encoded_ranges in groupby(waited, itemgetter(0)):
            part = parts.part(number)
            encoder = _encoder(codec, options, part.first)
            frames = chain.from_iterable(encoder.take(encoded_range) for _, encoded_range in encoded_ranges)
            yield _EncodedPart(number, part, encoder, frames)
