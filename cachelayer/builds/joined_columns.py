"""Columns that are added to a version from a table with a key: each record finds its row by it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from cachelayer.builds.batches import Batch, EncodedBatch
from cachelayer.builds.element_specs import spec_of_batches
from cachelayer.builds.encode import Encoder
from cachelayer.builds.source import Source
from cachelayer.errors import ElementError, InvalidArgumentError
from cachelayer.records import tree
from cachelayer.records.codec import Codec, codec_for
from cachelayer.records.frames import Frames
from cachelayer.records.keys import KeyColumn, Keys, key_dtype, key_names, numbered, rows_by_number, shown_names
from cachelayer.records.leaf_names import leaf_number
from cachelayer.records.memory import Ints
from cachelayer.records.null_marks import marked
from cachelayer.records.record_buffers import PackedRecords
from cachelayer.records.tree import Tree
from cachelayer.user_warnings import warn


@dataclass(frozen=True)
class Join:
    """How the rows of a table are found for records.

    Args:
        on: the fields of the key.
        how: ``"inner"`` if each record must find a row, ``"left"`` if it may find none.
        fill: the values of columns where a record finds none, by name; None for those that are not named. Anything but
            a dict is the value of every column.
    """

    on: tuple[str, ...]
    how: Literal["inner", "left"] = "inner"
    fill: Any = None

    @classmethod
    def of(cls, on: Any, how: Any, fill: Any) -> Join | None:
        """Return the join that a user asks for; None for none.

        Raises:
            InvalidArgumentError, InvalidTypeError: if the arguments do not fit together.
        """
        if how not in ("inner", "left"):
            raise InvalidArgumentError(
                f"how={how!r}: pass 'inner' if each record must find a row of the table, 'left' if it may find none"
            )
        if on is None and (how == "left" or fill is not None):
            raise InvalidArgumentError("how= and fill= are for a table with a key: pass on=, the name of a field")
        if how == "inner" and fill is not None:
            raise InvalidArgumentError(f"fill={fill!r} is for records that find no row: pass how='left' too")
        return None if on is None else cls(key_names("on", on), how, fill)

    def filler(self, codec: Codec) -> PackedRow:
        """Return the row of records that find none, with None for its key.

        Args:
            codec: the codec of the rows.

        Raises:
            InvalidArgumentError: if a value is for no column that is added, or does not fit.
        """
        added = [name for name in codec.spec if name not in self.on]
        fill = self.fill if isinstance(self.fill, Mapping) else dict.fromkeys(added, self.fill)
        for name in fill:
            if name not in added:
                raise InvalidArgumentError(f"fill: {name!r} is no column that is added: these are {', '.join(added)}")
        row = {name: _nothing(child) if fill.get(name) is None else fill[name] for name, child in codec.spec.items()}
        try:
            columns = codec.columns([row])
        except ElementError as error:
            got = f"leaf {error.path}: expected {error.expected}, got {error.got}"
            raise InvalidArgumentError(f"fill: {got}") from error
        return codec.encode(columns, 1), codec.null_bits_in(columns)

    def rows(self, keys: Keys, table: Keys) -> Ints:
        """Return the row of each record, -1 for those that find none.

        Raises:
            InvalidArgumentError: if two rows have one key, or a record must find a row and has none.
        """
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
    return None if isinstance(spec, dict) else tree.map_structure(spec, lambda _path, _leaf: None)


PackedRow = tuple[Frames, frozenset[int]]
"""A row as a record, and the numbers of its null bits that are set."""


def columns_by_key(source: Source, declared: Tree | None, keys: Keys, join: Join) -> Source:
    """Return the rows of a table in the order of records, found by a key.

    Args:
        source: the table, which has the fields of the key among its columns.
        declared: what a user declares of its spec.
        keys: the key of each record.
        join: how rows are found.

    Raises:
        InvalidArgumentError: if two rows have one key, or a record must find a row and has none; it names the first.
    """
    spec, batches = source.element_spec, source.batches()
    if spec is None:
        spec, batches = spec_of_batches(batches, declared, as_json=source.as_json)
    if not isinstance(spec, dict) or any(name not in spec for name in join.on) or len(spec) == len(join.on):
        raise InvalidArgumentError(
            f"on={shown_names(join.on)}: pass a table with this key and columns to add, such as a frame, not "
            f"{'one without rows' if spec is None else tree.describe(spec)}"
        )
    encoder = Encoder(codec_for(spec), "raise")
    frames = Frames.joined(list(map(encoder.encode, batches)))
    nullable = encoder.result.nullable
    rows = join.rows(keys, _keys_of_table(frames, marked(spec, nullable), join.on))
    facts = {
        "on": list(join.on),
        "how": join.how,
        "without_row": int(np.count_nonzero(rows < 0)),
        "unused_rows": len(frames) - len(np.unique(rows[rows >= 0])),
    }
    if join.how == "left":
        filler, is_none = join.filler(codec_for(spec))
        if facts["without_row"]:
            rows = np.where(rows < 0, len(frames), rows)
            frames, nullable = Frames.joined([frames, filler]), nullable | is_none
    found, added = _added_columns(frames, codec_for(marked(spec, nullable)), rows, join.on)
    return Source(
        "columns",
        partial(_read_frames, found),
        element_spec=added,
        length=len(found),
        files=source.files,
        provenance={"join": facts},
    )


def _keys_of_table(frames: Frames, spec: Mapping[str, Tree], on: Sequence[str]) -> Keys:
    """Return the keys of a table whose rows are encoded."""
    records = PackedRecords(frames.buffer, frames.starts, frames.lengths)
    columns = {}
    for name in on:
        dtype = key_dtype("on", name, spec[name], "the table")
        own = codec_for(spec).chosen([leaf_number(spec, name)])
        columns[name] = KeyColumn.of(dtype, own.batch(own.decode(records))[name])
    return Keys("on", "the table", columns, np.arange(len(frames)))


def _added_columns(frames: Frames, codec: Codec, rows: Ints, on: Sequence[str]) -> tuple[Frames, Tree]:
    """Return some rows of a table, without the fields of its key, and their spec."""
    of_key = {leaf_number(codec.spec, name) for name in on}
    others = codec.chosen([leaf.number for leaf in codec.leaves if leaf.number not in of_key])
    columns = others.decode(PackedRecords(frames.buffer, frames.starts, frames.lengths)[rows])
    return codec_for(others.spec).encode(columns, len(rows)), others.spec


def _read_frames(frames: Frames, start: int, stop: int | None) -> Iterator[Batch]:
    yield EncodedBatch(frames[start:stop])
