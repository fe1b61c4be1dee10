"""Columns that are added to a version: what is read, where they lie, and what everything else makes of them."""

import io
import tracemalloc
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import fault_proxy
from leftovers import named_files, notes, stored_files
from servers import Server, new_storage

import cachelayer
from cachelayer import ArraySpec, Storage
from cachelayer.objects import paths

RECORDS = 300


def elements(count: int = RECORDS) -> list[dict[str, Any]]:
    return [{"x": np.int64(n), "tokens": np.arange(n % 7, dtype=np.int32)} for n in range(count)]


def scores(count: int = RECORDS) -> dict[str, Any]:
    return {"score": np.arange(count, dtype=np.float32) / 4, "lang": np.arange(count) % 3}


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(child) for key, child in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value


def named(element: dict[str, Any]) -> dict[str, Any]:
    return {"name": f"record {element['x']}", "double": element["x"] * 2}


def tripled(batch: dict[str, Any]) -> dict[str, Any]:
    return {"triple": batch["x"] * 3}


@pytest.fixture
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if getattr(request, "param", "disk") == "disk":
        return Storage(tmp_path / "storage")
    return Storage(f"memory://{uuid.uuid4().hex}", local_cache_bytes=0)


anywhere = pytest.mark.parametrize("storage", ["disk", "far"], indirect=True)


@pytest.fixture
def local(tmp_path: Path) -> Storage:
    """A storage on disk with the version v1, and v2 with columns."""
    storage = Storage(tmp_path / "storage")
    storage.submit(elements(), "d@v1", shard_bytes=2_000, progress=False)
    storage.add_columns("d@v1", new="v2", columns=scores())
    return storage


def files_of_columns(storage: Storage) -> list[Path]:
    return list(Path(storage.url).glob("d/shards/*.npy"))


@pytest.fixture
def ref(storage: Storage) -> cachelayer.DataRef[Any]:
    return storage.submit(elements(), "d@v1", shard_bytes=2_000, progress=False)


def expected(number: int) -> dict[str, Any]:
    return plain({**elements()[number], "score": number / 4, "lang": number % 3, **named(elements()[number])})


@pytest.fixture
def wide(storage: Storage, ref: Any) -> cachelayer.DataRef[Any]:
    storage.add_columns("d@v1", new="v2", columns=scores())
    return storage.add_columns("d@v2", new="v3", columns=named, progress=False)


@anywhere
def test_columns_are_read_with_the_others(storage: Storage, wide: Any) -> None:
    numbers = [3, 299, 0, 3]
    assert [plain(element) for element in wide.__getitems__(numbers)] == [expected(n) for n in numbers]
    assert wide.read(numbers)["name"].tolist() == [f"record {n}" for n in numbers]
    assert list(wide.read(numbers, fields=("lang", "x"))) == ["x", "lang"]
    assert plain(wide.fields("name")[5]) == {"name": "record 5"}
    assert wide.element_spec["score"] == ArraySpec("float32")
    assert wide.lengths("name").tolist() == [len(f"record {n}") for n in range(RECORDS)]
    assert cachelayer.concat([wide, wide])[RECORDS + 4]["lang"] == 1


WAYS: dict[str, Callable[[Storage, Any], Any]] = {
    "fixed": lambda storage, columns: storage.add_columns("d@v1", new="v2", columns=tripled, batched=True, **columns),
    "in parts": lambda storage, columns: storage.add_columns(
        "d@v1", new="v2", columns=lambda element: {"y": element["x"]}, hosts=(0, 1), **columns
    ),
    "from a generator": lambda storage, columns: storage.add_columns(
        "d@v1", new="v2", columns=({"y": n} for n in range(RECORDS)), **columns
    ),
    "varying, from a generator": lambda storage, columns: storage.add_columns(
        "d@v1", new="v2", columns=(named(element) for element in elements()), **columns
    ),
    "varying": lambda storage, columns: storage.add_columns("d@v1", new="v2", columns=named, **columns),
    "appended": lambda storage, columns: storage.append(
        "d@v0", new="v2", source=[{**element, **named(element)} for element in elements(70)], **columns
    ),
}


@pytest.mark.filterwarnings("ignore:.*go unnoticed")
@pytest.mark.parametrize("way", WAYS)
def test_what_is_added_leaves_nothing_that_no_version_names(storage: Storage, ref: Any, way: str) -> None:
    if way == "appended":
        storage.add_columns("d@v1", new="v0", columns=named, progress=False)
    WAYS[way](storage, {"progress": False})
    assert stored_files(storage) == named_files(storage)
    # A file system in memory keeps empty folders.
    assert not [name for name in notes(storage) if storage._store.read(f"d/{paths.BUILDS}/{name}") is not None]
    assert storage.verify("d@v2").ok


