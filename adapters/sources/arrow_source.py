"""Sources of rows whose columns are made at once: tables, frames and files of every package that uses Arrow."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain
from typing import Any

from cachelayer.adapters.sources.arrow_columns import (
    FileLeaves,
    Lists,
    cast_array,
    column_of,
    in_dtype_of,
    leaves_of,
    plain_nbytes,
    spec_of,
    with_declared,
)
from cachelayer.adapters.sources.arrow_schema import schema_metadata, with_categories
from cachelayer.adapters.sources.arrow_types import shares_values, within
from cachelayer.builds.batches import Batch, cut, stacked_records
from cachelayer.builds.element_batches import errors_named, failure_at
from cachelayer.builds.parts import source_of_files
from cachelayer.builds.source import Source
from cachelayer.builds.source_files import reading
from cachelayer.errors import (
    ElementError,
    InvalidArgumentError,
    InvalidTypeError,
    SourceError,
)
from cachelayer.records.codec import Codec
from cachelayer.records.leaf_columns import Columns
from cachelayer.specs import tree
from cachelayer.specs.schema import Flags
from cachelayer.specs.spec import JsonSpec
from cachelayer.specs.tree import Tree
from cachelayer.support.extras import packages_of

with packages_of("arrow", "this needs pyarrow"):
    import pyarrow as pa


ColumnsOf = Callable[[Tree, Any], Columns]
"""Returns the columns of some rows, for a spec; its errors name the leaf."""


@dataclass(frozen=True, eq=False)
class TableRows:
    """Rows of a table, whose columns are made when they are asked for."""

    table: Any
    """A table, batch or frame; ``table[start:stop]`` are some of its rows."""
    spec: Tree
    """The spec of a row."""
    columns_of: ColumnsOf

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, rows: slice, /) -> TableRows:
        return TableRows(self.table[rows], self.spec, self.columns_of)

    def columns(self, codec: Codec) -> Columns:
        if codec.spec != self.spec:
            _refuse_other_columns(self.spec, codec.spec)
        return self.columns_of(codec.spec, self.table)


def _refuse_other_columns(own: Tree, wanted: Tree) -> None:
    """Raise if columns cannot be stored as those of an earlier part, whose spec the version has."""
    mine = dict(tree.leaves(own))
    others = dict(tree.leaves(wanted))
    change = next((f"it lacks {path}" for path in others if path not in mine), "")
    change = change or next((f"it has {path} too" for path in mine if path not in others), "")
    try:
        with_declared(own, wanted)
    except InvalidArgumentError as error:
        change = change or str(error)
    if change:
        raise SourceError(f"its columns are not those of the first part: {change}: cast them to the same types")


def source_of_rows(
    kind: str,
    length: int,
    nbytes: int,
    fetch: Callable[[slice | Sequence[int]], Any],
    columns_of: ColumnsOf,
    element_spec: Tree,
    metadata: Mapping[str, Any],
    nbytes_of: Callable[[Any], int] | None = None,
) -> Source:
    """Return the source of a table or frame, whose rows can be read from any place at little cost.

    ``fetch`` returns rows as a table, ``columns_of`` the columns of it, ``nbytes_of`` its size if it is none of Arrow.
    """
    columns = len(tree.leaves(element_spec))
    most = stacked_records(nbytes / max(1, length), columns)

    def read(start: int, stop: int | None) -> Iterator[Batch]:
        end = length if stop is None else min(length, stop)
        for first in range(start, end, most):
            rows = take(range(first, min(first + most, end)))
            size = stacked_records((nbytes_of or rows_nbytes)(rows.table) / max(1, len(rows)), columns)
            yield from cut(rows, size)

    def take(numbers: Sequence[int]) -> TableRows:
        rows = slice(numbers.start, numbers.stop) if isinstance(numbers, range) else numbers
        with errors_named(failure_at(numbers[0])):
            return TableRows(fetch(rows), element_spec, columns_of)

    return Source(
        kind,
        read,
        take,
        element_spec=element_spec,
        length=length,
        starts=range(length),
        nbytes=nbytes,
        metadata=metadata,
    )


def source_of_table(kind: str, table: pa.Table, declared: Tree | None) -> Source:
    """Return the source of a table of Arrow."""
    spec = spec_of_schema(table.schema, declared, {})
    fetch = partial(rows_of_table, table)
    columns = partial(columns_of, {}, None)
    metadata = schema_metadata(pa.schema(map(_with_categories, table.schema, table.columns)), spec)
    return source_of_rows(kind, len(table), rows_nbytes(table), fetch, columns, spec, metadata)


def _with_categories(field: pa.Field, column: pa.ChunkedArray) -> pa.Field:
    if not pa.types.is_dictionary(field.type) or not field.type.ordered or not column.num_chunks:
        return field
    return with_categories(field, column.unify_dictionaries().chunk(0).dictionary)


def rows_of_table(table: pa.Table, rows: slice | Sequence[int]) -> pa.RecordBatch:
    """Return some rows of a table as one batch."""
    some = table[rows] if isinstance(rows, slice) else pa.concat_tables([table.slice(number, 1) for number in rows])
    return _joined(some.to_batches())


@dataclass(frozen=True, eq=False)
class ArrowPart:
    """Record batches with one schema, such as those of a file."""

    name: str
    """The name of the file; "" if there is no file."""
    schema: pa.Schema
    """The schema of every batch."""
    batches: Callable[[int], Iterable[pa.RecordBatch]]
    """Returns the batches from a given row on: 0, or one of the starts."""
    rows: int | None = None
    """The number of rows; None if it is unknown."""
    starts: Sequence[int] | None = None
    """The rows from which batches can be read again and again, by any process, without those before; None if they
    are read once."""
    nbytes: int = 0
    """The approximate size of all rows, if there are starts."""


def source_of_parts(
    kind: str,
    parts: Sequence[ArrowPart],
    declared: Tree | None = None,
    leaves: FileLeaves | None = None,
    metadata: Mapping[str, Any] | None = None,
    *,
    casts: bool = False,
) -> Source:
    """Return the source of record batches. An element is a dict whose keys are the column names.

    If all parts have starts, it can be read from each of them; else each is a part of the build. Metadata stand in
    place of the types of the columns. If it ``casts``, because a user declares types, each batch is cast to the schema
    of its part.
    """
    for part in parts:
        _check_schema(parts[0], part.name, part.schema)
    schema = parts[0].schema
    spec = spec_of_schema(schema, declared, leaves or {}, parts[0].name)
    annotations = schema_metadata(schema, spec) if metadata is None else metadata
    if any(part.starts is None for part in parts):
        sources = [_source_of(kind, [part], spec, leaves or {}, annotations, casts=casts) for part in parts]
        return source_of_files(kind, sources, spec, metadata=annotations)
    source = _source_of(kind, parts, spec, leaves or {}, annotations, casts=casts)
    firsts = first_rows([part.rows or 0 for part in parts])
    starts = [first + row for part, first in zip(parts, firsts, strict=True) for row in part.starts or ()]
    record_nbytes = sum(part.nbytes for part in parts) / max(1, source.length or 0)
    return replace(source, starts=starts, record_nbytes=record_nbytes, workers_make="parts")


def filled(parts: Sequence[ArrowPart], fill: Mapping[str, Any], names: Sequence[str] = ()) -> list[ArrowPart]:
    """Return parts with the columns of all, those of ``names`` first; a column that a part lacks has one value there.

    A column that is not in ``fill`` stays missing.
    """
    fields = {field.name: field for part in reversed(parts) for field in part.schema}
    unknown = [name for name in fill if name not in fields]
    if unknown:
        raise InvalidArgumentError(f"fill: no file has a column {unknown[0]!r}")
    order = dict.fromkeys([*names, *(name for part in parts for name in part.schema.names)])
    return [_filled(part, [fields[name] for name in order if name in fields], fill) for part in parts]


def _filled(part: ArrowPart, fields: Sequence[pa.Field], fill: Mapping[str, Any]) -> ArrowPart:
    own = {*part.schema.names}
    missing = {field.name: fill[field.name] for field in fields if field.name not in own and field.name in fill}
    stored = {field.name: field for field in part.schema}
    chosen = [stored.get(field.name, field) for field in fields if field.name in own or field.name in missing]
    schema = pa.schema(chosen, part.schema.metadata)

    def batches(row: int) -> Iterator[pa.RecordBatch]:
        for batch in part.batches(row):
            # A batch that is cast later has the types of its file.
            types = {field.name: field for field in batch.schema}
            fitting = pa.schema([types.get(field.name, field) for field in schema])
            yield with_constants(batch, fitting, missing)

    return replace(part, schema=schema, batches=batches) if schema.names != part.schema.names else part


def with_constants(batch: pa.RecordBatch, schema: pa.Schema, values: Mapping[str, Any]) -> pa.RecordBatch:
    """Return a batch with the columns of a schema, some of which have one value in all rows."""
    columns = []
    for field in schema:
        if field.name not in values:
            columns.append(batch.column(field.name))
            continue
        try:
            columns.append(pa.repeat(pa.scalar(values[field.name], field.type), len(batch)))
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"fill: column {field.name!r} is {field.type}: {error}") from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _source_of(
    kind: str, parts: Sequence[ArrowPart], spec: Tree, leaves: FileLeaves, metadata: Mapping[str, Any], *, casts: bool
) -> Source:
    """Return the source of parts whose rows are counted, or of one part."""
    counts = [part.rows for part in parts if part.rows is not None]
    return Source(
        kind,
        partial(_read, parts, spec, leaves, casts),
        place=partial(_place_of, [part.name for part in parts], first_rows(counts) or [0]),
        element_spec=spec,
        length=sum(counts) if len(counts) == len(parts) else None,
        metadata=metadata,
    )


def _place_of(names: Sequence[str], firsts: Sequence[int], record: int) -> str:
    """Return the file and the row of a record, given the first record of each file; "" if there are no files."""
    number = bisect_right(firsts, record) - 1
    return f"{names[number]}, row {record - firsts[number]}" if names[number] else ""


def first_rows(counts: Sequence[int]) -> list[int]:
    """Return the first row of each of some pieces, given the numbers of their rows."""
    return list(accumulate(counts[:-1], initial=0)) if counts else []


def _read(
    parts: Sequence[ArrowPart], spec: Tree, leaves: FileLeaves, casts: bool, start: int, stop: int | None
) -> Iterator[Batch]:
    record = 0
    for part in parts:
        if part.rows is not None and record + part.rows <= start:
            record += part.rows
            continue
        columns = partial(columns_of, leaves, part.schema if casts else None)
        row = max(0, start - record)
        record += row
        for batch in resized(_pulled(part, row, record, casts=casts)):
            wanted = batch if stop is None else batch[: max(0, stop - record)]
            if len(wanted):
                yield TableRows(wanted, spec, columns)
            record += len(batch)
            if stop is not None and record >= stop:
                return


def _pulled(part: ArrowPart, row: int, record: int, *, casts: bool) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a part from a row on; ``record`` is the record of the source that this row is."""
    with reading(part.name or "the source", lambda: f"failed at record {record} or later"):
        for batch in part.batches(row):
            if not casts:
                _check_schema(part, f"record {record}", batch.schema)
            yield batch
            record += len(batch)


