"""The state of a stream: one small JSON object, the same on every shard."""

from __future__ import annotations

import json
import operator
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from cachelayer.errors import StateError
from cachelayer.protocols import Digests
from cachelayer.streams.order.blocks import BlockOrder
from cachelayer.streams.order.orders import Order
from cachelayer.streams.steps import MOST_POSITIONS, Phase
from cachelayer.streams.stream_options import StreamOptions
from cachelayer.user_warnings import warn

FORMAT = 1
_LABELS = {
    ("order", "kind"): "order kind",
    ("order", "version"): "order version",
    ("order", "weights"): "the hash of the weights",
    ("blocks", "records"): "records of a block",
    ("blocks", "window"): "window of blocks",
    ("blocks", "lanes"): "lanes of blocks",
    ("buckets", "leaves"): "leaves of buckets",
    ("buckets", "bounds"): "bounds of buckets",
}
_NOT_COMPARED = ("dataset", "original", "left_out", "segments")


def state_of(digests: Digests, name: str, options: StreamOptions, position: int) -> dict[str, Any]:
    """Return the state of a sampler whose next step begins at a position.

    Args:
        digests: those of the records.
        name: what people call the records; it is not compared.
        options: their order, and the steps that begin at positions.
        position: the position.
    """
    order, steps = options.order, options.steps
    return {
        "format": FORMAT,
        **({"dataset": name} if name else {}),
        "digest": digests.rows,
        "records": order.records,
        "order": {**order.described, **order.past(position)},
        "position": position,
        **({} if digests.original == digests.rows else {"original": digests.original}),
        **({"left_out": [list(ends) for ends in steps.left_out]} if steps.left_out else {}),
        **({"segments": [list(phase) for phase in steps.earlier]} if steps.earlier else {}),
    }


def restore(digests: Digests, name: str, options: StreamOptions, state: Any) -> tuple[StreamOptions, int]:
    """Return the options of what goes on from a state of the same records in the same order, and its position.

    Its steps leave out what the state leaves out too, and begin with its segments, whose digests the caller checks. Its
    order has the sizes of blocks of the state, where the user has left them open.

    Raises:
        StateError: if it is none, or belongs to other records or another order.
    """
    state = _unpacked(_plain(state))
    if not isinstance(state, dict) or "format" not in state or "position" not in state:
        raise StateError(f"not a sampler state: {_shown(state)}")
    if _whole(state["format"], 1, "format") > FORMAT:
        raise StateError(
            f"state of format {_shown(state['format'])}; this release reads up to {FORMAT}: update cachelayer"
        )
    if isinstance(options.order, BlockOrder) and isinstance(state.get("order"), dict):
        options = replace(options, order=options.order.with_sizes_of(state["order"].get("blocks")))
    mine = _plain(state_of(digests, name, options, 0))
    # A state that was saved while the version was being built names the plan of the build.
    is_planned = state.get("digest") == digests.planned
    # Records that were erased leave the numbers and the order as they are.
    is_original = _original(mine) == (digests.original if is_planned else _original(state))
    differs_in_erased = is_original and digests.rows != (digests.original if is_planned else state.get("digest"))
    ignored = {*options.order.past(0), *_NOT_COMPARED, *(["digest"] if is_planned or differs_in_erased else [])}
    differences = _differences(mine, state, ignored)
    if differences:
        raise StateError(
            f"the state belongs to another stream: {'; '.join(differences)}: pass what differs to stream(), or "
            "restore it where it was saved"
        )
    position = _whole(state["position"], 0, "position")
    if position > MOST_POSITIONS:
        raise StateError(f"position {_shown(position)} of the state is past 2**62, the largest position")
    _check_past(options.order, position, state)
    left_out = [[_whole(end, 0, "left_out") for end in ends] for ends in _lists(state, "left_out", 2)]
    phases = _phases_of(state, options.steps.records)
    steps = replace(options.steps, earlier=tuple(phases)).without(left_out)
    refusal = steps.why_invalid(position)
    if refusal is not None:
        raise StateError(f"the state cannot be continued: {refusal}")
    if differs_in_erased:
        warn(
            f"the state was saved over digest {_shown(state.get('digest'))}, and is restored over {digests.rows!r}: "
            "only erased records differ, so numbers and order are the same. An erased record raises an "
            'ErasedRecordError; map(fn, on_error="replace") has another stand in for it'
        )
    return replace(options, steps=steps), position


