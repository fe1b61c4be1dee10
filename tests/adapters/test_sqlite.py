"""SQLite itself: queries, snapshots beside writers, and what is refused."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from source_conformance import SourceConformance

from cachelayer import ArraySpec, Nullable, Storage
from cachelayer.adapters.sqlite import from_sqlite
from cachelayer.errors import (
    CacheLayerError,
    CacheLayerWarning,
    ElementError,
    InvalidArgumentError,
    InvalidTypeError,
    SourceError,
)
from cachelayer.records.codec import codec_for


def database(path: Path, statement: str, rows: Any = (), *, journal: str = "delete") -> Path:
    """A database with a table ``t`` of these columns and rows."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"PRAGMA journal_mode={journal}")
        connection.execute(f"CREATE TABLE t ({statement})")
        rows = list(rows)
        if rows:
            connection.executemany(f"INSERT INTO t VALUES ({', '.join('?' * len(rows[0]))})", rows)
    return path


def row(number: int) -> tuple[Any, ...]:
    text = None if number % 7 == 3 else f"näme {number}" * (number % 4)
    return number - 5, number / 3, text, bytes([number % 256]) * (number % 40), None if number % 5 == 1 else number


class TestConformance(SourceConformance):
    seeks = False

    def source(self, count: int, folder: Path) -> Any:
        columns = "a INTEGER, b REAL, c TEXT, d BLOB, e INTEGER"
        database(folder / "data.db", columns, map(row, range(count)))
        return from_sqlite(folder / "data.db", "SELECT * FROM t ORDER BY a")

    def element(self, number: int) -> Any:
        a, b, c, d, e = row(number)
        return {"a": np.int64(a), "b": np.float64(b), "c": c, "d": d, "e": None if e is None else np.int64(e)}


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """5,000 numbers, each with its half."""
    return database(tmp_path / "numbers.db", "x INTEGER, half REAL", ((i, i / 2) for i in range(5000)))


DATASETS = count()


def cached(path: Path, query: str, parameters: Any = (), **options: Any) -> Any:
    storage = Storage(path.parent / "cache")
    return storage.submit(from_sqlite(path, query, parameters), f"d{next(DATASETS)}", "v1", **options)


@pytest.mark.parametrize(
    ("query", "parameters"),
    [
        ("SELECT x FROM t WHERE x > ? AND x <= ?", (10, 4000)),
        ("SELECT x FROM t WHERE x > :low AND x <= :high", {"low": 10, "high": 4000}),
        ("WITH some AS (SELECT x FROM t WHERE x > ?) SELECT x FROM some WHERE x <= ?", (10, 4000)),
    ],
)
def test_parameters_stand_in_the_query(numbers: Path, query: str, parameters: Any) -> None:
    ref = cached(numbers, f"{query} ORDER BY x DESC", parameters)
    assert ref.read(range(len(ref)))["x"].tolist() == list(range(4000, 10, -1))


def test_a_parameter_is_a_value_and_never_sql(tmp_path: Path) -> None:
    evil = "x' OR '1'='1"
    path = database(tmp_path / "names.db", "name TEXT", [("ann",), (evil,)])
    assert len(cached(path, "SELECT name FROM t WHERE name = ?", (evil,))) == 1


def test_columns_may_be_expressions(numbers: Path) -> None:
    ref = cached(numbers, "SELECT x * x AS square, upper('a' || x) AS name FROM t WHERE x < 3 ORDER BY x")
    assert ref.read(range(3))["square"].tolist() == [0, 1, 4]
    assert ref[2] == {"square": 4, "name": "A2"}


def test_names_of_files_may_hold_anything(tmp_path: Path) -> None:
    path = database(tmp_path / "a b?mode=rw&%41#ü.db", "x INTEGER", [(1,)])
    assert len(cached(path, "SELECT x FROM t")) == 1


