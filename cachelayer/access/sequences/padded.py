"""Records in which arrays of varying length are padded to a fixed one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.record_base import RecordBase, chosen_leaves
from cachelayer.access.sequences.derived import derived_digest
from cachelayer.access.sequences.fill_values import checked_fill, fill_hex
from cachelayer.access.view import View
from cachelayer.errors import ElementError, InvalidArgumentError
from cachelayer.locks import cached_property
from cachelayer.protocols import Failed, ReadingCost
from cachelayer.records import tree
from cachelayer.records.leaf_names import leaf_number
from cachelayer.records.memory import Ints
from cachelayer.records.selection import Selection
from cachelayer.records.spec import ArraySpec, LeafSpec
from cachelayer.records.tree import Tree

Long = Literal["truncate", "refuse"]
_UNNAMED = "values"
_MAPPINGS = "padded() adds leaves beside the one that it pads, so it pads values of dicts"


@dataclass(frozen=True)
class Padding:
    """How a leaf is padded.

    Args:
        name: its name.
        length: the number of values that it gets.
        fill: what stands after the values of a shorter record, as an array without dimensions, of the leaf's dtype.
        long: what becomes of longer records.
    """

    name: str
    length: int
    fill: NDArray[Any]
    long: Long

    @property
    def spec(self) -> ArraySpec:
        """The spec of the padded leaf."""
        return ArraySpec(self.fill.dtype, (self.length,))

    def kept(self, lengths: Ints) -> Ints:
        """Return how many values of each record are kept.

        Raises:
            ElementError: if a record is too long and longer ones are refused; its ``record`` is the row.
        """
        too_long = np.flatnonzero(lengths > self.length)
        if self.long == "refuse" and len(too_long):
            row = int(too_long[0])
            hint = "Pass a greater length, or long='truncate' to keep the beginning."
            expected = f"at most {self.length} values in {self.name!r}"
            raise ElementError(expected, str(int(lengths[row])), record=row, hint=hint)
        return np.minimum(lengths, self.length)

    def rows(self, values: NDArray[Any], splits: Ints, kept: Ints) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return padded rows and their mask, both of shape ``[rows, length]``."""
        out = np.full((len(kept), self.length), self.fill)
        mask: NDArray[np.bool_] = np.arange(self.length) < kept[:, None]
        for row, start, count in zip(range(len(kept)), splits.tolist(), kept.tolist(), strict=False):
            out[row, :count] = values[start : start + count]
        return out, mask

    def batch(self, batch: Any) -> tuple[Any, Any, Any]:
        """Return padded rows, their lengths and their mask, of a Ragged or of a Nullable of one."""
        valid = getattr(batch, "valid", None)
        ragged = batch if valid is None else batch.values
        splits = np.asarray(ragged.row_splits, np.int64)
        lengths = np.diff(splits) if valid is None else np.where(valid, np.diff(splits), 0)
        kept = self.kept(lengths)
        rows, mask = self.rows(ragged.values, splits, kept)
        return rows, kept.astype(np.int32), mask

    def element(self, value: Any) -> tuple[Any, Any, Any]:
        """Return the same for a single array or None."""
        values = np.empty(0, self.fill.dtype) if value is None else value
        kept = self.kept(np.array([len(values)]))
        rows, mask = self.rows(values, np.zeros(1, np.int64), kept)
        return rows[0], np.int32(kept[0]), mask[0]


