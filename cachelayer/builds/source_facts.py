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
from cachelayer.builds.build_shards import Built
from cachelayer.builds.compare_source import SourceChecksums, by_first_record, spread, stored_checksums
from cachelayer.builds.iterable_source import SequenceSource
from cachelayer.builds.source import Source, Table, adapted_source
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
        refusal: why it cannot be stored, if it is a table that cannot.
    """

    length: int | None
    source: Source | None
    refusal: str = ""

    @classmethod
    def of(cls, obj: Any, options: BuildOptions) -> SourceFacts:
        if options.unbatch:
            return cls(None if isinstance(obj, Mapping) else _length(obj), None)
        arrays = _arrays(obj, options.element_spec)
        if arrays is not None:
            return cls(arrays.length, arrays)
        if _is_table(obj):
            try:
                table = adapted_source(obj, unbatch=False, element_spec=options.element_spec)
            except CacheLayerError as error:
                return cls(_length(obj), None, str(error))
            return cls(_length(obj), table if isinstance(table, Table) else None)
        if isinstance(obj, (Sequence, np.ndarray)) and not isinstance(obj, (str, bytes, bytearray)):
            items = _items(obj)
            return cls(None if items is None else items.length, items)
        return cls(None if isinstance(obj, Mapping) else _length(obj), None)

    def recorded(
        self, store: ObjectStore, dataset_id: str, source: Source, built: Built, options: BuildOptions
    ) -> dict[str, Any]:
        """Return what a version records of the object: options that decide its records, length, and some checksums.

        Args:
            store, dataset_id: where the version is.
            source: the source that the object was built as; an adapter may have converted its elements.
            built: the result of the build.
            options: how it was built.
        """
        length = {} if self.length is None else {"length": self.length}
        sample = self._sample(store, dataset_id, built, options) if type(source) is type(self.source) else {}
        return {"options": deciding_options(options), **length, **sample}

    def _sample(self, store: ObjectStore, dataset_id: str, built: Built, options: BuildOptions) -> dict[str, Any]:
        """Return the CRC32Cs of some stored records, if the source can make these records again."""
        count = sum(shard.stats.records for shard in built.shards)
        if self.source is None or built.left_out.count or count != options.expected(self.length):
            return {}
        begins = by_first_record(shard for shard in built.shards if shard.stats.records)
        firsts = list(begins)
        found = [(firsts[bisect_right(firsts, number) - 1], number) for number in spread(count, self._between)]
        places = [(begins[begin], number - begin) for begin, number in found]
        return {"sample": list(stored_checksums(store, dataset_id, places))}

    @property
    def _between(self) -> int:
        return _BETWEEN if isinstance(self.source, SequenceSource) else _BETWEEN_OF_TABLES

    def changes(self, built: Mapping[str, Any], spec: Tree, options: BuildOptions) -> list[str]:
        """Return a phrase for each difference from what a version recorded; unknown facts count as equal.

        Args:
            built: what was recorded.
            spec: the element spec of the version.
            options: how it would be built.
        """
        before = built.get("length")
        if None not in (before, self.length) and before != self.length:
            return [f"the source had {before} elements and has {self.length}"]
        if self.refusal:
            return [f"the source cannot be stored as it is now: {self.refusal}"]
        sample = built.get("sample")
        if self.source is None or not isinstance(sample, list) or option_changes(built, spec, options):
            return []
        try:
            own = None if options.element_spec is not None else self.source.element_spec
        except (InvalidArgumentError, InvalidTypeError, ElementError) as error:
            return [f"the source cannot be stored as it is now: {error}"]
        if own is not None and not _is_alike(own, spec):
            return ["the dtypes, shapes or names of the columns changed"]
        numbers = spread(options.expected(self.length) or 0, self._between)
        checksums = SourceChecksums(self.source, spec).checksums(numbers)
        changed = (number for number, now, stored in zip(numbers, checksums, sample, strict=False) if now != stored)
        return [f"record {number} of the source changed" for number in islice(changed, 1)]


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
    """Return a phrase for each option that decides the records and differs from what a version recorded.

    Two declared specs count as equal if each says a part of the version's.

    Args:
        built: what was recorded.
        spec: the element spec of the version.
        options: how it would be built.
    """
    before = built.get("options")
    if not isinstance(before, Mapping):
        return []
    return [
        f"{name} was {before[name]!r} and is {now!r}" if name != "element_spec" else "element_spec changed"
        for name, now in deciding_options(options).items()
        if name in before and before[name] != now
        if name != "element_spec" or not _both_declare(spec, before[name], now)
    ]


def _both_declare(spec: Tree, *declared: Any) -> bool:
    """Return whether each of some declared specs, as JSON, says a part of a version's spec."""
    try:
        return all(each is not None and declares_part(spec_json.from_json(each), spec) for each in declared)
    except CacheLayerError:
        # Another release wrote it.
        return False


def _is_alike(own: Tree, spec: Tree) -> bool:
    """Return whether the spec of a source is a version's spec, in which nulls may have been found."""
    one, other = (
        spec_json.to_json(tree.map_structure(each, lambda _, leaf: leaf and leaf.as_nullable())) for each in (own, spec)
    )
    return bool(one == other) and declares_part(own, spec)


def _is_table(obj: Any) -> bool:
    """Return whether an object has rows and named columns, as tables and frames of every library have."""
    has_columns = hasattr(type(obj), "columns") or hasattr(type(obj), "column_names")
    return has_columns and hasattr(type(obj), "__len__")


def _length(obj: Any) -> int | None:
    try:
        return len(obj)
    except Exception:  # noqa: BLE001
        # The user's code may raise anything; then the length is unknown.
        return None


def _arrays(obj: Any, declared: Tree | None) -> ArraySource | None:
    if isinstance(obj, tuple) and declared is not None and not isinstance(declared, tuple):
        return None
    try:
        columns = columns_of(obj)
        return None if columns is None else ArraySource(columns, declared)
    except CacheLayerError:
        # Their lengths differ, or no element has their dtype: no version can have been built from them.
        return None


def _items(obj: Any) -> SequenceSource | None:
    try:
        return SequenceSource(obj)
    except CacheLayerError:
        return None
