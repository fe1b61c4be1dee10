"""Build a version in a process of its own, while the program that asked for it goes on.

A program that ends before waits for its builds. After Ctrl-C it does not, and says what is left.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Mapping
from contextvars import Context
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cachelayer.builds.build_plan import BuildPlan, BuildRequest
from cachelayer.builds.build_version import build_once
from cachelayer.engines.processes import ChildProcess
from cachelayer.errors import CacheLayerError, SourceError
from cachelayer.provenance.stored_values import Wording, differences
from cachelayer.support.logs import logger_of
from cachelayer.support.progress import Progress, notice
from cachelayer.support.system_threads import start
from cachelayer.support.user_warnings import warn
from cachelayer.versions.lease import CLAIM, Leases, polls
from cachelayer.versions.notes import Notes, noted_numbers

_log = logger_of("builds")
_running: weakref.WeakSet[BackgroundBuild] = weakref.WeakSet()


@dataclass(frozen=True)
class _Task:
    """Builds a version, in a process that has this task.

    Relative paths in the user's code mean ``folder``, the working folder of the program.
    """

    request: BuildRequest
    facts: Mapping[str, Any]
    folder: Path

    def __call__(self) -> bool:
        """Build the version, unless another process builds it or has built it; return whether it was built here."""
        os.chdir(self.folder)
        # This process is no worker of a build: it may begin one, and others of its sources.
        return Context().run(self._build)

    def _build(self) -> bool:
        plan = BuildPlan.of(self.request)
        if plan.facts != self.facts:
            differ = "; ".join(differences(self.facts, plan.facts, Wording.AMONG_HOSTS))
            raise SourceError(
                f"{self.request.name}: the process that builds it has another source than the program: {differ}. Pass "
                "a function that makes the same source in each process"
            )
        return build_once(self.request, plan, waits=False) is not None


class BackgroundBuild:
    """A build that this process looks after: it builds in a child whenever no other process builds the version.

    The child ends with this process. A child that was killed is started again, and goes on after the notes; one that
    is killed twice without a further note has failed.
    """

    def __init__(self, plan: BuildPlan) -> None:
        request = plan.request
        self._progress = request.options.progress
        self._log_began = request.log.head().sequence
        # A bar of the build would be drawn into those of the training.
        options = replace(request.options, progress=request.options.progress or False)
        self._task = _Task(replace(request, options=options), plan.facts, Path.cwd())
        self._notes: Notes = plan.notes
        self._parts = plan.parts.count
        self.process = os.getpid()
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._starting = threading.Lock()
        self._child: ChildProcess | None = self._new_child()
        start(threading.Thread(target=self._run, name="cachelayer-build", daemon=True), "to look after a build")
        if not _running:
            # After multiprocessing, which waits for all children when the program ends.
            atexit.unregister(_end_all)
            atexit.register(_end_all)
        _running.add(self)

    def check(self) -> None:
        """Raise the error of the build, if it has failed."""
        if self._error is not None:
            raise self._error

    def wait(self, seconds: float) -> None:
        """Wait until the build has ended, at most for so long."""
        self._ended.wait(seconds)

    def _new_child(self) -> ChildProcess:
        return ChildProcess(self._task, self._task.request.name)

    def _run(self) -> None:
        try:
            self._look_after()
        except BaseException as error:  # noqa: BLE001 - whoever reads next raises it
            _log.info(
                "%(version)s: the build has failed: %(error)s", {"version": self._task.request.name, "error": error}
            )
            self._error = error
        finally:
            self._ended.set()

    def _look_after(self) -> None:
        request = self._task.request
        leases = Leases(self._notes.version_folder)
        noted_at_death: set[int] | None = None
        log = request.log
        # A version that was deleted meanwhile is not built again.
        while not (request.is_published or log.has_published(request.version, self._log_began)):
            if self._ended.is_set():
                return
            if request.options.hosts is None and leases.holder(CLAIM) is not None:
                # What was pickled of the source may be large.
                self._child = None
                self._ended.wait(polls())
                continue
            child = self._child = self._child or self._new_child()
            with self._starting:
                if self._ended.is_set():
                    return
                child.start()
            is_built = child.result()
            if is_built:
                return
            if is_built is None and not self._ended.is_set():
                noted = noted_numbers(self._notes.folder)
                if noted == noted_at_death:
                    raise SourceError(
                        f"the process that builds {request.name} was killed twice without finishing a part, perhaps "
                        f"because memory ran out (exit code {child.exit_code})"
                    )
                noted_at_death = noted
                _log.warning(
                    "%(version)s: the process that builds was killed; another goes on", {"version": request.name}
                )
            self._child = None

    def wait_at_exit(self) -> bool:
        """Wait until the build has ended, and show how far it is; return False if Ctrl-C asks not to."""
        if self._ended.is_set():
            return True
        name = self._task.request.name
        try:
            notice(
                f"{name} is not built yet, so this program waits for it. Ctrl-C ends both: the next storage.cache() "
                "goes on after what is built",
                self._progress,
            )
            with Progress(name, self._parts, self._progress, unit="part") as shown:
                shown.show_until(self._ended, lambda: len(noted_numbers(self._notes.folder)))
                # The notes are deleted with the end.
                shown.drawn = self._parts if self._error is None else shown.drawn
        except KeyboardInterrupt:
            return False
        return True

    def end(self) -> None:
        """End the build with this process, and say how far it is, or why it has failed."""
        if self._error is not None:
            warn(f"{self._task.request.name} was not built: {self._error}", logger="builds")
        if self._ended.is_set():
            return
        # A child that is half started would complain of it.
        with self._starting:
            self._ended.set()
            child = self._child
        if child is not None:
            child.kill()
        if self._task.request.is_published:
            return
        warn(
            f"{self._task.request.name} is not finished: its build ends with this process, after "
            f"{len(noted_numbers(self._notes.folder))} of {self._parts} parts. The next storage.cache() goes on after "
            "them",
            logger="builds",
        )


def _end_all() -> None:
    """Wait for the builds of this process that have not ended; after Ctrl-C, end them."""
    waits = getattr(sys, "last_type", None) is not KeyboardInterrupt
    for build in [build for build in _running if build.process == os.getpid()]:
        try:
            waits = waits and build.wait_at_exit()
            build.end()
        except CacheLayerError as error:
            _log.warning("a build ended with this process: %(error)s", {"error": error})
