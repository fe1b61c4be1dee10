"""Grain itself over refs and streams: threads, processes, states."""

import asyncio
import itertools
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grain
import numpy as np
import pytest
from absl import flags
from forks import FORKS, importing
from grain._src.python.dataset.transformations import process_prefetch
from grain_steps import Noisy, doubled, noisy
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import run_page
from reference import Case, cases
from samples import examples

import cachelayer
from cachelayer import Blocks, Storage
from cachelayer.adapters.grain import Sampler, iter_dataset
from cachelayer.testing import ResumableSinkTests, SinkTests

# What Grain hands out is compared with the stream itself, again and again.
pytestmark = pytest.mark.filterwarnings("ignore:this stream is iterated over again")

RECORDS = 60
HERE = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
SHARDS = st.integers(1, 4)
same_after_restore = grain.experimental.assert_equal_output_after_checkpoint


@pytest.fixture(autouse=True, scope="module")
def parsed_flags() -> None:
    flags.FLAGS.mark_as_parsed()


@pytest.fixture(autouse=True, scope="module")
def _forks() -> Iterator[None]:
    """Worker processes are forked off one that has imported Grain; one test starts them afresh."""
    with importing("grain", "cachelayer.adapters.grain"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(process_prefetch, "mp", SimpleNamespace(get_context=lambda _: FORKS))
        yield


@pytest.fixture(scope="module")
def ref(tmp_path_factory: pytest.TempPathFactory) -> Any:
    images = np.random.default_rng(0).integers(0, 256, (RECORDS, 4, 4), dtype=np.uint8)
    storage = Storage(tmp_path_factory.mktemp("grain"))
    return storage.submit({"image": images, "label": np.arange(RECORDS)}, "images@v1", shard_bytes=400)


def numbers(n: int) -> Any:
    return cachelayer.wrap(list(range(n)), identity="numbers")


def labels(elements: Any) -> list[Any]:
    return [element["label"].tolist() for element in elements]


def plain(items: Any) -> list[Any]:
    """Batches or elements as lists, masks too."""
    return [
        [part.tolist() for part in item] if isinstance(item, tuple) else np.asarray(item).tolist() for item in items
    ]


def in_threads(dataset: Any, workers: int) -> Any:
    """What ``mp_prefetch`` does, with threads for processes."""
    return grain.experimental.multithread_prefetch(dataset, num_threads=workers, buffer_size=2)


# Refs and batches as elements.


@pytest.mark.parametrize("options", [None, HERE, grain.ReadOptions(num_threads=3, prefetch_buffer_size=5)])
def test_elements_and_batches_follow_grains_transformations(ref: Any, options: Any) -> None:
    assert sorted(labels(grain.MapDataset.source(ref).shuffle(seed=1).to_iter_dataset(options))) == [*range(RECORDS)]
    stream = ref.stream(8, shuffle=True, seed=3)
    dataset = grain.MapDataset.source(stream).seed(5).map(doubled).random_map(Noisy())
    elements = list(dataset.to_iter_dataset(options))
    assert labels(elements) == [[2 * label for label in batch] for batch in labels(stream)]
    for source in (dataset, grain.MapDataset.source(ref[:9])):
        same_after_restore(source.to_iter_dataset(options))
    assert labels(dataset[1::2]) == labels(dataset)[1::2]


class TestRandomAccess(SinkTests):
    def sink(self, stream: Any) -> Any:
        return grain.MapDataset.source(stream)


class TestIterDataset(ResumableSinkTests):
    test_an_iteration_over_an_endless_stream_goes_on_after_the_last_one = None  # type: ignore[assignment]
    test_each_iteration_has_the_epochs_that_follow = None  # type: ignore[assignment]
    test_items_are_those_of_the_stream = None  # type: ignore[assignment]

    def sink(self, stream: Any) -> Any:
        return iter_dataset(stream)

    def state(self, sink: Any, iterator: Any) -> Any:
        return iterator.get_state()

    def restored(self, make: Any, state: Any) -> Any:
        iterator = iter(self.sink(make()))
        iterator.set_state(state)
        return iterator


def specs(spec: Any) -> Any:
    """Specs as shapes and dtypes."""
    if isinstance(spec, dict):
        return {name: specs(child) for name, child in spec.items()}
    return [specs(part) for part in spec] if isinstance(spec, tuple) else (tuple(spec.shape), np.dtype(spec.dtype))


def test_grain_knows_the_spec_of_a_stream(ref: Any) -> None:
    def spec(stream: Any) -> Any:
        return specs(grain.experimental.get_element_spec(iter_dataset(stream)))

    def of(rows: int | None) -> dict[str, Any]:
        return {"image": ((rows, 4, 4), np.uint8), "label": ((rows,), np.int64)}

    assert spec(ref.stream()) == {"image": ((4, 4), np.uint8), "label": ((), np.int64)}
    assert spec(ref.stream(8, shard=(0, 2), remainder="drop")) == of(4)
    assert spec(ref.stream(8)) == of(None)
    assert spec(ref.stream(8, remainder="pad")) == [of(8), ((8,), np.bool_)]
    assert spec(ref.stream(8, remainder="drop").map(doubled, element_spec=ref.element_spec)) == of(8)
    batched = iter_dataset(ref.stream()).batch(6, drop_remainder=True)
    assert specs(grain.experimental.get_element_spec(batched)) == of(6)
    with pytest.raises(cachelayer.InvalidArgumentError, match="element_spec="):
        spec(ref.stream(8).map(doubled))


@pytest.mark.parametrize("remainder", ["keep", "drop", "pad", "wrap"])
@pytest.mark.parametrize("epochs", [3, None])
def test_grain_sets_and_gets_the_index_of_the_next_batch(remainder: Any, epochs: int | None) -> None:
    stream = numbers(RECORDS).stream(8, shuffle=True, seed=3, num_epochs=epochs, remainder=remainder, start=8)
    expected = plain(itertools.islice(stream, 20))
    iterator = iter(iter_dataset(stream))
    for index, batch in enumerate(expected):
        assert grain.experimental.get_next_index(iterator) == index
        assert plain([next(iterator)]) == [batch]
    for index in (13, 2):
        grain.experimental.set_next_index(iterator, index)
        assert grain.experimental.get_next_index(iterator) == index
        assert plain([next(iterator)]) == [expected[index]]


# The sampler.


@given(st.integers(1, 50), st.integers(1, 3), SHARDS, st.integers(0, 2**64 - 1), st.data())
@settings(deadline=None, max_examples=examples(60))
def test_shards_share_out_what_was_shuffled_as_a_whole(
    n: int, epochs: int, shards: int, seed: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, n * epochs))
    arguments: dict[str, Any] = {"shuffle": True, "seed": seed, "num_epochs": epochs, "start": start}
    order = Case(n, 1, epochs=epochs, seed=seed).order()[start:]
    handed_out = []
    for shard in range(shards):
        sampler = Sampler(numbers(n), shard=(shard, shards), remainder="drop", **arguments)
        loader = grain.DataLoader(data_source=list(range(n)), sampler=sampler, read_options=HERE)
        assert len(sampler) == len(order)
        handed_out.append(list(loader))
    assert [record for turn in zip(*handed_out, strict=True) for record in turn] == order[
        : len(order) // shards * shards
    ]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_gives_a_loader_the_order_and_numbers_of_the_stream(ref: Any, workers: int) -> None:
    stream = ref.stream(shuffle=True, seed=2, num_epochs=2).map(noisy, rng=True)
    sampler = Sampler(ref, shuffle=True, seed=2, num_epochs=2)
    loader = grain.DataLoader(data_source=ref, sampler=sampler, operations=[Noisy()], worker_count=workers)
    expected = list(stream)
    iterator = iter(loader)
    elements = list(itertools.islice(iterator, 71))
    state = iterator.get_state()
    again = iter(loader)
    again.set_state(state)
    elements += list(again)
    assert labels(elements) == labels(expected)
    np.testing.assert_array_equal([e["noise"] for e in elements], [e["noise"] for e in expected])


