"""The lengths of leaves: of versions, views and what is joined, with and without files of lengths, near and far."""

import hashlib
import pickle
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from document_views import ELEMENTS, LEAVES, SPEC, values_of
from faults import fault_proxy
from servers import Server, new_bucket
from stored import set_facts, shard_files

import cachelayer
from cachelayer import (
    ArraySpec,
    CacheLayerWarning,
    CorruptionError,
    ElementError,
    InvalidArgumentError,
    InvalidTypeError,
    Storage,
)
from cachelayer.arrayrecord.lengths import encode_lengths
from cachelayer.datasets.dataset import LeafRead
from cachelayer.support.json_values import sealed, unsealed
from cachelayer.versions.shard_table import ShardTable
from cachelayer.versions.snapshot import info_of_row, manifest_name


def naive(elements: list[dict[str, Any]], leaf: str) -> list[int]:
    return [len(values) for values in values_of(elements, leaf)]


def submit(storage: Storage, **options: Any) -> Any:
    return storage.submit(ELEMENTS, "d@v1", element_spec=SPEC, **{"shard_bytes": 4000, **options})


@pytest.fixture(scope="module")
def ref(tmp_path_factory: pytest.TempPathFactory) -> Any:
    ref = submit(Storage(tmp_path_factory.mktemp("lengths")))
    assert len(ref._base.version.manifest.shards) > 2
    return ref


def flip(raw: bytes, place: int) -> bytes:
    return raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]


def check(view: Any, elements: list[dict[str, Any]]) -> None:
    for leaf in LEAVES:
        lengths = view.lengths(leaf)
        assert (lengths.dtype, lengths.flags.writeable) == (np.uint32, False)
        assert lengths.tolist() == naive(elements, leaf)
        assert view.total(leaf) == sum(naive(elements, leaf))


@pytest.mark.parametrize("options", [{"workers": 2}, {"max_records": 40}])
def test_every_build_stores_the_lengths_of_its_records(tmp_path: Path, options: dict[str, Any]) -> None:
    ref = submit(Storage(tmp_path), **options)
    check(ref, ELEMENTS[: len(ref)])
    assert Storage(tmp_path).verify("d@v1", progress=False)


