"""Storage options that keep their credentials out of pickles.

A pickle may end up anywhere: in a file, a cluster's queue, a log. So it holds only the options that are no
credentials. A child process that is being started gets all of them, through its own pipe; any other process has to find
credentials in its environment, and a warning says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from multiprocessing.context import get_spawning_popen
from typing import Any
from urllib.parse import urlsplit

from cachelayer.user_warnings import warn

_SECRET = re.compile(
    r"secret|token|pass|pwd|credential|bearer|auth|key|\bsas|cookie|header|signature|connection_str", re.I
)
# Values of gcsfs' `token` that name a way to find credentials, and are none themselves.
_WAYS = frozenset({"anon", "browser", "cache", "cloud", "google_default"})


class StorageOptions(dict[str, Any]):
    """Storage options whose repr shows only names, and whose pickles hold no credentials.

    Attributes:
        missing: the names of the credentials that were lost when these options were pickled.
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
        if get_spawning_popen() is not None:
            return StorageOptions, (dict(self), self.missing)
        plain = {name: value for name, value in self.items() if _is_plain(name, value)}
        return _unpickled, (plain, self.missing, tuple(sorted(self.keys() - plain.keys())))

    @property
    def hint(self) -> str:
        """What to add to an error about permissions; empty if nothing is missing."""
        if not self.missing:
            return ""
        return (
            f" The credentials {', '.join(self.missing)} of the storage_options are not in a pickle: set them in the "
            "environment of this process (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "GOOGLE_APPLICATION_CREDENTIALS), or open the storage here"
        )


def _unpickled(plain: Mapping[str, Any], missing: tuple[str, ...], lost: tuple[str, ...]) -> StorageOptions:
    options = StorageOptions(plain, (*missing, *lost))
    if lost:
        warn(f"credentials are looked for in the environment.{options.hint}")
    return options


def _is_plain(name: Any, value: Any) -> bool:
    """Return True if a value is no credential, and holds none."""
    if value is None or isinstance(value, bool) or (isinstance(value, str) and value in _WAYS):
        return True
    if _SECRET.search(str(name)):
        return False
    if isinstance(value, Mapping):
        return all(_is_plain(key, each) for key, each in value.items())
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
