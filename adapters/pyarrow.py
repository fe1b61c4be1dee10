"""Read pyarrow's tables and datasets, and files of Parquet, Arrow IPC, CSV and JSON lines; return records as a table.

``storage.cache(x, ...)`` takes a ``Table``, ``RecordBatch``, ``RecordBatchReader``, ``dataset.Dataset``,
``dataset.Scanner`` or ``parquet.ParquetFile`` as it is. Each row is an element: a dict whose keys are the column names.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import repeat, takewhile
from types import FunctionType
from typing import Any
from urllib.parse import unquote

from numpy.typing import NDArray

from cachelayer.adapters.frameworks.arrow_arrays import read_columns, table_of
from cachelayer.adapters.sources.arrow_source import (
    ArrowPart,
    filled,
    first_rows,
    source_of_parts,
    source_of_table,
    with_constants,
)
from cachelayer.adapters.sources.arrow_types import is_list
from cachelayer.adapters.sources.files import File, Files, Paths, file_source
from cachelayer.adapters.sources.text_files import check_convert_options, csv_part, json_lines
from cachelayer.builds.batches import BATCH_NBYTES, MAX_BATCH_RECORDS, stacked_records
from cachelayer.builds.source import Source
from cachelayer.builds.source_files import FileSource, reading
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, SourceError
from cachelayer.specs.tree import Tree
from cachelayer.support.arguments import explains_options
from cachelayer.support.extras import packages_of
from cachelayer.support.system_threads import Pool
from cachelayer.views.view import View

with packages_of("arrow", "this needs pyarrow"):
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as pa_dataset
    import pyarrow.parquet as pq

__all__ = ["as_source", "from_csv", "from_ipc", "from_json", "from_parquet", "to_arrow"]

Options = Mapping[str, Any] | None
Longest = Callable[[int, str], int | None]
"""Returns the bytes of the longest value in the dictionary of a row group's column; None if it is unknown."""
_FILES_AT_ONCE = 16
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}
"""The bytes of a value by Parquet's physical type, without those of a text."""
_SHARING = ("PLAIN_DICTIONARY", "RLE_DICTIONARY", "DELTA_BYTE_ARRAY")
"""Encodings that store a value once that is in many rows."""
_DICTIONARY_NBYTES = 5 << 18
_VALUES_IF_GIVEN_UP = 8
_MOST_NBYTES = 16 * BATCH_NBYTES
_VARYING_BITS = 1 << 10
_INT96 = (
    "times of Parquet's INT96, of which pyarrow changes those before 1677 and after 2262: pass a pyarrow.dataset with "
    "format=ParquetFileFormat(coerce_int96_timestamp_unit='us')"
)
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


def as_source(obj: Any, *, unbatch: bool = False, element_spec: Tree | None = None) -> Source | None:
    """Return the source of a pyarrow object; None for anything else.

    Examples:
        >>> import pyarrow as pa
        >>> table = pa.table({"n": [1, None, 3], "text": ["a", "b", "c"]})
        >>> ref = cachelayer.Storage(folder).cache(table, "rows@v1")
        >>> ref[1]
        {'n': None, 'text': 'b'}
    """
    streams = (pa.RecordBatchReader, pa_dataset.Dataset, pa_dataset.Scanner, pq.ParquetFile)
    if not isinstance(obj, (pa.Table, pa.RecordBatch, *streams)):
        return None
    if unbatch:
        raise InvalidArgumentError("unbatch=True: rows are elements already; leave it out")
    if isinstance(obj, (pa.Table, pa.RecordBatch)):
        table = obj if isinstance(obj, pa.Table) else pa.Table.from_batches([obj])
        return source_of_table("pyarrow", table, element_spec)
    return source_of_parts("pyarrow", [_part_of(obj)], element_spec)


