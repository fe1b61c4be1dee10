"""The store of objects in a bucket; also in any other file system of fsspec, where objects can only be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Self

from cachelayer.errors import InvalidArgumentError, StorageError
from cachelayer.objects.credentials import StorageOptions
from cachelayer.objects.failures import Kind, RequestError, retried
from cachelayer.objects.file_systems import METHODS, FileSystem, file_system, forget, in_order
from cachelayer.objects.local import storage_errors, write_in_place, wrong_size
from cachelayer.objects.ranges import Span, coalesce, cut, pieces
from cachelayer.objects.store import CLOUD_OF_SCHEME, Blob, Buffer, Stat
from cachelayer.support.credentials_in_urls import as_cause
from cachelayer.support.logs import logger_of

_log = logger_of("stores")
GAP = 64 * 1024
"""One request fetches two ranges that have at most so many bytes between them."""
PIECE = 8 * 1024 * 1024
"""The most bytes of one request."""
_WHOLE_PIECE = 16 * 1024 * 1024
"""The most bytes of one request for an object that is read whole."""
_PIECES_AHEAD = 4
_TRUSTED = 1 << 30
"""Ranges of up to so many bytes are asked for before the store has confirmed the size of the object."""


@dataclass(frozen=True)
class BucketStore:
    """The objects below a URL."""

    scheme: str
    """The scheme of the URL."""
    root: str
    """The rest of the URL: a bucket, and perhaps a prefix."""
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The options of the file system: endpoint and credentials. Credentials stay out of pickles."""
    timeout: float = 60.0
    """Seconds after which an operation fails if the store does not answer."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", StorageOptions(self.options))

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.root}"

    @property
    def name(self) -> str:
        return self.root.rpartition("/")[2]

    def folder(self, name: str) -> Self:
        return replace(self, root=f"{self.root}/{name}")

    def local_path(self, name: str) -> None:  # noqa: ARG002
        return None

    def read(self, name: str) -> bytes | None:
        with self._opened("read", name) as (fs, path):
            body = self._if_there(fs, "cat_file", path)
            return None if body is None else bytes(body)

    def stat(self, name: str) -> Stat | None:
        with self._opened("look up", name) as (fs, path):
            return self._stat(fs, path)

    def put(self, name: str, data: bytes) -> None:
        with self._opened("write", name) as (fs, path):
            what = f"write {fs.url(path)}"
            retried(what, lambda seconds: fs.call("pipe_file", path, data, seconds=seconds), self.timeout, len(data))

    def put_if_absent(self, name: str, data: bytes) -> bool:
        with self._opened("write", name) as (fs, path):
            what = f"write {fs.url(path)} if it is absent"
            is_ours = retried(what, lambda seconds: self._create(fs, path, data, seconds), self.timeout, len(data))
            if is_ours and fs.is_untested_for_create:
                self._check_conditional_put(fs, path, data)
            return is_ours

    def _create(self, fs: FileSystem, path: str, data: bytes, seconds: float) -> bool:
        """Put an object unless there is one; return whether these bytes are the object now.

        A put whose reply was lost looks like one that came too late or never arrived: only the object tells which.
        """
        try:
            fs.call("pipe_file", path, data, mode="create", seconds=seconds)
        except MemoryError:
            raise
        # A client may raise anything.
        except Exception as error:
            failure = RequestError.of(error)
            if failure.kind not in {Kind.EXISTS, Kind.TRANSIENT}:
                raise failure from error
        else:
            return True
        stored = self._if_there(fs, "cat_file", path)
        if stored is None:
            raise RequestError(Kind.TRANSIENT, f"{failure.reason}; it may be there later")
        is_ours = bool(stored == data)
        fields = {"object": fs.url(path)}
        if is_ours:
            _log.info("write %(object)s if it is absent: the reply was lost, and the object is there", fields)
        else:
            _log.debug("write %(object)s if it is absent: another writer was first", fields)
        return is_ours

    def _check_conditional_put(self, fs: FileSystem, path: str, data: bytes) -> None:
        """Raise unless the store refuses to put an object that exists."""
        try:
            what = f"try whether {fs.url(path)} would be overwritten"
            retried(
                what, lambda seconds: fs.call("pipe_file", path, data, mode="create", seconds=seconds), self.timeout
            )
        except RequestError as error:
            if error.kind is not Kind.EXISTS:
                raise
            fs.is_untested_for_create = False
            return
        raise RequestError(
            Kind.REFUSED,
            "the store overwrites existing objects in spite of If-None-Match, so one of two builders may overwrite "
            "what the other published: build on local disk, or in a store that honours it",
        )

    def delete(self, name: str) -> None:
        with self._opened("delete", name) as (fs, path):
            self._if_there(fs, "rm_file", path)

    def delete_folder(self, folder: str) -> None:
        with self._opened("delete", folder) as (fs, path):
            below = [name for name in self._if_there(fs, "find", path) or [] if name.startswith(f"{path}/")]
            list(in_order([partial(self._if_there, fs, "rm_file", name) for name in below]))

    def names(self, folder: str) -> list[str]:
        return list(self.facts(folder))

    def facts(self, folder: str) -> dict[str, Stat | None]:
        with self._opened("list", folder) as (fs, path):
            found = self._if_there(fs, "ls", path, detail=True) or []
            facts = {info["name"].rstrip("/").removeprefix(f"{path}/"): fs.stat_of(info) for info in found}
        return {name: facts[name] for name in sorted(facts) if name and name != path}

    def put_file(self, path: Path, blob: Blob) -> None:
        def attempt(seconds: float) -> None:
            try:
                crc32c = fs.put_file(str(path), target, blob, seconds)
            # A store may lose an upload of several parts.
            except FileNotFoundError as error:
                fs.check_bucket(target, self.timeout)
                raise RequestError(Kind.TRANSIENT, str(error)) from error
            # Google computes the checksum. Clients of other stores send one with the bytes, or rely on TLS.
            if crc32c not in {None, blob.crc32c}:
                raise RequestError(Kind.TRANSIENT, "the store says that it holds other bytes than were sent")

        with storage_errors("read", path):
            nbytes = path.stat().st_size
        if nbytes != blob.nbytes:
            raise wrong_size(path, nbytes, blob.nbytes)
        with self._opened("write", blob.name) as (fs, target):
            retried(f"write {fs.url(target)}", attempt, self.timeout, nbytes)

    def download(self, name: str, path: Path, nbytes: int) -> int:
        with self._opened("read", name) as (fs, source):
            if nbytes == 0:
                self._check_size(fs, source, 0, 0)
            with storage_errors("write", path):
                return write_in_place(path, self._bodies(fs, source, nbytes))

    def _bodies(self, fs: FileSystem, path: str, nbytes: int) -> Iterator[Buffer]:
        """Yield the bytes of an object of this size, piece by piece, of which some are read ahead."""
        parts = (partial(self._read_exactly, fs, path, *place, nbytes) for place in pieces(0, nbytes, _WHOLE_PIECE))
        return in_order(parts, _PIECES_AHEAD)

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[Buffer]:
        names = ", ".join(sorted({name for name, _, _ in ranges})[:3])
        spans = coalesce(ranges, gap=GAP, limit=PIECE)
        if not spans:
            return [b""] * len(ranges)
        with self._opened("read ranges of", names) as (fs, _):
            places = [(self._path(fs, span.name), *place) for span in spans for place in self._pieces(fs, span)]
            parts = iter(list(in_order([partial(self._read_exactly, fs, *place) for place in places])))
            counts = [-(-(span.stop - span.start) // PIECE) for span in spans]
            bodies = [next(parts) if count == 1 else b"".join(islice(parts, count)) for count in counts]
        return cut(ranges, spans, bodies)

    def _pieces(self, fs: FileSystem, span: Span) -> Iterator[tuple[int, int]]:
        if span.stop - span.start > _TRUSTED:
            self._check_size(fs, self._path(fs, span.name), span.stop)
        return pieces(span.start, span.stop, PIECE)

    def _read_exactly(self, fs: FileSystem, path: str, start: int, stop: int, size: int | None = None) -> Buffer:
        """Return a range of an object; the last one of ``size`` bytes asks for one more, which must not come."""

        def attempt(seconds: float) -> Buffer:
            try:
                body = fs.read_range(path, start, stop + (stop == size), seconds)
            except MemoryError:
                raise
            # A client may raise anything.
            except Exception as error:
                failure = RequestError.of(error)
                if failure.kind is Kind.TRANSIENT:
                    raise failure from error
            else:
                if len(body) == stop - start:
                    return body
                failure = RequestError(Kind.TRANSIENT, f"{len(body)} bytes came for a range of {stop - start}")
            self._check_size(fs, path, stop, size)
            if failure.kind is Kind.REFUSED:
                raise failure
            # A store may be about to restore an object, or have several copies of which one lags behind.
            raise RequestError(Kind.TRANSIENT, f"{failure.reason}, though the object is there")

        return retried(f"read bytes {start} to {stop} of {fs.url(path)}", attempt, self.timeout, stop - start)

    def _check_size(self, fs: FileSystem, path: str, stop: int, size: int | None = None) -> None:
        facts = self._stat(fs, path)
        nbytes = None if facts is None else facts.nbytes
        if nbytes is None or nbytes < stop or size not in {None, nbytes}:
            name = path.removeprefix(self._path(fs, ""))
            raise wrong_size(f"{self.url}{name}", nbytes, stop if size is None else size)

    def _stat(self, fs: FileSystem, path: str) -> Stat | None:
        facts: Stat | None = self._ask_about(fs, f"look up {fs.url(path)}", path, partial(fs.stat, path))
        return facts

    def _if_there(self, fs: FileSystem, method: str, path: str, **options: Any) -> Any:
        """Call a method, and return its result; None if there is no such object. The bucket must exist."""
        what = f"{METHODS[method]} {fs.url(path)}"
        return self._ask_about(fs, what, path, lambda seconds: fs.call(method, path, seconds=seconds, **options))

    def _ask_about(self, fs: FileSystem, what: str, path: str, ask: Callable[[float], Any]) -> Any:
        try:
            answer = retried(what, ask, self.timeout)
        except RequestError as error:
            if error.kind is not Kind.ABSENT:
                raise
            answer = None
        if answer:
            fs.buckets.add(path.partition("/")[0])
        else:
            bucket = fs.url(path.partition("/")[0])
            retried(f"look up {bucket}", lambda seconds: fs.check_bucket(path, seconds), self.timeout)
        return answer

    def _path(self, fs: FileSystem, name: str) -> str:
        return fs.path(f"{self.url}/{name}").rstrip("/")

    @contextmanager
    def _opened(self, what: str, name: str) -> Iterator[tuple[FileSystem, str]]:
        """Yield the file system, and the path of an object in it; turn failed requests into StorageError."""
        if what in {"write", "delete"} and self.scheme not in {*CLOUD_OF_SCHEME, "memory"}:
            raise InvalidArgumentError(
                f"{self.url}: {self.scheme}:// has no put-if-absent, without which two writers may overwrite each "
                "other: build on local disk, gs://, s3:// or az://"
            )
        fs = None
        try:
            opening = f"open {self.scheme}://"
            fs = retried(opening, lambda _: file_system(self.url, self.options, self.timeout), self.timeout)
            yield fs, self._path(fs, name)
        except RequestError as error:
            if fs is not None and error.kind is Kind.REFUSED:
                # A new file system finds renewed credentials.
                _log.warning(
                    "%(request)s was refused: credentials are looked for again",
                    {"request": f"{what} {self.url}/{name}"},
                )
                forget(fs)
            host = self.scheme if fs is None else fs.host
            text = f"cannot {what} {self.url}/{name}: {host}: {self._advice(error)}"
            raise StorageError(text) from as_cause(error)

    def _advice(self, error: RequestError) -> str:
        if error.kind is Kind.ABSENT:
            bucket = self.root.partition("/")[0]
            return f"there is no bucket {bucket!r} ({error.reason}): create it, or fix the URL"
        if error.kind is Kind.TRANSIENT:
            return f"{error.reason} (timeout {self.timeout:g} s): is the host reachable and healthy?"
        may_be_absent = " S3 also answers this for missing objects, unless you may list the bucket."
        return (
            f"refused: {error.reason.rstrip('.')}. Are the credentials valid, and do they allow it?"
            f"{may_be_absent if CLOUD_OF_SCHEME.get(self.scheme) == 's3' else ''}{StorageOptions(self.options).hint}"
        )
