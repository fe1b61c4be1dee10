"""What every loop over epochs promises: it goes on after any step, and after any epoch."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

import cachelayer

RECORDS, BATCH, EPOCHS = 21, 8, 3
STEPS = 3
ORDERS: dict[str, dict[str, Any]] = {"shuffled": {"shuffle": True, "seed": 5}, "in order": {}}


class EpochTests:
    """An object that frameworks iterate over: each iteration has the next epoch, and one left early uses up none."""

    per_epoch: ClassVar[int] = STEPS
    """The number of items of an epoch."""

    def loops(self, **order: Any) -> Any:
        """Return a new object to iterate over."""
        raise NotImplementedError

    def numbers(self, item: Any) -> list[int]:
        return [int(number) for number in np.ravel(np.asarray(item))]

    def read(self, items: Any) -> list[int]:
        return [number for item in items for number in self.numbers(item)]

    @pytest.fixture(params=ORDERS)
    def order(self, request: pytest.FixtureRequest) -> dict[str, Any]:
        return ORDERS[request.param]

    def expected(self, order: dict[str, Any], epochs: int = EPOCHS) -> list[list[int]]:
        """Return the records of each epoch."""
        ref = cachelayer.wrap(list(range(RECORDS)), identity="numbers")
        numbers = [int(number) for number in ref.stream(**order, num_epochs=epochs)]
        return [numbers[first : first + RECORDS] for first in range(0, epochs * RECORDS, RECORDS)]

    def test_an_epoch_that_is_left_early_is_not_used_up(self, order: dict[str, Any]) -> None:
        expected = self.expected(order)
        loops = self.loops(**order)
        for left in (1, 2):
            begun = self.read(itertools.islice(loops, left))
            assert begun == expected[0][: len(begun)]
        assert [self.read(loops) for _ in range(2)] == expected[:2]
        self.read(itertools.islice(loops, 1))
        assert self.read(loops) == expected[2]

    def test_an_epoch_is_over_with_its_last_item(self, order: dict[str, Any]) -> None:
        expected = self.expected(order)
        loops = self.loops(**order)
        for epoch in expected:
            # Not asked for more.
            assert self.read(itertools.islice(loops, self.per_epoch)) == epoch


class LoopTests(EpochTests):
    """Loops over three epochs: they end after any step, and go on in a new object at its state.

    Examples:
        Subclass it in a file of tests, and say how the object over which people loop is made. It has ``set_epoch``,
        ``state_dict`` and ``load_state_dict``, as PyTorch's samplers and loaders do, or a subclass says what it has.

        >>> import cachelayer
        >>> from cachelayer.adapters.torch import loader
        >>> from cachelayer.testing import LoopTests
        >>> class TestLoader(LoopTests):
        ...     def loops(self, **order):
        ...         numbers = cachelayer.wrap(list(range(21)), identity="numbers")
        ...         return loader(numbers.stream(8, **order))
        >>> TestLoader().test_loops_go_on_after_any_step({"shuffle": True, "seed": 5}, numbered=False)
    """

    is_told_the_loop: ClassVar[bool] = True
    """Whether a state tells the last item of an epoch from the end of its loop."""
    stops: ClassVar[range] = range(1, 3 * STEPS + 1)
    """The numbers of items after which runs end."""

    def set_epoch(self, loops: Any, epoch: int) -> None:
        loops.set_epoch(epoch)

    def state(self, loops: Any) -> Any:
        return loops.state_dict()

    def restore(self, loops: Any, state: Any) -> None:
        loops.load_state_dict(state)

    def restarted(self, state: Any, order: dict[str, Any]) -> Any:
        loops = self.loops(**order)
        self.restore(loops, pickle.loads(pickle.dumps(state)))
        return loops

    def run(self, loops: Any, first: int, *, numbered: bool) -> Iterator[tuple[int, list[int]]]:
        """Yield the epoch and the records of each item of loops over the epochs from the first on."""
        for epoch in range(first, EPOCHS):
            if numbered:
                self.set_epoch(loops, epoch)
            for item in loops:
                yield epoch, self.numbers(item)

    @pytest.mark.parametrize("numbered", [True, False], ids=["numbered", "not numbered"])
    def test_loops_go_on_after_any_step(self, order: dict[str, Any], numbered: bool) -> None:
        expected = [number for epoch in self.expected(order) for number in epoch]
        for stop in self.stops:
            loops = self.loops(**order)
            begun = list(itertools.islice(self.run(loops, 0, numbered=numbered), stop))
            state = self.state(loops)
            epoch = begun[-1][0]
            rest = list(self.run(self.restarted(state, order), epoch, numbered=numbered))
            if self.is_told_the_loop or numbered or stop % self.per_epoch:
                assert [number for _, item in begun + rest for number in item] == expected

    @pytest.mark.parametrize("numbered", [True, False], ids=["numbered", "not numbered"])
    def test_loops_go_on_after_the_end_of_any_loop(self, order: dict[str, Any], numbered: bool) -> None:
        expected = self.expected(order)
        loops = self.loops(**order)
        for epoch in range(EPOCHS - 1):
            if numbered:
                self.set_epoch(loops, epoch)
            assert self.read(loops) == expected[epoch]
            rest = self.run(self.restarted(self.state(loops), order), epoch + 1, numbered=numbered)
            wanted = [number for later in expected[epoch + 1 :] for number in later]
            assert [number for _, item in rest for number in item] == wanted

    def test_an_iterator_that_nothing_was_asked_of_is_no_epoch(self, order: dict[str, Any]) -> None:
        expected = self.expected(order)
        loops = self.loops(**order)
        iter(loops), iter(loops)
        begun = self.read(itertools.islice(loops, 2))
        again = self.restarted(self.state(loops), order)
        iter(again)
        assert begun + self.read(again) == expected[0]
        iter(again)
        assert self.read(again) == expected[1]

    def test_the_rest_of_an_epoch_that_is_left_early_after_a_restore_is_not_lost(self, order: dict[str, Any]) -> None:
        expected = self.expected(order)
        loops = self.loops(**order)
        begun = self.read(itertools.islice(loops, 1))
        state = self.state(loops)
        for numbered in (False, True):
            again = self.restarted(state, order)
            next(iter(again))
            if numbered:
                self.set_epoch(again, 0)
            assert begun + self.read(again) == expected[0]
            assert self.read(again) == expected[1]

    def test_loops_that_all_end_early_get_a_warning(self) -> None:
        order = ORDERS["shuffled"]
        loops = self.loops(**order)
        for _ in range(3):
            next(iter(loops))
        with pytest.warns(cachelayer.CacheLayerWarning, match="epoch 0.*set_epoch"):
            assert self.read(loops) == self.expected(order)[0]

    def test_any_epoch_can_be_chosen(self, order: dict[str, Any]) -> None:
        expected = self.expected(order, 7)
        loops = self.loops(**order)
        for epoch in (5, 0, 0, 6):
            self.set_epoch(loops, epoch)
            assert self.read(loops) == expected[epoch]
        self.set_epoch(loops, 1)
        next(iter(loops))
        self.set_epoch(loops, 2)
        assert self.read(loops) == expected[2]

    def test_the_structure_of_a_state_is_always_the_same(self, order: dict[str, Any]) -> None:
        loops = self.loops(**order)
        states = [self.state(loops)]
        for item in loops:
            assert self.numbers(item)
            states.append(self.state(loops))
        states.append(self.state(loops))
        assert len({str(structure(state)) for state in states}) == 1


def structure(state: Any) -> Any:
    """Return a state with types for its values."""
    if isinstance(state, dict):
        return {name: structure(value) for name, value in state.items()}
    return type(state).__name__
