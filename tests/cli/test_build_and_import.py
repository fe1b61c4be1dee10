"""`build` and `import`: versions from a function or from files, and what is said where that cannot be."""

import json
import os
import pty
import select
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pytest
from commands import PIPELINE, SCRIPT, document, refused, script

import cachelayer

TARGET = "cache/d@v1"
CONTROL_C = b"\x03"
PARTS = """
def parts():
    import cachelayer

    return cachelayer.sharded(lambda index, count: ({"n": 2 * index + row} for row in range(2)), 2)
"""
TAKES_TERMINAL = "import os, sys; os.open(os.ttyname(0), os.O_RDWR); os.execv(sys.argv[1], sys.argv[1:])"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a module of sources that no other test has loaded."""
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "pipeline", raising=False)
    return tmp_path


def fetched() -> cachelayer.DataRef[Any]:
    return cachelayer.Storage("cache").fetch("d@v1")


def test_options_of_a_build_are_kept() -> None:
    options = ("--compression", "zstd", "--max-records", 7, "--description", "rows", "--metadata", '{"k": [1]}')
    built = document("build", "pipeline:rows", TARGET, *options, "--shard-bytes", "64KiB")
    ref = fetched()
    assert (built["records"], built["published"], built["reference"]) == (7, True, ref.reference)
    assert (ref.metadata, ref.provenance["description"]) == ({"k": [1]}, "rows")
    assert ref.provenance["function"].endswith("pipeline.rows")


def test_arguments_have_the_types_that_the_function_says() -> None:
    typed = ("--arg", "size=3", "--arg", "name=7", "--arg", "scale=2", "--arg", "flag=true", "--arg", "limit=null")
    document("build", "pipeline.py:rows", TARGET, *typed)
    ref = fetched()
    arguments = {**ref.provenance["arguments"], "name": "7"}
    assert arguments == {"size": 3, "name": "7", "scale": 2.0, "flag": True, "limit": None}
    assert ref[2] == {"number": 4.0, "name": "7", "flag": True}


def test_a_version_that_is_there_is_not_built_again() -> None:
    first = document("build", "pipeline:rows", TARGET)
    again = document("build", "pipeline:rows", TARGET)
    assert (first["published"], again["published"]) == (True, False)
    assert again["digest"] == first["digest"]
    text = refused("build", "pipeline:rows", TARGET, "--arg", "size=11")
    assert "size was 10 and is 11" in text


@pytest.mark.parametrize("options", [(), ("--workers", 2), ("--engine", "processes")], ids=str)
@pytest.mark.slow
def test_the_parts_of_a_source_are_built_where_it_is_asked_for(here: Path, options: tuple[object, ...]) -> None:
    script("build", "pipeline:parts", TARGET, *options, cwd=here)
    assert list(fetched()) == [{"number": number, "is_elsewhere": bool(options)} for number in range(10)]


def test_a_file_finds_the_modules_beside_it(here: Path) -> None:
    (here / "deep").mkdir()
    (here / "deep" / "beside.py").write_text("ROWS = [1, 2, 3]")
    (here / "deep" / "uses.py").write_text(
        "import beside\n\nclass Source:\n    rows = staticmethod(lambda: beside.ROWS)"
    )
    assert document("build", "deep/uses.py:Source.rows", TARGET)["records"] == 3


@pytest.mark.parametrize("name", ["random.py", "json.py", "calendar.py", "numpy.py", "my.rows.py"])
def test_a_file_may_have_the_name_of_a_module_that_python_has(here: Path, name: str) -> None:
    (here / "deep").mkdir()
    (here / "deep" / "beside.py").write_text("ROWS = [1, 2, 3]")
    (here / "deep" / name).write_text("import beside\n\ndef choice():\n    return beside.ROWS\n\n" + PARTS)
    assert document("build", f"deep/{name}:choice", TARGET)["records"] == 3
    document("build", f"deep/{name}:parts", "cache/parts@v1", "--workers", 2)
    assert [row["n"] for row in cachelayer.Storage("cache").fetch("parts")] == list(range(4))


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("pipeline:row", "no attribute 'row'"),
        ("pipeline:NUMBER", "is a int"),
        ("pipeline:no_source", "int 7 is not a source"),
        ("pipeline:exits", "called sys.exit(0)"),
        ("pipeline:fails", "no data today"),
        ("pipeline:fails_later", "no more data"),
        ("unreadable:rows", "SyntaxError"),
        ("nowhere.deep:rows", "No module named 'nowhere'"),
        ("nowhere.py:rows", "there is no file"),
        ("random:rows", "random.py:FUNCTION"),
        ("random.py:choice", "no attribute 'choice'"),
        (":rows", "MODULE:FUNCTION"),
    ],
)
def test_what_cannot_be_built_is_said(here: Path, function: str, says: str) -> None:
    (here / "unreadable.py").write_text("def rows(:\n")
    (here / "random.py").write_text("")
    assert says in refused("build", function, TARGET)
    assert cachelayer.Storage("cache").datasets() == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--arg", "sise=3"), "'sise'"),
        (("--arg", "size=ten"), "--arg size: expected int, got 'ten'"),
        (("--arg", "size"), "NAME=VALUE"),
        (("--arg", "size=3", "--arg", "size=4"), "--arg size is given twice"),
        (("--option", "a=3", "-o", "a=4"), "--option a is given twice"),
        (("--workers", 0), "--workers"),
        (("--max-records", -1), "--max-records"),
        (("--local-cache", ""), "--local-cache"),
        (("--compression", "gzip"), "gzip"),
        (("--shard-bytes", "much"), "'much'"),
        (("--metadata", "[1]"), "metadata must be a dict"),
        (("--engine", "spark"), "'spark'"),
        (("--on-error", "ignore"), "'ignore'"),
    ],
)
def test_options_that_cannot_be_are_refused(options: tuple[str, ...], says: str) -> None:
    assert says in refused("build", "pipeline:rows", TARGET, *options)


@pytest.mark.parametrize("command", [("build", "pipeline:rows"), ("import", "people.csv")])
def test_what_is_built_needs_a_storage_an_id_and_a_version(here: Path, command: tuple[str, str]) -> None:
    (here / "people.csv").write_text("name,age\nAda,36\n")
    for target, says in (("cache/d@latest", "reserved"), ("cache/d", "'d@<version>'"), ("d@v1", "'d@v1'")):
        assert says in refused(*command, target)
    assert not (here / "cache").exists()


@contextmanager
def at_a_terminal(*arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """The script with a terminal of its own, and the other end of that terminal."""
    leader, terminal = pty.openpty()
    command = [sys.executable, "-c", TAKES_TERMINAL, str(SCRIPT), *arguments]
    with ExitStack() as stack:
        end = stack.enter_context(os.fdopen(leader, "r+b", buffering=0))
        try:
            termios.tcsetwinsize(terminal, (24, 100))
            child = subprocess.Popen(command, start_new_session=True, stdin=terminal, stdout=terminal, stderr=terminal)
        finally:
            os.close(terminal)
        stack.enter_context(child)
        stack.callback(child.kill)
        yield child, end


def all_of(end: IO[bytes]) -> str:
    """What was printed until nobody has the terminal open."""
    text = b""
    with suppress(OSError):
        while select.select([end], [], [], 60)[0] and (part := end.read(4096)):
            text += part
    return text.decode()


@pytest.mark.slow
def test_control_c_in_a_build_leaves_no_version_and_says_how_to_go_on(here: Path) -> None:
    os.mkfifo(here / "pipe")
    waits = ("build", "pipeline:waits", TARGET, "--arg", "fifo=pipe")
    with at_a_terminal(*waits) as (child, end), (here / "pipe").open("w"):
        end.write(CONTROL_C)
        text = all_of(end)
        assert child.wait(60) == 130
    assert "run the same command again" in text
    assert "Traceback" not in text
    assert cachelayer.Storage("cache").datasets() == []
    assert not [path for path in here.rglob("cache/d/*") if path.is_file()]
    (here / "pipe").unlink()
    (here / "pipe").write_text("")
    script(*waits, cwd=here)
    assert len(fetched()) == 1


@pytest.mark.slow
def test_at_a_terminal_build_shows_progress_and_rm_asks() -> None:
    with at_a_terminal("build", "pipeline:rows", TARGET, "--arg", "size=5000") as (child, end):
        text = all_of(end)
        assert child.wait(60) == 0
    assert "records/s" in text
    assert "5,000 records" in text
    for answer, code in ((b"n\n", 130), (b"y\n", 0)):
        with at_a_terminal("rm", TARGET) as (child, end):
            end.write(answer)
            text = all_of(end)
            assert "Delete d@v1" in text
            assert ("nothing is changed" in text) is (code == 130)
            assert child.wait(60) == code
    assert list(cachelayer.Storage("cache").versions("d")) == []


@pytest.mark.needs("pyarrow")
def test_files_are_imported_by_what_their_names_tell(here: Path) -> None:
    (here / "rows.csv").write_text("n,name\n1,a\n2,b\n3,c\n")
    (here / "rows.jsonl").write_text('{"n": 1}\n{"n": 2}\n{"n": 3}\n')
    (here / "photos" / "cat").mkdir(parents=True)
    (here / "photos" / "cat" / "0.txt").write_bytes(b"data")
    for version, place, kind, records in (("v1", "rows.csv", "csv", 3), ("v2", "photos", "files", 1)):
        chosen = ("--format", kind) if kind == "files" else ()
        assert document("import", place, f"cache/d@{version}", *chosen)["records"] == records
        assert cachelayer.Storage("cache").fetch(f"d@{version}").metadata == {"format": kind, "files": [place]}
    assert document("import", "rows.csv", TARGET)["published"] is False
    assert "files changed" in refused("import", "rows.jsonl", TARGET)
    assert "metadata" in refused("import", "rows.csv", "cache/d@v3", "--metadata", "text", code=2)
    document("import", "rows.csv", "cache/d@v3", "--metadata", '{"by": "me"}')
    metadata = cachelayer.Storage("cache").fetch("d@v3").metadata
    assert metadata == {"format": "csv", "files": ["rows.csv"], "by": "me"}
    refused("import", "rows.csv", "rows.jsonl", TARGET)
    refused("import", "rows.csv", TARGET, "--format", "excel")
    assert "none.csv" in refused("import", "none.csv", "cache/d@v4")


@pytest.mark.needs("pyarrow")
def test_fields_of_files_get_the_types_that_are_named(here: Path) -> None:
    (here / "rows.csv").write_text("n,score,name,flag\n1,0.5,a,true\n2,,b,false\n")
    (here / "rows.jsonl").write_text('{"n": 1, "meta": {"at": 3, "x": 1}}\n')
    types = ("--type", "score=float32", "--type", "n=int", "--type", "flag=bool")
    document("import", "rows.csv", TARGET, *types, "--no-progress")
    first, second = fetched()
    assert first == {"n": 1, "score": 0.5, "name": "a", "flag": True}
    assert second == {"n": 2, "score": None, "name": "b", "flag": False}
    assert fetched().element_spec["score"].dtype == "float32"
    document("import", "rows.jsonl", "cache/e@v1", "--type", "meta/at=int16", "--hosts", "0/1")
    assert cachelayer.Storage("cache").fetch("e@v1").element_spec["meta"]["at"].dtype == "int16"
    for wrong in ("score", "score=real", "=int64", "none=int64", "name=int64", "name=bool"):
        refused("import", "rows.csv", "cache/f@v1", "--type", wrong)
    twice = ("--type", "n=int8", "--type", "n=int16")
    assert "--type n is given twice" in refused("import", "rows.csv", "cache/f@v1", *twice)


@pytest.mark.parametrize("command", [("build", "pipeline:parts"), ("rewrite", "cache/whole@v1")])
def test_hosts_build_together(here: Path, command: tuple[str, str]) -> None:
    name = "v2" if command[0] == "rewrite" else "cache/whole@v2"
    document("build", "pipeline:rows", "cache/whole@v1")
    with ExitStack() as stack:
        arguments = [str(SCRIPT), *command, name, "--json", "--hosts"]
        first, second = (
            stack.enter_context(subprocess.Popen([*arguments, f"{index}/2"], stdout=subprocess.PIPE, text=True))
            for index in range(2)
        )
        digests = {json.loads(child.communicate(timeout=60)[0])["digest"] for child in (first, second)}
    assert len(digests) == 1
    for wrong in ("2/2", "1", "a/b", "0/0"):
        assert "INDEX/COUNT" in refused(*command, name, "--hosts", wrong)


@pytest.mark.needs("pyarrow")
def test_columns_are_added_by_a_function_or_by_a_table_with_a_key(here: Path) -> None:
    (here / "scores.py").write_text("def double(element):\n    return {'double': element['x'] * 2}\n")
    (here / "labels.jsonl").write_text("".join(f'{{"x": {n}, "label": {n % 3}}}\n' for n in reversed(range(20))))
    (here / "few.jsonl").write_text('{"x": 2, "label": 5}\n{"x": 100, "label": 6}\n')
    cachelayer.Storage("cache").cache([{"x": n} for n in range(10)], "d@v1")
    document("add-column", "cache/d@v1", "scores.py:double", "--new", "v2")
    document("add-column", "cache/d@v2", "labels.jsonl", "--new", "v3", "--on", "x")
    joined = "--on", "x", "--how", "left", "--fill", "label=-1", "--replace"
    document("add-column", "cache/d@v3", "few.jsonl", "--new", "v4", *joined)
    assert cachelayer.Storage("cache").fetch("d@v3")[7] == {"x": 7, "double": 14, "label": 1}
    assert cachelayer.Storage("cache").fetch("d@v4").read(range(4))["label"].tolist() == [-1, -1, 5, -1]


def test_a_folder_that_holds_the_storage_is_not_imported(here: Path) -> None:
    (here / "a.txt").write_text("data")
    said = refused("import", ".", TARGET, "--format", "files")
    assert "'.'" in said
    assert str(here / "cache") in said
    assert not (here / "cache" / "d").exists()
