"""The progress line: there where somebody looks, silent elsewhere."""

from __future__ import annotations

import io
import sys

import pytest

from cachelayer.progress import Progress, notice


class Terminal(io.StringIO):
    """A stderr that somebody looks at."""

    def isatty(self) -> bool:
        return True


def shown(total: int | None, enabled: bool | None) -> None:
    with Progress("d@v1", total, enabled) as progress:
        for _ in range(4):
            progress.update(25, 25_000_000)
    notice("waiting", enabled)


@pytest.mark.parametrize(
    ("terminal", "enabled", "seen"),
    [(True, None, True), (False, None, False), (True, False, False), (False, True, True)],
)
def test_it_is_shown_on_a_terminal_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, enabled: bool | None, seen: bool
) -> None:
    stderr = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    shown(100, enabled)
    assert ("d@v1" in stderr.getvalue()) == seen
    assert ("waiting" in stderr.getvalue()) == seen


def test_it_shows_rates_and_where_the_length_is_known_the_part_done(monkeypatch: pytest.MonkeyPatch) -> None:
    for total in (100, None):
        stderr = Terminal()
        monkeypatch.setattr(sys, "stderr", stderr)
        shown(total, None)
        last = stderr.getvalue().split("\r")[-1]
        assert "records/s" in last
        assert "MB/s" in last
        assert ("100%" in last) == (total is not None)


def test_a_process_without_stderr_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    shown(100, None)
