"""The page of the order: which records are in the batch of a step, for each shard.

A batch is shown in the order of training, or sorted by a leaf, which puts what is alike side by side.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any
from urllib.parse import urlencode

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from cachelayer.access.dataref import DataRef
from cachelayer.drawing.drawn_records import DrawnRecord, Look, drawn_records
from cachelayer.drawing.text import leaf_text, named, shown_path
from cachelayer.errors import CacheLayerError, InvalidArgumentError, StateError, StorageError
from cachelayer.records import tree
from cachelayer.records.spec import AudioSpec, ImageSpec, LeafSpec
from cachelayer.records.values import Nullable
from cachelayer.streams.order.blocks import Blocks
from cachelayer.view.record_pages import LEAVES, THUMBNAIL
from cachelayer.view.render import page, ref_of, shelf_of, whole

MOST_BATCH, MOST_SHARDS, MOST_STEPS = 65_536, 1024, 1 << 62
# The records of a batch that a page shows, and the most that are sorted.
PAGE, MOST_SORTED = 96, 4096
_MOST_GROUPS, _HEADING = 100, 100
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
    shown = numbers.tolist() if choice.shard is None else parts[choice.shard]
    shown, headings, problem = _sorted(raw, shown, choice.by, look)
    first = whole(query, "from", 0, 0, MOST_BATCH)
    return page(
        "order.html",
        ref=ref,
        records=len(ref),
        choice=choice,
        shuffles=list(_SHUFFLES),
        leaves=_sortable(raw.element_spec),
        seed=arguments["seed"],
        position=position,
        begin=begin,
        parts=parts,
        most_numbers=_NUMBERS,
        batch=shown,
        problem=problem,
        first=first,
        groups=_groups(drawn_records(raw, shown[first : first + PAGE], look), headings, first),
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


@dataclass(frozen=True)
class Group:
    """Records beside each other that have one value, in words, and how many of the batch have it."""

    heading: str
    count: int
    records: list[DrawnRecord]


def _sortable(spec: Any) -> list[str]:
    """Return the names of the leaves of an element that are single numbers or texts."""
    return [shown_path(path) for path, leaf in tree.leaves(spec) if _is_single(leaf)]


def _is_single(leaf: LeafSpec) -> bool:
    is_number = isinstance(leaf.dtype, np.dtype) and leaf.dtype.kind in "biufU"
    return leaf.shape == () and not isinstance(leaf, (ImageSpec, AudioSpec)) and (leaf.dtype is str or is_number)


def _sorted(raw: DataRef[Any], numbers: list[int], by: str, look: Look) -> tuple[list[int], list[str], str]:
    """Return the numbers of a batch sorted by a leaf, for each its value in words, and why they are not sorted."""
    if not by:
        return numbers, [], ""
    names = _sortable(raw.element_spec)
    if by not in names:
        raise InvalidArgumentError(f"by={by[:40]!r}: it is one of {', '.join(names) or 'nothing'}")
    if len(numbers) > MOST_SORTED:
        return numbers, [], f"not sorted: more than {MOST_SORTED:,} records"
    narrow = raw if isinstance(raw.element_spec, LeafSpec) else raw.fields(by)
    ((path, _),) = tree.leaves(narrow.element_spec)
    try:
        (column,) = tree.flatten_like(narrow.element_spec, narrow.read(np.asarray(numbers, np.int64)))
    except StorageError:
        raise
    except CacheLayerError as error:
        return numbers, [], f"not sorted: {error}"
    values = column.values.tolist() if isinstance(column, Nullable) else column.tolist()
    if isinstance(column, Nullable):
        values = [value if is_valid else None for value, is_valid in zip(values, column.valid, strict=True)]
    # Nulls and NaN come last; the sort keeps the order of training among equals.
    is_last = [value is None or value != value for value in values]
    order = sorted(range(len(values)), key=lambda row: (is_last[row], 0 if is_last[row] else values[row]))
    texts = [value if isinstance(value, str) else leaf_text(value) for value in (values[row] for row in order)]
    headings = [
        f"{by} {text[:_HEADING]} {named(look.names, path, values[row])}".rstrip()
        for row, text in zip(order, texts, strict=True)
    ]
    is_grouped = len(set(headings)) <= _MOST_GROUPS and not any(isinstance(value, float) for value in values)
    return [numbers[row] for row in order], headings if is_grouped else [], ""


def _groups(drawn: list[DrawnRecord], headings: list[str], first: int) -> list[Group]:
    """Return the records of a page, of which the first has this place in the batch, in groups of equal values."""
    counts = Counter(headings)
    rows = zip(headings[first:] or [""] * len(drawn), drawn, strict=False)
    return [
        Group(heading, counts[heading], [record for _, record in group])
        for heading, group in groupby(rows, key=lambda row: row[0])
    ]
