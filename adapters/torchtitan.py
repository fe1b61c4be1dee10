"""Train with torchtitan from cached tokens: a data loader whose state fits any data-parallel degree.

Put :class:`TokenDataLoader.Config` into ``Trainer.Config(dataloader=...)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

import cachelayer
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.specs.spec import ArraySpec
from cachelayer.streams.stream import Stream
from cachelayer.support.extras import packages_of
from cachelayer.views.mix import Mixture
from cachelayer.views.view import View

with packages_of("torchtitan", "this needs torchtitan 0.3"):
    import torch
    import tyro
    from torchtitan.components.dataloader import BaseDataLoader

    from cachelayer.adapters.torch import Loader

__all__ = ["TokenDataLoader"]

# What torchtitan's losses ignore.
_NO_LABEL = -100


class TokenDataLoader(BaseDataLoader):  # type: ignore[misc]
    """Rows of tokens for torchtitan: ``({"input": [B, L], "positions": [B, L]}, labels [B, L])``, int64.

    L is torchtitan's ``seq_len`` and B its ``local_batch_size``. The label of a token is the token after it. It is -100
    at the end of a document and in padding, and where ``loss_mask`` is 0. Positions begin at 0 in each document, which
    is how torchtitan keeps documents from seeing each other; rows that do not tell their documents are one document.

    All ranks together read global batches of B times the data-parallel degree, in an order that does not depend on the
    degree. The state is one position, the same on every rank, and restores on any degree. If ``infinite`` is True,
    every batch is full: the last rows of an epoch share a batch with the first of the next. If it is False, the last
    batch is filled up with rows without labels, so that every rank has the same number of batches.

    Examples:
        >>> import numpy as np
        >>> from cachelayer.adapters.torchtitan import TokenDataLoader
        >>> documents = [{"tokens": np.array([1, 2, 3], np.int32)}, {"tokens": np.array([4, 5], np.int32)}]
        >>> spec = {"tokens": cachelayer.ArraySpec("int32", (None,))}
        >>> ref = cachelayer.Storage(folder).cache(documents, "documents@v1", element_spec=spec)
        >>> rows = ref.packed("tokens", 5)
        >>> config = TokenDataLoader.Config(rows=rows, shuffle=False)
        >>> loader = TokenDataLoader(config, dp_world_size=1, dp_rank=0, seq_len=4, local_batch_size=1)
        >>> inputs, labels = next(iter(loader))
        >>> inputs["input"].tolist(), inputs["positions"].tolist(), labels.tolist()
        ([[1, 2, 3, 4]], [[0, 1, 2, 0]], [[2, 3, -100, 5]])
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        """The rows to read, and their order.

        Args:
            dataset: a reference to cached documents, such as ``"gs://bucket/prefix/c4@v1"``, which are packed.
            rows: in place of ``dataset``: rows of ``seq_len + 1`` tokens (of ``seq_len``: the last one has no label),
                made by ``packed`` or ``windows``, or a mixture of such; or a function of ``seq_len + 1`` that makes
                them.
            leaf: the name of the tokens.
            loss_mask: the name of a field beside the tokens that is 0 for tokens that are no labels, such as those of a
                prompt.
            shuffle: whether rows are shuffled, each epoch anew; ``"blocks"`` if they are read from an object store.
            seed: an integer in [0, 2**64).
            infinite: whether epoch follows epoch without end.
        """

        # Of Any, tyro would take the object apart that is the default.
        rows: Annotated[object | None, tyro.conf.Suppress] = None
        leaf: str = "tokens"
        loss_mask: str | None = None
        shuffle: bool | Literal["blocks"] = True
        seed: int = 0
        infinite: bool = True

    def __init__(
        self, config: Config, *, dp_world_size: int, dp_rank: int, seq_len: int, local_batch_size: int, **_: Any
    ) -> None:
        """Make the loader of a rank; ``config.build(...)``, which torchtitan calls, does it.

        Args:
            config: what to read.
            dp_world_size: the data-parallel degree.
            dp_rank: the rank of this process among them.
            seq_len: the number of tokens that a row of the model has.
            local_batch_size: the number of rows of a batch of this rank.

        Raises:
            InvalidArgumentError: if the rows have another length, or end although they should not, or the other way.
            InvalidTypeError: if ``rows`` is neither a view nor a mixture.
        """
        rows = _rows_of(config, seq_len)
        _check_rows(rows, config, seq_len)
        stream = _stream_of(rows, config, dp_world_size * local_batch_size, (dp_rank, dp_world_size))
        to_batch = partial(training_batch, leaf=config.leaf, loss_mask=config.loss_mask, length=seq_len)
        self._has_padding = not config.infinite
        self._loader: Loader[Any] = Loader(stream.map_batches(to_batch), 0, None)

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        """Iterate from the position of the state on."""
        for item in self._loader:
            batch = item
            is_row = None
            if self._has_padding:
                batch, is_row = item
            inputs, labels = batch
            if is_row is not None:
                labels[~is_row] = _NO_LABEL
            yield inputs, labels

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last batch that was returned: small, JSON, the same on every rank.

        Examples:
            >>> import numpy as np
            >>> from cachelayer.adapters.torchtitan import TokenDataLoader
            >>> rows = cachelayer.wrap([{"tokens": np.arange(5) + n} for n in range(4)], identity="rows")
            >>> config = TokenDataLoader.Config(rows=rows, seed=3)
            >>> loader = TokenDataLoader(config, dp_world_size=1, dp_rank=0, seq_len=4, local_batch_size=2)
            >>> batch = next(iter(loader))
            >>> loader.state_dict()["stream"]["position"]
            2
        """
        return {"stream": self._loader.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Begin the next iteration at a saved state, of any data-parallel degree and any batch size.

        Raises:
            StateError: if the state belongs to other rows or another order.

        Examples:
            >>> import numpy as np
            >>> from cachelayer.adapters.torchtitan import TokenDataLoader
            >>> rows = cachelayer.wrap([{"tokens": np.arange(5) + n} for n in range(4)], identity="rows")
            >>> config = TokenDataLoader.Config(rows=rows, shuffle=False)
            >>> loader = TokenDataLoader(config, dp_world_size=1, dp_rank=0, seq_len=4, local_batch_size=2)
            >>> batch = next(iter(loader))
            >>> resumed = TokenDataLoader(config, dp_world_size=2, dp_rank=1, seq_len=4, local_batch_size=1)
            >>> resumed.load_state_dict(loader.state_dict())
            >>> inputs, labels = next(iter(resumed))
            >>> inputs["input"].tolist(), labels.tolist()
            ([[3, 4, 5, 6]], [[4, 5, 6, 7]])
        """
        self._loader.load_state_dict(state_dict["stream"])

    def close(self) -> None:
        """Stop reading ahead. The state stays, and a new iteration goes on from it.

        Examples:
            >>> import numpy as np
            >>> from cachelayer.adapters.torchtitan import TokenDataLoader
            >>> rows = cachelayer.wrap([{"tokens": np.arange(5) + n} for n in range(4)], identity="rows")
            >>> config = TokenDataLoader.Config(rows=rows, seed=3)
            >>> loader = TokenDataLoader(config, dp_world_size=1, dp_rank=0, seq_len=4, local_batch_size=2)
            >>> batch = next(iter(loader))
            >>> loader.close()
            >>> loader.state_dict()["stream"]["position"]
            2
        """
        self._loader.load_state_dict(self._loader.state_dict())


