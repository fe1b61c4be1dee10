"""What a stream may be asked for."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer import Blocks, InvalidArgumentError, InvalidTypeError

REF: Any = cachelayer.wrap(list(range(10)), identity="numbers")


@dataclass
class ShardOptions:
    shard_index: int
    shard_count: int


@dataclass
class Dropping(ShardOptions):
    drop_remainder: bool = True


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"shuffle": True}, "seed"),
        ({"shuffle": "blocks"}, "shuffle='blocks' needs a seed"),
        ({"shuffle": Blocks(lanes=4)}, "shuffle=Blocks.* needs a seed"),
        ({"shuffle": "block", "seed": 1}, "shuffle 'block': did you mean 'blocks'"),
        ({"shuffle": True, "seed": -1}, "seed -1"),
        ({"seed": 2**64}, "seed"),
        ({"global_batch_size": 0}, "global_batch_size 0"),
        ({"global_batch_size": 4, "shard": (0, 3)}, "global_batch_size 4"),
        ({"global_batch_size": 2**30 + 1}, "global_batch_size 1073741825"),
        ({"global_batch_size": 2**63}, "global_batch_size 9223372036854775808"),
        ({"shard": (2, 2)}, r"shard \(2, 2\)"),
        ({"shard": (-1, 2)}, "shard index -1"),
        ({"shard": (0, 0)}, "shard count 0"),
        ({"shard": ShardOptions(3, 2)}, r"shard \(3, 2\)"),
        ({"num_epochs": -1}, "num_epochs -1"),
        ({"start": -1}, "start -1"),
        ({"start": 11}, "start 11"),
        ({"start": 10**5000}, "start"),
        ({"start": 2**63, "num_epochs": None}, "start"),
        ({"num_epochs": 2**70}, "num_epochs"),
        ({"prefetch": -1}, "prefetch -1"),
        ({"remainder": "truncate"}, "remainder 'truncate'"),
        ({"remainder": "pad"}, "global_batch_size"),
        ({"global_batch_size": 11, "num_epochs": None, "remainder": "drop"}, "num_epochs=None"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidArgumentError, match=named):
        REF.stream(**arguments)


WRONG_KINDS = [
    {"shuffle": "False"},
    {"shuffle": 1},
    {"shuffle": Blocks},
    {"shuffle": "arrival"},
    {"reshuffle": 1},
    {"seed": 1.0},
    {"seed": True},
]
WRONG_KINDS += [{"global_batch_size": 4.0}, {"shard": (1, 2, 3)}, {"shard": None}, {"shard": (0, "2")}]
WRONG_KINDS += [{"seed": True}, {"num_epochs": 1.5}, {"start": None}, {"prefetch": "2"}]


@pytest.mark.parametrize("arguments", WRONG_KINDS, ids=repr)
def test_a_value_of_another_kind_is_refused_by_name(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidTypeError, match=next(iter(arguments))):
        REF.stream(**{"shuffle": True, "seed": 1, **arguments})


def test_an_endless_stream_over_no_records_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="num_epochs=None"):
        REF[:0].stream(4, num_epochs=None)


def test_a_step_is_an_integer() -> None:
    for step in (1.0, "1", slice(1, 2), None, True):
        with pytest.raises(TypeError, match="step"):
            REF.stream(4)[step]


def test_numpy_integers_are_integers() -> None:
    stream = REF.stream(np.int32(4), shuffle=True, seed=np.uint64(2**64 - 1), start=np.int64(4), num_epochs=np.int8(2))
    assert len(stream) == 2 + 3


def test_shards_come_as_pairs_or_as_objects_that_may_drop_the_remainder() -> None:
    for shard in ((1, 2), [1, 2], ShardOptions(1, 2)):
        assert [batch.tolist() for batch in REF.stream(4, shard=shard)] == [[2, 3], [6, 7], [9]]
    assert [batch.tolist() for batch in REF.stream(4, shard=Dropping(1, 2))] == [[2, 3], [6, 7]]
    assert len(REF.stream(4, shard=Dropping(0, 2), remainder="pad")) == 3


def test_a_keyword_that_there_is_not_is_named_with_the_nearest() -> None:
    mixture: Any = cachelayer.mix([(REF, 1)])
    for records in (REF, mixture):
        with pytest.raises(cachelayer.UnknownOptionError, match="shuffle"):
            records.stream(4, shufle=True)
    for fixed in ({"num_epochs": 2}, {"remainder": "keep"}):
        with pytest.raises(cachelayer.UnknownOptionError, match="no option"):
            mixture.stream(**fixed)
    with pytest.raises(InvalidArgumentError, match="global_batch_size 1073741825"):
        mixture.stream(2**30 + 1)


def test_a_stream_whose_remainder_is_all_there_is_warns() -> None:
    five = cachelayer.wrap(list(range(5)), identity="five")
    with pytest.warns(cachelayer.CacheLayerWarning, match="no step"):
        assert list(five.stream(8, remainder="drop", num_epochs=2)) == []
    assert len(five.stream(5, remainder="drop")) == 1
