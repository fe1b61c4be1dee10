"""Storage options that keep their credentials out of pickles.

A pickle may end up anywhere: in a file, a cluster's queue, a log. So it holds only the options that are no
credentials, and says where to find the others: in the memory of the process that made it. Processes of the same user
on the same host read them there while that process lives; a child that multiprocessing starts gets them through its
own pipe. Any other process has to find credentials in its environment, and a warning says so.
"""

from __future__ import annotations

import os
import pickle
import re
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.context import get_spawning_popen
from typing import Any
from urllib.parse import urlsplit

from cachelayer.locks import ProcessLock
from cachelayer.user_warnings import warn

_SECRET = re.compile(
    r"secret|token|pass|pwd|credential|bearer|auth|key|\bsas|cookie|header|signature|connection_str", re.I
)
# Values of gcsfs' `token` that name a way to find credentials, and are none themselves.
_WAYS = frozenset({"anon", "browser", "cache", "cloud", "google_default"})
_NONCE_NBYTES = 16


class StorageOptions(dict[str, Any]):
    """Storage options whose repr shows only names, and whose pickles hold no credentials.

    Attributes:
        missing: the names of the credentials that were lost when these options were unpickled.
    """

    def __init__(self, options: Mapping[str, Any], missing: Iterable[str] = ()) -> None:
        super().__init__(options)
        self.missing: tuple[str, ...] = (*getattr(options, "missing", ()), *missing)

    def __repr__(self) -> str:
        return f"StorageOptions of {', '.join(sorted(self)) or 'no name'}"

    def __copy__(self) -> StorageOptions:
        return self

    def __deepcopy__(self, _: Any) -> StorageOptions:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        plain, hidden = _divided(self)
        if not hidden:
            return StorageOptions, (plain, self.missing)
        if get_spawning_popen() is not None:
            return StorageOptions, (dict(self), self.missing)
        return _found_again, (plain, _kept(hidden), tuple(sorted(hidden)), self.missing)

    @property
    def hint(self) -> str:
        """What to add to an error about permissions; empty if nothing is missing."""
        if not self.missing:
            return ""
        return (
            f" The credentials {', '.join(self.missing)} of the storage_options are not in a pickle, and the process "
            "that made it is not on this host, of another user, or has ended: set them in the environment of this "
            "process (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, GOOGLE_APPLICATION_CREDENTIALS), or open the "
            "storage here"
        )


@dataclass(frozen=True)
class _Place:
    """Where a process keeps credentials for its user's other processes: an open file in memory, and its nonce."""

    pid: int
    descriptor: int
    nonce: bytes


def _divided(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split options into those that anybody may see, and the credentials."""
    plain: dict[str, Any] = {}
    hidden: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, Mapping) and not _SECRET.search(str(name)):
            inner, inner_hidden = _divided(value)
            plain[name] = inner
            if inner_hidden:
                hidden[name] = inner_hidden
        elif _is_plain(str(name), value):
            plain[name] = value
        else:
            hidden[name] = value
    return plain, hidden


def _is_plain(name: str, value: Any) -> bool:
    """Return True if a value cannot be a credential."""
    if value is None or isinstance(value, bool) or (isinstance(value, str) and value in _WAYS):
        return True
    if _SECRET.search(name):
        return False
    if isinstance(value, (list, tuple)):
        return all(_is_plain(name, each) for each in value)
    return isinstance(value, (int, float)) or (isinstance(value, str) and _is_plain_text(value))


def _is_plain_text(text: str) -> bool:
    if "://" not in text:
        return True
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return "@" not in parts.netloc and not parts.query


def _merged(plain: Mapping[str, Any], hidden: Mapping[str, Any]) -> dict[str, Any]:
    both = {name: _merged(plain[name], hidden[name]) for name in hidden if isinstance(plain.get(name), Mapping)}
    return {**plain, **hidden, **both}


_places: dict[bytes, _Place] = {}
_lock = ProcessLock()
# A forked child keeps its own copy: its parent may end first.
os.register_at_fork(after_in_child=_places.clear)


def _kept(hidden: Mapping[str, Any]) -> _Place | None:
    """Keep credentials in the memory of this process; return None if this system has no files in memory."""
    if not hasattr(os, "memfd_create"):
        return None
    raw = pickle.dumps(hidden)
    with _lock:
        place = _places.get(raw)
        if place is None:
            nonce = secrets.token_bytes(_NONCE_NBYTES)
            place = _Place(os.getpid(), os.memfd_create("cachelayer"), nonce)
            os.write(place.descriptor, nonce + raw)
            _places[raw] = place
    return place


def _found_again(
    plain: Mapping[str, Any], place: _Place | None, names: tuple[str, ...], missing: tuple[str, ...]
) -> StorageOptions:
    """Return the unpickled options, with their credentials if the process that made the pickle still holds them."""
    raw = None if place is None else _read(place)
    if raw is not None:
        return StorageOptions(_merged(plain, pickle.loads(raw)), missing)  # noqa: S301 - of a process of this user
    found = StorageOptions(plain, (*missing, *names))
    warn(f"credentials are looked for in the environment.{found.hint}")
    return found


def _read(place: _Place) -> bytes | None:
    """Return the credentials that a process of this user keeps; None if it does not, or has ended."""
    with suppress(OSError), open(f"/proc/{place.pid}/fd/{place.descriptor}", "rb") as file:  # noqa: PTH123
        if os.fstat(file.fileno()).st_uid == os.geteuid() and file.read(_NONCE_NBYTES) == place.nonce:
            return file.read()
    return None
