"""Turn streams into Hugging Face ``IterableDataset``s."""

from __future__ import annotations

import datetime as dt
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import datasets
from datasets.iterable_dataset import DataSourcesShufflingDisallowed, _BaseExamplesIterable

from cachelayer.adapters.sources.huggingface_features import FILES, LISTS, plain
from cachelayer.errors import InvalidArgumentError
from cachelayer.records.codec import codec_for
from cachelayer.records.tree import Tree
from cachelayer.records.values import Ragged
from cachelayer.streams.stream import Stream, is_endless, iteration
from cachelayer.user_warnings import warn


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
    """The rows of a stream; its state is the stream's.

    Args:
        stream: the stream.
        spec: the spec that its elements are to be fitted to; None if they are those of a version.
        features: the features of the rows.
        reached: where an endless stream goes on.
    """

    def __init__(
        self, stream: Stream[Any], spec: Tree | None, features: datasets.Features, reached: Reached | None = None
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
        codec = None if self._spec is None else codec_for(self._spec)
        features = dict(self._features)
        for key, element in enumerate(iterator):
            if codec is not None:
                [element] = codec.elements(codec.columns([element]), 1)
            row = row_of(features, element, "")
            self.reached.state = iterator.get_state()
            if self._state_dict:
                self._state_dict["stream"] = self.reached.state
            yield key, row

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


def row_of(feature: Any, value: Any, path: str) -> Any:
    """Return a value of an element as ``datasets`` has it: lists for arrays, and a list of dicts for a dict of lists.

    Times are Python's, or NumPy's if Python does not have them.
    """
    feature = plain(feature)
    if isinstance(feature, dict):
        return {name: row_of(child, value[name], f"{path}[{name!r}]") for name, child in feature.items()}
    inner, dims = feature, []
    while isinstance(inner, LISTS):
        dims.append(getattr(inner, "length", -1))
        inner = plain(inner.feature)
    if isinstance(inner, dict):
        return _zipped(feature, {name: row_of(child, value[name], path) for name, child in inner.items()})
    dims += getattr(inner, "shape", ())
    shape = getattr(value, "shape", ())
    if 0 in shape and any(shape[n] and dims[n] in (-1, None) for n in range(shape.index(0), len(shape))):
        warn(f"leaf {path} holds an array of shape {list(shape)}: lists keep no dimension after one of length 0")
    if isinstance(inner, FILES):
        return _each(lambda data: {"bytes": data, "path": None}, _python(value))
    if isinstance(inner, datasets.Json):
        return _each(json.loads, _python(value))
    if isinstance(inner, datasets.Value) and inner.dtype.startswith("time") and not inner.dtype.startswith("timestamp"):
        return _each(_time_of_day, _python(value))
    return _python(value)


def _zipped(feature: Any, lists: dict[str, Any]) -> Any:
    if None in lists.values():
        return None
    rows = [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
    inner = plain(feature.feature)
    return rows if isinstance(inner, dict) else [_zipped(inner, row) for row in rows]


def _each(convert: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, list):
        return [_each(convert, child) for child in value]
    return None if value is None else convert(value)


def _python(value: Any) -> Any:
    dtype = getattr(value, "dtype", None)
    if isinstance(value, Ragged) or (dtype is not None and dtype.kind in "mM" and value.shape):
        return [_python(row) for row in value]
    if dtype is None or dtype.kind not in "mM":
        return value if dtype is None else value.tolist()
    time = value[()]
    return time.item() if isinstance(time.item(), (dt.date, dt.timedelta)) else time


def _time_of_day(span: Any) -> Any:
    return (dt.datetime.min + span).time() if isinstance(span, dt.timedelta) else span
