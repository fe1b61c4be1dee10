"""Google Cloud Storage: by gcsfs, and ranges by obstore."""

from __future__ import annotations

import asyncio
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import partial
from typing import Any

import google_crc32c

from cachelayer.objects.cloud_client import ASK_AGAIN, FIXED, CloudClient, OpenBucket, obstore_client
from cachelayer.objects.failures import Kind, RequestError, note_retry_of_client

OBSTORE_OPTIONS = frozenset({"access", "endpoint_url", "project", "token"})
_PAUSES = (0.1, 0.5)
_reply: ContextVar[bytes] = ContextVar("cachelayer_reply")
"""The body of the last reply to a task."""


def open_client(_url: str, options: Mapping[str, Any], read_timeout: float) -> CloudClient:
    """Return the file system of gcsfs, with short timeouts and short pauses between retries."""
    import aiohttp

    # gcsfs' own default class asks every bucket, by another protocol, whether it is zonal.
    from gcsfs.core import GCSFileSystem

    limits = aiohttp.ClientTimeout(total=None, sock_connect=read_timeout, sock_read=read_timeout)
    fs = GCSFileSystem(**{"requests_timeout": limits, **options, **FIXED})
    # gcsfs' own retries wait for seconds, and write a traceback to stderr.
    fs._request = partial(_request_of_gcs, partial(GCSFileSystem._request.__wrapped__, fs))

    async def put_file(file: str, path: str, **_parts: Any) -> int:
        await fs._put_file(file, path)
        # The last reply tells what is stored. A checksum that the store computes needs no metadata.
        return int.from_bytes(b64decode(json.loads(_reply.get())["crc32c"]), "big")

    # A list, because credentials for objects seldom allow to look at the bucket itself.
    return CloudClient(fs, fs._location, fs._get_object, put_file, partial(fs._ls, max_results=1))


async def _request_of_gcs(request: Any, *arguments: Any, **options: Any) -> Any:
    """Make a request, again after transient failures, so that an upload in many parts need not begin anew."""
    for pause in (*_PAUSES, None):
        try:
            reply = await request(*arguments, **options)
            if "Range" not in (options.get("headers") or {}):
                _check_whole(reply[1], reply[3])
        # A client may raise anything.
        except Exception as error:
            failure = RequestError.of(error)
            if pause is None or failure.kind is not Kind.TRANSIENT:
                raise
            note_retry_of_client(pause, failure)
            await asyncio.sleep(pause)
        else:
            _reply.set(reply[3])
            return reply
    raise AssertionError("the last try returns or raises")


def _check_whole(headers: Any, body: bytes) -> None:
    """Raise unless the bytes of an object match the CRC32C that came with them, if one did."""
    # Google sends one such header for each kind of checksum.
    stated = re.search(r"crc32c=([^,\s]+)", ",".join(headers.getall("x-goog-hash", [])))
    is_stored_so = headers.get("x-goog-stored-content-encoding", "identity") == "identity"
    if stated and is_stored_so and stated[1] != b64encode(google_crc32c.Checksum(body).digest()).decode():
        raise RequestError(Kind.TRANSIENT, "the bytes that came do not match their CRC32C")


def open_obstore(fs: Any, _options: Mapping[str, Any]) -> OpenBucket | None:
    """Return a function that opens buckets by obstore; None if gcsfs has settings that obstore lacks."""
    gcs_credentials = fs.credentials
    # Sessions and certificates may come from fsspec's or google-auth's configuration, too.
    # gcsfs takes certificates from 2026.10 on.
    if fs.session_kwargs or getattr(fs, "_use_client_cert", False) or fs.requester_pays:
        return None

    def credentials() -> dict[str, Any]:
        gcs_credentials.maybe_refresh()
        expiry = gcs_credentials.credentials.expiry
        until = datetime.now(UTC) + ASK_AGAIN if expiry is None else expiry.replace(tzinfo=UTC)
        return {"token": gcs_credentials.credentials.token, "expires_at": until}

    def open_bucket(bucket: str, client: dict[str, Any]) -> Any:
        from obstore.store import GCSStore

        access = (
            {"skip_signature": True} if gcs_credentials.credentials is None else {"credential_provider": credentials}
        )
        endpoint: str = fs._location
        return GCSStore(bucket, base_url=endpoint, **access, **obstore_client(endpoint, client))

    return open_bucket
