"""Tests of global batches over eight devices of one process: test_jax.py runs them in a process of their own."""

import copy
import itertools
import math
import re
import subprocess
import sys
import threading
import warnings
from collections import namedtuple
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from pages import run_page
from reference import Case, cases
from samples import examples

import cachelayer
from cachelayer import Blocks, InvalidArgumentError, InvalidTypeError
from cachelayer.adapters.jax import global_batches
from cachelayer.testing import ResumableSinkTests
from cachelayer.testing.loops import BATCH, RECORDS, LoopTests

AXES = ("a", "b", "c")
Point = namedtuple("Point", ["x", "y"])


def devices(*shape: int) -> NamedSharding:
    """Rows over the first axis of so many devices."""
    return NamedSharding(Mesh(np.array(jax.devices()[: math.prod(shape)]).reshape(shape), AXES[: len(shape)]), P("a"))


def ref(records: int) -> cachelayer.View[Any]:
    numbers = np.arange(records, dtype=np.int32)
    elements = [{"id": n, "grid": np.arange(8, dtype=np.float32) + np.float32(8 * n)} for n in numbers]
    return cachelayer.wrap(elements, identity="rows")


def assert_same(found: Any, expected: Any) -> None:
    """Raise unless a global batch equals the batch of a stream."""
    leaves, structure = jax.tree.flatten(found)
    wanted, other = jax.tree.flatten(expected)
    assert structure == other
    for leaf, want in zip(leaves, wanted, strict=True):
        assert isinstance(leaf, jax.Array)
        assert leaf.dtype == want.dtype
        np.testing.assert_array_equal(leaf, want)


@st.composite
def shardings(draw: st.DrawFn) -> NamedSharding:
    """Eight devices in any order, laid out anyhow; rows over any of the axes, the second axis over one of the rest."""
    shape = draw(st.sampled_from([(8,), (4, 2), (2, 4), (1, 8), (2, 2, 2)]))
    order = draw(st.permutations(jax.devices()))
    axes = draw(st.permutations(AXES[: len(shape)]))
    rows = draw(st.integers(0, len(axes)))
    second = draw(st.sampled_from([None, *axes[rows:]]))
    return NamedSharding(
        Mesh(np.array(order).reshape(shape), AXES[: len(shape)]), P(tuple(axes[:rows]) or None, second)
    )


def parts(sharding: NamedSharding) -> int:
    """In how many parts the rows lie."""
    return math.prod(sharding.mesh.shape[axis] for axis in sharding.spec[0] or ())


