"""What a failure means, and how long who tries again pauses."""

from __future__ import annotations

import itertools

import pytest

from cachelayer.objects.failures import Kind, RequestError, pauses


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
