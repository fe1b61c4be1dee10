"""Objects in a bucket, or in any other file system of fsspec."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from cachelayer.errors import (
    CorruptionError,
    InvalidArgumentError,
    StorageError,
)
from cachelayer.objects import transfer
from cachelayer.objects.client import Client, Stat, client_of, forget, key_of
from cachelayer.objects.credentials import StorageOptions
from cachelayer.objects.loop import run
from cachelayer.objects.open_client import CONDITIONAL, open_client
from cachelayer.objects.ranges import coalesce, cut
from cachelayer.objects.retry import Kind, RequestError, retried
from cachelayer.objects.store import Buffer

T = TypeVar("T")

GAP = 64 * 1024
"""Two ranges with fewer bytes between them are fetched by one request."""

_MAY_BE_ABSENT = " S3 also answers this for missing objects, unless you may list the bucket."


@dataclass(frozen=True)
class BucketStore:
    """Objects below a URL.

    Args:
        scheme: the scheme of the URL.
        root: the rest of it: a bucket and perhaps a prefix.
        options: what the client takes: credentials, which stay out of pickles, and endpoint.
        timeout: seconds after which an operation fails if nobody answers.
        unsafe_commit: write even without put-if-absent, by looking first: two writers may both succeed.
    """

    scheme: str
    root: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    timeout: float = 60.0
    unsafe_commit: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", StorageOptions(self.options))

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.root}"

    def read(self, name: str) -> bytes | None:
        path = self._path(name)
        return self._run("read", name, lambda client: transfer.found_or_none(client, path, lambda: client.get(path)))

    def exists(self, name: str) -> bool:
        return self.size(name) is not None

    def size(self, name: str) -> int | None:
        found = self._stat(name)
        return None if found is None else found.nbytes

    def modified(self, name: str) -> float | None:
        found = self._stat(name)
        if found is not None and found.modified is None:
            raise StorageError(f"{self.url}/{name}: the store does not say when it was written")
        return None if found is None else found.modified

    def _stat(self, name: str) -> Stat | None:
        path = self._path(name)
        return self._run(
            "look up", name, lambda client: transfer.found_or_none(client, path, lambda: client.stat(path))
        )

    def put(self, name: str, data: bytes) -> None:
        self._check_writable()
        path = self._path(name)
        self._run(
            "write", name, lambda client: _retried(client, lambda: client.put(path, data, create=False), len(data))
        )

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self._check_writable()
        if self.unsafe_commit and (there := self.read(name)) is not None:
            return there == data
        return self._run(
            "write",
            name,
            lambda client: transfer.put_if_absent(client, self._path(name), data, proven=not self.unsafe_commit),
        )

    def delete(self, name: str) -> None:
        self._check_writable()
        self._run("delete", name, lambda client: transfer.delete(client, self._path(name)))

    def delete_folder(self, folder: str) -> None:
        self._check_writable()
        self._run("delete", folder, lambda client: transfer.delete_folder(client, self._path(folder)))

    def names(self, folder: str) -> list[str]:
        path = self._path(folder)
        found = self._run("list", folder, lambda client: _retried(client, lambda: client.names(path, deep=False)))
        return sorted(set(found))

    def upload(self, path: Path, name: str) -> None:
        self._check_writable()
        self._run("write", name, lambda client: transfer.upload(client, path, self._path(name), None))

    def download(self, name: str, path: Path, nbytes: int) -> int:
        return self._run("read", name, lambda client: transfer.download(client, self._path(name), path, nbytes, None))

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[Buffer]:
        names = ", ".join(sorted({name for name, _, _ in ranges})[:3])
        spans = coalesce(ranges, gap=GAP, limit=transfer.PIECE)
        bodies = self._run("read ranges of", names, lambda client: transfer.read_spans(client, self.root, spans))
        return [pieces[0] if len(pieces) == 1 else b"".join(pieces) for pieces in cut(ranges, spans, bodies)]

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}".rstrip("/")

    def _client(self) -> Client:
        place = self.url if self.scheme not in CONDITIONAL else self.scheme
        key = (place, self.timeout, key_of(self.options))
        return client_of(key, lambda: open_client(self.url, self.options, self.timeout))

    def _run(self, what: str, name: str, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        client: Client | None = None
        try:
            client = self._client()
            return run(_opened(client, work))
        except RequestError as error:
            if client is not None and error.kind is Kind.UNAUTHENTICATED:
                # A new client finds renewed credentials.
                forget(client)
            host = client.host if client is not None else self.scheme
            raise self._failure(f"cannot {what} {self.url}/{name}: {host}", error) from error
        except transfer.ShortObjectError as error:
            found = "there is no such object" if error.nbytes is None else f"it has {error.nbytes} bytes"
            raise CorruptionError(
                f"{self.scheme}://{error.path}: {found}, expected {error.expected}: restore it, or build again"
            ) from error

    def _failure(self, what: str, error: RequestError) -> StorageError:
        if error.kind in {Kind.NO_ROOT, Kind.ABSENT}:
            bucket = self.root.partition("/")[0]
            return StorageError(f"{what}: there is no bucket {bucket!r} ({error.reason}): create it, or fix the URL")
        if error.kind is Kind.TRANSIENT:
            return StorageError(
                f"{what}: {error.reason} (timeout {self.timeout:g} s): is the host reachable and healthy?"
            )
        if error.kind is Kind.OTHER_BYTES:
            return StorageError(f"{what}: {error.reason}, at every try: is the file being changed?")
        hint = {
            Kind.UNAUTHENTICATED: ". Are the credentials valid?",
            Kind.FORBIDDEN: f". Do the credentials allow it?{_MAY_BE_ABSENT if 's3' in self.scheme else ''}",
        }
        missing = StorageOptions(self.options).hint
        return StorageError(f"{what}: refused: {error.reason.rstrip('.')}{hint.get(error.kind, '')}{missing}")

    def _check_writable(self) -> None:
        if self.scheme not in CONDITIONAL and not self.unsafe_commit:
            raise InvalidArgumentError(
                f"{self.url}: {self.scheme}:// has no put-if-absent, without which two writers may overwrite each "
                "other: build on local disk, gs:// or s3://, or pass unsafe_commit=True if there is one writer"
            )


async def _opened(client: Client, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
    await client.open()
    return await work(client)


def _retried(client: Client, attempt: Callable[[], Awaitable[T]], nbytes: int = 0) -> Coroutine[Any, Any, T]:
    return retried(attempt, client.timeout, nbytes)
