"""Check arguments: their values, and keywords that a call does not have, which other libraries may use."""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from difflib import get_close_matches
from functools import wraps
from inspect import CO_VARKEYWORDS, unwrap
from types import FunctionType
from typing import Any, TypeVar, cast

import numpy as np

from cachelayer.errors import CacheLayerError, InvalidArgumentError, InvalidTypeError, UnknownOptionError

_MOST_BITS = 4096
"""Python refuses to print much longer integers."""
_LEAST_SIMILARITY = 0.6
_FOREIGN_KEYWORDS: list[tuple[str, Mapping[str, str]]] = [
    (
        "batch_size batch per_device_batch_size",
        {"global_batch_size": "global_batch_size=64", "": "ref.stream(64), which decides the size of batches"},
    ),
    ("drop_last drop_remainder", {"remainder": "remainder='drop'", "": "ref.stream(64, remainder='drop')"}),
    (
        "shuffle_buffer shuffle_buffer_size buffer_size buffer shuffle shuffle_files",
        {
            "shuffle": "shuffle=True, seed=0, which permutes all records without a buffer",
            "": "ref.stream(64, shuffle=True, seed=0), which permutes all records without a buffer",
        },
    ),
    (
        "num_workers workers num_proc num_parallel_calls threads n_jobs worker_count num_threads",
        {
            "workers": "workers=4",
            "threads": "threads=4",
            "prefetch": "prefetch=4, or cachelayer.adapters.torch.loader(stream, num_workers=4)",
        },
    ),
    ("prefetch_factor prefetch_buffer_size prefetch", {"prefetch": "prefetch=4", "": "ref.stream(64, prefetch=4)"}),
    (
        "random_state random_seed rng generator shuffle_seed seed",
        {"seed": "seed=0", "shuffle_seed": "shuffle_seed=0", "": "ref.stream(64, shuffle=True, seed=0)"},
    ),
    (
        "rank world_size num_replicas num_shards shard_index shard_count process_index process_count shard",
        {"shard": "shard=(rank, world_size)", "": "ref.stream(64, shard=(rank, world_size))"},
    ),
    ("epochs repeat n_epochs num_epochs", {"num_epochs": "num_epochs=3", "": "ref.stream(64, num_epochs=3)"}),
    ("sampler batch_sampler", {"": "ref.stream(64, shuffle=True, seed=0), which decides the order"}),
    ("collate_fn collate batched", {"": "stream.map_batches(function)"}),
    ("transform transforms map_fn", {"": "stream.map(function)"}),
    (
        "n k num size count limit num_rows nrows max_rows num_samples n_splits num_folds",
        {
            "n": "n=5",
            "k": "k=5",
            "max_records": "max_records=1000",
            "length": "length=2048",
            "weights": "ref.head(5), or ref[:5]",
        },
    ),
    ("test_size train_size val_size frac fractions", {"shares": "shares={'train': 0.8, 'test': 0.2}"}),
    ("group groups group_by", {"by": "by='user'"}),
    ("on left_on join_on order_by sort_by", {"on": "on='id'", "key": "key='id'", "order": "order='time'"}),
    ("stratify_by stratify_by_column", {"stratify": "stratify='label'"}),
    ("columns column_names usecols keys features", {"fields": "fields=['x']", "indices": "ref.fields('x') before it"}),
    ("column col field_name feature", {"field": "field='label'"}),
    ("filter predicate query expr where", {"condition": "condition='x > 3'", "keep": "keep='x > 3'"}),
    ("mask ids idx", {"valid": "valid=~mask", "indices": "indices=[...]", "keep": "keep=[...]"}),
    ("data rows records items", {"source": "source=[...]", "obj": "obj=[...]"}),
    ("schema spec dtype dtypes output_signature", {"element_spec": "element_spec={...}"}),
    (
        "block_size chunk_size context_length seq_len seq_length sequence_length max_length max_len size window "
        "window_size",
        {"length": "length=2048"},
    ),
    ("step shift hop overlap", {"stride": "stride=1024"}),
    ("pad_value padding_value pad_token_id fill fill_value", {"value": "value=0"}),
    ("sample_rate rate sr", {"sampling_rate": "sampling_rate=16_000"}),
    ("optional null allow_none required", {"nullable": "nullable=True"}),
    ("eos eos_id eos_token_id sep sep_token_id", {"separator": "separator=0"}),
    ("probabilities probs p", {"weights": "weights=[...]", "": "cachelayer.mix([(a, 3), (b, 1)])"}),
    ("cache_dir", {"local_cache": "local_cache='/path'"}),
    ("name dataset dataset_name", {"dataset_id": "dataset_id='cifar10'"}),
    ("revision tag", {"version": "version='v1'"}),
]
"""Keywords of other libraries, and what to write instead. A text lists keywords that mean the same. A dict says what to
write if a call has a keyword for it, by that keyword; and, by an empty text, what to write if it has none."""
C = TypeVar("C", bound=Callable[..., Any])
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII)
_BYTES = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_BYTES |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}


def required(name: str, value: Any, error: type[CacheLayerError] = InvalidTypeError) -> Any:
    """Return an argument, unless it is None, which stands for a missing argument."""
    if value is None:
        raise error(f"missing argument: pass {name}=")
    return value