def test_a_spec_decides_over_dtypes(numbers: Path) -> None:
    spec = {"x": ArraySpec("uint16"), "half": ArraySpec("float32")}
    batch = cached(numbers, "SELECT * FROM t ORDER BY x", element_spec=spec).read(range(5000))
    assert batch["x"].dtype == np.uint16
    assert (batch["x"] == np.arange(5000)).all()
    assert (batch["half"] == np.arange(5000, dtype=np.float32) / 2).all()


@pytest.mark.parametrize("number", [3000, 70])
def test_a_number_that_a_spec_has_no_place_for_is_refused_by_its_record(tmp_path: Path, number: int) -> None:
    path = database(tmp_path / "big.db", "x INTEGER", ((300 if i == number else i % 256,) for i in range(3500)))
    with pytest.raises(ElementError, match=rf"record {number}, leaf \['x'\]: expected uint8, got int 300"):
        cached(path, "SELECT x FROM t", element_spec={"x": ArraySpec("uint8")})


def test_integers_of_64_bits_are_kept_exactly(tmp_path: Path) -> None:
    found = [-(2**63), 2**63 - 1, 2**53 + 1, None]
    path = database(tmp_path / "wide.db", "x INTEGER", ((number,) for number in [0] * 100 + found))
    batch = cached(path, "SELECT x FROM t ORDER BY rowid").read(range(100, 104))["x"]
    assert batch.values[:3].tolist() == found[:3]
    assert batch.valid.tolist() == [True, True, True, False]


def test_floats_may_be_infinite(tmp_path: Path) -> None:
    path = database(tmp_path / "floats.db", "x REAL", ((x,) for x in [1.5] * 100 + [float("inf"), float("-inf")]))
    batch = cached(path, "SELECT x FROM t ORDER BY rowid").read([100, 101])["x"]
    assert batch.tolist() == [np.inf, -np.inf]


@pytest.mark.parametrize("at", [5, 3000])
@pytest.mark.parametrize(("ordinary", "odd"), [(1, "text"), (1, 1.5), ("text", b"bytes"), (1.5, "text")])
def test_a_column_of_mixed_types_is_refused_by_record_and_column(
    tmp_path: Path, ordinary: Any, odd: Any, at: int
) -> None:
    path = database(tmp_path / "mixed.db", "x", ((odd if i == at else ordinary,) for i in range(3500)))
    with pytest.raises(ElementError, match=rf"record {at}, leaf \['x'\]: expected .*, got {type(odd).__name__}"):
        cached(path, "SELECT x FROM t ORDER BY rowid")


def test_late_rows_of_other_types_are_skipped_if_that_is_asked_for(tmp_path: Path) -> None:
    path = database(tmp_path / "mixed.db", "x", ((str(i) if i % 1000 == 999 else i,) for i in range(3500)))
    with pytest.warns(CacheLayerWarning, match="3 of 3500 records were left out.*record 999"):
        ref = cached(path, "SELECT x FROM t ORDER BY rowid", on_error="skip")
    assert [row["x"] for row in ref[997:1001]] == [997, 998, 1000, 1001]


def test_a_column_of_nothing_but_null_needs_a_spec(tmp_path: Path) -> None:
    path = database(tmp_path / "null.db", "x INTEGER, y REAL", ((i, None) for i in range(3000)))
    with pytest.raises(ElementError, match=r"leaf \['y'\].*None in all of them.*Pass element_spec="):
        cached(path, "SELECT * FROM t")
    ref = cached(path, "SELECT * FROM t", element_spec={"x": ArraySpec("int64"), "y": ArraySpec("float64")})
    batch = ref.read(range(3000))
    assert isinstance(batch["y"], Nullable)
    assert not batch["y"].valid.any()


def test_the_first_null_may_come_late(tmp_path: Path) -> None:
    path = database(tmp_path / "late.db", "x REAL", ((None if i == 2500 else 0.5,) for i in range(3000)))
    ref = cached(path, "SELECT x FROM t ORDER BY rowid")
    assert ref[2500]["x"] is None
    assert ref.read(range(3000))["x"].valid.sum() == 2999


