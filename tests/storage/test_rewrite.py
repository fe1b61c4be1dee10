"""Versions that are written again: shuffled, compressed or cut otherwise, on any engine, with one result."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import fault_proxy
from leftovers import named_files, stored_files
from servers import Server, new_storage

import cachelayer
from cachelayer import Storage
from cachelayer.streams.order.permutation import permuted

RECORDS = 900
SHARD_BYTES = 25_000
SEED = 7
SPEC = {
    "number": np.int64,
    "meta": {"text": cachelayer.ArraySpec(str, nullable=True), "twice": np.int64},
    "ragged": cachelayer.ArraySpec(np.int64, (None,)),
}
ORDER = permuted(RECORDS, SEED, 0, 0, RECORDS)
OPTIONS: dict[str, Any] = {"shuffle_seed": SEED, "shard_bytes": SHARD_BYTES, "progress": False}


@pytest.fixture(autouse=True)
def _short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHELAYER_LEASE_SECONDS", "1.5")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage with the base v1 and with v2, which is v1 shuffled; nobody changes it."""
    folder = tmp_path_factory.mktemp("made")
    storage = Storage(folder)
    options: Any = {"shard_bytes": 20_000, "description": "numbers", "metadata": {"of": "tests"}}
    storage.submit(elements(), "d@v1", element_spec=SPEC, **options)
    storage.rewrite("d@v1", "v2", **OPTIONS)
    return folder


@pytest.fixture
def storage(made: Path, tmp_path: Path) -> Storage:
    shutil.copytree(made, tmp_path / "storage")
    return Storage(tmp_path / "storage")


@pytest.fixture(scope="module")
def expected(made: Path) -> str:
    """The digest of the shuffled version."""
    return Storage(made).fetch("d@v2").digest


def elements() -> Iterator[dict[str, Any]]:
    """Elements of different sizes; in some of them a leaf is None."""
    for number in range(RECORDS):
        text = None if number % 9 == 4 else "t" * (number % 40)
        yield {"number": number, "meta": {"text": text, "twice": 2 * number}, "ragged": np.arange(number % 5)}


def same(left: Any, right: Any) -> bool:
    """Whether elements are equal, arrays too."""
    return repr(left) == repr(right)


def test_record_i_is_the_one_that_the_first_epoch_has_at_place_i(made: Path) -> None:
    storage = Storage(made)
    base, new = storage.fetch("d@v1"), storage.fetch("d@v2")
    assert [element["number"] for element in base.stream(shuffle=True, seed=SEED)] == ORDER.tolist()
    assert all(same(element, base[int(number)]) for element, number in zip(new, ORDER, strict=True))
    assert new.element_spec == base.element_spec
    assert storage.verify("d@v2", progress=False)
    # It keeps what was said of the base, and names it.
    assert (new.metadata, new.provenance["description"]) == ({"of": "tests"}, "numbers")
    named = {"version": "v1", "digest": base.digest, "records": RECORDS, "references": [base.reference]}
    how = {"shuffle_seed": SEED, "compression": None, "shard_bytes": SHARD_BYTES, "fields": None}
    assert (new.provenance["base"], new.provenance["rewrite"]) == (named, how)


class Backwards:
    """An engine that builds the later parts first, and says nothing of what it built."""

    def run(self, task: Callable[[int], Any], numbers: Any) -> Iterator[Any]:
        for number in reversed(list(numbers)):
            task(number)
        return iter(())


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [{}, {"workers": 2}, {"engine": Backwards()}, {"hosts": (1, 2)}, {"resume": False}],
    ids=["alone", "workers", "backwards", "hosts", "anew"],
)
def test_the_digest_is_the_same_however_it_is_built(storage: Storage, expected: str, how: dict[str, Any]) -> None:
    new = storage.rewrite("d@v1", new="v3", **OPTIONS, **how)
    assert new.digest == expected
    assert storage.verify("d@v3", progress=False)
    assert stored_files(storage, "d") == named_files(storage, "d")


