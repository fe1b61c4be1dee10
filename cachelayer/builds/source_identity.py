"""The identity of a source: its length, and hashes of its columns, elements or files.

::

    files of this host            number, bytes, names, times of writing
    a ref                         the digest of its records
    a stream                      the same, its order and its steps; a recipe has its functions
    arrays, tensors, frames       a hash of each column; of more than 1 GiB, of 256 rows
    a list and the like           a hash of its elements
    anything else                 its length, if it has one

Nothing of the user is called or iterated, so an identity is known before a build, and when a version exists already.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cachelayer.builds.array_source import array_source, columns_of
from cachelayer.builds.as_source import adapted_source, told_by_adapter
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.source import Source
from cachelayer.builds.source_files import identity_of_files, local_files
from cachelayer.errors import CacheLayerError, ElementError, InvalidArgumentError, InvalidTypeError
from cachelayer.protocols import has_records, records_of
from cachelayer.provenance.stored_values import hashed, stored
from cachelayer.provenance.values import crc32c, hash_of
from cachelayer.records.codec import codec_for
from cachelayer.records.leaf_columns import Column, Columns, FlatRows
from cachelayer.specs import spec_json, tree
from cachelayer.specs.leaf_names import names_of_leaves
from cachelayer.specs.schema import Node
from cachelayer.specs.spec import EncodedSpec
from cachelayer.specs.tree import Tree
from cachelayer.streams.stream import Stream

MOST_NBYTES = 1 << 30
"""The most bytes of a source's table that are compared in full."""
_MOST_HELD_NBYTES = 1 << 26
"""The most bytes of a table that are compared in full if a function or object holds it."""
_ROWS_AT_ONCE = 1 << 16
_SAMPLED_ROWS = 256
ITEMS = (list, tuple, set, frozenset, range, deque, np.ndarray)
"""The types of sources whose elements are in memory."""


class Identity(NamedTuple):
    """The identity of a source: facts that are compared to tell whether it changed."""

    facts: Mapping[str, Any] = {}
    """The length, and hashes of columns, elements or files, as they are stored."""
    sampled_rows: str = ""
    """How many of the rows are hashed, in words; "" if all are."""
    unread: str = ""
    """Why the source could not be looked at; "" if it could."""

    @property
    def has_content(self) -> bool:
        """True if it tells more than the length."""
        return bool(self.facts.keys() - {"length"} or self.unread)

    @property
    def has_elements(self) -> bool:
        """True if it has hashes of the elements or of their columns."""
        return "elements" in self.facts or "columns" in self.facts


def identity_of_object(obj: Any, options: BuildOptions) -> Identity:
    """Return the identity of what a user passes."""
    try:
        facts = identity_of_files(local_files(obj))
    except CacheLayerError as error:
        return Identity(unread=str(error))
    if isinstance(obj, Stream):
        return Identity(_facts_of_stream(obj))
    if has_records(obj):
        records = records_of(obj)
        return Identity({**facts, "length": len(records), "records": records.origins.digests.elements})
    if options.unbatch:
        return Identity(facts)
    try:
        table = table_of(obj, options.element_spec)
    except (InvalidArgumentError, InvalidTypeError, ElementError) as error:
        # An object that cannot be stored is not what the version was built from: the error is its identity.
        return Identity({**facts, "columns": str(error), "elements": str(error)})
    if table is not None:
        identity = _identity_of_table(table, MOST_NBYTES)
        return identity._replace(facts={**facts, "length": table.length, **identity.facts})
    length = _length(obj)
    return Identity(facts | ({} if length is None else {"length": length}))


def _facts_of_stream(stream: Stream[Any]) -> dict[str, Any]:
    """Return the records, the order and the steps of a stream, as facts: with its functions, they decide its items."""
    facts = stream._reader.facts
    length = _length(stream)
    known = {} if length is None else {"length": length}
    # A spec may be a long text.
    return {**known, **facts, "elements": hashed(facts["elements"].encode())}


def identity_of_source(source: Source) -> Identity:
    """Return the identity of a source that a function has made, if its elements are in memory; else an empty one."""
    if source.nbytes is not None:
        # Columns of images may hold the names of files, which would all be read.
        has_files = any(isinstance(leaf, EncodedSpec) for _, leaf in tree.leaves(source.element_spec))
        return _identity_of_table(source, 0 if has_files else MOST_NBYTES)
    if type(source.items) not in ITEMS:
        return Identity()
    return Identity({"elements": stored(hash_of(source.items, look))})


def _identity_of_table(table: Source, most_nbytes: int) -> Identity:
    columns, sampled_rows = table_hashes(table, most_nbytes)
    if "elements" in columns:
        return Identity(stored(columns), sampled_rows)
    named = {f"column {name}": hash_of_column for name, hash_of_column in columns.items()}
    return Identity({"columns": [*columns], **stored(named)}, sampled_rows)


def look(value: Any) -> tuple[Any, str] | None:
    """Return what an object of a library holds that code or a source has, and how many of its rows were read.

    Adapters say it of the objects of their libraries; tables and series have hashes of their columns besides.
    """
    told = told_by_adapter(value)
    if hasattr(type(value), "to_frame"):
        value = value.to_frame(name="values")
    try:
        table = None if isinstance(value, (np.ndarray, Mapping)) else table_of(value)
    except CacheLayerError:
        return None if told is None else ((told, np.asarray(value, object)), "")
    if table is None:
        return None if told is None else (told, "")
    columns, sampled_rows = table_hashes(table, _MOST_HELD_NBYTES)
    return (told, columns), sampled_rows