def test_numbers_follow_the_position_whatever_the_shards_and_the_start(ref: Any) -> None:
    whole = Sampler(ref, shuffle=True, seed=2**64 - 1, num_epochs=None)
    later = Sampler(ref, shuffle=True, seed=2**64 - 1, num_epochs=None, shard=(1, 4), start=1000)
    for index in range(50):
        one, other = whole[1000 + index], later[index]
        assert one.record_key == other.record_key
        assert one.rng.random() == other.rng.random()
        assert (one.index, other.index) == (1000 + index, index)
    assert len({whole[index].rng.random() for index in range(200)}) == 200
    assert Sampler(ref)[0].rng is None


def test_a_loaders_state_is_refused_elsewhere(ref: Any) -> None:
    def loading(data: Any, **arguments: Any) -> Any:
        return iter(grain.DataLoader(data_source=ref, sampler=Sampler(data, shuffle=True, **arguments)))

    state = loading(ref, seed=2).get_state()
    loading(ref, seed=2).set_state(state)
    for data, arguments in (
        (numbers(RECORDS), {"seed": 2}),
        (ref[:30], {"seed": 2}),
        (ref, {"seed": 3}),
        (ref, {"seed": 2, "shard": (0, 2)}),
        (ref, {"seed": 2, "num_epochs": 2}),
        (ref, {"seed": 2, "reshuffle": False}),
        (ref, {"seed": 2, "start": 6}),
    ):
        with pytest.raises(ValueError, match="Sampler in checkpoint does not match"):
            loading(data, **arguments).set_state(state)


