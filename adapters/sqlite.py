"""SQLite queries in: the rows of one ``SELECT`` are the elements, dicts of its columns."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from cachelayer.builds.batches import Batch, Elements, batch_records
from cachelayer.errors import ElementError, InvalidArgumentError, InvalidTypeError, SourceError
from cachelayer.records import dtypes, tree
from cachelayer.records.codec import Codec
from cachelayer.records.column import Column
from cachelayer.records.leaf_codecs import leaf_codec
from cachelayer.records.spec import LeafSpec
from cachelayer.records.tree import Tree

try:
    import sqlite3
except ImportError as error:
    from cachelayer.errors import MissingDependencyError

    raise MissingDependencyError(
        "this needs the module sqlite3, which this Python was built without: no extra of cachelayer[all] brings it, "
        "take a Python that has it"
    ) from error

Parameters = Sequence[Any] | Mapping[str, Any]

_FIRST_ROWS = 64
_SHOWN = 40


def from_sqlite(
    path: str | os.PathLike[str], query: str, parameters: Parameters = (), *, timeout: float = 5.0
) -> SQLiteSource:
    """The rows of a query as a source, in the query's order: each a dict of its columns.

    INTEGER, REAL, TEXT and BLOB are int64, float64, str and bytes. The query runs when the dataset is built, and sees
    one snapshot of the database, whoever writes to it meanwhile: under WAL they go on, else they wait for its end.

    Args:
        path: the file of the database; it is opened for reading only.
        query: one ``SELECT``. Give it an ``ORDER BY``: without one SQLite promises no order.
        parameters: what stands for each ``?``, or for each ``:name``.
        timeout: seconds to wait for a writer that holds a lock.

    Raises:
        InvalidArgumentError: where there is no such database, or the query is no ``SELECT`` that it can run.
    """
    if not isinstance(query, str):
        raise InvalidTypeError(f"query is a str, not {tree.describe(query)}")
    return SQLiteSource(Path(path), query, parameters, timeout)


class SQLiteSource:
    """The rows of a query; see :func:`from_sqlite`."""

    kind = "sqlite"
    is_local = True
    length: int | None = None
    element_spec: Tree | None = None

    def __init__(self, path: Path, query: str, parameters: Parameters, timeout: float) -> None:
        self._path = path
        self._query = query.rstrip().removesuffix(";")
        self._parameters = parameters
        self._timeout = timeout
        try:
            with closing(self._connect()) as connection:
                # Nothing but a SELECT can stand in the place of a table; EXPLAIN compiles it and runs nothing.
                for statement in (self._query, f"SELECT * FROM (\n{self._query}\n)"):  # noqa: S608
                    connection.execute(f"EXPLAIN {statement}", parameters)
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise InvalidArgumentError(
                f"{query!r} does not run on {path}: {error}. Pass one SELECT, which only reads, a value for each of "
                "its parameters, and the file of a SQLite database"
            ) from error

    @property
    def identity(self) -> dict[str, Any]:
        """What tells its query from others; of the database nothing, for anybody may write other tables of it."""
        given = self._parameters
        parameters = dict(given) if isinstance(given, Mapping) else list(given)
        return {"query": json.dumps([self._query, parameters], default=lambda value: type(value).__name__)}

    def _connect(self) -> sqlite3.Connection:
        if not self._path.is_file():
            raise InvalidArgumentError(f"there is no database {self._path}")
        # A build may go on in another thread than it began in.
        uri = f"{self._path.resolve().as_uri()}?mode=ro"
        connection = sqlite3.connect(
            uri, timeout=self._timeout, uri=True, isolation_level=None, check_same_thread=False
        )
        connection.text_factory = _text
        return connection

    def batches(self, limit: int | None) -> Iterator[Batch]:
        """The rows, all of the moment in which the first is read.

        Raises:
            SourceError: where SQLite fails, with the number of the record.
            InvalidArgumentError: where columns have the same name.
        """
        first = 0
        rows: list[tuple[Any, ...]] = []
        with closing(self._connect()) as connection:
            try:
                cursor = connection.execute(self._query, self._parameters)
                names = _names(cursor)
                untold = set(names)
                size = _FIRST_ROWS
                remaining = iter(cursor) if limit is None else islice(cursor, limit)
                while True:
                    rows = []
                    rows.extend(islice(remaining, size))
                    if not rows:
                        return
                    batch = Rows(names, list(zip(*rows, strict=True)), len(rows))
                    # Where nothing is declared, the spec is that of the first values.
                    yield Elements(batch.elements()) if untold else batch
                    untold &= batch.nulls()
                    first += len(rows)
                    size = batch_records(batch.nbytes / len(rows))
            except sqlite3.Error as error:
                raise SourceError(
                    f"SQLite failed at record {first + len(rows)} or the next of {self._path}: {error}"
                ) from error


class _NoText:
    """Text that is no UTF-8, which no record holds: so that its own record is refused, and not all after it.

    Args:
        raw: its bytes.
    """

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def __repr__(self) -> str:
        return f"text that is no UTF-8, {self._raw[:_SHOWN]!r}"


def _text(raw: bytes) -> str | _NoText:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return _NoText(raw)


def _names(cursor: sqlite3.Cursor) -> list[str]:
    names = [column[0] for column in cursor.description]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgumentError(f"the query has more than one column {name!r}: name them with AS")
    return names


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows by their columns, as values of Python."""

    names: list[str]
    values: list[tuple[Any, ...]]
    rows: int

    def __len__(self) -> int:
        return self.rows

    @property
    def nbytes(self) -> int:
        """About the bytes of all."""
        return sum(
            sum(len(value) if isinstance(value, (str, bytes)) else 8 for value in column) for column in self.values
        )

    def nulls(self) -> set[str]:
        """The columns that hold nothing."""
        return {
            name for name, column in zip(self.names, self.values, strict=True) if all(value is None for value in column)
        }

    def elements(self) -> list[dict[str, Any]]:
        """The rows one by one."""
        return [dict(zip(self.names, row, strict=True)) for row in zip(*self.values, strict=True)]

    def apart(self) -> Iterator[Batch]:
        """Return the rows, each as a batch of its own."""
        return (Rows(self.names, [(value,) for value in row], 1) for row in zip(*self.values, strict=True))

    def columns(self, codec: Codec) -> list[Column]:
        columns = dict(zip(self.names, self.values, strict=True))
        spec = codec.spec
        if not isinstance(spec, dict) or not all(isinstance(leaf, LeafSpec) for leaf in spec.values()):
            return codec.columns(self.elements())
        values = tree.flatten_like(spec, columns)
        return [_column(path, leaf, column) for (path, leaf), column in zip(tree.leaves(spec), values, strict=True)]


