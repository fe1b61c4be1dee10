"""Statistics that are computed in the background, so that pages can show how far they are and stop them."""

from __future__ import annotations

import threading
import time
from typing import Any

from cachelayer import system_threads
from cachelayer.access.dataref import DataRef
from cachelayer.errors import CacheLayerError, InvalidArgumentError
from cachelayer.statistics import Statistics, survey

_AT_ONCE = 2
_KEPT = 16
# So many seconds after the last look, a survey stops: its page looks every second while it is open.
_UNSEEN = 600.0


class _StoppedError(Exception):
    """The survey was stopped."""


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
        self.name = f"{ref.dataset_id}@{ref.dataset_version}"
        self._ref, self._records = ref, records
        self._looked = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cachelayer-statistics", daemon=True)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        system_threads.start(self._thread, "to read statistics")

    def look(self) -> None:
        """Note that somebody looks at it."""
        self._looked = time.monotonic()

    def stop(self) -> None:
        """Ask it to stop; it does after the batch that it reads."""
        self._stop.set()

    def join(self, seconds: float) -> None:
        """Wait until it has ended, or so long."""
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            self.found = survey(self._ref, records=self._records, progress=False, each_batch=self._count)
        except _StoppedError as error:
            self.problem = str(error)
        except CacheLayerError as error:
            self.problem = str(error)
        except Exception as error:
            self.problem = f"{type(error).__name__}: {error}; this is a bug in cachelayer: please report it"
            raise

    def _count(self, read: int) -> None:
        self.read = read
        if self._stop.is_set():
            raise _StoppedError("stopped")
        if time.monotonic() - self._looked > _UNSEEN:
            raise _StoppedError(f"stopped: nobody has looked for {_UNSEEN / 60:g} minutes")


class Surveys:
    """The surveys of the versions that were asked for lately. Thread-safe."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], Survey] = {}
        self._lock = threading.Lock()

    def find(self, ref: DataRef[Any]) -> Survey | None:
        """Return the survey of a version, which somebody looks at now; None if there is none."""
        found = self._of.get((ref.dataset_id, ref.digest))
        if found is not None:
            found.look()
        return found

    def start(self, ref: DataRef[Any], records: int | None) -> Survey:
        """Start the survey of a version, in place of an earlier one; return the one that runs if one does.

        Raises:
            InvalidArgumentError: if too many run already.
            StorageError: if the system gives no thread.
        """
        key = (ref.dataset_id, ref.digest)
        with self._lock:
            known = self._of.get(key)
            if known is not None and known.is_running:
                return known
            running = [each.name for each in self._of.values() if each.is_running]
            if len(running) >= _AT_ONCE:
                raise InvalidArgumentError(
                    f"the statistics of {' and '.join(running)} are being read: stop one of them, or wait"
                )
            ended = [name for name, each in self._of.items() if not each.is_running]
            for name in ended[: max(0, len(self._of) + 1 - _KEPT)]:
                del self._of[name]
            made = Survey(ref, records)
            made.start()
            self._of[key] = made
        return made
