"""Write the parts of a source as shards: the loop of all builds, whoever decides which parts a process builds.

::

    part.batches() ──Batch──> Encoder.encode ──Frames──> ShardPipeline.write_part ──> shards in the store, then a note

The element spec must be known before the first record is encoded. The plan of a source that can be divided has it; for
other sources it is inferred from the first elements. With ``workers``, other processes read and encode, and this one
writes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, groupby
from operator import itemgetter

from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.element_specs import needs_elements, spec_of_batches
from cachelayer.builds.encode import Encoder, RangeEncoder, encode_with_workers
from cachelayer.builds.parts import Part, Parts, Ranges, Whole, part_in_errors
from cachelayer.builds.shard_pipeline import ShardPipeline
from cachelayer.records.codec import Codec, codec_for
from cachelayer.records.frames import Frames
from cachelayer.support.progress import current
from cachelayer.versions.notes import PartResult


def write_parts(parts: Parts, part_numbers: Iterable[int], pipeline: ShardPipeline, options: BuildOptions) -> Codec:
    """Write parts of a source, in this order, and return the codec of their records.

    A number is drawn when its part is about to be read.
    """
    codec = None if isinstance(parts, Whole) else codec_for(options.element_spec)
    if (
        codec is not None
        and options.workers > 1
        and isinstance(parts, Ranges)
        and parts.source.workers_make == "elements"
    ):
        encoded = _encoded_by_workers(parts, part_numbers, codec, options)
    else:
        encoded = _encoded_here(parts, part_numbers, codec, options)
    with closing(encoded) as encoded_parts:
        for each in encoded_parts:
            codec = each.encoder.codec
            with part_in_errors(each.part):
                pipeline.write_part(each.number, codec, each.frames, each.result)
    assert codec is not None  # noqa: S101 - a whole source is one part
    return codec


@dataclass(frozen=True)
class _EncodedPart:
    """A part whose records are made while ``frames`` is iterated."""

    number: int
    part: Part
    encoder: Encoder
    frames: Iterator[Frames]

    def result(self) -> PartResult:
        """Return the result, once all records are made."""
        result = self.encoder.result
        if not self.part.name:
            return result
        left_out = tuple(f"{self.part.name}: {text}" for text in result.first_left_out)
        reason = result.first_reason and f"{self.part.name}: {result.first_reason}"
        return replace(result, first_left_out=left_out, first_reason=reason)


def _encoded_here(
    parts: Parts, part_numbers: Iterable[int], codec: Codec | None, options: BuildOptions
) -> Generator[_EncodedPart, None, None]:
    """Yield each part, whose records this process makes. Without a codec, the first elements decide it."""
    for number in part_numbers:
        part = parts.part(number)
        batches = current().waiting_for("the source", part.batches())
        if codec is None:
            spec = options.element_spec
            if part.source.element_spec is None and needs_elements(spec, options):
                spec, batches = spec_of_batches(batches, spec, as_json=part.source.as_json)
            codec = codec_for(spec)
        encoder = Encoder(codec, options.checks, part.first, part.source.place)
        yield _EncodedPart(number, part, encoder, map(encoder.encode, batches))


def _encoded_by_workers(
    parts: Ranges, part_numbers: Iterable[int], codec: Codec, options: BuildOptions
) -> Generator[_EncodedPart, None, None]:
    """Yield each part, whose records worker processes make, some ranges of records at a time."""
    encode = RangeEncoder(parts.source, codec, options.checks)
    encoded = encode_with_workers(encode, options.workers, ((each, parts.range(each)) for each in part_numbers))
    with closing(encoded):
        waited = current().waiting_for("the worker processes", encoded)
        for number, encoded_ranges in groupby(waited, itemgetter(0)):
            part = parts.part(number)
            encoder = Encoder(codec, options.checks, part.first, part.source.place)
            frames = chain.from_iterable(encoder.take(encoded_range) for _, encoded_range in encoded_ranges)
            yield _EncodedPart(number, part, encoder, frames)