def _column(path: str, spec: LeafSpec, values: tuple[Any, ...]) -> Column:
    nulls = np.fromiter((value is None for value in values), np.bool_, len(values))
    column = _numbers(spec, values)
    if column is None:
        codec = leaf_codec(spec)
        filler = codec.filler()
        try:
            column = codec.from_rows([filler if value is None else value for value in values])
        except ElementError as error:
            raise error.at(path=path) from error.__cause__
    return Column(column.fixed, column.variable, nulls if nulls.any() or spec.nullable else None)


def _numbers(spec: LeafSpec, values: tuple[Any, ...]) -> Column | None:
    """The column, made at once; None where not all values are numbers that the spec holds."""
    kinds = set(map(type, values)) - {type(None)}
    wide = np.dtype(np.int64 if kinds == {int} else np.float64)
    if kinds not in ({int}, {float}) or spec.shape or dtypes.is_string(spec.dtype):
        return None
    dtype = np.dtype(spec.dtype)
    if dtype.kind not in ("iu" if wide.kind == "i" else "f"):
        return None
    array = np.array([0 if value is None else value for value in values], wide)
    with np.errstate(over="ignore"):
        stored = array.astype(dtype)
    fits = stored == array if wide.kind == "i" else np.isfinite(stored) == np.isfinite(array)
    return Column((stored,)) if fits.all() else None
