"""The page of measurements has a place for each benchmark, and its charts show its tables."""

from __future__ import annotations

import importlib.util
import os
import select
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest
from repository import ROOT

FOLDER = ROOT / "benchmarks"


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("benchmarks_all", FOLDER / "all.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_every_benchmark_is_run_and_has_one_place_in_the_page(everything: ModuleType) -> None:
    assert set(everything.BENCHMARKS) <= {path.stem for path in FOLDER.glob("*.py")}
    page = everything.PAGE.read_text()
    for name in everything.BENCHMARKS:
        assert [page.count(mark) for mark in everything.marks(name)] == [1, 1]
        assert everything.part(page, name)
    assert everything.part(page, everything.WHOLE)
    assert page.count("<!-- benchmark: ") == len(everything.BENCHMARKS) + 1


def test_the_charts_show_the_tables_of_the_page(everything: ModuleType) -> None:
    page = everything.PAGE.read_text()
    for name, svg in everything.charts(page).items():
        assert (everything.DOCS / name).read_text() == svg
        assert f"({name})" in page


def test_a_part_is_replaced_and_the_rest_of_the_page_stays(everything: ModuleType) -> None:
    page = everything.PAGE.read_text()
    changed = everything.with_part(page, "order", "### New\n\n| records | rate |\n|---|---|\n| 10 | 1.5 |")
    assert everything.rows(everything.part(changed, "order")) == [["10", "1.5"]]
    assert everything.with_part(changed, "order", everything.part(page, "order")) == page


def test_a_benchmark_runs_in_a_process_of_its_own(
    everything: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(everything, "HERE", tmp_path)
    (tmp_path / "one.py").write_text("import sys; print('### One', sys.argv[1:])")
    printed = everything.run("one", ["a"])
    assert printed.startswith("### One ['a']\n\nMeasured in ")
    (tmp_path / "bad.py").write_text("raise SystemExit(3)")
    with pytest.raises(everything.subprocess.SubprocessError, match="exit status 3"):
        everything.run("bad", [])


def test_what_a_benchmark_leaves_running_ends_with_it(
    everything: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(everything, "HERE", tmp_path)
    (tmp_path / "one.py").write_text(
        "import os, subprocess, sys\n"
        "command = [sys.executable, '-c', 'import signal; signal.pause()']\n"
        "print(subprocess.Popen(command, stdout=subprocess.DEVNULL).pid, flush=True)\n"
        "os._exit(0)\n"
    )
    left = int(everything.run("one", []).split()[0])
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(left)
        assert select.select([descriptor], [], [], 10)[0], "it still runs"
        os.close(descriptor)


@pytest.fixture
def two(everything: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Two benchmarks, of which one fails, with a page of their own."""
    (tmp_path / "one.py").write_text("import cachelayer, sys; print(f'by {sys.executable}')")
    (tmp_path / "bad.py").write_text("raise SystemExit(3)")
    parts = "".join("\n".join((begin, "old", end)) + "\n" for begin, end in map(everything.marks, ("one", "bad")))
    (tmp_path / "performance.md").write_text(everything.PAGE.read_text() + parts)
    monkeypatch.setattr(everything, "BENCHMARKS", dict.fromkeys(("one", "bad"), everything.Benchmark()))
    for name, path in {"HERE": tmp_path, "DOCS": tmp_path, "PAGE": tmp_path / "performance.md"}.items():
        monkeypatch.setattr(everything, name, path)
    return everything


def test_the_page_says_whether_it_is_from_one_run_and_what_failed_in_it(two: ModuleType) -> None:
    with pytest.raises(SystemExit, match="failed: bad"):
        two.main(["one", "bad"], {}, quick=False)
    page = two.PAGE.read_text()
    assert two.part(page, "one").startswith("by ")
    assert two.part(page, "bad") == "Not measured in the last run: CalledProcessError."
    assert two.part(page, two.WHOLE).startswith("All tables are from one run, which took ")
    two.main(["one"], {}, quick=False)
    assert two.part(two.PAGE.read_text(), two.WHOLE) == "The tables are from several runs."


def test_a_benchmark_may_run_in_another_python_and_measures_this_library(two: ModuleType, tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.symlink_to(sys.executable)
    name, python = two.named_python(f"one={other}")
    two.main(["one"], {name: python}, quick=False)
    assert two.part(two.PAGE.read_text(), "one").startswith(f"by {other}")
    for wrong in (f"three={other}", "one", "one=/nowhere"):
        with pytest.raises(two.argparse.ArgumentTypeError, match="not the name of a benchmark"):
            two.named_python(wrong)


def test_tables_tell_spread_and_peak_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    import harness

    assert harness.medians({"one": lambda: 1, "two": lambda: 2}, rounds=2).keys() == {"one", "two"}
    shown = harness.table("Title", ("a",), [("1",)])
    assert "Rounds spread over" in shown
    assert "Peak memory: " in shown
    assert "Rounds spread over" not in harness.table("Title", ("a",), [("1",)])
