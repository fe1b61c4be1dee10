"""Batches of elements that functions made: what a function replaced is stacked, what it passed on stays what it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, cast

import numpy as np

from cachelayer.errors import CacheLayerError, ElementError
from cachelayer.locks import cached_property
from cachelayer.records import tree
from cachelayer.records.codec import Codec, codec_for
from cachelayer.records.infer import leaf_spec
from cachelayer.records.spec import ArraySpec, LeafSpec, SparseSpec
from cachelayer.records.tree import Tree
from cachelayer.records.values import Ragged, Sparse
from cachelayer.streams.collate import DECLARE, UNLIKE, collate

# Each object of these kinds is one leaf of one element; others, such as small ints and short strings, Python shares.
_OWN = (np.ndarray, Ragged, Sparse)


class HasSpec(Protocol):
    """Records of one element spec."""

    @property
    def declared_spec(self) -> Tree | None:
        """The element spec that all records are known to have; None if only the first of them tells."""


@dataclass(frozen=True, eq=False)
class Stacking:
    """How elements of one spec become batches.

    Args:
        source: the records whose spec it is, unless one is declared.
        declared: the spec that a function's outputs were declared to have.
    """

    source: HasSpec
    declared: Tree | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Stacking, (self.source, self.declared)

    @cached_property
    def spec(self) -> Tree:
        """The spec of the elements."""
        known = self.source.declared_spec if self.declared is None else self.declared
        # Of records that no spec is known of, no leaf has a kind that a function could pass on.
        return () if known is None else known

    @cached_property
    def _codec(self) -> Codec:
        return codec_for(self.spec)

    def conform(self, elements: Sequence[Any]) -> list[Any]:
        """Return elements as the spec has them: its dtypes, and nothing cast that could lose anything.

        Raises:
            ElementError: for an element that does not fit, with its index as its record.
        """
        return self._codec.elements(self._codec.columns(elements), len(elements))

    def collator(self, elements: Sequence[Any], kinds: dict[str, bool]) -> Callable[..., Any]:
        """Return a function that makes a batch of what functions make of these elements, or of some of them.

        Its arguments are the elements, one or more, and how many of their rows the batch has; by default all.

        Args:
            elements: elements of the spec.
            kinds: at each path, whether functions pass the leaf on; filled in by the first batch that tells.
        """
        leaves = tree.leaves(self.spec)
        if all(_is_plain(leaf) for _, leaf in leaves):
            return lambda made, rows=None: collate(made, _collected, rows)
        columns = zip(leaves, tree.flatten_rows(self.spec, elements), strict=True)
        return _Collator([(path, leaf, values) for (path, leaf), values in columns if not _is_plain(leaf)], kinds)


class _Collator:
    """Makes batches of what functions made of some elements.

    Args:
        given: path, spec and values of each leaf of the elements whose batches are not plain arrays.
        kinds: at each path, whether functions pass the leaf on.
    """

    def __init__(self, given: Sequence[tuple[str, LeafSpec, Sequence[Any]]], kinds: dict[str, bool]) -> None:
        # Holding the values keeps Python from using their ids again.
        self._given = given
        self._kinds = kinds
        self._specs = {path: spec for path, spec, _ in given}
        self._of = {id(value): (path, spec) for path, spec, values in given for value in values if value is not None}

    def __call__(self, elements: Sequence[Any], rows: int | None = None) -> Any:
        return collate(elements, self._stacked, rows)

    def _stacked(self, path: str, values: Sequence[Any], rows: int | None) -> Any:
        present = [value for value in values if value is not None]
        has_nulls = len(present) < len(values)
        passed_on = self._passed_on(path, present, has_nulls=has_nulls)
        if present:
            self._check_kind(path, passes_on=passed_on is not None)
        return _collected(path, values, rows) if passed_on is None else _batch(passed_on, values, rows)

    def _passed_on(self, path: str, present: Sequence[Any], *, has_nulls: bool) -> LeafSpec | None:
        """Return the spec of the leaf that these values are, untouched; None if a function made one of them."""
        specs = set()
        for value in present:
            home, spec = self._of.get(id(value), (None, None))
            if spec is None or (home != path and not isinstance(value, _OWN)):
                return None
            specs.add(spec)
        if not present:
            specs = {self._specs[path]} if path in self._specs else set()
        if len(specs) != 1:
            return None
        spec = specs.pop()
        return spec if spec.nullable or not has_nulls else None

    def _check_kind(self, path: str, *, passes_on: bool) -> None:
        """Raise if functions pass a leaf on in one batch and replace it in another: batches would differ in type."""
        if self._kinds.setdefault(path, passes_on) != passes_on:
            here, before = ("passed on", "replaced") if passes_on else ("replaced", "passed on")
            raise ElementError(
                "a leaf that a function passed to map() either passes on in all batches or replaces in all",
                f"one that it {here} in this batch and {before} in an earlier one",
                path=path,
                hint=DECLARE,
            )


def _collected(path: str, values: Sequence[Any], rows: int | None) -> Any:
    """Return the batch of ragged or sparse values; NotImplemented for others."""
    for kind in (Ragged, Sparse):
        if all(isinstance(value, kind) for value in values):
            try:
                return _batch(_own_spec(values[0]), values, rows)
            except CacheLayerError as error:
                raise ElementError(UNLIKE, str(error), path=path, hint=DECLARE) from error
    return NotImplemented


def _own_spec(value: Any) -> LeafSpec:
    spec = leaf_spec(value)
    return SparseSpec(spec.dtype, (None,) * len(spec.shape)) if isinstance(spec, SparseSpec) else cast(LeafSpec, spec)


@lru_cache(256)
def _codec_of(spec: LeafSpec) -> Codec:
    return codec_for(spec)


def _batch(spec: LeafSpec, values: Sequence[Any], rows: int | None) -> Any:
    codec = _codec_of(spec)
    return codec.batch(codec.columns(values[:rows]))


def _is_plain(leaf: LeafSpec) -> bool:
    """Return whether a batch of the leaf is always a plain array, or a list of strings."""
    if not isinstance(leaf, ArraySpec) or None in leaf.shape or leaf.nullable:
        return False
    return leaf.dtype.kind not in "SU" if isinstance(leaf.dtype, np.dtype) else not leaf.shape
