"""Work on a table with twice the columns is about twice the work."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachelayer

COLUMNS = 100
ROWS = 5


def table(columns: int, rows: int = ROWS) -> dict[str, Any]:
    numbers = np.arange(rows)
    return {f"c{number:04d}": numbers + number if number % 2 else numbers / 7 for number in range(columns)}


def parquet(folder: Path, columns: int) -> str:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = folder / "table.parquet"
    parquet.write_table(pa.table(table(columns)), path)
    return str(path)


def frame(columns: int) -> Any:
    return pytest.importorskip("pandas").DataFrame(table(columns))


def page(storage: cachelayer.Storage) -> Any:
    testing = pytest.importorskip("starlette.testclient")
    from cachelayer.page.render import OpenVersions
    from cachelayer.page.server import application

    client = testing.TestClient(application(OpenVersions(storage)))
    answers = [client.get(f"/d/wide/v1{path}").status_code for path in ("", "/records", "/records/1", "/statistics")]
    assert answers == [200] * len(answers)
    return client


Work = Callable[[cachelayer.Storage, Path, int], Any]
WORK: dict[str, Work] = {
    "arrays": lambda storage, _, columns: storage.submit(table(columns), "new@v1"),
    "rows": lambda storage, _, columns: storage.submit(list(storage.fetch("wide@v1")), "new@v1"),
    "frame": lambda storage, _, columns: storage.submit(frame(columns), "new@v1"),
    "parquet": lambda storage, folder, columns: storage.submit(parquet(folder, columns), "new@v1"),
    "append": lambda storage, _, columns: storage.append("wide@v1", new="v2", source=table(columns, 1)),
    "diff": lambda storage, _, columns: storage.diff("wide@v1", "changed@v1"),
    "rewrite": lambda storage, _, columns: storage.rewrite("wide@v1", new="v2", fields=[*table(columns)][1:]),
    "erase": lambda storage, _, columns: storage.erase("wide@v1", records=[1], reason="asked for"),
    "read": lambda storage, _, columns: storage.fetch("wide@v1").read([0, 2]),
    "fields": lambda storage, _, columns: storage.fetch("wide@v1").fields(*[*table(columns)][1:]).read([0]),
    "page": lambda storage, _, columns: page(storage),
}


def calls_of(work: Work, folder: Path, columns: int) -> int:
    """Return how many functions the work calls on a table with so many columns."""
    storage = cachelayer.Storage(folder)
    folder.mkdir()
    storage.submit(table(columns), "wide@v1")
    storage.submit({**table(columns), "c0000": np.arange(ROWS) / 9}, "changed@v1")
    calls = 0

    def count(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    threading.setprofile(count)
    try:
        work(storage, folder, columns)
    finally:
        threading.setprofile(None)
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("name", WORK)
def test_the_work_grows_with_the_columns_and_not_faster(name: str, tmp_path: Path) -> None:
    calls_of(WORK[name], tmp_path / "first", 2)  # imports
    few = calls_of(WORK[name], tmp_path / "few", COLUMNS)
    many = calls_of(WORK[name], tmp_path / "many", 2 * COLUMNS)
    assert many < 2.5 * few
