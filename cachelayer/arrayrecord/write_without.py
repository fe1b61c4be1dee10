"""Write a shard anew without some of its records. Each leaves an empty one, so that all others keep their numbers."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np

from cachelayer.arrayrecord.local_shards import LocalShards, ShardFiles
from cachelayer.arrayrecord.writer import ShardStats, ShardWriter
from cachelayer.records.memory import Ints
from cachelayer.records.record_buffers import Frames, Records


def write_without(source: ShardFiles, erased: Ints, writer: ShardWriter) -> ShardStats:
    """Write the records of a shard as they are, those of some numbers empty, and return the facts about the new one.

    Args:
        source: the shard. Each record is compared with its checksum: damage must not get a checksum of its own.
        erased: the numbers in the shard of the records to leave empty.
        writer: writes the new shard, its index and its lengths.

    Raises:
        CorruptionError: if the shard is not what was published.
        StorageError: if the new one cannot be written.
    """
    try:
        for numbers, records in LocalShards.of_file(nullcontext(source), source.stats, "always").in_order():
            read = records.unmapped()
            lengths = np.where(np.isin(numbers, erased), 0, read.lengths)
            frames = Frames.of(Records(read.buffer, read.starts, lengths))
            writer.hash(frames)
            writer.write(frames)
        return writer.finish(lambda: None)
    except BaseException:
        writer.give_up()
        raise
