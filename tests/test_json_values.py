"""Stored JSON, whoever wrote it: decoded whole and checked, or refused with an error of ours."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mutations import DEEP, mutated
from samples import some

from cachelayer import ArraySpec, CorruptionError, FormatError, ImageSpec, InvalidArgumentError, RaggedSpec, StateError
from cachelayer.arrayrecord.index import ShardStats
from cachelayer.objects import paths
from cachelayer.protocols import Digests
from cachelayer.provenance.environment import checked_annotations
from cachelayer.records.codec import codec_named
from cachelayer.records.selection import Selection
from cachelayer.specs import spec_json
from cachelayer.specs.tree import leaves, namedtuple_class
from cachelayer.streams.checkpoint import FILE, read_state
from cachelayer.streams.state import restore, state_of
from cachelayer.streams.stream_options import make_options
from cachelayer.support import json_values
from cachelayer.support.json_values import sealed, unsealed
from cachelayer.versions.derive import keeping
from cachelayer.versions.log import event_of
from cachelayer.versions.manifest import Manifest
from cachelayer.versions.shard_set import ShardSet
from cachelayer.versions.shard_table import ShardFile, ShardTable
from cachelayer.versions.snapshot import Deletion, Snapshot, Superseded, VersionInfo, manifest_stem

STATS = ShardStats(4, 300, 7, "ab" * 32, "none", 9, 8, 98, 4, (5, 6), (9, 2))
SPEC = {
    "x": ArraySpec("float32", (2, None), nullable=True),
    "y": [RaggedSpec("int8", (None, None)), None, ImageSpec("RGB")],
    "z": namedtuple_class("Point", ("a", "b"))(ArraySpec("bfloat16"), ArraySpec(str)),
}
VARYING = {"t": ArraySpec("int8", (None,)), "u": ArraySpec(str)}
SHARDS = ShardTable(ShardFile(STATS, generation) for generation in range(3))
INFO = VersionInfo("v1", "0" * 64, 2, "1" * 64, 3, 100, "2026-01-01T00:00:00+00:00")


def a_manifest(kept: Selection) -> Any:
    provenance = {"time": "now", "metadata": {"a": [1]}}
    whole = Manifest(ShardSet.of("typed/1", VARYING, SHARDS), provenance, "token", (8, 4))
    return json.loads(keeping(whole, kept).encode())


MANIFESTS = {
    "a step": a_manifest(Selection(range(9, 3, -2))),
    "a file": a_manifest(Selection(np.array([9, 3, 4]))),
}


def use_manifest(document: Any) -> None:
    manifest = Manifest.decode(json.dumps(document).encode(), "m")
    again = Manifest.decode(manifest.encode(), "m")
    assert again.digest == manifest.digest
    assert again.unsliced_digest == manifest.unsliced_digest
    assert manifest.records >= 0
    names = [blob.name for shard in manifest.shards for blob in shard.blobs]
    for name in names:
        assert paths.is_file(name.partition(".")[0])
    dict(manifest.provenance.get("metadata") or {})
    codec_named(manifest.rows.codec, manifest.rows.element_spec)


def use_entry(document: Any) -> None:
    snapshot = Snapshot.decode(sealed(document), "entry", 7)
    assert snapshot.sequence == 7
    assert Snapshot.decode(snapshot.encode("t"), "entry", 7) == snapshot
    for info in snapshot.versions.values():
        assert paths.is_file(manifest_stem(info))
    for name in (*snapshot.versions, *snapshot.tags, *snapshot.tags.values()):
        paths.check_name("version", name)
    assert all(map(paths.is_file, snapshot.swept))
    str(event_of(snapshot))


def use_spec(document: Any) -> None:
    spec = spec_json.from_json(document)
    assert spec_json.from_json(spec_json.to_json(spec)) == spec
    assert all(repr(leaf) for leaf in leaves(spec))
    codec_named("typed/1", spec)


ENTRY = unsealed(
    Snapshot(
        7,
        {"v1": INFO},
        {"best": "v1"},
        (Deletion(INFO, 5, 3600.0),),
        sweeps=(2, 7),
        swept=frozenset({SHARDS[0].file}),
        superseded={"2" * 64: Superseded("v1", "1" * 64, "asked to", "now")},
        event={"kind": "tag", "of": ["a"], "pid": 3},
    ).encode("token")
)
DECODERS: dict[str, tuple[Any, Callable[[Any], None]]] = {
    "a manifest": (MANIFESTS["a step"], use_manifest),
    "a manifest with a file of numbers": (MANIFESTS["a file"], use_manifest),
    "an entry of the log": (ENTRY, use_entry),
    "an element spec": (spec_json.to_json(SPEC), use_spec),
}


@pytest.mark.parametrize("what", DECODERS)
@pytest.mark.sampled
def test_whatever_stands_in_a_document_it_is_decoded_or_refused(what: str) -> None:
    document, use = DECODERS[what]
    use(document)
    for done, each in some(list(mutated(document))):
        try:
            with suppress(CorruptionError, FormatError):
                use(each)
        except Exception as error:
            raise AssertionError(f"{what}: {done}") from error


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"9" * 5000,
        b'{"format":1,"format":1}',
        b"nul",
        b'{"format":1e999}',
    ],
)
def test_whatever_bytes_lie_there_they_are_refused(raw: bytes) -> None:
    for decode in (Manifest.decode, lambda raw, name: Snapshot.decode(raw, name, 1)):
        with pytest.raises(CorruptionError, match="m: not a whole"):
            decode(raw, "m")


def test_states_are_restored_or_refused() -> None:
    digests, schedule = Digests.of("ab" * 32), make_options(10, 2, shuffle=True, seed=3).without([(2, 4)])
    for done, state in mutated(state_of(digests, "", schedule, 5)):
        for given in (state, json.dumps(state)):
            try:
                with suppress(StateError):
                    assert 0 <= restore(digests, "", schedule, given)[1] <= 2**62
            except Exception as error:
                raise AssertionError(done) from error


def test_what_could_not_be_read_again_is_not_written() -> None:
    with pytest.raises(InvalidArgumentError, match="nested deeper than 100"):
        checked_annotations(None, {"deep": DEEP})
    with pytest.raises(InvalidArgumentError, match="nested deeper than 100"):
        Manifest(ShardSet.of("typed/1", SPEC, SHARDS), {"deep": DEEP}).encode()
    spec: Any = ArraySpec("int8")
    for _ in range(101):
        spec = [spec]
    with pytest.raises(InvalidArgumentError, match="nested deeper than 100"):
        spec_json.to_json(spec)


@pytest.mark.parametrize("raw", [b"", b"[" * 100_000, b"\xff", b"[]", b"9" * 5000])
def test_a_checkpoint_that_is_none_is_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / FILE).write_bytes(raw)
    with pytest.raises(StateError, match="sampler state"):
        read_state(tmp_path)


def test_a_document_that_is_too_large_is_neither_parsed_nor_written(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Snapshot(1).encode("token")
    large = Manifest(ShardSet.of("typed/1", VARYING, SHARDS), {"metadata": {"a": "b" * 2000}})
    raw = large.encode()
    monkeypatch.setattr(json_values, "MOST_NBYTES", len(entry))
    assert Snapshot.decode(entry, "e", 1).sequence == 1
    with pytest.raises(CorruptionError, match="bytes of JSON"):
        Snapshot.decode(entry[:1] + b" " + entry[1:], "e", 1)
    with pytest.raises(CorruptionError, match="bytes of JSON"):
        Manifest.decode(raw, "m")
    with pytest.raises(InvalidArgumentError, match="shard_bytes"):
        large.encode()