@pytest.mark.slow
def test_in_the_order_of_the_base_the_shards_are_those_of_a_build(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    columns = {"x": np.arange(3000).reshape(1000, 3), "y": np.arange(1000, dtype=np.int16)}
    base = storage.cache(columns, "d@v1", shard_bytes=9000)
    again = storage.rewrite(base, "d@v2", shard_bytes=9000, progress=False)
    assert again.digest == base.digest
    other = storage.rewrite(base, "d@v3", shard_bytes=20_000, workers=2, progress=False)
    assert other.digest == storage.cache(columns, "d@v4", shard_bytes=20_000).digest


@pytest.mark.slow
def test_compression_is_that_of_the_base_unless_another_is_named(storage: Storage, expected: str) -> None:
    def kinds(version: str) -> set[str]:
        ref = storage.fetch(f"d@{version}")
        shards = range(len(ref._base.version.manifest.shards))
        return {ref._base.version.manifest.shards[number].stats.compression for number in shards}

    packed = storage.rewrite("d@v1", "packed", **OPTIONS, compression="zstd:1")
    assert packed.digest == expected
    storage.rewrite("d@packed", "still", progress=False)
    plain = storage.rewrite("d@packed", "plain", progress=False, compression="none")
    assert [kinds(version) for version in ("v2", "packed", "still", "plain")] == [
        {"none"},
        {"zstd"},
        {"zstd"},
        {"none"},
    ]
    assert same(list(plain), list(packed))


def test_a_view_of_fields_is_written_with_these_fields(storage: Storage) -> None:
    base = storage.fetch("d@v1")
    listed = storage.rewrite("d@v1", "listed", **OPTIONS, fields=["meta/text", "ragged"])
    new = storage.rewrite(base.fields("ragged", "meta"), "d@v3", **OPTIONS, fields=["meta/text", "ragged"])
    assert new.digest == listed.digest
    assert new.metadata == base.metadata
    assert new.provenance["description"] == "numbers"
    joined = cachelayer.concat([base[:20], storage.fetch("d@v2")[::3]]).select([3, 25, 30, 3])
    fields = joined.fields("meta/text", "number")
    assert same(list(storage.rewrite(fields, "d@v4", progress=False)), list(fields))
    with pytest.raises(cachelayer.InvalidArgumentError, match="no field 'ragged'"):
        storage.rewrite(fields, "d@v5", fields=["ragged"])
    for view in (cachelayer.concat([fields, fields]), base.windows("ragged", 2)):
        with pytest.raises(cachelayer.InvalidTypeError, match="has no stored records: cache it first"):
            storage.rewrite(view, "d@v5")
    whole = storage.rewrite(base.fields(*base.element_spec), "d@v6", progress=False)
    assert whole.digest == storage.rewrite("d@v1", "v7", progress=False).digest


@pytest.mark.slow
def test_views_of_any_storage_are_written(storage: Storage, tmp_path: Path) -> None:
    target, base = Storage(tmp_path / "other"), storage.fetch("d@v1")
    random = np.random.default_rng(0)
    views = {
        "slice": base[800:100:-3],
        "repeats": base.select(random.integers(0, RECORDS, 500)),
        "split": base.split({"a": 0.5, "b": 0.5}, seed=1)["b"],
        "concat": cachelayer.concat([base[500:], storage.fetch("d@v2").select(random.permutation(RECORDS)[:300])]),
    }
    for name, view in views.items():
        for seed in (None, SEED):
            order = np.arange(len(view)) if seed is None else permuted(len(view), SEED, 0, 0, len(view))
            arguments: dict[str, Any] = {"shuffle_seed": seed, "shard_bytes": 2 * SHARD_BYTES, "progress": False}
            new = target.rewrite(view, f"d@{name}-{seed}", **arguments)
            assert [each["number"] for each in new] == [each["number"] for each in view.__getitems__(order)]


def test_the_same_call_returns_what_is_there(storage: Storage, expected: str) -> None:
    before = stored_files(storage, "d")
    assert storage.rewrite("d@v1", "v2", **OPTIONS).digest == expected
    assert storage.rewrite(storage.fetch("d@v1"), "d@v2", **OPTIONS, workers=3, hosts=(0, 2)).digest == expected
    assert stored_files(storage, "d") == before


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"shuffle_seed": 8}, cachelayer.AlreadyExistsError, "shuffle_seed was 7 and is 8"),
        ({"compression": "zstd"}, cachelayer.AlreadyExistsError, "compression was None and is 'zstd:3'"),
        ({"base": "other"}, cachelayer.AlreadyExistsError, "v1"),
        ({"new": "tagged"}, cachelayer.AlreadyExistsError, "tagged"),
        ({"new": "v1"}, cachelayer.InvalidArgumentError, "d@v1"),
        ({"base": "v9"}, cachelayer.VersionNotFoundError, "v9"),
        ({"base": [1, 2]}, cachelayer.InvalidTypeError, "list"),
        ({"base": cachelayer.wrap([1, 2], identity="x")}, cachelayer.InvalidTypeError, "cache it first"),
        ({"shuffle_seed": 1 << 64}, cachelayer.InvalidArgumentError, "shuffle_seed"),
        ({"engine": "spark"}, cachelayer.InvalidArgumentError, "spark"),
        ({"fields": ["meta/nothing"]}, cachelayer.InvalidArgumentError, "'meta/nothing'"),
        ({"fields": []}, cachelayer.InvalidArgumentError, "leaves nothing"),
        ({"shard_bytes": 0}, cachelayer.InvalidArgumentError, "shard_bytes"),
        ({"hosts": (2, 2)}, cachelayer.InvalidArgumentError, "hosts"),
        ({"dataset_id": "d@v1"}, cachelayer.InvalidArgumentError, "base"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_and_nothing_is_written(
    storage: Storage, arguments: dict[str, Any], error: type[Exception], match: str
) -> None:
    storage.cache([1], "d@other")
    storage.tag("d@v1", "tagged")
    before = stored_files(storage, "d")
    with pytest.raises(error, match=match):
        storage.rewrite(**{"dataset_id": "d", "base": "v1", "new": "v2", **OPTIONS, **arguments})
    assert stored_files(storage, "d") == before


def test_an_empty_version_stays_empty_and_an_empty_view_is_refused(storage: Storage) -> None:
    storage.cache([], "d@empty", allow_empty=True)
    for version, seed in (("e1", None), ("e2", 3)):
        assert len(storage.rewrite("d@empty", version, shuffle_seed=seed, progress=False)) == 0
    with pytest.raises(cachelayer.InvalidArgumentError, match="the view has no records"):
        storage.rewrite(storage.fetch("d@v1")[:0], "d@e3")


def test_a_damaged_record_is_not_written_again(storage: Storage) -> None:
    shard = storage.fetch("d@v1")._base.version.manifest.shards[1]
    path = Path(storage.url, "d", shard.name)
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"t" * 37) + 5] ^= 1
    path.write_bytes(raw)
    with pytest.raises(cachelayer.CorruptionError, match="checksum"):
        storage.rewrite("d@v1", "v3", **OPTIONS)
    assert "v3" not in storage.versions("d")


