"""What differs between two versions is told, and nothing else."""

from __future__ import annotations

import io
import json
import uuid
from typing import Any, cast

import numpy as np
import pytest

import cachelayer
from cachelayer import Ragged, Storage
from cachelayer.datasets.table import Group
from cachelayer.datasets.version_records import VersionRecords
from cachelayer.versions.diff import Change, RowPlace, Rows


def rows(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [{"n": number, "x": np.full(300, number % 251, np.uint8)} for number in range(first, first + count)]


def test_the_same_data_built_twice_differs_in_provenance_alone(storage: Storage) -> None:
    for version, made in (("v1", "before"), ("v2", "after")):
        storage.submit(rows(10), f"d@{version}", description=f"made {made}", metadata={"lr": {"max": 1}, "by": made})
    diff = storage.diff("d@v1", "d@v2")
    assert diff.same_data
    assert (diff.spec, diff.records, diff.only_one.count, diff.only_other.count) == ((), (10, 10), 0, 0)
    assert (diff.shared.count, diff.shared.records, diff.shared.nbytes) == (1, 10, storage.fetch("d@v1").nbytes)
    assert Change("description", "made before", "made after") in diff.provenance
    assert diff.metadata == (Change("by", "before", "after"),)
    assert "data:    the same" in str(diff)


def test_shards_that_both_have_are_counted_once_for_each_time(storage: Storage) -> None:
    one = storage.submit(rows(500), "d@v1", shard_bytes=35_000)
    other = storage.submit(rows(700), "d@v2", shard_bytes=35_000)
    diff = one.diff(other)
    counts = [len(ref._base.version.manifest.shards) for ref in (one, other)]
    assert not diff.same_data
    assert diff.records == (500, 700)
    assert diff.nbytes == (one.nbytes, other.nbytes)
    # The last shard of the first is a part of one of the second's.
    assert diff.shared.count == counts[0] - 1
    assert (diff.only_one.count, diff.only_other.count) == (1, counts[1] - counts[0] + 1)
    assert diff.shared.records + diff.only_one.records == 500
    assert diff.shared.nbytes + diff.only_other.nbytes == other.nbytes
    repeated = storage.submit([b"same"] * 8, "e@v1", shard_bytes=1)
    assert repeated.diff(storage.submit([b"same"] * 3, "e@v2", shard_bytes=1)).shared.count == 3


def test_leaves_that_were_added_removed_and_changed_are_named(storage: Storage) -> None:
    one = storage.submit([{"a": 1, "b": {"c": 2.0}, "same": "x"}], "d@v1")
    other = storage.submit([{"a": 1.5, "b": {"d": b""}, "same": "y"}], "d@v2")
    assert storage.diff("d@v1", "d@v2").spec == (
        Change("['a']", "ArraySpec(int64)", "ArraySpec(float64)"),
        Change("['b']['c']", "ArraySpec(float64)", None),
        Change("['b']['d']", None, "ArraySpec(bytes)"),
    )
    shown = str(one.diff(other))
    for line in (
        "  ~ ['a']: ArraySpec(int64) -> ArraySpec(float64)",
        "  - ['b']['c']: ArraySpec(float64)",
        "  + ['b']['d']: ArraySpec(bytes)",
    ):
        assert line in shown.splitlines()


def test_the_same_leaves_in_another_structure_differ(storage: Storage) -> None:
    one = storage.submit([({"a": 1},)], "d@v1")
    other = storage.submit([[{"a": 1}]], "d@v2", element_spec=[{"a": "int64"}])
    (change,) = one.diff(other).spec
    assert change.path == "structure"
    assert change.one != change.other


def test_storages_of_any_kind_are_compared_and_nothing_but_versions(storage: Storage) -> None:
    ref = storage.submit(rows(20), "d@v1")
    far = storage.copy("d@v1", Storage(f"memory://{uuid.uuid4().hex}", local_cache_bytes=0), new="e@v1")
    diff = ref.diff(far)
    assert (diff.one, diff.other) == (ref.reference, far.reference)
    assert diff.same_data
    assert (diff.provenance, diff.shared.count) == ((), 1)
    with pytest.raises(cachelayer.InvalidTypeError, match="DataRef"):
        ref.diff("d@v1")  # type: ignore[arg-type]
    with pytest.raises(cachelayer.VersionNotFoundError):
        storage.diff("d@v1", "d@v9")


IMAGE = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)


