"""Tables, datasets and files of pyarrow as sources."""

import datetime as dt
import io
import warnings
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.dataset as pa_dataset
import pyarrow.feather as pa_feather
import pyarrow.parquet as pq
import pytest
from PIL import Image
from values_across import NoSuchValue, Row, ValuesAcross

import cachelayer
from cachelayer import (
    ArraySpec,
    CacheLayerError,
    CacheLayerWarning,
    DataRef,
    ElementError,
    ImageSpec,
    InvalidArgumentError,
    SourceError,
    Storage,
)
from cachelayer.adapters.pyarrow import (
    from_csv,
    from_ipc,
    from_json,
    from_parquet,
    longest_in_dictionary,
    partition_of,
    rows_at_once,
    to_arrow,
)
from cachelayer.adapters.sources.files import Files
from cachelayer.builds.as_source import as_source
from cachelayer.builds.batches import BATCH_NBYTES
from cachelayer.records.codec import codec_for
from cachelayer.specs.spec import as_nullable
from cachelayer.testing import SourceTests


def element(number: int) -> dict[str, Any]:
    return {
        "id": np.int64(number),
        "text": None if number % 5 == 3 else f"ü{number}",
        "score": None if number % 7 == 2 else np.float32(number / 2),
        "vector": np.array([number, -number], np.int16),
        "ragged": None if number % 6 == 4 else np.arange(number % 3, dtype=np.int64),
        "point": {"x": np.float64(number), "unit": "m"},
        "when": np.datetime64(number, "us"),
    }


SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "text": pa.string(),
        "score": pa.float32(),
        "vector": pa.list_(pa.int16(), 2),
        "ragged": pa.list_(pa.int64()),
        "point": pa.struct({"x": pa.float64(), "unit": pa.dictionary(pa.int32(), pa.string())}),
        "when": pa.timestamp("us", "UTC"),
    }
)


def table(start: int, stop: int) -> pa.Table:
    elements = [element(number) for number in range(start, stop)]
    return pa.Table.from_pylist([{**each, "when": each["when"].astype(object)} for each in elements], SCHEMA)


class Conformance(SourceTests):
    def element(self, number: int) -> Any:
        return element(number)


