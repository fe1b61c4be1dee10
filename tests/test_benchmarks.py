"""The page of measurements has a place for each benchmark, and its charts show its tables."""

from __future__ import annotations

import importlib.util
import sys
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
    scripts = {path.stem for path in FOLDER.glob("*.py")} - {"all"}
    assert everything.PARTS | set(everything.BENCHMARKS) == scripts
    assert not everything.PARTS & set(everything.BENCHMARKS)
    page = everything.PAGE.read_text()
    for name in everything.BENCHMARKS:
        assert [page.count(mark) for mark in everything.marks(name)] == [1, 1]
        assert everything.part(page, name)
        assert f"benchmarks/{name}.py" in page
    assert page.count("<!-- benchmark: ") == len(everything.BENCHMARKS)


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


def test_tables_tell_spread_and_peak_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    import harness

    assert harness.medians({"one": lambda: 1, "two": lambda: 2}, rounds=2).keys() == {"one", "two"}
    shown = harness.table("Title", ("a",), [("1",)])
    assert "Rounds spread over" in shown
    assert "Peak memory: " in shown
    assert "Rounds spread over" not in harness.table("Title", ("a",), [("1",)])
