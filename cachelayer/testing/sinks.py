"""What every framework that takes a stream promises: it gives the items of the stream, from any state on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import pytest

import cachelayer
from cachelayer import ArraySpec, Blocks, StateError, Storage

RECORDS = 60
NOISY = {"n": ArraySpec("int32"), "noise": ArraySpec("float32", (2,))}
SHUFFLED: dict[str, Any] = {"shuffle": True, "seed": 4}
BUCKETS = ("tokens", [8, 16, 32])
OPTIONS: dict[str, Any] = {"shuffle": True, "seed": 1, "remainder": "drop"}


class Refs:
    """Records of one shape, and documents of 0 to 32 tokens."""

    def __init__(self, storage: Storage) -> None:
        numbers = np.arange(RECORDS, dtype=np.int32)
        arrays = {"n": numbers, "weight": numbers % 3, "grid": np.arange(6 * RECORDS, dtype="f4").reshape(-1, 2, 3)}
        self.rows: Any = storage.cache(arrays, "rows@v1", shard_bytes=800)
        rng = np.random.default_rng(0)
        spec = {"tokens": ArraySpec("int32", (None,))}
        documents = [{"tokens": rng.integers(1, 99, rng.integers(0, 33)).astype(np.int32)} for _ in range(120)]
        self.documents: Any = storage.cache(documents, "d@v1", element_spec=spec, shard_bytes=2000)


def noisy(row: Any, rng: np.random.Generator) -> Any:
    return {"n": row["n"], "noise": rng.random(2, np.float32)}


def halves(batch: Any) -> Any:
    return batch["grid"], {"n": batch["n"]}


Make = Callable[..., Any]
FINITE: dict[str, Callable[[Refs], Make]] = {
    "epochs": lambda refs: lambda **o: refs.rows.stream(16, **SHUFFLED, num_epochs=3, **o),
    "elements": lambda refs: lambda **o: refs.rows.stream(**SHUFFLED, **o),
    "blocks": lambda refs: lambda **o: refs.rows.stream(6, shuffle=Blocks(records=6, window=2, lanes=2), seed=4, **o),
    "padded": lambda refs: lambda **o: refs.rows.stream(16, **SHUFFLED, remainder="pad", **o),
    "shard": lambda refs: lambda **o: refs.rows.stream(16, shard=(1, 2), **o),
    "empty batches": lambda refs: lambda **o: refs.rows.stream(56, shard=(7, 8), remainder="keep", **o),
    "start": lambda refs: lambda **o: refs.rows.stream(16, num_epochs=2, remainder="drop", **{"start": 40} | o),
    "mapped": lambda refs: lambda **o: refs.rows.stream(8, **SHUFFLED, **o).map(noisy, rng=True, element_spec=NOISY),
    "mapped batches": lambda refs: lambda **o: refs.rows.stream(8, **o).map_batches(halves),
    "buckets": lambda refs: lambda **o: refs.documents.stream(8, buckets=BUCKETS, **OPTIONS, **o),
    "windows": lambda refs: lambda **o: refs.documents.windows("tokens", 12).stream(8, **OPTIONS, **o),
    "packed": lambda refs: lambda **o: refs.documents.packed("tokens", 30).stream(8, **OPTIONS, **o),
    "padded documents": lambda refs: (
        lambda **o: refs.documents.padded({"tokens": 20}, long="truncate").stream(8, **OPTIONS, **o)
    ),
    "series": lambda refs: lambda **o: refs.rows.rolling(3, by="weight", order="n", stride=2).stream(8, **OPTIONS, **o),
    "joined packs": lambda refs: (
        lambda **o: cachelayer.concat(
            [part.packed("tokens", 30) for part in (refs.documents, refs.documents[::2])]
        ).stream(8, **OPTIONS, **o)
    ),
}
ENDLESS: dict[str, Callable[[Refs], Make]] = {
    "endless": lambda refs: lambda **o: refs.rows.stream(6, **SHUFFLED, num_epochs=None, remainder="drop", **o),
    "endless from a start": lambda refs: lambda **o: refs.rows.stream(6, num_epochs=None, **{"start": 12} | o),
    "mixture": lambda refs: lambda **o: cachelayer.mix([(refs.rows, 3), (refs.rows[:7], 1)]).stream(6, **SHUFFLED, **o),
    "sample": lambda refs: lambda **o: refs.rows.sample("weight", seed=4).stream(6, **o),
}
STREAMS = FINITE | ENDLESS


def arrays(item: Any) -> Any:
    """Return an item with numpy's arrays for those of a framework."""
    if isinstance(item, dict):
        return {name: arrays(part) for name, part in item.items()}
    return tuple(map(arrays, item)) if isinstance(item, (tuple, list)) else np.asarray(item)


