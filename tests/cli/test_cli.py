"""What all commands of the command line have in common."""

import inspect
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
from commands import PIPELINE, RUNNER, SCRIPT, document, invoke, refused, script
from repository import ROOT

import cachelayer
from cachelayer import errors
from cachelayer.cli.addresses import Address
from cachelayer.cli.app import Commands, app, command
from cachelayer.cli.exit_codes import ExitCode, code_of
from cachelayer.cli.options import NBYTES, SECONDS, Parsed
from cachelayer.cli.output import Result
from cachelayer.drawing.text import counted
from cachelayer.support.progress import size

COMMANDS = sorted(app.commands)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with a module of sources and a storage `cache` that has one version."""
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    cachelayer.Storage(tmp_path / "cache").submit([{"n": number} for number in range(10)], "d@v1")
    return tmp_path


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_an_example_and_the_shared_options(name: str) -> None:
    text = invoke(name, "--help").stdout
    examples = re.findall(r"Examples:\s*\n(.*?)\n\s*\n", text, re.DOTALL)[0].splitlines()
    # At 80 columns no example goes on in the next line.
    assert all(line.strip().startswith(f"$ cachelayer {name}") for line in examples), text
    assert "--json" in text
    assert "--traceback" in text


def test_what_takes_long_shows_its_progress_or_nothing() -> None:
    long = {
        "build",
        "import",
        "add-column",
        "cp",
        "repair",
        "mirror",
        "rewrite",
        "erase",
        "gc",
        "stats",
        "verify",
        "diff",
    }
    assert {name for name in COMMANDS if "--progress / --no-progress" in invoke(name, "--help").stdout} == long


@pytest.mark.slow
def test_help_of_all_names_each_command_and_the_exit_codes(tmp_path: Path) -> None:
    text = script("--help", cwd=tmp_path).stdout
    assert all(f" {name} " in text for name in COMMANDS)
    assert "Exit codes: 0 success, 1 a finding" in text
    assert script("--version", cwd=tmp_path).stdout == f"cachelayer {cachelayer.__version__}\n"


@pytest.mark.slow
def test_json_is_one_document_and_nothing_else_is_on_stdout(here: Path) -> None:
    built = script("build", "pipeline:prints", "cache/p@v1", "--json", cwd=here)
    assert json.loads(built.stdout)["records"] == 2
    assert "printed by the source" in built.stderr
    again = script("build", "pipeline:prints", "cache/q@v1", cwd=here)
    assert "printed by the source" in again.stdout
    failed = script("show", "cache/nothing", "--json", cwd=here, code=3)
    assert (failed.stdout, failed.stderr[:7]) == ("", "error: ")


@pytest.mark.slow
def test_the_demo_proves_its_claim(tmp_path: Path) -> None:
    ended = script("demo", "cache", "--json", cwd=tmp_path)
    assert json.loads(ended.stdout)["proved"] is True
    assert cachelayer.Storage(tmp_path / "cache").datasets() == ["pictures"]


def test_exit_codes_tell_findings_mistakes_and_failures_apart(here: Path, tmp_path: Path) -> None:
    cache = here / "cache"
    refused("ls", here / "nowhere", code=3)
    assert "Missing argument" in invoke("ls", code=2).stderr
    (shard,) = cache.rglob("*.array_record")
    raw = bytearray(shard.read_bytes())
    raw[raw.index((7).to_bytes(8, "little"))] ^= 1
    shard.write_bytes(raw)
    assert shard.name in invoke("verify", cache / "d", code=1).stdout
    bad = document("verify", cache / "d", code=1)
    assert (bad["ok"], shard.name in bad["problems"][0]) == (False, True)
    (manifest,) = cache.glob("d/manifests/*.json")
    manifest.write_text("{}")
    assert f"{manifest.name}: changed after" in refused("show", cache / "d", code=5)


def test_every_error_has_the_exit_code_of_its_branch_and_the_docs_list_them() -> None:
    tree = {cls for cls in vars(errors).values() if inspect.isclass(cls) and issubclass(cls, errors.CacheLayerError)}
    codes = {cls: code_of(cls.__new__(cls)) for cls in tree}
    expected = {
        ExitCode.USAGE: "CacheLayerError InvalidArgumentError InvalidNameError UnknownOptionError InvalidTypeError "
        "MissingDependencyError",
        ExitCode.NOT_FOUND: "NotFoundError DatasetNotFoundError VersionNotFoundError RecordIndexError "
        "ErasedRecordError",
        ExitCode.REFUSED: "RefusedError StaleVersionError ArgumentsMismatchError DigestMismatchError "
        "AlreadyExistsError StateError",
        ExitCode.DAMAGED: "CorruptionError FormatError",
        ExitCode.BUSY: "BusyError BuildRevokedError",
        ExitCode.STORAGE: "StorageError",
        ExitCode.SOURCE: "SourceError ElementError",
    }
    assert codes == {getattr(errors, name): code for code, names in expected.items() for name in names.split()}
    assert code_of(ZeroDivisionError()) is ExitCode.BUG
    listed = re.findall(r"^\| (\d+) \| ", (ROOT / "docs/cli.md").read_text(), re.MULTILINE)
    assert [*map(int, listed)] == [*ExitCode]


def test_exit_codes_tell_scripts_what_to_do(here: Path) -> None:
    cache = here / "cache"
    cachelayer.Storage(cache).tag("d@v1", "best")
    (here / "wrong.py").write_text(
        "def fails():\n    raise ValueError('no data')\n\n\ndef rows(n=1):\n    return [1] * n\n"
    )
    source = f"{here}/wrong.py"
    document("build", f"{source}:rows", cache / "n@v1")
    for code, arguments in {
        2: ["rm", cache / "d"],
        3: ["show", cache / "e"],
        4: ["rm", cache / "d@v1", "--yes"],
        8: ["build", f"{source}:fails", cache / "f@v1"],
    }.items():
        refused(*arguments, code=code)
    refused("show", cache / "d@v7", code=3)
    refused("show", here / "nowhere/d@v1", code=3)
    refused("erase", cache / "d@v1", "99", "--reason", "r", "--yes", code=3)
    refused("build", f"{source}:rows", cache / "n@v1", "--arg", "n=2", code=4)
    refused("build", f"{source}:none", cache / "n@v2", code=2)
    refused("cp", cache / "d@v1", cache / "n@v1", code=4)


def test_warnings_are_a_line(here: Path) -> None:
    ended = script("build", "pipeline:mixed", "cache/m@v1", "--on-error", "skip", cwd=here)
    assert "warning: " in ended.stderr
    assert "CacheLayerWarning" not in ended.stderr


def test_a_part_of_a_version_is_refused_where_the_whole_is_meant(here: Path) -> None:
    for name in ("verify", "rm", "cp", "tag"):
        more = {"cp": [here / "to"], "tag": ["best"], "rm": ["--yes"]}.get(name, [])
        assert "the whole version" in refused(name, f"{here}/cache/d@v1[:3]", *more)
    assert document("show", f"{here}/cache/d@v1[:3]")["records"] == 3


def test_a_mistake_of_ours_is_no_finding_and_shows_where(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Traceback (most recent call last)" in invoke("show", here / "cache/no", "--traceback", code=3).stderr
    monkeypatch.setattr("cachelayer.cli.app.app", Commands())
    result = RUNNER.invoke(command("divide", "Help")(lambda: Result(1 // 0)), [])
    assert (result.exit_code, "ZeroDivisionError" in result.stderr) == (70, True)


@pytest.mark.slow
def test_what_the_output_has_no_bytes_for_is_shown_as_its_escape(here: Path) -> None:
    metadata = {"half": "\ud800", "whole": "näïve"}
    cachelayer.Storage(here / "cache").submit([1], "told@v1", metadata=metadata)
    assert document("show", here / "cache/told")["provenance"]["metadata"] == metadata
    shown = script("show", "cache/told", cwd=here, environment={"PYTHONIOENCODING": "ascii"}).stdout
    assert r"half = \ud800" in shown
    assert r"na\xefve" in shown or r"n\xe4\xefve" in shown


@pytest.mark.parametrize("text", ["d", "d@v1", "", "gs://bucket", "s3://bucket/", "@v1"])
def test_an_address_without_a_storage_is_refused(text: str) -> None:
    with pytest.raises(cachelayer.InvalidArgumentError):
        Address.open(text)


def read(kind: Parsed, text: str) -> Any:
    return kind.convert(text, None, None)


def test_options_are_json_where_they_can_be() -> None:
    typed = ["endpoint_url=http://h:1", "anon=true", 'client_kwargs={"verify": false}', "key=a=b", "x="]
    expected = {"endpoint_url": "http://h:1", "anon": True, "client_kwargs": {"verify": False}, "key": "a=b", "x": ""}
    arguments = ["cache", *(part for text in typed for part in ("-o", text))]
    assert app.commands["ls"].make_context("ls", arguments).params["option"] == expected
    assert "anon is given twice" in refused("ls", "cache", "-o", "anon=true", "-o", "anon=false")
    assert "hunter2" not in refused("ls", "cache", "--option", "hunter2")


def test_quantities_are_read_and_written_as_people_do() -> None:
    sizes = [read(NBYTES, text) for text in ("4096", "2kB", "1.5MiB", "1 GB")]
    assert sizes == [4096, 2000, 3 << 19, 10**9]
    assert [read(SECONDS, text) for text in ("90", "2m", "1.5h", "7d")] == [90, 120, 5400, 604800]
    for wrong in ("", "x", "3 apples", "-1", "1e3"):
        with pytest.raises(click.BadParameter):
            read(NBYTES, wrong)
    shown = [size(number) for number in (0, 999, 1000, 99_949, 999_499, 999_500, 5 * 10**12)]
    assert shown == ["0 B", "999 B", "1.0 kB", "99.9 kB", "999 kB", "1.0 MB", "5.0 TB"]
    assert [counted(60_000, "record"), counted(1, "shard")] == ["60,000 records", "1 shard"]


# What follows the address; of `import` the storage comes behind.
BEHIND: dict[str, list[str]] = {
    "diff": ["cache/rows"],
    "tag": ["best"],
    "cp": ["copy"],
    "rm": ["--yes"],
    **{
        name: []
        for name in ("ls", "log", "show", "head", "sample", "stats", "verify", "mirror", "gc", "doctor", "view")
    },
}
BAD_PLACES = [
    "file.txt", "file.txt/rows@v1", "nowhere/rows@v1", "cache/rowz@v1", "cache/rows@v9", "cache/r ws@v1",
    "ftpx://bucket/rows@v1", "gs:///rows@v1", "", "cache/ro\0ws@v1", f"cache/{'r' * 300}@v1", "cache/ro\udcffws@v1",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", BEHIND)
def test_a_mistake_is_one_error_and_never_a_success(name: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    (here / "file.txt").write_text("hello")
    before = sorted(here.rglob("*"))
    for place in BAD_PLACES:
        result = RUNNER.invoke(app, [name, place, *BEHIND[name], "--json"])
        assert result.exit_code in (2, 3, 7), (place, result.output)
        assert (result.stdout, "Traceback" in result.stderr) == ("", False)
        assert result.stderr.count("error: ") == 1 or "Usage:" in result.stderr
    assert sorted(here.rglob("*")) == before


READING = ["ls", "log", "show", "head", "sample", "stats", "verify", "mirror"]


@pytest.mark.parametrize("name", READING)
def test_documents_are_strict_json_whatever_the_terminal(
    name: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cachelayer.Storage(here / "cache").submit([{"n": 1.5}, {"n": float("nan")}], "rows@v1")

    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is no JSON")

    plain = invoke(name, here / "cache/rows", "--json").stdout
    json.loads(plain, parse_constant=refuse)
    for variable, value in {"COLUMNS": "20", "FORCE_COLOR": "1"}.items():
        monkeypatch.setenv(variable, value)
    assert invoke(name, here / "cache/rows", "--json").stdout == plain
    assert "Traceback" not in invoke(name, here / "cache/rows").output


@pytest.mark.slow
def test_what_was_done_is_never_denied_because_nobody_reads_it(here: Path) -> None:
    storage = cachelayer.Storage(here / "cache")
    changes = {
        "build": "pipeline:rows cache/built@v1",
        "erase": "cache/d@v1 3 --reason r --yes",
        "rm": "cache/d@v1 --yes",
        "log": "cache/d --json",
    }
    for output, code, says in (("| true", 0, ""), ("> /dev/full", 7, "No space left"), (">&-", 7, "it is closed")):
        if "v1" not in storage.versions("d"):
            storage.submit(list(range(10)), "d@v1")
        for name, arguments in changes.items():
            line = f"{SCRIPT} {name} {arguments} 2>err {output}; exit ${{PIPESTATUS[0]}}"
            ended = subprocess.run(["bash", "-c", line], cwd=here, check=False)
            said = (here / "err").read_text()
            assert (ended.returncode, said.count("\n")) == (code, min(code, 1)), (line, said)
            assert says in said
        assert "v1" not in storage.versions("d")