def test_rows_that_a_killed_builder_left_go_after_the_grace(storage: Storage, ref: Any) -> None:
    left = f"{paths.builds('v2')}/{'0' * 32}/{paths.SHARDS}/{'1' * 32}-0.array_record"
    storage._store.folder("d").put(left, b"rows")
    assert storage.gc() == []
    assert [each.reason for each in storage.gc(grace=0)] == ["the build was interrupted"]
    assert storage._store.folder("d").read(left) is None


def test_no_shard_is_copied_and_fixed_columns_are_one_array(local: Storage) -> None:
    diff = local.diff("d@v1", "d@v2")
    assert (diff.only_one.count, diff.only_other.count, diff.same_data) == (0, 0, False)
    (file,) = files_of_columns(local)
    assert np.load(file, mmap_mode="r")["score"].tolist() == [n / 4 for n in range(RECORDS)]


@anywhere
@pytest.mark.parametrize("shuffle", [True, "blocks"])
def test_a_run_goes_on_with_new_columns_batch_for_batch(ref: Any, wide: Any, shuffle: Any, recwarn: Any) -> None:
    options: dict[str, Any] = {"shuffle": shuffle, "seed": 3, "num_epochs": 2}
    stopped = iter(ref.stream(32, **options))
    for _ in range(4):
        next(stopped)
    state = stopped.get_state()
    resumed = iter(wide.stream(32, **options))
    resumed.set_state(state)
    for before, batch in zip(stopped, resumed, strict=True):
        assert batch["x"].tolist() == before["x"].tolist()
        assert batch["score"].tolist() == [n / 4 for n in before["x"].tolist()]
        assert batch["name"].tolist() == [f"record {n}" for n in before["x"].tolist()]
    assert not recwarn.list


def test_lengths_of_an_added_column_decide_an_order_of_their_own(storage: Storage, ref: Any) -> None:
    more = storage.add_columns("d@v1", new="a", columns=lambda e: {"words": np.arange(e["x"] % 5)})
    others = storage.add_columns("d@v1", new="b", columns=lambda e: {"words": np.arange(e["x"] % 4)})
    state = iter(more.windows("words", 4).stream(2)).get_state()
    with pytest.raises(cachelayer.StateError):
        iter(others.windows("words", 4).stream(2)).set_state(state)
    state = iter(ref.windows("tokens", 4).stream(2)).get_state()
    iter(others.windows("tokens", 4).stream(2)).set_state(state)
    assert more.windows("words", 4)[0]["words"].tolist() == [0, 0, 1, 0]
    assert more.packed("words", 8).fill > 0


def test_a_function_of_batches_is_built_by_workers_to_one_digest(local: Storage) -> None:
    alone = local.add_columns("d@v1", new="a", columns=tripled, batched=True, progress=False)
    workers = local.add_columns("d@v1", new="b", columns=tripled, batched=True, workers=2, progress=False)
    assert alone.digest == workers.digest != local.fetch("d@v1").digest
    assert workers[100]["triple"] == 300


def test_rows_are_found_by_a_key(storage: Storage, ref: Any) -> None:
    table = {"x": np.arange(2 * RECORDS)[::-1], "weight": np.arange(2 * RECORDS)[::-1] / 8}
    assert storage.add_columns("d@v1", new="v2", columns=table, on="x")[40]["weight"] == 5
    with pytest.raises(cachelayer.InvalidArgumentError, match="record 3"):
        storage.add_columns("d@v1", new="v3", columns={name: np.delete(col, -4) for name, col in table.items()}, on="x")
    twice = {name: np.append(col, col[-8]) for name, col in table.items()}
    with pytest.raises(cachelayer.InvalidArgumentError, match="key 7 in row 592 and again in row 600"):
        storage.add_columns("d@v1", new="v3", columns=twice, on="x")


BIG = 2**53


