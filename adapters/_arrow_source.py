"""Arrow record batches as a source: what the adapters of tables share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np

from cachelayer.adapters._arrow_casts import cast_rows
from cachelayer.adapters._arrow_columns import Lists, check_structs, column, dtype_of, leaf_spec
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
from cachelayer.records.leaf_codecs import leaf_codec
from cachelayer.records.spec import ArraySpec, LeafSpec
from cachelayer.records.tree import Tree

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as kinds
except ImportError as error:
    raise MissingDependencyError("this needs pyarrow: pip install 'cachelayer[arrow]'") from error


@dataclass(frozen=True, eq=False)
class Part:
    """Record batches of one schema, such as those of a file.

    Args:
        name: of the file; what has none, has "".
        schema: of every batch.
        rows: number of rows, where it is known.
        batches: gives them, from a row on that is 0 where ``rows`` is None, or where the source cannot skip.
        casts: whether the types of the schema are those that a user declares, and batches have others.
    """

    name: str
    schema: pa.Schema
    rows: int | None
    batches: Callable[[int], Iterable[pa.RecordBatch]]
    casts: bool = False

    @classmethod
    def of_table(cls, table: pa.Table) -> Part:
        return cls("", table.schema, len(table), lambda row: table.slice(row).to_batches())

    @property
    def origin(self) -> str:
        return f" in {self.name}" if self.name else ""


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a table, whose columns are made when they are asked for: what has no place in them is known by its row.

    Args:
        table: a table or a batch.
        taken: gives the columns of some rows of it.
    """

    table: Any
    taken: Callable[[Any], list[Column]]

    def __len__(self) -> int:
        return len(self.table)

    def columns(self, codec: Codec) -> list[Column]:  # noqa: ARG002
        return self.taken(self.table)

    def apart(self) -> Iterator[Batch]:
        return (Rows(self.table.slice(row, 1), self.taken) for row in range(len(self.table)))


