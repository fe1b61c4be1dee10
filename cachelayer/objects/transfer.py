"""Operations of several requests: put if absent with certainty, ranges, files in and out."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from itertools import chain
from pathlib import Path
from typing import TypeVar

import google_crc32c

from cachelayer.objects.client import Client, OnBytes
from cachelayer.objects.crc32c import joined
from cachelayer.objects.local import in_place, storage_error
from cachelayer.objects.loop import together
from cachelayer.objects.ranges import Span, pieces
from cachelayer.objects.retry import REFUSALS, Kind, RequestError, pauses, retried
from cachelayer.records.memory import Piece
from cachelayer.system_threads import Pool

T = TypeVar("T")
Write = Callable[[Sequence[bytes], int, int], Awaitable[int]]
"""Writes chunks at a place in a file; takes the CRC32C of the bytes before them and returns that of all so far."""

PIECE = 8 * 1024 * 1024
_TRUSTED = 1 << 30
"""For up to this many bytes, memory is allocated before the store confirms the object's size."""
_PIECES_AT_ONCE = 8
_WRITE = 1024 * 1024
_DELETES_AT_ONCE = 32
_UPLOADS = 3


class ShortObjectError(Exception):
    """An object is absent, or shorter than it has to be.

    Attributes:
        path: the object.
        nbytes: its size, None if it is absent.
        expected: the size that it has to have.
    """

    def __init__(self, path: str, nbytes: int | None, expected: int) -> None:
        super().__init__(path)
        self.path = path
        self.nbytes = nbytes
        self.expected = expected


async def found_or_none(client: Client, path: str, ask: Callable[[], Awaitable[T]]) -> T | None:
    """Return what ``ask`` returns, or None if the object is absent from a bucket that exists."""
    try:
        found = await retried(ask, client.timeout)
    except RequestError as error:
        if error.kind is not Kind.ABSENT:
            raise
        await _check_bucket(client, path)
        return None
    client.seen.add(path.partition("/")[0])
    return found


async def _check_bucket(client: Client, path: str) -> None:
    bucket = path.partition("/")[0]
    if bucket not in client.seen:
        await retried(lambda: client.check_root(path), client.timeout)
        client.seen.add(bucket)


async def put_if_absent(client: Client, path: str, data: bytes, *, proven: bool) -> bool:
    """Write the object unless there is one; return whether these bytes are the object now.

    A put whose reply was lost looks like one that came too late or never arrived: only the object itself tells which.

    Args:
        client: the store.
        path, data: the object.
        proven: refuse stores that ignore the condition.
    """
    begin = asyncio.get_running_loop().time()
    for pause in pauses():
        try:
            async with asyncio.timeout_at(begin + client.timeout):
                await client.put(path, data, create=True)
        except TimeoutError as error:
            raise RequestError(Kind.TRANSIENT, f"no answer within {client.timeout:g}s; it may be there") from error
        except RequestError as error:
            if error.kind not in {Kind.EXISTS, Kind.TRANSIENT}:
                raise
            failure = error
        else:
            if proven and client.is_unproven:
                await _prove(client, path, data)
            return True
        stored = await found_or_none(client, path, lambda: client.get(path))
        if stored is not None:
            return stored == data
        if asyncio.get_running_loop().time() + pause > begin + client.timeout * 3 / 4:
            raise failure
        await asyncio.sleep(pause)
    raise AssertionError("pauses never end")


async def _prove(client: Client, path: str, data: bytes) -> None:
    """Raise unless putting an existing object again fails."""
    try:
        await retried(lambda: client.put(path, data, create=True), client.timeout)
    except RequestError as error:
        if error.kind is not Kind.EXISTS:
            raise
        client.is_unproven = False
        return
    raise RequestError(
        Kind.REFUSED,
        "the store overwrites existing objects in spite of If-None-Match, so one of two builders may overwrite what "
        "the other published; if there is only one builder, pass unsafe_commit=True",
    )


async def read_spans(client: Client, root: str, spans: Sequence[Span]) -> list[list[Piece]]:
    """Return runs of bytes, fetched at once, each in the pieces in which it arrived."""
    return await together(_run_of_bytes(client, f"{root}/{span.name}", span.start, span.stop) for span in spans)


async def _run_of_bytes(client: Client, path: str, start: int, stop: int) -> list[Piece]:
    if stop - start <= PIECE:
        return await _exactly(client, path, start, stop)
    if stop - start > _TRUSTED:
        await _check_end(client, path, stop)
    parts = await together(_exactly(client, path, *piece) for piece in pieces(start, stop, PIECE))
    return list(chain.from_iterable(parts))


async def _exactly(client: Client, path: str, start: int, stop: int) -> list[Piece]:
    async def attempt() -> list[Piece]:
        data = await client.range(path, start, stop)
        nbytes = sum(map(len, data))
        await _check_length(client, path, start, stop, nbytes)
        return data

    return await _ranged(client, path, start, stop, attempt)


async def _copy_range(client: Client, path: str, start: int, stop: int, write: Write) -> int:
    """Copy a range to its place in a file, and return its CRC32C."""

    async def attempt() -> int:
        position, checksum = start, 0
        async with aclosing(client.chunks(path, start, stop)) as chunks:
            async for run in _runs(chunks):
                begin, position = position, position + sum(map(len, run))
                if position > stop:
                    break
                checksum = await write(run, begin, checksum)
        await _check_length(client, path, start, stop, position - start)
        return checksum

    return await _ranged(client, path, start, stop, attempt)


