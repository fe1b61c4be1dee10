"""The state of a stream: one small JSON object, the same on every shard.

::

    {"format": 1, "dataset": "cifar10@v1",         what people call the records; not compared
     "digest": "48299b...", "records": 10,         which rows, and how many
     "order": {"kind": "exact", "seed": 0, ...},   which record has which place: compared
     "position": 8,                                where the next step begins: the only thing that moves
     "original": "5feceb...",                      the digest before records were erased, if any were
     "left_out": [[4, 8]],                         what without() leaves out
     "segments": [[0, 10, 0, 0, "48299b..."]]}     the phases before the last one, after advance_to()

docs/order.md specifies it. A loop over epochs, as frameworks have it, has a state of another form, which
:func:`state_of_loops` makes and :func:`restore` takes too.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from cachelayer.errors import StateError
from cachelayer.protocols import Digests
from cachelayer.streams.order.orders import MOST_POSITIONS, VERSIONS, Order
from cachelayer.streams.order.phases import Phase, as_lists, from_lists
from cachelayer.streams.schedule import Schedule
from cachelayer.support.user_warnings import warn

FORMAT = 1
_LABEL_OF = {
    ("order", "kind"): "order kind",
    ("order", "version"): "order version",
    ("order", "weights"): "the hash of the weights",
    ("blocks", "records"): "records of a block",
    ("blocks", "window"): "window of blocks",
    ("blocks", "lanes"): "lanes of blocks",
    ("buckets", "leaves"): "leaves of buckets",
    ("buckets", "bounds"): "bounds of buckets",
}
"""What errors call a field of a state, by the field that it is in and its name."""
_MEMBERS = {"format", "dataset", "digest", "records", "order", "position", "original", "left_out", "segments"}
_OF_LOOPS = {"epoch", "stream", "workers"}
"""The further members of the states of loops, and of Grain's workers."""
_NOT_COMPARED = ("dataset", "original", "left_out", "segments")
_OF_RECORDS = {"digest", "records"}


def state_of(digests: Digests, name: str, schedule: Schedule, position: int) -> dict[str, Any]:
    """Return the state of a stream whose next step begins at a position."""
    order = schedule.order
    state: dict[str, Any] = {"format": FORMAT}
    if name:
        state["dataset"] = name
    state["digest"] = digests.rows
    state["records"] = order.records
    state["order"] = {**order.described, **order.past(position)}
    state["position"] = position
    if digests.original != digests.rows:
        state["original"] = digests.original
    if schedule.left_out:
        state["left_out"] = [list(ends) for ends in schedule.left_out]
    if schedule.earlier:
        state["segments"] = as_lists(schedule.earlier)
    return state


def restore(digests: Digests, name: str, schedule: Schedule, state: Any, workers: int = 1) -> tuple[Schedule, int]:
    """Return the schedule that goes on from a state of the same records and order, and its position.

    Its steps leave out what the state leaves out, and have the phases of the state; the caller checks the digests of
    these. Its order has the sizes of blocks of the state, where the user has left them open. Grain's ``workers`` take
    turns at its steps.
    """
    state = _of_stream(_as_json(state))
    _check_known(state)
    order = schedule.order.continuing(state["order"])
    schedule = replace(schedule, order=order)
    mine = _as_json(state_of(digests, name, schedule, 0))
    saved_digest = state.get("digest")
    saved_original = state.get("original", saved_digest)
    is_planned = saved_digest == digests.planned != digests.rows
    if is_planned:
        # It was saved while the version was being built, and names the plan of the build: no record was erased yet.
        saved_digest = saved_original = digests.original
    # Records that were erased leave the numbers and the order as they are.
    differs_in_erased = saved_original == digests.original and saved_digest != digests.rows
    _check_same_stream(order, mine, state, compares_digest=not (is_planned or differs_in_erased))
    position = _count(state["position"], 0, "position")
    if position > MOST_POSITIONS:
        raise StateError(f"position {_text(position)} of the state is past 2**62, the largest position")
    _check_past(order, position, state)
    saved_workers = _count(state.get("workers", 1), 1, "workers")
    # Before it starts its workers, Grain takes their states from an undivided dataset.
    is_begin = saved_workers == 1 and position == schedule.next_start(schedule.start)
    if saved_workers != workers and not is_begin:
        raise StateError(
            f"the state was saved with {saved_workers} workers and is restored with {workers}: use the same number, or "
            "continue with ref.stream(start=<the number of records consumed so far>)"
        )
    left_out = [[_count(end, 0, "left_out") for end in ends] for ends in _lists(state, "left_out", 2)]
    restored = replace(schedule, earlier=_phases_of(state, order)).without(left_out)
    why_invalid = restored.why_invalid(position)
    if why_invalid is not None:
        raise StateError(f"the state cannot be continued: {why_invalid}")
    if differs_in_erased:
        what = "Those that are erased are left out"
        if schedule.excluded is None:
            what = (
                "An erased record raises an ErasedRecordError: fetch(..., erased='exclude') leaves it out, and "
                "map(fn, on_error='replace') has another stand in for it"
            )
        warn(
            f"the state was saved over digest {_text(state.get('digest'))}, and is restored over {digests.rows!r}: "
            f"only erased records differ, so numbers and order are the same. {what}"
        )
    return restored, position


