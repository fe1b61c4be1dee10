"""Sources of columns that are added to a version: what a function makes of its records, or the rows of a table.

The row of a record is the one that has the record's key::

    records     user: 7 9 7          table    user: 8 7      columns that are added      age: 30 None 30
                                              age: 40 30     (how="left")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from cachelayer.builds.batches import Batch, EncodedBatch, RowBatch, batch_records
from cachelayer.builds.element_batches import errors_named, failure_at
from cachelayer.builds.element_specs import spec_of_batches
from cachelayer.builds.encode import Encoder
from cachelayer.builds.source import Source, source_of_items
from cachelayer.errors import ElementError, InvalidArgumentError, InvalidTypeError, SourceError
from cachelayer.protocols import HasRecords, records_of
from cachelayer.records.codec import Codec, codec_for
from cachelayer.records.frames import Frames
from cachelayer.records.keys import KeyColumn, Keys, key_leaf, numbered, rows_by_number, shown_names
from cachelayer.specs import tree
from cachelayer.specs.leaf_names import leaf_number, one_or_several
from cachelayer.specs.tree import Tree
from cachelayer.support.arguments import refuse_other_index
from cachelayer.support.memory import Ints
from cachelayer.support.user_warnings import warn


def columns_of_function(ref: HasRecords[Any], function: Callable[[Any], Any], *, batched: bool) -> Source:
    """Return the source of the columns that a function makes of the records of a version.

    With ``batched``, the function takes a batch, whose leaves are stacked on a leading axis, and returns columns with
    it.
    """
    facts = {"of": records_of(ref).origins.digests.elements, "batched": batched}
    if not batched:
        at_once = batch_records(records_of(ref).info.read_nbytes)
        source = source_of_items(ref, fetch=partial(_columns_of, ref, function), at_once=at_once)
        return replace(source, kind="columns", plan=facts)
    read = partial(_read, ref, function)
    length = len(records_of(ref))
    return Source("columns", read, length=length, starts=range(length), items=ref, plan=facts)


def _ranges(ref: HasRecords[Any], start: int, stop: int) -> Iterator[Ints]:
    """Yield the record numbers ``start`` to ``stop``, as many at a time as are read at once."""
    size = batch_records(records_of(ref).info.read_nbytes)
    for first in range(start, stop, size):
        yield np.arange(first, min(first + size, stop))


def _columns_of(ref: Any, function: Callable[[Any], Any], numbers: Sequence[int]) -> Iterator[Any]:
    for number, element in zip(numbers, ref.__getitems__(np.asarray(numbers)), strict=True):
        yield _checked(number, function(element))


def _read(ref: HasRecords[Any], function: Callable[[Any], Any], start: int, stop: int | None) -> Iterator[Batch]:
    dataset = records_of(ref)
    for numbers in _ranges(ref, start, len(dataset) if stop is None else min(len(dataset), stop)):
        first = int(numbers[0])
        with errors_named(failure_at(first)):
            columns = _checked(first, function(dataset.batch(numbers)))
        batch = _with_string_arrays(columns, "")
        for path, leaf in tree.leaf_values(batch):
            _check_rows(path, leaf, len(numbers))
        yield RowBatch(batch, len(numbers))


def _checked(number: int, columns: Any) -> Any:
    """Return what the function returned for a record, or for a batch that begins there, if it is a dict."""
    if not isinstance(columns, dict) or not columns:
        raise InvalidTypeError(
            f"columns: the function returned {tree.describe(columns)} for record {number}: return a dict, such as "
            "{'score': 0.5}"
        )
    return columns


def _with_string_arrays(value: Any, path: str) -> Any:
    """Return the columns of a batch, with arrays in the places of lists of nothing but str, or nothing but bytes."""
    if isinstance(value, Mapping):
        return {key: _with_string_arrays(child, f"{path}[{key!r}]") for key, child in value.items()}
    if not isinstance(value, list):
        refuse_other_index(f"columns{path}", value)
        return value
    if value and {type(item) for item in value} in ({str}, {bytes}):
        return np.fromiter(value, object, len(value))
    raise InvalidTypeError(
        f"columns: the function returned a list for {path}: return an array with a row for each record, such as "
        "np.asarray(...), or, if rows differ in length, a cachelayer.Ragged(values, row_splits)"
    )


def _check_rows(path: str, leaf: Any, rows: int) -> None:
    """Raise unless a leaf of the columns of a batch has a row for each record."""
    if isinstance(leaf, (str, bytes)) or not hasattr(leaf, "__len__") or getattr(leaf, "shape", None) == ():
        raise InvalidTypeError(
            f"columns: the function returned {tree.describe(leaf)} for {path}: with batched=True it takes a batch, and "
            f"returns columns with a row for each of its {rows} records"
        )
    if len(leaf) != rows:
        raise SourceError(f"the function returned {len(leaf)} rows of {path} for {rows} records")


@dataclass(frozen=True)
class Join:
    """A join: the key by which records find their rows in a table, and the values of records that find none."""

    on: tuple[str, ...]
    """The fields of the key."""
    how: Literal["inner", "left"] = "inner"
    """``"inner"`` if each record must find a row, ``"left"`` if it may find none."""
    fill: Any = None
    """The values of the columns of a record that finds no row, by name: None for a column that is not named. Anything
    but a dict is the value of every column."""

    @classmethod
    def of(cls, on: Any, how: Any, fill: Any) -> Join | None:
        """Check the arguments of a user, and return the join; None if ``on`` is None."""
        if how not in ("inner", "left"):
            raise InvalidArgumentError(
                f"how={how!r}: pass 'inner' if each record must find a row of the table, 'left' if it may find none"
            )
        if on is None and (how == "left" or fill is not None):
            raise InvalidArgumentError("how= and fill= are for a table with a key: pass on=, the name of a field")
        if how == "inner" and fill is not None:
            raise InvalidArgumentError(f"fill={fill!r} is for records that find no row: pass how='left' too")
        return None if on is None else cls(one_or_several("on", on), how, fill)

    def filler(self, codec: Codec) -> PackedRow:
        """Return the row of a record that finds none in the table. Its values are in ``fill``, and its key is None."""
        added = [name for name in codec.spec if name not in self.on]
        fill = self.fill if isinstance(self.fill, Mapping) else dict.fromkeys(added, self.fill)
        for name in fill:
            if name not in added:
                raise InvalidArgumentError(f"fill: {name!r} is no column that is added: these are {', '.join(added)}")
        row = {}
        for name, child in codec.spec.items():
            row[name] = _nothing(child) if fill.get(name) is None else fill[name]
        try:
            columns = codec.columns([row])
        except ElementError as error:
            got = f"leaf {error.path}: expected {error.expected}, got {error.got}"
            raise InvalidArgumentError(f"fill: {got}") from error
        return codec.encode(columns), codec.null_bits_in(columns)

    def rows(self, keys: Keys, table: Keys) -> Ints:
        """Return the number of the row of each record, -1 if it finds none."""
        wanted, known = numbered(keys, table)
        row_of = rows_by_number(table, known, max(wanted.max(initial=0), known.max(initial=0)) + 1)
        rows = row_of[wanted]
        missing = np.flatnonzero(rows < 0)
        if len(missing) and self.how == "inner":
            first = int(missing[0])
            raise InvalidArgumentError(
                f"on={shown_names(self.on)}: {len(missing)} of {len(keys)} records have no row in the table, such as "
                f"record {first}, whose key is {keys.value(first)!r}. All records stay: pass how='left' for None in "
                "their columns, with fill={...} for other values; or derive a version without them first"
            )
        if len(missing) == len(rows) > 0:
            warn(f"on={shown_names(self.on)}: none of the {len(rows)} records has a row in the table: compare the keys")
        return rows


def _nothing(spec: Tree) -> Any:
    """Return None for a leaf or a dict, and a structure of Nones for tuples and lists."""
    return None if isinstance(spec, dict) else tree.map_structure(spec, lambda _path, _leaf: None)


PackedRow = tuple[Frames, frozenset[int]]
"""A row as a record, and the numbers of its null bits that are set."""


def columns_by_key(source: Source, declared: Tree | None, keys: Keys, join: Join) -> Source:
    """Return the source of the columns that are added: for each record, in order, the row that has its key."""
    spec = source.element_spec
    batches = source.batches()
    if spec is None:
        spec, batches = spec_of_batches(batches, declared, as_json=source.as_json)
    if not isinstance(spec, dict) or any(name not in spec for name in join.on) or len(spec) == len(join.on):
        raise InvalidArgumentError(
            f"on={shown_names(join.on)}: pass a table with this key and columns to add, such as a frame, not "
            f"{'one without rows' if spec is None else tree.describe(spec)}"
        )
    codec = codec_for(spec)
    encoder = Encoder(codec, place=source.place)
    frames = Frames.joined(list(map(encoder.encode, batches)))
    nullable = encoder.result.nullable
    rows = join.rows(keys, _keys_of_table(frames, codec.schema.marked(nullable), join.on))
    facts = {
        "on": list(join.on),
        "how": join.how,
        "without_row": int(np.count_nonzero(rows < 0)),
        "unused_rows": len(frames) - len(np.unique(rows[rows >= 0])),
    }
    if join.how == "left":
        filler, is_none = join.filler(codec)
        if facts["without_row"]:
            # The filler becomes one more row at the end of the table.
            rows = np.where(rows < 0, len(frames), rows)
            frames = Frames.joined([frames, filler])
            nullable = nullable | is_none
    codec = codec_for(codec.schema.marked(nullable))
    of_key = {leaf_number(codec.spec, name) for name in join.on}
    added = codec.chosen([leaf.node.number for leaf in codec.leaves if leaf.node.number not in of_key])
    return Source(
        "columns",
        partial(_read_rows, frames, added, rows),
        element_spec=added.spec,
        length=len(rows),
        files=source.files,
        files_now=source.files_now,
        provenance={"join": facts},
    )


def _keys_of_table(frames: Frames, spec: Mapping[str, Tree], on: Sequence[str]) -> Keys:
    """Return the keys of a table whose rows are encoded."""
    records = frames.records()
    columns = {}
    for name in on:
        leaf = key_leaf("on", name, spec[name], "the table")
        own = codec_for(spec).chosen([leaf_number(spec, name)])
        columns[name] = KeyColumn.of(leaf, own.batch(own.decode(records))[name])
    return Keys("on", "the table", columns, np.arange(len(frames)))


def _read_rows(frames: Frames, added: Codec, rows: Ints, start: int, stop: int | None) -> Iterator[Batch]:
    """Yield the columns that ``added`` decodes of the rows of a table that records find, some MiB at a time."""
    codec = codec_for(added.spec)
    records = frames.records()
    rows = rows[start:stop]
    size = batch_records(len(frames.buffer) / max(1, len(frames)), max(1, len(rows)))
    for first in range(0, len(rows), size):
        some = rows[first : first + size]
        yield EncodedBatch(codec.encode(added.decode(records[some])), added.spec)