class TestTable(Conformance):
    def source(self, count: int, folder: Path) -> Any:
        return pa.concat_tables([table(0, count // 2), table(count // 2, count)])


class TestRecordBatchReader(Conformance):
    seeks = False

    def source(self, count: int, folder: Path) -> Any:
        return pa.RecordBatchReader.from_batches(SCHEMA, table(0, count).to_batches(max_chunksize=7))


class TestDataset(Conformance):
    seeks = False

    def source(self, count: int, folder: Path) -> Any:
        pq.write_table(table(0, count // 2), folder / "0.parquet")
        pq.write_table(table(count // 2, count), folder / "1.parquet", row_group_size=9)
        return pa_dataset.dataset([str(folder / "0.parquet"), str(folder / "1.parquet")], schema=SCHEMA)


class TestParquet(Conformance):
    def source(self, count: int, folder: Path) -> Any:
        pq.write_table(table(0, count // 3), folder / "train-0.parquet")
        pq.write_table(table(count // 3, count), folder / "train-1.parquet", row_group_size=50)
        return from_parquet(folder / "train-*.parquet")


class TestIpc(Conformance):
    def source(self, count: int, folder: Path) -> Any:
        with pa.OSFile(str(folder / "a.arrow"), "wb") as file, pa.ipc.new_file(file, SCHEMA) as writer:
            writer.write_table(table(0, count // 2))
        pa_feather.write_feather(table(count // 2, count), folder / "b.feather", chunksize=10)
        return from_ipc([folder / "a.arrow", str(folder / "b.feather")])


class TestCsv(SourceTests):
    seeks = False

    def source(self, count: int, folder: Path) -> Any:
        rows = "".join(f"{n},w{n},{n / 4},{'' if n % 3 == 1 else n}\n" for n in range(count))
        (folder / "rows.csv").write_text("n,name,quarter,gap\n" + rows)
        types = {"n": pa.int32(), "gap": pa.int64(), "quarter": pa.float32()}
        return from_csv(folder / "rows.csv", convert_options=pa_csv.ConvertOptions(column_types=types))

    def element(self, number: int) -> Any:
        gap = None if number % 3 == 1 else np.int64(number)
        return {"n": np.int32(number), "name": f"w{number}", "quarter": np.float32(number / 4), "gap": gap}


class TestJsonLines(SourceTests):
    seeks = False

    def source(self, count: int, folder: Path) -> Any:
        lines = [f'{{"n": {n}, "tags": {list(range(n % 3))}, "who": {{"name": "w{n}"}}}}\n' for n in range(count)]
        (folder / "rows.jsonl").write_text("".join(lines))
        schema = pa.schema({"n": pa.int64(), "tags": pa.list_(pa.int64()), "who": pa.struct({"name": pa.string()})})
        return from_json(folder / "rows.jsonl", schema)

    def element(self, number: int) -> Any:
        return {"n": np.int64(number), "tags": np.arange(number % 3), "who": {"name": f"w{number}"}}


def test_dictionaries_that_differ_between_chunks_and_row_groups_are_joined(storage: Storage, tmp_path: Path) -> None:
    words = [["a", "b"], ["c", "a", "d"], ["b", "z"]]
    chunks = [pa.array(part).dictionary_encode() for part in words]
    lists = [pa.ListArray.from_arrays(pa.array(range(len(part) + 1), pa.int32()), part) for part in chunks]
    whole = pa.table({"word": pa.chunked_array(chunks), "list": pa.chunked_array(lists)})
    pq.write_table(whole, tmp_path / "a.parquet", row_group_size=2)
    for version, source in (("v1", whole), ("v2", from_parquet(tmp_path / "a.parquet"))):
        ref = storage.cache(source, f"d@{version}")
        assert [(row["word"], row["list"].tolist()) for row in ref] == [(word, [word]) for word in "abcadbz"]


def test_a_parquet_file_whose_middle_is_damaged_is_named_with_the_record(storage: Storage, tmp_path: Path) -> None:
    for number in range(2):
        pq.write_table(pa.table({"n": np.random.default_rng(number).random(4000)}), tmp_path / f"{number}.parquet")
    path = tmp_path / "1.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + b"\xff" * (len(whole) - 4 - 600) + whole[-600:])
    with pytest.raises(SourceError, match="record 4000"):
        storage.cache(from_parquet(tmp_path / "*.parquet"), "d@v1")


@pytest.mark.parametrize(
    ("second", "change"),
    [
        ({"n": [1.5], "s": ["a"]}, r"column 'n' is double, not int64 as in .*0\.parquet"),
        ({"n": [1]}, r"its columns are \['n'\], not \['n', 's'\] as in .*0\.parquet"),
        ({"s": ["a"], "n": [1]}, r"its columns are \['s', 'n'\], not \['n', 's'\]"),
    ],
)
def test_a_schema_that_changes_between_files_is_named(
    storage: Storage, tmp_path: Path, second: Any, change: str
) -> None:
    pq.write_table(pa.table({"n": [1], "s": ["b"]}), tmp_path / "0.parquet")
    pq.write_table(pa.table(second), tmp_path / "1.parquet")
    with pytest.raises(SourceError, match=rf"the schema changes at .*1\.parquet: {change}"):
        storage.cache(from_parquet(tmp_path / "*.parquet"), "d@v1")


def test_a_schema_that_is_given_casts_every_file(storage: Storage, tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1], "s": ["b"]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"s": [None], "n": [1.5]}), tmp_path / "1.parquet")
    schema = pa.schema({"n": pa.float32(), "s": pa.string()})
    ref = storage.cache(from_parquet(tmp_path / "*.parquet", schema=schema), "d@v1")
    assert list(ref) == [{"n": np.float32(1), "s": "b"}, {"n": np.float32(1.5), "s": None}]
    assert ref.element_spec["n"] == ArraySpec("float32")
    with pytest.raises(ElementError, match=r"\['n'\]"):
        storage.cache(from_parquet(tmp_path / "*.parquet", schema=pa.schema({"n": pa.int64()})), "d@v2")


def int96(folder: Path, name: str, times: list[Any]) -> Path:
    """A Parquet file with times as INT96 in a column, a list and a struct."""
    kind = pa.timestamp("us")
    path = folder / f"{name}.parquet"
    columns = {
        "n": list(range(len(times))),
        "time": pa.array(times, kind),
        "list": pa.array([[time] for time in times], pa.list_(kind)),
        "struct": pa.array([{"a": {"b": time}} for time in times], pa.struct({"a": pa.struct({"b": kind})})),
    }
    pq.write_table(pa.table(columns), path, use_deprecated_int96_timestamps=True)
    return path


def test_times_of_int96_are_those_of_the_file_or_refused(storage: Storage, tmp_path: Path) -> None:
    times = [dt.datetime(1700, 1, 1), None, dt.datetime(2262, 4, 11)]
    near = to_arrow(storage.cache(from_parquet(int96(tmp_path, "near", times)), "int96@near"))
    assert near["time"].type == pa.timestamp("ns")
    assert near["time"].cast(pa.timestamp("us")).to_pylist() == times
    assert near["list"].cast(pa.list_(pa.timestamp("us"))).to_pylist() == [[time] for time in times]
    for year in (1, 1676, 2263, 9999):
        far = int96(tmp_path, "far", [*times, dt.datetime(year, 12, 31)])
        for column in ("time", "list", "struct"):
            source: Any = from_parquet(far, columns=["n", column])
            with pytest.raises(SourceError, match=f"far.parquet: column '{column}' has times of Parquet's INT96"):
                storage.cache(source, "int96@far")
            with pytest.raises(CacheLayerError, match="INT96"):
                storage.cache(pa_dataset.dataset(far).replace_schema(pa_dataset.dataset(far).schema), "int96@far")
        with pytest.raises(CacheLayerError, match="INT96"):
            storage.cache(pq.ParquetFile(far), "int96@far")
        assert len(storage.cache(from_parquet(far, columns=["n"]), f"int96@n{year}")) == 4
        exact = pa_dataset.ParquetFileFormat(coerce_int96_timestamp_unit="us")
        for number, source in enumerate(
            (pa_dataset.dataset(far, format=exact), pq.ParquetFile(far, coerce_int96_timestamp_unit="us"))
        ):
            read = to_arrow(storage.cache(source, f"int96@far{year}-{number}"))
            assert read["time"].to_pylist()[-1] == read["struct"].to_pylist()[-1]["a"]["b"] == dt.datetime(year, 12, 31)


def test_a_schema_takes_no_zone_and_gives_none(storage: Storage, tmp_path: Path) -> None:
    kinds = [pa.timestamp("us"), pa.timestamp("us", "Europe/Paris")]
    for own, wanted in (kinds, kinds[::-1]):
        for value, stored, asked in ((0, own, wanted), ([0], pa.list_(own), pa.list_(wanted))):
            pq.write_table(pa.table({"time": pa.array([value], stored)}), tmp_path / "zone.parquet")
            source = from_parquet(tmp_path / "zone.parquet", schema=pa.schema({"time": asked}))
            with pytest.raises(ElementError, match="time"):
                storage.cache(source, "zone@v1")
    (tmp_path / "zone.csv").write_text("time\n2020-01-01T00:00:00Z\n2020-01-01T00:00:00+02:00\n")
    ref = storage.cache(from_csv(tmp_path / "zone.csv", pa.schema({"time": kinds[1]})), "zone@csv")
    assert to_arrow(ref)["time"].type == kinds[1]
    assert ref.read([0, 1])["time"].tolist() == [dt.datetime(2020, 1, 1), dt.datetime(2019, 12, 31, 22)]
    with pytest.raises(ElementError, match="time"):
        storage.cache(from_csv(tmp_path / "zone.csv", pa.schema({"time": kinds[0]})), "zone@naive")


def test_a_column_of_nothing_but_nulls_asks_for_a_spec(storage: Storage) -> None:
    nulls = pa.table({"n": [1, 2], "x": pa.nulls(2)})
    with pytest.raises(InvalidArgumentError, match=r"\['x'\]"):
        storage.cache(nulls, "d@v1")
    for version, leaf in (("v1", ArraySpec("float32", (3,))), ("v2", ArraySpec(str))):
        ref = storage.cache(nulls, f"d@{version}", element_spec={"n": np.int64, "x": leaf})
        assert ref.element_spec["x"] == as_nullable(leaf)
        assert list(ref) == [{"n": 1, "x": None}, {"n": 2, "x": None}]
    assert storage.cache(nulls, "d@v3", element_spec={"n": np.int64, "x": None})[0] == {"n": 1, "x": None}


def test_a_declared_spec_says_lengths_and_how_bytes_are_decoded(storage: Storage, tmp_path: Path) -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    pq.write_table(
        pa.table({"image": [file.getvalue()], "box": [[1, 2]], "grid": [[[1], [2]]]}), tmp_path / "a.parquet"
    )
    spec = {"image": ImageSpec(), "box": ArraySpec("int64", (2,)), "grid": ArraySpec("int64", (2, 1))}
    ref = storage.cache(from_parquet(tmp_path / "a.parquet"), "d@v1", element_spec=spec)
    assert ref.raw().element_spec == spec
    np.testing.assert_array_equal(ref[0]["image"], pixels)
    assert ref[0]["grid"].tolist() == [[1], [2]]
    empty = pa.table({"x": pa.array([[], None], pa.list_(pa.null()))})
    ref = storage.cache(empty, "d@v2", element_spec={"x": ArraySpec("float32", (None,))})
    assert ref[0]["x"].dtype == np.float32
    with pytest.raises(ElementError, match=r"\['x'\]"):
        storage.cache(pa.table({"x": [[1], [1, 2]]}), "d@v3", element_spec={"x": ArraySpec("int64", (1,))})
    narrow = {"x": ArraySpec("int8", (None,))}
    assert storage.cache(pa.table({"x": [[1], [1, 2]], "y": [1, 2]}), "d@v4", element_spec=narrow).element_spec == {
        **narrow,
        "y": ArraySpec("int64"),
    }
    with pytest.raises(ElementError, match=r"record 1, leaf \['x'\].*300"):
        storage.cache(pa.table({"x": [[1], [300]]}), "d@v5", element_spec=narrow)


INT64S = ArraySpec("int64", (None,))
OTHERS = [{"x": ArraySpec("M8[s]", (None,))}, {"x": ArraySpec("int64")}, {"x": ImageSpec()}, {"x": {"y": np.int64}}]


@pytest.mark.parametrize("spec", [*OTHERS, {"y": INT64S}, {"x": None}, np.int64], ids=str)
def test_a_declared_spec_of_other_columns_is_refused(storage: Storage, spec: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="element_spec"):
        storage.cache(pa.table({"x": [[1]]}), "d@v1", element_spec=spec)


DECLARED: dict[str, tuple[pa.Array, pa.DataType, str]] = {
    "integers past 2^53 as floats": (pa.array([1, 2**53 + 1]), pa.float64(), "9007199254740993"),
    "numbers past float32": (pa.array([1.0, 1e300]), pa.float32(), r"1e\+300"),
    "numbers past float16": (pa.array([1.0, 1e5], pa.float32()), pa.float16(), "100000.0"),
    "integers past int8": (pa.array([1, 300]), pa.int8(), "300"),
    "fractions as integers": (pa.array([1.0, 0.5]), pa.int64(), "0.5"),
    "nanoseconds as seconds": (pa.array([0, 1], pa.timestamp("ns")), pa.timestamp("s"), r"Timestamp\(.1970"),
    "numbers as booleans": (pa.array([1.0, 2.0]), pa.bool_(), "2.0"),
    "moments as days": (pa.array([0, 1], pa.timestamp("s")), pa.date32(), r"datetime.datetime\(1970"),
    "words as numbers": (pa.array(["1", "one"]), pa.int64(), "'one'"),
    "bytes as text": (pa.array([b"fine", b"\xff"]), pa.string(), r"b'\\xff'"),
}


def test_batches_are_cut_by_the_size_of_their_values_not_of_their_encoding(tmp_path: Path) -> None:
    # References to one text take little more than one.
    text, count = "x" * 400_000, 200
    texts = pa.array([text] * count + ["y"] * count)
    nested = pa.array([[{"t": text}]] * count + [[]] * count)
    zeros = pa.array([np.zeros(10_000)] * 2 * count)
    plain = pa.table({"t": texts, "nested": nested, "zeros": zeros, "n": range(2 * count)})
    coded = pa.table({"t": texts.dictionary_encode(), "r": pc.run_end_encode(texts), "n": range(2 * count)})
    pq.write_table(plain, tmp_path / "plain.parquet", row_group_size=400)
    pq.write_table(coded.drop("r"), tmp_path / "coded.parquet")
    pa_feather.write_feather(coded.drop("r"), tmp_path / "coded.arrow")
    sources: list[Any] = [coded, coded.to_reader(), pa_dataset.dataset(coded), from_ipc(tmp_path / "coded.arrow")]
    for path in (tmp_path / "plain.parquet", tmp_path / "coded.parquet"):
        sources += [from_parquet(path), pq.ParquetFile(path), pa_dataset.dataset(path)]
    for given in sources:
        source, rows, before = as_source(given), 0, pa.total_allocated_bytes()
        codec = codec_for(source.element_spec)
        for batch in source.batches():
            assert codec.encode(batch.columns(codec)).buffer.nbytes < 6 * BATCH_NBYTES
            # Scanners of datasets decode whole row groups, whatever is asked for.
            assert isinstance(given, pa_dataset.Dataset) or pa.total_allocated_bytes() - before < 32 * BATCH_NBYTES
            rows += len(batch)
        assert rows == 2 * count


@pytest.mark.parametrize("kind", [pa.string(), pa.large_binary(), pa.list_(pa.struct([("t", pa.string())]))], ids=str)
def test_as_many_rows_are_decoded_at_once_as_the_longest_value_of_a_dictionary_allows(
    kind: pa.DataType, tmp_path: Path
) -> None:
    # All dictionaries take about 1 MiB, which could be one value of each row; "n" has none.
    short = [f"text number {number}" for number in range(40_000)]
    for longest, texts, rows in ((17, short, 8_192), (20_000, [*short, "x" * 20_000], 3_355)):
        values = [[{"t": text}] for text in texts] if pa.types.is_list(kind) else texts
        table = pa.table({"t": pa.array(values).cast(kind), "n": range(len(texts))})
        pq.write_table(table, tmp_path / "rows.parquet")
        [file], metadata = Files(tmp_path / "rows.parquet").find(), pq.read_metadata(tmp_path / "rows.parquet")
        column = metadata.row_group(0).column(0).path_in_schema
        assert rows_at_once(metadata, 0) < 100
        assert longest_in_dictionary(file, metadata, 0, column) == longest
        assert rows_at_once(metadata, 0, partial(longest_in_dictionary, file, metadata)) == rows


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("name", DECLARED)
def test_a_value_that_a_declared_type_cannot_hold_is_refused_with_its_record_or_left_out(
    name: str, suffix: str, tmp_path: Path
) -> None:
    values, kind, shown = DECLARED[name]
    storage, path, schema = Storage(tmp_path / "cache"), tmp_path / f"x.{suffix}", pa.schema({"x": kind})
    write, read = (pq.write_table, from_parquet) if suffix == "parquet" else (pa_feather.write_feather, from_ipc)
    write(pa.table({"x": values}), str(path))
    with pytest.raises(
        ElementError, match=rf"^\S*x\.{suffix}, row 1, record 1, leaf \['x'\]: expected .*, got {shown}"
    ):
        storage.submit(read(path, schema=schema), "d@v1")
    with pytest.warns(cachelayer.CacheLayerWarning, match="1 of 2 records were left out"):
        ref = storage.submit(read(path, schema=schema), "d@v2", on_error="skip")
    assert len(ref) == 1


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv"])
def test_an_error_begins_with_the_file_and_the_row_in_it(suffix: str, storage: Storage, tmp_path: Path) -> None:
    write = {"parquet": pq.write_table, "arrow": pa_feather.write_feather, "csv": pa_csv.write_csv}[suffix]
    read = {"parquet": from_parquet, "arrow": from_ipc, "csv": from_csv}[suffix]
    for number in range(2):
        texts = ["1"] * 5 if number == 0 else ["1", "1", "1", "x"]
        write(pa.table({"x": texts}), str(tmp_path / f"{number}.{suffix}"))
    # Each CSV file is a part, with records of its own.
    record = 3 if suffix == "csv" else 8
    with pytest.raises(ElementError, match=rf"\S*1\.{suffix}, row 3, record {record}, ") as raised:
        storage.submit(read(tmp_path / f"*.{suffix}"), "d@v1", element_spec={"x": "int64"})
    assert raised.value.record == record


@pytest.fixture
def hive(tmp_path: Path) -> Path:
    """Written by pyarrow, with a null and names that need escapes."""
    table = pa.table({"n": [1, 2, 3, 4], "year": [2024, 2024, 2025, 2025], "code": ["007", "a b/c", "7", None]})
    schema = pa.schema([("year", pa.int64()), ("code", pa.string())])
    parts = pa_dataset.partitioning(schema, flavor="hive")
    pa_dataset.write_dataset(table, tmp_path / "hive", format="parquet", partitioning=parts)
    return tmp_path / "hive"


def test_partitions_are_columns_that_columns_and_a_schema_choose(storage: Storage, hive: Path) -> None:
    def rows(**options: Any) -> Any:
        version = f"v{len(storage.datasets()) and len(storage.versions('d'))}"
        return storage.cache(from_parquet(hive / "**" / "*.parquet", **options), f"d@{version}")

    expected = [(1, "2024", "007"), (2, "2024", "a b/c"), (3, "2025", "7"), (4, "2025", None)]
    assert sorted(tuple(row.values()) for row in rows()) == expected
    typed = rows(schema=pa.schema({"year": pa.int16(), "n": pa.int64()}))
    assert typed.element_spec == {"year": ArraySpec("int16"), "n": ArraySpec("int64")}
    assert sorted(tuple(row.values()) for row in typed) == [(int(year), n) for n, year, _ in expected]
    for columns in (["code", "n"], ["code"], ["n"]):
        ref = rows(columns=columns)
        assert (len(ref), list(ref[0])) == (4, columns)
    with pytest.raises(InvalidArgumentError, match="'nope'"):
        rows(columns=["nope"])
    with pytest.raises(ElementError, match="'a b/c'"):
        rows(schema=pa.schema({"code": pa.int64()}))
    pq.write_table(pa.table({"n": [1]}), hive / "year=2024" / "stray.parquet")
    with pytest.raises(SourceError, match=r"the schema changes at .*its columns are"):
        rows()


def test_columns_that_some_files_lack_are_filled(storage: Storage, tmp_path: Path) -> None:
    files = [{"n": 1, "text": "a"}, {"n": 2, "text": "b", "lang": 5}, {"text": "c"}]
    folder = tmp_path / "files"
    folder.mkdir()
    for number, row in enumerate(files):
        pq.write_table(pa.Table.from_pylist([row]), folder / f"{number}.parquet")
    with pytest.raises(SourceError, match="'lang': None"):
        storage.submit(folder, "plain@v1")
    with pytest.raises(SourceError, match="'n': None"):
        storage.submit(from_parquet(folder, fill={"lang": 0}), "some@v1")
    for fill, name in (({"lang": 0, "n": 0, "other": 0}, "other"), ({"lang": "a text", "n": 0}, "lang")):
        with pytest.raises(InvalidArgumentError, match=name):
            storage.submit(from_parquet(folder, fill=fill), "wrong@v1")
    ref = storage.submit(from_parquet(folder, fill={"lang": None, "n": -1}), "rows@v1")
    assert list(ref) == [
        {"n": 1, "text": "a", "lang": None},
        {"n": 2, "text": "b", "lang": 5},
        {"n": -1, "text": "c", "lang": None},
    ]
    narrow = storage.submit(from_parquet(folder, ["lang"], fill={"lang": 0}), "narrow@v1")
    assert [row["lang"] for row in narrow] == [0, 5, 0]
    schema = pa.schema({"lang": pa.int8(), "n": pa.float32()})
    typed = storage.submit(from_parquet(folder, schema=schema, fill={"lang": 0, "n": 0}), "typed@v1")
    assert typed.element_spec == {"lang": ArraySpec("int8"), "n": ArraySpec("float32")}
    assert [tuple(row.values()) for row in typed] == [(0, 1), (5, 2), (0, 0)]


def test_a_folder_of_spark_is_read_as_it_is(storage: Storage, tmp_path: Path) -> None:
    folder = tmp_path / "days"
    for name in (
        "_SUCCESS",
        "._SUCCESS.crc",
        "_metadata",
        "_temporary/0/part.parquet",
        ".hidden.parquet",
        ".tmp/a.crc",
    ):
        for place in (folder, folder / "day=1"):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(b"no Parquet")
    for number, day in enumerate(("1", "2", "__HIVE_DEFAULT_PARTITION__")):
        (folder / f"day={day}").mkdir(exist_ok=True)
        pq.write_table(pa.table({"n": [number]}), folder / f"day={day}" / "part-0.snappy.parquet")
    for source in (folder, from_parquet(folder / "**" / "*.parquet")):
        ref = storage.submit(source, "rows@v1")
        assert list(ref) == [{"n": 0, "day": "1"}, {"n": 1, "day": "2"}, {"n": 2, "day": None}]
        storage.delete("rows@v1")


def test_only_folders_right_above_a_file_are_partitions_and_its_own_columns_come_first(
    storage: Storage, tmp_path: Path
) -> None:
    (tmp_path / "n=5").mkdir()
    pq.write_table(pa.table({"n": [1]}), tmp_path / "n=5" / "a.parquet")
    assert list(storage.cache(from_parquet(tmp_path / "n=5" / "a.parquet"), "d@v1")) == [{"n": np.int64(1)}]
    assert partition_of("/run=5/data/a=1/b=x%20y/0.parquet") == {"a": "1", "b": "x y"}
    assert partition_of("/run=5/data/0.parquet") == {}
    assert partition_of("bucket/a=/=b/c==d/k=1.parquet") == {"c": "=d"}
    with pytest.raises(InvalidArgumentError, match="a=2"):
        partition_of("/a=1/a=2/0.parquet")


def _table(ref: DataRef[Any], _: Path | None = None) -> pa.Table:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return to_arrow(ref)
        except (CacheLayerError, CacheLayerWarning) as error:
            raise NoSuchValue from error


def _parquet(ref: DataRef[Any], folder: Path) -> Any:
    try:
        pq.write_table(_table(ref), folder / "x.parquet", row_group_size=2)
        # pyarrow writes null lists of fixed size, and lists of none, that it does not read.
        pq.read_table(folder / "x.parquet")
    except pa.ArrowException as error:
        raise NoSuchValue from error
    return from_parquet(folder / "x.parquet")


class TestTableValues(ValuesAcross):
    row = Row("pyarrow", make=_table)


class TestParquetValues(ValuesAcross):
    row = Row("parquet", make=_parquet)
    needs: ClassVar = {"far seconds": "pyarrow>=25"}