@dataclass(frozen=True, eq=False)
class PaddedBase:
    """The padded records of a view; see :class:`cachelayer.access.view.ViewBase`.

    Args:
        view: the view.
        paddings: how each leaf is padded, by its number.
    """

    view: View[Any]
    paddings: Mapping[int, Padding]

    @property
    def digest(self) -> str:
        parameters = [
            [each.name, each.length, fill_hex(each.fill), each.long] for _, each in sorted(self.paddings.items())
        ]
        return derived_digest(self.view.digest, "padded", {"leaves": parameters})

    @cached_property
    def element_spec(self) -> Tree:
        """The spec of the elements."""
        return self._changed(
            self.view.element_spec,
            lambda padding, _: (
                padding.spec,
                ArraySpec(np.dtype(np.int32)),
                ArraySpec(np.dtype(np.bool_), (padding.length,)),
            ),
        )

    @property
    def spec_of_any_length(self) -> Tree:
        """The spec of the elements if they were padded to another length in each batch."""
        return self._changed(
            self.view.element_spec,
            lambda padding, _: (
                ArraySpec(padding.fill.dtype, (None,)),
                ArraySpec(np.dtype(np.int32)),
                ArraySpec(np.dtype(np.bool_), (None,)),
            ),
        )

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.view.metadata

    def __len__(self) -> int:
        return len(self.view)

    @property
    def stored_records(self) -> RecordBase | None:
        return self.view._base.stored_records

    @property
    def record_nbytes(self) -> int:
        return self.view._base.record_nbytes + sum(
            each.length * (each.fill.dtype.itemsize + 1) for each in self.paddings.values()
        )

    @property
    def records_per_read(self) -> int:
        return self.view._base.records_per_read

    @property
    def reading_cost(self) -> ReadingCost:
        return self.view._base.reading_cost

    @property
    def segments(self) -> tuple[int, ...]:
        return self.view._selection.segment_sizes(self.view._base.segments)

    def element(self, number: int) -> Any:
        return self._told(
            np.array([number]),
            lambda: self._changed(self.view[number], lambda padding, value: padding.element(value)),
        )

    def elements(self, numbers: NDArray[np.int64], *, failed: Failed | None = None) -> list[Any]:
        elements = self.view._elements(numbers, failed)
        return [self._element(row, element, numbers, failed) for row, element in enumerate(elements)]

    def _element(self, row: int, element: Any, numbers: NDArray[np.int64], failed: Failed | None) -> Any:
        if failed is not None and row in failed:
            return None
        try:
            return self._told(
                numbers[row : row + 1],
                lambda: self._changed(element, lambda padding, value: padding.element(value)),
            )
        except ElementError as error:
            if failed is None:
                raise
            failed[row] = error
            return None

    def batch(self, numbers: NDArray[np.int64], names: Sequence[str] | None) -> Any:
        if names is not None:
            chosen_leaves(self.element_spec, names)
        found = self.padded(numbers, self.view._base.batch(self.view._selection.take(numbers), self._needed(names)))
        return found if names is None else {name: found[name] for name in self.element_spec if name in names}

    def batches(self, batches: Sequence[NDArray[np.int64]]) -> Iterable[Any]:
        found = self.unpadded(batches)
        return [self.padded(numbers, batch) for numbers, batch in zip(batches, found, strict=True)]

    def unpadded(self, batches: Sequence[NDArray[np.int64]]) -> Iterable[Any]:
        """Return the batches as the view has them."""
        return self.view._base.batches([self.view._selection.take(numbers) for numbers in batches])

    def padded(self, numbers: NDArray[np.int64], batch: Any) -> Any:
        """Return a batch of the view with its leaves padded.

        Args:
            numbers: the records of the batch.
            batch: the batch.
        """
        return self._told(numbers, lambda: self._changed(batch, lambda padding, value: padding.batch(value)))

    def _needed(self, names: Sequence[str] | None) -> Sequence[str] | None:
        """Return the keys of the view's elements from which these keys are made."""
        spec = self.view.element_spec
        if names is None or not isinstance(spec, dict):
            return None
        added = {key: name for name in spec for key in _added(name)}
        return [name for name in spec if name in names or any(added.get(key) == name for key in names)]

    def _changed(self, value: Any, make: Callable[[Padding, Any], Sequence[Any]]) -> Any:
        """Return the structure of an element, or of a batch, with three leaves in place of each that is padded."""
        if isinstance(self.view.element_spec, LeafSpec):
            return dict(zip(_keys(_UNNAMED), make(self.paddings[0], value), strict=True))
        return self._walked(self.view.element_spec, value, make, 0)

    def _walked(self, spec: Tree, value: Any, make: Callable[[Padding, Any], Sequence[Any]], first: int) -> Any:
        if not any(first <= leaf < first + len(tree.leaves(spec)) for leaf in self.paddings):
            return value
        out: dict[str, Any] = {}
        for key, child in spec.items():
            count = len(tree.leaves(child))
            # A batch of some keys does not have the others.
            if key in value:
                if first in self.paddings and isinstance(child, LeafSpec):
                    out.update(zip(_keys(key), make(self.paddings[first], value[key]), strict=True))
                else:
                    out[key] = self._walked(child, value[key], make, first)
            first += count
        return out

    @staticmethod
    def _told(numbers: NDArray[np.int64], make: Callable[[], Any]) -> Any:
        """Return what a function makes; tell the number of the record in its error."""
        try:
            return make()
        except ElementError as error:
            raise error.at(record=int(numbers[error.record or 0])) from None


