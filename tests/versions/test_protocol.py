"""The protocol of storing, run in all interleavings: no version ever names a missing file, each is published once."""

from collections.abc import Callable, Mapping
from dataclasses import fields

import pytest
from protocol_model import Actor, Protocol, Rules, Store, explore

PUBLISHES = {"build": "v", "append": "w", "rewrite": "x"}
"""The version that each kind of actor publishes."""


def actors_of(kinds: str, protocol: Protocol, *, are_alike: bool) -> dict[str, Callable[[], Actor]]:
    """Return these actors by name; those of one kind are alike if it does not matter who wrote an entry."""
    made: dict[str, Callable[[], Actor]] = {}
    for number, kind in enumerate(kinds.split()):
        token = kind if are_alike else f"{kind} {number}"
        made[f"{kind} {number}"] = {
            "build": lambda token=token: protocol.build(token, "v", "shard"),
            "append": lambda token=token: protocol.append(token, "v", "w", "more"),
            "rewrite": lambda token=token: protocol.rewrite(token, "v", "x"),
            "erase": lambda token=token: protocol.erase(token, "v", "shard", "shard without a record"),
            "remove": lambda token=token: protocol.remove(token, "v"),
            "collect": lambda token=token: protocol.collect(token),
        }[kind]
    return made


def problem(before: Store, after: Store, results: Mapping[str, str | None]) -> str | None:
    """Return what is wrong after an operation."""
    for version, stems in after.head.files.items():
        if not stems <= after.files:
            return f"{version} names a missing file"
    if after.head.number > before.head.number:
        kind = after.tokens[-1].split()[0]
        is_erased = any("without" in stem.content for stem in before.head.named)
        if kind == "rewrite" and is_erased and "shard again" in {stem.content for stem in after.head.files["x"]}:
            return "x brings back what was erased"
        if PUBLISHES.get(kind) in before.head.files:
            return f"{kind} publishes again"
        if kind != "remove" and before.head.files.keys() - after.head.files.keys():
            return f"{kind} loses a version"
    for name, result in results.items():
        if result is not None and result.startswith("published") and not {name, name.split()[0]} & {*after.tokens}:
            return f"{name} has not published"
    return None


def run(kinds: str, losses: int = 0, rules: Rules | None = None) -> tuple[int, str | None]:
    protocol = Protocol(rules or Rules())
    return explore(actors_of(kinds, protocol, are_alike=not losses), problem, losses=losses)


@pytest.mark.parametrize(
    ("kinds", "losses", "least"),
    [
        ("build build collect collect", 0, 10_000),
        ("build build append erase collect", 0, 20_000),
        ("build append remove collect", 0, 500),
        ("build rewrite erase collect", 0, 1_000),
        ("build build collect", 1, 10_000),
        ("build collect", 2, 1_000),
        pytest.param("build append erase collect", 1, 30_000, marks=pytest.mark.soak),
        pytest.param("build build collect collect remove", 0, 20_000, marks=pytest.mark.soak),
        pytest.param("build build append erase collect collect", 0, 100_000, marks=pytest.mark.soak),
    ],
)
def test_no_version_names_a_missing_file_and_each_is_published_once(kinds: str, losses: int, least: int) -> None:
    states, wrong = run(kinds, losses)
    assert wrong is None
    assert states > least


@pytest.mark.parametrize(
    ("rule", "kinds", "losses", "lost"),
    [
        ("names_hold_generations", "build collect", 0, "v names a missing file"),
        ("deletions_are_read", "build collect", 0, "v names a missing file"),
        ("deletions_are_committed", "build collect", 0, "v names a missing file"),
        ("entries_follow_their_head", "build collect", 0, "v names a missing file"),
        ("lost_replies_are_read_back", "build", 1, "build 0 has not published"),
        ("bases_are_compared", "build append remove collect", 0, "w names a missing file"),
        ("bases_are_compared", "build rewrite erase", 0, "x brings back what was erased"),
    ],
)
def test_each_rule_is_needed(rule: str, kinds: str, losses: int, lost: str) -> None:
    assert run(kinds, losses)[1] is None
    assert run(kinds, losses, Rules(**{rule: False}))[1] == lost


def test_every_rule_is_taken_out_once() -> None:
    marks = test_each_rule_is_needed.pytestmark  # type: ignore[attr-defined]
    assert {case[0] for case in marks[0].args[1]} == {field.name for field in fields(Rules)}