def _part_of(obj: Any) -> ArrowPart:
    if isinstance(obj, pa.RecordBatchReader):
        return ArrowPart("", obj.schema, lambda _: obj)
    if isinstance(obj, pa_dataset.Scanner):
        return ArrowPart("", obj.projected_schema, lambda _: obj.to_batches())
    if isinstance(obj, pq.ParquetFile):
        rows = obj.metadata.num_rows
        _refuse_int96([obj.metadata], obj.schema_arrow)
        return ArrowPart("", obj.schema_arrow, partial(_parquet_batches, lambda: nullcontext(obj), None), rows)
    # By default pyarrow reads ahead whole row groups of many files.
    return ArrowPart(
        "",
        obj.schema,
        lambda _: obj.to_batches(batch_size=_rows_of_dataset(obj), batch_readahead=2, fragment_readahead=2),
    )


def _rows_of_dataset(dataset: Any) -> int:
    """Return how many rows of a dataset to read at once: as many as any row group of its files allows."""
    fragments = [each for each in dataset.get_fragments() if isinstance(each, pa_dataset.ParquetFileFragment)]
    with Pool(_FILES_AT_ONCE, "cachelayer-arrow") as pool:
        files = list(pool.map(lambda fragment: fragment.metadata, fragments))
        _refuse_int96(files, dataset.schema)
        return min(
            (rows_at_once(file, group) for file in files for group in range(file.num_row_groups)),
            default=MAX_BATCH_RECORDS,
        )


@explains_options
def to_arrow(ref: View[Any], indices: Sequence[int] | NDArray[Any] | None = None) -> pa.Table:
    """Return records as a table, in memory: one column for each key of the elements.

    Columns that came from Arrow, Parquet, Polars or pandas have the types again that they came with: lists of structs,
    times of day, categories, maps. Others have those that their element spec implies.

    Args:
        ref: records whose elements are dicts.
        indices: integers, where negative ones count from the end; or a mask; None for all records.

    Returns:
        A table. Arrays are lists, of fixed size if their shape is known; dicts are structs. Images and sounds are the
        bytes of their files. NaT becomes null, with a warning.

    Raises:
        InvalidTypeError: if Arrow has no type for a leaf, or cannot hold a value, or elements are not dicts.
        RecordIndexError: if a record does not exist.

    Examples:
        >>> import pyarrow as pa
        >>> from cachelayer.adapters.pyarrow import to_arrow
        >>> table = pa.table({"n": pa.array([1, None, 3], pa.int8()), "tags": [["x"], [], ["y", "z"]]})
        >>> ref = cachelayer.Storage(folder).cache(table, "rows@v1")
        >>> to_arrow(ref) == table, to_arrow(ref, [2]).to_pylist()
        (True, [{'n': 3, 'tags': ['y', 'z']}])
    """
    return table_of(*read_columns(ref, indices))


@explains_options
def from_parquet(
    paths: Paths,
    columns: Sequence[str] | None = None,
    schema: Any = None,
    *,
    fill: Mapping[str, Any] | None = None,
    storage_options: Options = None,
) -> FileSource:
    """Return a source of the rows of Parquet files. It can be read from any row group.

    Folders directly above a file that are named ``key=value``, as Hive writes them, become columns after those of the
    file, unless the file has a column of that name. They are text, so that ``007`` stays ``007``; ``schema=`` casts
    them.

    Args:
        paths: paths, patterns such as ``"train-*.parquet"``, or URLs.
        columns: the columns to read; all by default.
        schema: a ``pyarrow.Schema`` of the columns to read; every file is cast to it. By default every file must have
            the schema of the first.
        fill: by the name of each column that some files lack, the value that it has in their rows, or None.
        storage_options: options of fsspec's client.

    Examples:
        >>> import pyarrow as pa
        >>> import pyarrow.parquet as pq
        >>> from cachelayer.adapters.pyarrow import from_parquet
        >>> pq.write_table(pa.table({"n": [1, 2, 3], "text": ["a", "b", "c"]}), folder / "rows.parquet")
        >>> source = from_parquet(folder / "*.parquet", columns=["text"])
        >>> cachelayer.Storage(folder / "cache").cache(source, "rows@v1")[2]
        {'text': 'c'}
    """
    part = partial(_parquet_part, columns, schema, fill or {})
    options = {"columns": columns, "schema": schema, **({"fill": dict(fill)} if fill else {})}
    names = (columns or ()) if schema is None else schema.names
    unified = partial(filled, fill=fill, names=names) if fill else list
    return _source("parquet", Files(paths, storage_options), part, options, unified, casts=schema is not None)