def assert_same(values: list[Any], expected: list[Any]) -> None:
    """Raise unless the items are those of a stream."""
    np.testing.assert_equal([arrays(item) for item in values], [arrays(item) for item in expected])


def numbers_of(item: Any) -> list[int]:
    return [int(number) for number in np.ravel(np.asarray(item["n"]))]


class SinkTests:
    """A framework's iterable of a stream: its items are those of the stream, in the stream's order.

    Examples:
        Subclass it in a file of tests, and say how the framework's iterable is made of a stream. The tests run for
        streams of every kind: shuffled, in blocks, padded, of windows, packs, buckets, mixtures.

        >>> from cachelayer import Storage
        >>> from cachelayer.testing import SinkTests
        >>> from cachelayer.testing.sinks import Refs
        >>> class TestLists(SinkTests):
        ...     def sink(self, stream):
        ...         return [stream[step] for step in range(len(stream))]
        >>> TestLists().test_items_are_those_of_the_stream(Refs(Storage(folder)), "buckets")
    """

    without: ClassVar[set[str]] = set()
    """The streams that the framework does not take."""

    def sink(self, stream: Any) -> Any:
        """Return what iterates over the items."""
        raise NotImplementedError

    def items(self, iterator: Any) -> Iterator[Any]:
        """Return the items that an iterator gives, where they are not what it gives."""
        return iter(iterator)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        for name, streams in (("stream", STREAMS), ("finite", FINITE), ("endless", ENDLESS)):
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, [each for each in streams if each not in self.without])

    @pytest.fixture(scope="class")
    @classmethod
    def refs(cls, tmp_path_factory: pytest.TempPathFactory) -> Refs:
        return Refs(Storage(tmp_path_factory.mktemp("sink")))

    def length(self, make: Make) -> int:
        """Return the length that a sink of a stream has."""
        return len(make())

    def test_items_are_those_of_the_stream(self, refs: Refs, finite: str) -> None:
        make = FINITE[finite](refs)
        stream = make()
        sink = self.sink(stream)
        assert len(sink) == self.length(make)
        assert_same([*self.items(iter(sink))], [*stream])


