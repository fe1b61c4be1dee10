"""Batches from buckets: padded to the bound of their bucket, elastic, resumable, and clear about what they refuse."""

from typing import Any

import numpy as np
import pytest
from document_views import ELEMENTS, KINDS, LEAVES, document_views, values_of
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import examples

from cachelayer import Buckets, InvalidArgumentError, InvalidTypeError, StateError, UnknownOptionError

BOUNDS = (4, 8, 16, 30)
Ref = Any


@pytest.fixture(scope="module")
def refs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Ref, list[dict[str, Any]]]]:
    views = document_views(tmp_path_factory.mktemp("storage"))
    return {**views, "nothing": (views["many"][0][:0], [])}


@pytest.fixture(scope="module")
def ref(refs: dict[str, tuple[Ref, list[dict[str, Any]]]]) -> Ref:
    return refs["many"][0]


FILLS = {"tokens": 7, "meta/weights": 0.5, "maybe": 9}


@given(
    st.sampled_from([*KINDS, "nothing"]),
    st.lists(st.sampled_from(list(FILLS)), unique=True, min_size=1),
    st.lists(st.integers(1, 20), unique=True, max_size=4).map(lambda found: [*sorted(found), 30]),
    st.integers(1, 20),
    st.none() | st.integers(0, 9),
)
@settings(deadline=None, max_examples=examples(40))
def test_each_record_comes_once_padded_to_the_least_bound_that_holds_it(
    refs: Any, kind: str, leaves: list[str], bounds: list[int], batch: int, seed: int | None
) -> None:
    view, elements = refs[kind]
    buckets = Buckets(leaves, bounds, value={leaf: FILLS[leaf] for leaf in leaves})
    stream = view.stream(batch, buckets=buckets, shuffle=seed is not None, seed=seed)
    seen = []
    for step in range(len(stream)):
        numbers, found = stream.record_numbers(step).tolist(), stream[step]
        values = {leaf: values_of([elements[number] for number in numbers], leaf) for leaf in leaves}
        longest = [max(map(len, row)) for row in zip(*values.values(), strict=True)]
        (bound,) = {min(bound for bound in bounds if length <= bound) for length in longest}
        for leaf in leaves:
            key, batch_of = LEAVES[leaf][0], found["meta"] if leaf == "meta/weights" else found
            expected = [each.tolist() + [FILLS[leaf]] * (bound - len(each)) for each in values[leaf]]
            assert batch_of[key].tolist() == expected
            assert batch_of[f"{key}_length"].tolist() == list(map(len, values[leaf]))
            mask = [[place < len(each) for place in range(bound)] for each in values[leaf]]
            assert batch_of[f"{key}_mask"].tolist() == mask
        seen += numbers
    assert sorted(seen) == list(range(len(elements)))


def test_an_epoch_goes_on_at_a_step_and_not_within_one(ref: Ref) -> None:
    stream = ref.stream(8, buckets=("tokens", BOUNDS), shuffle=True, seed=1)
    epochs, again = stream.epochs(), stream.epochs()
    next(next(epochs))
    again.set_state(epochs.get_state())
    assert len(list(next(again))) == len(stream) - 1
    for iterator in (iter(stream), stream.epochs()):
        with pytest.raises(StateError, match="position 3"):
            iterator.set_state({**epochs.get_state(), "position": 3})


def test_records_that_are_too_long_are_refused_with_their_number_or_truncated(ref: Ref) -> None:
    lengths = np.array([len(each["tokens"]) for each in ELEMENTS])
    named = f"{sum(lengths > 8)} of 90 .* record {np.argmax(lengths > 8)}. .* at least {lengths.max()}"
    with pytest.raises(InvalidArgumentError, match=named):
        ref.stream(8, buckets=("tokens", [4, 8]))
    stream = ref.stream(8, buckets=Buckets("tokens", [4, 8], long="truncate"))
    seen = {}
    for step in range(len(stream)):
        batch = stream[step]
        for row, number in enumerate(stream.record_numbers(step).tolist()):
            seen[number] = batch["tokens"][row, : batch["tokens_length"][row]].tolist()
    assert seen == {number: each["tokens"][:8].tolist() for number, each in enumerate(ELEMENTS)}


@pytest.mark.parametrize("bounds", [BOUNDS, (4, 8)])
def test_the_values_of_steps_in_buckets_are_counted(ref: Ref, bounds: tuple[int, ...]) -> None:
    buckets = Buckets("tokens", bounds, long="truncate")
    stream = ref.stream(8, buckets=buckets, shuffle=True, seed=1, remainder="pad")
    values = [int(batch["tokens_length"][mask].sum()) for batch, mask in stream]
    for steps in (range(len(values)), range(2, 5)):
        assert [*stream.count("tokens", steps=steps).values()] == [sum(values[step] for step in steps)]


def test_a_shard_without_rows_gets_an_empty_batch_of_the_bound(ref: Ref) -> None:
    view = ref.select([0]).fields("tokens")
    bound = next(each for each in BOUNDS if len(ELEMENTS[0]["tokens"]) <= each)
    stream = view.stream(4, buckets=("tokens", BOUNDS), shard=(3, 4))
    assert [batch["tokens"].shape for batch in stream] == [(0, bound)]
    mapped = stream.map(lambda element: {"tokens": element["tokens"] * 2})
    assert [batch["tokens"].shape for batch in mapped] == [(0, bound)]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"buckets": ("tokens", [4, 30])}, InvalidArgumentError, "global_batch_size"),
        ({"buckets": ("id", [4]), "global_batch_size": 4}, InvalidArgumentError, "'id'"),
        ({"buckets": ("meta/text", [4]), "global_batch_size": 4}, InvalidArgumentError, "'meta/text'"),
        ({"buckets": ("token", [4]), "global_batch_size": 4}, InvalidArgumentError, "'token'"),
        ({"buckets": "tokens", "global_batch_size": 4}, InvalidTypeError, "buckets 'tokens'"),
        ({"buckets": 128, "global_batch_size": 4}, InvalidTypeError, "buckets 128"),
        ({"buckets": ("tokens", [30]), "global_batch_size": 4, "shard": (0, 3)}, InvalidArgumentError, "divisible"),
        ({"bucket": ("tokens", [30]), "global_batch_size": 4}, UnknownOptionError, "did you mean buckets"),
    ],
)
def test_what_buckets_do_not_take_is_refused(ref: Ref, arguments: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        ref.stream(**arguments)