class ArrowSource:
    """Rows of tables, taken over column by column: an element is a dict with the names of the columns.

    Args:
        kind: what it is, for the provenance.
        parts: gives the parts in order, each time it is called. Lengths are known where it gives a sequence.
        declared: the element spec that the user declares, in place of that of the schema.
        begin: the row to begin with.
        files: that the parts are read from, if they are.
    """

    def __init__(
        self,
        kind: str,
        parts: Callable[[], Iterable[Part]],
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
        """Whether its files, if there are any, lie on this host."""
        return self._files is not None and self._files.is_local

    @property
    def identity(self) -> dict[str, Any]:
        """What tells its files from others."""
        return {} if self._files is None else self._files.identity

    def file_facts(self) -> list[FileFacts]:
        """Return what the listings of its files say now."""
        return [] if self._files is None else self._files.facts()

    def with_element_spec(self, spec: Tree) -> Self:
        """The same source, of a spec that a user declares."""
        return type(self)(self.kind, self._parts, spec, self._begin, self._files)

    @cached_property
    def _first(self) -> Part:
        return next(iter(self._parts()))

    @cached_property
    def element_spec(self) -> Tree | None:
        """The spec of the schema, or the declared one.

        Raises:
            InvalidTypeError: for a column that cannot be stored, with its path.
            InvalidArgumentError: where the declared spec is not one of this schema, or a column holds nothing but nulls
                and none is declared.
        """
        try:
            own = _spec(pa.struct(list(self._first.schema)), "")
        except UnicodeDecodeError as error:
            raise InvalidTypeError(
                f"a column{self._first.origin} has a name that is no UTF-8: {error.object!r}: rename it"
            ) from error
        if self._declared is not None:
            _check_declared(own, self._declared)
            return self._declared
        unknown = [path for path, leaf in tree.leaf_values(own) if leaf is None]
        if unknown:
            raise InvalidArgumentError(
                f"leaf {unknown[0]} is null in every row{self._first.origin}, so that nothing tells what it is: "
                "pass element_spec= with its dtype, or None for what is to stay None"
            )
        return own

    @cached_property
    def length(self) -> int | None:
        """Number of rows, where all parts know theirs."""
        parts = self._parts()
        counts = [part.rows for part in parts] if isinstance(parts, Sequence) else [None]
        return None if None in counts else sum(count for count in counts if count is not None)

    def batches(self, limit: int | None) -> Iterator[Batch]:
        """The rows, in batches.

        Raises:
            SourceError: where a part cannot be read, or has another schema than the first.
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
                    yield Rows(taken, partial(self._columns, part))
                first += len(table)
                if limit is not None and first >= self._begin + limit:
                    return

    def _columns(self, part: Part, table: pa.RecordBatch) -> list[Column]:
        """Return the columns of some rows of a part.

        Raises:
            ElementError: for what the spec has no place for, such as null within a list, or text that is no UTF-8.
        """
        try:
            taken = cast_rows(table, part.schema) if part.casts else table
            found = dict(_leaves("", Lists(taken.to_struct_array())))
            return [_column(path, spec, found[path]) for path, spec in tree.leaves(self.element_spec)]
        except ElementError as error:
            hint = f"{error.hint} It lies{part.origin}." if part.name else error.hint
            named = ElementError(error.expected, error.got, path=error.path, record=error.record, hint=hint.strip())
            raise named from error.__cause__


class SkippableArrowSource(ArrowSource):
    """The same, of parts that begin at any row. Those whose rows are not counted are run through up to it."""

    def rest(self, records: int) -> Self:
        """The same rows from one on."""
        return type(self)(self.kind, self._parts, self._declared, self._begin + records, self._files)


def from_row(batches: Iterable[pa.RecordBatch], row: int) -> Iterator[pa.RecordBatch]:
    """The same rows from one on."""
    for batch in batches:
        if row < len(batch):
            yield batch.slice(row)
        row = max(0, row - len(batch))


def check_schema(first: Part, other: Part) -> None:
    """Raise where a part has other columns than the first.

    Raises:
        SourceError: with both parts and the first column that differs.
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
        "say which types to read, or write the files anew with one schema"
    )


def _pulled(part: Part, row: int, first: int) -> Iterator[pa.RecordBatch]:
    """The batches of a part from a row on, which is this record of the source."""
    done = first
    try:
        for batch in part.batches(row):
            yield batch
            done += len(batch)
    except (CacheLayerError, GeneratorExit):
        raise
    except Exception as error:
        where = part.name or "the source"
        raise SourceError(f"{where} failed at record {done} or later: {type(error).__name__}: {error}") from error


