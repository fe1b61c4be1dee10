"""Check arguments that several calls take."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np

from cachelayer.errors import CacheLayerError, InvalidArgumentError, InvalidTypeError, UnknownOptionError

# Python refuses to print much longer integers.
_MOST_BITS = 4096
# What torch, Grain, tf.data and Hugging Face call an option of ours, and ours, best first.
_ELSEWHERE = {
    "batch_size": ("global_batch_size",),
    "per_device_train_batch_size": ("global_batch_size",),
    "drop_last": ("remainder='drop'",),
    "drop_remainder": ("remainder='drop'",),
    "epochs": ("num_epochs",),
    "repeat": ("num_epochs",),
    "count": ("max_records", "num_epochs"),
    "worker_count": ("workers",),
    "num_workers": ("workers",),
    "num_proc": ("workers",),
    "n_jobs": ("workers",),
    "num_parallel_calls": ("workers",),
    "shard_options": ("shard",),
    "num_shards": ("shard", "shard_bytes"),
    "rank": ("shard",),
    "world_size": ("shard",),
    "num_replicas": ("shard",),
    "shard_index": ("shard",),
    "shard_count": ("shard",),
    "index": ("shard",),
    "prefetch_factor": ("prefetch",),
    "prefetch_buffer_size": ("prefetch",),
    "buffer_size": ("shuffle=True", "shuffle"),
    "shuffle_seed": ("seed",),
    "random_state": ("seed",),
    "random_seed": ("seed",),
    "num_records": ("max_records",),
    "reshuffle_each_iteration": ("reshuffle",),
    "skip": ("start",),
    "offset": ("start",),
    "max_shard_size": ("shard_bytes",),
    "features": ("element_spec",),
    "schema": ("element_spec",),
    "spec": ("element_spec",),
    "dtype": ("element_spec",),
    "output_signature": ("element_spec",),
    "limit": ("max_records",),
    "take": ("max_records",),
    "max_samples": ("max_records",),
    "desc": ("description",),
    "name": ("version",),
}
_OF_STREAMS = frozenset(
    {"global_batch_size", "remainder", "num_epochs", "shard", "prefetch", "shuffle", "seed", "start"}
)
_NEAR = 0.6


def required(name: str, value: Any, error: type[CacheLayerError] = InvalidTypeError) -> Any:
    """Return a required argument; its signature has a default only because ``"id@version"`` may come before it.

    Raises:
        CacheLayerError: if it is None; the argument ``error`` is the type.
    """
    if value is None:
        raise error(f"missing argument: pass {name}=")
    return value


def check_options(options: Iterable[str], known: Sequence[str]) -> None:
    """Raise if a keyword is not an option of a call that lists its options elsewhere.

    Raises:
        UnknownOptionError: with the option that another library calls so, or that is spelled most like it.
    """
    for name in options:
        if name not in known:
            raise UnknownOptionError(f"there is no option {name!r}: {_meant(name, known)}")


def _meant(name: str, known: Sequence[str]) -> str:
    """Return what a user probably means who passes an option that a call does not have."""
    elsewhere = _ELSEWHERE.get(name, (name,))
    ours = [each for each in elsewhere if each.partition("=")[0] in known]
    near = ours if name in _ELSEWHERE else get_close_matches(name, known, 1, _NEAR)
    if near:
        return f"did you mean {near[0]}?"
    of_streams = [each for each in elsewhere if each.partition("=")[0] in _OF_STREAMS]
    if of_streams and _OF_STREAMS.isdisjoint(known):
        option = of_streams[0] if "=" in of_streams[0] else f"{of_streams[0]}=..."
        return f"that is decided when the version is read: ref.stream({option})"
    return f"there are {', '.join(known)}"


def is_choice(value: Any, choices: Iterable[str]) -> bool:
    """Return whether an argument is one of some names; arrays are none, though they compare with names."""
    return isinstance(value, str) and value in choices


def boolean(name: str, value: Any) -> bool:
    """Return the argument as a bool.

    Raises:
        InvalidTypeError: if it is not a bool.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidTypeError(f"{name} {value!r} of type {type(value).__name__}: pass True or False")
    return bool(value)


def integer(name: str, value: Any, least: int | None = None) -> int:
    """Return the argument as an int.

    Raises:
        InvalidTypeError: if it is not an integer; a bool is not one.
        InvalidArgumentError: if it is less than ``least``.
    """
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
