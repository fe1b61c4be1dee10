"""Mistakes at the command line: every command with every kind of them, and what scripts may rely on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import PIPELINE, SCRIPT, document, invoke
from typer.testing import CliRunner

import cachelayer
from cachelayer.cli.app import app

# What follows the address; of `build` and `import` the storage comes behind.
BEHIND: dict[str, Callable[[str], list[str]]] = {
    "build": lambda place: ["pipeline.py:rows", place, "--id", "d", "--version", "v1"],
    "import": lambda place: ["people.csv", place, "--id", "d", "--version", "v1"],
    "ls": lambda place: [place],
    "log": lambda place: [place],
    "show": lambda place: [place],
    "head": lambda place: [place],
    "sample": lambda place: [place],
    "stats": lambda place: [place],
    "verify": lambda place: [place],
    "diff": lambda place: [place, place],
    "tag": lambda place: [place, "best"],
    "cp": lambda place: [place, "copy"],
    "mirror": lambda place: [place],
    "rm": lambda place: [place, "--yes"],
    "gc": lambda place: [place],
    "doctor": lambda place: [place],
}
OF_A_STORAGE = {"build", "import", "gc", "doctor"}
BAD_PLACES = {
    "a file": "file.txt",
    "in a file": "file.txt/rows@v1",
    "nothing there": "nowhere/rows@v1",
    "no such dataset": "cache/rowz@v1",
    "no such version": "cache/rows@v9",
    "no name": "cache/r ws@v1",
    "no scheme": "ftpx://bucket/rows@v1",
    "no URL": "gs:///rows@v1",
    "empty": "",
    "a null": "cache/ro\0ws@v1",
    "too long": f"cache/{'r' * 300}@v1",
    "half a character": "cache/ro\udcffws@v1",
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("here")
    cachelayer.Storage(folder / "cache").submit([{"n": 1.5}, {"n": float("nan")}], "rows", "v1")
    (folder / "file.txt").write_text("hello")
    (folder / "people.csv").write_text("name,age\nAda,36\n")
    (folder / "pipeline.py").write_text(PIPELINE)
    return folder


# A storage may be made where there is nothing.
MISTAKES = [
    pytest.param(name, place, id=f"{name}-{kind}")
    for name in BEHIND
    for kind, place in BAD_PLACES.items()
    if name not in OF_A_STORAGE or not place.startswith(("cache/", "nowhere"))
]


def written(folder: Path) -> list[Path]:
    """What a folder holds, but not what Python compiles there."""
    return sorted(path for path in folder.iterdir() if path.name != "__pycache__")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "place"), MISTAKES)
def test_a_mistake_is_one_error_and_never_a_success(
    name: str, place: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here)
    before = written(here)
    for options in ([], ["--json"]):
        result = CliRunner().invoke(app, [name, *BEHIND[name](place), *options])
        said = result.stderr.splitlines()
        if name == "doctor" and result.exit_code == 1:
            continue
        assert result.exit_code in (2, 3), (result.exit_code, result.output)
        assert result.stdout == ""
        assert "Traceback" not in result.stderr
        assert "a bug in cachelayer" not in result.stderr
        assert sum(line.startswith("error: ") for line in said) == 1 or "Usage:" in result.stderr
    assert written(here) == before


@pytest.mark.parametrize("name", sorted(set(BEHIND) - OF_A_STORAGE - {"ls"}))
def test_a_name_that_is_nearly_right_is_suggested(name: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    said = CliRunner().invoke(app, [name, *BEHIND[name]("cache/rowz" + "@v1" * (name != "log"))]).stderr
    assert "rows" in said


def test_ls_says_what_is_no_storage(here: Path) -> None:
    for name in ("file.txt", "cache/rowz"):
        assert name in invoke("ls", here / name, code=2).stderr


def whole(value: Any) -> None:
    """No text in a document is cut short."""
    if isinstance(value, dict):
        for each in value.values():
            whole(each)
    elif isinstance(value, list):
        for each in value:
            whole(each)
    else:
        assert not (isinstance(value, str) and value.endswith(("...", "…"))), value


READING = ["ls", "log", "show", "head", "sample", "stats", "verify", "diff", "mirror"]


def strict(text: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("name", READING)
def test_documents_are_strict_json_and_hold_whole_values(name: str, here: Path) -> None:
    place = str(here / "cache" / "rows") + "@v1" * (name not in ("ls", "log"))
    found = strict(invoke(name, *BEHIND[name](place), "--json").stdout)
    whole(found)
    ref = cachelayer.open(str(here / "cache" / "rows@v1"))
    if isinstance(found, dict) and "reference" in found:
        assert found["reference"] == ref.reference


def test_a_document_is_the_same_whatever_the_terminal(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = document("show", here / "cache/rows")
    for name, value in {"COLUMNS": "20", "NO_COLOR": "1", "FORCE_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
        assert document("show", here / "cache/rows") == plain


@pytest.mark.parametrize("columns", ["1", "20"])
@pytest.mark.parametrize("name", ["ls", "show", "stats"])
def test_tables_fit_a_narrow_terminal(name: str, columns: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    place = str(here / "cache" / "rows") + "@v1" * (name not in ("ls", "log"))
    assert "Traceback" not in invoke(name, *BEHIND[name](place)).output


def test_no_color_is_kept(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    for arguments, code in ((("ls", here / "cache"), 0), (("ls", here / "file.txt"), 2)):
        assert "\x1b[3" not in invoke(*arguments, code=code).output


@pytest.mark.slow
def test_a_reader_that_leaves_ends_a_command_in_silence(here: Path) -> None:
    command = f"{SCRIPT} log cache/rows --json 2>err | true; echo ${{PIPESTATUS[0]}}"
    assert os.waitstatus_to_exitcode(os.system(f"cd {here} && bash -c '{command}' > code")) == 0
    assert (here / "err").read_text() == ""
    assert (here / "code").read_text() in ("0\n", "1\n", "141\n")
    for name in ("err", "code"):
        (here / name).unlink()