@pytest.mark.parametrize(
    ("keys", "table", "found"),
    [
        (np.array([BIG, BIG + 1]), np.array([BIG + 1, BIG], np.uint64), [1, 0]),
        (np.array([BIG + 2, BIG + 1]), np.array([BIG, BIG + 1, BIG + 2], np.uint64), [2, 1]),
        (np.array([-1, BIG + 1]), np.array([2**64 - 1, BIG + 1, BIG], np.uint64), None),
        (np.array([2**63, 2**63 + 1], np.uint64), np.array([-1, 5]), None),
        (np.array([3, 1], np.int8), np.array([1, 3], np.uint32), [1, 0]),
        (["b", "a"], np.array(["a", "b"]), [1, 0]),
        (["b", "a"], np.array([b"a", b"b"], object), None),
        ([1, 2], np.array([1.0, 2.0]), None),
        ([1, 2], np.array(["1", "2"], object), None),
        (["1", "2"], np.array([1, 2]), None),
        (np.array(["2020-01-01", "2020-01-02"], "M8[D]"), np.array(["2020-01-01", "2020-01-02"], "M8[ns]"), None),
    ],
)
def test_keys_are_compared_exactly_or_refused(tmp_path: Path, keys: Any, table: Any, found: list[int] | None) -> None:
    storage = Storage(tmp_path)
    storage.submit([{"k": key, "n": n} for n, key in enumerate(keys)], "d@v1")
    columns = {"k": table, "row": np.arange(len(table))}
    if found is None:
        with pytest.raises(cachelayer.InvalidArgumentError, match="'k'"):
            storage.add_columns("d@v1", new="v2", columns=columns, on="k")
    else:
        assert storage.add_columns("d@v1", new="v2", columns=columns, on="k").read([0, 1])["row"].tolist() == found


def test_a_key_may_be_a_field_within_a_field_and_is_one_value(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    storage.submit([{"m": {"id": n, "v": np.arange(2), "none": None if n else 1}} for n in range(3)], "d@v1")
    table = {"m/id": np.arange(3)[::-1].copy(), "rank": np.arange(3)}
    assert storage.add_columns("d@v1", new="v2", columns=table, on="m/id").read([0, 1, 2])["rank"].tolist() == [2, 1, 0]
    for wrong in ("m", "m/v", "m/none"):
        with pytest.raises(cachelayer.InvalidArgumentError, match=wrong):
            storage.add_columns("d@v1", new="v3", columns={wrong: np.arange(3), "rank": np.arange(3)}, on=wrong)


def some_rows(names: int) -> Any:
    """A table with a row for each third record, and rows for no record: a dict of arrays, or rows of any values."""
    keys = np.arange(0, 2 * RECORDS, 3)
    if names == 1:
        return {"x": keys, "weight": keys / 8}
    crop = np.ones((2, 2), np.uint8)
    of_key = {"weight": 0.0, "name": "a", "crop": crop, "words": [], "m": {"a": np.int8(1), "b": b"x"}}
    return [{"x": key, **of_key, "weight": key / 8, "words": np.arange(key % 4)} for key in keys]


@pytest.mark.parametrize("names", [1, 5])
def test_a_record_without_a_row_has_none_or_what_fills_it(storage: Storage, ref: Any, names: int) -> None:
    table = some_rows(names)
    with pytest.raises(cachelayer.InvalidArgumentError, match=r"record 1, whose key is 1.*how='left'.*derive"):
        storage.add_columns("d@v1", new="v2", columns=table, on="x")
    left = storage.add_columns("d@v1", new="v2", columns=table, on="x", how="left")
    assert left.provenance["join"] == {"on": ["x"], "how": "left", "without_row": 200, "unused_rows": 100}
    assert len(left) == RECORDS
    assert left[3]["weight"] == 3 / 8
    added = [name for name in left.element_spec if name not in ref.element_spec]
    assert len(added) == names
    for name in added:
        assert plain(left[4])[name] in (None, {"a": None, "b": None})
    assert left.read([3, 4])["weight"].valid.tolist() == [True, False]
    assert storage.verify("d@v2").ok
    fill = {"weight": -1.5, "name": "", "words": [7], "crop": np.ones((2, 2), np.uint8), "m": {"a": 3, "b": b"no"}}
    fill = {name: fill[name] for name in added}
    filled = storage.add_columns("d@v1", new="v3", columns=table, on="x", how="left", fill=fill)
    assert plain(filled[4]) == plain({**elements()[4], **fill})
    assert not any(leaf.nullable for _, leaf in cachelayer.specs.tree.leaves(filled.element_spec))
    assert ["weight", -1.5] in filled.provenance["options"]["fill"]
    again: dict[str, Any] = {"columns": table, "on": "x", "how": "left", "hosts": (0, 1)}
    assert storage.add_columns("d@v1", new="v2", **again).digest == left.digest
    with pytest.raises(cachelayer.AlreadyExistsError, match="fill"):
        storage.add_columns("d@v1", new="v2", **again, fill=fill)


def test_a_record_without_a_row_has_none_for_a_dict_and_for_json(storage: Storage, ref: Any) -> None:
    rows = [{"x": 1, "m": {"p": 1, "q": [1, None]}, "j": {"a": [1]}}, {"x": 2, "m": None, "j": "text"}]
    options: dict[str, Any] = {"on": "x", "how": "left", "element_spec": {"j": cachelayer.JsonSpec()}}
    left = storage.add_columns("d@v1", new="v2", columns=rows, **options)
    assert [left[n]["m"] for n in (0, 2)] == [None, None]
    assert [left[n]["j"] for n in range(3)] == [None, {"a": [1]}, "text"]
    fill = {"m": {"p": 0, "q": []}, "j": []}
    filled = storage.add_columns("d@v1", new="v3", columns=rows, **options, fill=fill)
    assert (filled[0]["m"]["p"], len(filled[0]["m"]["q"]), filled[0]["j"], filled[2]["m"]) == (0, 0, [], None)
    for version in ("v2", "v3"):
        assert storage.verify(f"d@{version}").ok


def test_how_a_table_is_joined_is_checked_before_anything_is_built(storage: Storage, ref: Any) -> None:
    table = some_rows(1)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"on": "x", "how": "outer"}, "'outer'"),
        ({"how": "left"}, "on="),
        ({"fill": {"weight": 0}}, "on="),
        ({"on": "x", "fill": {"weight": 0}}, "how='left'"),
        ({"on": "x", "how": "left", "fill": {"wieght": 0}}, "'wieght'.*weight"),
        ({"on": "x", "how": "left", "fill": {"weight": "none"}}, "weight"),
        ({"on": []}, "on="),
        ({"on": ["x", "x"]}, "on="),
        ({"on": 3}, "on="),
        ({"on": ["x", "y"]}, "'y'"),
        ({"on": "tokens"}, "tokens"),
    ]
    for options, told in wrong:
        with pytest.raises(cachelayer.CacheLayerError, match=told):
            storage.add_columns("d@v1", new="v2", columns={**table, "tokens": table["x"]}, **options)
    one = storage.add_columns("d@v1", new="v2", columns=table, on="x", how="left", fill=0)
    assert one[4]["weight"] == 0
    with pytest.warns(cachelayer.CacheLayerWarning, match="none of the 300 records"):
        storage.add_columns("d@v1", new="v3", columns={"x": np.array([-1]), "y": np.array([1])}, on="x", how="left")


