"""What all commands of the command line have in common, through the installed script."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from absent import OPTIONAL
from commands import PIPELINE, document, invoke, refused, script
from commands_imported import COMMANDS as IMPORTED
from typer.testing import CliRunner

import cachelayer
from cachelayer.cli.addresses import Address, nbytes, seconds, storage_options
from cachelayer.cli.app import PANELS
from cachelayer.cli.command import command
from cachelayer.cli.output import Answer, count
from cachelayer.drawing.text import size

COMMANDS = sorted(IMPORTED)
FRAMEWORKS = sorted(OPTIONAL)
OF_THE_LIST = ["cachelayer", "cachelayer.cli", "cachelayer.cli.app", "cachelayer.cli.output", "cachelayer.errors"]
HEAVY = {"array_record", "asyncio", "fsspec", "importlib.metadata", "numpy", "tqdm", "zstandard"}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with a module of sources and a storage `cache` that has one version."""
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    cachelayer.Storage(tmp_path / "cache").submit([{"n": number} for number in range(10)], "d", "v1")
    return tmp_path


def test_the_commands_are_those_of_the_plan() -> None:
    planned = "build import ls log show head sample stats verify diff tag cp mirror rewrite rm gc doctor demo"
    assert set(planned.split()) <= set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_an_example_and_the_shared_options(name: str) -> None:
    text = invoke(name, "--help").stdout
    assert f"$ cachelayer {name}" in text
    assert "--json" in text
    assert "--traceback" in text


@pytest.mark.slow
def test_help_of_all_names_each_command_and_the_exit_codes(tmp_path: Path) -> None:
    text = script("--help", cwd=tmp_path).stdout
    assert all(f" {name} " in text for name in COMMANDS)
    assert "Exit codes: 0 success, 1 a finding" in text
    assert "--install-completion" in text
    assert script("--version", cwd=tmp_path).stdout == f"cachelayer {cachelayer.__version__}\n"


