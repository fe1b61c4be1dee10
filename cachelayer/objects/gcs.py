"""Google Cloud Storage, by gcsfs."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from base64 import b64encode
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import google_crc32c
from aiohttp.abc import AbstractStreamWriter

from cachelayer.objects.client import CONNECTIONS, OnBytes, Stat, close_at_exit
from cachelayer.objects.gcs_requests import open_requests, translated
from cachelayer.objects.mapped_upload import mapped
from cachelayer.objects.range_connections import RangeConnections
from cachelayer.objects.ranges import pieces
from cachelayer.objects.retry import REFUSALS, Kind, RequestError, retried, told
from cachelayer.records.memory import Bytes, Piece

_PART = 32 * 1024 * 1024
_STEP = 256 * 1024
_READ_BUFFER = 1024 * 1024
_CONTENT = "application/octet-stream"


class _Body(aiohttp.Payload):
    """A request body that is sent without copying it first."""

    def __init__(self, *parts: memoryview) -> None:
        super().__init__(parts)

    @property
    def size(self) -> int:
        return sum(map(len, self._value))

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._value).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        for part in self._value:
            # asyncio copies what the socket does not take at once.
            for start, stop in pieces(0, len(part), _STEP):
                await writer.write(part[start:stop])


class GcsClient:
    """Requests to Google Cloud Storage.

    Args:
        options: what gcsfs takes.
        timeout: seconds after which an operation fails if nobody answers.
    """

    def __init__(self, options: Mapping[str, Any], timeout: float) -> None:
        silence = aiohttp.ClientTimeout(total=None, sock_connect=timeout / 4, sock_read=timeout / 4)
        defaults = {"requests_timeout": silence, "use_listings_cache": False}
        fixed = {"asynchronous": True, "skip_instance_cache": True}
        self._fs = open_requests({**defaults, **options, **fixed}, timeout)
        # A session of the user's own kind, with proxies or certificates of its own, makes all requests. It may come
        # from the configuration of fsspec, too.
        is_own = bool(self._fs.session_kwargs) or self._fs.requests_timeout is not silence
        # A dict of its own, because this client's connections go into it.
        self._fs.session_kwargs = dict(self._fs.session_kwargs)
        if not self._fs._use_client_cert and not is_own:
            self._fs.connections = RangeConnections(timeout / 4)
        self._session: Any = None
        self._opening = asyncio.Lock()
        self.host = urlsplit(self._fs.base).netloc
        self.timeout = timeout
        self.slots = asyncio.Semaphore(CONNECTIONS)
        self.seen: set[str] = set()
        self.is_unproven = False

    async def open(self) -> None:
        if self._session is None:
            await self._connect()

    async def _connect(self) -> None:
        async with self._opening:
            if self._session is None:
                if not self._fs._use_client_cert:
                    self._fs.session_kwargs.setdefault("connector", aiohttp.TCPConnector(limit=CONNECTIONS))
                self._fs.session_kwargs.setdefault("read_bufsize", _READ_BUFFER)
                with translated():
                    self._session = await self._fs._set_session()
                close_at_exit(self)

    async def get(self, path: str) -> bytes:
        headers, data = await self._call("GET", self._fs.url(path))
        _check_hash(headers, data)
        return bytes(data)

    async def range(self, path: str, start: int, stop: int) -> list[Piece]:
        with translated():
            return await self._fs.range(path, start, stop)

    async def chunks(self, path: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        with translated():
            async with aclosing(self._fs.chunks(path, start, stop)) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def stat(self, path: str) -> Stat:
        found = await self._call("GET", "b/{}/o/{}", *_split(path), json_out=True)
        with translated():
            return Stat(int(told(found, "size")), datetime.fromisoformat(told(found, "updated")).timestamp())

    async def put(self, path: str, data: bytes, *, create: bool) -> None:
        await self._send(path, memoryview(data), create=create)

    async def _send(self, path: str, data: memoryview, *, create: bool = False) -> Any:
        """Write an object with one request, so that the condition and the bytes arrive together."""
        bucket, key = _split(path)
        mark = uuid.uuid4().hex
        query = {"uploadType": "multipart", "ifGenerationMatch": "0" if create else None}
        body = _two_parts(mark, json.dumps({"name": key}).encode(), data)
        headers = {"Content-Type": f"multipart/related; boundary={mark}"}
        return await self._call("POST", self._place(bucket), headers=headers, data=body, json_out=True, **query)

    def _place(self, bucket: str) -> str:
        return f"{self._fs.base.removesuffix('storage/v1/')}upload/storage/v1/b/{bucket}/o"

    async def upload(self, file: Path, path: str, on_bytes: OnBytes) -> None:
        source = mapped(file)
        nbytes, checksum = len(source), 0
        place = None if nbytes <= _PART else await self._begin(path)
        found: Any = None
        for start, stop in pieces(0, nbytes, _PART) if nbytes else [(0, 0)]:
            # This also reads the file from the disk, which must not block the loop.
            checksum = await asyncio.to_thread(_checksum, checksum, source[start:stop])
            found = await self._send_part(path, place, source[start:stop].data, start, nbytes)
            if on_bytes is not None:
                on_bytes(stop - start)
        same = b64encode(checksum.to_bytes(4, "big")).decode()
        if not isinstance(found, dict) or (found.get("size"), found.get("crc32c")) != (str(nbytes), same):
            raise RequestError(Kind.OTHER_BYTES, f"the store says that it holds {found}, {nbytes} bytes were sent")

    async def _begin(self, path: str) -> str:
        bucket, key = _split(path)
        headers = {"X-Upload-Content-Type": _CONTENT}

        async def attempt() -> str:
            place = self._place(bucket)
            found, _ = await self._call("POST", place, headers=headers, uploadType="resumable", name=key)
            return str(told(found, "Location"))

        return await retried(attempt, self.timeout)

    async def _send_part(self, path: str, place: str | None, data: memoryview, start: int, nbytes: int) -> Any:
        async def attempt() -> Any:
            # The store skips what it already has from an earlier attempt.
            return await self._send(path, data) if place is None else await self._send_at(place, data, start, nbytes)

        return await retried(attempt, self.timeout, len(data))

    async def _send_at(self, place: str, data: memoryview, start: int, nbytes: int) -> Any:
        """Send a part of an upload; return what the store says of the object after the last part."""
        stop = start + len(data)
        headers = {"Content-Type": _CONTENT, "Content-Range": f"bytes {start}-{stop - 1}/{nbytes}"}
        found, reply = await self._call("POST", place, headers=headers, data=_Body(data))
        taken = found.get("Range")
        # No Range header means: all of the last part was taken, and nothing of any other.
        if stop < nbytes if taken is None else taken.rpartition("-")[2] != str(stop - 1):
            raise RequestError(Kind.TRANSIENT, f"of bytes {start} to {stop} the store took {taken}")
        with translated():
            return json.loads(reply) if reply else None

    async def names(self, folder: str, *, deep: bool) -> list[str]:
        bucket, key = _split(folder)
        prefix = f"{key}/" if key else ""
        query = {"prefix": prefix, "delimiter": None if deep else "/"}
        found: list[str] = []
        token: str | None = ""
        while token is not None:
            page = await self._call("GET", "b/{}/o", bucket, json_out=True, pageToken=token or None, **query)
            told(page, "kind")
            found += page.get("prefixes", [])
            found += [told(item, "name") for item in page.get("items", [])]
            token = page.get("nextPageToken") or None
        return [name.removeprefix(prefix).removesuffix("/") for name in found if name != prefix]

    async def delete(self, path: str) -> None:
        await self._call("DELETE", "b/{}/o/{}", *_split(path))

    async def check_root(self, path: str) -> None:
        bucket = _split(path)[0]
        try:
            await self._call("GET", "b/{}", bucket)
        except RequestError as error:
            if error.kind is Kind.ABSENT:
                raise RequestError(Kind.NO_ROOT, bucket) from error
            # A user who may read objects is not always allowed to look at their bucket.
            if error.kind not in REFUSALS:
                raise

    async def _call(self, *request: Any, **options: Any) -> Any:
        with translated():
            return await self._fs._call(*request, **options)

    async def close(self) -> None:
        if self._fs.connections is not None:
            self._fs.connections.close()
        if self._session is not None:
            await self._session.close()

    def abandon(self) -> None:
        if self._session is not None:
            self._session.detach()


def _split(path: str) -> tuple[str, str]:
    bucket, _, key = path.partition("/")
    return bucket, key


def _check_hash(headers: Any, data: bytes) -> None:
    """Raise unless the bytes of an object match the CRC32C that came with them, if one did."""
    if headers.get("x-goog-stored-content-encoding", "identity") != "identity":
        # The checksum is that of other bytes.
        return
    # Google sends one such header for each kind of checksum.
    sent = re.search(r"crc32c=([^,\s]+)", ",".join(headers.getall("x-goog-hash", [])))
    found = b64encode(google_crc32c.value(bytes(data)).to_bytes(4, "big")).decode()
    if sent is not None and sent[1] != found:
        raise RequestError(Kind.TRANSIENT, f"the bytes that came have the CRC32C {found}, {sent[1]} was expected")


def _checksum(checksum: int, data: Bytes) -> int:
    for start, stop in pieces(0, len(data), _STEP):
        checksum = google_crc32c.extend(checksum, data[start:stop])
    return checksum


def _two_parts(mark: str, names: bytes, data: memoryview) -> _Body:
    head = f"--{mark}\r\nContent-Type: application/json\r\n\r\n".encode() + names
    middle = f"\r\n--{mark}\r\nContent-Type: {_CONTENT}\r\n\r\n".encode()
    return _Body(memoryview(head + middle), data, memoryview(f"\r\n--{mark}--\r\n".encode()))