def spec_of_schema(schema: pa.Schema, declared: Tree | None, leaves: FileLeaves, name: str = "") -> Tree:
    """Return the declared element spec, or the one that a schema implies."""
    origin = f" in {name}" if name else ""
    try:
        own = spec_of(pa.struct(list(schema)), leaves)
    except UnicodeDecodeError as error:
        raise InvalidTypeError(f"a column{origin} has a name that is not UTF-8: {error.object!r}: rename it") from error
    try:
        own = with_declared(own, declared)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{name}: {error}" if name else str(error)) from error
    is_declared = dict.fromkeys(path for path, _ in tree.leaf_values(declared)) if declared is not None else {}
    unknown = [path for path, leaf in tree.leaf_values(own) if leaf is None and path not in is_declared]
    if unknown:
        raise InvalidArgumentError(
            f"leaf {unknown[0]} is null in every row{origin}, so its dtype is unknown: "
            "pass element_spec= with its dtype, or with None for a leaf that is always None"
        )
    return own


def columns_of(leaves: FileLeaves, schema: pa.Schema | None, spec: Tree, rows: pa.RecordBatch) -> Columns:
    """Return the columns of some rows, cast to a schema if a user declares types."""
    cast = rows if schema is None else cast_rows(rows, schema)
    wanted = tree.leaves(spec)
    whole = {path for path, leaf in wanted if isinstance(leaf, JsonSpec)}
    values_by_path = dict(tree.leaf_values(leaves_of("", Lists(cast.to_struct_array()), leaves, whole)))
    nulls: dict[str, Flags] = {}
    for path, leaf in wanted:
        # An empty text is null where a number is declared.
        lists = values_by_path[path] = in_dtype_of(path, leaf, values_by_path[path])
        nulls |= lists.dicts
        # The null of JSON is a value of it.
        are_none = lists.nulls if isinstance(leaf, JsonSpec) else lists.row_nulls
        if are_none is not None:
            nulls[path] = are_none
    return Columns([column_of(path, leaf, values_by_path[path]) for path, leaf in wanted], len(rows), nulls)


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def resized(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows in batches of the size that a build takes: cut large batches without a copy, join small ones."""
    pending: list[pa.RecordBatch] = []
    for batch in batches:
        size = stacked_records(rows_nbytes(batch) / max(1, len(batch)), batch.num_columns)
        for start in range(0, len(batch), size):
            pending.append(batch.slice(start, size))
            if sum(map(len, pending)) >= size:
                yield _joined(pending)
                pending = []
    if pending:
        yield _joined(pending)


def rows_nbytes(rows: pa.RecordBatch | pa.Table) -> int:
    """Return the bytes of some rows, each with values of its own."""
    if not any(map(shares_values, chain.from_iterable(map(within, rows.schema.types)))):
        return int(rows.nbytes)
    chunks = (chunk for column in rows.columns for chunk in getattr(column, "chunks", [column]))
    return sum(map(plain_nbytes, chunks))


def _check_schema(first: ArrowPart, name: str, schema: pa.Schema) -> None:
    mine = first.schema
    names = mine.names
    other_names = schema.names
    if names == other_names and mine.types == schema.types:
        return
    change = f"its columns are [{tree.listed(other_names)}], not [{tree.listed(names)}]"
    advice = "pass schema= with the types to read"
    known = {*names}
    known_there = {*other_names}
    if known != known_there:
        missing = [name for name in names if name not in known_there]
        others = [name for name in other_names if name not in known]
        if max(len(names), len(other_names)) > tree.LISTED:
            change = f"{change}: it lacks {tree.listed(missing)}, and has {tree.listed(others)} besides,"
        listed = ", ".join(f"{name!r}: None" for name in [*missing, *others][: tree.LISTED])
        advice = f"from_parquet() takes fill={{{listed}}}, with the value, or None, where a column is missing"
    if names == other_names:
        column = next(field.name for field, kind in zip(mine, schema.types, strict=True) if field.type != kind)
        change = f"column {column!r} is {schema.field(column).type}, not {mine.field(column).type}"
    raise SourceError(
        f"the schema changes at {name or 'a later part'}: {change} as in {first.name or 'the first'}: {advice}, or "
        "write the files again with one schema"
    )


def cast_rows(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Cast rows to the types of a schema. Each value stays the same; only floats may be rounded to narrower ones."""
    columns = []
    for field in schema:
        array = rows.column(field.name)
        try:
            columns.append(cast_array(array, field.type))
        except pa.ArrowException as error:
            got = repr(array[0].as_py()) if len(array) == 1 else str(error)
            hint = "Declare a type in schema= that holds every value."
            path = f"[{field.name!r}]"
            raise ElementError(f"a value that {field.type} holds", got[:80], path=path, hint=hint) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)
