"""The options of a build stand in one list, which every call that builds takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest

import cachelayer
from cachelayer import Storage, SubmitOptions
from cachelayer.builds.build_options import BuildOptions


def keywords(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of the keywords of a function by name."""
    hints = get_type_hints(function)
    parameters = inspect.signature(function).parameters.values()
    return {each.name: hints[each.name] for each in parameters if each.kind is each.KEYWORD_ONLY}


def test_the_options_and_what_checks_them_list_equal_names_and_types() -> None:
    assert get_type_hints(SubmitOptions) == keywords(BuildOptions.checked)
    assert SubmitOptions.__required_keys__ == frozenset()


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