@settings(max_examples=examples(60), deadline=None)
@given(cases(shards=8, remainders=("drop", "pad")), shardings(), st.integers(1, 4))
def test_batches_are_those_of_the_stream_on_any_mesh(case: Case, sharding: NamedSharding, depth: int) -> None:
    stream = ref(case.n).stream(case.batch, **case.arguments())
    batches = global_batches(stream, sharding, depth=depth)
    found, states = [], []
    iterator = iter(batches)
    for batch in iterator:
        found.append(batch)
        states.append(iterator.get_state())
    assert len(stream) == len(found)
    for one, (expected, state), seen in zip(found, stream.with_state(), states, strict=True):
        assert_same(one, expected)
        assert seen == state
        rows = one[0] if case.remainder == "pad" else one
        assert rows["grid"].sharding == NamedSharding(sharding.mesh, sharding.spec)
        assert rows["id"].sharding.shard_shape((case.batch,)) == (case.batch // parts(sharding),)


@settings(max_examples=examples(60), deadline=None)
@given(cases(most=60, remainders=("keep",)), shardings())
def test_a_step_that_the_sharding_does_not_divide_is_refused_at_once(case: Case, sharding: NamedSharding) -> None:
    stream = ref(case.n).stream(case.batch, **case.arguments())
    sizes = {case.batch} | {len(records) for _, records in case.steps()}
    if any(size % parts(sharding) for size in sizes):
        with pytest.raises(InvalidArgumentError, match=r"remainder='drop' or 'pad'|pass a multiple"):
            global_batches(stream, sharding)
    else:
        for found, expected in zip(global_batches(stream, sharding), stream, strict=True):
            assert_same(found, expected)


class TestGlobalBatches(ResumableSinkTests):
    without: ClassVar = {"elements", "shard", "empty batches"}
    test_any_number_of_shards_goes_on_where_others_stopped = None  # type: ignore[assignment]

    def sink(self, stream: Any) -> Any:
        return global_batches(stream, devices(2), depth=4)

    def state(self, sink: Any, iterator: Any) -> Any:
        return iterator.get_state()

    def restored(self, make: Any, state: Any) -> Any:
        iterator = iter(global_batches(make(), devices(1)))
        iterator.set_state(state)
        return iterator


class TestLoopsOfGlobalBatches(LoopTests):
    """Loops as people write them for Flax; the state is that of the batches, not of an iterator."""

    def loops(self, **order: Any) -> Any:
        numbers = cachelayer.wrap(list(range(RECORDS)), identity="numbers")
        return global_batches(numbers.stream(BATCH, **order), devices(1))

    def state(self, loops: Any) -> Any:
        return loops.get_state()

    def restore(self, loops: Any, state: Any) -> None:
        loops.set_state(state)


def test_functions_of_batches_keep_the_rows() -> None:
    stream = ref(16).stream(8)
    for fn in (lambda batch: {"id": batch["id"][1:]}, lambda batch: {"id": batch["id"].sum()}):
        with pytest.raises(InvalidArgumentError, match=r"\['id'\].*map_batches"):
            next(iter(global_batches(stream.map_batches(fn), devices(1))))


def test_an_axis_of_a_leaf_that_the_sharding_does_not_divide_is_named() -> None:
    stream = cachelayer.wrap([{"row": np.zeros(3)}] * 8, identity="rows").stream(8)
    mesh = Mesh(np.array(jax.devices()[:2]).reshape(1, 2), ("data", "model"))
    with pytest.raises(InvalidArgumentError, match=r"\['row'\] .*\[8, 3\].*divisible"):
        next(iter(global_batches(stream, NamedSharding(mesh, P("data", "model")))))


NARROW: dict[str, tuple[Any, Any]] = {
    "int64": (np.int64(2**31 - 1), np.int64(2**32 + 5)),
    "negative int64": (np.int64(-(2**31)), np.int64(-(2**31) - 1)),
    "uint64": (np.uint64(2**32 - 1), np.uint64(2**64 - 1)),
    "float64": (0.1, 1e300),
    "complex128": (0.1 + 1j, 1e300 + 1j),
    "infinity beside": (np.array([np.inf, np.nan]), np.array([np.inf, 1e300])),
}


@pytest.mark.parametrize("case", NARROW)
def test_a_value_that_jax_does_not_hold_is_refused_with_its_leaf(case: str) -> None:
    fits, large = NARROW[case]
    for leaf in (fits, large):
        stream = cachelayer.wrap([{"row": (leaf,), "id": np.int32(0)}] * 16, identity=case).stream(8)
        batches = iter(global_batches(stream, devices(4)))
        if leaf is fits:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", cachelayer.CacheLayerWarning)
                assert len(list(batches)) == 2
            # Of the first batch alone.
            assert len(caught) == (case in ("float64", "complex128"))
            assert all(re.search(r"\['row'\]\[0\].* rounded .*jax_enable_x64", str(each.message)) for each in caught)
            continue
        with pytest.raises(InvalidArgumentError, match=r"leaf \['row'\]\[0\] .*jax_enable_x64"):
            next(batches)


def test_batches_are_sent_ahead_in_another_thread_and_no_more_than_depth() -> None:
    read: list[tuple[int, threading.Thread]] = []
    third = threading.Event()
    pixels = np.zeros((8, 1 << 20), np.uint8)

    def noted(batch: dict[str, Any]) -> dict[str, Any]:
        read.append((int(batch["id"][0]), threading.current_thread()))
        if len(read) == 3:
            third.set()
        # Batches of 8 MB are not read several at a time.
        return batch | {"pixels": pixels}

    iterator = iter(global_batches(ref(80).stream(8, prefetch=5).map_batches(noted), devices(1), depth=2))
    with jax.transfer_guard("disallow"):
        first = next(iterator)
    assert int(first["id"][0]) == 0
    assert iterator.get_state()["position"] == 8
    assert third.wait(60)
    iterator.set_state(iterator.get_state())
    assert [number for number, _ in read] == [0, 8, 16]
    assert threading.main_thread() not in {thread for _, thread in read}
    assert [int(batch["id"][0]) for batch in iterator] == list(range(8, 80, 8))


def test_the_consumer_decides_whether_jax_has_64_bits() -> None:
    stream = cachelayer.wrap([np.int64(2**32 + 5)] * 16, identity="wide").stream(8)
    for sharding in (devices(1), devices(4)):
        with jax.enable_x64(True):
            for batch in global_batches(stream, sharding):
                assert batch.dtype == np.int64
                assert batch.tolist() == [2**32 + 5] * 8


LEFT = """
import jax, numpy as np, cachelayer
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from cachelayer.adapters.jax import global_batches
rows = NamedSharding(Mesh(jax.devices()[:1], "a"), P("a"))
stream = cachelayer.wrap([np.zeros(1000)] * 4096, identity="zeros").stream(16, num_epochs=None, prefetch=64)
iterator = iter(global_batches(stream.map(lambda element: element), rows))
next(iterator)
"""


def test_a_program_may_end_while_batches_are_sent() -> None:
    done = subprocess.run([sys.executable, "-c", LEFT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_arguments_that_cannot_be_are_refused() -> None:
    rows = ref(16)
    with pytest.raises(InvalidArgumentError, match="shard="):
        global_batches(rows.stream(8, shard=(0, 2)), devices(1))
    with pytest.raises(InvalidArgumentError, match="global_batch_size"):
        global_batches(rows.stream(), devices(1))
    with pytest.raises(InvalidArgumentError, match="global_batch_size"):
        global_batches(rows.stream(6, remainder="pad"), devices(4))
    with pytest.raises(InvalidArgumentError, match="depth 0"):
        global_batches(rows.stream(8), devices(1), depth=0)
    with pytest.raises(InvalidTypeError, match="NamedSharding"):
        global_batches(rows.stream(8), SingleDeviceSharding(jax.devices()[0]))
    with pytest.raises(TypeError, match="num_epochs"):
        len(global_batches(rows.stream(8, num_epochs=None), devices(1)))
    with pytest.raises(InvalidArgumentError, match="'drop'"):
        iter(global_batches(rows.stream(8), devices(4))).set_state(iter(rows.stream(8, start=5)).get_state())


def test_it_advances_to_a_newer_version_if_the_sharding_divides_its_steps(tmp_path: Path) -> None:
    storage = cachelayer.Storage(tmp_path)
    old = storage.submit([{"id": np.int32(number)} for number in range(40)], "d@v1", shard_bytes=1000)
    newer = storage.append("d@v1", "v2", [{"id": np.int32(number)} for number in range(40, 55)])
    plain, stream = iter(old.stream(8, num_epochs=2, remainder="wrap")), old.stream(8, num_epochs=2, remainder="wrap")
    iterator = iter(global_batches(stream, devices(8)))
    assert_same(next(iterator), next(plain))
    iterator.advance_to(newer)
    plain.advance_to(newer)
    state = iterator.get_state()
    assert state == plain.get_state()
    rest = list(plain)
    restored = iter(global_batches(newer.stream(8, num_epochs=2, remainder="wrap"), devices(4, 2)))
    restored.set_state(state)
    for expected in rest:
        assert_same(next(iterator), expected)
        assert_same(next(restored), expected)
    loop = global_batches(old.fields("id").stream(8, num_epochs=None, remainder="wrap"), devices(8))
    assert_same(next(iter(loop)), old.stream(8)[0])
    loop.advance_to(newer.fields("id"))
    plain = iter(newer.stream(8, num_epochs=None, remainder="wrap"))
    plain.set_state(loop.get_state())
    for batch, expected in zip(loop, itertools.islice(plain, 20), strict=False):
        assert_same(batch, expected)
    uneven = iter(global_batches(old.stream(8), devices(8)))
    with pytest.raises(InvalidArgumentError, match="not divisible"):
        uneven.advance_to(newer)
    assert_same(next(uneven), old.stream(8)[0])


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page("jax.md", 2)


def test_every_value_of_an_array_is_compared(tmp_path: Path) -> None:
    storage, values = cachelayer.Storage(tmp_path), np.arange(5_000)
    storage.cache(jax.numpy.asarray(values), "d@v1")
    storage.cache(jax.numpy.asarray(values.copy()), "d@v1", on_change="error")
    with pytest.raises(cachelayer.StaleVersionError, match=r"elements changed|column 0 changed"):
        storage.cache(jax.numpy.asarray(np.where(values == 4_321, 0, values)), "d@v1", on_change="error")


@pytest.mark.parametrize("shuffle", [True, Blocks(records=8), "blocks"], ids=str)
def test_iterators_are_copied_and_take_the_order_of_a_state_whole(shuffle: Any) -> None:
    open_sizes = "blocks" if isinstance(shuffle, Blocks) else shuffle
    saved, stream = (ref(400).stream(16, shuffle=each, seed=3, num_epochs=2) for each in (shuffle, open_sizes))
    expected = list(saved)
    for restores_loops in (False, True):
        batches = global_batches(stream, devices(8))
        iterator = iter(batches)
        (batches if restores_loops else iterator).set_state(saved.state(2))
        assert iterator.get_state() == saved.state(2)
        assert_same(next(iterator), expected[2])
        for other in (copy.copy(iterator), copy.deepcopy(iterator)):
            assert other.get_state() == saved.state(3)
            assert_same(next(other), expected[3])
        assert_same(next(iterator), expected[3])