@explains_options
def from_ipc(
    paths: Paths, columns: Sequence[str] | None = None, schema: Any = None, *, storage_options: Options = None
) -> FileSource:
    """Return a source of the rows of Arrow IPC files (also called Feather, or ``.arrow``), from any record batch.

    For a stream of Arrow IPC pass ``pyarrow.ipc.open_stream(path)``, or a function that returns it, to ``cache``.

    Args:
        paths: paths, patterns, or URLs.
        columns: the columns to read; all by default.
        schema: a ``pyarrow.Schema`` of the columns to read; every file is cast to it. By default every file must have
            the schema of the first.
        storage_options: options of fsspec's client.

    Examples:
        >>> import pyarrow as pa
        >>> import pyarrow.feather
        >>> from cachelayer.adapters.pyarrow import from_ipc
        >>> pyarrow.feather.write_feather(pa.table({"n": [1, 2, 3]}), str(folder / "rows.arrow"))
        >>> ref = cachelayer.Storage(folder / "cache").cache(from_ipc(folder / "rows.arrow"), "rows@v1")
        >>> ref.read([2, 0])
        {'n': array([3, 1])}
    """
    part = partial(_ipc_part, columns, schema)
    options = {"columns": columns, "schema": schema}
    return _source("arrow", Files(paths, storage_options), part, options, casts=schema is not None)


@explains_options
def from_csv(
    paths: Paths,
    schema: Any = None,
    *,
    read_options: Any = None,
    parse_options: Any = None,
    convert_options: Any = None,
    storage_options: Options = None,
) -> FileSource:
    r"""Return a source of the rows of CSV files. Columns that are not declared are text, as in the file.

    In a declared type, an empty cell is null. A cell that does not fit its type is an error that names its record.

    Args:
        paths: paths, patterns, or URLs. Those that end in ``.gz``, ``.bz2``, ``.lz4`` or ``.zst`` are decompressed.
        schema: a ``pyarrow.Schema`` of the columns to read.
        read_options, parse_options: those of ``pyarrow.csv``.
        convert_options: those of ``pyarrow.csv``, of which ``include_columns``, ``column_types``, ``null_values`` and
            ``decimal_point`` may be set.
        storage_options: options of fsspec's client.

    Examples:
        >>> import pyarrow as pa
        >>> from cachelayer.adapters.pyarrow import from_csv
        >>> _ = (folder / "rows.csv").write_text("zip,age\n01099,7\n20095,\n")
        >>> schema = pa.schema({"zip": pa.string(), "age": pa.int8()})
        >>> ref = cachelayer.Storage(folder / "cache").cache(from_csv(folder / "rows.csv", schema), "people@v1")
        >>> ref[0], ref[1]["age"]
        ({'zip': '01099', 'age': np.int8(7)}, None)
    """
    check_convert_options(schema, convert_options)
    part = partial(csv_part, schema, read_options, parse_options, convert_options)
    options = {"read": read_options, "parse": parse_options, "convert": convert_options}
    options = {"schema": schema, **{name: _settings(value) for name, value in options.items()}}
    return _source("csv", Files(paths, storage_options), part, options, casts=True)


@explains_options
def from_json(paths: Paths, schema: Any = None, *, storage_options: Options = None) -> FileSource:
    r"""Return a source of the rows of files with one JSON object per line.

    The first lines decide the element spec: lists become arrays of any length, and a key that an object lacks is null.
    No value changes its type: a later value that does not fit is an error that names its record, as are integers
    beyond 64 bits, and two equal keys. A column that is null in all of the first 10,000 lines stays null.

    Args:
        paths: paths, patterns, or URLs. Those that end in ``.gz``, ``.bz2``, ``.lz4`` or ``.zst`` are decompressed.
        schema: a ``pyarrow.Schema`` of the columns to read, or declare ``element_spec=``; other keys are ignored.
        storage_options: options of fsspec's client.

    Examples:
        >>> from cachelayer.adapters.pyarrow import from_json
        >>> _ = (folder / "rows.jsonl").write_text('{"id": 1, "scores": [0.5, 1]}\n{"id": 2}\n')
        >>> ref = cachelayer.Storage(folder / "cache").cache(from_json(folder / "rows.jsonl"), "rows@v1")
        >>> ref[0], ref[1]
        ({'id': np.int64(1), 'scores': array([0.5, 1. ])}, {'id': np.int64(2), 'scores': None})
    """
    files = Files(paths, storage_options)
    return file_source(files, partial(json_lines, schema), {"schema": schema})


