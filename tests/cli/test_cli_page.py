"""The page on the command line shows what the commands print."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from commands import RUNNER
from repository import ROOT

from cachelayer.cli.app import app
from cachelayer.cli.exit_codes import ExitCode

PAGE = (ROOT / "docs" / "cli.md").read_text()


def is_shown(shown: str, printed: str) -> bool:
    """Whether a command prints what stands on the page: ``...`` stands for anything, and white space for any of it."""
    parts = [re.escape(" ".join(part.split())) for part in shown.split("...")]
    return re.fullmatch(".*".join(parts), " ".join(printed.split())) is not None


@pytest.mark.needs("pyarrow", "PIL")
def test_the_examples_print_what_stands_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "pipeline.py").write_text(program)
    (tmp_path / "people.csv").write_text("name,age\nAda,36\nAlan,41\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "pipeline", raising=False)
    blocks = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    steps = [step for block in blocks for step in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)]
    assert len(steps) > 10
    for number, (command, shown) in enumerate(steps):
        if command == "echo $?":
            continue
        follows = steps[number + 1 : number + 2]
        code = int(follows[0][1]) if follows and follows[0][0] == "echo $?" else None
        name, *arguments = shlex.split(command)
        assert name == "cachelayer"
        result = RUNNER.invoke(app, arguments)
        assert is_shown(shown, result.output), f"{command}\n{result.output}"
        assert result.exit_code == (code or 0), f"{command}\n{result.output}"


def test_every_command_stands_on_the_page() -> None:
    named = set(re.findall(r"`(?:cachelayer )?([a-z-]+)`|cachelayer ([a-z-]+)", PAGE))
    assert set(app.commands) <= {name for pair in named for name in pair}


def test_what_is_shown_is_not_anything() -> None:
    assert is_shown("a ... b\nc", "a  1 2 b\n c\n")
    assert not is_shown("a ... b\nc", "a 1 2 b")
    assert not is_shown("a b", "a b c")


def test_the_exit_codes_are_those_of_the_commands() -> None:
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", PAGE, re.MULTILINE)
    assert rows == [(str(code.value), code.meaning) for code in ExitCode]
