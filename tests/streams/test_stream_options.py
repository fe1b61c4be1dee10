"""What a stream may be asked for, and what it says to the rest."""

from __future__ import annotations

import inspect
import pydoc
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

import cachelayer
from cachelayer import CacheLayerError, InvalidArgumentError, InvalidTypeError
from cachelayer.streams.stream import reader_of
from cachelayer.streams.stream_options import MixtureArguments, StreamArguments, make_options

REF: Any = cachelayer.wrap(list(range(10)), identity="numbers")


@dataclass
class ShardOptions:
    shard_index: int
    shard_count: int


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shuffle": True}, r"shuffle=True needs a seed: pass seed="),
        ({"shuffle": True, "seed": -1}, "seed -1: it must be at least 0"),
        ({"shuffle": True, "seed": 2**64}, rf"seed {2**64}: it must lie in \[0, 2\*\*64\)"),
        ({"seed": 2**64}, "seed"),
        ({"global_batch_size": 0}, "global_batch_size 0: it must be at least 1"),
        ({"global_batch_size": -4}, "global_batch_size -4: it must be at least 1"),
        ({"global_batch_size": 4, "shard": (0, 3)}, "global_batch_size 4 .* shard count 3: .* a multiple such as 6"),
        ({"shard": (2, 2), "remainder": "keep"}, r"shard \(2, 2\): the index must lie in \[0, 2\)"),
        ({"shard": (-1, 2)}, "shard index -1: it must be at least 0"),
        ({"shard": (0, 0)}, "shard count 0: it must be at least 1"),
        ({"shard": ShardOptions(3, 2)}, r"shard \(3, 2\)"),
        ({"num_epochs": -1}, "num_epochs -1: it must be at least 0"),
        ({"start": -1}, "start -1: it must be at least 0"),
        ({"start": 10**5000}, "start: an integer of 16610 bits"),
        ({"global_batch_size": 2**70, "remainder": "pad"}, "global_batch_size"),
        ({"shard": (0, 2**70)}, "shard"),
        ({"start": 11}, "start 11 is past the end, 10: pass a larger num_epochs"),
        ({"prefetch": -1}, "prefetch -1: it must be at least 0"),
        ({"remainder": "truncate"}, "remainder 'truncate': it is one of 'drop', 'keep', 'pad'"),
        ({"remainder": "pad"}, "remainder='pad' .* pass a global_batch_size"),
        ({"global_batch_size": 11, "num_epochs": None, "remainder": "drop"}, "num_epochs=None .* pass a number"),
        ({"start": 2**63, "num_epochs": None}, r"start leads to position .*, past 2\*\*62"),
        ({"num_epochs": 2**70}, r"num_epochs leads to position"),
        ({"shard": (0, 11), "num_epochs": None, "remainder": "keep"}, "num_epochs=None .* pass a number"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        REF.stream(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shuffle": "False"}, "shuffle 'False' of type str: pass True, False, 'blocks'"),
        ({"reshuffle": 1}, "reshuffle 1 of type int: pass True or False"),
        ({"shuffle": True, "seed": 1.0}, "seed 1.0 of type float: pass an integer"),
        ({"shuffle": True, "seed": "1"}, "seed '1' of type str: pass an integer"),
        ({"shuffle": True, "seed": True}, "seed True of type bool: pass an integer"),
        ({"global_batch_size": 4.0}, "global_batch_size 4.0 of type float: pass an integer"),
        ({"global_batch_size": np.True_}, "global_batch_size"),
        ({"shard": 1}, r"shard 1: pass \(index, count\), or an object with shard_index and shard_count"),
        ({"shard": (1, 2, 3)}, r"shard \(1, 2, 3\): pass \(index, count\)"),
        ({"shard": "01"}, "shard '01': pass"),
        ({"shard": None}, "shard None: pass"),
        ({"shard": (0.0, 2)}, "shard index 0.0 of type float"),
        ({"shard": (0, "2")}, "shard count '2' of type str"),
        ({"num_epochs": 1.5}, "num_epochs 1.5 of type float: pass an integer"),
        ({"start": None}, "start None of type NoneType: pass an integer"),
        ({"prefetch": "2"}, "prefetch '2' of type str: pass an integer"),
    ],
)
def test_a_value_of_another_kind_is_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidTypeError, match=message):
        REF.stream(**arguments)


def test_errors_are_ours_and_the_fitting_built_in() -> None:
    assert issubclass(InvalidArgumentError, CacheLayerError)
    assert issubclass(InvalidArgumentError, ValueError)
    assert issubclass(InvalidTypeError, CacheLayerError)
    assert issubclass(InvalidTypeError, TypeError)


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


