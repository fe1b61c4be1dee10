"""Hash the columns of tables, frames and arrays in memory, without copying them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cachelayer.builds.array_source import ArraySource, columns_of
from cachelayer.builds.source import Table, adapted_source
from cachelayer.errors import ElementError, InvalidArgumentError, InvalidTypeError
from cachelayer.provenance.stored_values import hashed
from cachelayer.provenance.walker import crc32c
from cachelayer.records import spec_json, tree
from cachelayer.records.codec import codec_for
from cachelayer.records.layout import Column, Flat
from cachelayer.records.leaf_names import names_of_leaves
from cachelayer.records.tree import Tree

MOST_NBYTES = 1 << 30
_ROWS_AT_ONCE = 1 << 16
_SAMPLED_ROWS = 256


class TableHashes(NamedTuple):
    """The content of a table.

    Args:
        columns: a hash of each column by its name; "elements" for elements that are no dict.
        in_part: how many rows were compared, if not all were; "" if all were.
    """

    columns: Mapping[str, str]
    in_part: str = ""


def table_of(obj: Any, declared: Tree | None = None) -> Table | None:
    """Return the source of arrays, tensors, a table, a frame or a series in memory; None for any other object."""
    if isinstance(obj, tuple) and declared is not None and not isinstance(declared, tuple):
        return None
    try:
        # Its own spec tells its content: that of a user may say that texts are names of files, which would be read.
        return _table_of(obj, None)
    except (InvalidArgumentError, InvalidTypeError, ElementError):
        if declared is None:
            raise
        return _table_of(obj, declared)


def _table_of(obj: Any, declared: Tree | None) -> Table | None:
    columns = columns_of(obj)
    if columns is not None:
        return ArraySource(columns, declared)
    if hasattr(type(obj), "__len__") and (hasattr(type(obj), "columns") or hasattr(type(obj), "column_names")):
        # Tables and frames of every library have rows, and names of columns.
        source = adapted_source(obj, unbatch=False, element_spec=declared)
        return source if isinstance(source, Table) else None
    return _source_of_tensors(obj, declared)


def _source_of_tensors(obj: Any, declared: Tree | None) -> Table | None:
    """Return the source of a series, a tensor of any library, or a dataset of tensors; None for any other object."""
    # Objects of other libraries may answer to any name.
    is_dataset = isinstance(inspect.getattr_static(obj, "tensors", None), tuple)
    if not is_dataset and not hasattr(type(obj), "__array__"):
        return None
    columns = columns_of(obj.tensors if is_dataset else (obj,))
    try:
        return None if columns is None else ArraySource(columns if is_dataset else columns[0], declared)
    except (InvalidTypeError, ElementError):
        # A series of objects that are no column is stored element by element.
        return None


def table_hashes(table: Table, most_nbytes: int = MOST_NBYTES) -> TableHashes:
    """Return a hash of each column of a table; of one of more bytes, of some of its rows."""
    spec, length = table.element_spec, table.length or 0
    rows: list[slice | Sequence[int]] = [
        slice(start, min(start + _ROWS_AT_ONCE, length)) for start in range(0, length, _ROWS_AT_ONCE)
    ]
    in_part = ""
    if table.nbytes > most_nbytes:
        most = min(length, _SAMPLED_ROWS)
        rows = [np.unique(np.linspace(0, length - 1, most).astype(np.int64)).tolist()]
        in_part = f"{most:,} of {length:,} rows"
    codec = codec_for(spec)
    names = [name or "elements" for name in names_of_leaves(spec)]
    checksums = [crc32c(str(spec_json.to_json(leaf)).encode()) for _, leaf in tree.leaves(spec)]
    for some in rows:
        try:
            columns = table.take(some).columns(codec)
        except ElementError as error:
            # What does not fit is an error, or left out, when it is built.
            checksums = [crc32c(str(error).encode(), checksum) for checksum in checksums]
            continue
        checksums = list(map(_extended, checksums, columns))
    hashes = (hashed(checksum.to_bytes(4, "little")) for checksum in checksums)
    return TableHashes(dict(zip(names, hashes, strict=True)), in_part)


def _extended(checksum: int, column: Column) -> int:
    """Return the checksum of a column, and of what is before it."""
    valid = None
    if column.nulls is not None and column.nulls.any():
        valid = ~column.nulls
        checksum = crc32c(valid, checksum)
    for part in column.parts:
        if isinstance(part, Flat):
            checksum = crc32c(part.values, crc32c(part.lengths, checksum))
        elif isinstance(part, np.ndarray):
            # Whatever a row holds that is None is no content.
            checksum = crc32c(part if valid is None else part[valid], checksum)
        else:
            for row in map(np.asarray, part):
                checksum = crc32c(row, crc32c(str(row.shape).encode(), checksum))
    return checksum
