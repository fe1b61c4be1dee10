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


@pytest.mark.parametrize("call", ["submit", "cache", "append", "cacheable"])
def test_an_option_that_there_is_not_is_named_with_the_nearest(tmp_path: Any, call: str) -> None:
    storage = Storage(tmp_path)
    wrong: Any = {"shard_byte": 1}
    calls: dict[str, Callable[[], Any]] = {
        "submit": lambda: storage.submit([1], "a@v1", **wrong),
        "cache": lambda: storage.cache([1], "a@v1", **wrong),
        "append": lambda: storage.append("a@v1", new="v2", source=[1], **wrong),
        "cacheable": lambda: storage.cacheable("a@v1", **wrong),
    }
    with pytest.raises(cachelayer.UnknownOptionError, match="shard_bytes"):
        calls[call]()


def test_a_mistyped_version_is_answered_with_its_spelling(tmp_path: Any) -> None:
    storage: Any = Storage(tmp_path)
    for call in (storage.cacheable, lambda *name, **options: storage.cache([1], *name, **options)):
        with pytest.raises(cachelayer.UnknownOptionError, match="version"):
            call("a", dataset_version="v1")
