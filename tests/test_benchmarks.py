"""Each comparison with others runs, both sides give the same, and the page shows what it printed."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from repository import ROOT

FOLDER = ROOT / "benchmarks"
SMALL = {
    "against_marin": ("optax", "--sequences=256 --rows=300 --window=8 --seeds=1"),
    "against_litdata": ("litdata torchvision psutil", "--pictures=70"),
    "against_lance": ("lance", "--rows=1000"),
    "against_bagz": ("bagz", "--records=300"),
    "against_array_record": ("grain", "--records=600"),
}
"""Of each benchmark: packages that it needs, and sizes at which it takes seconds."""


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


def test_every_benchmark_has_one_place_in_the_page(everything: ModuleType) -> None:
    assert set(everything.BENCHMARKS) == set(SMALL) == {path.stem for path in FOLDER.glob("against_*.py")}
    page = everything.PAGE.read_text()
    for name in everything.BENCHMARKS:
        assert [page.count(mark) for mark in everything.marks(name)] == [1, 1]
        assert "| --- |" in everything.part(page, name)
    assert page.count("<!-- benchmark: ") == len(everything.BENCHMARKS)


@pytest.mark.parametrize("name", SMALL)
def test_a_benchmark_prints_its_table(name: str) -> None:
    packages, sizes = SMALL[name]
    for package in packages.split():
        pytest.importorskip(package)
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, str(FOLDER / f"{name}.py"), *sizes.split(), "--rounds=1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n| ") > 3


def test_the_chart_shows_the_tables_of_the_page(everything: ModuleType) -> None:
    svg = everything.chart(everything.PAGE.read_text())
    assert (everything.DOCS / "read.svg").read_text() == svg
    assert "bagz" in svg
    assert "array_record" in svg


def test_a_failed_benchmark_leaves_its_table_in_the_page(
    everything: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one.py").write_text("import cachelayer; print('| a table |')")
    (tmp_path / "bad.py").write_text("raise SystemExit(3)")
    parts = "".join("\n".join((begin, "old", end)) + "\n" for begin, end in map(everything.marks, ("one", "bad")))
    for name, path in {"HERE": tmp_path, "DOCS": tmp_path, "PAGE": tmp_path / "performance.md"}.items():
        monkeypatch.setattr(everything, name, path)
    (tmp_path / "performance.md").write_text((ROOT / "docs" / "performance.md").read_text() + parts)
    with pytest.raises(SystemExit, match="failed: bad"):
        everything.main(["one", "bad"])
    page = everything.PAGE.read_text()
    assert everything.part(page, "one") == "| a table |"
    assert everything.part(page, "bad") == "old"
