"""Open the store that a URL names."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.objects.credentials import StorageOptions
from cachelayer.objects.local import LocalStore, absolute
from cachelayer.objects.store import KINDS

if TYPE_CHECKING:
    from cachelayer.objects.bucket_store import BucketStore

_TIMEOUT = 60.0
_WITHOUT_USERS = {*KINDS, "http", "https", "webdav", "webdavs"}
"""Schemes whose URLs may hold credentials before the host, and nothing else."""


def open_store(
    url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> LocalStore | BucketStore:
    """Return the store of a path, or of a URL that fsspec opens. It makes no request yet.

    Args:
        url: the path or URL, without credentials.
        storage_options: what the client takes (gcsfs, s3fs ...), and ``timeout``: the seconds that an operation and
            its retries may take if nobody answers, by default 60.
    """
    options = StorageOptions(storage_options or {})
    timeout = _seconds(options.pop("timeout", _TIMEOUT))
    if not isinstance(url, (str, bytes, os.PathLike)):
        raise InvalidTypeError(f"a storage is a path or a URL, not a {type(url).__name__}")
    text = os.fspath(url)
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidArgumentError(f"a storage is a path or a URL, not {url!r}")
    if "://" not in text and "::" not in text:
        _refuse_one_slash(text)
        return _local(text, text, options)
    parts = _checked_url(text)
    if parts.scheme in {"file", "local"}:
        if parts.netloc not in {"", "localhost"}:
            raise InvalidArgumentError(f"storage {text!r}: a file of another host: pass a path of this one")
        return _local(text, unquote(parts.path), options)
    root = f"{parts.netloc}{parts.path}".rstrip("/")
    if not root or names_no_bucket(text):
        raise InvalidArgumentError(f"storage {text!r}: it names no bucket")
    from cachelayer.objects.bucket_store import BucketStore

    return BucketStore(parts.scheme, root, options, timeout)


def _refuse_one_slash(text: str) -> None:
    """Raise if a path looks like a URL that lost a slash: builds would go to a folder of that name."""
    scheme, colon, rest = text.partition(":/")
    if colon and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        raise InvalidArgumentError(
            f"storage {text!r}: write {scheme}://{rest} for a URL, or ./{text} for a folder of this name"
        )


def names_no_bucket(url: str) -> bool:
    """Return whether a URL is of a store with buckets and names none. Its clients would ask the store for long."""
    scheme, _, rest = url.partition("://")
    return scheme in KINDS and not rest.partition("/")[0].strip()


def _seconds(timeout: Any) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < float("inf"):
        raise InvalidArgumentError(f"storage_options: timeout {timeout!r}: pass seconds, more than 0")
    return float(timeout)


def _checked_url(text: str) -> SplitResult:
    shown = without_credentials(text)
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise InvalidArgumentError(f"storage {shown!r} is no URL: {error}") from None
    scheme, _, rest = text.partition("://")
    authority = rest.partition("/")[0]
    if "@" in authority and (":" in authority.rpartition("@")[0] or scheme in _WITHOUT_USERS):
        raise InvalidArgumentError(
            f"storage {shown}: do not put credentials into a URL, which is shown and stored: pass storage_options"
        )
    if "::" in text:
        raise InvalidArgumentError(
            f"storage {shown!r}: chained URLs drop the conditions that publishing rests on: pass the plain URL; "
            "for local copies there is local_cache"
        )
    refuse_query(text)
    return parts


def refuse_query(text: str) -> None:
    """Raise if a URL has a query or a fragment: they often hold credentials, which messages would then show."""
    if "://" in text and re.search("[?#]", text):
        raise InvalidArgumentError(f"storage {without_credentials(text)!r}: a storage URL has no query and no fragment")


def without_credentials(url: str) -> str:
    """Return a URL that is safe to show: without user, password and query."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    rest = re.split(r"[?#]", rest, maxsplit=1)[0]
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    return f"{scheme}://{'...' if user else ''}{at}{host}{slash}{path}"


def _local(text: str, path: str, options: Mapping[str, Any]) -> LocalStore:
    if options:
        raise InvalidArgumentError(f"storage {text!r}: a local disk takes no storage_options, got {sorted(options)}")
    return LocalStore(absolute(f"storage {text!r}", path))
