"""One epoch after the other: orders of their own, states, and warnings for those who go through one again."""

import itertools
import pickle
import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import cases
from samples import examples

import cachelayer
from cachelayer import CacheLayerWarning, InvalidArgumentError, InvalidTypeError, StateError
from cachelayer.testing.loops import BATCH, RECORDS, LoopTests


def numbers(n: int) -> Any:
    return cachelayer.wrap(list(range(n)), identity="numbers")


def order(n: int, epoch: int, seed: int = 3) -> list[int]:
    return list(numbers(n).stream(shuffle=True, seed=seed, start=epoch * n, num_epochs=epoch + 1))


@given(cases(), st.integers(0, 5))
@settings(deadline=None, max_examples=examples(60))
def test_an_epoch_is_that_of_any_run_whatever_start_and_number_of_epochs(case: Any, epoch: int) -> None:
    arguments = {**case.arguments(), "prefetch": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheLayerWarning)
        found = numbers(case.n).stream(case.batch, **arguments).epoch(epoch)
        start = epoch * case.n
        if case.remainder == "wrap":
            start = -(-start // case.batch) * case.batch
        if start > (epoch + 1) * case.n:
            return
        run = numbers(case.n).stream(case.batch, **{**arguments, "num_epochs": epoch + 1, "start": start})
        same = iter(run)
        assert str(list(found)) == str(list(same))
    assert found.position == same.position >= (epoch + 1) * case.n


def test_epochs_follow_one_another_without_end_unless_their_number_is_given() -> None:
    stream = numbers(10).stream(4, shuffle=True, seed=3)
    found = [[n for batch in epoch for n in batch.tolist()] for epoch in itertools.islice(stream.epochs(), 4)]
    assert found == [order(10, epoch) for epoch in range(4)]
    three = numbers(10).stream(shuffle=True, seed=3, num_epochs=3, start=14)
    assert [list(epoch) for epoch in three.epochs()] == [order(10, 1)[4:], order(10, 2)]
    assert list(numbers(0).stream().epochs()) == []
    assert list(numbers(3).stream(num_epochs=0).epochs()) == []
    assert len(list(itertools.islice(numbers(3).stream(num_epochs=None).epochs(), 5))) == 5
    short = numbers(2).stream(5, remainder="wrap", num_epochs=2)
    assert [[batch.tolist() for batch in epoch] for epoch in short.epochs()] == [[[0, 1, 0, 1, 0]]]


class Loops:
    """Loops over ``stream.epochs()``: each has the epoch that comes next."""

    def __init__(self, epochs: Any) -> None:
        self.epochs = epochs

    def __iter__(self) -> Any:
        return next(self.epochs)


class TestLoopsOfEpochs(LoopTests):
    # Who asks for the next epoch has it.
    test_an_iterator_that_nothing_was_asked_of_is_no_epoch = None  # type: ignore[assignment]
    test_an_epoch_that_is_left_early_is_not_used_up = None  # type: ignore[assignment]
    test_the_rest_of_an_epoch_that_is_left_early_after_a_restore_is_not_lost = None  # type: ignore[assignment]
    test_loops_that_all_end_early_get_a_warning = None  # type: ignore[assignment]
    test_any_epoch_can_be_chosen = None  # type: ignore[assignment]

    def loops(self, **order: Any) -> Any:
        return Loops(numbers(RECORDS).stream(BATCH, **order).epochs())

    def set_epoch(self, loops: Any, epoch: int) -> None:
        """Epochs follow one another by themselves."""

    def state(self, loops: Any) -> Any:
        return loops.epochs.get_state()

    def restore(self, loops: Any, state: Any) -> None:
        loops.epochs.set_state(state)


def test_an_epoch_that_is_left_early_has_a_state_and_can_be_pickled_and_is_followed_by_the_next() -> None:
    epochs = numbers(10).stream(4, shuffle=True, seed=3).epochs()
    next(next(epochs))
    iterator = next(epochs)
    assert next(iterator).tolist() == order(10, 1)[:4]
    assert epochs.get_state()["position"] == 14
    other, third = numbers(10).stream(4, shuffle=True, seed=3).epoch(1), pickle.loads(pickle.dumps(iterator))
    other.set_state(iterator.get_state())
    for same in (iterator, other, third):
        assert [n for batch in same for n in batch.tolist()] == order(10, 1)[4:]


def test_what_is_no_epoch_is_refused() -> None:
    stream = numbers(10).stream(shuffle=True, seed=3, num_epochs=2)
    for epoch, error in ((-1, InvalidArgumentError), (1.0, InvalidTypeError), (True, InvalidTypeError)):
        with pytest.raises(error, match="epoch"):
            stream.epoch(epoch)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=r"epoch .* 2\*\*62"):
        stream.epoch(2**60)
    with pytest.raises(StateError, match="past the end of this stream, 20"):
        stream.epochs().set_state({**iter(stream).get_state(), "position": 21})


def test_going_through_one_shuffled_epoch_again_warns_once() -> None:
    stream = numbers(10).stream(4, shuffle=True, seed=3)
    first = [batch.tolist() for batch in stream]
    with pytest.warns(CacheLayerWarning, match=r"the same order each time.*stream\.epochs\(\)") as caught:
        assert [batch.tolist() for batch in stream] == first
    assert caught[0].filename == __file__
    assert [batch.tolist() for batch in stream] == first


def test_a_seed_that_nothing_uses_warns_once() -> None:
    stream = numbers(10).stream(4, seed=3)
    with pytest.warns(CacheLayerWarning, match="shuffle=True"):
        iter(stream)
    iter(stream)
    iter(stream.map(lambda n, rng: n + rng.random(), rng=True))
    iter(numbers(10).stream(shuffle=True, seed=3))
