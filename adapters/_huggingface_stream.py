"""Turn streams into Hugging Face ``IterableDataset``s."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import datasets
from datasets.iterable_dataset import DataSourcesShufflingDisallowed, _BaseExamplesIterable

from cachelayer.adapters._huggingface_features import stored_table
from cachelayer.adapters._huggingface_rows import ROWS_AT_ONCE, rows_of
from cachelayer.errors import InvalidArgumentError
from cachelayer.records.codec import codec_for
from cachelayer.records.tree import Tree
from cachelayer.streams.stream import Stream, iteration


class StreamDataset(datasets.IterableDataset):  # type: ignore[misc]
    """A dataset over a stream, in the stream's order."""

    def shuffle(self, *_args: Any, **_options: Any) -> Any:
        raise InvalidArgumentError("the stream decides the order: pass ref.stream(shuffle=True, seed=...)")


class Examples(_BaseExamplesIterable):  # type: ignore[misc]
    """The rows of a stream; its state is the stream's."""

    def __init__(self, stream: Stream[Any], spec: Tree, features: datasets.Features) -> None:
        super().__init__()
        self._stream = stream
        self._stream._next_order = "call set_epoch(e) of the dataset before each iteration"
        self._spec = spec
        self._features = features

    def _init_state_dict(self) -> dict[str, Any]:
        self._state_dict = {"stream": None, "type": type(self).__name__}
        return self._state_dict

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        iterator = iter(self._stream)
        if self._state_dict and self._state_dict["stream"] is not None:
            iterator.set_state(self._state_dict["stream"])
        codec = codec_for(self._spec)
        pairs = ((element, iterator.get_state()) for element in iterator)
        key = 0
        while chunk := list(islice(pairs, ROWS_AT_ONCE)):
            batch = codec.batch(codec.columns([element for element, _ in chunk]))
            rows = rows_of(stored_table(self._features, batch, len(chunk)))
            for row, (_, state) in zip(rows, chunk, strict=True):
                if self._state_dict:
                    self._state_dict["stream"] = state
                yield key, row
                key += 1

    def shuffle_data_sources(self, generator: Any) -> Examples:  # noqa: ARG002
        # set_epoch() calls this too; after this error it calls shift_rngs().
        raise DataSourcesShufflingDisallowed

    def shift_rngs(self, value: int) -> Examples:
        """Return the rows of an epoch, after ``set_epoch()``."""
        return Examples(iteration(self._stream, value), self._spec, self._features)

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
