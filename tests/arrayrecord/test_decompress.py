"""Stored records that block headers cut decompress to what was stored, wherever the cuts are."""

from __future__ import annotations

import mmap
import resource
from pathlib import Path

import numpy as np
import pytest
import zstandard

from cachelayer.arrayrecord.blocks import BLOCK, HEADER, PAYLOAD
from cachelayer.arrayrecord.decompress import CutRecords, decompressed
from cachelayer.errors import CorruptionError
from cachelayer.records.record_buffers import RecordBuffer

NOISE = np.random.default_rng(0).bytes(200_000)
RECORDS = [NOISE, b"", NOISE[:1], b"text " * 60_000, NOISE[:70_000] + bytes(70_000)]


def varint(value: int) -> bytes:
    return (bytes([value & 0x7F | 0x80]) + varint(value >> 7)) if value >= 0x80 else bytes([value])


def stored(record: bytes, **options: bool) -> bytes:
    frame = zstandard.ZstdCompressor(**options).compress(record) if record else b""
    return varint(len(record)) + frame


def cut(parts: list[bytes], before_block: int) -> CutRecords:
    """Return stored records, each of which begins so many bytes before a block header, in two files."""
    files, base, logical = [], [], []
    for part in parts:
        begin = PAYLOAD - before_block
        payload = bytes(begin) + part
        blocks = [payload[at : at + PAYLOAD] for at in range(0, len(payload), PAYLOAD)]
        base.append(sum(map(len, files)))
        logical.append(begin)
        files.append(b"".join(b"\xff" * HEADER + block.ljust(PAYLOAD, b"\xee") for block in blocks))
    assert all(len(file) % BLOCK == 0 for file in files)
    lengths = np.array([len(part) for part in parts])
    return CutRecords(np.frombuffer(b"".join(files), np.uint8), np.array(base), np.array(logical), lengths)


@pytest.mark.parametrize("before_block", [0, 1, 2, 3, 5, 8, 12, 40_000])
@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize("checksum", [True, False])
def test_records_that_headers_cut_anywhere_decompress(before_block: int, *, sized: bool, checksum: bool) -> None:
    parts = [stored(record, write_content_size=sized, write_checksum=checksum) for record in RECORDS]
    found = decompressed([(np.arange(len(parts)), cut(parts, before_block))], str)
    assert found.to_list() == RECORDS


@pytest.mark.parametrize("sized", [True, False])
def test_a_cut_record_of_another_size_than_it_says_is_named(*, sized: bool) -> None:
    parts = [stored(record, write_content_size=sized) for record in RECORDS]
    frame = parts[3][len(varint(len(RECORDS[3]))) :]
    for wrong in (len(RECORDS[3]) - 1, len(RECORDS[3]) + 1):
        damaged = [*parts[:3], varint(wrong) + frame, *parts[4:]]
        with pytest.raises(CorruptionError, match="record 3 does not decompress"):
            decompressed([(np.arange(len(parts)), cut(damaged, 2))], lambda row: f"record {row}")
    short = [*parts[:3], parts[3][:-1], *parts[4:]]
    with pytest.raises(CorruptionError, match="record 3"):
        decompressed([(np.arange(len(parts)), cut(short, 2))], lambda row: f"record {row}")


def test_a_batch_that_does_not_fit_into_memory_is_not_called_damaged() -> None:
    records = RecordBuffer.of([stored(bytes(16 << 20))] * 40)
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20), before[1]))
    try:
        with pytest.raises(MemoryError):
            decompressed([(np.arange(40), records)], str)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