def _length(obj: Any) -> int | None:
    try:
        return None if isinstance(obj, Mapping) else len(obj)
    except Exception:  # noqa: BLE001
        # ``len`` runs code of the user, which may raise anything.
        return None


def table_of(obj: Any, declared: Tree | None = None) -> Source | None:
    """Return the source of the rows of arrays, tensors, a frame or a series in memory; None for any other object."""
    if isinstance(obj, tuple) and declared is not None and not isinstance(declared, tuple):
        return None
    try:
        # Under the spec of the object itself: a declared spec may say that texts are names of images, which would be
        # read.
        return _table_of(obj, None)
    except (InvalidArgumentError, InvalidTypeError, ElementError):
        if declared is None:
            raise
        return _table_of(obj, declared)


def _table_of(obj: Any, declared: Tree | None) -> Source | None:
    columns = columns_of(obj)
    if columns is not None:
        return array_source(columns, declared)
    if hasattr(type(obj), "__len__") and (hasattr(type(obj), "columns") or hasattr(type(obj), "column_names")):
        # Frames and tables of every library have a length and names of columns.
        source = adapted_source(obj, unbatch=False, element_spec=declared)
        return source if isinstance(source, Source) and source.nbytes is not None else None
    return _table_of_tensors(obj, declared)


def _table_of_tensors(obj: Any, declared: Tree | None) -> Source | None:
    """Return the source of a series, a tensor of any library, or a dataset of tensors; None for any other object."""
    # Without asking the object: some objects of libraries answer to any name.
    is_dataset = isinstance(inspect.getattr_static(obj, "tensors", None), tuple)
    if not is_dataset and not hasattr(type(obj), "__array__"):
        return None
    columns = columns_of(obj.tensors if is_dataset else (obj,))
    if columns is None:
        return None
    try:
        return array_source(columns if is_dataset else columns[0], declared)
    except (InvalidTypeError, ElementError):
        # A series of objects that are no column is stored element by element.
        return None


def table_hashes(table: Source, most_nbytes: int) -> tuple[dict[str, str], str]:
    """Return a hash of each column of a table.

    Returns the hashes by the names of columns, or by "elements" if the elements are no dicts; and how many of the rows
    are hashed, in words, or "" if all are: 256 of a table of more than ``most_nbytes``.
    """
    spec = table.element_spec
    length = table.length or 0
    assert table.take is not None  # noqa: S101 - rows in memory are taken
    rows: list[Sequence[int]] = [
        range(length)[start : start + _ROWS_AT_ONCE] for start in range(0, length, _ROWS_AT_ONCE)
    ]
    sampled = ""
    if (table.nbytes or 0) > most_nbytes:
        most = min(length, _SAMPLED_ROWS)
        rows = [np.unique(np.linspace(0, length - 1, most).astype(np.int64)).tolist()]
        sampled = f"{most:,} of {length:,} rows"
    codec = codec_for(spec)
    names = [name or "elements" for name in names_of_leaves(spec)]
    checksums = [crc32c(str(spec_json.to_json(leaf)).encode()) for _, leaf in tree.leaves(spec)]
    for some in rows:
        try:
            columns = table.take(some).columns(codec)
        except ElementError as error:
            # An element that does not fit is an error, or is left out, when it is built. Here its error is hashed.
            checksums = [crc32c(str(error).encode(), checksum) for checksum in checksums]
            continue
        checksums = [
            _extended(checksum, column, _nulls_of(leaf, columns))
            for checksum, column, leaf in zip(checksums, columns.leaves, codec.schema.leaves, strict=True)
        ]
    hashes = (hashed(checksum.to_bytes(4, "little")) for checksum in checksums)
    return dict(zip(names, hashes, strict=True)), sampled


def _nulls_of(leaf: Node, columns: Columns) -> NDArray[np.uint8] | None:
    """Return what is None in each row: nothing, 0; the leaf, 1; or a dict around it, 3 of the outermost, 4, ..."""
    nulls = np.zeros(columns.rows, np.uint8)
    # The outermost comes last, so that its number stays.
    for number, path in [(1, leaf.path), *reversed([*enumerate(leaf.lineage[:-1], 3)])]:
        if path in columns.nulls:
            nulls[columns.nulls[path]] = number
    return nulls if nulls.any() else None


def _extended(checksum: int, column: Column, nulls: NDArray[np.uint8] | None) -> int:
    """Return the checksum of a column and of what came before it, which has the checksum ``checksum``."""
    valid = None
    if nulls is not None:
        valid = nulls == 0
        checksum = crc32c(nulls, checksum)
    for part in (*column.parts, *([] if column.null_values is None else [column.null_values])):
        if isinstance(part, FlatRows):
            checksum = crc32c(part.values, crc32c(part.lengths, checksum))
        elif isinstance(part, np.ndarray):
            # A row that is None has any value in its place, which is no content.
            checksum = crc32c(part if valid is None else part[valid], checksum)
        else:
            for row in map(np.asarray, part):
                checksum = crc32c(row, crc32c(str(row.shape).encode(), checksum))
    return checksum