def check_options(options: Iterable[str], known: Sequence[str], call: str = "") -> None:
    """Raise UnknownOptionError if a call does not have one of the keywords, and say what to write instead.

    Args:
        options: the keywords that were passed.
        known: the keywords that the call has.
        call: the name of the call, for the message.
    """
    for name in options:
        if name not in known:
            cures = _cures(name)
            cure = next((write for keyword, write in cures.items() if keyword in known), cures.get(""))
            similar = get_close_matches(name, known, 1, _LEAST_SIMILARITY)
            meant = ""
            if cure:
                meant = f"write {cure}; "
            elif similar:
                meant = f"did you mean {similar[0]}? "
            here = f"{call}() has no option {name!r}" if call else f"there is no option {name!r}"
            raise UnknownOptionError(f"{here}: {meant}there are {', '.join(known) or 'none'}")


def _cures(name: str) -> Mapping[str, str]:
    return next((cures for words, cures in _FOREIGN_KEYWORDS if name in words.split()), {})


def explains_options(thing: C) -> C:
    """Decorate a function, so that it answers an unknown keyword by what to write instead.

    If a dataclass is decorated, its constructor answers so; if another class is, each public method.
    """
    if not isinstance(thing, type):
        return cast(C, _explained(thing))
    for name, member in list(vars(thing).items()):
        is_chosen = name == "__init__" if is_dataclass(thing) else not name.startswith("_")
        if isinstance(member, FunctionType) and is_chosen:
            setattr(thing, name, _explained(member))
    return thing


def no_attribute(owner: object, name: str, cure: str) -> AttributeError:
    """Return the error for an attribute that an object does not have.

    Args:
        cure: what to write instead.
    """
    return AttributeError(f"a {type(owner).__name__} has no {name!r}: {cure}", name=name, obj=owner)


def _explained(function: Any) -> Any:
    if hasattr(function, "__signature__"):
        # A decorator that gives a function another signature checks its keywords itself.
        return function
    code = unwrap(function).__code__
    known = [name for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if name != "self"]
    call = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
    # A function with ** checks keywords itself, except other words for its own keywords.
    takes_any = bool(code.co_flags & CO_VARKEYWORDS)

    @wraps(function)
    def explained(*arguments: Any, **options: Any) -> Any:
        if options:
            check_options(filter(means_a_known_keyword, options) if takes_any else options, known, call)
        return function(*arguments, **options)

    def means_a_known_keyword(name: str) -> bool:
        return any(keyword in known for keyword in _cures(name))

    return explained


def quantity(text: str, units: Mapping[str, float]) -> float:
    """Parse a number that a unit may follow, such as ``1.5GiB``."""
    match = _QUANTITY.fullmatch(text.strip().lower())
    if match is None or match[2] not in units:
        raise InvalidArgumentError(f"{text!r}: pass a number, followed by one of {', '.join(filter(None, units))}")
    return float(match[1]) * units[match[2]]


def refuse_other_index(title: str, values: Any) -> None:
    """Raise if values have an index, as those of pandas have, that is not 0 to n - 1: they count by their places."""
    if not hasattr(values, "iloc"):
        return
    index = values.index
    has_numbers = index.nlevels == 1 and index.name is None and index.dtype.kind in "iu"
    if not has_numbers or not np.array_equal(np.asarray(index), np.arange(len(index))):
        raise InvalidArgumentError(
            f"{title}: the index {list(index.names)} of {index.dtype} is not 0 to {len(index) - 1}, and values "
            "count by their places: sort_index() if it has the numbers of all records; else reset_index() makes it a "
            "column, and reset_index(drop=True) drops it"
        )


def byte_count(text: str) -> int:
    """Parse a size in bytes: ``256MB``, ``1.5GiB``, ``4096``."""
    return int(quantity(text, _BYTES))


def seconds_of_environment(variable: str, default: float) -> float:
    """Return the seconds in an environment variable; the default if it is not set.

    Raises:
        InvalidArgumentError: if the variable holds anything but a number above 0.
    """
    setting = os.environ.get(variable, str(default))
    try:
        seconds = float(setting)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise InvalidArgumentError(f"{variable} is {setting!r}: set it to a number of seconds above 0")
    return seconds


def is_choice(value: Any, choices: Iterable[str]) -> bool:
    """Return whether an argument is one of some names. It may be anything, such as an array."""
    return isinstance(value, str) and value in choices


def boolean(name: str, value: Any) -> bool:
    """Return an argument that must be True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidTypeError(f"{name} {value!r} of type {type(value).__name__}: pass True or False")
    return bool(value)


def integer(name: str, value: Any, least: int | None = None) -> int:
    """Return an argument that must be an integer of Python or numpy, no bool, and at least so large."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise InvalidTypeError(f"{name} {value!r} of type {type(value).__name__}: pass an integer") from None
    if number.bit_length() > _MOST_BITS:
        raise InvalidArgumentError(f"{name}: an integer of {number.bit_length()} bits, which is out of range")
    if least is not None and number < least:
        raise InvalidArgumentError(f"{name} {number}: it must be at least {least}")
    return number
