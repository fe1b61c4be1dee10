"""Stored records decompress to what was compressed, or are named."""

from __future__ import annotations

import mmap
import resource
from pathlib import Path

import numpy as np
import pytest
import zstandard

from cachelayer.arrayrecord import varints
from cachelayer.arrayrecord.compression import decompress
from cachelayer.errors import CorruptionError
from cachelayer.records.spans import Spans

NOISE = np.random.default_rng(0).bytes(200_000)
RECORDS = [NOISE, b"", NOISE[:1], b"text " * 60_000, NOISE[:70_000] + bytes(70_000)]


def varint(value: int) -> bytes:
    return (bytes([value & 0x7F | 0x80]) + varint(value >> 7)) if value >= 0x80 else bytes([value])


def stored(record: bytes, **options: bool) -> bytes:
    frame = zstandard.ZstdCompressor(**options).compress(record) if record else b""
    return varint(len(record)) + frame


@pytest.mark.parametrize(("sized", "checksum"), [(True, False), (False, True)])
def test_records_decompress_to_what_was_compressed_or_are_named(*, sized: bool, checksum: bool) -> None:
    parts = [stored(record, write_content_size=sized, write_checksum=checksum) for record in RECORDS]
    assert decompress(Spans.of_bytes(parts * 20)).packed_copy().to_list() == RECORDS * 20
    frame = parts[3][len(varint(len(RECORDS[3]))) :]
    for damaged in (varint(len(RECORDS[3]) - 1) + frame, varint(len(RECORDS[3]) + 1) + frame, parts[3][:-1]):
        with pytest.raises(CorruptionError, match="record 3"):
            decompress(Spans.of_bytes([*parts[:3], damaged, *parts[4:]]))


def test_a_batch_that_does_not_fit_into_memory_is_not_called_damaged() -> None:
    records = Spans.of_bytes([stored(bytes(16 << 20))] * 40)
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20), before[1]))
    try:
        with pytest.raises(MemoryError):
            decompress(records)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("raw", [b"\x80", b"\x08\x80", b"\x80" * 10 + b"\x01"])
def test_a_varint_that_is_cut_short_or_too_long_is_refused(raw: bytes) -> None:
    with pytest.raises(CorruptionError):
        varints.decode_all(np.frombuffer(raw, np.uint8))