def _keys(key: str) -> tuple[str, str, str]:
    return key, *_added(key)


def _added(key: str) -> tuple[str, str]:
    return f"{key}_length", f"{key}_mask"


class Padded(View[Any]):
    """Records with padded leaves; :meth:`cachelayer.DataRef.padded` returns it."""

    _base: PaddedBase

    def _with_selection(self, selection: Selection) -> Self:
        return type(self)(self._base, selection)

    def __repr__(self) -> str:
        lengths = {each.name: each.length for each in self._base.paddings.values()}
        return f"Padded({self._base.view!r}, {lengths}, records={len(self)}, digest='sha256:{self.digest}')"


def padded_of(view: View[Any], lengths: Mapping[str, int], value: Any, long: Long) -> Padded:
    """Return the records of a view with leaves padded.

    Raises:
        InvalidArgumentError: if there is no such leaf, it is of another kind, or a value does not fit it.
        InvalidTypeError: if a value is of another kind.
    """
    if not lengths:
        raise InvalidArgumentError('no leaf is named: pass a name and a length, such as {"tokens": 2048}')
    spec = view.element_spec
    specs = [leaf for _, leaf in tree.leaves(spec)]
    paddings = {}
    for name, length in lengths.items():
        leaf = leaf_number(spec, name)
        if type(specs[leaf]) is not ArraySpec or specs[leaf].shape != (None,) or specs[leaf].dtype in (bytes, str):
            raise InvalidArgumentError(f"{name!r} is {specs[leaf].describe()}: only arrays of shape [None] are padded")
        fill = checked_fill("value", _value_of(value, name), np.dtype(specs[leaf].dtype))
        paddings[leaf] = Padding(name, length, fill, long)
    if not isinstance(spec, LeafSpec):
        _check_places(spec, paddings, 0)
    return Padded(PaddedBase(view, paddings))


def _value_of(value: Any, name: str) -> Any:
    if not isinstance(value, Mapping):
        return value
    if name not in value:
        raise InvalidArgumentError(f"value {dict(value)!r}: it has none for {name!r}")
    return value[name]


def _check_places(spec: Tree, paddings: Mapping[int, Padding], first: int) -> None:
    """Raise unless each leaf that is padded is a value of a dict which has no such keys as those that are added."""
    for step, child in tree.children(spec):
        count = len(tree.leaves(child))
        mine = [leaf for leaf in paddings if first <= leaf < first + count]
        if mine and not isinstance(spec, dict):
            raise InvalidArgumentError(f"{paddings[mine[0]].name!r} lies in {tree.describe(spec)}: {_MAPPINGS}")
        if mine and isinstance(child, LeafSpec):
            key = next(key for key in spec if f"[{key!r}]" == step)
            for added in _added(key):
                if added in spec:
                    raise InvalidArgumentError(f"elements have a leaf {added!r}, which padded() would add: rename it")
        elif mine:
            _check_places(child, paddings, first)
        first += count
