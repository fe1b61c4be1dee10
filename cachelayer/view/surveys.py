"""Statistics that are computed in the background, so that pages can show how far they are and stop them."""

from __future__ import annotations

import threading
from typing import Any

from cachelayer.access.dataref import DataRef
from cachelayer.errors import CacheLayerError, InvalidArgumentError
from cachelayer.statistics import Statistics, survey

_AT_ONCE = 2
_KEPT = 16


class _StoppedError(Exception):
    """The user stopped the survey."""


class Survey:
    """The statistics of a version: running, done, stopped or failed.

    Args:
        ref: the version.
        records: how many records to read; None for all.
    """

    def __init__(self, ref: DataRef[Any], records: int | None) -> None:
        self.total = len(ref) if records is None else min(records, len(ref))
        self.read = 0
        self.found: Statistics | None = None
        self.problem = ""
        self._ref, self._records = ref, records
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cachelayer-statistics", daemon=True)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask it to stop; it does after the batch that it reads."""
        self._stop.set()

    def join(self, seconds: float) -> None:
        """Wait until it has ended, or so long."""
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            self.found = survey(self._ref, records=self._records, progress=False, each_batch=self._count)
        except _StoppedError:
            self.problem = "stopped"
        except CacheLayerError as error:
            self.problem = str(error)
        except Exception as error:
            self.problem = f"{type(error).__name__}: {error}; this is a bug in cachelayer: please report it"
            raise

    def _count(self, read: int) -> None:
        self.read = read
        if self._stop.is_set():
            raise _StoppedError


class Surveys:
    """The surveys of the versions that were asked for lately. Thread-safe."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], Survey] = {}
        self._lock = threading.Lock()

    def find(self, ref: DataRef[Any]) -> Survey | None:
        """Return the survey of a version; None if there is none."""
        return self._of.get((ref.dataset_id, ref.digest))

    def start(self, ref: DataRef[Any], records: int | None) -> Survey:
        """Start the survey of a version, in place of an earlier one; return the one that runs if one does.

        Raises:
            InvalidArgumentError: if too many run already.
        """
        key = (ref.dataset_id, ref.digest)
        with self._lock:
            known = self._of.get(key)
            if known is not None and known.is_running:
                return known
            if sum(each.is_running for each in self._of.values()) >= _AT_ONCE:
                raise InvalidArgumentError("two surveys run already: stop one of them, or wait")
            ended = [name for name, each in self._of.items() if not each.is_running]
            for name in ended[: max(0, len(self._of) + 1 - _KEPT)]:
                del self._of[name]
            made = self._of[key] = Survey(ref, records)
            made.start()
        return made