def _source(
    kind: str,
    files: Files,
    part: Callable[[File], ArrowPart],
    options: Mapping[str, Any],
    unified: Callable[[Iterable[ArrowPart]], list[ArrowPart]] = list,
    *,
    casts: bool,
) -> FileSource:
    def opened(found: Sequence[File], declared: Tree | None) -> Source:
        with Pool(_FILES_AT_ONCE, "cachelayer-arrow") as pool:
            parts = list(pool.map(part, found))
        return source_of_parts(kind, unified(parts), declared, casts=casts)

    return file_source(files, opened, options)


def _settings(options: Any) -> dict[str, Any] | None:
    if options is None:
        return None
    values = {name: getattr(options, name) for name in dir(options) if not name.startswith("_")}
    return {name: value for name, value in values.items() if not callable(value) or isinstance(value, FunctionType)}


def _parquet_part(columns: Sequence[str] | None, schema: Any, fill: Mapping[str, Any], file: File) -> ArrowPart:
    with reading(file.name, "is not a Parquet file, or is cut short"), _parquet_file(file) as opened:
        stored = opened.schema_arrow
        metadata = opened.metadata
    added = {key: value for key, value in partition_of(file.path).items() if key not in stored.names}
    every = pa.schema([*stored, *((key, pa.string()) for key in added)])
    own = _selected(every, columns, schema, fill)
    read = [name for name in own.names if name not in added]
    with_int96 = _int96_columns(metadata, {*read})
    int96 = [name for name in read if name in with_int96]
    longest = partial(longest_in_dictionary, file, metadata)

    def batches(row: int) -> Iterator[pa.RecordBatch]:
        exact: Iterable[Any] = repeat(None)
        if int96:
            in_microseconds = partial(_parquet_file, file, coerce_int96_timestamp_unit="us")
            exact = _parquet_batches(in_microseconds, int96, row, longest)
        values = _parquet_batches(partial(_parquet_file, file), read, row, longest)
        for batch, times in zip(values, exact, strict=False):
            for name in int96:
                _check_times(times.column(name), batch.schema.field(name), file.name)
            # A batch without columns has rows too, which others fill.
            yield batch if own.names in ([], stored.names) else with_constants(batch, own, added)

    starts = first_rows([metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)])
    cast = own if schema is None else pa.schema([schema.field(name) for name in own.names])
    return ArrowPart(file.name, cast, batches, metadata.num_rows, starts, _nbytes_of(metadata, read))


def _column_of(path: str, names: Collection[str]) -> str | None:
    """Return the column that a path in the schema of a Parquet file lies in; None if that is none of these.

    Names may have dots.
    """
    steps = path.split(".")
    columns = (".".join(steps[:end]) for end in range(1, len(steps) + 1))
    return next((name for name in columns if name in names), None)


def _int96_columns(file: pq.FileMetaData, names: Collection[str]) -> set[str]:
    """Return the columns with times of Parquet's INT96: pyarrow wraps those that nanoseconds do not reach."""
    columns = map(file.schema.column, range(file.num_columns))
    of_times = (_column_of(each.path, names) for each in columns if each.physical_type == "INT96")
    return {name for name in of_times if name is not None}


def _refuse_int96(files: Sequence[pq.FileMetaData], schema: pa.Schema) -> None:
    own = {*schema.names}
    names = set().union(*(_int96_columns(file, own) for file in files))
    unchecked = next((name for name in names if "timestamp[ns" in str(schema.field(name).type)), None)
    if unchecked is not None:
        raise InvalidTypeError(f"column {unchecked!r} has {_INT96}; or pass its path, of which each time is checked")


def _check_times(exact: pa.Array, field: pa.Field, file: str) -> None:
    """Raise if pyarrow has changed a time, given the same times in microseconds."""
    try:
        exact.cast(field.type)
    except pa.ArrowInvalid as error:
        raise SourceError(f"{file}: column {field.name!r} has {_INT96} ({error})") from error


