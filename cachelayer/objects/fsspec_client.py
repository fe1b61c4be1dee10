"""Any file system of fsspec, through its blocking calls in threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import fsspec

from cachelayer.objects.client import CONNECTIONS, OnBytes, Stat
from cachelayer.objects.paths import parent_of
from cachelayer.objects.retry import Kind, RequestError, kind_of_status, retried
from cachelayer.records.memory import Piece

T = TypeVar("T")

_REFUSED = (NotImplementedError, ValueError, TypeError, AttributeError)
_create_lock = threading.Lock()


class FsspecClient:
    """Requests to a file system of fsspec. Its put-if-absent is atomic only among the threads of one process.

    Args:
        url: any URL in the file system.
        options: the keyword arguments of its class.
        timeout: seconds after which an operation fails if the store does not answer.
    """

    def __init__(self, url: str, options: Mapping[str, Any], timeout: float) -> None:
        fixed = {"skip_instance_cache": True, "use_listings_cache": False}
        self._scheme = url.partition("://")[0]
        with _translated():
            kind = fsspec.get_filesystem_class(self._scheme)
            self._fs = kind(**{**kind._get_kwargs_from_urls(url), **options, **fixed})
        self.host = urlsplit(url).netloc or self._scheme
        self.timeout = timeout
        self.slots = asyncio.Semaphore(CONNECTIONS)
        self.seen: set[str] = set()
        self.is_unproven = False

    async def open(self) -> None:
        """Do nothing: the file system opens itself."""

    async def get(self, path: str) -> bytes:
        return bytes(await self._call(lambda: self._fs.cat_file(self._inner(path))))

    async def range(self, path: str, start: int, stop: int) -> list[Piece]:
        return [bytes(await self._call(lambda: self._fs.cat_file(self._inner(path), start=start, end=stop)))]

    def _inner(self, path: str) -> str:
        """Return a path as the file system writes it."""
        return str(self._fs._strip_protocol(f"{self._scheme}://{path}"))

    async def chunks(self, path: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        for chunk in await self.range(path, start, stop):
            yield bytes(chunk)

    async def stat(self, path: str) -> Stat:
        found = await self._call(self._fs.info, self._inner(path))
        if found["type"] != "file":
            raise RequestError(Kind.ABSENT, f"{path} is a folder")
        return Stat(int(found["size"]), await self._call(self._modified, self._inner(path)))

    def _modified(self, path: str) -> float | None:
        try:
            return float(self._fs.modified(path).timestamp())
        except NotImplementedError:
            # Not every file system records it.
            return None

    async def put(self, path: str, data: bytes, *, create: bool) -> None:
        await self._call(self._create if create else self._write, self._inner(path), data)

    def _write(self, path: str, data: bytes) -> None:
        self._below(path, lambda: self._fs.pipe_file(path, data))

    def _below(self, path: str, write: Callable[[], None]) -> None:
        """Write, and make the parent folder first if the file system has folders."""
        try:
            write()
        except FileNotFoundError:
            self._fs.makedirs(parent_of(path), exist_ok=True)
            write()

    def _create(self, path: str, data: bytes) -> None:
        with _create_lock:
            if self._fs.exists(path):
                raise FileExistsError(path)
            self._write(path, data)

    async def upload(self, file: Path, path: str, on_bytes: OnBytes) -> None:
        nbytes = file.stat().st_size
        await retried(lambda: self._call(self._send, file, self._inner(path)), self.timeout, nbytes)
        found = await retried(lambda: self.stat(path), self.timeout)
        if found.nbytes != nbytes:
            raise RequestError(Kind.OTHER_BYTES, f"the store holds {found.nbytes} bytes, {nbytes} were sent")
        if on_bytes is not None:
            on_bytes(nbytes)

    def _send(self, file: Path, path: str) -> None:
        self._below(path, lambda: self._fs.put_file(str(file), path))

    async def names(self, folder: str, *, deep: bool) -> list[str]:
        top = self._inner(folder).strip("/")
        try:
            found = await self._call(self._fs.find if deep else self._list, self._inner(folder))
        except RequestError as error:
            if error.kind is Kind.ABSENT:
                return []
            raise
        return [path.strip("/").removeprefix(f"{top}/") for path in found if path.strip("/") != top]

    def _list(self, folder: str) -> list[str]:
        return [str(path) for path in self._fs.ls(folder, detail=False)]

    async def delete(self, path: str) -> None:
        await self._call(self._fs.rm_file, self._inner(path))

    async def check_root(self, path: str) -> None:
        """Do nothing: folders come and go with what is in them."""

    async def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        with _translated():
            return await asyncio.to_thread(function, *arguments)

    async def close(self) -> None:
        """Do nothing: the file system closes itself."""

    def abandon(self) -> None:
        """Do nothing: the file system handles forks itself."""


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (RequestError, MemoryError):
        raise
    except Exception as error:
        # A file system may raise anything; none of it comes from our code.
        raise RequestError(_kind(error), str(error) or repr(error)) from error


def _kind(error: Exception) -> Kind:
    # The http:// file system reports every failure as a missing file.
    for status in (getattr(error, "status", None), getattr(error.__cause__, "status", None)):
        if isinstance(status, int) and status >= 300:
            return kind_of_status(status)
    if isinstance(error, FileNotFoundError):
        return Kind.ABSENT
    if isinstance(error, FileExistsError):
        return Kind.EXISTS
    if isinstance(error, PermissionError):
        return Kind.FORBIDDEN
    return Kind.REFUSED if isinstance(error, _REFUSED) else Kind.TRANSIENT
