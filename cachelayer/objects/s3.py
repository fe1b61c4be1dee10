"""Amazon S3 and compatible stores, by s3fs."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import botocore.exceptions
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    FlexibleChecksumError,
    HTTPClientError,
    IncompleteReadError,
    MetadataRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    SSLError,
)
from botocore.parsers import ResponseParserError
from s3fs import S3FileSystem

from cachelayer.errors import InvalidArgumentError
from cachelayer.objects import s3_ranges
from cachelayer.objects.client import CONNECTIONS, OnBytes, Stat, close_at_exit
from cachelayer.objects.loop import together
from cachelayer.objects.ranges import pieces
from cachelayer.objects.retry import REFUSALS, Kind, RequestError, check_place, kind_of_status, retried, told
from cachelayer.records.memory import Piece
from cachelayer.user_warnings import warn

_READ = 1024 * 1024
_PART = 16 * 1024 * 1024
_PARTS = 10_000
_AMAZON = (".amazonaws.com", ".amazonaws.com.cn")
_PARTS_AT_ONCE = 4
_MOST_REFUSED = 3
"""After this many ranges that s3fs may read but obstore may not, obstore is no longer used."""
_TRANSIENT = (
    # The bytes that came do not match the checksum that came with them.
    FlexibleChecksumError,
    HTTPClientError,
    IncompleteReadError,
    ResponseParserError,
    botocore.exceptions.ConnectionError,
    aiohttp.ClientError,
    ConnectionError,
    TimeoutError,
)
# If S3 says that a bucket is elsewhere but not where, aiobotocore asks again for ever.
_FAILURES = (*_TRANSIENT, BotoCoreError, ClientError, OSError, ValueError, RecursionError)
_CODES = {
    "NoSuchBucket": Kind.NO_ROOT,
    # S3 gives no reason in an answer to HEAD; expired tokens are the usual one.
    "400": Kind.UNAUTHENTICATED,
    # The upload has to start over.
    "InvalidPart": Kind.ABSENT,
    "RequestTimeTooSkewed": Kind.REFUSED,
    **dict.fromkeys(("RequestTimeout", "BadDigest", "XAmzContentSHA256Mismatch", "IncompleteBody"), Kind.TRANSIENT),
    **dict.fromkeys(
        ("ExpiredToken", "ExpiredTokenException", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch"),
        Kind.UNAUTHENTICATED,
    ),
}
"""What errors mean whose HTTP status does not say enough."""


class S3Client:
    """Requests to S3.

    Args:
        options: options of s3fs.
        timeout: seconds after which an operation fails if the store does not answer.
    """

    def __init__(self, options: Mapping[str, Any], timeout: float) -> None:
        config = {
            "connect_timeout": timeout / 4,
            "read_timeout": timeout / 4,
            "max_pool_connections": CONNECTIONS,
            "retries": {"total_max_attempts": 1, "mode": "standard"},
            **options.get("config_kwargs", {}),
        }
        fixed = {"config_kwargs": config, "asynchronous": True, "skip_instance_cache": True}
        self._fs = S3FileSystem(**{"use_listings_cache": False, **options, **fixed})
        self._fs.retries = 1
        self._options = options
        self._ranges: s3_ranges.RangeReader | None = None
        self._refused = 0
        self._session: Any = None
        self._opening = asyncio.Lock()
        self.host = "S3"
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
                try:
                    with _translated():
                        client = await self._fs.set_session()
                except TypeError as error:
                    raise InvalidArgumentError(f"storage_options of s3://: {error}") from error
                self.host = urlsplit(client.meta.endpoint_url).netloc
                self.is_unproven = not self.host.endswith(_AMAZON)
                # obstore does not know of certificates that botocore was given.
                is_plain = client.meta.endpoint_url.startswith("http:")
                if is_plain or self._fs.session.get_config_variable("ca_bundle") is None:
                    self._ranges = s3_ranges.reader_of(client, self._options, self.timeout)
                self._session = client
                close_at_exit(self)

    async def get(self, path: str) -> bytes:
        return await self._get(path)

    async def range(self, path: str, start: int, stop: int) -> list[Piece]:
        if self._ranges is None:
            return [await self._get(path, start, stop)]
        try:
            return [await self._ranges.get(*_split(path), start, stop)]
        except RequestError as error:
            if error.kind not in REFUSALS:
                raise
            refusal = error
        data = await self._get(path, start, stop)
        self._refused += 1
        if self._ranges is not None and self._refused >= _MOST_REFUSED:
            self._ranges = None
            warn(f"{self.host} refuses obstore what it gives s3fs, which reads ranges more slowly: {refusal}")
        return [data]

    async def _get(self, path: str, start: int | None = None, stop: int = 0) -> bytes:
        conditions = {} if start is None else {"Range": f"bytes={start}-{stop - 1}"}
        reply = await self._call("get_object", path, **conditions)
        with _translated():
            async with told(reply, "Body") as body:
                if start is None:
                    whole: bytes = await body.read()
                    return whole
                check_place(reply.get("ContentRange"), start)
                found = bytearray()
                # A reply may be far too long.
                while len(found) <= stop - start and (data := await body.read(_READ)):
                    found += data
        return bytes(found)

    async def chunks(self, path: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        if self._ranges is not None:
            try:
                async with aclosing(self._ranges.chunks(*_split(path), start, stop)) as chunks:
                    async for chunk in chunks:
                        yield chunk
            except RequestError as error:
                if error.kind not in REFUSALS:
                    raise
            else:
                return
        for piece in await self.range(path, start, stop):
            yield bytes(piece)

    async def stat(self, path: str) -> Stat:
        found = await self._call("head_object", path)
        return Stat(told(found, "ContentLength"), told(found, "LastModified").timestamp())

    async def put(self, path: str, data: bytes, *, create: bool) -> None:
        with _translated():
            # One request, so that the condition and the bytes arrive together.
            mode = "create" if create else "overwrite"
            await self._fs._pipe_file(path, data, chunksize=len(data) + 1, mode=mode)

    async def upload(self, file: Path, path: str, on_bytes: OnBytes) -> None:
        nbytes = file.stat().st_size
        if nbytes <= _PART:
            await self._send("put_object", path, await asyncio.to_thread(file.read_bytes), on_bytes)
        else:
            await self._upload_parts(file, nbytes, path, on_bytes)
        found = await retried(lambda: self.stat(path), self.timeout)
        if found.nbytes != nbytes:
            raise RequestError(Kind.OTHER_BYTES, f"the store holds {found.nbytes} bytes, {nbytes} were sent")

    async def _upload_parts(self, file: Path, nbytes: int, path: str, on_bytes: OnBytes) -> None:
        begun = await retried(lambda: self._call("create_multipart_upload", path), self.timeout)
        upload = told(begun, "UploadId")
        slots = asyncio.Semaphore(_PARTS_AT_ONCE)

        async def send(number: int, start: int, stop: int) -> dict[str, Any]:
            async with slots:
                data = await asyncio.to_thread(_read, file, start, stop)
                etag = await self._send("upload_part", path, data, on_bytes, UploadId=upload, PartNumber=number)
            return {"ETag": etag, "PartNumber": number}

        try:
            size = max(_PART, -(-nbytes // _PARTS))
            parts = await together(
                send(number, start, stop) for number, (start, stop) in enumerate(pieces(0, nbytes, size), 1)
            )
            await retried(
                lambda: self._call(
                    "complete_multipart_upload", path, UploadId=upload, MultipartUpload={"Parts": parts}
                ),
                self.timeout,
            )
        except RequestError:
            # If this fails it is harmless: buckets usually have a rule that drops unfinished uploads.
            with suppress(RequestError):
                await self._call("abort_multipart_upload", path, UploadId=upload)
            raise

    async def _send(self, method: str, path: str, data: bytes, on_bytes: OnBytes, **options: Any) -> str:
        """Send an object or a part of one, and compare its ETag if that is the MD5 of its bytes."""
        digest = await asyncio.to_thread(lambda: hashlib.md5(data, usedforsecurity=False).hexdigest())

        async def attempt() -> str:
            reply = await self._call(method, path, Body=data, **options)
            etag: str = told(reply, "ETag")
            plain = reply.get("ServerSideEncryption", "AES256") == "AES256" and "SSECustomerAlgorithm" not in reply
            if plain and len(etag.strip('"')) == len(digest) and etag.strip('"') != digest:
                raise RequestError(Kind.TRANSIENT, f"the store got bytes of the MD5 {etag}, {digest} was sent")
            return etag

        etag = await retried(attempt, self.timeout, len(data))
        if on_bytes is not None:
            on_bytes(len(data))
        return etag

    async def names(self, folder: str, *, deep: bool) -> list[str]:
        bucket, key = _split(folder)
        prefix = f"{key}/" if key else ""
        query: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix, "Delimiter": "" if deep else "/"}
        found: list[str] = []
        while True:
            with _translated():
                page = await self._fs._call_s3("list_objects_v2", **query)
            # An answer that is not a list does not mean that there is nothing.
            told(page, "Name")
            found += [told(each, "Prefix") for each in page.get("CommonPrefixes", [])]
            found += [told(each, "Key") for each in page.get("Contents", [])]
            if not page.get("IsTruncated"):
                return [name.removeprefix(prefix).removesuffix("/") for name in found if name != prefix]
            query["ContinuationToken"] = told(page, "NextContinuationToken")

    async def delete(self, path: str) -> None:
        await self._call("delete_object", path)

    async def check_root(self, path: str) -> None:
        bucket = _split(path)[0]
        try:
            with _translated():
                await self._fs._call_s3("head_bucket", Bucket=bucket)
        except RequestError as error:
            if error.kind is Kind.ABSENT:
                raise RequestError(Kind.NO_ROOT, bucket) from error
            # A user who may read objects is not always allowed to look at their bucket.
            if error.kind not in REFUSALS:
                raise

    async def _call(self, method: str, path: str, **options: Any) -> Any:
        bucket, key = _split(path)
        with _translated():
            return await self._fs._call_s3(method, Bucket=bucket, Key=key, **options)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def abandon(self) -> None:
        """Do nothing: only the loop closes an asynchronous s3fs client."""


def _split(path: str) -> tuple[str, str]:
    bucket, _, key = path.partition("/")
    return bucket, key


def _read(file: Path, start: int, stop: int) -> bytes:
    with file.open("rb") as source:
        source.seek(start)
        return source.read(stop - start)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except _FAILURES as error:
        raise RequestError(_kind(error), str(error) or repr(error)) from error


def _kind(error: Exception) -> Kind:
    reply = error if isinstance(error, ClientError) else error.__cause__
    if isinstance(reply, ClientError):
        code = reply.response.get("Error", {}).get("Code", "")
        return _CODES.get(code) or kind_of_status(
            int(reply.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500))
        )
    if isinstance(error, CredentialRetrievalError) and isinstance(error.__context__, MetadataRetrievalError):
        return Kind.TRANSIENT
    if isinstance(error, (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError)):
        return Kind.UNAUTHENTICATED
    if isinstance(error, SSLError):
        return Kind.REFUSED
    return Kind.TRANSIENT if isinstance(error, _TRANSIENT) else Kind.REFUSED
