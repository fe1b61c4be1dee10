"""The main function of a process that encodes elements of a source.

It reads requests from its standard input and writes replies to its standard output, each a pickle after its length as
a little-endian uint64. The first request says where modules are found, and holds source, element spec and ``on_error``,
pickled by value where they are defined in the main program. Each further one is the first record and the number of
records of a block, and is answered with the block or with the error. It ends at the end of its input.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
from typing import IO, Any

from cachelayer.building.encode import Block, Encoder
from cachelayer.codec import codec_for
from cachelayer.errors import CacheLayerError, SourceError

_LENGTH = struct.Struct("<Q")


def send(pipe: IO[bytes], message: bytes) -> None:
    """Write a message."""
    pipe.write(_LENGTH.pack(len(message)))
    pipe.write(message)
    pipe.flush()


def receive(pipe: IO[bytes]) -> bytes | None:
    """The next message; None where there is none any more."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    message = pipe.read(_LENGTH.unpack(head)[0])
    return message if len(message) == _LENGTH.unpack(head)[0] else None


def encode(source: Any, spec: Any, on_error: Any, start: int, count: int) -> Block:
    """A block of a source that can begin at any record."""
    encoder = Encoder(codec_for(spec), on_error, start)
    frames = [encoder.encode(batch) for batch in source.skipped(start).batches(count)]
    return encoder.block(frames)


def _reply(job: tuple[Any, Any, Any], request: bytes) -> bytes:
    try:
        return pickle.dumps(encode(*job, *pickle.loads(request)), protocol=5)  # noqa: S301 - of the parent
    except CacheLayerError as error:
        return _pickled(error)
    except Exception as error:  # noqa: BLE001 - the parent raises it
        return _pickled(SourceError(f"a worker process failed: {type(error).__name__}: {error}"))


def _pickled(error: CacheLayerError) -> bytes:
    try:
        return pickle.dumps(error)
    except (pickle.PicklingError, TypeError, AttributeError):
        return pickle.dumps(SourceError(str(error)))


def main() -> None:
    """Answer requests until there are no more."""
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    # What the source prints must not come between replies.
    os.dup2(2, 1)
    job: tuple[Any, Any, Any] | None = None
    while (request := receive(requests)) is not None:
        if job is None:
            found = pickle.loads(request)  # noqa: S301 - of the parent
            sys.path[:] = found["path"]
            job = pickle.loads(found["job"])  # noqa: S301 - of the parent
            send(replies, pickle.dumps("ready"))
        else:
            send(replies, _reply(job, request))