class ResumableSinkTests(SinkTests):
    """A framework's iterable with a state: it goes on at any state, and each iteration has the next epoch.

    A subclass sets the tests of what its framework does not do to None.

    Examples:
        >>> from cachelayer import Storage
        >>> from cachelayer.testing import ResumableSinkTests
        >>> from cachelayer.testing.sinks import Refs
        >>> class TestEpochs(ResumableSinkTests):
        ...     def sink(self, stream):
        ...         return stream
        ...
        ...     def state(self, sink, iterator):
        ...         return iterator.get_state()
        ...
        ...     def restored(self, make, state):
        ...         iterator = iter(make())
        ...         iterator.set_state(state)
        ...         return iterator
        >>> TestEpochs().test_it_goes_on_at_a_state(Refs(Storage(folder)), "packed")
    """

    def length(self, make: Make) -> int:
        # Frameworks take it for that of every epoch.
        return len(make(start=0))

    def state(self, sink: Any, iterator: Any) -> dict[str, Any]:
        """Return the state after the last item that an iterator has given."""
        raise NotImplementedError

    def restored(self, make: Make, state: dict[str, Any]) -> Any:
        """Return an iterator over a new stream that goes on at a state."""
        raise NotImplementedError

    def test_it_goes_on_at_a_state(self, refs: Refs, stream: str) -> None:
        make = STREAMS[stream](refs)
        expected = [*islice(make(), 9)]
        stop = len(expected) // 2
        sink = self.sink(make())
        iterator = iter(sink)
        begun = [*islice(self.items(iterator), stop)]
        state = self.state(sink, iterator)
        assert state["position"] == make().state(stop)["position"]
        restored = self.restored(make, json.loads(json.dumps(state)))
        rest = len(expected) - stop
        assert_same([*begun, *islice(self.items(restored), rest)], expected)
        assert_same([*begun, *islice(self.items(iterator), rest)], expected)

    def test_an_iteration_over_an_endless_stream_goes_on_after_the_last_one(self, refs: Refs, endless: str) -> None:
        make = ENDLESS[endless](refs)
        sink = self.sink(make())
        counts = [5, 1, 14]
        # A loop that ends early, a look at one item, and a further loop.
        found = [item for count in counts for item in islice(self.items(iter(sink)), count)]
        assert_same(found, [*islice(make(), sum(counts))])

    def test_each_iteration_has_the_epochs_that_follow(self, refs: Refs) -> None:
        for epochs in (1, 3):
            sink = self.sink(refs.rows.stream(16, **SHUFFLED, num_epochs=epochs))
            next(self.items(iter(sink)))
            for iteration in (0, 1):
                end = (iteration + 1) * epochs
                wanted = refs.rows.stream(16, **SHUFFLED, num_epochs=end, start=iteration * epochs * RECORDS)
                assert_same([*self.items(iter(sink))], [*wanted])
        for options in (SHUFFLED | {"reshuffle": False}, {}):
            same = refs.rows.stream(16, **options)
            sink = self.sink(refs.rows.stream(16, **options, start=44))
            assert_same([*self.items(iter(sink))], [*refs.rows.stream(16, **options, start=44)])
            for _ in range(2):
                assert_same([*self.items(iter(sink))], [*same])

    def test_any_number_of_shards_goes_on_where_others_stopped(self, refs: Refs) -> None:

        def make(rank: int, ranks: int) -> Make:
            return lambda **o: refs.rows.stream(16, **SHUFFLED, num_epochs=None, shard=(rank, ranks), **o)

        def steps(iterators: list[Any], count: int) -> list[list[int]]:
            items = [islice(self.items(iterator), count) for iterator in iterators]
            return [[number for part in parts for number in numbers_of(part)] for parts in zip(*items, strict=True)]

        sinks = [self.sink(make(rank, 2)()) for rank in range(2)]
        pair = [iter(sink) for sink in sinks]
        begun = steps(pair, 5)
        first, second = (self.state(sink, iterator) for sink, iterator in zip(sinks, pair, strict=True))
        assert first == second
        rest = steps([self.restored(make(rank, 4), first) for rank in range(4)], 4)
        assert begun + rest == [numbers_of(batch) for batch in islice(make(0, 1)(), 9)]

    def test_the_state_of_another_stream_is_refused_by_what_differs(self, refs: Refs) -> None:

        def make(records: Any = refs.documents, size: int = 8, seed: int = 1) -> Make:
            return lambda **o: records.stream(size, buckets=BUCKETS, shuffle=True, seed=seed, remainder="drop", **o)

        sink = self.sink(make()())
        iterator = iter(sink)
        next(self.items(iterator))
        state = self.state(sink, iterator)
        others = {"digest": make(refs.documents[:50]), "seed is 2": make(seed=2), "global_batch_size": make(size=4)}
        for named, other in others.items():
            with pytest.raises(StateError, match=named):
                self.restored(other, state)
        with pytest.raises(StateError, match="position 3 lies within a step"):
            self.restored(make(), state | {"position": 3})
