"""The page of the order: the records in the batch of a step, of all shards or of one.

A batch is shown in the order of training, or sorted by a leaf, which puts similar records side by side.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any
from urllib.parse import urlencode

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from cachelayer.drawing.drawn_records import DrawnRecord, DrawOptions, drawn_records
from cachelayer.drawing.text import Names, leaf_text, named, shown_path
from cachelayer.errors import CacheLayerError, InvalidArgumentError, StateError, StorageError
from cachelayer.page.record_pages import LEAVES, THUMBNAIL
from cachelayer.page.render import open_versions_of, page, query_integer, ref_of
from cachelayer.specs import tree
from cachelayer.specs.schema import Schema
from cachelayer.specs.spec import ArraySpec, LeafSpec
from cachelayer.specs.values import Nullable
from cachelayer.streams.continuing import restore_reader
from cachelayer.streams.order.blocks import Blocks
from cachelayer.streams.order.buckets import Buckets
from cachelayer.streams.reading.chunk_plan import plan_of
from cachelayer.streams.schedule import REMAINDERS, Schedule
from cachelayer.streams.stream import Stream, stream_of
from cachelayer.views.dataref import DataRef

MOST_BATCH = 65_536
MOST_SHARDS = 1024
MOST_STEPS = 1 << 62
PAGE = 96
"""Records of a batch on one page."""
MOST_SORTED = 4096
_MOST_GROUPS = 100
_HEADING = 100
_NUMBERS = 64
"""Record numbers that are listed for each shard."""
_SHUFFLES: dict[str, bool | str] = {"none": False, "exact": True, "blocks": "blocks"}


def order(request: Request) -> Response:
    """Show the batch of a step: the records of all shards or of one, and the record numbers of each shard."""
    ref = ref_of(request)
    open_versions = open_versions_of(request)
    query = request.query_params
    if len(ref) == 0:
        raise InvalidArgumentError(f"{ref.dataset_id}@{ref.dataset_version} has no records, and so no order")
    shards = query_integer(query, "shards", 1, 1, MOST_SHARDS)
    shard = query_integer(query, "shard", 0, 0, shards - 1) if query.get("shard", "").strip() else None
    batch = query_integer(query, "batch", -(-min(32, len(ref)) // shards) * shards, 1, MOST_BATCH)
    if batch % shards:
        raise InvalidArgumentError(f"batch={batch}: it must be a multiple of the {shards} shards, which share it")
    step = query_integer(query, "step", 0, 0, MOST_STEPS - 1)
    first = query_integer(query, "from", 0, 0, MOST_BATCH)
    state = _state_of(query)
    options = _options_of(query)
    stream = _stream_of(ref, batch, options, state)
    schedule = stream._reader.schedule
    this_step = plan_of(schedule, schedule.step(step))
    numbers = this_step.numbers
    # Each shard takes a contiguous part.
    parts = [part.tolist() for part in np.array_split(numbers, shards)]
    raw = ref.raw()
    draw_options = open_versions.draw_options(ref, THUMBNAIL, LEAVES)
    by = query.get("by", "")
    rows, problem = _sorted(raw, numbers.tolist() if shard is None else parts[shard], by, draw_options.names)
    return page(
        "order.html",
        ref=ref,
        query=query,
        query_of=partial(_query_of_page, query),
        shards=shards,
        shard=shard,
        batch=batch,
        step=step,
        by=by,
        shuffles=list(_SHUFFLES),
        remainders=REMAINDERS,
        remainder=options["remainder"],
        leaves=_sortable(raw.element_spec),
        seed=options["seed"],
        position=None if state is None else schedule.start,
        place_of=partial(_place, schedule),
        begin=this_step.steps.begin,
        rows_of_batch=len(numbers),
        padding=len(numbers) - this_step.sizes[0],
        parts=parts,
        most_numbers=_NUMBERS,
        total=len(rows),
        problem=problem,
        first=first,
        groups=_drawn_groups(raw, rows, first, draw_options),
        page_size=PAGE,
        python=_python(batch, options, None if shard is None else (shard, shards), schedule, step),
    )


def _query_of_page(query: Mapping[str, str], step: int, shard: int | None, first: int = 0) -> str:
    """Return the query of the page of another step or shard, or of later records of the batch."""
    changed = {**query, "step": step, "shard": shard, "from": first or None}
    return urlencode({name: value for name, value in changed.items() if value not in (None, "")})


def _drawn_groups(
    raw: DataRef[Any], rows: Sequence[tuple[int, str]], first: int, options: DrawOptions
) -> list[tuple[str, int, list[DrawnRecord]]]:
    """Return the groups of records on a page: the heading, how many of the group are in the batch, and those drawn."""
    counts = Counter(heading for _, heading in rows)
    rows_here = rows[first : first + PAGE]
    drawn = drawn_records(raw, [number for number, _ in rows_here], options)
    groups = groupby(zip(rows_here, drawn, strict=True), key=lambda pair: pair[0][1])
    return [(heading, counts[heading], [record for _, record in group]) for heading, group in groups]


def _state_of(query: Mapping[str, str]) -> Any:
    """Return the state that the query holds; None if it holds none."""
    text = query.get("state", "").strip()
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError) as error:
        raise StateError(f"the state is not JSON: {error}") from error


def _options_of(query: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of the stream that the query has fields for, checked."""
    shuffle = query.get("shuffle", "exact")
    remainder = query.get("remainder", "keep")
    for name, value, known in (("shuffle", shuffle, _SHUFFLES), ("remainder", remainder, REMAINDERS)):
        if value not in known:
            raise InvalidArgumentError(f"{name}={value[:40]!r}: it is one of {', '.join(known)}")
    seed = query_integer(query, "seed", 0, 0, (1 << 64) - 1)
    return {"shuffle": _SHUFFLES[shuffle], "seed": seed, "remainder": remainder}