@pytest.mark.slow
def test_the_command_line_loads_no_framework() -> None:
    support = str(Path(__file__).parents[1] / "support")
    code = (
        f"import sys; sys.path.append({support!r}); import commands_imported; "
        f"print([name for name in {FRAMEWORKS} if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_the_list_of_commands_imports_none_of_them() -> None:
    code = (
        "import sys; from cachelayer.cli import main; sys.argv = ['cachelayer', '--help']\n"
        "try: main()\n"
        "finally: print('imported:', *sorted(sys.modules))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    imported = shown.partition("imported: ")[2].split()
    assert "typer" in imported
    assert [name for name in imported if name.startswith("cachelayer")] == OF_THE_LIST
    assert HEAVY.isdisjoint(imported)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_of_a_command_what_its_own_help_says_first(name: str) -> None:
    [(_, summary)] = [commands[name] for commands in PANELS.values() if name in commands]
    assert " ".join(IMPORTED[name].help.replace("\\[", "[").split()).startswith(summary)


def test_a_shell_is_told_how_to_complete(tmp_path: Path) -> None:
    completing = {"_CACHELAYER_COMPLETE": "complete_bash", "COMP_WORDS": "cachelayer ver", "COMP_CWORD": "1"}
    assert script(cwd=tmp_path, environment=completing).stdout.split() == ["verify"]


@pytest.mark.needs("tensorflow")
def test_the_script_works_from_build_to_removal(here: Path) -> None:
    built = script("build", "pipeline:rows", "cache", "--id", "rows", "--version", "v1", cwd=here)
    assert "rows@v1 published: 10 records" in built.stdout
    assert "rows" in script("ls", "cache", cwd=here).stdout
    assert "publish" in script("log", "cache/rows", cwd=here).stdout
    assert "number: ArraySpec(float64)" in script("show", "cache/rows", cwd=here).stdout
    assert script("verify", "cache/rows", cwd=here).stdout.startswith("rows@v1: all is well: 10 records in 1 shard")
    script("tag", "cache/rows", "best", cwd=here)
    script("cp", "cache/rows@best", "other", cwd=here)
    assert "data:    the same" in script("diff", "cache/rows", "other/rows", cwd=here).stdout
    assert "1 of 1 shard" in script("mirror", "other/rows", cwd=here).stdout
    script("rm", "other/rows@v1", "--yes", cwd=here)
    assert script("gc", "other", cwd=here).stdout == "0 build attempts deleted\n"
    assert "refuses to put another over it" in script("doctor", "other", cwd=here).stdout
    (here / "people.csv").write_text("name,age\nAda,36\n")
    imported = script("import", "people.csv", "cache", "--id", "people", "--version", "v1", cwd=here)
    assert "people@v1 published: 1 record," in imported.stdout


@pytest.mark.slow
def test_json_is_one_document_and_nothing_else_is_on_stdout(here: Path) -> None:
    built = script("build", "pipeline:prints", "cache", "--id", "p", "--version", "v1", "--json", cwd=here)
    assert json.loads(built.stdout)["records"] == 2
    assert "printed by the source" in built.stderr
    again = script("build", "pipeline:prints", "cache", "--id", "q", "--version", "v1", cwd=here)
    assert "printed by the source" in again.stdout
    failed = script("show", "cache/nothing", "--json", cwd=here, code=2)
    assert (failed.stdout, failed.stderr[:7]) == ("", "error: ")


@pytest.mark.slow
def test_what_the_output_has_no_bytes_for_is_shown_as_its_escape(here: Path) -> None:
    metadata = {"half": "\ud800", "whole": "näïve"}
    cachelayer.Storage(here / "cache").submit([1], "told", "v1", metadata=metadata)
    assert document("show", here / "cache/told")["provenance"]["metadata"] == metadata
    assert r"half = \ud800" in script("show", "cache/told", cwd=here).stdout
    cachelayer.Storage(here / "cache").submit(["näïve"], "texts", "v1")
    assert '"näïve"' in invoke("head", here / "cache/texts", "--json").stdout
    shown = script("head", "cache/texts", "--json", cwd=here, environment={"PYTHONIOENCODING": "ascii"}).stdout
    assert json.loads(shown)[0]["element"] == "näïve"


@pytest.mark.slow
def test_the_demo_proves_its_claim(tmp_path: Path) -> None:
    ended = script("demo", "digits", "--json", cwd=tmp_path)
    assert json.loads(ended.stdout) == {"proved": True}
    assert cachelayer.Storage(tmp_path / "digits").datasets() == ["digits"]


def test_exit_codes_tell_findings_mistakes_and_failures_apart(here: Path, tmp_path: Path) -> None:
    cache = here / "cache"
    refused("ls", here / "nowhere", code=2)
    assert "Missing argument" in invoke("ls", code=2).stderr
    (shard,) = cache.rglob("*.array_record")
    raw = bytearray(shard.read_bytes())
    raw[raw.index((7).to_bytes(8, "little"))] ^= 1
    shard.write_bytes(raw)
    assert "shard-00000" in invoke("verify", cache / "d", code=1).stdout
    (manifest,) = cache.rglob("manifest.json")
    manifest.write_text("{}")
    assert "manifest.json: changed after" in refused("show", cache / "d", code=3)


@command("cachelayer broken")
def broken() -> Answer:
    """Divide by zero."""
    return Answer(1 // 0)


def test_a_mistake_of_ours_is_no_finding() -> None:
    own = typer.Typer()
    own.command()(broken)
    result = CliRunner().invoke(own, [])
    assert result.exit_code == 4
    assert "ZeroDivisionError" in result.stderr
    assert "please report" in result.stderr


def test_traceback_shows_where(here: Path) -> None:
    text = invoke("show", here / "cache/nothing", "--traceback", code=2).stderr
    assert "Traceback (most recent call last)" in text
    assert "error: no dataset 'nothing'" in text


def test_warnings_are_a_line(here: Path) -> None:
    options = ("--id", "m", "--version", "v1", "--on-error", "skip")
    ended = script("build", "pipeline:mixed", "cache", *options, cwd=here)
    assert "warning: " in ended.stderr
    assert "CacheLayerWarning" not in ended.stderr


def test_tables_in_a_pipe_are_not_cut(here: Path) -> None:
    name = "a-very-long-name-of-a-dataset-" * 4
    cachelayer.Storage(here / "cache").submit([1], name, "v1")
    assert name in script("ls", "cache", cwd=here).stdout


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cache/d", Address("cache", "d")),
        ("cache/d@v1", Address("cache", "d", "v1")),
        ("gs://b/p/d@v1@sha256:ab", Address("gs://b/p", "d", "v1@sha256:ab")),
        ("s3://b/d@sha256:ab[:3]", Address("s3://b", "d", "sha256:ab", slice(None, 3))),
        ("/d@best[1:9:2]", Address("/", "d", "best", slice(1, 9, 2))),
        ("at@home/d", Address("at@home", "d")),
        ("cache/d/", Address("cache", "d")),
    ],
)
def test_addresses_have_parts(text: str, expected: Address) -> None:
    assert Address.parse(text) == expected


@pytest.mark.parametrize("text", ["d", "d@v1", "", "gs://bucket", "s3://bucket/", "@v1"])
def test_addresses_without_a_storage_are_refused(text: str) -> None:
    with pytest.raises(cachelayer.InvalidArgumentError):
        Address.parse(text)


def test_options_are_json_where_they_can_be() -> None:
    typed = ["endpoint_url=http://h:1", "anon=true", "timeout=5", 'client_kwargs={"verify": false}', "key=a=b", "x="]
    assert storage_options(typed) == {
        "endpoint_url": "http://h:1",
        "anon": True,
        "timeout": 5,
        "client_kwargs": {"verify": False},
        "key": "a=b",
        "x": "",
    }
    with pytest.raises(cachelayer.InvalidArgumentError) as refusal:
        storage_options(["hunter2"])
    assert "hunter2" not in str(refusal.value)


def test_a_part_of_a_version_is_refused_where_the_whole_is_meant(here: Path) -> None:
    for name in ("verify", "rm", "cp", "tag"):
        more = {"cp": [here / "to"], "tag": ["best"]}.get(name, [])
        assert "without [...]" in refused(name, f"{here}/cache/d@v1[:3]", *more)
    assert document("show", f"{here}/cache/d@v1[:3]")["records"] == 3


def test_quantities_are_read_and_written_as_people_do() -> None:
    assert [nbytes("--x", text) for text in ("4096", "2kB", "1.5MiB", "1 GB", "3t")] == [
        4096,
        2000,
        3 << 19,
        10**9,
        3 * 10**12,
    ]
    assert [seconds("--x", text) for text in ("90", "2m", "1.5h", "7d")] == [90, 120, 5400, 604800]
    for wrong in ("", "x", "3 apples", "-1", "1e3"):
        with pytest.raises(cachelayer.InvalidArgumentError, match="--x"):
            nbytes("--x", wrong)
    assert [size(number) for number in (0, 999, 1000, 99_949, 999_499, 999_500, 5 * 10**12)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "99.9 kB",
        "999 kB",
        "1.0 MB",
        "5.0 TB",
    ]
    assert [count(60_000), count(1, "shard"), count(2, "shard")] == ["60,000", "1 shard", "2 shards"]