def test_records_of_a_bucket_are_read_once_where_their_digest_tells_what_they_are(gcs: Server) -> None:
    with fault_proxy(gcs.endpoint) as proxy:
        remote = new_storage(gcs, proxy.endpoint)
        [shard] = remote.submit(
            [{"id": number, "text": "x" * number} for number in range(50)], "d@v1"
        )._base.version.manifest.shards
        proxy.forget()
        remote.rewrite("d@v1", "again")
        assert sum(exchange.path.endswith(shard.name) for exchange in proxy.exchanges()) <= 3


def test_a_shuffle_from_store_to_store_warns_of_its_requests(gcs: Server, made: Path, expected: str) -> None:
    remote = new_storage(gcs)
    Storage(made).copy("d@v1", remote)
    with pytest.warns(cachelayer.CacheLayerWarning, match="mirror"):
        assert remote.rewrite("d@v1", "v2", **OPTIONS, hosts=(0, 2)).digest == expected
    in_order = remote.rewrite("d@v1", "v3", shard_bytes=SHARD_BYTES, progress=False)
    assert [element["number"] for element in in_order] == list(range(RECORDS))
    assert stored_files(remote, "d") == named_files(remote, "d")


def test_a_base_that_is_mirrored_is_read_from_its_copies(
    gcs: Server, made: Path, expected: str, tmp_path: Path
) -> None:
    with fault_proxy(gcs.endpoint) as proxy:
        remote = new_storage(gcs, proxy.endpoint, local_cache=tmp_path / "copies")
        Storage(made).copy("d@v1", remote)
        remote.fetch("d@v1").mirror(progress=False)
        proxy.forget()
        new = remote.rewrite("d@v1", "v2", **OPTIONS)
        assert new.digest == expected
        # Of the base an index is read, which tells how the records are compressed; of the new version its indices,
        # which are put beside its manifest.
        assert not [exchange for exchange in proxy.exchanges() if exchange.range and ".array_record" in exchange.path]
        assert stored_files(remote, "d") == named_files(remote, "d")
