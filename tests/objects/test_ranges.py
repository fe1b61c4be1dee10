"""Ranges are joined and cut without losing a byte."""

from __future__ import annotations

import itertools
import os

from hypothesis import given
from hypothesis import strategies as st

from cachelayer.objects.ranges import coalesce, cut, pieces

CONTENTS = {name: os.urandom(2000) for name in "ab"}
RANGES = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 2000), st.integers(0, 300)).map(
        lambda drawn: (drawn[0], drawn[1], min(2000, drawn[1] + drawn[2]))
    )
)


@given(RANGES, st.integers(0, 100), st.integers(0, 1000))
def test_each_range_gets_its_bytes_and_no_span_is_too_large(
    ranges: list[tuple[str, int, int]], gap: int, limit: int
) -> None:
    spans = coalesce(ranges, gap=gap, limit=limit)
    whole = [CONTENTS[span.name][span.start : span.stop] for span in spans]
    assert cut(ranges, spans, whole) == [CONTENTS[name][start:stop] for name, start, stop in ranges]
    for span in spans:
        longest = max(ranges[number][2] - ranges[number][1] for number in span.members)
        assert span.stop - span.start <= max(limit, longest)


@given(RANGES, st.integers(0, 100))
def test_no_two_spans_of_an_object_are_near_and_none_has_a_wide_gap(
    ranges: list[tuple[str, int, int]], gap: int
) -> None:
    spans = coalesce(ranges, gap=gap, limit=10_000)
    for one, other in itertools.pairwise(spans):
        assert one.name != other.name or other.start - one.stop > gap
    for span in spans:
        covered = span.start
        for _, start, stop in sorted(ranges[number] for number in span.members):
            assert start - covered <= gap
            covered = max(covered, stop)
        assert covered == span.stop


@given(st.integers(0, 500), st.integers(0, 500), st.integers(1, 100))
def test_pieces_cover_a_run_once(start: int, length: int, size: int) -> None:
    found = [number for first, last in pieces(start, start + length, size) for number in range(first, last)]
    assert found == list(range(start, start + length))
    assert all(0 < last - first <= size for first, last in pieces(start, start + length, size))
