"""Go on with a stream: from a state, or over a newer version to which records were appended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cachelayer.errors import InvalidArgumentError, InvalidTypeError, StateError
from cachelayer.protocols import DatasetRows, Origins, has_parts, has_records, records_of
from cachelayer.streams.order.blocks import BlockOrder
from cachelayer.streams.order.buckets import BucketOrder
from cachelayer.streams.order.mixture import ENDLESS, MixedOrder
from cachelayer.streams.order.orders import ExactOrder
from cachelayer.streams.reading.step_reader import StepReader
from cachelayer.streams.state import restore


def restore_reader(reader: StepReader, state: Any, workers: int = 1) -> tuple[StepReader, int]:
    """Return the reader that goes on from a state, with the order and the steps of the state, and its position."""
    reader = _current(reader)
    records = reader.records
    try:
        schedule, position = restore(records.origins.digests, records.info.name, reader.schedule, state, workers)
    except StateError as error:
        if records.published(wait=False) is not None:
            raise
        raise StateError(
            f"{error}. {records.info.name} is being built: a state that holds its digest can be restored once it is "
            "published"
        ) from error
    every = [(records.origins, schedule.earlier)]
    order = schedule.order
    if isinstance(order, MixedOrder) and order.advance is not None:
        every = [*zip(records.origins.parts, order.advance.phases, strict=True)]
    for origins, earlier in every:
        # An erasure changes the digests of earlier records too. The original one of all, which restore() has compared,
        # tells of them.
        is_erased = origins.digests.original != origins.digests.rows
        for phase in () if is_erased else earlier:
            if not origins.begins_with(phase.records, phase.digest):
                raise StateError(
                    f"the state has advanced from records with the digest {phase.digest!r}, with which these do not "
                    "begin: restore it over the version, or the mixture, that advance_to() was given"
                )
    if schedule.last_position is not None and position > schedule.last_position:
        raise StateError(
            f"position {position} of the state is past the end of this stream, {schedule.end}: set it on "
            "stream.epochs(), or pass a larger num_epochs, which a mixture does not have"
        )
    return replace(reader, schedule=schedule), position


def advance_reader(reader: StepReader, newer: Any, position: int) -> StepReader:
    """Return the reader that goes on over a newer version from the end of the epoch that a position lies in."""
    order = reader.schedule.order
    if isinstance(order, BucketOrder):
        raise InvalidArgumentError(
            f"advance_to({newer!r}): new records would change the batches of buckets: at the end of an epoch, "
            "begin newer.stream(..., buckets=...)"
        )
    if isinstance(order, MixedOrder):
        return _advance_mixture(_current(reader), order, newer, position)
    if not isinstance(order, (ExactOrder, BlockOrder)):
        raise InvalidArgumentError(
            f"advance_to({newer!r}): a sample draws from all of its records at any position, so it does not advance: "
            f"begin a stream of a sample of the newer ones at this position: stream(..., start={position})"
        )
    if not has_records(newer):
        raise InvalidTypeError(
            f"advance_to takes a DataRef of a newer version, or a view of it, not a {type(newer).__name__}: open it "
            "with storage.fetch()"
        )
    reader = _current(reader)
    records = records_of(newer)
    old = reader.records
    digest = records.origins.digests.rows
    old_digest = old.origins.digests.rows
    if digest == old_digest:
        return reader
    _check_begins(newer, records.origins, old.origins, len(old))
    _check_spec(newer, records, old)
    if len(records) == len(old):
        return reader.over(records)
    schedule = reader.schedule.advanced(position, len(records), old_digest, digest)
    return replace(reader, schedule=schedule).over(records)


def _advance_mixture(reader: StepReader, order: MixedOrder, newer: Any, position: int) -> StepReader:
    """Return the reader that goes on over a newer mixture, whose weights count from a position on."""
    if not has_parts(newer):
        raise InvalidTypeError(
            f"advance_to takes a mixture here, as this is a stream of one, not a {type(newer).__name__}: pass "
            "cachelayer.mix() of the newer versions, in the order of this mixture, then of what comes anew"
        )
    old = reader.records
    records, newer_order = newer.__mixture__(order, reader.schedule.global_batch)
    if min(order.length, newer_order.length) < ENDLESS:
        raise InvalidArgumentError(
            "advance_to(): a mixture with stop= ends with the records that it has: mix without stop=, or begin "
            "a stream of the newer mixture at its end"
        )
    parts = old.origins.parts
    newer_parts = records.origins.parts
    if len(newer_parts) < len(parts):
        raise InvalidArgumentError(
            f"advance_to({newer!r}): it has {len(newer_parts)} datasets, and this stream {len(parts)}: keep all of "
            "them in their order, those that end with weight 0"
        )
    for before, after in zip(parts, newer_parts, strict=False):
        _check_begins(newer, after, before, sum(before.segments))
    _check_spec(newer, records, old)
    if old.origins.digests.rows == records.origins.digests.rows and order.goes_on_as(newer_order):
        return reader
    digests, newer_digests = ([part.digests.rows for part in each] for each in (parts, newer_parts))
    advanced = order.advanced(position, newer_order, digests, newer_digests)
    return reader.with_schedule(order=advanced).over(records)


def _check_begins(newer: Any, after: Origins, before: Origins, count: int) -> None:
    """Raise unless the rows of a newer dataset begin with those of an older one."""
    digest = before.digests.rows
    if count == 0 or not after.begins_with(count, digest):
        raise InvalidArgumentError(
            f"advance_to({newer!r}): it does not begin with the {count} elements of this stream, of digest "
            f"{digest!r}: pass the same view of the version that append() made. Elements of some views "
            "change or move with new records, such as a last window that is padded, rows in reverse, the second part "
            "of a concat(), or a series of rolling() before the last one: begin a stream of those at the end of an "
            "epoch, newer.stream(...)"
        )


def _check_spec(newer: Any, records: DatasetRows[Any], old: DatasetRows[Any]) -> None:
    if records.element_spec != old.element_spec:
        raise InvalidArgumentError(
            f"advance_to({newer!r}): its elements are {records.element_spec}, and those of this stream "
            f"{old.element_spec}: pass the same view of the newer version, such as newer.fields(...)"
        )


def _current(reader: StepReader) -> StepReader:
    """Return the reader of the published version, if the records were those of a version that was being built."""
    records = reader.records.published(wait=False)
    return reader if records is None or records is reader.records else replace(reader, records=records)