def table(count: int, change: dict[int, dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    """Rows with leaves of every kind, some of which are changed."""
    rows = []
    for n in range(count):
        row: dict[str, Any] = {
            "id": n,
            "name": f"row {n}",
            "score": np.float32(n / 4) if n % 5 else np.float32("nan"),
            "label": None if n % 7 == 0 else n % 3,
            "tokens": np.arange(n % 4, dtype=np.int16),
            "crop": np.full((2, 2), n % 251, np.uint8),
            "words": ["a"] * (n % 3),
            "nested": Ragged(np.arange(n % 3), np.array([0, n % 3])),
            "json": {"a": [n, None]} if n % 2 else None,
            "meta": {"raw": b"x" * (n % 3), "at": np.datetime64("2026-01-01") + n},
        }
        rows.append({**row, **(change or {}).get(n, {})})
    return rows


SPEC = {
    "nested": cachelayer.RaggedSpec("int64", (None, None)),
    "words": cachelayer.ArraySpec(str, (None,)),
    "json": cachelayer.JsonSpec(),
}


def put(storage: Storage, rows: list[dict[str, Any]], name: str, **options: Any) -> cachelayer.DataRef[Any]:
    return storage.submit(rows, name, element_spec=SPEC, **options)


CHANGES: dict[str, tuple[Any, Any]] = {
    "name": ("another", "'row 30' -> 'another'"),
    "score": (np.float32(1), "nan -> 1"),
    "label": (2, "0 -> 2"),
    "tokens": (np.arange(4, dtype=np.int16), "int16[2] [0 1] -> int16[4] [0 1 2 3]"),
    "crop": (np.zeros((2, 2), np.uint8), "uint8[2, 2] [[30 30] [30 30]] -> uint8[2, 2] [[0 0] [0 0]]"),
    "words": (["b"], "strings[0] -> strings[1] ['b']"),
    "nested": (Ragged(np.arange(1), np.array([0, 1])), "ragged, 1 row: int64[0] -> ragged, 1 row: int64[1] [0]"),
    "json": ({"b": "x"}, 'None -> {"b": "x"}'),
    "meta/raw": (b"y", "0 bytes b'' -> 1 bytes b'y'"),
    "meta/at": (np.datetime64("2000-01-01"), "2026-01-31 -> 2000-01-01"),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("key", ["id", None])
def test_a_row_that_changed_is_named_with_its_field_and_values(storage: Storage, name: str, key: str | None) -> None:
    value, shown = CHANGES[name]
    outer, _, inner = name.partition("/")
    kept = table(60)[30]["meta"]
    change: dict[str, Any] = {outer: {**kept, inner: value} if inner else value}
    put(storage, table(60), "d@v1")
    put(storage, table(60, {30: change}), "d@v2", shard_bytes=1000)
    rows = storage.diff("d@v1", "d@v2", key=key).rows
    assert rows is not None
    place = RowPlace(30, (30, 30))
    assert (rows.same, rows.came.count, rows.went.count, rows.changed) == (59, 0, 0, Rows(1, place))
    assert list(rows.fields) == [name]
    first = rows.fields[name].first
    assert first is not None
    assert (rows.fields[name].count, first.key, first.records) == (1, place.key, place.records)
    assert str(rows.fields[name]) == f"1, the first is 30 (record 30): {shown}"


def test_rows_are_found_by_their_key_in_any_order(storage: Storage) -> None:
    rows = table(500)
    other = [*table(520, {7: {"name": "x", "label": 9}, 300: {"name": "y"}})[:3:-1], {**rows[0], "id": 1000}]
    for made, version in ((rows, "v1"), (other, "v2")):
        put(storage, made, f"d@{version}", shard_bytes=10_000)
    diff = storage.diff("d@v1", "d@v2", key="id")
    found = diff.rows
    assert found is not None
    assert found.came == Rows(21, RowPlace(519, (None, 0)))
    assert found.went == Rows(4, RowPlace(0, (0, None)))
    assert found.changed == Rows(2, RowPlace(7, (7, 512)))
    assert {name: field.count for name, field in found.fields.items()} == {"name": 2, "label": 1}
    assert (found.same, found.in_order, found.key) == (494, False, ("id",))
    for line in (
        "rows:    by id: 21 came, 4 went, 2 changed, 494 are the same, in another order",
        "  + came: 21, the first is 519 (record 0)",
        "  ~ name: 2, the first is 7 (record 7 -> 512): 'row 7' -> 'x'",
    ):
        assert line in str(diff).splitlines()
    document = json.loads(json.dumps(diff.to_json(), allow_nan=False))
    assert document["rows"]["fields"]["label"] == {
        "count": 1, "first": {"key": 7, "records": [7, 512], "one": None, "other": 9}
    }  # fmt: skip
    assert storage.diff("d@v1", "d@v2", rows=False).rows is None


KEYS: dict[str, tuple[list[Any], list[Any]]] = {
    "int": ([1, 2, 3], [3, 4, 1]),
    "uint64 above 2**53": ([np.uint64(2**63), np.uint64(2**63 + 1)], [np.uint64(2**63 + 1), np.uint64(5)]),
    "int64 and uint64": ([2**53, 2**53 + 1, -1], [np.uint64(2**53 + 1), np.uint64(2**64 - 1)]),
    "text": (["a", "\ud800", ""], ["", "b"]),
    "bytes": ([b"a", b"\0", b""], [b"", b"a\0"]),
    "None": ([1, None, 2], [None, 3]),
    "nan": ([1.5, float("nan")], [float("nan"), -0.0]),
    "bool": ([True], [False, True]),
    "time": ([np.datetime64("2026-01-01"), np.datetime64("NaT", "D")], [np.datetime64("NaT", "D")]),
    "float16": ([np.float16(0.1), np.float16(1)], [np.float16(1)]),
}


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("several", [False, True])
def test_keys_of_every_kind_are_compared_exactly(storage: Storage, kind: str, several: bool) -> None:
    def plain(key: Any) -> Any:
        return "nan" if key != key else key.item() if isinstance(key, np.generic) else key

    sides = KEYS[kind]
    for version, keys in zip(("v1", "v2"), sides, strict=True):
        storage.submit([{"k": key, "part": 2**60, "n": n} for n, key in enumerate(keys)], f"d@{version}")
    rows = storage.diff("d@v1", "d@v2", key=["part", "k"] if several else "k").rows
    assert rows is not None
    one, other = ({plain(key) for key in keys} for keys in sides)
    counted = rows.came.count, rows.went.count, rows.same + rows.changed.count
    assert counted == (len(other - one), len(one - other), len(one & other))


def test_keys_that_name_no_row_are_refused(storage: Storage) -> None:
    rows = [{"a": n % 3, "b": str(n % 2), "c": [n], "d": {"e": n}, "f": float(n)} for n in range(6)]
    storage.submit(rows, "d@v1")
    storage.submit([{**row, "f": n, "a": str(n)} for n, row in enumerate(rows)], "d@v2")
    storage.append("d@v1", new="v3", source=rows[:1])
    wrong: list[tuple[Any, str, str]] = [
        ("a", "v1", "'a'.*d@v1 has the key 0 in row 0 and again in row 3"),
        (["b", "a"], "v3", r"d@v3 has the key \('0', 0\) in row 0 and again in row 6"),
        ("a", "v2", "'a'.*int64.*text"),
        ("f", "v2", "'f'.*float64.*int64"),
        ("c", "v1", "'c'"),
        ("d", "v1", "'d'"),
        ("none", "v1", "'none'"),
        ([], "v1", "key="),
        (["a", "a"], "v1", "key="),
        (3, "v1", "key="),
    ]
    for key, other, told in wrong:
        with pytest.raises(cachelayer.CacheLayerError, match=told):
            storage.diff("d@v1", f"d@{other}", key=key)
    assert storage.diff("d@v1", "d@v2", key="d/e").rows is not None
    with pytest.raises(cachelayer.InvalidArgumentError, match="rows=False"):
        storage.diff("d@v1", "d@v2", key="f", rows=False)


SPECS: dict[str, tuple[Any, Any, int]] = {
    "wider": (np.arange(4, dtype=np.int32), np.arange(4), 4),
    "int and float": ([1, 2], [1.0, 2.0], 2),
    "float32 and float64": ([np.float32(0.5), np.float32(0.1)], [0.5, 0.1], 2),
    "text and bytes": (["a", "b"], [b"a", b"b"], 2),
    "number and text": ([1, 2], ["1", "2"], 2),
    "shape": ([np.arange(3), np.arange(3)], [np.arange(3), np.arange(2)], 1),
    "nullable": ([1, 2], [1, None], 1),
    "shape, with nan": ([np.array([np.nan]), np.ones(1)], [np.array([np.nan]), np.ones(2)], 1),
    "rows of another shape": ([[["a"]], [["b"]]], [[["a"]], [["b", "c"]]], 1),
    "texts of another width": (np.array(["a", "b"]), np.array(["a", "long"]), 1),
}


@pytest.mark.parametrize("kind", SPECS)
def test_fields_of_another_dtype_have_changed_and_of_another_shape_are_compared(storage: Storage, kind: str) -> None:
    one, other, changed = SPECS[kind]
    for version, values in (("v1", one), ("v2", other)):
        more = {"gone": 1} if version == "v1" else {"new": 1}
        storage.submit([{"id": n, "v": value, **more} for n, value in enumerate(values)], f"d@{version}")
    diff = storage.diff("d@v1", "d@v2", key="id")
    assert diff.rows is not None
    assert {change.path for change in diff.spec} >= {"['gone']", "['new']"}
    assert (diff.rows.changed.count, diff.rows.same) == (changed, len(one) - changed)
    assert list(diff.rows.fields) == (["v"] if changed else [])


def test_only_what_no_shard_of_both_holds_is_read(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = storage.submit(rows(3000), "d@v1", shard_bytes=100_000)
    longer = storage.append("d@v1", new="v2", source=rows(5, 3000))
    few = storage.derive("d@v2", new="v3", keep=slice(None, None, -2))
    storage.add_columns("d@v2", new="v4", columns={"s": np.arange(3005)})
    more = storage.add_columns("d@v4", new="v5", columns={"s": np.arange(3005) // 3000 * -1}, replace=True)
    storage.append("d@v4", new="v6", source=[{"n": None, "x": np.zeros(300, np.uint8), "s": 1}])
    read: list[int] = []
    columns = Group.columns

    def counted(self: Group, numbers: Any) -> Any:
        read.append(len(numbers) if cast(VersionRecords, self.shards).group is None else 0)
        return columns(self, numbers)

    monkeypatch.setattr(Group, "columns", counted)
    counts = {}
    for pair in ((ref, longer), (longer, few), (storage.fetch("d@v4"), more)):
        found = pair[0].diff(pair[1], key="n").rows
        assert found is not None
        counts[pair[1].dataset_version] = found.came.count, found.went.count, found.changed.count
    assert counts == {"v2": (5, 0, 0), "v3": (0, 1502, 0), "v5": (0, 0, 3004)}
    null = storage.diff("d@v5", "d@v6").rows
    assert null is not None
    assert (null.came.count, null.changed.count) == (1, 3004)
    assert sum(read) == 0


def test_erased_rows_are_not_there(storage: Storage) -> None:
    put(storage, table(20), "d@v1")
    put(storage, table(20, {4: {"name": "x"}}), "e@v1")
    storage.erase("e@v1", records=[3, 4], reason="asked")
    for key in ("id", None):
        found = storage.diff("d@v1", "e@v1", key=key).rows
        assert found is not None
        assert (found.went, found.came, found.changed) == (Rows(2, RowPlace(3, (3, None))), Rows(), Rows())


def test_views_are_compared_by_the_rows_that_they_show(storage: Storage) -> None:
    one = put(storage, table(40), "d@v1")
    other = put(storage, table(60, {9: {"name": "x"}}), "d@v2")
    diff = one.where("id >= 8")[::-1].diff(other[8:40], key="id")
    assert diff.rows is not None
    assert (diff.records, diff.rows.same, diff.rows.in_order) == ((32, 32), 31, False)
    assert list(diff.rows.fields) == ["name"]
    assert "where" in diff.one
    fields = one.fields("id", "score").diff(other.fields("score", "id"), key="id")
    assert fields.rows is not None
    assert (fields.rows.same, fields.rows.came.count, fields.rows.changed.count) == (40, 20, 0)
    for view in (one.windows("tokens", 4), cachelayer.concat([one, other]), one.fields("id").rolling(2)):
        for pair in ((view, one), (one, view)):
            with pytest.raises(cachelayer.InvalidTypeError, match="diff"):
                pair[0].diff(pair[1])
    empty = one[:0].diff(other[:0])
    assert empty.rows is not None
    assert (empty.rows.same, empty.rows.came, empty.rows.changed) == (0, Rows(), Rows())


@pytest.mark.parametrize("elements", [[1, 2, 3], [b"a", b"b", b"c"], [(1, "a"), (2, "b"), (3, "c")], [IMAGE] * 3])
def test_elements_without_names_are_compared_by_number(storage: Storage, elements: list[Any]) -> None:
    storage.submit(elements, "d@v1")
    storage.submit([elements[0], elements[0]], "d@v2")
    diff = storage.diff("d@v1", "d@v2")
    assert diff.rows is not None
    assert (diff.rows.went.count, diff.rows.changed.count) == (1, 0 if elements[0] is elements[1] else 1)
    assert "rows:    by record number" in str(diff)


def test_images_are_compared_by_their_files(storage: Storage) -> None:
    pytest.importorskip("PIL")
    spec = {"id": "int64", "image": cachelayer.ImageSpec()}
    from PIL import Image

    def png(pixels: Any, level: int) -> bytes:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG", compress_level=level)
        return file.getvalue()

    files = [png(IMAGE + n, 6) for n in range(3)]
    storage.submit([{"id": n, "image": file} for n, file in enumerate(files)], "d@v1", element_spec=spec)
    files[1] = png(IMAGE, 6)
    storage.submit([{"id": n, "image": file} for n, file in enumerate(files)], "d@v2", element_spec=spec)
    rows = storage.diff("d@v1", "d@v2", key="id").rows
    assert rows is not None
    assert rows.fields["image"].count == 1


def test_versions_of_two_storages_are_compared_by_rows(storage: Storage) -> None:
    one = put(storage, table(30), "d@v1")
    far = Storage(f"memory://{uuid.uuid4().hex}", local_cache_bytes=0)
    other = put(far, table(30, {3: {"label": None}})[::-1], "e@v1", compression="zstd", shard_bytes=500)
    rows = one.diff(other, key="id").rows
    assert rows is not None
    assert (rows.same, rows.changed.first) == (29, RowPlace(3, (3, 26)))


def test_versions_without_records_and_with_added_keys_are_compared(storage: Storage) -> None:
    put(storage, table(6), "d@v1")
    storage.add_columns("d@v1", new="v2", columns={"hash": np.arange(6) * 2**40})
    storage.submit([], "d@none", element_spec=storage.fetch("d@v2").element_spec, allow_empty=True)
    storage.erase("d@v2", records=[1], reason="asked")
    for key in ("hash", ["id", "hash"], None):
        rows = storage.diff("d@none", "d@v2", key=key).rows
        assert rows is not None
        assert (rows.came.count, rows.went.count, rows.same) == (5, 0, 0)
    storage.append("d@v2", new="v3", source=[{**table(3)[2], "hash": 2**41}])
    with pytest.raises(cachelayer.InvalidArgumentError, match=f"the key {2**41} in row 2 and again in row 6"):
        storage.diff("d@v3", "d@v2", key="hash")


def test_nulls_within_values_and_dicts_that_are_none_are_compared(storage: Storage) -> None:
    rows = [
        {"id": n, "m": {"a": n, "b": "x"} if n % 3 else None, "v": [1, None, n] if n % 2 else [n]} for n in range(8)
    ]
    storage.submit(rows, "d@v1")
    storage.submit([{**row, "v": [-1 if each is None else each for each in row["v"]]} for row in rows], "d@filled")
    changes = {0: {"m": {"a": None, "b": None}}, 1: {"v": [1, 0, 1]}, 2: {"m": None}, 3: {"v": [None, 1, 3]}}
    storage.submit([{**row, **changes.get(n, {})} for n, row in enumerate(rows)], "d@v2")
    found = storage.diff("d@v1", "d@v2", key="id").rows
    assert found is not None
    assert (found.changed.count, found.same) == (4, 4)
    assert {name: rows.count for name, rows in found.fields.items()} == {"m/a": 2, "m/b": 2, "v": 2}
    filled = storage.diff("d@v1", "d@filled", key="id")
    assert filled.rows is not None
    assert (filled.rows.changed.count, list(filled.rows.fields)) == (4, ["v"])