def _check_known(state: Any) -> None:
    """Raise if this is no state, or one that only a newer release understands."""
    if not isinstance(state, dict) or "format" not in state:
        raise StateError(f"not a sampler state: {_text(state)}")
    if _count(state["format"], 1, "format") > FORMAT:
        raise StateError(
            f"state of format {_text(state['format'])}; this release reads up to {FORMAT}: update cachelayer"
        )
    if "position" not in state:
        raise StateError(f"not a sampler state: {_text(state)}")
    unknown = sorted(state.keys() - _MEMBERS - _OF_LOOPS)
    if unknown:
        raise StateError(f"the state has {_text(unknown)}, which this release does not know: update cachelayer")
    order = state.get("order")
    if not isinstance(order, dict):
        raise StateError(f"not a sampler state: its order is {_text(order)}")
    kind = order.get("kind")
    version = order.get("version")
    newest = VERSIONS.get(kind) if isinstance(kind, str) else None
    if newest is None or (isinstance(version, int) and version > newest):
        raise StateError(
            f"the state has an order of kind {_text(kind)} and version {_text(version)}, which this release does not "
            "know: update cachelayer"
        )


def _check_same_stream(
    order: Order, mine: Mapping[str, Any], state: Mapping[str, Any], *, compares_digest: bool
) -> None:
    """Raise if a state has another order, or other records, than the state of this stream."""
    # What an order says of its past is compared at the position of the state.
    ignored = {*order.past(0), *_NOT_COMPARED}
    if not compares_digest:
        ignored.add("digest")
    differences = _differences(mine, state, ignored)
    if not differences:
        return
    advice = "pass what differs to stream(), or restore it where it was saved"
    if any(mine.get(name) != state.get(name) for name in _OF_RECORDS - ignored):
        advice = "restore it over the records that it was saved over; advance_to(newer) goes on from there over more"
    raise StateError(f"the state belongs to another stream: {'; '.join(differences)}: {advice}")


def _check_past(order: Order, position: int, state: Mapping[str, Any]) -> None:
    """Raise if the order of a state differs before its position, such as a mixture with other weights then."""
    for name, mine in order.past(position).items():
        inner = state["order"].get(name)
        differences = _differences(_as_json(mine), inner if isinstance(inner, dict) else {})
        if differences:
            raise StateError(
                f"the {name} before position {position} is not that of the state: {'; '.join(differences)}: only "
                "what comes at that position or later may change"
            )


def _phases_of(state: Mapping[str, Any], order: Order) -> tuple[Phase, ...]:
    """Return the phases that a state has advanced through, the last of which ends with the last record of an order."""
    try:
        return from_lists(_lists(state, "segments", 5), order)
    except (TypeError, ValueError) as error:
        raise StateError(f"not a sampler state: its segments are {_text(state['segments'])}") from error


def state_of_loops(state: Mapping[str, Any], epoch: int) -> dict[str, Any]:
    """Return a state whose structure is the same for every stream, with the epoch that a loop is in.

    Checkpoints such as those of ``torch.distributed`` restore only the names that a state has when it is restored. What
    differs from stream to stream is one text.
    """
    stream = {name: value for name, value in state.items() if name != "position"}
    return {"epoch": epoch, "position": state["position"], "stream": json.dumps(stream)}


def epoch_of(state: Any) -> int | None:
    """Return the epoch that a loop was in when it saved a state; None for a state of a stream."""
    state = _as_json(state)
    epoch = state.get("epoch") if isinstance(state, dict) else None
    return None if epoch is None else _count(epoch, 0, "epoch")


def _of_stream(state: Any) -> Any:
    """Return the state of a stream, which a state of loops holds as a text; any other state as it is."""
    if not isinstance(state, dict) or not isinstance(state.get("stream"), str):
        return state
    stream = _as_json(state["stream"])
    return {**(stream if isinstance(stream, dict) else {}), **state}


def _lists(state: Mapping[str, Any], name: str, length: int) -> list[Any]:
    """Return the lists of ``length`` values that a state has under a name."""
    lists = state.get(name, [])
    if not isinstance(lists, list) or any(not isinstance(inner, list) or len(inner) != length for inner in lists):
        raise StateError(f"not a sampler state: its {name} is {_text(lists)}")
    return lists


def _count(number: Any, least: int, name: str) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise StateError(f"not a sampler state: its {name} is {_text(number)}")
    return number


def _as_json(state: Any) -> Any:
    """Return a state, or its JSON, as JSON has it: dicts, lists, strings, numbers and None alone."""
    try:
        text = state if isinstance(state, (str, bytes)) else json.dumps(state, default=operator.index)
        return json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise StateError(f"not a sampler state: {error}") from error


def _differences(
    mine: Mapping[str, Any], other: Mapping[str, Any], ignored: Collection[str] = (), within: str = ""
) -> list[str]:
    """Return what differs between two states, in words, except under the names that are ignored."""
    differences = []
    for name, value in mine.items():
        if name in ignored:
            continue
        theirs = other.get(name)
        if isinstance(value, dict):
            theirs = theirs if isinstance(theirs, dict) else {}
            differences += _differences(value, theirs, ignored, name)
            # What a newer release adds to an order decides which record comes next.
            for more in sorted(theirs.keys() - value.keys() - {*ignored}):
                differences.append(f"{more[:200]} is {_text(theirs[more])} in the state, and nothing here")
        elif name not in ("format", "position") and value != theirs:
            label = _LABEL_OF.get((within, name), name)
            here = _called(mine) if name == "digest" else ""
            there = _called(other) if name == "digest" else ""
            differences.append(f"{label} is {value!r}{here} here and {_text(theirs)}{there} in the state")
    return differences


def _called(state: Mapping[str, Any]) -> str:
    """Return what people call the records of a state, in brackets; an empty text if the state does not say it."""
    name = state.get("dataset")
    return f" ({name[:200]})" if isinstance(name, str) else ""


def _text(value: Any) -> str:
    """Return a value of a state for a message, cut short."""
    return repr(value)[:200]
