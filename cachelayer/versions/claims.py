"""Claims: which process builds a version, or a part of it. A claim saves work, and tells gc that a build is running.

A claim decides nothing: two processes that both think they hold it do the same work twice, and the log takes one
result.

::

    <id>/_builds/<version>/claim                              the process that builds the version
    <id>/_builds/<version>/<plan>/host-00003-<token>.claim    a host that builds it together with others
    <id>/_builds/<version>/<plan>/00005.claim                 the process that builds a part

The holder of a claim writes it again and again: each write is a beat. A claim is dead after :func:`expiry` seconds
without a beat, by the clock of the process that watches it; at once if its holder ran on this host and has ended.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal

from cachelayer.arguments import seconds_of_environment
from cachelayer.errors import StorageError
from cachelayer.host import has_ended, is_running, process_name
from cachelayer.logs import logger_of
from cachelayer.objects import paths
from cachelayer.objects.store import Store
from cachelayer.progress import Progress
from cachelayer.system_threads import start

_log = logger_of("builds")
CLAIM = "claim"
State = Literal["running", "interrupted", "unknown"]
EXPIRY = 30.0
_BEATS_PER_EXPIRY = 6
_POLLS_PER_EXPIRY = 15
_held_tokens: set[str] = set()
"""The tokens of the claims that this process holds."""


def expiry() -> float:
    """Return the seconds without a beat after which the holder of a claim counts as dead."""
    return seconds_of_environment("CACHELAYER_LEASE_SECONDS", EXPIRY)


class Claims:
    """The claims in one folder."""

    def __init__(self, folder: Store) -> None:
        self._folder = folder
        self._seen: dict[str, tuple[bytes, float]] = {}
        """The last beat of each claim, and the monotonic time at which this process first saw that beat."""
        self._dead: dict[str, bytes] = {}
        """The last beat of each claim of a dead process that could not be deleted."""

    @contextmanager
    def hold(self, claim: str, progress: Progress | None = None) -> Iterator[bool]:
        """Hold a claim, which shows the progress, unless another process holds it; yield whether it is held."""
        holder = os.getpid()
        token = uuid.uuid4().hex
        stopped = threading.Event()
        pause = expiry() / _BEATS_PER_EXPIRY

        def beat(number: int) -> bytes:
            done = "" if progress is None else f" {progress.done}"
            total = "" if progress is None or progress.total is None else f" {progress.total}"
            return f"{process_name()} {token} {number}{done}{total}".encode()

        def beat_on() -> None:
            number = 0
            while not stopped.wait(pause):
                number += 1
                # If the store is away for a while, go on; if that lasts, others take over.
                try:
                    self._folder.put(claim, beat(number))
                except StorageError as error:
                    _log.warning("a claim is not renewed, and others may take the work over: %s", error)

        thread = threading.Thread(target=beat_on, name="cachelayer-claim", daemon=True)
        _held_tokens.add(token)
        is_ours = False
        try:
            is_ours = self._folder.put_if_absent(claim, beat(0))
            if not is_ours and claim in self._dead and self._folder.read(claim) == self._dead.pop(claim):
                self._folder.put(claim, beat(0))
                is_ours = True
            _log.debug("%s/%s: %s", self._folder.url, claim, "claimed" if is_ours else "another process has it")
            if is_ours:
                start(thread, "to show that the build is at work")
            yield is_ours
        finally:
            _held_tokens.discard(token)
            # A child that was forked meanwhile leaves the claim to its parent.
            if is_ours and os.getpid() == holder:
                stopped.set()
                if thread.ident is not None:
                    thread.join()
                with suppress(StorageError):
                    if token.encode() in (self._folder.read(claim) or b""):
                        self._folder.delete(claim)

    def is_busy(self, claim: str) -> bool:
        """Return whether another process may hold a claim. Repeated calls find a dead claim out, and delete it."""
        # The read may be slow: measure from the moment of the request.
        asked = time.monotonic()
        beat = self._folder.read(claim)
        if beat is None:
            return False
        before, since = self._seen.get(claim, (None, asked))
        if _holder_is_gone(beat) or (beat == before and asked - since >= expiry()):
            _log.info(
                "%s/%s: %s gives no sign of life, so its claim is taken over", self._folder.url, claim, _holder(beat)
            )
            try:
                # Another that watches may have deleted it, and hold it anew.
                if self._folder.read(claim) == beat:
                    self._folder.delete(claim)
            except StorageError as error:
                # Who may write and not delete puts a claim of its own over this one.
                _log.info("%s/%s cannot be deleted: %s", self._folder.url, claim, error)
                self._dead[claim] = beat
            return False
        if beat != before:
            self._seen[claim] = (beat, time.monotonic())
        return True

    def is_alive(self, claim: str) -> bool:
        """Return whether the holder of a claim is running. This may watch it for :func:`expiry` seconds."""
        first = None
        while self.is_busy(claim):
            beat = self._seen[claim][0]
            if is_running(_holder(beat)) or first not in (None, beat):
                return True
            first = beat
            self.pause()
        return False

    def holder(self, claim: str) -> str:
        """Return the name of the process that holds a claim, as it was last seen."""
        return _holder(self._seen[claim][0]) if claim in self._seen else "another process"

    def pause(self) -> None:
        """Wait before looking again."""
        time.sleep(expiry() / _POLLS_PER_EXPIRY)


@dataclass(frozen=True)
class ClaimState:
    """The state of a claim, as one look at it shows."""

    state: State
    """Whether the holder is running; ``"unknown"`` if only waiting would tell."""
    holder: str = ""
    """The name of the process; empty if the claim is gone."""
    done: int | None = None
    """Records that are finished; None if the holder does not say."""
    total: int | None = None
    """Records of the whole work; None if the holder does not say."""


def claim_state(folder: Store, claim: str, idle: float) -> ClaimState:
    """Look once at a claim that was written ``idle`` seconds ago, and return its state."""
    beat = folder.read(claim)
    if beat is None:
        return ClaimState("interrupted")
    state: State = "running" if idle < expiry() else "unknown"
    if _holder_is_gone(beat):
        state = "interrupted"
    counts = [int(text) for text in beat[:200].split()[3:5] if text.isdigit()]
    return ClaimState(
        state,
        _holder(beat),
        done=counts[0] if counts else None,
        total=counts[1] if len(counts) > 1 else None,
    )


def _holder(beat: bytes) -> str:
    """Return the name of the process that wrote a beat."""
    # Terminals obey control characters.
    return "".join(filter(str.isprintable, beat[:200].decode("ascii", "replace").partition(" ")[0]))


def _holder_is_gone(beat: bytes) -> bool:
    """Return whether the process that wrote a beat ran on this host and has ended, or is this process and let go."""
    holder = _holder(beat)
    if holder != process_name():
        return has_ended(holder)
    token = beat.decode("ascii", "replace").partition(" ")[2].partition(" ")[0]
    return token not in _held_tokens


def has_running_build(folder: Store, age: Callable[[str], float]) -> bool:
    """Return whether a version of a dataset may be under construction."""
    return any(claim_state(folder, claim, age(claim)).state == "running" for claim in _claims_of(folder))


def _claims_of(folder: Store) -> Iterator[str]:
    """Yield the claims of all builds of a dataset: of versions, hosts and parts."""
    for version in folder.names(paths.BUILDS):
        for name in folder.names(paths.builds(version)):
            path = f"{paths.builds(version)}/{name}"
            if name.endswith(CLAIM):
                yield path
            else:
                yield from (f"{path}/{claim}" for claim in folder.names(path) if claim.endswith(CLAIM))
