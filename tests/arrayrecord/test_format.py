"""The format on disk is the one of docs/format.md, and cannot change unnoticed."""

import base64
import hashlib
import json
import re
import struct
from collections import namedtuple
from pathlib import Path
from typing import Any

import google_crc32c
import ml_dtypes
import numpy as np
import pytest
import zstandard
from record_reference import record_of
from repository import ROOT

import cachelayer
from cachelayer import ArraySpec, Ragged, RaggedSpec, Sparse, SparseSpec
from cachelayer.records.codec import Codec
from cachelayer.records.selection import Selection

PAGE = ROOT.joinpath("docs", "format.md").read_text(encoding="utf-8")
Pair = namedtuple("Pair", ["first", "second"])


@pytest.fixture
def storage(tmp_path: Path) -> cachelayer.Storage:
    return cachelayer.Storage(tmp_path)


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_example_is_true() -> None:
    text = section("Records").split("**Example**")[1]
    f4, i4 = np.dtype("f4"), np.dtype("int32")
    spec = {"text": ArraySpec(str), "tokens": ArraySpec(i4, (None,)), "score": ArraySpec(f4)}
    element = {"text": "héllo", "tokens": np.array([1, 2, 3], np.int32), "score": 1.0}
    codec = Codec.of(spec)
    record = codec.encode(codec.columns([element])).to_list()[0]
    shown = re.search(r"```\n(.*?)```", text, re.DOTALL)
    assert shown is not None
    assert record == bytes.fromhex("".join(line.split("  ")[0] for line in shown[1].splitlines()))


VERSION = ["version", "manifest_sha256", "generation", "digest", "records", "nbytes", "time"]
"""The values of a row of an entry that lists versions."""
GOLDEN_SPEC = {
    "flag": ArraySpec(np.dtype(bool)),
    "pair": Pair(ArraySpec(np.dtype(ml_dtypes.bfloat16), (2,)), [ArraySpec(np.dtype("S3")), None]),
    "extended": ArraySpec(np.dtype("int16"), (None, 2)),
    "words": ArraySpec(str, (None,)),
    "blob": ArraySpec(bytes, nullable=True),
    "ragged": RaggedSpec(np.dtype("float32"), (None, None, None), ragged_rank=2, splits_dtype=np.dtype(np.int32)),
    "sparse": SparseSpec(np.dtype("uint8"), (None, 4)),
    "when": ArraySpec(np.dtype("M8[s]")),
    "int4": ArraySpec(np.dtype(ml_dtypes.int4), (3,), nullable=True),
}
GOLDEN_ELEMENT = {
    "flag": True,
    "pair": Pair(np.array([1.5, -2], ml_dtypes.bfloat16), [b"ab", None]),
    "extended": np.array([[1, 2], [3, 4]], np.int16),
    "words": np.array(["a", "", "\ud800é"], object),
    "blob": b"xyz",
    "ragged": Ragged.from_nested(
        np.array([0.5, 1.5, 2.5], np.float32), (np.array([0, 2], np.int32), np.array([0, 1, 3], np.int32))
    ),
    "sparse": Sparse(np.array([[1, 3]]), np.array([9], np.uint8), np.array([2, 4])),
    "when": np.datetime64(1_000_000_000, "s"),
    "int4": None,
}
GOLDEN_RECORD = (
    "0200000000000000040000000000000000ca9a3b00000000020000000200000003000000080000000c00000006000000"
    "0300000004000000080000000c0000001000000001000000c03f00c00161620000000000020000000100020003000400"
    "0100000000000000050000000000000061eda080c3a9000078797a000000000002000000000000000100000002000000"
    "0000003f0000c03f0000204000000000010000000000000003000000000000000900000000000000"
)
GOLDEN_DIGEST = "11a6b6b6c4a047c06fdce7320df01cb71b7f4fa0b7213df626c4aeba2524a1be"