@pytest.mark.parametrize(
    "query",
    [
        "INSERT INTO t VALUES (1, 2)",
        "WITH a AS (SELECT 1) INSERT INTO t SELECT 1, 2",
        "INSERT INTO t VALUES (1, 2) RETURNING x",
        "DELETE FROM t",
        "UPDATE t SET x = 0",
        "DROP TABLE t",
        "CREATE TABLE u (x)",
        "PRAGMA journal_mode=wal",
        "PRAGMA table_info(t)",
        "ATTACH DATABASE 'other.db' AS other",
        "VACUUM",
        "VACUUM INTO (SELECT 'copy.db')",
        "BEGIN",
        "EXPLAIN SELECT x FROM t",
        "SELECT x FROM t; DROP TABLE t",
        "",
        "-- nothing",
        "SELEC x FROM t",
        "SELECT nothing FROM t",
        "SELECT x FROM nowhere",
    ],
)
def test_anything_but_one_select_is_refused_before_it_runs(numbers: Path, query: str) -> None:
    before = numbers.read_bytes()
    with pytest.raises(InvalidArgumentError, match="Pass one SELECT"):
        from_sqlite(numbers, query)
    assert numbers.read_bytes() == before


@pytest.mark.parametrize("query", ["SELECT x FROM t;", " SELECT x FROM t -- all of them\n", "SELECT x FROM t ; "])
def test_a_query_may_end_as_in_a_file(numbers: Path, query: str) -> None:
    assert len(cached(numbers, query)) == 5000


@pytest.mark.parametrize("parameters", [(), (1, 2), {"y": 1}])
def test_each_parameter_needs_its_value(numbers: Path, parameters: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="a value for each of its parameters"):
        from_sqlite(numbers, "SELECT x FROM t WHERE x = :x", parameters)


def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="there is no database"):
        from_sqlite(tmp_path / "missing.db", "SELECT 1")
    assert not (tmp_path / "missing.db").exists()
    (tmp_path / "text.db").write_text("no database" * 1000)
    with pytest.raises(InvalidArgumentError, match="not a database"):
        from_sqlite(tmp_path / "text.db", "SELECT 1 FROM t")
    with pytest.raises(InvalidTypeError, match="query must be a str"):
        from_sqlite(tmp_path / "text.db", 1)  # type: ignore[arg-type]


def test_columns_of_one_name_are_refused(numbers: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="several columns named 'x': rename them with AS"):
        cached(numbers, "SELECT a.x, b.x FROM t AS a JOIN t AS b ON a.x = b.x")


def test_a_failure_while_rows_are_read_names_the_record(tmp_path: Path) -> None:
    path = database(tmp_path / "edge.db", "x INTEGER", ((-(2**63) if i == 1500 else i,) for i in range(2000)))
    with pytest.raises(SourceError, match=r"SQLite failed at record 1499 or the next of .*integer overflow"):
        cached(path, "SELECT abs(x) AS x FROM t ORDER BY rowid")


@pytest.mark.parametrize("at", [0, 1500])
@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16le"])
def test_text_that_is_no_utf_8_is_refused_by_record_and_column_or_skipped(
    tmp_path: Path, encoding: str, at: int
) -> None:
    path = tmp_path / "text.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"PRAGMA encoding = '{encoding}'")
        connection.execute("CREATE TABLE t (x TEXT)")
        connection.executemany("INSERT INTO t VALUES (?)", [("fine \U0001f600",)] * 2000)
        broken = "x'ff'" if encoding == "UTF-8" else "x'00d8'"
        connection.execute(f"UPDATE t SET x = CAST({broken} AS TEXT) WHERE rowid = {at + 1}")
    query = "SELECT x FROM t ORDER BY rowid"
    with pytest.raises(ElementError, match=rf"record {at}, leaf \['x'\].*text that is not UTF-8, b'"):
        cached(path, query)
    with pytest.warns(CacheLayerWarning, match=rf"1 of 2000 records were left out.*record {at}"):
        ref = cached(path, query, on_error="skip", element_spec={"x": ArraySpec(str)})
    assert len(ref) == 1999
    assert ref[0]["x"] == "fine \U0001f600"


