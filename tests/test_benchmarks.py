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
