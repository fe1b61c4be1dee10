"""The page of the order: which records are in the batch of a step, for each shard."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlencode

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from cachelayer.access.dataref import DataRef
from cachelayer.errors import InvalidArgumentError, StateError
from cachelayer.streams.order.blocks import Blocks
from cachelayer.view.batch import PAGE, batch_of, drawn_groups, sortable
from cachelayer.view.record_pages import LEAVES, THUMBNAIL
from cachelayer.view.render import page, ref_of, shelf_of, whole

MOST_BATCH, MOST_SHARDS, MOST_STEPS = 65_536, 1024, 1 << 62
# The numbers of records that are listed for each shard.
_NUMBERS = 64
_SHUFFLES: dict[str, bool | str] = {"none": False, "exact": True, "blocks": "blocks"}
_OTHERS = (
    "the page shows the steps of whole versions; of views, samples, buckets and mixtures stream.records(t) lists them, "
    "and .../records?at=1,5,9 shows the records of these numbers"
)


@dataclass(frozen=True)
class Choice:
    """What the form of the page says.

    Args:
        batch: records of a step over all shards.
        shuffle: ``none``, ``exact`` or ``blocks``.
        seed: of the shuffle.
        shards: the number of shards.
        shard: the one whose records are drawn; None for all.
        step: the step, counted from the position of the state, or from 0.
        by: the leaf by which the records are sorted; empty for the order of training.
        state: the state of an iterator as JSON; empty if there is none.
    """

    batch: int
    shuffle: str
    seed: int
    shards: int
    shard: int | None
    step: int
    by: str
    state: str

    @classmethod
    def of(cls, query: Mapping[str, str], records: int) -> Choice:
        """Return the checked choice of a query."""
        shards = whole(query, "shards", 1, 1, MOST_SHARDS)
        shuffle = query.get("shuffle", "exact")
        if shuffle not in _SHUFFLES:
            raise InvalidArgumentError(f"shuffle={shuffle[:40]!r}: it is one of {', '.join(_SHUFFLES)}")
        default = max(shards, -(-min(32, max(1, records)) // shards) * shards)
        batch = whole(query, "batch", default, 1, MOST_BATCH)
        if batch % shards:
            raise InvalidArgumentError(f"batch={batch}: it must be a multiple of the {shards} shards, which share it")
        if query.get("view") or query.get("buckets"):
            raise InvalidArgumentError(_OTHERS)
        return cls(
            batch,
            shuffle,
            whole(query, "seed", 0, 0, (1 << 64) - 1),
            shards,
            whole(query, "shard", 0, 0, shards - 1) if query.get("shard", "").strip() else None,
            whole(query, "step", 0, 0, MOST_STEPS - 1),
            query.get("by", ""),
            query.get("state", "").strip(),
        )

    def query(self, step: int, shard: int | None, first: int = 0) -> str:
        """Return the query of the page of another step or shard, or of later records of the batch."""
        parts = {**asdict(self), "step": step, "shard": shard, "from": first or None}
        return urlencode({name: value for name, value in parts.items() if value not in (None, "")})


def order(request: Request) -> Response:
    """Show the batch of a step: its records, or those of one shard, and the numbers in each shard."""
    ref, shelf, query = ref_of(request), shelf_of(request), request.query_params
    choice = Choice.of(query, len(ref))
    if len(ref) == 0:
        raise InvalidArgumentError(f"{ref.dataset_id}@{ref.dataset_version} has no records, and so no order")
    arguments, position = _order_of(ref, choice)
    stream = ref.stream(choice.batch, num_epochs=None, start=position, **arguments)
    numbers = stream.records(choice.step)
    # Each shard takes a contiguous part.
    parts = [part.tolist() for part in np.array_split(numbers, choice.shards)]
    begin = _begin(len(ref), choice.batch, position, choice.step)
    raw, look = ref.raw(), shelf.look(ref, THUMBNAIL, LEAVES)
    batch = batch_of(raw, numbers.tolist() if choice.shard is None else parts[choice.shard], choice.by, look)
    first = whole(query, "from", 0, 0, MOST_BATCH)
    return page(
        "order.html",
        ref=ref,
        records=len(ref),
        choice=choice,
        shuffles=list(_SHUFFLES),
        leaves=sortable(raw.element_spec),
        seed=arguments["seed"],
        position=position,
        begin=begin,
        parts=parts,
        most_numbers=_NUMBERS,
        batch=batch,
        first=first,
        groups=drawn_groups(raw, batch, first, look),
        page_size=PAGE,
        python=_python(choice, arguments, position),
    )


def _begin(records: int, batch: int, position: int, step: int) -> int:
    """Return the position where a step begins that is counted from a position; no step reaches into another epoch."""
    epoch, place = divmod(position, records)
    left = -((place - records) // batch)
    if step < left:
        return position + step * batch
    more, step = divmod(step - left, -(-records // batch))
    return (epoch + 1 + more) * records + step * batch


def _order_of(ref: DataRef[Any], choice: Choice) -> tuple[dict[str, Any], int]:
    """Return the arguments of the stream, and its position: those of the state, if there is one."""
    if not choice.state:
        return {"shuffle": _SHUFFLES[choice.shuffle], "seed": choice.seed}, 0
    try:
        state = json.loads(choice.state)
    except (ValueError, RecursionError) as error:
        raise StateError(f"the state is not JSON: {error}") from error
    described = state.get("order") if isinstance(state, dict) else None
    if not isinstance(described, dict):
        raise StateError("not the state of an iterator: it has no order; paste what get_state() returned, as JSON")
    arguments: dict[str, Any] = {name: described.get(name) for name in ("shuffle", "seed")}
    arguments["reshuffle"] = described.get("reshuffle", True)
    try:
        if "blocks" in described:
            arguments["shuffle"] = Blocks(**described["blocks"])
        iterator = iter(ref.stream(choice.batch, num_epochs=None, **arguments))
        iterator.set_state(state)
    except (StateError, TypeError, InvalidArgumentError) as error:
        raise StateError(f"{error}: {_OTHERS}") from error
    return arguments, iterator.position


def _python(choice: Choice, arguments: Mapping[str, Any], position: int) -> str:
    options = "".join(f", {name}={value!r}" for name, value in arguments.items())
    options += "" if choice.shard is None else f", shard=({choice.shard}, {choice.shards})"
    options += f", start={position}" if position else ""
    return f"ref.stream({choice.batch}{options}, num_epochs=None).records({choice.step})"
