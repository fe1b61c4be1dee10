"""Open the file systems of fsspec, such that their clients notice soon that nobody answers, and try again soon."""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections.abc import Mapping
from functools import partial
from typing import Any

import google_crc32c

from cachelayer.errors import InvalidArgumentError, MissingDependencyError
from cachelayer.objects.failures import Kind, RequestError

CONNECTIONS = 64
"""Requests for ranges that a process makes at once."""
KINDS = {"gs": "gcs", "gcs": "gcs", "s3": "s3", "s3a": "s3", "az": "azure", "abfs": "azure", "abfss": "azure"}
"""Schemes of buckets, and what each is called: as the extra that it needs."""
_FIXED = {"skip_instance_cache": True, "use_listings_cache": False}
_PAUSES = (0.1, 0.5)


def open_file_system(kind: str, url: str, options: Mapping[str, Any], timeout: float) -> tuple[Any, str]:
    """Return the file system of a URL, and the address of its server.

    Args:
        kind: one of :data:`KINDS`, or the scheme of any other URL.
        url: any URL in it.
        options: the keyword arguments of its class, such as credentials and endpoint.
        timeout: seconds after which an operation fails if the store does not answer.
    """
    open_one = {"gcs": _open_gcs, "s3": _open_s3, "azure": _open_azure}.get(kind, _open_other)
    try:
        return open_one(url, options, timeout / 4)
    except ModuleNotFoundError as error:
        install = f"cachelayer[{kind}]" if kind in KINDS.values() else "the package that fsspec needs for this scheme"
        raise MissingDependencyError(f"{url}: a package is not installed ({error}): install {install}") from error
    except TypeError as error:
        raise InvalidArgumentError(f"storage_options of {url}: {error}") from error


def _open_gcs(_url: str, options: Mapping[str, Any], silence: float) -> tuple[Any, str]:
    import aiohttp

    # gcsfs' own default class asks every bucket, by another protocol, whether it is zonal.
    from gcsfs.core import GCSFileSystem

    limits = aiohttp.ClientTimeout(total=None, sock_connect=silence, sock_read=silence)
    fs = GCSFileSystem(**{"requests_timeout": limits, **options, **_FIXED})
    # gcsfs' own retries wait for seconds, and write a traceback to stderr.
    fs._request = partial(_request_of_gcs, partial(GCSFileSystem._request.__wrapped__, fs))
    return fs, fs._location


async def _request_of_gcs(request: Any, *arguments: Any, **options: Any) -> Any:
    """Make a request; try it again if that may help, so that an upload in many parts need not begin anew."""
    for pause in (*_PAUSES, None):
        try:
            reply = await request(*arguments, **options)
            if "Range" not in (options.get("headers") or {}):
                _check_whole(reply[1], reply[3])
        # A client may raise anything.
        except Exception as error:
            if pause is None or RequestError.of(error).kind is not Kind.TRANSIENT:
                raise
            await asyncio.sleep(pause)
        else:
            return reply
    raise AssertionError("the last try returns or raises")


def _check_whole(headers: Any, body: bytes) -> None:
    """Raise unless the bytes of an object match the CRC32C that came with them, if one did."""
    # Google sends one such header for each kind of checksum.
    stated = re.search(r"crc32c=([^,\s]+)", ",".join(headers.getall("x-goog-hash", [])))
    is_stored_so = headers.get("x-goog-stored-content-encoding", "identity") == "identity"
    if stated and is_stored_so and stated[1] != b64encode(google_crc32c.Checksum(body).digest()).decode():
        raise RequestError(Kind.TRANSIENT, "the bytes that came do not match their CRC32C")


def _open_s3(_url: str, options: Mapping[str, Any], silence: float) -> tuple[Any, str]:
    from fsspec.asyn import sync
    from s3fs import S3FileSystem

    config = {
        "connect_timeout": silence,
        "read_timeout": silence,
        "max_pool_connections": CONNECTIONS,
        "retries": {"total_max_attempts": 1, "mode": "standard"},
        **options.get("config_kwargs", {}),
    }
    # More than one at once takes another request for the size of each object.
    fs = S3FileSystem(**{"max_concurrency": 1, **options, **_FIXED, "config_kwargs": config})
    client = sync(fs.loop, fs.set_session, timeout=4 * silence)
    return fs, client.meta.endpoint_url


def _open_azure(url: str, options: Mapping[str, Any], silence: float) -> tuple[Any, str]:
    from adlfs import AzureBlobFileSystem

    limits = {"connection_timeout": silence, "read_timeout": silence}
    fs = AzureBlobFileSystem(**{**limits, **AzureBlobFileSystem._get_kwargs_from_urls(url), **options, **_FIXED})
    # By default it waits for 15 seconds.
    retries = fs.service_client._config.retry_policy
    retries.initial_backoff, retries.increment_base, retries.random_jitter_range = 0, 0.1, 0.1
    return fs, fs.service_client.primary_endpoint


def _open_other(url: str, options: Mapping[str, Any], _silence: float) -> tuple[Any, str]:
    import fsspec

    fs_class = fsspec.get_filesystem_class(url.partition("://")[0])
    return fs_class(**{**fs_class._get_kwargs_from_urls(url), **options, **_FIXED}), url