def training_batch(
    batch: dict[str, NDArray[Any]], *, leaf: str, loss_mask: str | None, length: int
) -> tuple[dict[str, NDArray[np.int64]], NDArray[np.int64]]:
    """Return the inputs, their positions and their labels for a batch of rows, ``[rows, length]`` each, int64.

    Rows have ``length`` or ``length + 1`` tokens. ``loss_mask`` names the leaf that is 0 for tokens that are no labels.
    """
    tokens = batch[leaf].astype(np.int64)
    segments = batch.get(f"{leaf}_segment_ids")
    mask = batch.get(f"{leaf}_mask")
    is_label = np.ones(tokens.shape, bool) if mask is None else mask.copy()
    if loss_mask is not None:
        is_label &= batch[loss_mask] != 0
    labels = np.full((len(tokens), length), _NO_LABEL, np.int64)
    following = is_label[:, 1:]
    if segments is None:
        positions = np.broadcast_to(np.arange(length, dtype=np.int64), (len(tokens), length)).copy()
    else:
        following &= (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] != 0)
        # All padding of a row is one document: each document costs the attention a mask.
        in_padding = np.cumsum(segments == 0, axis=1) - 1
        positions = np.where(segments == 0, in_padding, batch[f"{leaf}_positions"])[:, :length].astype(np.int64)
    labels[:, : tokens.shape[1] - 1] = np.where(following, tokens[:, 1:], _NO_LABEL)
    return {"input": np.ascontiguousarray(tokens[:, :length]), "positions": positions}, labels


def _rows_of(config: TokenDataLoader.Config, seq_len: int) -> Any:
    rows: Any = config.rows
    if rows is None:
        if not config.dataset:
            raise InvalidArgumentError(
                "TokenDataLoader.Config() needs rows=, such as ref.packed('tokens', seq_len + 1), or "
                "dataset='<storage>/<id>@<version>'"
            )
        leaves = (config.leaf, config.loss_mask) if config.loss_mask else config.leaf
        return cachelayer.open(config.dataset).packed(leaves, seq_len + 1)
    return rows if hasattr(rows, "stream") or not callable(rows) else rows(seq_len + 1)


def _check_rows(rows: Any, config: TokenDataLoader.Config, seq_len: int) -> None:
    if not hasattr(rows, "stream"):
        raise InvalidTypeError(f"rows of type {type(rows).__name__}: pass packed(...), windows(...) or mix([...])")
    spec = rows.element_spec
    for name in filter(None, (config.leaf, config.loss_mask)):
        leaf = spec.get(name) if isinstance(spec, dict) else None
        if not isinstance(leaf, ArraySpec) or leaf.shape not in ((seq_len,), (seq_len + 1,)):
            raise InvalidArgumentError(
                f"rows with {name!r}: {leaf}, for seq_len {seq_len}: pass rows of seq_len + 1 tokens, such as "
                f"ref.packed({name!r}, {seq_len + 1}) or ref.windows({name!r}, {seq_len + 1}, stride={seq_len})"
            )


def _stream_of(rows: Any, config: TokenDataLoader.Config, size: int, shard: tuple[int, int]) -> Stream[Any]:
    ends = isinstance(rows, View) or (isinstance(rows, Mixture) and rows._ends)
    if not config.infinite and not ends:
        raise InvalidArgumentError("infinite=False, but the rows have no end: pass stop='first' or 'all' to mix()")
    if config.infinite and ends and isinstance(rows, Mixture):
        raise InvalidArgumentError("infinite=True, but the mixture ends: leave stop= out of mix()")
    options: dict[str, Any] = {"shard": shard}
    if config.shuffle:
        options |= {"shuffle": config.shuffle, "seed": config.seed}
    if not config.infinite:
        options["remainder"] = "pad"
    elif ends:
        options |= {"num_epochs": None, "remainder": "wrap"}
    stream: Stream[Any] = rows.stream(size, **options)
    return stream