def test_views_and_tables_without_rowid_are_read(tmp_path: Path) -> None:
    path = tmp_path / "odd.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE t (key TEXT PRIMARY KEY, x INTEGER) WITHOUT ROWID")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [("b", 2), ("a", 1)])
        connection.execute("CREATE VIEW v AS SELECT key, x * 10 AS y FROM t")
    assert list(cached(path, "SELECT * FROM t ORDER BY key")) == [{"key": "a", "x": 1}, {"key": "b", "x": 2}]
    assert [row["y"] for row in cached(path, "SELECT * FROM v ORDER BY key")] == [10, 20]


def test_a_value_is_what_sqlite_stores_of_it(tmp_path: Path) -> None:
    # SQLite itself has no NaN, and no integer past 63 bits: docs/frames.md says so.
    values = [0.5, float("nan"), float(2**63), -0.0]
    path = database(tmp_path / "stored.db", "x REAL", ((x,) for x in values))
    found = [row["x"] for row in cached(path, "SELECT x FROM t ORDER BY rowid")]
    assert found == [0.5, None, 2.0**63, 0.0]


FULL_TEXT = """
import sqlite3, sys
import cachelayer
from cachelayer.adapters.sqlite import from_sqlite

with sqlite3.connect(sys.argv[1]) as connection:
    connection.execute("CREATE VIRTUAL TABLE t USING fts5(body)")
    connection.executemany("INSERT INTO t VALUES (?)", [("a cat",), ("a dog",)])
connection.close()
source = from_sqlite(sys.argv[1], "SELECT body FROM t WHERE t MATCH ?", ("dog",))
print([element["body"] for element in cachelayer.Storage(sys.argv[2]).cache(source, "d", "v1")])
"""


def test_full_text_tables_are_read(tmp_path: Path) -> None:
    # In a process of its own: one that has loaded TensorFlow first has the SQLite that is built into it, without FTS5.
    command = [sys.executable, "-c", FULL_TEXT, str(tmp_path / "text.db"), str(tmp_path / "cache")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "['a dog']\n"


def found(batches: Any) -> list[int]:
    codec = codec_for({"x": ArraySpec("int64"), "half": ArraySpec("float64")})
    return [x for batch in batches for x in batch.columns(codec)[0].fixed[0].tolist()]


def test_a_database_that_is_being_written_is_read_as_one_snapshot(tmp_path: Path) -> None:
    path = database(tmp_path / "wal.db", "x INTEGER, half REAL", ((i, i / 2) for i in range(5000)), journal="wal")
    batches = from_sqlite(path, "SELECT * FROM t").batches(None)
    first = next(batches)
    with closing(sqlite3.connect(path, timeout=0)) as writer, writer:
        writer.execute("UPDATE t SET x = -x")
        writer.execute("DELETE FROM t WHERE x < -4000")
        writer.execute("INSERT INTO t VALUES (9999, 0.0)")
    assert found(chain([first], batches)) == list(range(5000))
    assert len(cached(path, "SELECT * FROM t")) == 4002


def test_without_wal_who_writes_waits_until_the_rows_are_read(numbers: Path) -> None:
    batches = from_sqlite(numbers, "SELECT * FROM t").batches(None)
    first = next(batches)
    with closing(sqlite3.connect(numbers, timeout=0)) as writer:
        with pytest.raises(sqlite3.OperationalError, match="locked"), writer:
            writer.execute("DELETE FROM t")
        assert found(chain([first], batches)) == list(range(5000))
        with writer:
            writer.execute("DELETE FROM t")


def test_a_build_that_stops_early_lets_the_database_go(numbers: Path) -> None:
    cached(numbers, "SELECT * FROM t", max_records=3)
    with closing(sqlite3.connect(numbers, timeout=0)) as writer, writer:
        writer.execute("DELETE FROM t")


def test_a_database_that_is_locked_is_an_error(numbers: Path) -> None:
    source = from_sqlite(numbers, "SELECT * FROM t", timeout=0)
    with closing(sqlite3.connect(numbers, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        with pytest.raises(CacheLayerError, match="database is locked"):
            Storage(numbers.parent / "cache").submit(source, "d", "v1")