def _nbytes_of(file: pq.FileMetaData, names: Sequence[str]) -> int:
    """Return the approximate size of some columns of a Parquet file."""
    if not file.num_row_groups:
        return 0
    # A loop over the columns of all groups takes seconds for a wide file.
    first = file.row_group(0)
    columns = map(first.column, range(first.num_columns))
    wanted = {*names}
    chosen = [each.total_uncompressed_size for each in columns if _column_of(each.path_in_schema, wanted) is not None]
    return int(sum(chosen) * file.num_rows // max(1, first.num_rows))


@contextmanager
def _parquet_file(file: File, **options: Any) -> Iterator[pq.ParquetFile]:
    if file.is_local:
        with pq.ParquetFile(file.path, **options) as parquet:
            yield parquet
    else:
        # Columns of a row group are read together, in a few large requests.
        with file.open() as opened, pq.ParquetFile(opened, **{"pre_buffer": True, **options}) as parquet:
            yield parquet


def longest_in_dictionary(file: File, metadata: pq.FileMetaData, group: int, column: str) -> int | None:
    """Return the bytes of the longest value in the dictionary of a column; None if pyarrow does not show it."""
    options = {"read_dictionary": [column], "metadata": metadata, "buffer_size": 1 << 16, "pre_buffer": False}
    with _parquet_file(file, **options) as parquet:
        # With the first row comes the whole dictionary, and no more of the column is read.
        values = next(parquet.iter_batches(1, [group], [column])).column(0)
    while not pa.types.is_dictionary(values.type):
        if not is_list(values.type) and not pa.types.is_struct(values.type):
            return None
        values = values.values if is_list(values.type) else values.field(0)
    return pc.max(pc.binary_length(values.dictionary)).as_py() or 0


def _parquet_batches(
    open_file: Callable[[], AbstractContextManager[pq.ParquetFile]],
    columns: Sequence[str] | None,
    row: int,
    longest: Longest | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file from the first row of a row group on."""
    with open_file() as parquet:
        # Within structs, pyarrow cannot join dictionaries of several row groups.
        for group in range(parquet.metadata.num_row_groups):
            rows = parquet.metadata.row_group(group).num_rows
            if row > 0:
                row -= rows
            else:
                size = rows_at_once(parquet.metadata, group, longest)
                yield from parquet.iter_batches(size, [group], columns)


def rows_at_once(file: pq.FileMetaData, group: int, longest: Longest | None = None) -> int:
    """Return how many rows of a row group to decode at once.

    Its metadata say how many bytes the encoded values take, but a value of a dictionary may be that of every row. So
    there are as many as take some tens of MiB if each has the largest value that the dictionary can hold; or, if these
    are few, the longest that it does hold.
    """
    chunks = file.row_group(group)
    total = largest = 0
    shared: list[tuple[str, int, int]] = []
    for number in range(chunks.num_columns):
        chunk = chunks.column(number)
        width = _WIDTHS.get(chunk.physical_type, file.schema.column(number).length or 0)
        total += max(chunk.total_uncompressed_size, chunk.num_values * width)
        if chunk.physical_type == "BYTE_ARRAY" and any(name in _SHARING for name in chunk.encodings):
            # Writers end a dictionary at about 1 MiB, but a value may be larger.
            dictionary = chunk.data_page_offset - (chunk.dictionary_page_offset or chunk.data_page_offset)
            plain = dictionary * chunk.total_uncompressed_size // max(1, chunk.total_compressed_size)
            most = min(chunk.total_uncompressed_size, max(_DICTIONARY_NBYTES, plain))
            if chunk.total_uncompressed_size > 2 * most:
                # The dictionary was given up, because it had many values.
                most //= _VALUES_IF_GIVEN_UP
            values_a_row = -(-chunk.num_values // max(1, chunks.num_rows))
            largest += most * values_a_row
            shared.append((chunk.path_in_schema if dictionary else "", most, values_a_row))
    rows = stacked_records(total / max(1, chunks.num_rows), chunks.num_columns)
    if longest is not None and rows * largest > _MOST_NBYTES:
        largest = 0
        for column, most, values_a_row in shared:
            nbytes = longest(group, column) if column else None
            largest += values_a_row * (most if nbytes is None else nbytes)
    return max(1, min(rows, _MOST_NBYTES // max(1, largest)))


def partition_of(path: str) -> dict[str, str | None]:
    """Return the keys and values of the folders directly above a file, the outermost first; None for null."""
    folders = path.replace("\\", "/").split("/")[:-1]
    pairs = [folder.split("=", 1) for folder in takewhile(lambda folder: folder.find("=") > 0, reversed(folders))]
    partition = {unquote(key): None if value == _HIVE_NULL else unquote(value) for key, value in reversed(pairs)}
    if len(partition) < len(pairs):
        raise InvalidArgumentError(f"two folders of {path} have the same key: {'/'.join(map('='.join, pairs[::-1]))}")
    return partition


def _ipc_part(columns: Sequence[str] | None, schema: Any, file: File) -> ArrowPart:
    what = "is not an Arrow IPC file, or is cut short (pass pyarrow.ipc.open_stream() for a stream)"
    with reading(file.name, what), _ipc_file(file) as opened:
        own = _selected(opened.schema, columns, schema)
        rows = _rows_of_ipc(file, opened.schema)

    def batches(row: int) -> Iterator[pa.RecordBatch]:
        with _ipc_file(file, own.names) as opened:
            for number in range(bisect(starts, row) - 1, opened.num_record_batches):
                yield opened.get_batch(number).select(own.names)

    starts = first_rows(rows)
    return ArrowPart(file.name, schema or own, batches, sum(rows), starts, file.facts.nbytes)


def _bits_of(field: pa.Field) -> int:
    """Return the bits of a value of a column; of one whose values vary, or share a dictionary, more than of others."""
    is_number = pa.types.is_primitive(field.type)
    return int(field.type.bit_width) if is_number else _VARYING_BITS


@contextmanager
def _ipc_file(file: File, names: Sequence[str] | None = None) -> Iterator[pa.ipc.RecordBatchFileReader]:
    with pa.OSFile(file.path) if file.is_local else pa.PythonFile(file.open(), mode="r") as opened:
        reader = pa.ipc.open_file(opened)
        if names is not None:
            wanted = {*names}
            chosen = [number for number, name in enumerate(reader.schema.names) if name in wanted]
            reader = pa.ipc.open_file(opened, options=pa.ipc.IpcReadOptions(included_fields=chosen))
        yield reader


def _rows_of_ipc(file: File, schema: pa.Schema) -> list[int]:
    """Return the number of rows of each record batch of an Arrow IPC file, which its narrowest column tells."""
    narrowest = min(schema, key=_bits_of)
    with _ipc_file(file, [narrowest.name]) as opened:
        return [opened.get_batch(number).num_rows for number in range(opened.num_record_batches)]


def _selected(own: Any, columns: Sequence[str] | None, schema: Any, fill: Collection[str] = ()) -> Any:
    """Return the part of a file's schema that is read, which may lack columns that ``fill`` names."""
    own_names = own.names
    names = own_names if columns is None else list(columns)
    names = names if schema is None else schema.names
    known = {*own_names}
    names = [name for name in names if name in known or name not in fill]
    missing = [name for name in names if name not in known]
    if missing:
        raise InvalidArgumentError(f"there is no column {missing[0]!r} among {own_names}")
    return own if names == own_names else pa.schema([own.field(name) for name in names])


def content(obj: Any) -> Any:
    """Return what an object of Arrow holds besides the values of its columns; None for anything else."""
    if isinstance(obj, (pa.Array, pa.ChunkedArray)):
        return pa.table({"values": obj})
    if isinstance(obj, (pa.Table, pa.RecordBatch)):
        table = obj if isinstance(obj, pa.Table) else pa.Table.from_batches([obj])
        chunks = [chunk for column in table.columns for chunk in column.chunks]
        return content(obj.schema), [each.dictionary.to_pylist() for each in chunks if hasattr(each, "dictionary")]
    return obj.serialize().to_pybytes() if isinstance(obj, pa.Schema) else None