def _stream_of(ref: DataRef[Any], batch: int, options: dict[str, Any], state: Any) -> Stream[Any]:
    """Return the stream of the options; if there is a state, the stream that continues from it, in its order."""
    if state is None:
        return ref.stream(batch, num_epochs=None, **options)
    try:
        described = state["order"]
        options |= {name: described.get(name) for name in ("shuffle", "seed")}
        options["reshuffle"] = described.get("reshuffle", True)
        if "blocks" in described:
            options["shuffle"] = Blocks(**described["blocks"])
        if "buckets" in described:
            leaves = described["buckets"]["leaves"]
            bounds = described["buckets"]["bounds"]
            options["buckets"] = Buckets(leaves, bounds, long="truncate")
        reader, position = restore_reader(ref.stream(batch, num_epochs=None, **options)._reader, state)
        return stream_of(reader.starting_at(position))
    except (StateError, TypeError, KeyError, AttributeError, InvalidArgumentError) as error:
        raise StateError(
            f"not a state of a stream of {ref.dataset_id}@{ref.dataset_version}: {error}: of samples and mixtures "
            "stream.record_numbers(t) lists the records of a step, and .../records?at=1,5,9 shows them by number"
        ) from error


def _place(schedule: Schedule, position: int) -> str:
    """Return where a position lies, in words."""
    stretch = next(schedule.stretches(position))
    epoch = f"epoch {stretch.epoch:,}"
    if stretch.first:
        epoch = f"the appended records, before {epoch}"
    return f"{epoch}, from record {position - stretch.origin:,} of its order"


def _python(
    batch: int, options: Mapping[str, Any], shard: tuple[int, int] | None, schedule: Schedule, step: int
) -> str:
    """Return the line of Python that lists the records."""
    defaults = {"remainder": "keep", "reshuffle": True}
    changed = {name: value for name, value in options.items() if value != defaults.get(name)}
    changed |= {} if shard is None else {"shard": shard}
    if schedule.left_out or schedule.earlier:
        return f"{_call(batch, changed)}, then set_state(state): its item {step}"
    if schedule.start:
        changed["start"] = schedule.start
    return f"{_call(batch, changed)}.record_numbers({step})"


def _call(batch: int, options: Mapping[str, Any]) -> str:
    written = "".join(f", {name}={value!r}" for name, value in options.items())
    return f"ref.stream({batch}{written}, num_epochs=None)"


def _sortable(spec: Any) -> list[str]:
    """Return the names of the leaves of an element that are single numbers or texts."""
    singles = ((path, leaf) for path, leaf in tree.leaves(spec) if isinstance(leaf, ArraySpec) and leaf.shape == ())
    return [shown_path(path) for path, leaf in singles if np.dtype(leaf.dtype).kind in "biufU"]


def _sorted(raw: DataRef[Any], numbers: list[int], by: str, names: Names) -> tuple[list[tuple[int, str]], str]:
    """Return the numbers of a batch sorted by a leaf, with headings of their groups; and why they are not sorted."""
    unsorted = [(number, "") for number in numbers]
    if not by:
        return unsorted, ""
    known = _sortable(raw.element_spec)
    if by not in known:
        raise InvalidArgumentError(f"by={by[:40]!r}: it is one of {', '.join(known) or 'nothing'}")
    if len(numbers) > MOST_SORTED:
        return unsorted, f"not sorted: more than {MOST_SORTED:,} records"
    narrow = raw if isinstance(raw.element_spec, LeafSpec) else raw.fields(by)
    ((path, _),) = tree.leaves(narrow.element_spec)
    try:
        (column,) = Schema.of(narrow.element_spec).flatten(narrow.read(np.asarray(numbers, np.int64)))
    except StorageError:
        raise
    except CacheLayerError as error:
        return unsorted, f"not sorted: {error}"
    if isinstance(column, Nullable):
        column = np.where(column.valid, column.values.astype(object), None)
    # Nulls and NaN come last; the sort keeps the order of training among equals.
    values = column.tolist()
    keys = [(True, 0) if value is None or value != value else (False, value) for value in values]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    headings = []
    for value in values:
        text = value if isinstance(value, str) else leaf_text(value)
        headings.append(f"{by} {text[:_HEADING]} {named(names, path, value)}".rstrip())
    if len(set(headings)) > _MOST_GROUPS or any(isinstance(value, float) for value in values):
        headings = [""] * len(values)
    return [(numbers[row], headings[row]) for row in order], ""
