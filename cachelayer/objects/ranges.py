"""Arithmetic of byte ranges: join neighbours into one request, and cut its body into the ranges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cachelayer.objects.store import Buffer

Range = tuple[str, int, int]
"""(name, start, stop): bytes [start, stop) of an object."""


@dataclass(frozen=True)
class Span:
    """One run of bytes of an object, and the ranges that lie in it.

    Args:
        name: the object.
        start: first byte.
        stop: one past the last byte.
        members: numbers of the ranges in it.
    """

    name: str
    start: int
    stop: int
    members: tuple[int, ...]


def coalesce(ranges: Sequence[Range], *, gap: int, limit: int) -> list[Span]:
    """Return the spans to fetch: ranges of one object at most ``gap`` bytes apart are joined.

    Args:
        ranges: the wanted ranges, in any order; they may overlap.
        gap: bytes that may be fetched needlessly to save a request.
        limit: the most bytes of a joined span; a single range may have more.
    """
    spans: list[Span] = []
    members: list[int] = []
    name, start, stop = "", 0, 0
    for number in sorted(range(len(ranges)), key=ranges.__getitem__):
        next_name, next_start, next_stop = ranges[number]
        if next_start == next_stop:
            continue
        joined = max(stop, next_stop)
        if members and next_name == name and next_start - stop <= gap and joined - start <= limit:
            members.append(number)
            stop = joined
            continue
        if members:
            spans.append(Span(name, start, stop, tuple(members)))
        name, start, stop, members = next_name, next_start, next_stop, [number]
    if members:
        spans.append(Span(name, start, stop, tuple(members)))
    return spans


def cut(ranges: Sequence[Range], spans: Sequence[Span], bodies: Sequence[Buffer]) -> list[Buffer]:
    """Return the bytes of each range.

    Args:
        ranges: the wanted ranges.
        spans: what ``coalesce`` made of them.
        bodies: the bytes of each span.
    """
    found: list[Buffer] = [b""] * len(ranges)
    for span, body in zip(spans, bodies, strict=True):
        if len(span.members) == 1:
            found[span.members[0]] = body
            continue
        whole = memoryview(body)
        for number in span.members:
            _, start, stop = ranges[number]
            found[number] = whole[start - span.start : stop - span.start]
    return found


def pieces(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield a run of bytes in pieces of at most ``size``."""
    for first in range(start, stop, size):
        yield first, min(first + size, stop)
