"""The page on the command line shows what the commands print."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from repository import ROOT
from typer.main import get_command
from typer.testing import CliRunner

from cachelayer.cli.app import app

PAGE = (ROOT / "docs" / "cli.md").read_text()


def pattern(shown: str) -> re.Pattern[str]:
    """What a command has to print: ``...`` stands for anything, and so does white space for more of it."""
    parts = [r"\s+".join(map(re.escape, part.split())) for part in shown.split("...")]
    return re.compile(r"\s*" + r"[\s\S]*?".join(rf"\s*{part}\s*" for part in parts) + r"\s*")


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
    assert len(steps) > 15
    for number, (command, shown) in enumerate(steps):
        if command == "echo $?":
            continue
        follows = steps[number + 1 : number + 2]
        code = int(follows[0][1]) if follows and follows[0][0] == "echo $?" else None
        name, *arguments = shlex.split(command)
        assert name == "cachelayer"
        result = CliRunner().invoke(app, arguments)
        assert pattern(shown).fullmatch(result.output), f"{command}\n{result.output}"
        assert result.exit_code == (code or 0), f"{command}\n{result.output}"


def test_every_command_stands_on_the_page() -> None:
    named = set(re.findall(r"`(?:cachelayer )?([a-z]+)`|cachelayer ([a-z]+)", PAGE))
    assert set(get_command(app).commands) <= {name for pair in named for name in pair}  # type: ignore[attr-defined]


def test_a_pattern_is_not_satisfied_by_anything() -> None:
    assert pattern("a ... b\nc").fullmatch("a  1 2 b\n c\n")
    assert not pattern("a ... b\nc").fullmatch("a 1 2 b")
    assert not pattern("a b").fullmatch("a b c")
