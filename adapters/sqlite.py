"""Read a SQLite query as a source: each row of one ``SELECT`` is an element, a dict of its columns."""

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
        "this needs the module sqlite3, which this Python was built without: no extra of cachelayer installs it; "
        "use a Python that has it"
    ) from error

Parameters = Sequence[Any] | Mapping[str, Any]

_FIRST_ROWS = 64
_SHOWN = 40


def from_sqlite(
    path: str | os.PathLike[str], query: str, parameters: Parameters = (), *, timeout: float = 5.0
) -> SQLiteSource:
    """Return a source of the rows of a query, in the query's order: each element is a dict of its columns.

    INTEGER, REAL, TEXT and BLOB become int64, float64, str and bytes. The query runs when the dataset is built, and it
    sees one snapshot of the database. In WAL mode, others can write meanwhile; otherwise they wait until it ends.

    Args:
        path: the file of the database; it is opened read-only.
        query: one ``SELECT``. Give it an ``ORDER BY``: without one SQLite promises no order.
        parameters: the value for each ``?``, or for each ``:name``.
        timeout: seconds to wait for a writer that holds a lock.

    Raises:
        InvalidArgumentError: if there is no such database, or the query is not a ``SELECT`` that runs on it.
    """
    if not isinstance(query, str):
        raise InvalidTypeError(f"query must be a str, not {tree.describe(query)}")
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
                # Only a SELECT can take the place of a table. EXPLAIN compiles the query without running it.
                for statement in (self._query, f"SELECT * FROM (\n{self._query}\n)"):  # noqa: S608
                    connection.execute(f"EXPLAIN {statement}", parameters)
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise InvalidArgumentError(
                f"{query!r} does not run on {path}: {error}. Pass one SELECT, which only reads, a value for each of "
                "its parameters, and the file of a SQLite database"
            ) from error

    @property
    def identity(self) -> dict[str, Any]:
        """The facts that distinguish this query from others. The file is not one: other tables in it may change."""
        values = self._parameters
        parameters = dict(values) if isinstance(values, Mapping) else list(values)
        return {"query": json.dumps([self._query, parameters], default=lambda value: type(value).__name__)}

    def _connect(self) -> sqlite3.Connection:
        if not self._path.is_file():
            raise InvalidArgumentError(f"there is no database {self._path}")
        # A build may continue in another thread than the one in which it began.
        uri = f"{self._path.resolve().as_uri()}?mode=ro"
        connection = sqlite3.connect(
            uri, timeout=self._timeout, uri=True, isolation_level=None, check_same_thread=False
        )
        connection.text_factory = _text
        return connection

    def batches(self, limit: int | None) -> Iterator[Batch]:
        """Yield the rows, in batches, as they are when the first one is read.

        Raises:
            SourceError: if SQLite fails; names the record.
            InvalidArgumentError: if two columns have the same name.
        """
        first = 0
        rows: list[tuple[Any, ...]] = []
        with closing(self._connect()) as connection:
            try:
                cursor = connection.execute(self._query, self._parameters)
                names = _names(cursor)
                always_null = set(names)
                size = _FIRST_ROWS
                remaining = iter(cursor) if limit is None else islice(cursor, limit)
                while True:
                    rows = []
                    rows.extend(islice(remaining, size))
                    if not rows:
                        return
                    batch = Rows(names, list(zip(*rows, strict=True)), len(rows))
                    # Until each column has had a value, elements let the build infer the spec.
                    yield Elements(batch.elements()) if always_null else batch
                    always_null &= batch.nulls()
                    first += len(rows)
                    size = batch_records(batch.nbytes / len(rows))
            except sqlite3.Error as error:
                raise SourceError(
                    f"SQLite failed at record {first + len(rows)} or the next of {self._path}: {error}"
                ) from error


class _InvalidText:
    """Text that is not UTF-8. The build refuses only the record that holds it; an exception would end the query.

    Args:
        raw: the bytes of the text.
    """

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def __repr__(self) -> str:
        return f"text that is not UTF-8, {self._raw[:_SHOWN]!r}"


def _text(raw: bytes) -> str | _InvalidText:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return _InvalidText(raw)


def _names(cursor: sqlite3.Cursor) -> list[str]:
    names = [column[0] for column in cursor.description]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgumentError(f"the query has several columns named {name!r}: rename them with AS")
    return names


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows as columns of Python values."""

    names: list[str]
    values: list[tuple[Any, ...]]
    rows: int

    def __len__(self) -> int:
        return self.rows

    @property
    def nbytes(self) -> int:
        """The approximate number of bytes of all values."""
        return sum(
            sum(len(value) if isinstance(value, (str, bytes)) else 8 for value in column) for column in self.values
        )

    def nulls(self) -> set[str]:
        """Return the names of the columns that hold only nulls."""
        return {
            name for name, column in zip(self.names, self.values, strict=True) if all(value is None for value in column)
        }

    def elements(self) -> list[dict[str, Any]]:
        """Return each row as a dict."""
        return [dict(zip(self.names, row, strict=True)) for row in zip(*self.values, strict=True)]

    def apart(self) -> Iterator[Batch]:
        """Return the rows, each as a separate batch."""
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
    """Return the column, made in one conversion; None if not all values are numbers that the spec can hold."""
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