async def _runs(chunks: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
    """Collect chunks into lists that are worth a system call."""
    run: list[bytes] = []
    async for chunk in chunks:
        run.append(chunk)
        if sum(map(len, run)) >= _WRITE:
            yield run
            run = []
    yield run


async def _check_length(client: Client, path: str, start: int, stop: int, nbytes: int) -> None:
    if nbytes != stop - start:
        await _check_end(client, path, stop)
        raise RequestError(Kind.TRANSIENT, f"{nbytes} bytes came for a range of {stop - start}")


async def _ranged(client: Client, path: str, start: int, stop: int, attempt: Callable[[], Awaitable[T]]) -> T:
    """Try to read a range, and retry after transient failures."""

    async def compared() -> T:
        try:
            return await attempt()
        except RequestError as error:
            if error.kind not in {Kind.BEYOND_END, Kind.ABSENT}:
                raise
            await _check_end(client, path, stop)
            # A store may be about to restore an object, or have several copies of which one lags behind.
            raise RequestError(Kind.TRANSIENT, f"{error.reason}, though the object is there") from error

    async with client.slots:
        try:
            return await retried(compared, client.timeout, stop - start)
        except RequestError as error:
            if error.kind in REFUSALS:
                await _check_end(client, path, stop)
            raise


async def _check_end(client: Client, path: str, stop: int) -> None:
    nbytes = await _size(client, path)
    if nbytes is None or nbytes < stop:
        raise ShortObjectError(path, nbytes, stop)


async def _size(client: Client, path: str) -> int | None:
    """Return the size of an object that should be there; None if it alone is gone, and not its bucket."""
    found = await found_or_none(client, path, lambda: client.stat(path))
    if found is None:
        await retried(lambda: client.check_root(path), client.timeout)
        return None
    return found.nbytes


async def download(client: Client, path: str, target: Path, nbytes: int, on_bytes: OnBytes) -> int:
    """Copy an object of known size to a file, several pieces at once, and return its CRC32C."""
    slots, loop = asyncio.Semaphore(_PIECES_AT_ONCE), asyncio.get_running_loop()
    try:
        # All writes have ended when the file is closed, even if the copy is abandoned.
        with in_place(target) as file, Pool(1, "cachelayer-write") as writing:

            async def write(run: Sequence[bytes], position: int, checksum: int) -> int:
                return await loop.run_in_executor(writing, _write_at, file.fileno(), run, position, checksum)

            async def copy(start: int, stop: int) -> int:
                async with slots:
                    checksum = await _copy_range(client, path, start, stop, write)
                if on_bytes is not None:
                    on_bytes(stop - start)
                return checksum

            if nbytes > _TRUSTED:
                await _check_size(client, path, nbytes)
            places = list(pieces(0, nbytes, PIECE))
            _, *checksums = await together([_check_size(client, path, nbytes), *(copy(*place) for place in places)])
            file.truncate(nbytes)
    except ShortObjectError as error:
        raise ShortObjectError(path, error.nbytes, nbytes) from error
    except OSError as error:
        raise storage_error("write", target, error) from error
    checksum = 0
    for (start, stop), each in zip(places, checksums, strict=True):
        checksum = joined(checksum, each, stop - start)
    return checksum


async def _check_size(client: Client, path: str, nbytes: int) -> int:
    found = await _size(client, path)
    if found != nbytes:
        raise ShortObjectError(path, found, nbytes)
    return nbytes


def _write_at(descriptor: int, run: Sequence[bytes], position: int, checksum: int) -> int:
    for data in run:
        checksum = google_crc32c.extend(checksum, data)
        rest = memoryview(data)
        while rest:
            written = os.pwrite(descriptor, rest, position)
            rest, position = rest[written:], position + written
    return checksum


async def upload(client: Client, file: Path, path: str, on_bytes: OnBytes) -> None:
    """Copy a file to an object; start over if the store lost parts of it, or holds other bytes than were sent."""
    sent = 0

    def count(nbytes: int) -> None:
        nonlocal sent
        sent += nbytes
        if on_bytes is not None:
            on_bytes(nbytes)

    try:
        for _ in range(_UPLOADS - 1):
            try:
                return await client.upload(file, path, count)
            except RequestError as error:
                if error.kind not in {Kind.OTHER_BYTES, Kind.ABSENT}:
                    raise
            count(-sent)
        return await client.upload(file, path, count)
    except OSError as error:
        raise storage_error("read", file, error) from error


async def delete(client: Client, path: str) -> None:
    """Delete an object that may be gone already."""
    await found_or_none(client, path, lambda: client.delete(path))


async def delete_folder(client: Client, folder: str) -> None:
    """Delete every object below a folder."""
    slots = asyncio.Semaphore(_DELETES_AT_ONCE)

    async def delete_one(path: str) -> None:
        async with slots:
            await delete(client, path)

    names = await retried(lambda: client.names(folder, deep=True), client.timeout)
    await together(delete_one(f"{folder}/{name}") for name in names)
