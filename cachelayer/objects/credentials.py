"""Storage options, which keep their credentials out of pickles.

A pickle may end up anywhere: in a file, a cluster's queue, a log. So it holds only the options that are no credentials.
A child process that is being started gets all options, through its own pipe. Any other process has to find credentials
in its environment, and a warning says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cachelayer.support.user_warnings import warn

_PLAIN = frozenset({
    "access", "account_host", "account_name", "anon", "endpoint_url", "profile", "project", "region_name",
    "requester_pays", "use_ssl",
})  # fmt: skip
"""Options that are no credentials."""
_TOKEN_METHODS = frozenset({"anon", "browser", "cache", "cloud", "google_default"})
"""Values of gcsfs' ``token`` that name a way to find credentials, and are no credentials themselves."""


class StorageOptions(dict[str, Any]):
    """Storage options whose repr shows only names, and whose pickles hold no credentials."""

    def __init__(self, options: Mapping[str, Any], missing: Iterable[str] = ()) -> None:
        super().__init__(options)
        self.missing: tuple[str, ...] = (*getattr(options, "missing", ()), *missing)
        """The names of the credentials that were lost when these options were pickled."""

    def __repr__(self) -> str:
        return f"StorageOptions of {', '.join(sorted(self)) or 'no name'}"

    def __copy__(self) -> StorageOptions:
        return self

    def __deepcopy__(self, _: Any) -> StorageOptions:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing.context import get_spawning_popen

        if get_spawning_popen() is not None:
            return StorageOptions, (dict(self), self.missing)
        plain = {name: value for name, value in self.items() if _is_plain(name, value)}
        return _unpickled, (plain, self.missing, tuple(sorted(self.keys() - plain.keys())))

    @property
    def hint(self) -> str:
        """A sentence about missing credentials for errors about permissions; empty if none are missing."""
        if not self.missing:
            return ""
        return (
            f" The credentials {', '.join(self.missing)} of the storage_options are not in a pickle: set them in the "
            "environment of this process (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_CONNECTION_STRING), or open the storage here"
        )


def _unpickled(plain: Mapping[str, Any], missing: tuple[str, ...], lost: tuple[str, ...]) -> StorageOptions:
    options = StorageOptions(plain, (*missing, *lost))
    if lost:
        warn(f"credentials are looked for in the environment.{options.hint}")
    return options


def _is_plain(name: str, value: Any) -> bool:
    """Return whether an option is no credential, and holds none: a URL with a user or a query may hold one."""
    return (name in _PLAIN and not set("@?").intersection(str(value))) or (
        name == "token" and str(value) in _TOKEN_METHODS
    )