def resized(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of the size that the build takes: large ones cut without a copy, small ones joined."""
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
        # Older releases count no string views, but for the buffers of all rows.
        return int(batch.get_total_buffer_size())


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _spec(kind: pa.DataType, path: str, dims: tuple[int | None, ...] = ()) -> Tree:
    """The spec of a type, with None where it is that of nulls."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return leaf_spec(dtype_of(kind.value_type, path), (*dims, *kind.shape))
    kind = _plain_type(kind)
    if kinds.is_struct(kind):
        names = [field.name for field in kind]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InvalidTypeError(f"two columns are called {path}[{twice!r}]: rename one, or leave it out")
        if dims and not names:
            raise InvalidTypeError(
                f"leaf {path} is a list of structs without fields, so that nothing keeps its length: leave it out"
            )
        return {field.name: _spec(field.type, f"{path}[{field.name!r}]", dims) for field in kind}
    if _is_list(kind):
        return _spec(kind.value_type, path, (*dims, kind.list_size if kinds.is_fixed_size_list(kind) else None))
    return None if kinds.is_null(kind) else leaf_spec(dtype_of(kind, path), dims)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values of one that only stores them otherwise."""
    if kinds.is_dictionary(kind) or kinds.is_run_end_encoded(kind):
        return _plain_type(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType) and not isinstance(kind, pa.JsonType):
        return _plain_type(kind.storage_type)
    if kinds.is_map(kind):
        return pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))
    return kind


def _is_list(kind: pa.DataType) -> bool:
    tests = (kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list, kinds.is_list_view, kinds.is_large_list_view)
    return any(test(kind) for test in tests)


def _leaves(path: str, lists: Lists) -> Iterator[tuple[str, Lists]]:
    """The leaves of nested values, each with its path."""
    if isinstance(lists.values.type, pa.FixedShapeTensorType):
        yield path, _tensors(path, lists)
        return
    lists = replace(lists, values=_plain(lists.values))
    kind = lists.values.type
    if kinds.is_struct(kind):
        check_structs(path, lists)
        for field, child in zip(kind, lists.values.flatten(), strict=True):
            yield from _leaves(f"{path}[{field.name!r}]", replace(lists, values=child))
    elif _is_list(kind):
        yield from _leaves(path, lists.unnested(path))
    else:
        yield path, lists


def _plain(array: pa.Array) -> pa.Array:
    kind = array.type
    if kinds.is_dictionary(kind):
        return _plain(array.dictionary_decode())
    if kinds.is_run_end_encoded(kind):
        return _plain(pc.run_end_decode(array))
    if isinstance(array, pa.ExtensionArray) and not isinstance(kind, pa.JsonType):
        return _plain(array.storage)
    return array.cast(_plain_type(kind)) if kinds.is_map(kind) else array


def _tensors(path: str, lists: Lists) -> Lists:
    """Arrays of one shape, as lists within lists."""
    kind = lists.values.type
    if kind.permutation is not None and list(kind.permutation) != sorted(kind.permutation):
        raise InvalidTypeError(f"leaf {path} is of {kind}, whose axes are permuted: store it in C order")
    flat = replace(lists, values=lists.values.storage).unnested(path)
    *outer, lengths = flat.levels
    levels = [np.full(len(lengths), kind.shape[0])]
    if flat.nulls is not None and not outer:
        levels[0][flat.nulls] = 0
    for dim in kind.shape[1:]:
        levels.append(np.full(int(levels[-1].sum()), dim))
    return Lists(flat.values, (*outer, *levels), flat.nulls)


def _column(path: str, spec: LeafSpec, lists: Lists) -> Column:
    if not kinds.is_null(lists.values.type):
        return column(path, spec, lists)
    if not lists.levels:
        rows = len(lists.values)
        leaf = leaf_codec(spec)
        filled = leaf.from_rows([leaf.filler()] * rows)
        return Column(filled.fixed, filled.variable, np.ones(rows, np.bool_))
    kind = pa.large_binary() if isinstance(spec.dtype, type) else pa.from_numpy_dtype(spec.dtype)
    return column(path, spec, replace(lists, values=lists.values.cast(kind)))


def _check_declared(own: Tree, declared: Tree) -> None:
    """Whether a declared spec says no other than the schema, but for lengths of lists and how bytes are decoded.

    Raises:
        InvalidArgumentError: where structure, dtype or shape differ.
    """
    try:
        found = tree.flatten_like(declared, own)
    except ElementError as error:
        raise InvalidArgumentError(f"element_spec is not of these columns: {error}") from error
    for (path, wanted), leaf in zip(tree.leaves(declared), found, strict=True):
        if leaf is not None and not _fits(leaf, wanted):
            raise InvalidArgumentError(f"element_spec{path} is {wanted!r}, but the column has {leaf!r}")


def _fits(own: Any, wanted: LeafSpec) -> bool:
    if not isinstance(own, LeafSpec) or own.dtype != wanted.dtype or len(own.shape) != len(wanted.shape):
        return False
    if not isinstance(wanted, ArraySpec):
        return not wanted.shape or own.as_nullable() == wanted.as_nullable()
    # Lengths within lists that differ need row splits.
    return None not in wanted.shape[1:] and all(
        a is None or a == b for a, b in zip(own.shape, wanted.shape, strict=True)
    )
