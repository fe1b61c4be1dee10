"""A line that shows how far a build is: records/s, MB/s and, where the length is known, the time left."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self


class Progress:
    """A progress line on stderr, once something has been done.

    Args:
        title: what is being built.
        total: number of records, where it is known.
        enabled: None shows it where stderr is a terminal.
    """

    def __init__(self, title: str, total: int | None, enabled: bool | None) -> None:
        self._bar: Any = None
        self._total = total
        self._records = 0
        self._nbytes = 0
        if _is_seen(enabled):
            from tqdm import tqdm

            self._bar = tqdm(
                desc=title, total=total, unit=" records", unit_scale=True, dynamic_ncols=True, smoothing=0.1
            )

    def update(self, records: int, nbytes: int) -> None:
        """So many more records, of so many bytes, were written."""
        self._records += records
        self._nbytes += nbytes
        if self._bar is None:
            return
        elapsed = self._bar.format_dict["elapsed"]
        if elapsed > 0:
            self._bar.set_postfix_str(f"{self._nbytes / elapsed / 1e6:.1f} MB/s", refresh=False)
        self._bar.update(records)

    def __str__(self) -> str:
        total = "" if self._total is None else f" of {self._total:,}"
        return f"{self._records:,}{total} records"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()


def notice(text: str, enabled: bool | None) -> None:
    """A line on stderr, under the same rule as the progress line."""
    if _is_seen(enabled):
        sys.stderr.write(text + "\n")


def _is_seen(enabled: bool | None) -> bool:
    # There is no stderr in a daemon.
    if sys.stderr is None:
        return False
    return sys.stderr.isatty() if enabled is None else enabled
