"""Turn streams into Hugging Face ``IterableDataset``s."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
from datasets.iterable_dataset import DataSourcesShufflingDisallowed, _BaseExamplesIterable

from cachelayer.adapters._huggingface_features import stored_table
from cachelayer.errors import InvalidArgumentError
from cachelayer.records.codec import codec_for
from cachelayer.records.tree import Tree
from cachelayer.streams.stream import Stream, is_endless, iteration
from cachelayer.user_warnings import warn

ROWS_AT_ONCE = 256


class StreamIterableDataset(datasets.IterableDataset):  # type: ignore[misc]
    """A dataset over a stream, in the stream's order."""

    def shuffle(self, *_args: Any, **_options: Any) -> Any:
        raise InvalidArgumentError("the stream decides the order: pass ref.stream(shuffle=True, seed=...)")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        examples = self._ex_iterable
        if is_endless(examples.stream):
            # ``datasets`` would begin every further iteration there too.
            examples.reached.state = state_dict["examples_iterable"]["stream"]
        else:
            super().load_state_dict(state_dict)


@dataclass
class Reached:
    """The state after the last row that a stream returned; None at its start. An endless stream goes on there."""

    state: Any = None


class Examples(_BaseExamplesIterable):  # type: ignore[misc]
    """The rows of a stream; its state is the stream's."""

    def __init__(
        self, stream: Stream[Any], spec: Tree, features: datasets.Features, reached: Reached | None = None
    ) -> None:
        super().__init__()
        self.reached = Reached() if reached is None else reached
        self.stream = stream
        self.stream._next_order = "call set_epoch(e) of the dataset before each iteration"
        self._spec = spec
        self._features = features

    def _init_state_dict(self) -> dict[str, Any]:
        self._state_dict = {"stream": None, "type": type(self).__name__}
        return self._state_dict

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        iterator = iter(self.stream)
        state = self._begin()
        if state is not None:
            iterator.set_state(state)
        codec = codec_for(self._spec)
        pairs = ((element, iterator.get_state()) for element in iterator)
        key = 0
        while chunk := list(islice(pairs, ROWS_AT_ONCE)):
            batch = codec.batch(codec.columns([element for element, _ in chunk]))
            rows = rows_of(stored_table(self._features, batch, len(chunk)))
            for row, (_, state) in zip(rows, chunk, strict=True):
                if self._state_dict:
                    self._state_dict["stream"] = state
                self.reached.state = state
                yield key, row
                key += 1

    def _begin(self) -> Any:
        """Return the state where an iteration begins; None for the start of the stream."""
        restored = self._state_dict["stream"] if self._state_dict else None
        if not is_endless(self.stream):
            return restored
        _warn_of_workers()
        return self.reached.state if restored is None else restored

    def shuffle_data_sources(self, generator: Any) -> Examples:  # noqa: ARG002
        # set_epoch() calls this too; after this error it calls shift_rngs().
        raise DataSourcesShufflingDisallowed

    def shift_rngs(self, value: int) -> Examples:
        """Return the rows of an epoch, after ``set_epoch()``."""
        return Examples(iteration(self.stream, value), self._spec, self._features, self.reached)

    def shard_data_sources(self, num_shards: int, index: int, contiguous: bool = True) -> Examples:  # noqa: ARG002
        if num_shards == 1:
            return self
        raise InvalidArgumentError(
            f"the rows come from one stream: for a shard pass ref.stream(shard=({index}, {num_shards})), or call "
            "datasets.distributed.split_dataset_by_node(); a DataLoader reads them with num_workers=0"
        )

    @property
    def num_shards(self) -> int:
        return 1


def _warn_of_workers() -> None:
    """Warn in a worker process of a ``DataLoader``: nobody tells it which of its rows were consumed."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.utils.data.get_worker_info() is not None:
        warn(
            "an endless stream in a worker process of a DataLoader goes on where the worker stopped reading, or starts "
            "over, with each iteration of the DataLoader: pass num_workers=0, or use cachelayer.adapters.torch.loader()"
        )


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table, with arrays as lists, and times in nanoseconds as NumPy's, which keep them."""
    columns = [_python(column.combine_chunks()) for column in table.columns]
    return [dict(zip(table.column_names, values, strict=True)) for values in zip(*columns, strict=True)]


def _python(array: pa.Array) -> list[Any]:
    if isinstance(array.type, pa.JsonType):
        return [None if text is None else json.loads(text) for text in array.storage.to_pylist()]
    if isinstance(array, pa.ExtensionArray):
        # The conversion of datasets fails if there are nulls among arrays of unknown shape.
        return _python(array.storage)
    kind = array.type
    if kinds.is_struct(kind):
        parts = [_python(part) for part in array.flatten()]
        names = [field.name for field in kind]
        rows = (
            [dict(zip(names, values, strict=True)) for values in zip(*parts, strict=True)]
            if parts
            else [{} for _ in array]
        )
        return _with_nulls(array, rows)
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_pylist()
        values = iter(_python(array.flatten()))
        return _with_nulls(array, [list(islice(values, length)) for length in lengths])
    if kinds.is_temporal(kind):
        return _times(array)
    scalars: list[Any] = array.to_pylist()
    return scalars


def _times(array: pa.Array) -> list[Any]:
    """Return Python's times, or NumPy's if Python cannot hold them."""
    if kinds.is_time64(array.type) and array.type.unit == "ns":
        array = array.view(pa.duration("ns"))
    if getattr(array.type, "unit", None) != "ns":
        with suppress(OverflowError, ValueError):
            times: list[Any] = array.to_pylist()
            return times
    if len(array) > 1 and getattr(array.type, "unit", None) != "ns":
        # Use NumPy's only for the times that are out of Python's range.
        return [value for row in range(len(array)) for value in _times(array.slice(row, 1))]
    return _with_nulls(array, list(array.to_numpy(zero_copy_only=False)))


def _with_nulls(array: pa.Array, values: list[Any]) -> list[Any]:
    if not array.null_count:
        return values
    return [value if valid else None for value, valid in zip(values, pc.is_valid(array).to_pylist(), strict=True)]
