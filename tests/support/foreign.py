"""A store, a source and an engine as another package has them: they know the protocols and the errors alone."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

import cloudpickle
import google_crc32c
import numpy as np

from cachelayer import CacheLayerError, CorruptionError, InvalidTypeError, SourceError, StorageError
from cachelayer.objects.store import Blob, Stat

SPACES: dict[str, dict[str, tuple[bytes, float]]] = {}
LOCK = Lock()


@dataclass(frozen=True)
class DictStore:
    """Objects in a dict of this process, each with the time at which it was written."""

    space: str = field(default_factory=lambda: uuid.uuid4().hex)
    prefix: str = ""

    @property
    def _objects(self) -> dict[str, tuple[bytes, float]]:
        return SPACES.setdefault(self.space, {})

    @property
    def url(self) -> str:
        return f"dict://{self.space}/{self.prefix}".rstrip("/")

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    def folder(self, name: str) -> DictStore:
        return DictStore(self.space, f"{self.prefix}{name}/")

    def local_path(self, name: str) -> None:
        return None

    def read(self, name: str) -> bytes | None:
        return self._objects.get(self.prefix + name, (None, 0.0))[0]

    def stat(self, name: str) -> Stat | None:
        data, written = self._objects.get(self.prefix + name, (None, None))
        return None if data is None else Stat(len(data), written)

    def put(self, name: str, data: bytes) -> None:
        self._objects[self.prefix + name] = data, time.time()

    def put_if_absent(self, name: str, data: bytes) -> bool:
        with LOCK:
            return self._objects.setdefault(self.prefix + name, (data, time.time()))[0] == data

    def delete(self, name: str) -> None:
        self._objects.pop(self.prefix + name, None)

    def delete_folder(self, folder: str) -> None:
        for name in list(self._objects):
            if name.startswith(f"{self.prefix}{folder}/"):
                self._objects.pop(name, None)

    def names(self, folder: str) -> list[str]:
        prefix = f"{self.prefix}{folder}/" if folder else self.prefix
        below = [name.removeprefix(prefix) for name in list(self._objects) if name.startswith(prefix)]
        return sorted({name.partition("/")[0] for name in below})

    def put_file(self, path: Path, blob: Blob) -> None:
        try:
            self.put(blob.name, path.read_bytes())
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error}") from error

    def download(self, name: str, path: Path, nbytes: int) -> int:
        data = self.read(name)
        if data is None or len(data) != nbytes:
            raise CorruptionError(f"{self.prefix}{name} has {self.stat(name)} bytes instead of {nbytes}")
        try:
            with path.open("r+b" if path.exists() else "wb") as file:
                file.truncate(file.write(data))
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error}") from error
        return google_crc32c.value(data)

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes | memoryview]:
        for name, _, stop in ranges:
            data = self.read(name)
            if data is None or len(data) < stop:
                raise CorruptionError(f"{self.prefix}{name}: {self.stat(name)}, and ends before {stop}")
        return [(self.read(name) or b"")[start:stop] for name, start, stop in ranges]


class Spectra:
    """A file of rows of four float32, as an instrument writes them; element 17 may raise an error."""

    def __init__(self, path: Path, error: Exception | None = None) -> None:
        self.rows = np.fromfile(path, "<f4").reshape(-1, 4)
        self.error = error

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        if number == 17 and self.error is not None:
            raise self.error
        return {"spectrum": self.rows[number], "peak": int(self.rows[number].argmax())}


CHILD = """
import os, pickle, sys, threading, time

def end_with(parent):
    while os.getppid() == parent:
        time.sleep(0.05)
    os._exit(1)

parent, path, message, number = pickle.load(sys.stdin.buffer)
threading.Thread(target=end_with, args=[parent], daemon=True).start()
replies = os.dup(1)
os.dup2(2, 1)
sys.path[:] = path
import cloudpickle
try:
    reply = cloudpickle.loads(message)(number), None
except (Exception, SystemExit) as error:
    reply = None, error
try:
    data = cloudpickle.dumps(reply)
    pickle.loads(data)
except Exception:
    data = pickle.dumps((None, RuntimeError(str(reply[1]))))
os.write(replies, data)
"""


class Subprocesses:
    """An engine that starts a Python for each task, two at a time."""

    def run(self, task: Callable[[int], Any], numbers: Iterable[int]) -> Iterator[Any]:
        try:
            message = cloudpickle.dumps(task)
        except Exception as error:
            raise InvalidTypeError(f"the task cannot be pickled: {error}") from error
        rest = iter(numbers)
        processes: dict[Future[bytes], tuple[int, subprocess.Popen[bytes]]] = {}
        with ThreadPoolExecutor(2) as threads:
            try:
                while True:
                    for number in islice(rest, 2 - len(processes)):
                        process = subprocess.Popen(
                            [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
                        )
                        given = pickle.dumps((os.getpid(), sys.path, message, number))
                        reply = threads.submit(lambda process, given: process.communicate(given)[0], process, given)
                        processes[reply] = number, process
                    if not processes:
                        return
                    for done in wait(processes, return_when=FIRST_COMPLETED).done:
                        number, process = processes.pop(done)
                        yield self.result(number, done.result())
            finally:
                for _, process in processes.values():
                    process.kill()

    def result(self, number: int, reply: bytes) -> Any:
        if not reply:
            raise SourceError(f"the process of task {number} died")
        result, error = pickle.loads(reply)
        if error is None or isinstance(error, CacheLayerError):
            if error is not None:
                raise error
            return result
        raise SourceError(f"task {number} failed: {type(error).__name__}: {error}") from error
