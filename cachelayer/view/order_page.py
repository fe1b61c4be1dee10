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
from cachelayer.streams.steps import MOST_POSITIONS
from cachelayer.streams.stream import Stream, reader_of, with_options
from cachelayer.view.batch import PAGE, batch_of, drawn_groups, sortable
from cachelayer.view.made_views import MadeView, records_of_version, stored_of
from cachelayer.view.record_pages import LEAVES, THUMBNAIL
from cachelayer.view.render import Shelf, page, whole
from cachelayer.view.storage_pages import ref_of, shelf_of

MOST_BATCH, MOST_SHARDS = 65_536, 4096
_SHARDS, _NUMBERS = 64, 64
_OTHER_RECORDS = (
    "the state belongs to another stream: its records are not these. If its stream was one of a view, such as "
    "ref[:45000] or ref.windows(...), enter the view; mixtures are not shown here, stream.records(t) lists them"
)
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
        view: what stands between the version and ``.stream(...)`` in a program; empty if nothing does.
        buckets: the argument ``buckets`` of the stream in Python; empty for none.
    """

    batch: int
    shards: int
    shard: int | None
    step: int
    seed: int
    shuffle: str
    state: str
    by: str
    view: str
    buckets: str

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
            query.get("view", "").strip().removeprefix("ref"),
            query.get("buckets", "").strip(),
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
            "view": self.view or None,
            "buckets": self.buckets or None,
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
    ref, shelf = ref_of(request), shelf_of(request)
    choice = Choice.of(request.query_params, len(ref))
    made = shelf.made_view(ref, choice.view, choice.buckets)
    if len(made.view) == 0:
        raise InvalidArgumentError(
            f"{ref.dataset_id}@{ref.dataset_version}{choice.view} has no records, and so no order"
        )
    choice, made, arguments, position = _order_of(shelf, ref, choice, made)
    stream = _stream(made, choice, arguments, position)
    steps = reader_of(stream).options.steps
    step = steps.nth(position, choice.step)
    begin = position if step is None else step.begin
    look, drawn = shelf.look(ref, THUMBNAIL, LEAVES), stored_of(made.view)
    batch = batch_of(drawn, _numbers(stream, choice, choice.shard), choice.by, look)
    first = whole(request.query_params, "from", 0, 0, MOST_BATCH)
    groups = drawn_groups(drawn, batch, first, look)
    shown = [record.number for group in groups for record in group.records] if choice.view else []
    return page(
        "order.html",
        ref=ref,
        records=len(made.view),
        choice=choice,
        is_sampled=made.sampled is not None,
        bound=None if made.buckets is None or step is None else made.buckets.lengths[steps.bucket(step)],
        seed=arguments.get("seed"),
        shuffles=list(_SHUFFLES),
        leaves=sortable(made.view.element_spec),
        position=position,
        begin=begin,
        epoch=begin // len(made.view),
        place=begin % len(made.view),
        rows=[_row(stream, choice, shard) for shard in _shown(choice)],
        batch=batch,
        first=first,
        groups=groups,
        origins=dict(zip(shown, records_of_version(ref, made.view, shown), strict=True)),
        page_size=PAGE,
        python=_python(choice, arguments, position),
    )


def _stream(made: MadeView, choice: Choice, arguments: Mapping[str, Any], position: int) -> Stream[Any]:
    if made.sampled is not None:
        return made.sampled.stream(choice.batch, start=position)
    return made.view.stream(choice.batch, num_epochs=None, start=position, buckets=made.buckets, **arguments)


def _shown(choice: Choice) -> range:
    """Return the shards whose numbers are listed."""
    if choice.shards <= _SHARDS:
        return range(choice.shards)
    first = min(choice.shard or 0, choice.shards - _SHARDS)
    return range(first, first + _SHARDS)


def _order_of(
    shelf: Shelf, ref: DataRef[Any], choice: Choice, made: MadeView
) -> tuple[Choice, MadeView, dict[str, Any], int]:
    """Return the choice, the view, the arguments of the stream, and its position: those of the state, if there is one.

    Raises:
        StateError: if the state is not one of this view.
    """
    arguments: dict[str, Any] = {"shuffle": _SHUFFLES[choice.shuffle], "seed": choice.seed}
    if made.sampled is not None:
        arguments = {}
    if not choice.state:
        return choice, made, arguments, 0
    state, described = _described(choice.state)
    if "weights" in described and made.sampled is None:
        raise StateError(
            'the state is one of a weighted sample: enter what draws it as the view, such as .sample("weight", seed=3)'
        )
    if "buckets" in described:
        choice = _bucketed(choice, described["buckets"])
        made = shelf.made_view(ref, choice.view, choice.buckets)
    if made.sampled is None:
        arguments = {
            "shuffle": _blocks(described["blocks"]) if "blocks" in described else described.get("shuffle"),
            "seed": described.get("seed"),
            "reshuffle": described.get("reshuffle", True),
        }
    stream = _stream(made, choice, arguments, 0)
    identity = reader_of(stream).identity
    if state.get("digest") != identity.digest:
        raise StateError(_OTHER_RECORDS)
    return choice, made, arguments, identity.position(state)


def _described(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a state, and what it says of its order.

    Raises:
        StateError: if it is not a state.
    """
    try:
        state = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StateError(f"the state is not JSON: {error}") from error
    described = state.get("order") if isinstance(state, dict) else None
    if not isinstance(described, dict):
        raise StateError("not a sampler state: it has no order; paste what iterator.get_state() returned, as JSON")
    return state, described


def _bucketed(choice: Choice, described: Any) -> Choice:
    """Return the choice with the buckets and the batch size that a state has."""
    names = ("leaves", "bounds", "global_batch_size")
    if not isinstance(described, dict) or any(name not in described for name in names):
        raise StateError("not a sampler state: its buckets are no object with leaves, bounds and global_batch_size")
    leaves, bounds, batch = (described[name] for name in names)
    checked = whole({"batch": str(batch)}, "batch", 1, 1, MOST_BATCH)
    if checked % choice.shards:
        raise StateError(f"the batch size of the state is {checked}, not a multiple of {choice.shards} shards")
    return replace(choice, batch=checked, buckets=repr((leaves, bounds)))


def _blocks(sizes: Any) -> Blocks:
    if not isinstance(sizes, dict):
        raise StateError("not a sampler state: its blocks are no object")
    if any(isinstance(size, list) for size in sizes.values()):
        # The sizes of each part of a mixture.
        raise StateError(_OTHER_RECORDS)
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
    options += f", buckets={choice.buckets}" if choice.buckets else ""
    options += "" if choice.shard is None else f", shard=({choice.shard}, {choice.shards})"
    options += ", num_epochs=None" if arguments else ""
    start = f", start={position}" if position else ""
    return f"ref{choice.view}.stream({choice.batch}{options}{start}).records({choice.step})"
