"""Arithmetic of byte ranges: join neighbours into spans, and cut the bytes of spans into ranges.

::

    ranges    [--0--] [---1---]                [--2--]     in one object
    spans     [-------a-------]                [--b--]     one request each
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cachelayer.objects.store import Buffer

Range = tuple[str, int, int]
"""(name, start, stop): bytes [start, stop) of an object."""


@dataclass(frozen=True)
class Span:
    """Consecutive bytes of an object that are fetched by one request."""

    name: str
    """The object."""
    start: int
    """The first byte."""
    stop: int
    """The byte after the last."""
    members: tuple[int, ...]
    """The numbers of the ranges in the span."""


def coalesce(ranges: Sequence[Range], *, gap: int, limit: int) -> list[Span]:
    """Return the spans to fetch: ranges of one object at most ``gap`` bytes apart are joined.

    ``gap`` bytes may be fetched needlessly to save a request. A joined span has at most ``limit`` bytes.
    """
    spans: list[Span] = []
    members: list[int] = []
    name = ""
    start = 0
    stop = 0
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
        name = next_name
        start = next_start
        stop = next_stop
        members = [number]
    if members:
        spans.append(Span(name, start, stop, tuple(members)))
    return spans


def cut(ranges: Sequence[Range], spans: Sequence[Span], bodies: Sequence[Buffer]) -> list[Buffer]:
    """Return the bytes of each range, given the spans that :func:`coalesce` returned, and the bytes of these."""
    pieces: list[Buffer] = [b""] * len(ranges)
    for span, body in zip(spans, bodies, strict=True):
        if len(span.members) == 1:
            pieces[span.members[0]] = body
            continue
        view = memoryview(body)
        for number in span.members:
            _, start, stop = ranges[number]
            pieces[number] = view[start - span.start : stop - span.start]
    return pieces


def pieces(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the first byte, and the byte after the last, of each piece of at most ``size`` bytes."""
    for first in range(start, stop, size):
        yield first, min(first + size, stop)
