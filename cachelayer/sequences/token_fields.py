"""Fields beside the tokens of documents: a value for each token, that of its document or of its group of tokens.

::

    record           0                        1
    tokens           a b c d e                f g
    source           1                        0           beside="source"            one value a record
    concept          [10, 11, 12]             [20]        every={"concept": 2}       one value for two tokens

    in rows          1 1 1 1 1                0 0
                     10 10 11 11 12           20 20
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cachelayer.datasets.dataset import LeafRead
from cachelayer.datasets.dataset_view import DatasetView
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.sequences.pieces import Pieces
from cachelayer.specs import dtypes, tree
from cachelayer.specs.leaf_names import in_condition, last_key, leaf_number, one_or_several
from cachelayer.specs.spec import ArraySpec, LeafSpec, describe_leaf
from cachelayer.specs.values import Nullable
from cachelayer.support.arguments import integer
from cachelayer.support.locks import PickledByFields
from cachelayer.support.memory import Ints, splits_of

FILL = ": some of its values may be None; store others in their place, with add_columns(replace=True)"
"""The end of an error about a field that has None among its values, with what to do."""


@dataclass(frozen=True, eq=False)
class TokenField(PickledByFields):
    """A field that rows of tokens have beside the tokens."""

    records: DatasetView
    """The records that have the documents."""
    name: str
    leaf: int
    """The number of the field among the stored leaves."""
    spec: LeafSpec
    every: int | None = None
    """The number of tokens that share a value of the field; None if all tokens of a document share its only value."""

    @property
    def key(self) -> str:
        """The key of the field in rows: the last part of its name."""
        return last_key(self.name)

    def spec_of_row(self, length: int) -> ArraySpec:
        """Return the spec of the field in a row of so many cells."""
        dtype = np.uint8 if dtypes.is_string(self.spec.dtype) else self.spec.dtype
        return ArraySpec(dtype, (length, *(() if self.every else self.spec.shape)), timezone=self.spec.timezone)

    def read(self, pieces: Pieces, lengths: Ints) -> LeafRead:
        """Return the reading that the pieces of some documents take."""
        if self.every is None:
            return LeafRead(self.leaf)
        first, count = self._groups_of_tokens(pieces, lengths, self.every)
        return LeafRead(self.leaf, first, count)

    def values_of_cells(self, pieces: Pieces, read: LeafRead, values: Any) -> NDArray[Any]:
        """Return the value of each cell of some pieces, ``[cells, *shape]``, given the reading and what it read."""
        if self.every is not None:
            return _of_groups(pieces, read, values, self.every)
        if isinstance(values, Nullable):
            missing = np.flatnonzero(~values.valid)
            if len(missing):
                raise InvalidArgumentError(
                    f"record {pieces.record[missing[0]]} has None in {self.name!r}, which has no value for its tokens: "
                    f"leave such records out with where('{in_condition(self.name)} is not None'), or store a value "
                    "with add_columns()"
                )
            values = values.values
        return np.repeat(values, pieces.cells, axis=0)

    def _groups_of_tokens(self, pieces: Pieces, lengths: Ints, size: int) -> tuple[Ints, Ints]:
        """Return the first group of tokens of which each piece has cells, and the number of its groups.

        A separator belongs to the last group of its document.
        """
        groups = -(-lengths // size)
        column = self.records.lengths(self.name).take(pieces.record)
        wrong = np.flatnonzero(column != groups)
        if len(wrong):
            row = int(wrong[0])
            raise InvalidArgumentError(
                f"record {pieces.record[row]} has {column[row]} values in {self.name!r} for {lengths[row]} tokens: one "
                f"for every {size} makes {groups[row]}"
            )
        last = np.maximum(groups - 1, 0)
        first = np.minimum(pieces.begin // size, last)
        stop = np.minimum((pieces.begin + pieces.cells - 1) // size, last) + 1
        return first, np.where(groups > 0, stop - first, 0)


def _of_groups(pieces: Pieces, read: LeafRead, values: NDArray[Any], size: int) -> NDArray[Any]:
    """Return the value of each cell of some pieces, given the values of their groups of ``size`` tokens."""
    first = cast(Ints, read.starts)
    read_counts = cast(Ints, read.counts)
    # A document without tokens may have the cell of a separator, whose value is 0: it counts as one group.
    counts = np.maximum(read_counts, 1)
    splits = splits_of(counts)
    piece = np.repeat(np.arange(len(counts)), counts)
    if len(values) < splits[-1]:
        filled = np.zeros(splits[-1], values.dtype)
        filled[read_counts[piece] > 0] = values
        values = filled
    # Where each group begins among the cells of its piece; the last one goes on to the end.
    starts = (first[piece] + np.arange(splits[-1]) - splits[:-1][piece]) * size - pieces.begin[piece]
    starts[splits[:-1]] = 0
    ends = np.append(starts[1:], 0)
    ends[splits[1:] - 1] = pieces.cells
    return np.repeat(values, ends - starts)


def names_beside(beside: Any) -> tuple[str, ...]:
    """Return the fields that a user asked for beside others: none, one or several."""
    return () if isinstance(beside, (tuple, list)) and not beside else one_or_several("beside", beside)


def token_fields(records: DatasetView, beside: Any, every: Any, call: str) -> tuple[TokenField, ...]:
    """Return the fields that a user asked for beside tokens, with the arguments of :meth:`View.windows`."""
    names = names_beside(beside)
    if every is not None and not isinstance(every, Mapping):
        raise InvalidTypeError(f"every={every!r}: pass a dict by the names of fields")
    if not names and not every:
        return ()
    spec = records.leaves_for(call).codec.spec
    leaves = [leaf for _, leaf in tree.leaves(spec)]
    fields_beside = []
    for name in names:
        number = leaf_number(spec, name)
        fields_beside.append(_of_documents(records, name, number, leaves[number]))
    for name, size in (every or {}).items():
        number = leaf_number(spec, name)
        leaf = leaves[number]
        if not has_documents(leaf):
            raise InvalidArgumentError(
                f"every: {name!r} is {describe_leaf(leaf)}: a value for each group of tokens is an array of shape "
                f"[None]; pass a field of one value a record as beside={FILL if leaf.nullable_values else ''}"
            )
        fields_beside.append(TokenField(records, name, number, leaf, integer(f"every: {name!r}", size, 1)))
    return tuple(fields_beside)


def _of_documents(records: DatasetView, name: str, number: int, leaf: LeafSpec) -> TokenField:
    """Return a field of one value a document."""
    if not isinstance(leaf, ArraySpec) or None in leaf.shape or leaf.nullable_values:
        cure = FILL if leaf.nullable_values else ""
        if has_documents(leaf):
            cure = f": name it beside the tokens, as in (..., {name!r}), or pass every={{{name!r}: 16}}"
        raise InvalidArgumentError(
            f"beside: {name!r} is {describe_leaf(leaf)}, and has no one value for a document{cure}"
        )
    if is_text(leaf):
        raise InvalidArgumentError(
            f"beside: {name!r} is {describe_leaf(leaf)}, and tokens have numbers beside them: add a field of integers "
            "with storage.add_columns(), such as the place of the text in a list, and pass that field"
        )
    return TokenField(records, name, number, leaf)


def is_text(spec: ArraySpec) -> bool:
    """Return whether a leaf has texts or bytes, of any length or of a fixed one."""
    return dtypes.is_string(spec.dtype) or np.dtype(spec.dtype).kind in "SU"


def has_documents(spec: LeafSpec) -> bool:
    """Return whether a leaf has one dimension, of varying length, of values of one size of which none is null."""
    if type(spec) is not ArraySpec or spec.nullable_values:
        return False
    return spec.shape == () if dtypes.is_string(spec.dtype) else spec.shape == (None,)
