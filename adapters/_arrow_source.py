"""A source of Arrow record batches, which all adapters of tables share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from cachelayer.adapters._arrow_casts import cast_rows
from cachelayer.adapters._arrow_columns import Lists
from cachelayer.adapters._arrow_leaves import check_declared, column_of, leaves_of, spec_of
from cachelayer.adapters._files import Files
from cachelayer.builds.batches import Batch, batch_records
from cachelayer.builds.source_identity import FileFacts
from cachelayer.errors import (
    CacheLayerError,
    ElementError,
    InvalidArgumentError,
    InvalidTypeError,
    MissingDependencyError,
    SourceError,
)
from cachelayer.locks import cached_property
from cachelayer.records import tree
from cachelayer.records.codec import Codec
from cachelayer.records.column import Column
from cachelayer.records.tree import Tree

try:
    import pyarrow as pa
except ImportError as error:
    raise MissingDependencyError("this needs pyarrow: pip install 'cachelayer[arrow]'") from error


@dataclass(frozen=True, eq=False)
class ArrowPart:
    """Record batches with one schema, such as those of a file.

    Args:
        name: the name of the file; "" if there is no file.
        schema: the schema of every batch.
        rows: the number of rows, or None if it is unknown.
        batches: returns the batches from a given row on. The row is 0 if ``rows`` is None or the source cannot skip.
        casts: whether a user declares the types of the schema, so that batches must be cast to them.
        take: returns the rows of these numbers, if they are in memory.
    """

    name: str
    schema: pa.Schema
    rows: int | None
    batches: Callable[[int], Iterable[pa.RecordBatch]]
    casts: bool = False
    take: Callable[[Sequence[int]], Any] | None = None

    @classmethod
    def of_table(cls, table: pa.Table) -> ArrowPart:
        def take(numbers: Sequence[int]) -> pa.Table:
            return pa.concat_tables([table.slice(number, 1) for number in numbers])

        return cls("", table.schema, len(table), lambda row: table.slice(row).to_batches(), take=take)

    @property
    def origin(self) -> str:
        return f" in {self.name}" if self.name else ""


@dataclass(frozen=True, eq=False)
class ArrowRows:
    """Rows of a table. Their columns are made when asked for, so that an error can name the row of a value.

    Args:
        table: a table or a batch.
        taken: returns the columns of some rows of the table.
    """

    table: Any
    taken: Callable[[Any], list[Column]]

    def __len__(self) -> int:
        return len(self.table)

    def columns(self, codec: Codec) -> list[Column]:  # noqa: ARG002
        return self.taken(self.table)

    def apart(self) -> Iterator[Batch]:
        return (ArrowRows(self.table.slice(row, 1), self.taken) for row in range(len(self.table)))


class ArrowSource:
    """Rows of tables, converted column by column. An element is a dict whose keys are the column names.

    Args:
        kind: the kind of source, for the provenance.
        parts: returns the parts in order, each time it is called. Lengths are known only if it returns a sequence.
        declared: the element spec that the user declares, in place of the one that the schema implies.
        begin: the row to begin with.
        files: the files that the parts are read from; None if they are not read from files.
    """

    def __init__(
        self,
        kind: str,
        parts: Callable[[], Iterable[ArrowPart]],
        declared: Tree | None = None,
        begin: int = 0,
        files: Files | None = None,
    ) -> None:
        self.kind = kind
        self._parts = parts
        self._declared = declared
        self._begin = begin
        self._files = files

    @property
    def is_local(self) -> bool:
        """Whether this source reads files, and they lie on this host."""
        return self._files is not None and self._files.is_local

    @property
    def identity(self) -> dict[str, Any]:
        """The facts that distinguish the files of this source from others."""
        return {} if self._files is None else self._files.identity

    def file_facts(self) -> list[FileFacts]:
        """Return the current size and modification time of each file."""
        return [] if self._files is None else self._files.facts()

    def with_element_spec(self, spec: Tree) -> Self:
        """Return this source with an element spec that a user declares."""
        return type(self)(self.kind, self._parts, spec, self._begin, self._files)

    @cached_property
    def _first(self) -> ArrowPart:
        return next(iter(self._parts()))

    @cached_property
    def element_spec(self) -> Tree | None:
        """The declared element spec, or the one that the schema implies.

        Raises:
            InvalidTypeError: if a column cannot be stored; names its path.
            InvalidArgumentError: if the declared spec does not fit the schema, or if a column holds only nulls and no
                spec is declared.
        """
        try:
            own = spec_of(pa.struct(list(self._first.schema)), "")
        except UnicodeDecodeError as error:
            raise InvalidTypeError(
                f"a column{self._first.origin} has a name that is not UTF-8: {error.object!r}: rename it"
            ) from error
        if self._declared is not None:
            check_declared(own, self._declared)
            return self._declared
        unknown = [path for path, leaf in tree.leaf_values(own) if leaf is None]
        if unknown:
            raise InvalidArgumentError(
                f"leaf {unknown[0]} is null in every row{self._first.origin}, so its dtype is unknown: "
                "pass element_spec= with its dtype, or with None for a leaf that is always None"
            )
        return own

    @cached_property
    def length(self) -> int | None:
        """The number of rows, or None if a part does not know its own."""
        parts = self._parts()
        counts = [part.rows for part in parts] if isinstance(parts, Sequence) else [None]
        return None if None in counts else sum(count for count in counts if count is not None)

    def batches(self, limit: int | None) -> Iterator[Batch]:
        """Yield the rows, in batches.

        Raises:
            SourceError: if a part cannot be read, or its schema differs from that of the first.
        """
        first = 0
        for part in self._parts():
            check_schema(self._first, part)
            row = 0 if part.rows is None else min(part.rows, max(0, self._begin - first))
            first += row
            if row == part.rows:
                continue
            for table in resized(_pulled(part, row, first)):
                skipped = min(len(table), max(0, self._begin - first))
                taken = table.slice(skipped, None if limit is None else self._begin + limit - first - skipped)
                if len(taken):
                    yield ArrowRows(taken, partial(self._columns, part))
                first += len(table)
                if limit is not None and first >= self._begin + limit:
                    return

    def _columns(self, part: ArrowPart, table: pa.RecordBatch) -> list[Column]:
        """Return the columns of some rows of a part.

        Raises:
            ElementError: if the spec cannot hold a value, such as null within a list, or text that is not UTF-8.
        """
        try:
            taken = cast_rows(table, part.schema) if part.casts else table
            leaves = dict(leaves_of("", Lists(taken.to_struct_array())))
            return [column_of(path, spec, leaves[path]) for path, spec in tree.leaves(self.element_spec)]
        except ElementError as error:
            hint = f"{error.hint} It is{part.origin}." if part.name else error.hint
            named = ElementError(error.expected, error.got, path=error.path, record=error.record, hint=hint.strip())
            raise named from error.__cause__


class SkippableArrowSource(ArrowSource):
    """An ArrowSource that can begin at any row. Parts that do not know their number of rows are read from the start."""

    def rest(self, records: int) -> Self:
        """Return this source without its first records."""
        return type(self)(self.kind, self._parts, self._declared, self._begin + records, self._files)


class TableSource(SkippableArrowSource):
    """A table in memory."""

    def take(self, numbers: Sequence[int]) -> Batch:
        """Return the rows of these numbers."""
        if self._first.take is None:
            raise ValueError("the rows are not in memory")
        rows = pa.concat_batches(self._first.take(numbers).to_batches())
        return ArrowRows(rows, partial(self._columns, self._first))


def from_row(batches: Iterable[pa.RecordBatch], row: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows from a given one on."""
    for batch in batches:
        if row < len(batch):
            yield batch.slice(row)
        row = max(0, row - len(batch))


