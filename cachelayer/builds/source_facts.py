"""Facts about an object that is passed as a source, found without calling or iterating it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from cachelayer.builds.array_source import ArraySource, columns_of
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.compare_source import SourceChecksums, by_first_record, spread, stored_checksums
from cachelayer.builds.iterable_source import SequenceSource
from cachelayer.builds.source import Source, Table, adapted_source
from cachelayer.builds.write_shards import Built
from cachelayer.errors import CacheLayerError, ElementError, InvalidArgumentError, InvalidTypeError
from cachelayer.objects.store import ObjectStore
from cachelayer.records import spec_json, tree
from cachelayer.records.infer import declares_part
from cachelayer.records.tree import Tree

_BETWEEN = 62
"""The number of records, between the first and the last, that are compared with a source that is passed again."""
_BETWEEN_OF_TABLES = 254
"""The same for tables, whose rows cost little and run none of the user's code."""


@dataclass(frozen=True)
class SourceFacts:
    """Facts about an object that is passed as a source.

    Args:
        length: its ``len``, or the number of rows of its arrays; None if it has neither.
        source: its source, if that can begin at any record, as arrays, tables and sequences can.
        refusal: why it cannot be stored, if it cannot.
    """

    length: int | None
    source: Source | None = None
    refusal: str = ""

    @classmethod
    def of(cls, obj: Any, options: BuildOptions) -> SourceFacts:
        length = None if isinstance(obj, Mapping) else _length(obj)
        try:
            source = None if options.unbatch else _seekable(obj, options.element_spec)
        except CacheLayerError as error:
            return cls(length, refusal=str(error))
        return cls(source.length if isinstance(source, ArraySource) else length, source)

    def recorded(
        self, store: ObjectStore, dataset_id: str, source: Source, built: Built, options: BuildOptions
    ) -> dict[str, Any]:
        """Return what a version records of the object: options that decide its records, length, and some checksums."""
        found: dict[str, Any] = {"options": deciding_options(options)}
        if self.length is not None:
            found["length"] = self.length
        count = sum(shard.stats.records for shard in built.shards)
        # An adapter may have converted the elements of the source that was built.
        is_same = self.source is not None and type(source) is type(self.source)
        if is_same and not built.left_out.count and count == options.expected(self.length):
            shards = by_first_record(built.shards)
            begins = list(shards)
            numbers = spread(count, self._between)
            found_in = [begins[bisect_right(begins, number) - 1] for number in numbers]
            places = [(shards[begin], number - begin) for begin, number in zip(found_in, numbers, strict=True)]
            found["sample"] = stored_checksums(store, dataset_id, places)
        return found

    @property
    def _between(self) -> int:
        return _BETWEEN if isinstance(self.source, SequenceSource) else _BETWEEN_OF_TABLES

    def changes(self, built: Mapping[str, Any], spec: Tree, options: BuildOptions) -> list[str]:
        """Return a phrase for each difference from what a version recorded; unknown facts count as equal."""
        length, sample = built.get("length"), built.get("sample")
        if None not in (length, self.length) and length != self.length:
            return [f"the source had {length} elements and has {self.length}"]
        if self.refusal:
            return [f"the source cannot be stored as it is now: {self.refusal}"]
        if self.source is None or sample is None or option_changes(built, spec, options):
            return []
        numbers = spread(options.expected(self.length) or 0, self._between)
        try:
            own = None if options.element_spec is not None else self.source.element_spec
            if own is not None and not _is_alike(own, spec):
                return ["the dtypes, shapes or names of the columns changed"]
            checksums = SourceChecksums(self.source, spec).checksums(numbers)
            changed = (number for number, now, before in zip(numbers, checksums, sample, strict=False) if now != before)
            return [f"record {number} of the source changed" for number in islice(changed, 1)]
        except (InvalidArgumentError, InvalidTypeError, ElementError) as error:
            return [f"the source cannot be stored like this version: {error}"]


def deciding_options(options: BuildOptions) -> dict[str, Any]:
    """Return the options that decide which records a version has, as JSON."""
    spec = options.element_spec
    return {
        "element_spec": None if spec is None else spec_json.to_json(spec),
        "max_records": options.max_records,
        "unbatch": options.unbatch,
        "on_error": options.on_error,
    }


def option_changes(built: Mapping[str, Any], spec: Tree, options: BuildOptions) -> list[str]:
    """Return a phrase for each option that decides the records and differs from what a version recorded."""
    before, now = built.get("options", {}), deciding_options(options)
    changed = {name for name in now.keys() & before.keys() if now[name] != before[name]}
    declared = [each["element_spec"] for each in (before, now) if each.get("element_spec") is not None]
    # Declared specs count as equal if each says a part of the version's.
    if len(declared) == 2 and all(declares_part(spec_json.from_json(each), spec) for each in declared):
        changed.discard("element_spec")
    return [
        f"{name} was {before[name]!r} and is {now[name]!r}" if name != "element_spec" else "element_spec changed"
        for name in now
        if name in changed
    ]


def _is_alike(own: Tree, spec: Tree) -> bool:
    """Return whether the spec of a source is a version's spec, in which nulls may have been found."""
    return len(tree.leaves(own)) == len(tree.leaves(spec)) and declares_part(own, spec)


def _length(obj: Any) -> int | None:
    try:
        return len(obj)
    except Exception:  # noqa: BLE001
        # The user's code may raise anything; then the length is unknown.
        return None


def _seekable(obj: Any, declared: Tree | None) -> Source | None:
    """Return the source of an object that can begin at any record; None for any other object."""
    is_element = isinstance(obj, tuple) and declared is not None and not isinstance(declared, tuple)
    columns = None if is_element else columns_of(obj)
    if columns is not None:
        return ArraySource(columns, declared)
    if hasattr(type(obj), "__len__") and (hasattr(type(obj), "columns") or hasattr(type(obj), "column_names")):
        # Tables and frames of every library have rows, and names of columns.
        table = adapted_source(obj, unbatch=False, element_spec=declared)
        return table if isinstance(table, Table) else None
    if isinstance(obj, (Sequence, np.ndarray)) and not isinstance(obj, (str, bytes, bytearray)):
        return SequenceSource(obj)
    return None
