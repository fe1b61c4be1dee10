"""Build, train and read with worker processes that begin by forkserver, as they do by default from Python 3.14 on."""

import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from typing import Any

import cachelayer


def part(index: int, _: int) -> Iterator[int]:
    yield from range(index * 50, index * 50 + 50)


def read(ref: cachelayer.DataRef[Any], number: int) -> int:
    return int(ref[number])


if __name__ == "__main__":
    multiprocessing.set_start_method("forkserver")
    # PyTorch takes each process seconds to import.
    multiprocessing.set_forkserver_preload(["cachelayer.adapters.torch"] if find_spec("torch") else [])
    ref = cachelayer.Storage(sys.argv[1]).cache(cachelayer.sharded(part, 4), "d@v1", workers=2, progress=False)
    assert ref.read(range(200)).tolist() == list(range(200))
    with ProcessPoolExecutor(2) as pool:
        assert list(pool.map(read, [ref] * 4, range(4))) == [0, 1, 2, 3]
    if find_spec("torch"):
        from cachelayer.adapters.torch import loader

        stream = ref.stream(16, shuffle=True, seed=0, num_epochs=2)
        expected = [batch.tolist() for epoch in stream.epochs() for batch in epoch]
        assert [batch.tolist() for batch in loader(stream, num_workers=2)] == expected
