"""Sources of columns that are added to a version: what a function makes of its records, or rows found by a key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from cachelayer.builds.batches import Batch, Framed, RowBatch, batch_records
from cachelayer.builds.elements import errors_named, failure_at
from cachelayer.builds.encode import Encoder, marked
from cachelayer.builds.item_source import source_of_items
from cachelayer.builds.source import Source
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, SourceError
from cachelayer.protocols import HasRecords, records_of
from cachelayer.records import tree
from cachelayer.records.codec import codec_for
from cachelayer.records.frames import Frames
from cachelayer.records.leaf_names import leaf_number
from cachelayer.records.memory import Ints
from cachelayer.records.record_buffers import PackedRecords
from cachelayer.records.values import Nullable


def columns_of_function(ref: HasRecords[Any], function: Callable[[Any], Any], *, batched: bool) -> Source:
    """Return the source of what a function makes of the records of a version.

    Args:
        ref: the version.
        function: takes an element, or with ``batched`` a batch, and returns a dict of columns.
        batched: whether it takes a batch: leaves stacked on a leading axis, which its columns have too.
    """
    plan = {"of": records_of(ref).digests.elements, "batched": batched}
    if not batched:
        source = source_of_items(ref, elements=partial(_columns_from, ref, function))
        return replace(source, kind="columns", plan=plan)
    read = partial(_read, ref, function)
    length = len(records_of(ref))
    return Source("columns", read, length=length, starts=range(length), items=ref, plan=plan)


def _ranges(ref: HasRecords[Any], start: int, stop: int) -> Iterator[Ints]:
    """Yield the numbers of records that are read at once."""
    size = batch_records(records_of(ref).info.read_nbytes)
    for first in range(start, stop, size):
        yield np.arange(first, min(first + size, stop))


def _columns_from(ref: Any, function: Callable[[Any], Any], start: int) -> Iterator[Any]:
    for numbers in _ranges(ref, start, len(records_of(ref))):
        elements = ref.__getitems__(numbers)
        for number, element in zip(numbers.tolist(), elements, strict=True):
            yield _checked(number, function(element))


def _read(ref: HasRecords[Any], function: Callable[[Any], Any], start: int, stop: int | None) -> Iterator[Batch]:
    records = records_of(ref)
    for numbers in _ranges(ref, start, len(records) if stop is None else min(len(records), stop)):
        first = int(numbers[0])
        with errors_named(failure_at(first)):
            columns = _checked(first, function(records.batch(numbers)))
        batch = _with_string_arrays(columns, "")
        for path, leaf in tree.leaf_values(batch):
            _check_rows(path, leaf, len(numbers))
        yield RowBatch(batch, len(numbers))


def _checked(number: int, columns: Any) -> Any:
    if not isinstance(columns, dict) or not columns:
        raise InvalidTypeError(
            f"columns: the function returned {tree.describe(columns)} for record {number}: return a dict, such as "
            "{'score': 0.5}"
        )
    return columns


def _with_string_arrays(value: Any, path: str) -> Any:
    """Return what a function of batches returned, with an array in place of each list of nothing but str, or bytes."""
    if isinstance(value, Mapping):
        return {key: _with_string_arrays(child, f"{path}[{key!r}]") for key, child in value.items()}
    if not isinstance(value, list):
        return value
    if value and {type(item) for item in value} in ({str}, {bytes}):
        return np.fromiter(value, object, len(value))
    raise InvalidTypeError(
        f"columns: the function returned a list for {path}: return an array with a row for each record, such as "
        "np.asarray(...), or, if rows differ in length, a cachelayer.Ragged(values, row_splits)"
    )


def _check_rows(path: str, leaf: Any, rows: int) -> None:
    """Raise unless a leaf of what a function of batches returned has a row for each record."""
    if isinstance(leaf, (str, bytes)) or not hasattr(leaf, "__len__") or getattr(leaf, "shape", None) == ():
        raise InvalidTypeError(
            f"columns: the function returned {tree.describe(leaf)} for {path}: with batched=True it takes a batch, and "
            f"returns columns with a row for each of its {rows} records"
        )
    if len(leaf) != rows:
        raise SourceError(f"the function returned {len(leaf)} rows of {path} for {rows} records")


def columns_by_key(source: Source, keys: Any, key: str) -> Source:
    """Return the rows of a table in the order of records, found by a key.

    Args:
        source: the table, which has the key as one of its columns.
        keys: the key of each record, an array; see :func:`key_array`.
        key: the name of the column.

    Raises:
        InvalidArgumentError: if a record has no row, or more than one; it names the first.
    """
    spec = source.element_spec
    if not isinstance(spec, dict) or key not in spec or len(spec) < 2:
        got = f"a source of {source.kind}" if spec is None else tree.describe(spec)
        raise InvalidArgumentError(
            f"on={key!r}: pass a table with this column and those to add, such as a frame, not {got}"
        )
    codec = codec_for(spec)
    encoder = Encoder(codec, "raise")
    frames = Frames.joined(list(map(encoder.encode, source.batches())))
    records = PackedRecords(frames.buffer, frames.starts, frames.lengths)
    spec = marked(spec, encoder.result.nullable)
    codec, number = codec_for(spec), leaf_number(spec, key)
    ours = codec.chosen([number])
    rows = _rows_of(keys, key_array(ours.batch(ours.decode(records))[key], key, "the table"), key)
    others = codec.chosen([leaf for leaf in range(len(tree.leaves(spec))) if leaf != number])
    columns = others.decode(records[rows])
    found = codec_for(others.spec).encode(columns, len(rows))
    read = partial(_read_frames, found)
    return Source("columns", read, element_spec=others.spec, length=len(found), files=source.files)


def _read_frames(frames: Frames, start: int, stop: int | None) -> Iterator[Batch]:
    yield Framed(frames[start:stop])


def key_array(column: Any, key: str, where: str) -> Any:
    """Return the values of a key as an array: numbers, or strings.

    Args:
        column: the column of the key.
        key: the name of the key, for errors.
        where: what the column is of, for errors.
    """
    if isinstance(column, Nullable) and column.valid.all():
        column = column.values
    if not isinstance(column, np.ndarray) or column.ndim != 1:
        got = "None in some rows" if isinstance(column, Nullable) else tree.describe(column)
        raise InvalidArgumentError(f"on={key!r}: a key is a number, a str or bytes in each row; {where} has {got}")
    return column


def _rows_of(wanted: Any, known: Any, key: str) -> Ints:
    """Return for each key the only row that has it."""
    wanted, known = _comparable(wanted, known, key)
    order = known.argsort(kind="stable")
    ordered = known[order]
    begins, ends = ordered.searchsorted(wanted, "left"), ordered.searchsorted(wanted, "right")
    for which, wrong in (("no row", begins == ends), ("several rows", ends - begins > 1)):
        if wrong.any():
            record = int(wrong.argmax())
            raise InvalidArgumentError(
                f"on={key!r}: the table has {which} for record {record}, whose key is {wanted[record]!r}: each record "
                "must find exactly one"
            )
    rows: Ints = order[begins]
    return rows


def _comparable(wanted: Any, known: Any, key: str) -> tuple[Any, Any]:
    """Return the keys of records and those of a table as arrays that numpy compares exactly."""
    of_records, of_table = (_kind_of_keys(keys) for keys in (wanted, known))
    if of_records == of_table == "integers" and wanted.dtype != known.dtype:
        # numpy would compare int64 with uint64 as float64, in which neighbours are equal.
        bounds = [int(bound) for keys in (wanted, known) if len(keys) for bound in (keys.min(), keys.max())]
        dtype = np.int64 if max(bounds, default=0) <= np.iinfo(np.int64).max else object
        dtype = np.uint64 if dtype is object and min(bounds) >= 0 else dtype
        return wanted.astype(dtype), known.astype(dtype)
    if of_records in ("str", "bytes") and of_records == of_table:
        return wanted.astype(object), known.astype(object)
    if len(wanted) and len(known) and of_records != of_table:
        raise InvalidArgumentError(
            f"on={key!r}: its values are {of_records} in the version, and {of_table} in the table: convert the column"
        )
    return wanted, known


def _kind_of_keys(keys: Any) -> str:
    """Return what keys are, such that those of one kind can be compared."""
    if keys.dtype.kind in "iu":
        return "integers"
    if keys.dtype.kind in "SU":
        return "bytes" if keys.dtype.kind == "S" else "str"
    if keys.dtype != object:
        return str(keys.dtype)
    kinds = sorted({type(each).__name__ for each in keys})
    return " and ".join(kinds) if kinds else "str"
