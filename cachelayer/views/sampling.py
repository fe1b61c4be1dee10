"""Weighted samples: the records of a view, drawn by weights. Here weights are checked, and :class:`Sampled` streams."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any, Generic, TypedDict, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from cachelayer.datasets.dataset_view import DatasetView
from cachelayer.datasets.field_values import FieldReader
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.protocols import DatasetRows, T, identity_of_records
from cachelayer.specs import dtypes
from cachelayer.specs.leaf_names import leaf_number
from cachelayer.specs.spec import ArraySpec, LeafSpec, describe_leaf
from cachelayer.specs.tree import Tree, leaves
from cachelayer.specs.values import Nullable
from cachelayer.streams.order.orders import MOST_POSITIONS
from cachelayer.streams.order.weighted import WeightedOrder, sums_of
from cachelayer.streams.reading.step_reader import StepReader
from cachelayer.streams.stream import BatchStream, Stream, stream_of
from cachelayer.streams.stream_options import check_seed, make_options, takes_stream_options
from cachelayer.support.arguments import refuse_other_index
from cachelayer.versions.view_calls import ViewCall, ViewName

_ACCEPTED = "pass an array with one number for each record, or the name of a field"
_DRAWN = "each position draws a record by its weight"
Floats = NDArray[np.float64]


class SampleArguments(TypedDict, total=False):
    """The keyword arguments of a stream of a weighted sample."""

    shard: Any
    start: int
    prefetch: int


class Sampled(Generic[T]):
    """Endless streams of records that are drawn by their weights, with replacement.

    :meth:`cachelayer.View.sample` returns it.

    Examples:
        >>> letters = cachelayer.wrap("abcd", identity="letters")
        >>> sampled = letters.sample([0, 1, 3, 0], seed=1)
        >>> stream = sampled.stream(6)
        >>> stream[0].tolist(), stream[10**9].tolist()
        (['c', 'c', 'c', 'c', 'c', 'c'], ['c', 'b', 'b', 'c', 'c', 'b'])
    """

    def __init__(self, records: DatasetRows[T], order: WeightedOrder, name: ViewName | None = None) -> None:
        self._records = records
        self._order = order
        self._name = name

    @property
    def reference(self) -> str:
        """A text for :func:`cachelayer.open`, which opens this sample again; see :attr:`cachelayer.View.reference`.

        Raises:
            InvalidArgumentError: if no text names the sample: its records are of several versions, or its weights are
                no field.

        Examples:
            >>> rows = [{"text": "a", "weight": 1.0}, {"text": "b", "weight": 3.0}]
            >>> sampled = cachelayer.Storage(folder).submit(rows, "rows@v1").sample("weight", seed=0)
            >>> opened = cachelayer.open(sampled.reference)
            >>> opened.stream(4)[0]["text"].tolist() == sampled.stream(4)[0]["text"].tolist()
            True
        """
        if self._name is None:
            raise InvalidArgumentError(f"{self!r} has no reference, for it is no sample of one version")
        return self._name.reference(self.digest)

    def __identity__(self) -> Any:
        return identity_of_records(self._records), dict(self._order.described)

    @property
    def digest(self) -> str:
        """The digest of the records that are drawn from, in hexadecimal."""
        return self._records.origins.digests.elements

    @property
    def element_spec(self) -> Tree:
        """The structure of an element; its leaves are :class:`cachelayer.ArraySpec` or another leaf spec."""
        return self._records.element_spec

    @overload
    def stream(self, global_batch_size: None = ..., **options: Unpack[SampleArguments]) -> Stream[T]: ...
    @overload
    def stream(self, global_batch_size: int, **options: Unpack[SampleArguments]) -> BatchStream[T, Any]: ...
    @overload
    def stream(self, global_batch_size: int | None, **options: Unpack[SampleArguments]) -> Stream[Any]: ...
    @takes_stream_options(
        shuffle=f"{_DRAWN}, so nothing is left to shuffle; for blocks, stream the records themselves",
        seed="that of sample() keys the draws, and the random numbers of map(rng=True)",
        reshuffle=f"{_DRAWN}, and there are no epochs that could repeat",
        num_epochs="a weighted sample has no end and no epochs: take as many batches from it as you need",
        remainder="a weighted sample has no end, so all of its batches are whole",
        buckets="batches of similar lengths would change how often records are drawn: pad them with padded()",
    )
    def stream(self, global_batch_size: int | None = None, **options: Any) -> Stream[Any]:
        """Return the draws as an endless sequence: the same for any number of shards, resumable at any position.

        Each position is a draw of its own, whatever the batch size. The arguments mean what they do in
        :meth:`cachelayer.View.stream`. ``stream.record_numbers(t)`` gives the numbers of the records that step ``t``
        draws.

        Raises:
            InvalidArgumentError: if an argument is invalid; the message names it and the fix.
            InvalidTypeError: if an argument is of the wrong type.

        Examples:
            >>> letters = cachelayer.wrap("abcd", identity="letters")
            >>> sampled = letters.sample([0, 1, 3, 0], seed=1)
            >>> draws = [sampled.stream(8, shard=(host, 2))[0].tolist() for host in (0, 1)]
            >>> draws, draws[0] + draws[1] == sampled.stream(8)[0].tolist()
            ([['c', 'c', 'c', 'c'], ['c', 'c', 'b', 'c']], True)
        """
        checked = make_options(MOST_POSITIONS, global_batch_size, num_epochs=None, remainder="drop", **options)
        return stream_of(StepReader.of(self._records, replace(checked, order=self._order)))

    def __repr__(self) -> str:
        return f"Sampled({self._records!r}, seed={self._order.seed}, weights='sha256:{self._order.weights}')"


def sampled_of(view: DatasetView, weights: Any, seed: Any) -> Sampled[Any]:
    """Return weighted samples of a view, with the arguments of :meth:`cachelayer.View.sample`."""
    key = check_seed(seed)
    options = {"seed": key}
    if isinstance(weights, str):
        call = ViewCall("sample", (weights,), options)
    else:
        why = "sample() got numbers: storage.add_columns() keeps them as a field, whose name sample() takes"
        call = ViewCall("sample", options=options, why_unnamed=why)
    sums = sums_of(weights_of(view, weights))
    digest = hashlib.sha256(sums.astype("<f8", copy=False).data).hexdigest()
    name = None if view.name is None else view.name.then(call)
    return Sampled(view, WeightedOrder(sums=sums, weights=digest, seed=key), name)


def weights_of(view: DatasetView, weights: Any) -> Floats:
    """Return a weight for each record. They are finite, not negative, and not all 0."""
    if len(view) == 0:
        raise InvalidArgumentError("there are no records to draw from: sample() needs at least one")
    if not isinstance(weights, str):
        return _positive(_numbers(weights, len(view)))
    leaf = leaves(view.element_spec)[leaf_number(view.element_spec, weights)][1]
    if not is_one_number(leaf):
        raise InvalidArgumentError(f"{weights!r} is {describe_leaf(leaf)}: a weight is one number, which is not a bool")
    return _positive(field_of_all(view, weights, "sample()").astype(np.float64))


def _numbers(weights: Any, records: int) -> Floats:
    """Return numbers that a user passed as an array: float64 of shape ``[records]``."""
    kind = type(weights).__name__
    if kind == "MaskedArray":
        raise InvalidTypeError("weights in a masked array hide numbers: pass a plain array, with 0 for what is masked")
    if not isinstance(weights, (list, tuple, range)) and not hasattr(weights, "__array__"):
        raise InvalidTypeError(f"weights of type {kind}: {_ACCEPTED}")
    try:
        array = np.asarray(weights)
    except Exception as error:
        raise InvalidTypeError(f"weights: the {kind} does not become an array: {error}") from error
    refuse_other_index("weights", weights)
    if array.ndim != 1 or len(array) != records:
        raise InvalidArgumentError(f"weights of shape {list(array.shape)}: pass one for each record, [{records}]")
    if not _is_number(array.dtype):
        raise InvalidTypeError(f"weights of dtype {array.dtype}: pass integers or floats of at most 64 bits")
    return array.astype(np.float64)


def is_one_number(leaf: LeafSpec) -> bool:
    """Return whether a leaf is one number, which is not a bool."""
    return isinstance(leaf, ArraySpec) and not leaf.shape and _is_number(leaf.dtype)


def _is_number(dtype: dtypes.DType) -> bool:
    return isinstance(dtype, np.dtype) and dtype != np.bool_ and np.can_cast(dtype, np.float64)


def _positive(weights: Floats) -> Floats:
    """Return these weights; raise if one is negative or not finite, or all are 0."""
    wrong = np.flatnonzero(~((weights >= 0) & (weights < np.inf)))
    if len(wrong):
        record = int(wrong[0])
        more = f", as the first of {len(wrong)} such records" if len(wrong) > 1 else ""
        raise InvalidArgumentError(
            f"record {record} has the weight {weights[record]}{more}: weights are finite and not negative"
        )
    if not weights.any():
        raise InvalidArgumentError(f"all {len(weights)} weights are 0, so no record can be drawn")
    return weights


def field_of_all(view: DatasetView, name: str, call: str) -> NDArray[Any]:
    """Return the values of a field in all records."""
    column = FieldReader(view, call, skips_erased=False).column(name)
    if isinstance(column, Nullable):
        missing = np.flatnonzero(~column.valid)
        if len(missing):
            raise InvalidArgumentError(
                f"record {missing[0]} has no {name!r}, it is None: exclude() the records that have none, or pass an "
                "array of weights"
            )
        column = column.values
    return np.asarray(column)