def test_neither_totals_nor_lengths_read_a_record(ref: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    view = pickle.loads(pickle.dumps(ref))
    monkeypatch.setattr(type(view._base), "shards", property(lambda _: pytest.fail("a shard was opened")))
    check(view, ELEMENTS)
    check(view[10:30], ELEMENTS[10:30])


def test_leaves_without_lengths_are_refused_by_name(tmp_path: Path) -> None:
    spec = {"n": np.int64, "grid": ArraySpec("uint8", (None, 2)), "words": ArraySpec(str, (None,)), "a/b": str}
    element = {
        "n": 1,
        "grid": np.zeros((3, 2), np.uint8),
        "words": ["a", "b"],
        "a/b": "x",
        "a": {"b": "yy"},
        "c/d": "z",
    }
    ref = Storage(tmp_path).submit([element], "d@v1", element_spec={**spec, "a": {"b": str}, "c/d": str})
    assert [ref.lengths(name).tolist() for name in ("words", "c/d")] == [[2], [1]]
    for name, message in {"n": "'n'", "grid": "'grid'", "nope": "'words'", "a": "'a'", "": "''", "a/b": "a/b"}.items():
        for read in (ref.lengths, ref.total):
            with pytest.raises(InvalidArgumentError, match=message):
                read(name)
    for wrong, message in ((["words"], "of type list"), (3, "field 3 of type int")):
        with pytest.raises(InvalidTypeError, match=message):
            ref.lengths(wrong)


@pytest.mark.parametrize("how", ["cut", "gone", "header", "sum", "of another shard"])
def test_damaged_lengths_are_made_again_with_a_warning_and_told_by_verify(tmp_path: Path, how: str) -> None:
    def windows(ref: Any) -> Any:
        return ref.windows("tokens", 9, separator=1).read(slice(None))["tokens"].tolist()

    ref = submit(Storage(tmp_path))
    expected = windows(pickle.loads(pickle.dumps(ref)))
    first, second = shard_files(ref, "lengths")[:2]
    raw = first.read_bytes()
    first.unlink()
    if how != "gone":
        changed = {
            "cut": raw[:-8],
            "header": flip(raw, 20),
            "sum": flip(raw, 150),
            "of another shard": second.read_bytes(),
        }
        first.write_bytes(changed[how])
    if how == "header":  # which says nothing that the manifest does not say
        check(ref, ELEMENTS)
    else:
        with pytest.warns(CacheLayerWarning, match=first.name):
            check(ref, ELEMENTS)
        assert windows(ref) == expected
    report = Storage(tmp_path).verify("d@v1", progress=False)
    assert report.records == 90
    assert [f"{first.name}" in problem for problem in report.problems] == [True]
    with pytest.raises(CorruptionError, match=first.name):
        Storage(tmp_path).copy("d@v1", Storage(tmp_path / "there"), progress=False)


def lie(folder: Path, ref: Any, lengths: Any) -> Any:
    """Replace the lengths of a version of one shard, with checksums and totals that fit, as its author could."""
    raw, file = encode_lengths(lengths)
    shard_files(ref, "lengths")[0].write_bytes(raw)
    manifest = ref._base.version.manifest
    (shard,) = manifest.shards
    sums = {"length_crc32cs": tuple(file.checksums), "length_totals": tuple(file.totals)}
    lying = replace(shard, stats=replace(shard.stats, **sums, lengths_crc32c=google_crc32c.value(raw)))
    for blob, new in zip(shard.blobs, lying.blobs, strict=True):
        (folder / "d" / blob.name).rename(folder / "d" / new.name)
    rows = replace(manifest.rows, shards=ShardTable([lying]))
    written = replace(manifest, rows=rows).encode()
    entry = folder / "d/_log/0000000001.json"
    logged = unsealed(entry.read_bytes())
    set_facts(logged, "v1", manifest_sha256=hashlib.sha256(written).hexdigest())
    (folder / "d" / manifest_name(info_of_row("v1", logged["versions"][0]))).write_bytes(written)
    entry.write_bytes(sealed(logged))
    return Storage(folder).fetch("d@v1")


def test_lengths_that_lie_never_read_past_a_record(tmp_path: Path) -> None:
    ref = submit(Storage(tmp_path), shard_bytes=1 << 28)
    lengths = np.stack([naive(ELEMENTS, leaf) for leaf in LEAVES], axis=1)
    lengths[5] += 1
    lengths[9] = 2**32 - 1
    foreign = lie(tmp_path, ref, lengths)
    assert foreign.lengths("tokens").tolist() == lengths[:, 0].tolist()
    elements, ones = foreign._records.base, np.ones(1, np.int64)
    (values,) = elements.leaf_values(6 * ones, [LeafRead(1, 0 * ones, lengths[6, :1])])
    assert values.tolist() == ELEMENTS[6]["tokens"].tolist()
    for record in (5, 9):
        with pytest.raises(CorruptionError, match="length"):
            elements.leaf_values(record * ones, [LeafRead(1, 0 * ones, lengths[record, :1])])
    with pytest.raises(CorruptionError, match="length"):
        elements.leaf_values(6 * ones, [LeafRead(1, 0 * ones, lengths[6, :1] - 1, np.ones(1, np.bool_))])
    report = Storage(tmp_path).verify("d@v1", progress=False)
    assert "the lengths of record 5 of the shard are not those of its leaves" in report.problems[0]


@pytest.mark.parametrize(("leaf", "more"), [("tokens", -1), ("tokens", 1), ("meta/text", 1)])
def test_no_document_is_cut_or_filled_up_where_lengths_lie(tmp_path: Path, leaf: str, more: int) -> None:
    ref = submit(Storage(tmp_path), shard_bytes=1 << 28)
    lengths, place = np.stack([naive(ELEMENTS, each) for each in LEAVES], axis=1), [*LEAVES].index(leaf)
    record = int(np.flatnonzero(lengths[:, place] > 2)[3])
    lengths[record, place] += more
    foreign = lie(tmp_path, ref, lengths)
    for view in (
        foreign.windows(leaf, 7),
        foreign.windows(leaf, 64, stride=3, separator=0, remainder="pad"),
        foreign.packed(leaf, 100),
        cachelayer.concat([foreign.fields(leaf), foreign[::-1].fields(leaf)]).windows(leaf, 7),
    ):
        with pytest.raises(CorruptionError, match="length"):
            view.read(np.arange(len(view)))
    if leaf == "tokens" and more < 0:
        bound = int(lengths[record, place])
        buckets = cachelayer.Buckets(leaf, [bound, 1 << 20], long="truncate")
        with pytest.raises(ElementError, match=f"record {record}: expected at most {bound} values"):
            list(foreign.fields(leaf)[: record + 1].stream(1, buckets=buckets))


def test_far_lengths_are_those_of_near_ones_in_few_round_trips(gcs: Server, tmp_path: Path) -> None:
    url, options = gcs.url(new_bucket(gcs), "caches"), gcs.storage_options()
    storage = Storage(url, storage_options=options, local_cache_bytes=0)
    published = submit(storage)
    with fault_proxy(gcs.endpoint) as proxy:
        through = gcs.storage_options(proxy.endpoint)
        far = cachelayer.open(published.reference, storage_options=through, local_cache_bytes=0)
        opening = len(proxy.exchanges())
        assert far.total("tokens") == sum(naive(ELEMENTS, "tokens"))
        assert len(proxy.exchanges()) == opening
        proxy.forget()
        column = far._records.lengths("tokens")
        numbers = column.locate(np.arange(0, column.total, 9))
        column.take(numbers)
        assert len(proxy.exchanges()) <= len(far._base.version.manifest.shards)
        assert all(".lengths" in exchange.path for exchange in proxy.exchanges())
        check(far, ELEMENTS)
        check(far[3:80:7], ELEMENTS[3:80:7])
    storage.copy("d@v1", Storage(tmp_path), progress=False)
    check(Storage(tmp_path).fetch("d@v1"), ELEMENTS)
    assert storage.verify("d@v1", progress=False)


def test_far_lengths_that_are_not_what_was_published_are_made_again() -> None:
    storage = Storage(f"memory://{uuid.uuid4().hex}", local_cache_bytes=0)
    ref = submit(storage)
    store, name = ref._base.version.folder, ref._base.version.manifest.shards[1].name
    name = name.replace(".array_record", ".lengths")
    raw = store.read(name)
    for damaged in (flip(raw, 200), raw[:-8]):
        store.put(name, damaged)
        with pytest.warns(CacheLayerWarning, match=Path(name).name):
            check(storage.fetch("d@v1"), ELEMENTS)


def test_local_copies_hold_lengths_too_and_a_damaged_one_is_not_believed(gcs: Server, tmp_path: Path) -> None:
    storage = Storage(gcs.url(new_bucket(gcs), "caches"), storage_options=gcs.storage_options(), local_cache_bytes=0)
    published = submit(storage)
    with fault_proxy(gcs.endpoint) as proxy:

        def opened() -> Any:
            options = gcs.storage_options(proxy.endpoint)
            return cachelayer.open(published.reference, storage_options=options, local_cache=tmp_path)

        opened().mirror(progress=False)
        proxy.forget()
        check(opened(), ELEMENTS)
        assert not [each.path for each in proxy.exchanges() if "shards" in each.path]
        copies = sorted(tmp_path.rglob("*.lengths"))
        assert len(copies) == len(published._base.version.manifest.shards)
        raw = copies[0].read_bytes()
        copies[0].write_bytes(flip(raw, 150))
        again = opened()
        with pytest.warns(CacheLayerWarning, match="a local copy is damaged, so lengths are read over the network"):
            check(again, ELEMENTS)
