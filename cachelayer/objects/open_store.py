"""Open the store of a path or a URL. Refuse URLs with credentials, and URLs that are probably not what was meant."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.objects.local import LOCAL_SCHEMES, LocalStore, absolute
from cachelayer.objects.store import CLOUD_OF_SCHEME
from cachelayer.support.credentials_in_urls import has_user, without_credentials

if TYPE_CHECKING:
    from cachelayer.objects.bucket_store import BucketStore

_TIMEOUT = 60.0
_WITHOUT_USERS = sorted({*CLOUD_OF_SCHEME, "http", "https", "webdav", "webdavs"}, reverse=True)
"""Schemes whose URLs have nothing before the host but credentials, or the container of Azure."""
_MAY_HAVE_USER = rf"(?!{'|'.join(_WITHOUT_USERS)})[a-z][a-z0-9+.-]*://[^/:@]+@[^/:@]+(?:/|$)"
_LOST_SLASH = rf"({'|'.join(_WITHOUT_USERS)}|[a-z][a-z0-9+.-]*(?=:/))(?::/?|//)"
"""The beginning of a URL without its colon, or with a slash too few."""
_NOT_NAMES = {"", ".", ".."}


def open_store(
    url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> LocalStore | BucketStore:
    """Return the store of a path, or of a URL that fsspec opens. This makes no request.

    ``storage_options`` are those of the client (gcsfs, s3fs ...), and ``timeout``: the seconds that an operation and
    its retries may take if the store does not answer, by default 60.
    """
    options = dict(storage_options or {})
    timeout = _seconds(options.pop("timeout", _TIMEOUT))
    if not isinstance(url, (str, bytes, os.PathLike)):
        raise InvalidTypeError(f"a storage is a path or a URL, not a {type(url).__name__}")
    text = os.fspath(url)
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidArgumentError(f"a storage is a path or a URL, not {url!r}")
    refuse_credentials(text)
    if "://" not in text and "::" not in text:
        if (":" in text or "//" in text) and (match := re.match(_LOST_SLASH, text, re.IGNORECASE)):
            # Builds would go to a folder of that name.
            raise InvalidArgumentError(
                f"storage {text!r}: write {match[1]}://{text[match.end() :]} for a URL, or ./{text} for a folder"
            )
        return _local(text, text, options)
    parts = _checked_url(text)
    if parts.scheme in LOCAL_SCHEMES:
        if parts.netloc not in {"", "localhost"}:
            raise InvalidArgumentError(f"storage {text!r}: a file of another host: pass a path of this one")
        return _local(text, unquote(parts.path), options)
    root = f"{parts.netloc}{parts.path}".rstrip("/")
    if not root or names_no_bucket(text):
        raise InvalidArgumentError(f"storage {text!r}: it names no bucket")
    steps = [step for step in root.split("/") if step not in _NOT_NAMES]
    if len(steps) <= root.count("/"):
        raise InvalidArgumentError(
            f"storage {text!r}: a step of its path is empty, '.' or '..', which stores and their clients take for "
            f"different names: write {parts.scheme}://{'/'.join(steps)}"
        )
    from cachelayer.objects.bucket_store import BucketStore
    from cachelayer.objects.credentials import StorageOptions

    return BucketStore(parts.scheme, root, StorageOptions(options, getattr(storage_options, "missing", ())), timeout)


def names_no_bucket(url: str) -> bool:
    """Return whether a URL lacks the bucket that its scheme needs. A client would ask the store for long."""
    scheme, _, rest = url.partition("://")
    return scheme in CLOUD_OF_SCHEME and not rest.partition("/")[0].strip()


def _seconds(timeout: Any) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < float("inf"):
        raise InvalidArgumentError(f"storage_options: timeout {timeout!r}: pass seconds, more than 0")
    return float(timeout)


def _checked_url(text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise InvalidArgumentError(f"storage {text!r} is no URL: {error}") from None
    if "::" in text.partition("://")[0]:
        raise InvalidArgumentError(
            f"storage {without_credentials(text)!r}: chained URLs drop the conditions that publishing rests on: pass "
            "the plain URL; for local copies there is local_cache"
        )
    refuse_query(text)
    return parts


def refuse_query(text: str) -> None:
    """Raise if a URL has a query or a fragment: these often hold credentials, which messages would show."""
    if "://" in text and re.search("[?#]", text):
        raise InvalidArgumentError(f"storage {without_credentials(text)!r}: a storage URL has no query and no fragment")


def refuse_credentials(text: str) -> None:
    """Raise if a URL, or a text that may have been meant for one, holds credentials. The error does not show them."""
    # The scheme may have been left out.
    has_no_scheme = re.match(r"[^/@:\[]+:[^/@]*@", text)
    if has_user(f"s3://{text}" if has_no_scheme else text) and not re.match(_MAY_HAVE_USER, text, re.IGNORECASE):
        raise InvalidArgumentError(
            f"storage {without_credentials(text)!r}: what was left out here looks like credentials in a URL, which is "
            "shown and stored: pass storage_options"
        )


def _local(text: str, path: str, options: Mapping[str, Any]) -> LocalStore:
    if options:
        raise InvalidArgumentError(f"storage {text!r}: a local disk takes no storage_options, got {sorted(options)}")
    return LocalStore(absolute(f"storage {text!r}", path))
