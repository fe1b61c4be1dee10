"""Read pyarrow's tables and datasets, and files of Parquet, Arrow IPC, CSV and JSON lines.

``storage.cache(x, ...)`` takes a ``Table``, ``RecordBatch``, ``RecordBatchReader``, ``dataset.Dataset``,
``dataset.Scanner`` or ``parquet.ParquetFile`` as it is. Each row is an element: a dict whose keys are the column names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from cachelayer.adapters._arrow_source import (
    ArrowPart,
    ArrowSource,
    SkippableArrowSource,
    TableSource,
    check_schema,
    from_row,
)
from cachelayer.adapters._files import File, Files, Paths, find, listed, reading
from cachelayer.adapters._hive import partition_of
from cachelayer.adapters._text_files import JsonLinesSource, csv_parts
from cachelayer.builds.batches import batch_records
from cachelayer.errors import InvalidArgumentError, MissingDependencyError, SourceError
from cachelayer.records.tree import Tree
from cachelayer.system_threads import Pool

try:
    import pyarrow as pa
    import pyarrow.dataset as pa_dataset
    import pyarrow.parquet as pq
except ImportError as error:
    raise MissingDependencyError("this needs pyarrow: pip install 'cachelayer[arrow]'") from error

Options = Mapping[str, Any] | None
_FILES_AT_ONCE = 16
_DATASET_ROWS = 1024
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


def as_source(obj: Any, *, unbatch: bool = False, element_spec: Tree | None = None) -> ArrowSource | None:
    """Return the source of a pyarrow object; None for anything else."""
    part = _part_of(obj)
    if part is None:
        return None
    if unbatch:
        raise InvalidArgumentError("unbatch=True: rows are elements already; leave it out")
    kinds = {pa.Table: TableSource, pa.RecordBatch: TableSource, pq.ParquetFile: SkippableArrowSource}
    cls = next((cls for kind, cls in kinds.items() if isinstance(obj, kind)), ArrowSource)
    return cls("pyarrow", lambda: [part], element_spec)


def _part_of(obj: Any) -> ArrowPart | None:
    if isinstance(obj, pa.Table):
        return ArrowPart.of_table(obj)
    if isinstance(obj, pa.RecordBatch):
        return ArrowPart.of_table(pa.Table.from_batches([obj]))
    if isinstance(obj, pa.RecordBatchReader):
        return ArrowPart("", obj.schema, None, lambda _: obj)
    if isinstance(obj, pa_dataset.Dataset):
        # By default pyarrow reads ahead whole row groups of many files.
        pull = partial(obj.to_batches, batch_size=_DATASET_ROWS, fragment_readahead=2)
        has_counts = isinstance(getattr(obj, "format", None), (pa_dataset.ParquetFileFormat, pa_dataset.IpcFileFormat))
        return ArrowPart("", obj.schema, obj.count_rows() if has_counts else None, lambda _: pull())
    if isinstance(obj, pa_dataset.Scanner):
        return ArrowPart("", obj.projected_schema, None, lambda _: obj.to_batches())
    return _of_parquet("", obj, None, None, {}) if isinstance(obj, pq.ParquetFile) else None


def from_parquet(
    paths: Paths, columns: Sequence[str] | None = None, schema: Any = None, *, storage_options: Options = None
) -> SkippableArrowSource:
    """Return a source of the rows of Parquet files. A build that resumes skips the row groups already written.

    Folders directly above a file that are named ``key=value``, as Hive writes them, become columns after those of the
    file, unless the file has a column of that name. They are text, so that ``007`` stays ``007``; ``schema=`` casts
    them.

    Args:
        paths: paths, patterns such as ``"train-*.parquet"``, or URLs.
        columns: the columns to read; all by default.
        schema: a ``pyarrow.Schema`` of the columns to read; every file is cast to it. By default every file must have
            the schema of the first.
        storage_options: options of fsspec's client.
    """
    files = Files(listed(paths), storage_options)
    opened = _opened(files, lambda file: _parquet(file, columns, schema))
    return SkippableArrowSource("parquet", opened, files=files)


def from_ipc(
    paths: Paths, columns: Sequence[str] | None = None, schema: Any = None, *, storage_options: Options = None
) -> SkippableArrowSource:
    """Return a source of the rows of Arrow IPC files (also called Feather, or ``.arrow``) and streams.

    Args:
        paths: paths, patterns, or URLs.
        columns: the columns to read; all by default.
        schema: a ``pyarrow.Schema`` of the columns to read; every file is cast to it. By default every file must have
            the schema of the first.
        storage_options: options of fsspec's client.
    """
    files = Files(listed(paths), storage_options)
    return SkippableArrowSource("arrow", _one_by_one(files, lambda file: _ipc(file, columns, schema)), files=files)


def from_csv(
    paths: Paths,
    schema: Any = None,
    *,
    read_options: Any = None,
    parse_options: Any = None,
    convert_options: Any = None,
    storage_options: Options = None,
) -> ArrowSource:
    """Return a source of the rows of CSV files. Columns that are not declared are text, as in the file.

    In a declared type, an empty cell is null. A cell that does not fit its type is an error that names its record.

    Args:
        paths: paths, patterns, or URLs. Those that end in ``.gz``, ``.bz2``, ``.lz4`` or ``.zst`` are decompressed.
        schema: a ``pyarrow.Schema`` of the columns to read.
        read_options, parse_options, convert_options: those of ``pyarrow.csv``; ``column_types`` declares some columns.
        storage_options: options of fsspec's client.
    """
    files = Files(listed(paths), storage_options)
    return ArrowSource("csv", csv_parts(files, schema, read_options, parse_options, convert_options), files=files)


def from_json(paths: Paths, schema: Any = None, *, storage_options: Options = None) -> JsonLinesSource:
    """Return a source of the rows of files with one JSON object per line.

    The first lines decide the element spec: lists become arrays of any length, and a key that an object lacks is null.
    No value changes its type: a later value that does not fit is an error that names its record, as are integers
    beyond 64 bits, and two equal keys. A column that is null in all of the first lines stays null.

    Args:
        paths: paths, patterns, or URLs. Those that end in ``.gz``, ``.bz2``, ``.lz4`` or ``.zst`` are decompressed.
        schema: a ``pyarrow.Schema`` of the columns to read, or declare ``element_spec=``; other keys are ignored.
        storage_options: options of fsspec's client.
    """
    return JsonLinesSource(Files(listed(paths), storage_options), schema)


def _opened(files: Files, part: Callable[[File], ArrowPart]) -> Callable[[], list[ArrowPart]]:
    """Return a function that finds the files and opens all of them, as parts, when it is first called."""

    @cache
    def opened() -> list[ArrowPart]:
        with Pool(_FILES_AT_ONCE, "cachelayer-arrow") as pool:
            parts = list(pool.map(part, find(files.paths, files.storage_options)))
        for other in parts[1:]:
            check_schema(parts[0], other)
        return parts

    return opened


def _one_by_one(files: Files, part: Callable[[File], ArrowPart]) -> Callable[[], Iterator[ArrowPart]]:
    """Return a function that finds the files when it is called, and opens them one after another, as parts."""
    return lambda: map(part, find(files.paths, files.storage_options))


def _parquet(file: File, columns: Sequence[str] | None, schema: Any) -> ArrowPart:
    # Close the file again: there may be thousands.
    with reading(file.name, "is not a Parquet file, or is cut short"), _parquet_file(file) as opened:
        part = _of_parquet(file.name, opened, columns, schema, partition_of(file.path))

    def batches(row: int) -> Iterator[pa.RecordBatch]:
        with _parquet_file(file) as opened:
            now = _of_parquet(file.name, opened, columns, schema, partition_of(file.path))
            if now.rows != part.rows or now.schema != part.schema:
                raise SourceError(f"{file.name} changed since it was first opened: {now.rows} rows, not {part.rows}")
            yield from now.batches(row)

    return ArrowPart(part.name, part.schema, part.rows, batches, part.casts)


@contextmanager
def _parquet_file(file: File) -> Iterator[Any]:
    if file.is_local:
        with pq.ParquetFile(file.path) as opened:
            yield opened
    else:
        with file.open() as stream, pq.ParquetFile(stream, pre_buffer=True) as opened:
            yield opened


def _of_parquet(
    name: str, opened: Any, columns: Sequence[str] | None, schema: Any, partition: Mapping[str, str | None]
) -> ArrowPart:
    stored, rows = opened.schema_arrow, opened.metadata.num_rows
    added = {key: value for key, value in partition.items() if key not in stored.names}
    own = _selected(pa.schema([*stored, *((key, pa.string()) for key in added)]), columns, schema)
    read = [field for field in own.names if field not in added]
    nbytes = sum(opened.metadata.row_group(i).total_byte_size for i in range(opened.metadata.num_row_groups))
    size = batch_records(nbytes / max(1, rows))

    def batches(row: int) -> Iterator[pa.RecordBatch]:
        # Within structs, pyarrow cannot join dictionaries, or over 2 GiB of strings, from several row groups.
        for group in range(opened.metadata.num_row_groups):
            count = opened.metadata.row_group(group).num_rows
            if row < count:
                yield from from_row(opened.iter_batches(batch_size=size, row_groups=[group], columns=read), row)
            row = max(0, row - count)

    def whole(row: int) -> Iterator[pa.RecordBatch]:
        for batch in batches(row):
            texts = {key: pa.repeat(pa.scalar(value, pa.string()), len(batch)) for key, value in added.items()}
            columns = [texts[field] if field in texts else batch.column(field) for field in own.names]
            yield pa.RecordBatch.from_arrays(columns, schema=own) if texts else batch

    return ArrowPart(name, schema or own, rows, whole, schema is not None)


def _ipc(file: File, columns: Sequence[str] | None, schema: Any) -> ArrowPart:
    with reading(file.name, "is not an Arrow IPC file, or is cut short"):
        source = pa.OSFile(file.path) if file.is_local else pa.PythonFile(file.open(), mode="r")
        magic = source.read(6)
        source.seek(0)
        opened = pa.ipc.open_file(source) if magic == b"ARROW1" else pa.ipc.open_stream(source)
        own = _selected(opened.schema, columns, schema)

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in _ipc_batches(opened):
            yield batch.select(own.names)
        if isinstance(opened, pa.RecordBatchReader):
            _check_end(source, file.name)

    return ArrowPart(file.name, schema or own, None, lambda _: batches(), schema is not None)


def _ipc_batches(opened: Any) -> Iterator[pa.RecordBatch]:
    if isinstance(opened, pa.RecordBatchReader):
        return iter(opened)
    return map(opened.get_batch, range(opened.num_record_batches))


def _check_end(source: Any, name: str) -> None:
    """Raise if a stream of batches has no end mark, or bytes follow it in the file: pyarrow accepts both as complete.

    Raises:
        SourceError: names the file.
    """
    end = source.tell()
    source.seek(max(0, end - len(_END_OF_STREAM)))
    if source.read(len(_END_OF_STREAM)) != _END_OF_STREAM:
        raise SourceError(f"{name} is cut short: it has no end mark; write it again, and close its writer")
    if end < source.size():
        raise SourceError(f"{name} continues after the end of its stream, at byte {end}: write one stream a file")


def _selected(own: Any, columns: Sequence[str] | None, schema: Any) -> Any:
    """Return the part of a file's schema that is read."""
    names = own.names if columns is None else list(columns)
    if schema is not None:
        names = schema.names
    missing = [name for name in names if name not in own.names]
    if missing:
        raise InvalidArgumentError(f"there is no column {missing[0]!r} among {own.names}")
    return own if names == own.names else pa.schema([own.field(name) for name in names])
