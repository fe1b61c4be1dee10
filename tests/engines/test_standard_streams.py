"""A program without standard streams, such as a service, builds, warns and logs like any other."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys, warnings

class Rows:
    def __len__(self):
        return 40

    def __getitem__(self, number):
        return {"n": number}

class Streamless:
    def write(self, text):
        pass

BEFORE
import cachelayer

warnings.simplefilter("always")
storage = cachelayer.Storage(sys.argv[1])
assert len(storage.cache(Rows(), "rows@v1", workers=2, progress=True)) == 40
assert len(list(storage.cache(Rows(), "background@v1", wait=False).stream(4))) == 10
assert len(storage.cache([1, 2], "rows@v1")) == 40  # this warns
open(sys.argv[1] + "/done", "w").close()
"""
PROGRAMS = {
    "pythonw": "sys.stdin = sys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = None",
    "closed by the program": "sys.stdout.close(); sys.stderr.close()",
    "replaced": "sys.stdout = sys.stderr = Streamless()",
    "closed descriptors": "os.close(1); os.close(2)",
    "a file instead": "os.close(2); kept = open(sys.argv[1] + '-log', 'w'); os.set_inheritable(kept.fileno(), False)",
}
SHELLS = {"2>&-": "2>&-", "stdout": ">&-", "all": "<&- >&- 2>&-"}


@pytest.mark.slow
@pytest.mark.parametrize("streams", [*PROGRAMS, *SHELLS])
def test_a_program_without_standard_streams_builds_warns_and_logs(tmp_path: Path, streams: str) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.replace("BEFORE", PROGRAMS.get(streams, "")))
    command = f"CACHELAYER_LOG=debug exec {shlex.join([sys.executable, str(script), str(tmp_path / 'cache')])}"
    ended = subprocess.run(["sh", "-c", f"{command} {SHELLS.get(streams, '')}"], capture_output=True, check=False)
    assert (tmp_path / "cache/done").exists(), ended.stderr.decode()


@pytest.mark.slow
@pytest.mark.parametrize("streams", ["<&-", "2>&-", ">&-"])
def test_commands_without_standard_streams_tell_by_their_exit_code(tmp_path: Path, streams: str) -> None:
    (tmp_path / "source.py").write_text("def rows():\n    return list(range(40))\n")

    def run(*arguments: str) -> int:
        command = f"exec {shlex.join([sys.executable, '-m', 'cachelayer', *arguments])} {streams}"
        return subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, check=False).returncode

    # Without stdout, a result cannot be printed.
    done = 7 if streams == ">&-" else 0
    assert run("build", "source.py:rows", "cache/d@v1", "--workers", "2") == done
    assert run("build", "source.py:rows", "cache/d@v2", "--json", "--progress") == done
    assert run("verify", "cache/d") == done
    assert run("rm", "cache/d@v1") == 2
    assert run("ls", "cache/nosuch@v1") != 0
