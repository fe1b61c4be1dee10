"""Differences between two plans of a build are named."""

from __future__ import annotations

from typing import Any

import pytest

from cachelayer.versions.build_plan_differences import HERE_AND_THERE, WAS_AND_IS, differences

PLAN: dict[str, Any] = {
    "shard_bytes": 100,
    "function": "rows",
    "code": {"digest": "1", "functions": {"rows": "a", "helper": "b"}, "constants": {"RANK": "0"}},
    "arguments": {"api_key": "k1", "size": 3},
}


def changed(**code: Any) -> dict[str, Any]:
    return {**PLAN, "code": {**PLAN["code"], "digest": "2", **code}}


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (PLAN, []),
        ({**PLAN, "shard_bytes": 200}, ["shard_bytes is 100 here and 200 there"]),
        (changed(constants={"RANK": "1"}), ["the constant RANK is '0' here and '1' there"]),
        (changed(functions={"rows": "c", "helper": "b"}), ["the code of rows differs"]),
        (changed(functions={"rows": "a"}), ["the code of helper is 'b' here and absent there"]),
        ({**PLAN, "arguments": {**PLAN["arguments"], "size": 4}}, ["the argument size is 3 here and 4 there"]),
    ],
)
def test_each_difference_is_named_with_both_values(other: dict[str, Any], expected: list[str]) -> None:
    assert differences(PLAN, other, HERE_AND_THERE) == expected
    assert len(differences(other, PLAN, HERE_AND_THERE)) == len(expected)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"base": None}, {"base": "ab"}, "the version that is appended to was None and is 'ab'"),
        ({"identity": {"files": 1}}, {"identity": {"files": 2}}, "the number of files was 1 and is 2"),
        ({"identity": {"files": 1}}, {"identity": {}}, "the number of files was 1 and is absent"),
        ({"identity": {"query": "salted:1"}}, {"identity": {"query": "salted:2"}}, "the query changed"),
        ({"division": {"parts": 2}}, {"division": {"parts": 3}}, "the number of parts was 2 and is 3"),
    ],
)
def test_a_resumed_build_hears_what_was_and_what_is(before: Any, after: Any, expected: str) -> None:
    assert differences(before, after, WAS_AND_IS) == [expected]


def test_a_value_that_may_be_secret_is_not_shown_and_a_long_one_is_cut() -> None:
    other = {**PLAN, "arguments": {**PLAN["arguments"], "api_key": "k2"}}
    assert differences(PLAN, other, HERE_AND_THERE) == ["the argument api_key differs"]
    (found,) = differences({"a": "x" * 1000}, {"a": "y" * 1000}, HERE_AND_THERE)
    assert len(found) < 250


@pytest.mark.parametrize(("ours", "theirs"), [(None, {"a": 1}), ([1], [2]), ({"a": {"b": 1}}, {"a": None}), (1, "1")])
def test_any_two_that_differ_have_a_difference(ours: Any, theirs: Any) -> None:
    assert len(differences(ours, theirs, HERE_AND_THERE)) == 1
