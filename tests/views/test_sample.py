"""Weighted samples of all kinds of records: elastic, resumable, endless, and clear about weights that are wrong."""

import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer import (
    ArraySpec,
    InvalidArgumentError,
    InvalidTypeError,
    RecordIndexError,
    StateError,
    Storage,
    UnknownOptionError,
)

N = 60
SPEC = {
    "id": ArraySpec("int64"),
    "weight": ArraySpec("float32"),
    "maybe": ArraySpec("float64", (), nullable=True),
    "meta": {"label": ArraySpec(str), "kind": ArraySpec("int8"), "good": ArraySpec("bool")},
    "tokens": ArraySpec("int32", (None,)),
    "bad": ArraySpec("float64"),
}
LABELS = ["a"] * 40 + ["b"] * 15 + ["c"] * 5


def element(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "weight": number % 5,
        "maybe": None if number == 31 else 1.0,
        "meta": {"label": LABELS[number], "kind": number % 3 and -1, "good": number < 6},
        "tokens": np.full(number % 7 + 1, number, np.int32),
        "bad": -2.5 if number in (17, 20) else 1.0,
    }


ELEMENTS = [element(number) for number in range(N)]
WEIGHTS = [number % 5 for number in range(N)]
Ref = Any


@pytest.fixture(scope="module")
def ref(tmp_path_factory: pytest.TempPathFactory) -> Ref:
    return Storage(tmp_path_factory.mktemp("storage")).cache(ELEMENTS, "d@v1", element_spec=SPEC, shard_bytes=2000)


def numbers(stream: Any, count: int) -> list[int]:
    return [number for batch in itertools.islice(stream, count) for number in batch["id"].tolist()]


def drawn(sample: Any, count: int) -> np.ndarray[Any, Any]:
    """The numbers of the first draws."""
    return sample.stream(count).record_numbers(0)


@pytest.mark.parametrize("leaf", ["weight", "tokens_length", ""])
def test_a_leaf_of_one_number_is_as_good_as_its_array(ref: Ref, leaf: str) -> None:
    view: Any = cachelayer.wrap([1.5, 0.0, 2.0], identity="n")
    if leaf:
        view = cachelayer.concat([ref[10:20], ref]).fields("weight", "tokens").padded({"tokens": 4}, long="truncate")
    read = view.read(slice(None))
    weights = np.asarray(read[leaf] if leaf else read, np.float64)
    sample, by_leaf = view.sample(weights, seed=5), view.sample(leaf, seed=5)
    draws = drawn(sample, 3000)
    assert (weights[draws] > 0).all()
    assert drawn(by_leaf, 3000).tolist() == draws.tolist()
    assert iter(by_leaf.stream(4)).get_state() == iter(sample.stream(4)).get_state()
    assert (sample.element_spec, sample.digest) == (view.element_spec, view.digest)


def test_a_stream_has_no_end_and_any_step_is_found_at_once(ref: Ref) -> None:
    stream = ref.sample("weight", seed=9).stream(16)
    with pytest.raises(TypeError, match="sample"):
        len(stream)
    with pytest.raises(TypeError):
        len(ref.sample("weight", seed=9))
    far = 10**15
    assert stream[far]["id"].tolist() == stream.record_numbers(far).tolist()
    assert numbers(ref.sample("weight", seed=9).stream(16, start=16 * far), 1) == stream.record_numbers(far).tolist()
    with pytest.raises(RecordIndexError, match="no last step"):
        stream[-1]
    for epochs in (stream.epochs, lambda: stream.epoch(0)):
        with pytest.raises(InvalidArgumentError, match="sample"):
            epochs()