def test_a_sampler_says_what_it_cannot_take(ref: Any) -> None:
    wrong: Any = "keep"
    with pytest.raises(ValueError, match="'drop'"):
        Sampler(ref, shard=(0, 7))
    assert len(Sampler(ref, shard=grain.sharding.ShardOptions(0, 7, drop_remainder=True))) == RECORDS
    assert len(Sampler(ref, shard=(0, 7), num_epochs=None)) == sys.maxsize
    with pytest.raises(ValueError, match="remainder 'keep'"):
        Sampler(ref, remainder=wrong)
    with pytest.raises(ValueError, match="shuffle=True"):
        Sampler(ref, shuffle=True)
    for index in (-1, RECORDS):
        with pytest.raises(IndexError, match=f"index {index} of a sampler of {RECORDS} records"):
            Sampler(ref)[index]


# Streams.


@given(cases(remainders=("drop", "keep", "pad")), st.booleans(), st.integers(1, 4), st.data())
@settings(deadline=None, max_examples=examples(60))
def test_workers_take_turns_and_go_on_from_any_state(
    case: Case, batched: bool, workers: int, data: st.DataObject
) -> None:
    arguments = case.arguments() | ({} if batched else {"remainder": "keep" if workers == 1 else "drop"})
    stream = numbers(case.n).stream(case.batch if batched else None, **arguments)
    expected = plain(stream)
    dataset = in_threads(iter_dataset(stream), workers) if workers > 1 else iter_dataset(stream)
    stop = data.draw(st.integers(0, len(expected)))
    iterator = iter(dataset)
    handed_out = plain(itertools.islice(iterator, stop))
    again = iter(dataset)
    again.set_state(iterator.get_state())
    assert handed_out + plain(again) == expected
    assert handed_out + plain(iterator) == expected


def test_what_workers_and_iterators_cannot_do_is_refused(ref: Any) -> None:
    def workers(number: int) -> Any:
        return iter(in_threads(iter_dataset(ref.stream(4, shuffle=True, seed=3)), number))

    for saved, restored in ((2, 3), (1, 2)):
        iterator = workers(saved)
        next(iterator)
        with pytest.raises(ValueError, match=f"saved with {saved} workers and is restored with {restored}"):
            workers(restored).set_state(iterator.get_state())
    dataset = iter_dataset(ref.stream(8))
    with pytest.raises(ValueError, match="sequential_slice=True"):
        grain.experimental.multithread_prefetch(dataset, 2, 1, sequential_slice=True)
    with pytest.raises(ValueError, match="remainder='drop'"):
        iter_dataset(ref.stream(shard=(0, 7))).set_slice(slice(0, None, 2))
    iterator = iter(dataset)
    next(iterator)
    iterator.close()
    with pytest.raises(ValueError, match="closed"):
        next(iterator)
    junk: Any = ["junk"]
    with pytest.raises(ValueError, match="not a sampler state"):
        iter(dataset).set_state(junk)


def test_output_is_the_same_after_a_restore(ref: Any) -> None:
    singles = iter_dataset(ref[:12].stream(shuffle=True, seed=3).map(noisy, rng=True))
    for dataset in (
        singles.filter(lambda element: element["label"] % 3 > 0).batch(3),
        grain.experimental.ThreadPrefetchIterDataset(singles.seed(1).random_map(Noisy()), prefetch_buffer_size=4),
        grain.IterDataset.mix([singles, iter_dataset(ref.stream(seed=4, shuffle=True))], [2, 1]),
        in_threads(singles, 3),
    ):
        same_after_restore(dataset)


def test_a_mixture_that_changes_is_shared_out_by_turns(ref: Any) -> None:
    stream = cachelayer.mix([(ref[:20], 1), (ref[20:], 1)], schedule={0: (2, 1), 30: (1, 3)}).stream(6)
    assert labels(itertools.islice(in_threads(iter_dataset(stream), 2), 20)) == labels(stream[t] for t in range(20))


def test_an_iterator_saves_one_state_for_all_processes(ref: Any, tmp_path: Path) -> None:
    async def call(method: Any) -> None:
        await (await method(tmp_path))

    halves = [iter(iter_dataset(ref.stream(12, shuffle=True, seed=3, shard=(shard, 2)))) for shard in range(2)]
    for half in halves:
        next(half), next(half)
        asyncio.run(call(half.save))
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]
    alone = iter(iter_dataset(ref.stream(12, shuffle=True, seed=3)))
    asyncio.run(call(alone.load))
    assert labels(alone) == labels(ref.stream(12, shuffle=True, seed=3))[2:]