def test_a_key_may_have_several_fields(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    keys = [("a", 2**63 + 1, None), ("a", 2**63, 1.5), ("b", 2**63, None), ("a", 2**63, float("nan"))]
    storage.submit([{"doc": doc, "m": {"part": np.uint64(part)}, "f": f} for doc, part, f in keys * 2], "d@v1")
    rows = [
        {"doc": doc, "m/part": np.uint64(part), "f": f, "rank": rank} for rank, (doc, part, f) in enumerate(keys[::-1])
    ]
    on = ["doc", "m/part", "f"]
    joined = storage.add_columns("d@v1", new="v2", columns=rows, on=on)
    assert joined.read(range(8))["rank"].tolist() == [3, 2, 1, 0] * 2
    assert list(joined[0]) == ["doc", "m", "f", "rank"]
    with pytest.raises(cachelayer.InvalidArgumentError, match="'a' in row 0 and again in row 2"):
        storage.add_columns("d@v1", new="v3", columns=rows, on="doc")
    with pytest.raises(cachelayer.InvalidArgumentError, match=r"record 2, whose key is \('b', None\)"):
        storage.add_columns("d@v1", new="v3", columns=[rows[0], rows[2], rows[3]], on=["doc", "f"])


@pytest.mark.parametrize("of", [lambda t: t, "pandas", "polars", "pyarrow"])
def test_tables_of_every_library_are_joined_alike(storage: Storage, ref: Any, of: Any) -> None:
    table = {"x": np.arange(0, RECORDS, 2), "weight": np.arange(0, RECORDS, 2) / 8}
    if isinstance(of, str):
        library = pytest.importorskip(of)
        table = (library.table if of == "pyarrow" else library.DataFrame)(table)
    left = storage.add_columns("d@v1", new="v2", columns=table, on="x", how="left")
    assert plain(left[7:9].read([0, 1])["weight"].filled(-1)) == [-1, 1]


@pytest.mark.parametrize(
    "wrong", [3, np.float32(1), [1] * RECORDS, [[1, 2]] * RECORDS, [np.zeros(2)] * RECORDS, "text", None]
)
@pytest.mark.parametrize("nested", [False, True])
def test_a_function_of_batches_that_returns_no_rows_is_refused(local: Storage, wrong: Any, nested: bool) -> None:
    with pytest.raises(cachelayer.CacheLayerError, match="'here'") as caught:
        local.add_columns(
            "d@v1",
            new="v3",
            columns=lambda _: {"here": {"a": wrong} if nested else wrong},
            batched=True,
            progress=False,
        )
    assert "Ragged" in str(caught.value) or not isinstance(wrong, list)


def test_a_function_of_batches_returns_arrays_ragged_or_lists_of_text(local: Storage) -> None:
    def columns(batch: Any) -> dict[str, Any]:
        rows = len(batch["x"])
        lengths = batch["x"] % 3
        splits = np.append(0, np.cumsum(lengths))
        return {
            "name": [f"row {x}" for x in batch["x"]],
            "r": cachelayer.Ragged(np.arange(splits[-1]), splits),
            "y": np.ones(rows),
        }

    added = local.add_columns("d@v1", new="v3", columns=columns, batched=True, progress=False)
    assert (added[7]["name"], len(added[8]["r"]), added[7]["y"]) == ("row 7", 2, 1)


LONG = "n" * 70_000
NAMES = {
    "as a path": {"a/b": np.arange(RECORDS), "a": {"b": np.arange(RECORDS) * 2}},
    "any alphabet": {
        "\u6d4b\u8bd5 \N{GRINNING FACE}": np.arange(RECORDS),
        "\ud800": np.arange(RECORDS),
        "\0'\"": np.ones(RECORDS),
    },
    "none": {"": np.arange(RECORDS)},
    "long": {LONG: np.arange(RECORDS), "s": np.ones(RECORDS)},
    "many": {f"column {number}": np.full(RECORDS, number) for number in range(3000)},
}


@pytest.mark.parametrize("names", NAMES)
def test_columns_may_have_any_names_and_numpy_reads_their_file(local: Storage, names: str) -> None:
    columns = NAMES[names]
    added = local.add_columns("d@v1", new="v3", columns=columns)
    assert plain(added[8]) == {**plain(elements()[8]), **plain(_rows(columns, 8))}
    assert local.verify("d@v3").ok
    file = max(files_of_columns(local), key=lambda path: path.stat().st_mtime_ns)
    assert len(np.load(file)) == RECORDS


def _rows(columns: Any, row: int) -> Any:
    return {key: _rows(child, row) if isinstance(child, dict) else child[row] for key, child in columns.items()}


def test_names_with_slashes_are_no_paths_when_records_are_appended(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    storage.submit([{"a": {"b": n}, "c/d": n * 2} for n in range(4)], "d@v1")
    storage.add_columns("d@v1", new="v2", columns={"a/b": np.arange(4) * 3, "c": {"d": np.arange(4) * 4}})
    row = {"a": {"b": 10}, "c/d": 20, "a/b": 30, "c": {"d": 40}}
    assert plain(storage.append("d@v2", new="v3", source=[row])[4]) == row
    filled = storage.append("d@v2", new="v4", source=[{"a": {"b": 10}, "c/d": 20}], fill={"a/b": 5, "c": {"d": 6}})
    assert plain(filled[4]) == {**row, "a/b": 5, "c": {"d": 6}}
    for version in ("v3", "v4"):
        assert storage.verify(f"d@{version}").ok


def test_fields_that_exist_are_refused_or_replaced(storage: Storage, wide: Any) -> None:
    new = {"score": np.zeros(RECORDS), "x": np.ones(RECORDS, np.int8)}
    with pytest.raises(cachelayer.InvalidArgumentError, match="score"):
        storage.add_columns("d@v3", new="v4", columns=new)
    replaced = storage.add_columns("d@v3", new="v4", columns=new, replace=True)
    assert plain(replaced[8]) == plain({**expected(8), "score": 0.0, "x": 1})
    assert replaced.element_spec["x"] == ArraySpec("int8")
    with pytest.raises(cachelayer.InvalidArgumentError, match="x"):
        storage.append("d@v4", new="v5", source=[replaced[0]])


def test_another_number_of_rows_and_a_failing_function_are_refused(storage: Storage, ref: Any) -> None:
    for count in (RECORDS - 1, RECORDS + 1):
        with pytest.raises(cachelayer.SourceError, match=str(count)):
            storage.add_columns("d@v1", new="v2", columns=scores(count))
    with pytest.raises(cachelayer.SourceError, match="record 200"):
        storage.add_columns("d@v1", new="v2", columns=lambda e: {"y": 1 // (200 - int(e["x"]))}, progress=False)
    assert list(storage.versions("d")) == ["v1"]


def test_fill_names_whole_fields_and_a_new_key_of_a_dict_comes_by_columns(storage: Storage) -> None:
    storage.cache([{"a": n, "m": {"x": n}} for n in range(3)], "nested@v1")
    longer = [{"a": 9, "m": {"x": 9, "z": 0.5}}]
    for name in ("m/z", "m.z"):
        with pytest.raises(cachelayer.InvalidArgumentError, match=r"within 'm'.*replace=True"):
            storage.append("nested@v1", new="v2", source=longer, fill={name: 0.0})
    storage.add_columns("nested@v1", "wide", lambda row: {"m": {**row["m"], "z": 0.0}}, replace=True)
    storage.rewrite("nested@wide", new="rewritten")
    grown = storage.append("nested@rewritten", new="v2", source=longer)
    assert [row["m"]["z"] for row in grown] == [0, 0, 0, 0.5]
    dotted = storage.append("nested@v1", new="v3", source=[{"a": 9, "a.b": 1, "m": {"x": 9}}], fill={"a.b": 0})
    assert [row["a.b"] for row in dotted] == [0, 0, 0, 1]


@pytest.mark.parametrize("elements", [[1, 2], [[1, 2.0]], ["a"]])
def test_elements_without_fields_are_not_filled(storage: Storage, elements: Any) -> None:
    storage.cache(elements, "bare@v1")
    with pytest.raises(cachelayer.InvalidArgumentError, match=r"bare@v1.*dicts"):
        storage.append("bare@v1", new="v2", source=elements, fill={"x": 0})


@anywhere
def test_records_are_appended_with_their_columns_or_filled(storage: Storage, wide: Any) -> None:
    more = [expected(n) for n in (5, 9)]
    longer = storage.append("d@v3", new="v4", source=more, progress=False)
    assert [plain(element) for element in longer[RECORDS - 1 :]] == [expected(299), *more]
    rows = [{key: row[key] for key in ("x", "tokens", "name", "double")} for row in more]
    filled = storage.append("d@v3", new="v5", source=rows, fill={"score": -1, "lang": 7}, progress=False)
    assert plain(filled[RECORDS]) == {**expected(5), "score": -1, "lang": 7}
    assert storage.verify("d@v4").ok
    with pytest.raises(cachelayer.CacheLayerError):
        storage.append("d@v3", new="v6", source=rows, progress=False)
    with pytest.raises(cachelayer.InvalidArgumentError, match="nothing"):
        storage.append("d@v3", new="v6", source=rows, fill={"score": -1, "lang": 7, "nothing": 1})


def test_none_in_appended_records_or_tables_stays_none(storage: Storage, wide: Any) -> None:
    row = {**expected(5), "x": None, "score": None, "name": None}
    longer = storage.append("d@v3", new="v4", source=[row], progress=False)
    assert [plain(element) for element in longer[RECORDS - 1 :]] == [expected(299), row]
    rows = [{key: row[key] for key in ("x", "tokens", "name", "double")}]
    filled = storage.append("d@v3", new="v5", source=rows, fill={"score": None, "lang": 7}, progress=False)
    assert plain(filled[RECORDS]) == {**row, "lang": 7}
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"x": range(RECORDS), "rank": [None, *range(1, RECORDS)]})
    ranks = storage.add_columns("d@v1", new="v6", columns=table, on="x")[:2]
    assert [element["rank"] for element in ranks] == [None, 1]


def test_records_are_appended_to_some_of_the_records(storage: Storage, wide: Any) -> None:
    storage.derive("d@v3", new="few", keep=[7, 2])
    longer = storage.append("d@few", new="more", source=[expected(5)], progress=False)
    assert [plain(element) for element in longer] == [expected(n) for n in (7, 2, 5)]


def test_records_appended_to_none_have_the_columns(storage: Storage) -> None:
    storage.submit([], "e@v1", element_spec={"x": ArraySpec("int64")}, allow_empty=True, progress=False)
    storage.add_columns("e@v1", new="v2", columns={"y": np.zeros(0, np.int32)})
    for row in ({"x": 1}, {"x": 1, "y": np.int32(2), "z": 3}, {"x": "1", "y": np.int32(2)}):
        with pytest.raises(cachelayer.CacheLayerError):
            storage.append("e@v2", new="v3", source=[row], progress=False)
    assert plain(storage.append("e@v2", new="v3", source=[{"x": 1}], fill={"y": 2})[0]) == {"x": 1, "y": 2}


@anywhere
def test_other_versions_know_the_columns(storage: Storage, wide: Any, tmp_path: Path) -> None:
    few = storage.derive("d@v3", new="few", keep=[7, 2, 7])
    assert [plain(element) for element in few] == [expected(n) for n in (7, 2, 7)]
    assert few.digest == wide.select([7, 2, 7]).digest
    folded = storage.rewrite("d@v3", new="folded", progress=False)
    assert plain(folded[9]) == expected(9)
    assert len(storage.rewrite("d@v3", new="names", fields=["name"], progress=False)[0]) == 1
    copied = storage.copy("d@v3", to=tmp_path / "copy", progress=False)
    assert (copied.digest, plain(copied[9])) == (wide.digest, expected(9))
    assert Storage(tmp_path / "copy").verify("d@v3").ok
    with pytest.raises(cachelayer.InvalidArgumentError, match="few"):
        storage.add_columns("d@few", new="more", columns={"y": np.zeros(3)})


@anywhere
def test_erased_records_lose_their_columns(storage: Storage, wide: Any) -> None:
    storage.erase("d@v3", records=[299], reason="asked", grace=0, progress=False)
    storage.gc(grace=0, progress=False)
    left = storage.fetch("d@v3")
    with pytest.raises(cachelayer.ErasedRecordError):
        left[299]
    assert plain(left[298]) == expected(298)
    assert storage.verify("d@v3").ok
    store = storage._store
    files = [name for name in store.names("d/shards") if store.read(f"d/shards/{name}") is not None]
    assert not [name for name in files if b"record 299" in (store.read(f"d/shards/{name}") or b"")]
    for name in files:
        if name.endswith(".npy"):
            array = np.load(io.BytesIO(store.read(f"d/shards/{name}") or b""))
            assert np.float32(299 / 4) not in array["score"]


@pytest.mark.parametrize("columns", [{"y": np.zeros(RECORDS)}, {"z": np.array(["a"] * RECORDS, object)}, named])
def test_to_a_version_with_erased_records_no_columns_are_added(storage: Storage, ref: Any, columns: Any) -> None:
    storage.erase("d@v1", records=[17], reason="asked", progress=False)
    with pytest.raises(cachelayer.errors.RefusedError, match="erased"):
        storage.add_columns("d@v1", new="v2", columns=columns)
    left = storage.fetch("d@v1")
    storage.rewrite(left.exclude(left.erased), "d@v2", progress=False)
    assert len(storage.add_columns("d@v2", new="v3", columns=named, progress=False)) == RECORDS - 1
    assert storage.verify("d@v3").ok


def test_a_damaged_column_file_is_refused(local: Storage) -> None:
    (file,) = files_of_columns(local)
    raw = bytearray(file.read_bytes())
    raw[-3] ^= 1
    file.write_bytes(raw)
    assert not local.verify("d@v2").ok
    with pytest.raises(cachelayer.CorruptionError):
        Storage(local.url, verify="always").fetch("d@v2").read([0])
    with pytest.raises(cachelayer.CorruptionError):
        local.rewrite("d@v2", "written", progress=False)
    file.write_bytes(raw[:-8])
    with pytest.raises(cachelayer.CorruptionError):
        local.fetch("d@v2").read([0])


def test_at_most_sixteen_groups(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    storage.submit(elements(3), "d@g0", progress=False)
    for number in range(1, 17):
        storage.add_columns(f"d@g{number - 1}", new=f"g{number}", columns={f"c{number}": np.ones(3)})
    with pytest.raises(cachelayer.InvalidArgumentError, match="rewrite"):
        storage.add_columns("d@g16", new="g17", columns={"c17": np.ones(3)})
    assert storage.add_columns("d@g16", new="again", columns={"c3": np.zeros(3)}, replace=True)[2]["c3"] == 0


@pytest.mark.parametrize("on", [None, "id"])
def test_columns_of_a_file_are_identified_by_the_file(storage: Storage, tmp_path: Path, on: str | None) -> None:
    storage.cache([{"id": number} for number in range(3)], "d@v1")
    path, keys = tmp_path / "scores.npz", {} if on is None else {on: np.arange(3)}
    np.savez(path, score=np.arange(3), **keys)
    made = storage.add_columns("d@v1", "v2", str(path), on=on)
    assert made.provenance["identity"]["files"] == 1
    if on is None:
        assert storage.add_columns("d@v1", "v2", str(path), hosts=(0, 1)).digest == made.digest
        np.savez(path, score=np.arange(1, 4))
        with pytest.raises(cachelayer.AlreadyExistsError, match="files"):
            storage.add_columns("d@v1", "v2", str(path), hosts=(0, 1))


def test_hosts_that_ask_for_other_columns_than_a_version_has_are_refused(storage: Storage) -> None:
    for version in ("v1", "other"):
        storage.submit(elements() if version == "v1" else elements()[:-1] + elements(1), f"d@{version}")
    made = storage.add_columns("d@v1", "v2", named, hosts=(0, 2))
    assert storage.add_columns("d@v1", "v2", named, hosts=(1, 2)).digest == made.digest
    storage.derive("d@v1", "derived", keep=slice(None, 3))
    storage.append("d@v1", "appended", elements(1))
    asked: list[tuple[str, str, Any, dict[str, Any], str]] = [
        ("v1", "v2", lambda element: {"name": "x"}, {}, "changed|new"),
        ("v1", "v2", named, {"batched": True}, "batched was False and is True"),
        ("other", "v2", named, {}, "it was made of v1"),
        ("v1", "derived", named, {}, "no columns"),
        ("v1", "appended", named, {}, "no columns"),
        ("v1", "other", named, {}, "no columns"),
    ]
    for base, new, function, options, told in asked:
        with pytest.raises(cachelayer.AlreadyExistsError, match=f"d@{new} is published already: .*({told})"):
            storage.add_columns(f"d@{base}", new, function, hosts=(1, 2), **options)


def test_columns_whose_shards_something_deletes_before_they_are_read_again_are_built_again(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    storage.submit({"x": np.arange(1000)}, "d@v1")
    builds = tmp_path / "d" / paths.BUILDS

    def double(batch: Any) -> Any:
        if batch["x"][-1] == 999:
            for path in builds.rglob("*.array_record"):
                path.unlink()
        return {"double": 2 * batch["x"]}

    with pytest.raises(cachelayer.BuildRevokedError, match="v2"):
        storage.add_columns("d@v1", new="v2", columns=double, batched=True, shard_bytes=1000)
    assert [*storage.versions("d")] == ["v1"]


def held_at_most(work: Callable[[], object]) -> int:
    """Return how many bytes are allocated at once while something works, besides those that were before."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_column_file_is_copied_range_by_range(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    rows, numbers = 4_000, 4_099
    table = {"k": np.arange(2), "y": np.arange(2 * numbers, dtype=np.float64).reshape(2, numbers)}
    storage.submit({"k": np.arange(rows) % 2, "x": np.arange(rows)}, "d@v1", progress=False)
    uses: dict[str, Callable[[], object]] = {
        "join": lambda: storage.add_columns("d@v1", "v2", table, on="k", progress=False),
        "append": lambda: storage.append("d@v2", "v3", [{"k": 0, "x": rows, "y": -table["y"][1]}], progress=False),
        "erase": lambda: storage.erase("d@v3", records=[7, 3_001], reason="asked", progress=False),
    }
    held = {name: held_at_most(use) for name, use in uses.items()}
    assert max(held.values()) < rows * numbers * 8 // 3, held
    left = storage.fetch("d@v3")
    expected = np.concatenate([table["y"][np.arange(rows) % 2], -table["y"][[1]]])
    kept = np.setdiff1d(np.arange(rows + 1), left.erased)
    for some in np.array_split(kept, 10):
        np.testing.assert_array_equal(left.read(some)["y"], expected[some])
    assert storage.verify("d@v3").ok


def test_columns_and_records_of_one_part_are_read_from_a_bucket_once_and_put_once(gcs: Server) -> None:
    with fault_proxy(gcs.endpoint) as proxy:
        storage = new_storage(gcs, proxy.endpoint)
        [shard] = storage.submit(elements(50), "d@v1")._base.version.manifest.shards
        uses: dict[str, Callable[[], object]] = {
            "columns": lambda: storage.add_columns("d@v1", "v2", lambda element: {"double": element["x"] * 2}),
            "records": lambda: storage.append("d@v2", "v3", [{**elements(2)[1], "double": 7}]),
        }
        asked: dict[str, list[str]] = {}
        for name, use in uses.items():
            proxy.forget()
            use()
            asked[name] = [exchange.path for exchange in proxy.exchanges()]
        # The first elements tell the spec.
        assert sum(path.endswith(shard.name) for path in asked["columns"]) <= 2
        assert {name: len(requests) for name, requests in asked.items()} == {"columns": 19, "records": 21}
        assert storage.fetch("d@v3").read([49, 50])["double"].tolist() == [98, 7]
