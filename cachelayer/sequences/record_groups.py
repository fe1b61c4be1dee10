"""Groups: the records of a view that have the same values of some fields, found once and stored as a plan.

The plan is int64 of shape ``[2, records]``. Groups are numbered by their values, ascending; NaN comes after all other
values::

    sensor of each record     7  9  7  7  (erased)  9
    group of each record      0  1  0  0  -1        1       the first row of the plan
    members of all groups     0  2  3  1  5         4       the second row: group 0, group 1, erased records
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.datasets.dataset_view import DatasetView
from cachelayer.datasets.field_values import FieldReader, distinct_rows
from cachelayer.datasets.origins import derived_digest
from cachelayer.datasets.stored_plans import PlanMaker, plan_of
from cachelayer.errors import InvalidArgumentError
from cachelayer.protocols import Origins
from cachelayer.records.keys import sortable
from cachelayer.specs.dtypes import is_string, number_kind
from cachelayer.specs.leaf_names import in_condition, leaf_number
from cachelayer.support.locks import PickledByFields, cached_property
from cachelayer.support.memory import Ints, splits_of

_ROWS = 2


@dataclass(frozen=True, eq=False)
class RecordGroups(PickledByFields):
    """The groups of the records of a view."""

    records: DatasetView
    by: tuple[str, ...]
    """The fields, of one value a record, whose values the records of a group share; empty for one group of all."""
    order: str | None
    """The field that orders the records of a group; None for the order of the view, which equal values keep too."""
    call: str
    """The call of the user, for messages."""
    max_gap: float | None = None
    """The most that the order of a record may lie after that of the one before, in seconds for times, or else a new
    group begins; None if groups have gaps."""

    def __post_init__(self) -> None:
        reader = self._reader
        if self.max_gap is not None:
            dtype = None if self.order is None else reader.leaf(self.order).dtype
            if dtype is None or is_string(dtype) or number_kind(np.dtype(dtype)) not in "iufmM":
                raise InvalidArgumentError(
                    f"{self.call}: max_gap={self.max_gap!r} is a distance of numbers or times: pass order=, the field "
                    "that has these"
                )
        for name in self._names:
            dtype = reader.leaf(name).dtype
            if not is_string(dtype) and number_kind(np.dtype(dtype)) == "c":
                raise InvalidArgumentError(f"{self.call}: {name!r} is {dtype}: complex numbers have no order")

    @property
    def _names(self) -> tuple[str, ...]:
        return self.by if self.order is None else (*self.by, self.order)

    @property
    def _reader(self) -> FieldReader:
        return FieldReader(self.records, self.call)

    @property
    def _origins(self) -> Origins:
        """The origins of what decides the groups."""
        leaves = self.records.leaves
        if leaves is None:
            return self.records.origins
        return self.records.origins_of_leaves([leaf_number(leaves.codec.spec, name) for name in self._names])

    @cached_property
    def digest(self) -> str:
        """The digest of the plan."""
        return self._digest_over(self._origins.digests.rows)

    def _digest_over(self, rows: str) -> str:
        parameters: dict[str, Any] = {"by": list(self.by), "order": self.order, **self.gap_parameter}
        return derived_digest(rows, "groups", parameters)

    def earlier_digest(self, segments: int) -> str | None:
        """Return the digest of the plan of the first segments of the records; None if it is not known."""
        rows = self._origins.earlier_digest(segments)
        return None if rows is None else self._digest_over(rows)

    @property
    def gap_parameter(self) -> dict[str, float]:
        """The largest gap by its name; empty if there is none."""
        return {} if self.max_gap is None else {"max_gap": self.max_gap}

    @cached_property
    def _plan(self) -> Ints:
        maker = PlanMaker(self.digest, _ROWS, self.records.__len__, self._made_plan, self._is_sound)
        return plan_of(self.records.origins.home, maker)

    @property
    def group_of(self) -> Ints:
        """The group of each record of the view; -1 for an erased record."""
        groups: Ints = self._plan[0]
        return groups

    @property
    def members(self) -> Ints:
        """The numbers of the records of group 0, in order, of group 1, and so on; at last of the erased records."""
        members: Ints = self._plan[1]
        return members

    @cached_property
    def splits(self) -> Ints:
        """The start of each group among the members, and the end of the last one."""
        groups = self.group_of
        return splits_of(np.bincount(groups[groups >= 0]))

    def _is_sound(self, plan: Ints) -> bool:
        groups, members = plan
        if len(groups) != len(self.records) or not len(groups):
            return len(groups) == len(self.records)
        if int(groups.min()) < -1 or int(groups.max()) >= len(groups):
            return False
        if int(members.min()) < 0 or int(members.max()) >= len(groups):
            return False
        # Each record once: as many different ones as there are, group after group.
        is_member = np.zeros(len(groups), np.bool_)
        is_member[members] = True
        in_order = groups[members].astype(np.uint64)
        return bool(is_member.all() and (in_order[:-1] <= in_order[1:]).all())

    def _made_plan(self) -> Iterator[Ints]:
        reader = self._reader
        groups = np.full(len(self.records), -1, np.int64)
        groups[reader.rows] = self._group_numbers(reader)
        order = np.arange(len(reader.rows))
        keys = None
        if self.order is not None and len(order):
            keys = self._sort_keys(reader, self.order)
            order = keys.argsort(kind="stable")
        order = order[groups[reader.rows[order]].argsort(kind="stable")]
        if self.max_gap is not None and keys is not None:
            rows = reader.rows[order]
            groups[rows] = _numbered_by_gaps(groups[rows], keys[order], self.max_gap)
        erased = np.flatnonzero(groups < 0)
        yield np.stack([groups, np.concatenate([reader.rows[order], erased])])

    def _group_numbers(self, reader: FieldReader) -> Ints:
        """Return the group of each record that the reader reads."""
        if not self.by:
            return np.zeros(len(reader.rows), np.int64)
        values, numbers = distinct_rows(reader, self.by)
        ranks = np.empty(len(values), np.int64)
        ranks[sorted(range(len(values)), key=lambda number: _sort_key(values[number]))] = np.arange(len(values))
        return ranks[numbers]

    def _sort_keys(self, reader: FieldReader, name: str) -> NDArray[Any]:
        """Return the values of the field that orders records."""
        column = reader.column(name)
        keys = sortable(np.asarray(column))
        if keys.dtype.kind == "f":
            self._refuse(reader.rows[np.isnan(keys)], name, "NaN")
        elif keys.dtype.kind in "mM":
            self._refuse(reader.rows[np.isnat(keys)], name, "NaT")
        return keys

    def _refuse(self, numbers: Ints, name: str, value: str) -> None:
        """Raise if there are records with a value that has no place in an order."""
        if len(numbers):
            field = in_condition(name)
            # Only NaN and NaT differ from themselves.
            condition = f"{field} == {field}"
            others = f" (and {len(numbers) - 1:,} more)" if len(numbers) > 1 else ""
            raise InvalidArgumentError(
                f"{self.call}: record {numbers[0]}{others} has {value} in {name!r}, which has no place in an order: "
                f"leave such records out with where({condition!r})"
            )


def _numbered_by_gaps(groups: Ints, keys: NDArray[Any], max_gap: float) -> Ints:
    """Return new numbers for the groups of records in order, in which each record after a larger gap begins a group."""
    gaps = np.diff(keys)
    if gaps.dtype.kind == "m":
        gaps = gaps / np.timedelta64(1, "s")
    begins = np.ones(len(keys), np.bool_)
    # Keys ascend within a group: a difference below 0 is one that is too large for its dtype.
    begins[1:] = (np.diff(groups) != 0) | (gaps > max_gap) | (gaps < 0)
    numbers: Ints = begins.cumsum() - 1
    return numbers


def _sort_key(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(map(_rank, values))


def _rank(value: Any) -> tuple[int, Any]:
    """Return what a value is sorted by: NaN comes after all others."""
    if value != value:
        return 1, 0
    return 0, value
