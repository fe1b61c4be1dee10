"""Do random things to the versions of one dataset, until killed. Prints errors that no user should meet."""

from __future__ import annotations

import json
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from cachelayer import Storage
from cachelayer.errors import AlreadyExistsError, BuildRevokedError, CacheLayerError, CorruptionError, NotFoundError

VERSIONS = 6
KINDS = 3
"""How many different sources there are."""
LOST = (AlreadyExistsError, NotFoundError, BuildRevokedError)
"""Others were quicker."""


def say(what: str, error: Exception) -> None:
    sys.stdout.write(f"{what}: {error!r}\n")
    sys.stdout.flush()


def element(kind: int, number: int) -> dict[str, Any]:
    return {"kind": kind, "n": number, "text": b"x" * 50}


class Actor:
    def __init__(self, storage: Storage, seed: int) -> None:
        self.storage = storage
        self.random = random.Random(seed)
        self.how = {"shard_bytes": 1000, "progress": False}

    def generator(self) -> Callable[[], Iterator[Any]]:
        kind, count = self.random.randrange(KINDS), self.random.choice([5, 40, 90])
        return lambda: (element(kind, number) for number in range(count))

    def version(self) -> str:
        return f"v{self.random.randrange(VERSIONS)}"

    def build(self) -> None:
        resume = self.random.random() < 0.5
        self.storage.submit(self.generator(), "d", self.version(), resume=resume, **self.how)

    def cache(self) -> None:
        elements = [element(7, number) for number in range(60)]
        self.storage.cache(elements, "d", self.version(), on_change="ignore", **self.how)

    def append(self) -> None:
        self.storage.append("d", self.version(), self.version(), self.generator(), **self.how)

    def derive(self) -> None:
        self.storage.derive("d", self.version(), self.version(), keep=[0, 2, 1])

    def copy(self) -> None:
        self.storage.copy("d", self.version(), self.storage, new=self.version(), progress=False)

    def erase(self) -> None:
        number, grace = self.random.randrange(3), self.random.choice([None, 0])
        self.storage.erase("d", records=[number], of=self.version(), reason="x", grace=grace, progress=False)

    def read(self) -> None:
        ref = self.storage.fetch("d", self.version()).raw()
        ref.read([number for number in (0, len(ref) - 1) if number not in ref.erased])

    def delete(self) -> None:
        self.storage.delete("d", self.version(), grace=self.random.choice([0, 0.01, 60]))

    def collect(self) -> None:
        self.storage.gc(grace=self.random.choice([0, 0.05]), progress=False)

    def act(self) -> None:
        writes = (self.build, self.cache, self.append, self.derive, self.copy, self.erase)
        what = self.random.choice([*writes, self.read, self.delete, self.collect])
        try:
            what()
        except LOST:
            pass
        except CorruptionError as error:
            # What it was about to publish was deleted, with a version that had the same shards.
            if what not in (self.build, self.cache, self.append):
                say(what.__name__, error)
        except CacheLayerError as error:
            say(what.__name__, error)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    url, seed, options = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    actor = Actor(Storage(url, local_cache_bytes=0, storage_options=options), seed)
    while True:
        actor.act()
