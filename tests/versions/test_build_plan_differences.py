"""What differs between two plans of a build is told by name."""

from __future__ import annotations

from typing import Any

import pytest

from cachelayer.versions.build_plan_differences import differences

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
        (changed(constants={"RANK": "1"}), ['the constant RANK is "0" here and "1" there']),
        (changed(functions={"rows": "c", "helper": "b"}), ["the code of rows differs"]),
        (changed(functions={"rows": "a"}), ['the code of helper is "b" here and absent there']),
        ({**PLAN, "arguments": {**PLAN["arguments"], "size": 4}}, ["the argument size is 3 here and 4 there"]),
    ],
)
def test_each_difference_is_named_with_both_values(other: dict[str, Any], expected: list[str]) -> None:
    assert differences(PLAN, other) == expected
    assert len(differences(other, PLAN)) == len(expected)


def test_what_may_be_secret_is_hashed_and_what_is_long_is_cut() -> None:
    (found,) = differences(PLAN, {**PLAN, "arguments": {**PLAN["arguments"], "api_key": "k2"}})
    assert found.startswith("the argument api_key is sha256:")
    assert "k1" not in found
    assert "k2" not in found
    (found,) = differences({"a": "x" * 1000}, {"a": "y" * 1000})
    assert len(found) < 250


@pytest.mark.parametrize(("ours", "theirs"), [(None, {"a": 1}), ([1], [2]), ({"a": {"b": 1}}, {"a": None}), (1, "1")])
def test_any_two_that_differ_have_a_difference(ours: Any, theirs: Any) -> None:
    assert len(differences(ours, theirs)) == 1
