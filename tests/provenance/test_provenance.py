"""What is recorded of a call and of a build, and compared."""

import functools
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from repository import ROOT

import cachelayer
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.recipe import Recipe, name_of
from cachelayer.cli.this_machine import pictures
from cachelayer.provenance.environment import checked_out, commit_of
from cachelayer.provenance.function_code import code_file
from cachelayer.provenance.stored_values import Wording, differences
from cachelayer.support.credentials_in_urls import without_credentials


def example(first: Any, /, second: Any = 2, *rest: Any, third: Any = (3,), **others: Any) -> None:
    """A function with parameters of every kind."""


def call(function: Any, *args: Any, **kwargs: Any) -> Recipe:
    return Recipe.of(functools.partial(function, *args, **kwargs), BuildOptions.of({}), is_call=True)


def test_arguments_are_bound_by_name_with_defaults_and_those_of_partial_functions() -> None:
    found = call(example, 1, 5, 6, 7, third=None, more={"a": True}).values
    assert found == {"first": 1, "second": 5, "rest": (6, 7), "third": None, "more": {"a": True}}
    part = functools.partial(functools.partial(example, 1, third=4), 5)
    assert call(part, 6, third=7).values == {"first": 1, "second": 5, "rest": (6,), "third": 7}
    assert name_of(part) == f"{__name__}.example"
    with pytest.raises(TypeError, match="missing a required"):
        call(example)


HIDDEN = ["hunter2", "", ["hunter2"], {"a": 1}, b"hunter2", {1, "a"}, float("nan"), 2**64, Path("a"), [0] * 101]


def test_numbers_are_stored_as_they_are_and_of_any_other_value_a_short_hash() -> None:
    def stored(value: Any) -> Any:
        return call(example, value).facts["arguments"]["first"]

    for value in (0, -3, 0.5, True, None, [1, [2.5, None]], []):
        assert stored(value) == value
    for value in HIDDEN:
        assert re.fullmatch("hash:[0-9a-f]{6}", stored(value))
        assert stored(value) == stored(value) != stored([value, "x"])


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://user:hunter2@host/x?sig=hunter2", "s3://host/x"),
        ("postgresql://etl:hun/ter2@host:5432/db", "postgresql://host:5432/db"),
        ("postgresql://etl:hun ter2@host/db?password=hun ter2", "postgresql://host/db"),
        ("gs://bucket/digits@v1", "gs://bucket/digits@v1"),
        ("http://host:80/a@b", "http://host:80/a@b"),
        ("me@home?", "me@home?"),
        ("at 10:00 @home", "at 10:00 @home"),
        ("abfs://box@account.dfs.core.windows.net/a", "abfs://box@account.dfs.core.windows.net/a"),
        ("https://u:p@hunter2@h/x", "https://h/x"),
        ("https://u:p@hun/ter2@h/x", "https://h/x"),
        ("https://hun@ter2@h/a@b", "https://h/a@b"),
        ("https://@u:p/hunter2@h", "https://h"),
        ("https://u:p?hunter2@h", "https://h"),
        ("s3:/key:hunter2@bucket", "s3:/bucket"),
        ("https:///u:hunter2@h", "https:///h"),
        ("https:\\\\u:hunter2@h", "https:\\\\h"),
        ("//u:hunter2@h/x", "//h/x"),
        ("u:hunter2@h:8/x", "h:8/x"),
        ("https:u:hunter2@h", "h"),
        ("https:/h/x?sig=hunter2", "https:/h/x"),
        ("see https://u:p@hunter2@h", "see https://h"),
        ("s3://key:a/hunter2", "s3://"),
        ("https://[::1]:80/a", "https://[::1]:80/a"),
    ],
)
def test_what_is_recorded_in_clear_loses_users_passwords_and_queries_of_urls(url: str, expected: str) -> None:
    assert without_credentials(url) == expected


