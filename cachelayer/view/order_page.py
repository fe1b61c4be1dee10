"""The page of the order: which records are in the batch of a step, for each shard."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from cachelayer.access.dataref import DataRef
from cachelayer.errors import InvalidArgumentError, StateError
from cachelayer.streams.block_order import Blocks
from cachelayer.streams.state import StreamIdentity
from cachelayer.streams.steps import MOST_POSITIONS
from cachelayer.streams.stream import Stream, reader_of, with_options
from cachelayer.view.batch import PAGE, batch_of, drawn_groups, sortable
from cachelayer.view.record_pages import LEAVES, THUMBNAIL
from cachelayer.view.render import page, whole
from cachelayer.view.storage_pages import ref_of, shelf_of

MOST_BATCH, MOST_SHARDS = 65_536, 4096
_SHARDS, _NUMBERS = 64, 64
_SHUFFLES: dict[str, bool | str] = {"none": False, "exact": True, "blocks": "blocks"}


@dataclass(frozen=True)
class Choice:
    """What the form of the page says.

    Args:
        batch: records of a step over all shards.
        shards: the number of shards.
        shard: the one whose records are drawn; None for all.
        step: the step, counted from the position of the state, or from 0.
        seed: of the shuffle.
        shuffle: ``none``, ``exact`` or ``blocks``.
        state: the state of a sampler as JSON; empty if there is none.
        by: the leaf by which the records are sorted; empty for the order of training.
    """

    batch: int
    shards: int
    shard: int | None
    step: int
    seed: int
    shuffle: str
    state: str
    by: str

    @classmethod
    def of(cls, query: Mapping[str, str], records: int) -> Choice:
        """Return the checked choice of a query.

        Raises:
            InvalidArgumentError: if a value is out of range.
        """
        shards = whole(query, "shards", 1, 1, MOST_SHARDS)
        shuffle = query.get("shuffle", "exact")
        if shuffle not in _SHUFFLES:
            raise InvalidArgumentError(f"shuffle={shuffle[:40]!r}: it is one of {', '.join(_SHUFFLES)}")
        default = max(shards, -(-min(32, max(1, records)) // shards) * shards)
        batch = whole(query, "batch", default, 1, MOST_BATCH)
        if batch % shards:
            raise InvalidArgumentError(f"batch={batch}: it must be a multiple of the {shards} shards, which share it")
        return cls(
            batch,
            shards,
            whole(query, "shard", 0, 0, shards - 1) if query.get("shard", "").strip() else None,
            whole(query, "step", 0, 0, MOST_POSITIONS - 1),
            whole(query, "seed", 0, 0, (1 << 64) - 1),
            shuffle,
            query.get("state", "").strip(),
            query.get("by", ""),
        )

    def query(self, step: int, shard: int | None, first: int = 0) -> str:
        """Return the query of the page of another step or shard, or of later records of the batch."""
        told = {
            "batch": self.batch,
            "shuffle": self.shuffle,
            "seed": self.seed,
            "shards": self.shards,
            "shard": shard,
            "step": step,
            "by": self.by or None,
            "from": first or None,
            "state": self.state or None,
        }
        return urlencode({name: value for name, value in told.items() if value is not None})


@dataclass(frozen=True)
class ShardRow:
    """The first records of a shard's part of the batch, and how many there are."""

    shard: int
    numbers: list[int]
    count: int


