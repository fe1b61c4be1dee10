"""Open the file systems of fsspec, such that their clients notice soon that nobody answers, and try again soon."""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import google_crc32c

from cachelayer.errors import InvalidArgumentError, MissingDependencyError
from cachelayer.objects.failures import Kind, RequestError
from cachelayer.objects.store import KINDS

CONNECTIONS = 64
"""Requests for ranges that a process makes at once."""
_FIXED = {"skip_instance_cache": True, "use_listings_cache": False}
_PAUSES = (0.1, 0.5)


@dataclass(frozen=True)
class Opened:
    """A file system of fsspec.

    Args:
        fs: the file system.
        address: the URL of its server.
        info: tells about an object, by one request; the file systems' own methods list as well what may lie below it.
        look_at_bucket: raises FileNotFoundError if there is no bucket of a name; None if there are no buckets.
    """

    fs: Any
    address: str
    info: Callable[..., Any]
    look_at_bucket: Callable[..., Any] | None = None


def open_file_system(kind: str, url: str, options: Mapping[str, Any], timeout: float) -> Opened:
    """Return the file system of a URL.

    Args:
        kind: one of the kinds of buckets, or the scheme of any other URL.
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


def _open_gcs(_url: str, options: Mapping[str, Any], silence: float) -> Opened:
    import aiohttp

    # gcsfs' own default class asks every bucket, by another protocol, whether it is zonal.
    from gcsfs.core import GCSFileSystem

    limits = aiohttp.ClientTimeout(total=None, sock_connect=silence, sock_read=silence)
    fs = GCSFileSystem(**{"requests_timeout": limits, **options, **_FIXED})
    # gcsfs' own retries wait for seconds, and write a traceback to stderr.
    fs._request = partial(_request_of_gcs, partial(GCSFileSystem._request.__wrapped__, fs))
    # Who may see objects may seldom see what is said of their bucket.
    return Opened(fs, fs._location, fs._get_object, partial(fs._ls, max_results=1))


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


def _open_s3(_url: str, options: Mapping[str, Any], silence: float) -> Opened:
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
    client = sync(fs.loop, fs.set_session)

    async def info(path: str) -> dict[str, Any]:
        bucket, _, key = path.partition("/")
        found = await fs._call_s3("head_object", Bucket=bucket, Key=key)
        return {"type": "file", "size": found["ContentLength"], "mtime": found["LastModified"]}

    return Opened(fs, client.meta.endpoint_url, info, fs._info)


def _open_azure(url: str, options: Mapping[str, Any], silence: float) -> Opened:
    from adlfs import AzureBlobFileSystem

    limits = {"connection_timeout": silence, "read_timeout": silence}
    account = _account_of(url)
    fs = AzureBlobFileSystem(**{**limits, **account, **options, **_FIXED})
    if account and account["account_name"] != fs.service_client.account_name:
        raise InvalidArgumentError(
            f"{url}: it names another account than {fs.service_client.account_name!r}, that of the credentials"
        )
    # By default it waits for 15 seconds.
    retries = fs.service_client._config.retry_policy
    retries.initial_backoff, retries.increment_base, retries.random_jitter_range = 0, 0.1, 0.1

    async def info(path: str) -> dict[str, Any]:
        container, _, key = path.partition("/")
        async with fs.service_client.get_blob_client(container, key) as client:
            found = await client.get_blob_properties()
        return {"type": "file", "size": found.size, "mtime": found.last_modified}

    return Opened(fs, fs.service_client.primary_endpoint, info, fs._info)


def _account_of(url: str) -> dict[str, str]:
    """Return the options of adlfs for the account in ``abfs://container@account.dfs.core.windows.net/prefix``."""
    host = url.partition("://")[2].partition("/")[0].partition("@")[2]
    name, dot, domain = host.partition(".")
    # Blobs of a data lake are reached by the other of its two addresses, in clouds of their own too.
    address = {"account_host": f"{name}.blob.{domain.partition('.')[2]}"} if dot else {}
    return {"account_name": name, **address} if host else {}


def _open_other(url: str, options: Mapping[str, Any], _silence: float) -> Opened:
    import fsspec

    fs_class = fsspec.get_filesystem_class(url.partition("://")[0])
    fs = fs_class(**{**fs_class._get_kwargs_from_urls(url), **options, **_FIXED})
    return Opened(fs, url, fs._info if fs.async_impl else fs.info)
