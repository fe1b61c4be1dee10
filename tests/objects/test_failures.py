"""Which failures are tried again, and for how long."""

from __future__ import annotations

import itertools

import pytest

from cachelayer.objects.failures import Kind, RequestError, pauses, retried


class Answer(Exception):
    """What a client raises for an answer of a store."""

    def __init__(self, status: int) -> None:
        self.status = status


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504])
def test_who_is_busy_is_asked_again(status: int) -> None:
    assert RequestError.of(Answer(status)).kind is Kind.TRANSIENT


@pytest.mark.parametrize("status", [301, 307, 400, 401, 403, 405, 407, 411, 501])
def test_who_refuses_is_not_asked_again(status: int) -> None:
    assert RequestError.of(Answer(status)).kind is Kind.REFUSED


def test_a_refusal_that_looks_like_absence_is_none() -> None:
    error = FileNotFoundError("http://host/a")
    error.__cause__ = Answer(403)
    assert RequestError.of(error).kind is Kind.REFUSED
    assert RequestError.of(FileNotFoundError("a")).kind is Kind.ABSENT


def test_no_reason_shows_what_stands_in_a_query() -> None:
    assert "hush" not in RequestError.of(OSError("cannot read https://host/a?sig=hush&x=hush now")).reason


class Failing:
    """Fails in the given ways, one after the other."""

    def __init__(self, *kinds: Kind) -> None:
        self.kinds = iter(kinds)
        self.calls = 0

    def __call__(self, seconds: float) -> str:
        assert seconds > 0
        self.calls += 1
        for kind in self.kinds:
            raise RequestError(kind, f"attempt {self.calls}")
        return "done"


def test_transient_failures_are_tried_again() -> None:
    attempt = Failing(Kind.TRANSIENT, Kind.TRANSIENT, Kind.TRANSIENT)
    assert retried(attempt, 60) == "done"
    assert attempt.calls == 4


@pytest.mark.parametrize("kind", [Kind.ABSENT, Kind.EXISTS, Kind.REFUSED])
def test_other_failures_are_not(kind: Kind) -> None:
    attempt = Failing(Kind.TRANSIENT, kind, Kind.TRANSIENT)
    with pytest.raises(RequestError, match="attempt 2"):
        retried(attempt, 60)


def test_the_last_failure_is_raised_when_the_time_is_over() -> None:
    attempt = Failing(*[Kind.TRANSIENT] * 1000)
    with pytest.raises(RequestError, match="attempt"):
        retried(attempt, 0.2)
    assert 1 < attempt.calls < 1000


def test_a_lack_of_memory_is_raised_at_once() -> None:
    def attempt(_: float) -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        retried(attempt, 60)


def test_pauses_grow_to_a_limit() -> None:
    found = list(itertools.islice(pauses(), 2000))
    assert max(found[:1]) < 0.1 < min(found[3:])
    assert 2 < min(found[10:]) < max(found) < 8
    assert len(set(found)) == len(found)
