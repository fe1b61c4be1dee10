"""Ranges of S3 objects by obstore, if it is installed: a request takes it a tenth of s3fs' time."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from cachelayer.objects.client import CONNECTIONS
from cachelayer.objects.obstore_threads import started
from cachelayer.objects.retry import Kind, RequestError

_UNDERSTOOD = {"endpoint_url", "key", "secret", "token", "anon", "profile", "client_kwargs", "use_listings_cache"}
_UNDERSTOOD_OF_CLIENT = {"endpoint_url", "region_name", "aws_access_key_id", "aws_secret_access_key"}
_ASK_AGAIN = timedelta(minutes=5)
_CHUNK = 1024 * 1024

_forked = False


def reader_of(client: Any, options: Mapping[str, Any], timeout: float) -> RangeReader | None:
    """Return a reader with the endpoint and credentials of an s3fs file system, or None if that is not certain.

    Args:
        client: the botocore client of the file system.
        options: what the file system was made from.
        timeout: seconds after which an operation fails if nobody answers.
    """
    # obstore's threads do not survive a fork: a child of a process that has used it would wait for ever.
    if _forked or importlib.util.find_spec("obstore") is None:
        return None
    if not _UNDERSTOOD.issuperset(options) or not _UNDERSTOOD_OF_CLIENT.issuperset(options.get("client_kwargs") or {}):
        return None
    # s3fs says at once that it found no credentials; obstore's failure would be tried again until the timeout.
    if not options.get("anon") and client._get_credentials() is None:
        return None
    return RangeReader(client, bool(options.get("anon")), timeout)


class RangeReader:
    """Reads ranges of objects of any bucket."""

    def __init__(self, client: Any, anonymous: bool, timeout: float) -> None:
        self._client = client
        self._anonymous = anonymous
        self._endpoint: str = client.meta.endpoint_url
        self._region: str | None = client.meta.region_name
        self._timeout = timeout
        self._stores: dict[str, Any] = {}

    async def get(self, bucket: str, key: str, start: int, stop: int) -> bytes:
        import obstore

        with _translated():
            store = self._store(bucket)
            return bytes(await started(lambda: obstore.get_range_async(store, key, start=start, end=stop)))

    async def chunks(self, bucket: str, key: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """Yield a range, piece by piece as it arrives."""
        import obstore

        with _translated():
            store = self._store(bucket)
            found = await started(lambda: obstore.get_async(store, key, options={"range": (start, stop)}))
            stream = found.stream(_CHUNK)
            with suppress(StopAsyncIteration):
                while True:
                    yield await started(stream.__anext__)

    def _store(self, bucket: str) -> Any:
        from obstore.store import S3Store

        store = self._stores.get(bucket)
        if store is None:
            silence = timedelta(seconds=self._timeout / 4)
            store = self._stores[bucket] = S3Store(
                bucket,
                endpoint=self._endpoint,
                region=self._region or "us-east-1",
                virtual_hosted_style_request=False,
                client_options={
                    "allow_http": self._endpoint.startswith("http:"),
                    "connect_timeout": silence,
                    "read_timeout": silence,
                    "timeout": timedelta(days=1),
                    "pool_max_idle_per_host": str(CONNECTIONS),
                },
                retry_config={"max_retries": 0},
                **self._credentials(),
            )
        return store

    def _credentials(self) -> dict[str, Any]:
        if self._anonymous:
            return {"skip_signature": True}
        return {"credential_provider": self._current}

    async def _current(self) -> dict[str, Any]:
        """Return the credentials that s3fs uses now."""
        found = await self._client._get_credentials().get_frozen_credentials()
        return {
            "access_key_id": found.access_key,
            "secret_access_key": found.secret_key,
            "token": found.token,
            "expires_at": datetime.now(UTC) + _ASK_AGAIN,
        }


@contextmanager
def _translated() -> Iterator[None]:
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, OSError, ValueError) as error:
        raise RequestError(_kind(error), str(error).split("\n\nDebug source:")[0]) from error


def _kind(error: Exception) -> Kind:
    text = str(error)
    if "NoSuchBucket" in text:
        return Kind.NO_ROOT
    if isinstance(error, FileNotFoundError):
        return Kind.ABSENT
    if "status code: 416" in text:
        return Kind.BEYOND_END
    # The bucket is in another region; s3fs finds it.
    if "Received redirect" in text:
        return Kind.REFUSED
    for status in ("301", "307", "400", "401", "403", "405"):
        if f"status code: {status}" in text:
            return Kind.REFUSED
    return Kind.REFUSED if isinstance(error, ValueError) else Kind.TRANSIENT


def _after_fork() -> None:
    global _forked
    _forked = _forked or "obstore" in sys.modules


os.register_at_fork(after_in_child=_after_fork)