def test_shards_come_as_pairs_or_as_objects() -> None:
    for shard in ((1, 2), [1, 2], ShardOptions(1, 2)):
        assert [batch.tolist() for batch in REF.stream(10, shard=shard)] == [[5, 6, 7, 8, 9]]


def test_a_shorter_last_step_is_kept_whatever_the_length() -> None:
    for arguments in ((4,), (4, (0, 2)), (10, (0, 5)), (None, (0, 3)), (None, (0, 5))):
        stream = REF.stream(arguments[0], shard=arguments[1] if len(arguments) > 1 else (0, 1))
        assert reader_of(stream).options.steps.remainder == "keep"
    assert [batch.tolist() for batch in REF.stream(4, shard=(1, 2))] == [[2, 3], [6, 7], [9]]


CHECKS = """
import cachelayer

ref = cachelayer.wrap(list(range(10)), identity="numbers")
state = iter(ref.stream(4)).get_state()
calls = [
    lambda: ref.stream(4, shuffle=True),
    lambda: ref.stream(0),
    lambda: ref.stream(4, shard=(2, 2)),
    lambda: ref.stream(4, shard=(0, 3)),
    lambda: ref.stream(4, start=11),
    lambda: ref[:0].stream(4, num_epochs=None),
    lambda: iter(ref.stream(4)).set_state({**state, "position": 11}),
    lambda: iter(ref.stream(4, seed=1)).set_state(state),
    lambda: ref.stream(4)[3],
    lambda: ref[10],
    lambda: ref.read([10]),
    lambda: cachelayer.wrap([], identity=""),
]
refused = 0
for call in calls:
    try:
        call()
    except cachelayer.CacheLayerError:
        refused += 1
print(__debug__, len(calls) - refused)
"""


@pytest.mark.slow
def test_checks_hold_under_optimisation() -> None:
    done = subprocess.run([sys.executable, "-O", "-c", CHECKS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "0"]


def test_options_that_drop_the_remainder_are_heeded() -> None:
    @dataclass
    class Dropping(ShardOptions):
        drop_remainder: bool = True

    assert reader_of(REF.stream(4, shard=Dropping(0, 2))).options.steps.remainder == "drop"
    assert reader_of(REF.stream(4, shard=Dropping(0, 2), remainder="pad")).options.steps.remainder == "pad"


def test_a_stream_has_no_reverse() -> None:
    with pytest.raises(TypeError):
        reversed(REF.stream(shard=(0, 4), remainder="keep"))


DESIGNED = {
    "shuffle": False,
    "seed": None,
    "reshuffle": True,
    "num_epochs": 1,
    "shard": (0, 1),
    "remainder": None,
    "start": 0,
    "prefetch": 2,
    "buckets": None,
}


def keywords(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of the keywords of a function by name."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


def test_help_shows_what_a_stream_may_be_asked_for_with_the_defaults() -> None:
    parameters = inspect.signature(cachelayer.DataRef.stream).parameters
    assert list(parameters) == ["self", "global_batch_size", *DESIGNED]
    assert parameters["global_batch_size"].default is None
    assert keywords(cachelayer.DataRef.stream) == keywords(make_options) == DESIGNED
    mixture = {name: value for name, value in DESIGNED.items() if name not in ("num_epochs", "remainder", "buckets")}
    assert keywords(cachelayer.Mixture.stream) == mixture
    shown = pydoc.plain(pydoc.render_doc(cachelayer.DataRef.stream))
    assert """shuffle: "bool | Literal['blocks'] | Blocks" = False""" in shown
    assert "global_batch_size: the number of records of a step" in shown


def test_what_type_checkers_read_is_that_list() -> None:
    types = get_type_hints(make_options)
    assert get_type_hints(StreamArguments) == {name: types[name] for name in DESIGNED if name != "remainder"}
    assert set(get_type_hints(MixtureArguments)) == set(keywords(cachelayer.Mixture.stream))


def test_a_keyword_that_there_is_not_is_named_with_the_nearest(tmp_path: Path) -> None:
    mixture: Any = cachelayer.mix([(cachelayer.Storage(tmp_path).submit([1, 2], "a@v1"), 1)])
    for records in (REF, mixture):
        with pytest.raises(cachelayer.UnknownOptionError, match="shuffle"):
            records.stream(4, shufle=True)
    for fixed in ({"num_epochs": 2}, {"remainder": "keep"}):
        with pytest.raises(cachelayer.UnknownOptionError, match="no option"):
            mixture.stream(**fixed)


def test_a_step_that_fits_no_memory_is_refused_by_name() -> None:
    mixture = cachelayer.mix([(REF, 1)])
    for size in (2**30 + 1, 2**36, 2**40, 2**63):
        for stream in (REF.stream, mixture.stream):
            with pytest.raises(InvalidArgumentError, match=f"global_batch_size {size}"):
                stream(size)
    assert len(REF.stream(2**30)) == 1
