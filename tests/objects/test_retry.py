"""Which failures are tried again, and for how long."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from cachelayer.objects.retry import REFUSALS, Kind, RequestError, kind_of_status, pauses, retried


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504])
def test_who_is_busy_is_asked_again(status: int) -> None:
    assert kind_of_status(status) is Kind.TRANSIENT


@pytest.mark.parametrize("status", [301, 307, 400, 401, 403, 405, 407, 411, 501])
def test_who_refuses_is_not_asked_again(status: int) -> None:
    kind = {401: Kind.UNAUTHENTICATED, 403: Kind.FORBIDDEN}.get(status, Kind.REFUSED)
    assert kind_of_status(status) is kind
    assert kind in REFUSALS


class Failing:
    """Fails in the given ways, one after the other."""

    def __init__(self, *kinds: Kind) -> None:
        self.kinds = iter(kinds)
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        for kind in self.kinds:
            raise RequestError(kind, f"attempt {self.calls}")
        return "done"


def test_transient_failures_are_tried_again() -> None:
    attempt = Failing(Kind.TRANSIENT, Kind.TRANSIENT, Kind.TRANSIENT)
    assert asyncio.run(retried(attempt, 60)) == "done"
    assert attempt.calls == 4


@pytest.mark.parametrize("kind", sorted(set(Kind) - {Kind.TRANSIENT}, key=lambda kind: kind.name))
def test_other_failures_are_not(kind: Kind) -> None:
    attempt = Failing(Kind.TRANSIENT, kind, Kind.TRANSIENT)
    with pytest.raises(RequestError, match="attempt 2"):
        asyncio.run(retried(attempt, 60))


def test_the_last_failure_is_raised_when_the_time_is_over() -> None:
    attempt = Failing(*[Kind.TRANSIENT] * 1000)
    with pytest.raises(RequestError, match="attempt"):
        asyncio.run(retried(attempt, 0.2))
    assert 1 < attempt.calls < 1000


def test_an_attempt_that_never_ends_is_ended() -> None:
    with pytest.raises(RequestError, match="no answer within") as caught:
        asyncio.run(retried(asyncio.Event().wait, 0.05))
    assert caught.value.kind is Kind.TRANSIENT


def test_pauses_grow_to_a_limit() -> None:
    found = list(itertools.islice(pauses(), 2000))
    assert max(found[:1]) < 0.1 < min(found[3:])
    assert 2 < min(found[10:]) < max(found) < 8
    assert len(set(found)) == len(found)
