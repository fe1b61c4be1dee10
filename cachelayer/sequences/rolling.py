"""Windows of consecutive records of a series: each record stays whole, and windows never reach into another series."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from cachelayer.datasets.dataset import BaseDataset
from cachelayer.datasets.dataset_view import DatasetView
from cachelayer.datasets.origins import derived_digest, digests_of_rows, origins_of_rows
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.protocols import Digests, Held, Info, Needed, Origins, Sources
from cachelayer.records.codec import Codec, codec_for
from cachelayer.sequences.documents import checked_length
from cachelayer.sequences.record_groups import RecordGroups
from cachelayer.specs import tree
from cachelayer.specs.leaf_names import one_or_several
from cachelayer.specs.schema import Schema
from cachelayer.specs.spec import ArraySpec, JsonSpec, LeafSpec, RaggedSpec, SparseSpec, VideoSpec
from cachelayer.specs.tree import Tree
from cachelayer.specs.values import Ragged
from cachelayer.support.locks import cached_property
from cachelayer.support.memory import Ints, distinct, splits_of

_LENGTHS_TOGETHER = 4
"""A block has windows over at least so many times their length."""


@dataclass(frozen=True, eq=False)
class SeriesWindows(BaseDataset):
    """The windows over the series of a view: an element is a batch of consecutive records of one series.

    Window i of a series begins at its record ``i * stride``. The windows of a series follow one another.
    """

    groups: RecordGroups
    """The series, with their records in order."""
    length: int
    """The number of records of a window."""
    stride: int
    """The number of records from the start of a window to the start of the next."""

    def __post_init__(self) -> None:
        # Making the spec refuses fields that do not stack, now and not when a window is read.
        _ = self.element_spec

    @property
    def records(self) -> DatasetView:
        return self.groups.records

    @property
    def _parameters(self) -> dict[str, Any]:
        groups = self.groups
        return {
            "by": list(groups.by),
            "order": groups.order,
            "length": self.length,
            "stride": self.stride,
            **groups.gap_parameter,
        }

    @cached_property
    def _digests(self) -> Digests:
        elements = self.records.origins.digests.elements
        return digests_of_rows(elements, self.groups.digest, "rolling", self._parameters, {})

    @property
    def origins(self) -> Origins:
        # Windows that moved count as windows of the last segment.
        ends = accumulate(self._windows_before, lambda end, count: end if count is None else count, initial=0)
        return origins_of_rows(
            self.records.origins,
            self.info.title,
            "rolling",
            digests=self._digests,
            segments=tuple(after - before for before, after in pairwise(ends)),
            earlier=self._earlier_digest,
        )

    @cached_property
    def _windows_before(self) -> list[int | None]:
        """For the end of each segment of the records, the number of windows over those before it.

        They are the first windows, if the records of later segments come after them in the order of the series; None
        if some come before or among them, as those of all but the last series do.
        """
        ends = np.cumsum(self.records.origins.segments)
        if len(ends) == 1:
            return [len(self)]
        groups = self.groups
        members = groups.members[: int(groups.splits[-1])]
        highest = np.maximum.accumulate(members)
        counts: list[int | None] = []
        for end, size in zip(ends.tolist(), np.sort(members).searchsorted(ends).tolist(), strict=True):
            if size and highest[size - 1] >= end:
                counts.append(None)
                continue
            series = groups.group_of[members[size - 1]] if size else 0
            in_series = size - int(groups.splits[series])
            counts.append(int(self._splits[series]) + max((in_series - self.length) // self.stride + 1, 0))
        return counts

    def _earlier_digest(self, segments: int) -> str | None:
        digest = None if self._windows_before[segments - 1] is None else self.groups.earlier_digest(segments)
        return None if digest is None else derived_digest(digest, "rolling", self._parameters)

    @cached_property
    def element_spec(self) -> Tree:
        schema = Schema.of(self.records.element_spec)
        for node in schema.nullable_dicts:
            raise InvalidArgumentError(
                f"rolling() stacks the records of a window, and the dict {node.name!r} may be None: leave it out with "
                "fields(), before rolling()"
            )
        names = (leaf.name for leaf in schema.leaves)
        return tree.map_structure(self.records.element_spec, lambda _, leaf: _stacked(next(names), leaf, self.length))

    @cached_property
    def _codec(self) -> Codec:
        return codec_for(self.element_spec)

    @cached_property
    def info(self) -> Info:
        info = self.records.info
        groups = self.groups
        options = f"by={list(groups.by)}, order={groups.order!r}, length={self.length}, stride={self.stride}"
        options += "".join(f", {name}={value}" for name, value in groups.gap_parameter.items())
        return replace(
            info,
            title=f"Rolling({info.name!r}, {options})",
            record_nbytes=info.record_nbytes * min(self.length, self.stride),
            read_nbytes=info.read_nbytes * self.length,
            records_per_read=max(1, info.records_per_read // self.length),
            together=-(-_LENGTHS_TOGETHER * self.length // self.stride),
        )

    @cached_property
    def counts(self) -> Ints:
        """The number of windows of each series."""
        sizes = np.diff(self.groups.splits)
        counts: Ints = np.maximum((sizes - self.length) // self.stride + 1, 0)
        return counts

    @cached_property
    def _splits(self) -> Ints:
        return splits_of(self.counts)

    def __len__(self) -> int:
        return int(self._splits[-1])

    def padding(self, numbers: Ints, name: str) -> int:
        return self.records.padding(self.members_of(numbers), name)

    def members_of(self, numbers: Ints) -> Ints:
        """Return the numbers of the records of some windows, one window after another."""
        series = self._splits[1:].searchsorted(numbers, side="right")
        first = self.groups.splits[series] + (numbers - self._splits[series]) * self.stride
        members: Ints = self.groups.members[(first[:, None] + np.arange(self.length)).reshape(-1)]
        return np.asarray(members)

    def needed(self, numbers: Ints) -> Needed:
        return self.records.needed(distinct(self.members_of(numbers)))

    def sources(self, numbers: Ints) -> Sources:
        sources = self.records.sources(self.members_of(numbers))
        window, place = np.divmod(sources.element, self.length)
        return replace(sources, element=window, offset=place)

    def batch(self, numbers: Ints, held: Held | None = None) -> Any:
        return self._windows(self.records.batch(self.members_of(numbers), held), self.element_spec, len(numbers))

    def batch_of_keys(self, numbers: Ints, keys: Sequence[str]) -> dict[str, Any]:
        spec = {key: leaf for key, leaf in self.element_spec.items() if key in keys}
        batch: dict[str, Any] = self._windows(
            self.records.batch_of_keys(self.members_of(numbers), keys), spec, len(numbers)
        )
        return batch

    def elements(self, numbers: Ints, held: Held | None = None) -> list[Any]:
        return self._codec.elements(self._codec.batch_columns(self.batch(numbers, held), len(numbers)))

    def _windows(self, batch: Any, spec: Tree, count: int) -> Any:
        """Return a batch of windows, given the batch of their records."""
        schema = Schema.of(spec)
        values, _ = schema.split(batch)
        return schema.pack([self._windows_of_leaf(each, count) for each in values])

    def _windows_of_leaf(self, values: Any, count: int) -> Any:
        if isinstance(values, list):
            return [values[at : at + self.length] for at in range(0, len(values), self.length)]
        if isinstance(values, Ragged):
            return Ragged(values, np.arange(count + 1) * self.length)
        return values.reshape(count, self.length, *values.shape[1:])


def _stacked(name: str, leaf: LeafSpec, length: int) -> LeafSpec:
    """Return the spec of a window of values of a leaf, which are stacked as in a batch."""
    if isinstance(leaf, JsonSpec):
        return leaf
    shape = (length, *leaf.shape)
    has_nulls = leaf.nullable or leaf.nullable_values
    if isinstance(leaf, RaggedSpec):
        if not has_nulls and None not in leaf.shape[leaf.ragged_rank + 1 :]:
            return replace(leaf, shape=shape, ragged_rank=leaf.ragged_rank + 1)
    elif not has_nulls and not isinstance(leaf, (SparseSpec, VideoSpec)) and None not in leaf.shape[1:]:
        spec = RaggedSpec if None in leaf.shape else ArraySpec
        return spec(leaf.dtype, shape, timezone=leaf.timezone)
    cure = "leave it out with fields(), before rolling()"
    if isinstance(leaf, VideoSpec):
        cure = "clips() gives frames of one video; else " + cure
    if len(leaf.shape) > 1 and leaf.shape[:2] == (None, None):
        cure = "if it holds images, call decoded(size=...) before rolling(); else " + cure
    if has_nulls:
        cure = "store a value in place of None, with add_columns(replace=True), or " + cure
    raise InvalidArgumentError(f"rolling() stacks the records of a window, and {name!r} is {leaf!r}: {cure}")


def series_windows(records: DatasetView, length: Any, by: Any, order: Any, stride: Any, max_gap: Any) -> SeriesWindows:
    """Return the windows over series of a view, with the arguments of :meth:`cachelayer.View.rolling`."""
    size = checked_length("length", length)
    step = checked_length("stride", stride)
    names = () if by is None else one_or_several("by", by)
    if order is not None and not isinstance(order, str):
        raise InvalidTypeError(f"order={order!r}: pass the name of a field, such as 'time'")
    is_number = isinstance(max_gap, (int, float)) and not isinstance(max_gap, bool)
    if max_gap is not None and not (is_number and 0 <= max_gap < np.inf):
        raise InvalidArgumentError(f"max_gap={max_gap!r}: pass a number, of seconds if the order is a time")
    return SeriesWindows(RecordGroups(records, names, order, "rolling()", max_gap), size, step)