def test_the_page_shows_what_happens() -> None:
    run_page("grain.md")


WORKERS = """
import sys
import grain
from absl import flags
import cachelayer
from cachelayer.adapters.grain import iter_dataset

def brighter(element, rng):
    return {**element, "image": element["image"] * rng.uniform(0.8, 1.2)}

if __name__ == "__main__":
    flags.FLAGS.mark_as_parsed()
    ref = cachelayer.open(sys.argv[1])
    stream = ref.stream(12, shuffle=True, seed=7).map(brighter, rng=True)
    workers = grain.MultiprocessingOptions(num_workers=2)
    steps = list(iter_dataset(stream).mp_prefetch(workers))
    assert all((s["image"] == t["image"]).all() for s, t in zip(steps, stream, strict=True))
"""


def test_workers_that_grain_starts_afresh_keep_the_order(ref: Any, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(WORKERS)
    done = subprocess.run([sys.executable, program, ref.reference], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def mostly(n: int) -> int:
    if n % 13 == 2:
        raise ValueError(f"{n} is bad")
    return n


@pytest.mark.parametrize("workers", [1, 2])
def test_failures_are_replaced_for_grain_too_and_the_first_of_a_process_warns(workers: int) -> None:
    stream = numbers(60).stream(6, shuffle=True, seed=3).map(mostly, on_error="replace")
    with pytest.warns(cachelayer.CacheLayerWarning, match="stands in for it"):
        expected = [batch.tolist() for batch in stream]
    for worker in range(workers):
        dataset = iter_dataset(pickle.loads(pickle.dumps(stream)))
        dataset.set_slice(slice(worker, None, workers))
        with pytest.warns(cachelayer.CacheLayerWarning, match="record [0-9]+ failed at position") as told:
            assert [batch.tolist() for batch in dataset] == expected[worker::workers]
        assert sum("stands in for it" in str(each.message) for each in told) == 1


def test_workers_and_iterators_leave_out_the_steps_of_a_state(ref: Any) -> None:
    stream = ref.stream(8, shuffle=True, seed=3)
    state = stream.without(steps=[2]).state(0)
    expected = labels(stream.without(steps=[2]))
    alone = iter(iter_dataset(stream))
    alone.set_state(state)
    assert labels(alone) == expected
    for worker in range(2):
        dataset = iter_dataset(stream)
        dataset.set_slice(slice(worker, None, 2))
        iterator = iter(dataset)
        iterator.set_state({**state, "workers": 2})
        assert iterator.get_state() == {**state, "workers": 2}
        assert labels(iterator) == expected[worker::2]
    elements = iter_dataset(ref[:56].stream(shard=(0, 4)))
    elements.set_slice(slice(0, None, 2))
    uneven = ref[:56].stream(8).without(steps=[0]).state(0)
    with pytest.raises(cachelayer.InvalidArgumentError, match="take turns"):
        iter(elements).set_state({**uneven, "left_out": [[10, 12]], "workers": 2})


def test_workers_and_iterators_take_the_order_of_a_state_whole(ref: Any) -> None:
    saved = ref.stream(6, shuffle=Blocks(records=5, window=8, lanes=4), seed=3, num_epochs=2)
    stream = ref.stream(6, shuffle="blocks", seed=3, num_epochs=2)
    assert saved.state(0)["order"] != stream.state(0)["order"]
    for workers in (1, 2):
        datasets = [iter_dataset(each) for each in (saved, stream)]
        iterators = [iter(in_threads(each, workers) if workers > 1 else each) for each in datasets]
        for _ in range(3):
            next(iterators[0])
        state = iterators[0].get_state()
        iterators[1].set_state(state)
        assert iterators[1].get_state() == state
        assert labels(iterators[1]) == labels(saved)[3:]


def test_a_state_of_a_worker_goes_on_in_the_same_number_of_workers_alone(ref: Any) -> None:
    stream = ref.stream(8, shuffle=True, seed=3)
    worker = iter_dataset(stream)
    worker.set_slice(slice(2, None, 4))
    iterator = iter(worker)
    next(iterator)
    state = iterator.get_state()
    for other in (iter(stream), stream.epochs(), stream.with_state(), iter(iter_dataset(stream))):
        for form in (state, json.dumps(state)):
            with pytest.raises(cachelayer.StateError, match="4 workers"):
                other.set_state(form)
    for form in (state, json.dumps(state), json.dumps(state).encode()):
        again = iter(worker)
        again.set_state(form)
        assert again.get_state() == state
        assert labels(again) == labels(stream)[6::4]
    with pytest.raises(cachelayer.StateError, match="workers is 'two'"):
        iter(stream).set_state({**stream.state(1), "workers": "two"})
