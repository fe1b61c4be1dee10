"""Requests to stores: ranges are joined and cut without losing a byte, and failures say who is asked again."""

import itertools
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelayer.objects.failures import Kind, RequestError, pauses, retried
from cachelayer.objects.ranges import coalesce, cut, pieces

CONTENTS = {name: os.urandom(2000) for name in "ab"}
# On a grid, so that gaps are often as wide as is allowed.
RANGES = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 40), st.integers(0, 6)).map(
        lambda drawn: (drawn[0], 50 * drawn[1], min(2000, 50 * (drawn[1] + drawn[2])))
    )
)
GAPS = st.integers(0, 3).map(lambda number: 50 * number)


@given(RANGES, GAPS, st.integers(0, 1000))
def test_each_range_gets_its_bytes_from_spans_that_are_neither_too_large_nor_too_many(
    ranges: list[tuple[str, int, int]], gap: int, limit: int
) -> None:
    spans = coalesce(ranges, gap=gap, limit=limit)
    whole = [CONTENTS[span.name][span.start : span.stop] for span in spans]
    assert cut(ranges, spans, whole) == [CONTENTS[name][start:stop] for name, start, stop in ranges]
    for span in spans:
        members = sorted(ranges[number] for number in span.members)
        assert span.stop - span.start <= max(limit, *(stop - start for _, start, stop in members))
        covered = span.start
        for _, start, stop in members:
            assert start - covered <= gap
            covered = max(covered, stop)
        assert covered == span.stop
    for one, other in itertools.pairwise(coalesce(ranges, gap=gap, limit=10_000)):
        assert one.name != other.name or other.start - one.stop > gap


@given(st.integers(0, 500), st.integers(0, 500), st.integers(1, 100))
def test_pieces_cover_a_run_once(start: int, length: int, size: int) -> None:
    found = [number for first, last in pieces(start, start + length, size) for number in range(first, last)]
    assert found == list(range(start, start + length))
    assert all(0 < last - first <= size for first, last in pieces(start, start + length, size))


class Answer(Exception):
    """What a client raises for an answer of a store."""

    def __init__(self, status: int) -> None:
        self.status = status


@pytest.mark.parametrize(
    ("kind", "statuses"),
    [
        (Kind.TRANSIENT, [408, 409, 425, 429, 500, 502, 503, 504]),
        (Kind.REFUSED, [301, 307, 400, 401, 403, 405, 407, 411, 501]),
    ],
)
def test_who_is_busy_is_asked_again_and_who_refuses_is_not(kind: Kind, statuses: list[int]) -> None:
    assert {RequestError.of(Answer(status)).kind for status in statuses} == {kind}


def test_a_refusal_that_looks_like_absence_is_none() -> None:
    error = FileNotFoundError("http://host/a")
    error.__cause__ = Answer(403)
    assert RequestError.of(error).kind is Kind.REFUSED
    assert RequestError.of(FileNotFoundError("a")).kind is Kind.ABSENT


def test_no_reason_shows_what_stands_in_a_query() -> None:
    assert "hush" not in RequestError.of(OSError("cannot read https://host/a?sig=hush&x=hush now")).reason


def test_pauses_grow_to_a_limit() -> None:
    found = list(itertools.islice(pauses(), 2000))
    assert max(found[:1]) < 0.1 < min(found[3:])
    assert 2 < min(found[10:]) < max(found) < 8
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(("nbytes", "seconds"), [(0, 60.0), (256 << 20, 60.0)])
def test_a_store_that_does_not_answer_is_an_error_in_time_whatever_is_sent(
    monkeypatch: pytest.MonkeyPatch, nbytes: int, seconds: float
) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr("time.sleep", lambda pause: clock.__setitem__(0, clock[0] + pause))

    def attempt(_: float) -> None:
        # The client's own timeout.
        clock[0] += seconds / 4
        raise TimeoutError

    with pytest.raises(RequestError):
        retried("write", attempt, seconds, nbytes)
    assert seconds / 2 < clock[0] <= seconds


def test_a_large_object_whose_upload_fails_late_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr("time.sleep", lambda pause: clock.__setitem__(0, clock[0] + pause))
    left = [200.0, 190.0, 210.0]

    def attempt(_: float) -> str:
        clock[0] += left.pop()
        if left:
            raise ConnectionError("reset by the peer")
        return "stored"

    assert retried("write", attempt, 60.0, 256 << 20) == "stored"