def test_states_of_other_weights_seeds_orders_and_records_are_refused_by_name(ref: Ref) -> None:
    def stream(weights: Any = "weight", seed: int = 9, view: Any = ref) -> Any:
        return view.sample(weights, seed=seed).stream(4)

    iterator = iter(stream())
    next(iterator)
    state = iterator.get_state()
    iter(stream(WEIGHTS)).set_state(state)
    iter(stream([2 * weight for weight in WEIGHTS])).set_state(state)
    refused = {
        "the hash of the weights is": stream([*WEIGHTS[:-1], 3]),
        "seed is 8 here and 9": stream(seed=8),
        "digest is": stream(WEIGHTS[1:], view=ref[1:]),
        "order kind is 'exact' here and 'weighted'": ref.stream(4, shuffle=True, seed=9),
    }
    for message, other in refused.items():
        with pytest.raises(StateError, match=message):
            iter(other).set_state(state)
    with pytest.raises(StateError, match="order kind is 'weighted' here and 'exact'"):
        iter(stream()).set_state(iter(ref.stream(4, shuffle=True, seed=9)).get_state())


ONES: list[Any] = [1] * N
BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "negative": ([*ONES[:-1], -1], InvalidArgumentError, "record 59"),
    "NaN": ([1, np.nan, *ONES[2:]], InvalidArgumentError, "record 1 .*nan"),
    "all zero": ([0] * N, InvalidArgumentError, "60"),
    "too few": (ONES[1:], InvalidArgumentError, r"\[59\]"),
    "one None": ([None, *ONES[1:]], InvalidTypeError, "object"),
    "bools": (np.ones(N, bool), InvalidTypeError, "bool"),
    "ragged": ([[1], [1, 2]], InvalidTypeError, "list"),
    "masked": (np.ma.masked_array(np.ones(N)), InvalidTypeError, "masked"),
    "a generator": ((1 for _ in range(N)), InvalidTypeError, "generator"),
    "unknown leaf": ("wieght", InvalidArgumentError, "'wieght'"),
    "leaf of text": ("meta/label", InvalidArgumentError, "'meta/label'"),
    "leaf of arrays": ("tokens", InvalidArgumentError, "'tokens'"),
    "nulls": ("maybe", InvalidArgumentError, "record 31 .*'maybe'"),
    "negative leaf": ("bad", InvalidArgumentError, "record 17 .*-2.5.* 2 such"),
    "balanced labels": ("balanced:meta/label", InvalidArgumentError, "'balanced:meta/label'"),
}


@pytest.mark.parametrize(("weights", "error", "message"), BAD.values(), ids=BAD)
def test_wrong_weights_are_refused_with_what_is_wrong(ref: Ref, weights: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        ref.sample(weights, seed=1)
    for seed in (None, -1, 2**64, 1.5):
        with pytest.raises((InvalidArgumentError, InvalidTypeError), match="seed"):
            ref.sample("weight", seed=seed)


def test_numbers_of_any_dtype_are_weights(ref: Ref) -> None:
    import ml_dtypes

    expected = drawn(ref.sample(WEIGHTS, seed=1), 99).tolist()
    for dtype in ("int8", "uint64", "float16", ml_dtypes.bfloat16):
        assert drawn(ref.sample(np.array(WEIGHTS, dtype), seed=1), 99).tolist() == expected


def test_weights_that_change_later_change_nothing(ref: Ref) -> None:
    weights = np.array(WEIGHTS, np.float64)
    sample = ref.sample(weights, seed=1)
    before = drawn(sample, 50).tolist()
    weights[:] = -1
    assert drawn(pickle.loads(pickle.dumps(sample)), 50).tolist() == before


def test_options_that_contradict_and_joins_are_refused(ref: Ref) -> None:
    sample = ref.sample("weight", seed=1)
    options: list[dict[str, Any]] = [{"shuffle": "blocks"}, {"seed": 1}, {"num_epochs": 2}, {"remainder": "pad"}]
    for each in options:
        with pytest.raises(UnknownOptionError, match=next(iter(each))):
            sample.stream(4, **each)
    with pytest.raises(InvalidTypeError, match="Sampled"):
        cachelayer.concat([sample])  # type: ignore[list-item]


def test_a_key_may_hold_a_slash(tmp_path: Path) -> None:
    elements = [{"a": {"c": n}, "a/b": float(n == 3)} for n in range(5)]
    ref = Storage(tmp_path).cache(elements, "d@v1")
    assert set(ref.sample("a/b", seed=0).stream(20)[0]["a"]["c"].tolist()) == {3}