def test_the_bytes_of_an_element_never_change() -> None:
    codec = Codec.of(GOLDEN_SPEC)
    record = codec.encode(codec.columns([GOLDEN_ELEMENT])).to_list()[0]
    assert record.hex() == GOLDEN_RECORD == record_of(GOLDEN_SPEC, GOLDEN_ELEMENT).hex()


def test_the_digest_of_a_dataset_never_changes(storage: cachelayer.Storage) -> None:
    elements = [{**GOLDEN_ELEMENT, "when": np.datetime64(i, "s")} for i in range(5)]
    for name in ("plain", "zstd"):
        options: dict[str, Any] = {"compression": None if name == "plain" else name, "metadata": {"a": name}}
        ref = storage.submit(elements, f"{name}@v1", element_spec=GOLDEN_SPEC, shard_bytes=700, **options)
        assert ref.nbytes == 3 * 131_072  # three shards: where they are cut is part of the digest
        assert ref.digest == GOLDEN_DIGEST


def canonical(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


@pytest.mark.parametrize(
    ("compression", "size"), [(None, None), ("zstd", None), (None, 128), (None, 20_000), (None, 0)]
)
def test_every_file_is_as_specified(
    storage: cachelayer.Storage, tmp_path: Path, compression: str | None, size: int | None
) -> None:
    elements = [bytes([i % 256]) * (i * 1997 % 150_000 if size is None else size) for i in range(60)]
    ref = storage.submit(elements, "blobs@v1", compression=compression, shard_bytes=1_000_000)
    storage.tag("blobs@v1", "best")
    root = tmp_path / "blobs"

    for name in ("head", "0000000002.json"):
        raw = (root / "_log" / name).read_bytes()
        entry = json.loads(raw)
        assert (entry["sequence"], list(entry)[-1]) == (2, "crc32c")
        assert entry["crc32c"] == google_crc32c.value(raw[: raw.rindex(b",")])
    changed = {"deleted", "sweeps", "swept", "superseded"}
    keys = {"format", "sequence", "versions", "tags", "files", "removed", "event", "token", "crc32c"}
    assert entry.keys() == keys | changed
    assert not any(entry[name] for name in changed)
    assert not any(entry["removed"].values())
    assert (entry["format"], entry["sequence"], entry["tags"]) == (1, 2, {"best": "v1"})
    [version] = (dict(zip(VERSION, row, strict=True)) for row in entry["versions"])
    for name in ("manifest_sha256", "digest"):
        version[name] = base64.b64decode(version[name] + "=").hex()
    raw = (root / "manifests" / f"{version['manifest_sha256'][:32]}-{version['generation']}.json").read_bytes()
    assert hashlib.sha256(raw).hexdigest() == version["manifest_sha256"]

    manifest = json.loads(raw)
    assert manifest.keys() == {"format", "data", "provenance", "token", "supersedes", "unerased_nbytes"}
    data = manifest["data"]
    assert data.keys() == {"rows", "segments", "kept", "erased", "columns"}
    stored = data["rows"]
    assert stored.keys() == {"codec", "element_spec", "shards", "array"}
    shards = stored["shards"]
    columns = [shards[name] for name in ("sha256", "nbytes", "crc32c", "index_crc32c")]
    columns += [shards["lengths_crc32c"]] if shards["length_crc32cs"] else []
    texts = [":".join(map(str, row)) for row in zip(*columns, strict=True)]
    hashes = [hashlib.sha256(text.encode()).hexdigest()[:32] for text in texts]
    names = [f"{each}-{generation}" for each, generation in zip(hashes, shards["generations"], strict=True)]
    assert len(names) > 1 or size is not None
    assert shards["record_nbytes"] == [size] * len(names)
    digest = {"codec": stored["codec"], "element_spec": stored["element_spec"]}
    digest |= {"records": shards["records"], "sha256": shards["sha256"]}
    assert hashlib.sha256(canonical(digest)).hexdigest() == version["digest"] == ref.digest
    assert (version["records"], version["nbytes"]) == (sum(shards["records"]), sum(shards["nbytes"]))

    read: list[bytes] = []
    for i, name in enumerate(names):
        stem = root / "shards" / name
        shard, index = stem.with_suffix(".array_record").read_bytes(), stem.with_suffix(".index").read_bytes()
        assert (len(shard), google_crc32c.value(shard)) == (shards["nbytes"][i], shards["crc32c"][i])
        assert (len(index), google_crc32c.value(index)) == (16 * shards["records"][i] + 16, shards["index_crc32c"][i])
        assert shards["compression"][i] == ("none" if compression is None else "zstd")
        assert index[:16] == bytes.fromhex(shards["sha256"][i])[:16]
        rows = list(struct.iter_unpack("<QII", index[16:]))
        assert shards["first_position"][i] == (None if size is None else rows[0][0])
        records = records_of(shard, rows, compressed=compression is not None, size=size)
        framed = b"".join(len(record).to_bytes(8, "little") + record for record in records)
        assert hashlib.sha256(framed).hexdigest() == shards["sha256"][i]
        assert len(records) == shards["records"][i]
        read += records
    assert read == elements


def records_of(shard: bytes, rows: Any, *, compressed: bool, size: int | None) -> list[bytes]:
    """The records of a shard, by nothing but what the page says; ``size`` is that of all of them, if they have one."""
    if size is not None:
        # Records of one size lie at equal distances.
        logical = np.array([position // 65536 * 65512 + position % 65536 - 24 for position, _, _ in rows])
        assert set(np.diff(logical).tolist()) == {42 + max(1, -(-size.bit_length() // 7)) + size}
    payload = b"".join(shard[start + 24 : start + 65536] for start in range(0, len(shard), 65536))
    records = []
    for position, length, checksum in rows:
        logical = position // 65536 * 65512 + max(position % 65536 - 24, 0)
        assert position == logical + 24 * (logical // 65512 + 1)
        record = payload[logical : logical + length]
        if compressed:
            decoded, used = 0, 0
            while True:
                byte = record[used]
                decoded |= (byte & 127) << (7 * used)
                used += 1
                if byte < 128:
                    break
            record = zstandard.ZstdDecompressor().decompress(record[used:], decoded) if decoded else b""
            assert len(record) == decoded
        assert google_crc32c.value(record) == checksum
        records.append(record)
    return records


def test_the_digest_of_a_view_is_as_specified(storage: cachelayer.Storage) -> None:
    ref = storage.submit(np.arange(10), "numbers@v1")

    def digest(kind: bytes, *numbers: int) -> str:
        return hashlib.sha256(bytes.fromhex(ref.digest) + kind + struct.pack(f"<{len(numbers)}q", *numbers)).hexdigest()

    assert ref[:].digest == ref[::-1][::-1].digest == ref.digest
    assert ref[2:5].digest == ref[1:][1:4].digest == digest(b"range", 2, 1, 3)
    assert ref[::-3].digest == digest(b"range", 9, -3, 4)
    assert ref[7:8].digest == ref[7:8:2].digest == digest(b"range", 7, 1, 1)
    assert ref[5:5].digest == digest(b"range", 0, 0, 0)
    assert Selection(np.array([3, 1, 4])).digest(ref.digest, 10) == digest(b"list", 3, 1, 4)
    assert Selection(np.array([3, 5, 7])).digest(ref.digest, 10) == ref[3:8:2].digest


def test_every_dtype_that_can_be_stored_is_on_the_page() -> None:
    from strategies import DTYPES

    from cachelayer.specs.dtypes import to_name

    text = section("Element specs")
    spelled = {"int16": "int8", "int32": "int8", "uint16": "uint8", "uint32": "uint8"}
    for dtype in DTYPES:
        name = to_name(dtype)
        name = re.sub(r"\[.*", "", name) if dtype.kind in "Mm" else name
        name = {"|S1": "|S5", "<U1": "<U5", "<U7": "<U5"}.get(name, spelled.get(name, name))
        assert f"`{name}" in text, name
