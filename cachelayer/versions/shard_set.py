"""Sets of shards: the records of a version, or a group of columns that were added to it.

::

    record    rows (shards)              columns (a .npy file)    columns (shards)
    0         {"text": ..., "id": 0}     {"score": 0.5}           {"tokens": [3, 1]}
    1         {"text": ..., "id": 1}     {"score": 0.1}           {"tokens": [4]}

Row i of a group of columns belongs to record i of the shards. A group whose leaves all have a fixed size is one
``.npy`` file, whose rows are records as the codec writes them; any other group is shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cachelayer.errors import FormatError
from cachelayer.records.codec import TYPED, Codec, codec_named
from cachelayer.specs import spec_json, tree
from cachelayer.specs.leaf_names import has_length
from cachelayer.specs.tree import Tree
from cachelayer.support import json_values
from cachelayer.support.locks import cached_property
from cachelayer.versions.shard_table import ShardFile, ShardTable

if TYPE_CHECKING:
    from cachelayer.versions.column_file import ColumnFile

MOST_GROUPS = 16
"""The most groups of columns of a version: each group costs a read."""
_MEMBERS = "codec", "element_spec", "shards", "array"


@dataclass(frozen=True)
class ShardSet:
    """Records, or a group of columns, that were built together."""

    codec: str
    """The name of the codec of the records."""
    spec: Any
    """The spec of an element, as JSON values."""
    shards: ShardTable
    """The shards, in the order of their records; empty if there is an array."""
    array: ColumnFile | None = None
    """The file of a group of columns that all have a fixed size; None for shards."""

    @classmethod
    def of(cls, codec: str, element_spec: Tree, shards: ShardTable, array: ColumnFile | None = None) -> ShardSet:
        return cls(codec, spec_json.to_json(element_spec), shards, array)

    def with_spec(self, element_spec: Tree) -> ShardSet:
        return replace(self, spec=spec_json.to_json(element_spec))

    @cached_property
    def element_spec(self) -> Tree:
        """The spec of an element; for a group of columns, a dict of the columns. Opening a version does not need it."""
        spec = spec_json.from_json(self.spec)
        if self.array is None:
            leaves = sum(has_length(leaf) for _, leaf in tree.leaves(spec))
            if len(self.shards) and leaves != self.shards.length_leaves:
                raise FormatError(f"lengths of {self.shards.length_leaves} leaves are stored, and {leaves} leaves vary")
        elif layout_nbytes(spec) != self.array.record_nbytes:
            raise FormatError(f"rows of {self.array.record_nbytes} bytes are not those of the columns {spec}")
        return spec

    def codec_of(self, name: str) -> Codec:
        """Return the codec of the records; errors have the name of the version."""
        with json_values.decoding(name, "element spec"):
            return codec_named(self.codec, self.element_spec)

    @cached_property
    def records(self) -> int:
        return int(self.shards.records.sum()) if self.array is None else self.array.records

    @property
    def nbytes(self) -> int:
        """Bytes of the shards, without indices, or of the array."""
        return self.shards.nbytes if self.array is None else self.array.nbytes

    @property
    def files(self) -> list[ShardFile | ColumnFile]:
        """The shards, or the column file."""
        return list(self.shards) if self.array is None else [self.array]

    @property
    def identity(self) -> dict[str, Any]:
        """The facts that decide the digest, as JSON values: a new dict."""
        return {
            "codec": self.codec,
            "element_spec": self.spec,
            "records": self.shards.records.tolist() if self.array is None else [self.array.records],
            "sha256": self.shards.sha256 if self.array is None else [self.array.sha256],
        }

    def with_files(self, files: Sequence[Any]) -> ShardSet:
        """Return the same records in other files, in the order of :attr:`files`."""
        if self.array is None:
            return replace(self, shards=ShardTable(files))
        return replace(self, array=files[0])

    def to_json(self) -> dict[str, Any]:
        return {
            "codec": self.codec,
            "element_spec": self.spec,
            "shards": self.shards.to_json(),
            "array": None if self.array is None else json_values.encoded(self.array),
        }

    @classmethod
    def from_json(cls, document: Any) -> ShardSet:
        """Return the set that :meth:`to_json` wrote; raise for values that it cannot have written."""
        facts = json_values.mapping("rows or columns", document)
        json_values.check_members("rows or columns", facts, _MEMBERS)
        stored = cls(
            json_values.text("codec", facts["codec"]),
            json_values.mapping("element_spec", json_values.shallow("element_spec", facts["element_spec"])),
            ShardTable.from_json(facts["shards"]),
        )
        if facts["array"] is None:
            return stored
        from cachelayer.versions.column_file import ColumnFile

        array = json_values.decoded(ColumnFile, "array", facts["array"])
        array.check()
        if len(stored.shards):
            raise ValueError("columns are stored twice")
        return replace(stored, array=array)


def layout_nbytes(spec: Tree) -> int | None:
    """Return the bytes of a row of columns; None if they vary."""
    codec = codec_named(TYPED, spec)
    varies = codec.layout.varying_count or codec.with_null_values
    return None if varies or not codec.layout.fixed_nbytes else codec.layout.fixed_nbytes


def merged_spec(specs: Sequence[Tree]) -> Tree:
    """Return the spec of elements with the keys of several dicts; a later dict replaces equal keys."""
    merged: dict[str, Tree] = {}
    for spec in specs:
        for key in spec:
            # A key that is replaced moves to the end, where its new leaves are.
            merged.pop(key, None)
        merged |= spec
    return merged