def test_changes_name_both_values_if_both_are_known() -> None:
    def rows(a: int, b: Any = None, name: str = "x") -> None: ...

    def made(*args: Any) -> Recipe:
        return call(rows, *args)

    built = made(1, None, "y").facts
    assert made(2).argument_changes({}) == made(2).argument_changes({"arguments": {"a": 2, "old": 2}}) == []
    assert made(2, [3], "y").argument_changes(built) == ["a was 1 and is 2", "b was None and is [3]"]
    assert made(1).argument_changes(built) == ["name changed"]


def test_differences_between_two_plans_are_named_with_both_values() -> None:
    one = {"shard_bytes": 100, "code": {"functions": {"rows": "hash:a", "helper": "hash:b"}}, "arguments": {"size": 3}}
    other = {"shard_bytes": 200, "code": {"functions": {"rows": "hash:c"}}, "arguments": {"size": 4, "text": "x" * 999}}
    found = differences(one, other, Wording.AMONG_HOSTS)
    expected = ["shard_bytes is 100 here and 200 there", "rows differs", "helper is only here"]
    assert found == [*expected, "arguments.size is 3 here and 4 there", "arguments.text is only there"]
    assert differences(one, one, Wording.AMONG_HOSTS) == []
    [cut] = differences({"a": "x" * 1000}, {"a": "y" * 1000}, Wording.AMONG_HOSTS)
    assert len(cut) < 250


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A checkout with one file in its one commit."""
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "code.py").write_text("def rows(): return [1, 2]\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def git(folder: Path, *command: str) -> str:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    line = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *command]
    return subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_of_a_checkout_is_known_wherever_git_keeps_it(repository: Path, tmp_path: Path) -> None:
    file, head = repository / "inner" / "code.py", git(repository, "rev-parse", "HEAD")
    assert checked_out(file) == head
    git(repository, "pack-refs", "--all")
    assert checked_out(file) == head
    other = tmp_path / "other"
    git(repository, "worktree", "add", "-q", "-b", "another", str(other))
    git(other, "commit", "-q", "--allow-empty", "-m", "second")
    assert checked_out(other / "inner" / "code.py") == git(other, "rev-parse", "HEAD") != head
    git(repository, "checkout", "-q", "--detach")
    assert checked_out(file) == head
    (repository / ".git" / "HEAD").write_text("ref: refs/heads/gone")
    assert checked_out(file) is None


def test_a_version_names_the_commit_of_the_function_that_made_it(repository: Path, tmp_path: Path) -> None:
    file, names = repository / "inner" / "code.py", dict[str, Any](__name__="code")
    exec(compile(file.read_text(), str(file), "exec"), names)
    storage = cachelayer.Storage(tmp_path / "storage")
    for ref in (storage.cache(names["rows"], "d@cached"), storage.cacheable("d@called")(names["rows"])()):
        assert ref.provenance["git_commit"] == git(repository, "rev-parse", "HEAD")
        assert ref.provenance["function"] == "code.rows"
        assert ref.provenance["code"]["functions"].keys() == {"rows"}


def test_what_the_user_did_not_write_has_the_commit_of_the_users_program_or_none(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = {"git_commit": None}
    head = git(repository, "rev-parse", "HEAD")
    library, program = Path(cachelayer.__file__), repository / "inner" / "code.py"
    for source in ([1, 2], len, pictures, functools.partial(pictures, 3)):
        monkeypatch.setattr(sys.modules["__main__"], "__file__", str(library), raising=False)
        assert commit_of(code_file(source)) == nothing
        monkeypatch.setattr(sys.modules["__main__"], "__file__", str(program), raising=False)
        assert commit_of(code_file(source)) == {"git_commit": head}


def test_everything_that_is_known_of_a_build_is_recorded(tmp_path: Path) -> None:
    def rows(count: int) -> list[int]:
        return list(range(count))

    make = cachelayer.Storage(tmp_path).cacheable("d@v1", description="rows", metadata={"a": 1})(rows)
    page = (ROOT / "docs" / "format.md").read_text()
    fields = re.findall(r"^- (.*?):", page.split("### Provenance")[1].split("\n## ")[0], re.MULTILINE)
    documented = {name for names in fields for name in re.findall(r"`(\w+)`", names)}
    assert set(make(3).provenance) == documented - {"base", "erasures", "left_out", "compared_in_part", "not_compared"}