def check_schema(first: ArrowPart, other: ArrowPart) -> None:
    """Raise if the columns of a part differ from those of the first.

    Raises:
        SourceError: names both parts and the first column that differs.
    """
    mine, theirs = first.schema, other.schema
    if mine.names == theirs.names and mine.types == theirs.types:
        return
    change = f"its columns are {theirs.names}, not {mine.names}"
    for name, kind in zip(mine.names, mine.types, strict=True):
        if mine.names == theirs.names and theirs.field(name).type != kind:
            change = f"column {name!r} is {theirs.field(name).type}, not {kind}"
            break
    raise SourceError(
        f"the schema changes at {other.name or 'a later part'}: {change} as in {first.name or 'the first'}: "
        "pass schema= with the types to read, or write the files again with one schema"
    )


def _pulled(part: ArrowPart, row: int, first: int) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a part from a row on; ``first`` is the record of the source that this row is."""
    done = first
    try:
        for batch in part.batches(row):
            yield batch
            done += len(batch)
    except (CacheLayerError, GeneratorExit):
        raise
    except Exception as error:
        name = part.name or "the source"
        raise SourceError(f"{name} failed at record {done} or later: {type(error).__name__}: {error}") from error


def resized(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows in batches of the size that a build takes: cut large batches without a copy, join small ones."""
    pending: list[pa.RecordBatch] = []
    for batch in batches:
        size = batch_records(_nbytes(batch) / max(1, len(batch)))
        for start in range(0, len(batch), size):
            pending.append(batch.slice(start, size))
            if sum(map(len, pending)) >= size:
                yield _joined(pending)
                pending = []
    if pending:
        yield _joined(pending)


def _nbytes(batch: pa.RecordBatch) -> int:
    try:
        return int(batch.nbytes)
    except pa.ArrowTypeError:
        # Older releases cannot count the bytes of string views; count the whole buffers instead.
        return int(batch.get_total_buffer_size())


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
