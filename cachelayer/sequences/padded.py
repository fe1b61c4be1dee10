"""Records whose arrays of varying length are padded to a fixed length."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cachelayer.datasets.dataset import BaseDataset
from cachelayer.datasets.dataset_view import DatasetView
from cachelayer.datasets.origins import derived_digest
from cachelayer.errors import ElementError, InvalidArgumentError, InvalidTypeError
from cachelayer.protocols import Held, Info, Needed, Origins, Sources
from cachelayer.sequences.documents import (
    checked_fill,
    checked_length,
    fill_hex,
    padding_keys,
)
from cachelayer.sequences.token_fields import FILL
from cachelayer.specs import tree
from cachelayer.specs.leaf_names import UNNAMED, has_length, leaf_named, leaf_number
from cachelayer.specs.spec import ArraySpec, AudioSpec, LeafSpec, NullableDict, describe_leaf
from cachelayer.specs.tree import Tree
from cachelayer.support.arguments import is_choice
from cachelayer.support.locks import cached_property
from cachelayer.support.memory import Ints, bytes_of, move_ranges

LongRecords = Literal["truncate", "refuse"]


@dataclass(frozen=True)
class Padding:
    """A leaf that is padded, with the length and the fill."""

    name: str
    """The name of the leaf."""
    length: int
    """The number of values that every record gets."""
    fill: NDArray[Any]
    """The value that fills up shorter records: an array without dimensions, of the dtype of the leaf."""
    long: LongRecords
    """What becomes of longer records."""
    timezone: str | None = None
    shape: tuple[int, ...] = ()
    """The shape of one value, such as ``(4,)`` of boxes."""

    @property
    def value_nbytes(self) -> int:
        return self.fill.dtype.itemsize * math.prod(self.shape)

    def specs(self, length: int | None) -> tuple[ArraySpec, ArraySpec, ArraySpec]:
        """Return the specs of the padded leaf, of the length and of the mask."""
        mask = ArraySpec(np.dtype(np.bool_), (length,))
        values = ArraySpec(self.fill.dtype, (length, *self.shape), timezone=self.timezone)
        return values, ArraySpec(np.dtype(np.int32)), mask

    def batch(self, batch: Any) -> tuple[Any, Any, Any]:
        """Return the padded rows of a Ragged, or of a Nullable with one, their lengths and their mask."""
        valid = getattr(batch, "valid", None)
        ragged = batch if valid is None else batch.values
        splits = np.asarray(ragged.row_splits, np.int64)
        lengths = np.diff(splits) if valid is None else np.where(valid, np.diff(splits), 0)
        return self._rows(ragged.values, splits, lengths)

    def element(self, value: Any) -> tuple[Any, Any, Any]:
        """Return the padded array, its length and its mask, of one array or None."""
        values = np.empty((0, *self.shape), self.fill.dtype) if value is None else value
        rows, lengths, mask = self._rows(values, np.zeros(1, np.int64), np.array([len(values)]))
        return rows[0], lengths[0], mask[0]

    def _rows(self, values: NDArray[Any], splits: Ints, lengths: Ints) -> tuple[Any, Any, Any]:
        """Return padded rows, their lengths and their mask."""
        too_long = np.flatnonzero(lengths > self.length)
        if self.long == "refuse" and len(too_long):
            row = int(too_long[0])
            hint = "Pass a greater length, or long='truncate' to keep the beginning."
            expected = f"at most {self.length} values in {self.name!r}"
            raise ElementError(expected, str(int(lengths[row])), record=row, hint=hint)
        counts = np.minimum(lengths, self.length)
        out = np.full((len(counts), self.length, *self.shape), self.fill)
        size = self.value_nbytes
        places = np.arange(len(counts)) * (self.length * size)
        move_ranges(bytes_of(out), places, bytes_of(values), splits[: len(counts)] * size, counts * size)
        return out, counts.astype(np.int32), np.arange(self.length) < counts[:, None]


@dataclass(frozen=True, eq=False)
class PaddedElements(BaseDataset):
    """The elements of a view with leaves padded."""

    records: DatasetView
    """The elements before they are padded."""
    paddings: Mapping[tuple[str, ...], Padding]
    """How leaves are padded, by the keys of the dicts that lead to them, in the order of the leaves."""

    def __len__(self) -> int:
        return len(self.records)

    @cached_property
    def origins(self) -> Origins:
        origins = self.records.origins
        parameters = [[each.name, each.length, fill_hex(each.fill), each.long] for each in self.paddings.values()]

        def derived(digest: str) -> str:
            return derived_digest(digest, "padded", {"leaves": parameters})

        def earlier(segments: int) -> str | None:
            digest = origins.earlier_digest(segments)
            return None if digest is None else derived(digest)

        return replace(origins, digests=origins.digests.derived(derived), home=None, earlier=earlier)

    def needed(self, numbers: Ints) -> Needed:
        return self.records.needed(numbers)

    def sources(self, numbers: Ints) -> Sources:
        return self.records.sources(numbers)

    @cached_property
    def element_spec(self) -> Tree:
        return self._changed(self.records.element_spec, lambda padding, _: padding.specs(padding.length))

    @property
    def spec_of_any_length(self) -> Tree:
        """The spec of elements that are padded to any length."""
        return self._changed(self.records.element_spec, lambda padding, _: padding.specs(None))

    @cached_property
    def info(self) -> Info:
        info = self.records.info
        lengths = {each.name: each.length for each in self.paddings.values()}
        nbytes = info.record_nbytes + sum(each.length * (each.value_nbytes + 1) for each in self.paddings.values())
        title = f"Padded({self.records!r}, {lengths})"
        return replace(info, title=title, record_nbytes=nbytes, read_nbytes=nbytes)

    def padding(self, numbers: Ints, name: str) -> int:
        """Return how many values of a field are padding, over some elements."""
        for each in self.paddings.values():
            padded = each.name or UNNAMED
            if name in (padded, padding_keys(padded)[1]):
                return int(np.maximum(each.length - self.records.lengths(padded).take(numbers), 0).sum())
        return 0

    def elements(self, numbers: Ints, held: Held | None = None) -> list[Any]:
        pairs = zip(numbers.tolist(), self.records.elements(numbers, held), strict=True)
        return [self.padded_element(number, element) for number, element in pairs]

    def padded_element(self, number: int, element: Any) -> Any:
        """Return an element with its leaves padded; an error names the record by its number."""
        with _naming([number]):
            return self._changed(element, Padding.element)

    def batch(self, numbers: Ints, held: Held | None = None) -> Any:
        return self.padded(numbers, self.records.batch(numbers, held))

    def batch_of_keys(self, numbers: Ints, keys: Sequence[str]) -> dict[str, Any]:
        spec = self.records.element_spec
        if not isinstance(spec, dict):
            return super().batch_of_keys(numbers, keys)
        # The length and the mask of a field are made of the field.
        made_of = [key for key in spec if any(added in keys for added in (key, *padding_keys(key)))]
        batch = self.padded(numbers, self.records.batch_of_keys(numbers, made_of))
        return {key: batch[key] for key in self.element_spec if key in keys}

    def padded(self, numbers: Ints, batch: Any) -> Any:
        """Return a batch with its leaves padded; an error names the record by its number."""
        with _naming(numbers):
            return self._changed(batch, Padding.batch)

    def _changed(self, value: Any, make: Callable[[Padding, Any], Sequence[Any]], place: tuple[str, ...] = ()) -> Any:
        """Return an element, batch or spec in which the values that ``make`` returns replace each padded leaf."""
        if place in self.paddings:
            key = place[-1] if place else UNNAMED
            return dict(zip((key, *padding_keys(key)), make(self.paddings[place], value), strict=True))
        if not isinstance(value, dict):
            return value
        out: dict[str, Any] = {}
        for key, child in value.items():
            changed = self._changed(child, make, (*place, key))
            out |= changed if (*place, key) in self.paddings else {key: changed}
        return out

    @property
    def kept(self) -> float:
        """The share of the values of the padded leaves that is kept, from stored lengths; 1 if there are no values."""
        kept = 0
        total = 0
        for each in self.paddings.values():
            column = self.records.lengths(each.name)
            kept += sum(int(np.minimum(lengths, each.length).sum()) for lengths in column.pieces())
            total += column.total
        return kept / total if total else 1.0


@contextmanager
def _naming(numbers: Sequence[int] | Ints) -> Iterator[None]:
    """Let an ElementError name its record by the number, in place of the row."""
    try:
        yield
    except ElementError as error:
        raise error.at(record=int(numbers[error.record or 0])) from None


def padded_elements(records: DatasetView, lengths: Any, value: Any, long: Any) -> PaddedElements:
    """Return the padded elements of a view, with the arguments of :meth:`cachelayer.View.padded`."""
    if not isinstance(lengths, Mapping) or not all(isinstance(name, str) for name in lengths):
        raise InvalidTypeError(f'lengths {lengths!r}: pass a dict of names and lengths, such as {{"tokens": 2048}}')
    if long is not None and not is_choice(long, ("truncate", "refuse")):
        raise InvalidArgumentError(f"long {long!r}: pass 'truncate' or 'refuse'")
    sizes = {name: checked_length("length", length) for name, length in lengths.items()}
    if not lengths:
        raise InvalidArgumentError('no field is named: pass a name and a length, such as {"tokens": 2048}')
    records.leaves_for("padded()")
    spec = records.element_spec
    numbers = {leaf_number(spec, name) for name in lengths}
    paddings = {}
    for place, leaf, siblings in _leaves_of_dicts(spec):
        name = "/".join(place)
        if name not in lengths:
            continue
        is_array = type(leaf) is ArraySpec and leaf.shape[:1] == (None,) and leaf.dtype not in (bytes, str)
        shape = tuple(size for size in leaf.shape[1:] if size is not None)
        if not is_array or len(shape) < len(leaf.shape[1:]) or leaf.nullable_values:
            cure = FILL if leaf.nullable_values else ""
            if isinstance(leaf_named(records.leaves_for("padded()").codec.spec, name), AudioSpec):
                cure = ": declare AudioSpec(channels=1), and read sounds decoded"
            raise InvalidArgumentError(
                f"{name!r} is {describe_leaf(leaf)}: only arrays of shape [None], or [None, 4] and the like, are padded"
                f"{cure}"
            )
        if long is None and not has_length(leaf):
            raise InvalidArgumentError(
                f"{name!r} is {describe_leaf(leaf)}, whose lengths are not stored, so nothing can warn of records that "
                "are longer: pass long='truncate' or long='refuse'"
            )
        if _is_in_nullable_dict(spec, place):
            raise InvalidArgumentError(
                f"{name!r} is in a dict that may be None, in which padded() has no place for its fields: choose "
                "others, or store a dict in its place"
            )
        clashes = [added for added in padding_keys(place[-1] if place else UNNAMED) if added in siblings]
        if clashes:
            raise InvalidArgumentError(f"elements have a field {clashes[0]!r}, which padded() would add: rename it")
        if isinstance(value, Mapping) and name not in value:
            raise InvalidArgumentError(f"value {dict(value)!r}: it has none for {name!r}")
        fill = checked_fill("value", value[name] if isinstance(value, Mapping) else value, np.dtype(leaf.dtype))
        paddings[place] = Padding(name, sizes[name], fill, long or "truncate", leaf.timezone, shape)
    if len(paddings) < len(numbers):
        raise InvalidArgumentError(
            f"{', '.join(map(repr, lengths))} of {tree.describe(spec)}: padded() adds fields beside the one that it "
            "pads, so it pads values of dicts"
        )
    return PaddedElements(records, paddings)


def _is_in_nullable_dict(spec: Tree, place: tuple[str, ...]) -> bool:
    for key in place:
        spec = spec[key]
        if isinstance(spec, NullableDict):
            return True
    return False


def _leaves_of_dicts(
    spec: Tree, place: tuple[str, ...] = (), siblings: Collection[str] = ()
) -> Iterator[tuple[tuple[str, ...], LeafSpec, Collection[str]]]:
    """Yield the keys that lead to each leaf that lies in nothing but dicts, the leaf, and the keys of its dict."""
    if isinstance(spec, LeafSpec):
        yield place, spec, siblings
    elif isinstance(spec, dict):
        for key, child in spec.items():
            yield from _leaves_of_dicts(child, (*place, key), spec)