def order(request: Request) -> Response:
    """Show the batch of a step: its records, or those of one shard, and the numbers in each shard."""
    ref = ref_of(request)
    choice = Choice.of(request.query_params, len(ref))
    if len(ref) == 0:
        raise InvalidArgumentError(f"{ref.dataset_id}@{ref.dataset_version} has no records, and so no order")
    arguments, position = _order_of(ref, choice)
    stream = ref.stream(choice.batch, num_epochs=None, start=position, **arguments)
    step = reader_of(stream).options.steps.nth(position, choice.step)
    begin = position if step is None else step.begin
    look, raw = shelf_of(request).look(ref, THUMBNAIL, LEAVES), ref.raw()
    batch = batch_of(raw, _numbers(stream, choice, choice.shard), choice.by, look)
    first = whole(request.query_params, "from", 0, 0, MOST_BATCH)
    return page(
        "order.html",
        ref=ref,
        records=len(ref),
        choice=choice,
        seed=arguments["seed"],
        shuffles=list(_SHUFFLES),
        leaves=sortable(raw.element_spec),
        position=position,
        begin=begin,
        epoch=begin // len(ref),
        place=begin % len(ref),
        rows=[_row(stream, choice, shard) for shard in _shown(choice)],
        batch=batch,
        first=first,
        groups=drawn_groups(raw, batch, first, look),
        page_size=PAGE,
        python=_python(choice, arguments, position),
    )


def _shown(choice: Choice) -> range:
    """Return the shards whose numbers are listed."""
    if choice.shards <= _SHARDS:
        return range(choice.shards)
    first = min(choice.shard or 0, choice.shards - _SHARDS)
    return range(first, first + _SHARDS)


def _order_of(ref: DataRef[Any], choice: Choice) -> tuple[dict[str, Any], int]:
    """Return the arguments of the stream, and the position at which it begins: those of the state, if there is one.

    Raises:
        StateError: if the state is not one of this version.
    """
    if not choice.state:
        return {"shuffle": _SHUFFLES[choice.shuffle], "seed": choice.seed}, 0
    try:
        state = json.loads(choice.state)
    except (ValueError, RecursionError) as error:
        raise StateError(f"the state is not JSON: {error}") from error
    described = state.get("order") if isinstance(state, dict) else None
    if not isinstance(described, dict):
        raise StateError("not a sampler state: it has no order; paste what iterator.get_state() returned, as JSON")
    for name in ("buckets", "weights"):
        if name in described:
            raise StateError(f"the state is one of a stream with {name}, whose steps this page does not show")
    arguments = {
        "shuffle": _blocks(described["blocks"]) if "blocks" in described else described.get("shuffle"),
        "seed": described.get("seed"),
        "reshuffle": described.get("reshuffle", True),
    }
    stream = ref.stream(1, num_epochs=None, **arguments)
    return arguments, StreamIdentity(ref.digest, reader_of(stream).options.order).position(state)


def _blocks(sizes: Any) -> Blocks:
    if not isinstance(sizes, dict):
        raise StateError("not a sampler state: its blocks are no object")
    return Blocks(**{name: sizes.get(name) for name in ("records", "window", "lanes")})


def _of_shard(stream: Stream[Any], shard: int, shards: int) -> Stream[Any]:
    """Return the stream of a shard out of that of all, without the warnings that training would get."""
    steps = replace(reader_of(stream).options.steps, shard_count=shards)
    return with_options(stream, steps=steps, shard_index=shard)


def _numbers(stream: Stream[Any], choice: Choice, shard: int | None) -> list[int]:
    """Return the record numbers of a shard's part of the batch; of the whole batch for None."""
    part = _of_shard(stream, 0, 1) if shard is None else _of_shard(stream, shard, choice.shards)
    numbers: list[int] = part.records(choice.step).tolist()
    return numbers


def _row(stream: Stream[Any], choice: Choice, shard: int) -> ShardRow:
    numbers = _numbers(stream, choice, shard)
    return ShardRow(shard, numbers[:_NUMBERS], len(numbers))


def _python(choice: Choice, arguments: Mapping[str, Any], position: int) -> str:
    options = "".join(f", {name}={value!r}" for name, value in arguments.items() if value is not None)
    start = f", start={position}" if position else ""
    shard = "" if choice.shard is None else f", shard=({choice.shard}, {choice.shards})"
    return f"ref.stream({choice.batch}{options}{shard}, num_epochs=None{start}).records({choice.step})"
