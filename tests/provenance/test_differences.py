"""Differences between two plans of a build are named."""

from __future__ import annotations

from typing import Any

import pytest

from cachelayer.provenance.contents import HERE_AND_THERE, WAS_AND_IS, differences

PLAN: dict[str, Any] = {
    "shard_bytes": 100,
    "code": {"functions": {"rows": "hash:a", "helper": "hash:b"}, "constants": {"RANK": 0}},
    "arguments": {"api_key": "hash:1", "size": 3},
    "identity": {"files": 1},
}


def changed(**code: Any) -> dict[str, Any]:
    return {**PLAN, "code": {**PLAN["code"], **code}}


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (PLAN, []),
        ({**PLAN, "shard_bytes": 200}, ["shard_bytes is 100 here and 200 there"]),
        (changed(constants={"RANK": 1}), ["RANK is 0 here and 1 there"]),
        (changed(functions={"rows": "hash:c", "helper": "hash:b"}), ["rows differs"]),
        (changed(functions={"rows": "hash:a"}), ["helper is only here"]),
        (
            {**PLAN, "arguments": {"api_key": "hash:2", "size": 4}},
            ["arguments.api_key differs", "arguments.size is 3 here and 4 there"],
        ),
        ({**PLAN, "identity": {}}, ["files is only here"]),
    ],
)
def test_each_difference_is_named_with_both_values(other: dict[str, Any], expected: list[str]) -> None:
    assert differences(PLAN, other, HERE_AND_THERE) == expected
    assert len(differences(other, PLAN, WAS_AND_IS)) == len(expected)


def test_a_long_value_is_cut() -> None:
    (found,) = differences({"a": "x" * 1000}, {"a": "y" * 1000}, HERE_AND_THERE)
    assert len(found) < 250
