"""The options of a build stand in one list, which every call that builds takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import cachelayer
from cachelayer import Storage, SubmitOptions
from cachelayer.builds.build_options import DEFAULTS, BuildOptions


def test_every_option_has_a_default_and_is_checked() -> None:
    assert DEFAULTS.keys() == SubmitOptions.__annotations__.keys()
    assert SubmitOptions.__required_keys__ == frozenset()
    assert BuildOptions.of(DEFAULTS) == BuildOptions.of({})


WRONG: Any = {"shard_byte": 1}
CALLS: dict[str, Callable[[Storage], Any]] = {
    "submit": lambda storage: storage.submit([1], "a@v1", **WRONG),
    "cache": lambda storage: storage.cache([1], "a@v1", **WRONG),
    "append": lambda storage: storage.append("a@v1", new="v2", source=[1], **WRONG),
    "cacheable": lambda storage: storage.cacheable("a@v1", **WRONG),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_option_that_there_is_not_is_named_with_the_nearest(storage: Storage, call: str) -> None:
    with pytest.raises(cachelayer.UnknownOptionError, match="shard_bytes"):
        CALLS[call](storage)
