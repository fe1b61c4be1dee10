"""What is recorded of a call, and compared."""

from __future__ import annotations

import shutil
import subprocess
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cachelayer import ArgumentsMismatchError, CacheLayerWarning, InvalidArgumentError
from cachelayer.versions.provenance import (
    bound_arguments,
    check_arguments,
    checked_metadata,
    code_of,
    environment,
    git_commit,
)


def example(first: Any, /, second: Any = 2, *rest: Any, third: Any = (3,), **others: Any) -> None:
    """A function with parameters of every kind."""


def test_arguments_are_bound_by_name_with_defaults() -> None:
    assert bound_arguments(example, (1,), {}) == {"first": 1, "second": 2, "rest": [], "third": [3], "others": {}}
    found = bound_arguments(example, (1, 5, 6, 7), {"third": None, "more": {"a": True}})
    assert found == {"first": 1, "second": 5, "rest": [6, 7], "third": None, "others": {"more": {"a": True}}}


def test_a_wrong_call_is_the_functions_own_error() -> None:
    with pytest.raises(TypeError, match="missing a required"):
        bound_arguments(example, (), {})


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", float("nan"), {(1, 2): 3}, [object()], {1: 2, "a": 3}])
def test_what_json_cannot_hold_is_left_out_with_one_warning(value: Any) -> None:
    with pytest.warns(CacheLayerWarning, match=r"example: JSON.*'second' \(.*\), 'third' .*not compared") as caught:
        recorded = bound_arguments(example, (1, value), {"third": value})
    assert len(caught) == 1
    assert recorded == {"first": 1, "rest": [], "others": {}}


@pytest.mark.parametrize(
    "name", ["password", "PASSWD", "api_key", "apikey", "access_key_id", "secret", "auth_token", "credentials"]
)
def test_what_is_named_like_a_secret_is_hashed(name: str) -> None:
    found = bound_arguments(example, (1,), {name: "hunter2", "nested": [{name: ["hunter2"]}]})
    assert "hunter2" not in repr(found)
    assert found["others"][name].startswith("sha256:")
    other = bound_arguments(example, (1,), {name: "hunter3"})
    assert other["others"][name] != found["others"][name]


def test_a_mismatch_shows_both_and_only_what_is_known_of_both() -> None:
    check_arguments("d@v1", None, {"a": 1})
    check_arguments("d@v1", {"a": 1, "old": 2}, {"a": 1, "new": 3})
    with pytest.raises(ArgumentsMismatchError, match=r"d@v1 .*'?a'? was 1 and is 2; b was None and is \[3\]"):
        check_arguments("d@v1", {"a": 1, "b": None, "c": 4}, {"a": 2, "b": [3], "c": 4})


@pytest.mark.parametrize(
    "metadata", [{"a": object()}, {"a": float("inf")}, {"a": {1}}, {(1,): 2}, {"a": b""}, 3, "text"]
)
def test_metadata_that_json_cannot_hold_is_refused(metadata: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="metadata"):
        checked_metadata(metadata)


def test_metadata_is_stored_as_json_gives_it_back() -> None:
    inner = [1, 2]
    stored = checked_metadata({"a": (1, None), "b": inner})
    inner.append(3)
    assert stored == {"a": [1, None], "b": [1, 2]}
    assert checked_metadata(None) == {}


def test_the_environment_names_the_libraries_that_wrote_it() -> None:
    found = environment()
    assert set(found["libraries"]) == {"cachelayer", "array_record", "numpy", "ml_dtypes"}
    assert "unknown" not in found["libraries"].values()


def test_the_git_commit_of_a_checkout_is_known(tmp_path: Path) -> None:
    assert git_commit(tmp_path) is None
    assert git_commit(tmp_path / "nowhere") is None
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    (tmp_path / "inner").mkdir()
    assert git_commit(tmp_path / "inner") == head


def test_the_code_of_a_function_has_a_fingerprint() -> None:
    def other() -> None:
        """Another function."""

    found = code_of(example)
    assert found["function"] == f"{__name__}.example"
    assert found["code"] is not None
    assert found["code"] != code_of(other)["code"]
    assert code_of(partial(example, 1))["code"] is None
    assert code_of(eval("lambda: 3"))["code"] is None


def test_the_warning_points_at_the_call(tmp_path: Any) -> None:
    import cachelayer

    @cachelayer.Storage(tmp_path).cacheable("d", "v1")
    def rows(thing: Any) -> list[int]:
        return [1]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rows(object())
    assert [warning.filename for warning in caught] == [__file__]
