"""The command line in tests: in this process, which is quick, or as the installed script."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import forks
from click.testing import CliRunner
from optional_packages import is_installed

from cachelayer.cli import main
from cachelayer.cli.app import app

SEPARATED: dict[str, Any] = {} if is_installed("click>=8.2") else {"mix_stderr": False}
RUNNER = CliRunner(**SEPARATED)
"""Keeps errors apart from output, as runners do by default from Click 8.2 on."""
SCRIPT = Path(sys.executable).with_name("cachelayer")

PIPELINE = '''\
"""Sources for tests."""

import warnings
from pathlib import Path


def rows(size: int = 10, name: str = "a", scale: float = 1.0, flag: bool = False, limit: int | None = None):
    """Rows of numbers and names."""
    for number in range(size if limit is None else limit):
        yield {"number": number * scale, "name": name, "flag": flag}


def parts():
    """Rows in two parts; each tells whether it was made in another process than this one."""
    import os

    import cachelayer

    caller = os.getpid()

    def part(index: int, count: int):
        for number in range(index * 5, index * 5 + 5):
            yield {"number": number, "is_elsewhere": os.getpid() != caller}

    return cachelayer.sharded(part, 2)


def mixed():
    return [{"n": 1}, {"n": "two"}, {"n": 3}]


def fails():
    raise ValueError("no data today")


def fails_later():
    yield 1
    raise ValueError("no more data")


def no_source():
    return 7


def exits():
    raise SystemExit(0)


def prints():
    print("printed by the source")
    return [1, 2]


def waits(fifo: str):
    """A row, and then none until somebody writes to the pipe."""
    yield 1
    Path(fifo).read_text()


NUMBER = 3
'''


def invoke(*arguments: object, code: int = 0, stdin: str | None = None) -> Any:
    """Run a command in this process; its exit code has to be this."""
    result = RUNNER.invoke(app, [str(each) for each in arguments], input=stdin)
    assert result.exit_code == code, f"{arguments}: {result.exit_code}\n{result.output}"
    return result


def document(*arguments: object, code: int = 0) -> Any:
    """What a command prints under --json."""
    return json.loads(invoke(*arguments, "--json", code=code).stdout)


def refused(*arguments: object, code: int | None = None) -> str:
    """What a command that fails says: an error on stderr, no traceback, nothing on stdout.

    Its exit code has to be this; by default that of a mistake, of what is not found, refused, or a source that fails.
    """
    result = RUNNER.invoke(app, [str(each) for each in arguments])
    assert result.exit_code in ({2, 3, 4, 8} if code is None else {code}), f"{arguments}: {result.output}"
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return str(result.stderr)


def script(
    *arguments: object, cwd: Path, code: int = 0, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the script in a process of its own; its exit code has to be this.

    It is the installed one if the environment is another than that of the tests; else what that one calls is run by a
    process that has imported it already.
    """
    command = [str(SCRIPT), *(str(each) for each in arguments)]
    if environment is None:
        ended = forks.run(main, command, cwd, os.environ)
    else:
        inherited = {**os.environ, **environment}
        ended = subprocess.run(command, cwd=cwd, env=inherited, capture_output=True, text=True, check=False)
    assert ended.returncode == code, f"{arguments}: {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
    return ended