def _check_past(order: Order, position: int, state: Mapping[str, Any]) -> None:
    """Raise if a state of the same records comes from another past than its position has here."""
    for name, mine in order.past(position).items():
        inner = state["order"].get(name)
        differences = _differences(_plain(mine), inner if isinstance(inner, dict) else {})
        if differences:
            raise StateError(
                f"the {name} before position {position} is not that of the state: {'; '.join(differences)}: only "
                "what comes at that position or later may change"
            )


def _phases_of(state: Mapping[str, Any], all_records: int) -> list[Phase]:
    """Return the phases that a state has advanced through, the last of which ends with the last record of all."""
    phases: list[Phase] = []
    for *numbers, digest in _lists(state, "segments", 5):
        begin, records, epoch, first = (_whole(number, 0, "segments") for number in numbers)
        if phases:
            before = phases[-1]
            known = before.first + before.records
            follows = begin > before.begin and (begin - before.begin) % before.records == 0
        else:
            known, follows = 0, begin == 0
        # The new records by themselves, or all that there are by then.
        if not (follows and records and first in (0, known) and first + records >= known):
            raise StateError(f"not a sampler state: its segments are {_shown(state['segments'])}")
        phases.append(Phase(begin, records, epoch, first, str(digest)))
    if phases and phases[-1].first + phases[-1].records != all_records:
        raise StateError(f"not a sampler state: its segments are {_shown(state['segments'])}")
    return phases


def state_of_loops(state: Mapping[str, Any], epoch: int) -> dict[str, Any]:
    """Return a state whose structure is the same for every stream, with the epoch that a loop is in.

    Checkpoints such as those of ``torch.distributed`` restore only the names that a state has when it is restored. What
    differs from stream to stream is one text.
    """
    stream = {name: value for name, value in state.items() if name != "position"}
    return {"epoch": epoch, "position": state["position"], "stream": json.dumps(stream)}


def epoch_of(state: Any) -> int | None:
    """Return the epoch that a loop was in when it saved a state; None for a state of a stream."""
    plain = _plain(state)
    epoch = plain.get("epoch") if isinstance(plain, dict) else None
    return None if epoch is None else _whole(epoch, 0, "epoch")


def _unpacked(state: Any) -> Any:
    """Return a state of loops as that of a stream, and any other as it is."""
    if not isinstance(state, dict) or not isinstance(state.get("stream"), str):
        return state
    stream = _plain(state["stream"])
    return {**(stream if isinstance(stream, dict) else {}), **state}


def _original(state: Mapping[str, Any]) -> Any:
    return state.get("original", state.get("digest"))


def _lists(state: Mapping[str, Any], name: str, length: int) -> list[Any]:
    """Return the lists that a state has under a name."""
    lists = state.get(name, [])
    if not isinstance(lists, list) or any(not isinstance(inner, list) or len(inner) != length for inner in lists):
        raise StateError(f"not a sampler state: its {name} is {_shown(lists)}")
    return lists


def _whole(number: Any, least: int, name: str) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise StateError(f"not a sampler state: its {name} is {_shown(number)}")
    return number


def _plain(state: Any) -> Any:
    """Return a state, or its JSON, as JSON has it: dicts, lists, strings, numbers and None alone."""
    try:
        text = state if isinstance(state, (str, bytes)) else json.dumps(state, default=operator.index)
        return json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise StateError(f"not a sampler state: {error}") from error


def _differences(
    mine: Mapping[str, Any], other: Mapping[str, Any], ignored: Collection[str] = (), within: str = ""
) -> list[str]:
    """Return what differs in words, but for some names."""
    differences = []
    for name, value in mine.items():
        if name in ignored:
            continue
        theirs = other.get(name)
        if isinstance(value, dict):
            differences += _differences(value, theirs if isinstance(theirs, dict) else {}, ignored, name)
        elif name not in ("format", "position") and value != theirs:
            label = _LABELS.get((within, name), name)
            here, there = (_called(state) if name == "digest" else "" for state in (mine, other))
            differences.append(f"{label} is {value!r}{here} here and {_shown(theirs)}{there} in the state")
    return differences


def _called(state: Mapping[str, Any]) -> str:
    """Return what people call the records of a state, in brackets; an empty text if the state does not say it."""
    name = state.get("dataset")
    return f" ({name[:200]})" if isinstance(name, str) else ""


def _shown(value: Any) -> str:
    """Return a value of a state for a message, cut short."""
    return repr(value)[:200]
