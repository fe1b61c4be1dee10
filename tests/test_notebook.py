"""What a notebook shows, in a real kernel."""

import os
import sys
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from repository import ROOT

pytestmark = [pytest.mark.needs("nbclient", "ipykernel", "ipywidgets"), pytest.mark.slow]


BUILD = """
import numpy as np
import cachelayer
from cachelayer.support.progress import Progress

Progress.bar_seconds = 0.01
storage = cachelayer.Storage("folder")
rows = ({"image": np.full((200, 300, 3), number % 256, np.uint8), "text": f"<b>{number}"} for number in range(1500))
ref = storage.cache(rows, "d@v1", shard_bytes=50_000_000)
"""
CELLS = {
    "build": BUILD,
    "hit": "storage.cache(list, 'd@v1', on_change='ignore').dataset_version",
    "ref": "ref",
    "element": "ref[0]",
    "stream": "ref.stream(8, shuffle=True, seed=1)",
}


def run(book: Any, folder: Path) -> None:
    """Run the cells of a notebook, which then has their outputs, in a folder."""
    # The client imports ipykernel, by which later tests of this process would take themselves for notebooks.
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(), mock.patch.dict(sys.modules):
        from nbclient import NotebookClient

        warnings.simplefilter("ignore")
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
            patch.setenv(name, str(folder / name))
        patch.setenv("PYTHONWARNINGS", "default")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")]))
        NotebookClient(
            book, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
        ).execute()


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """The outputs of each cell."""
    import nbformat

    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS.values()])
    run(book, tmp_path_factory.mktemp("notebook"))
    widgets = book.metadata["widgets"]["application/vnd.jupyter.widget-state+json"]["state"]
    outputs = {name: cell["outputs"] for name, cell in zip(CELLS, book.cells, strict=True)}
    return {**outputs, "widgets": list(widgets.values())}


def bar_styles(shown: dict[str, list[Any]]) -> list[str]:
    return [each["state"]["bar_style"] for each in shown["widgets"] if each["model_name"] == "FloatProgressModel"]


def test_the_progress_of_a_build_is_one_bar_that_is_updated_in_place(shown: dict[str, list[Any]]) -> None:
    (bar,) = shown["build"]
    assert bar["output_type"] == "display_data"
    assert "application/vnd.jupyter.widget-view+json" in bar["data"]
    texts = [each["state"]["value"] for each in shown["widgets"] if each["model_name"] == "HTMLModel"]
    assert bar_styles(shown)[0] == "success"
    assert any("1500" in text or "1.50k" in text for text in texts), texts
    assert shown["hit"][0]["output_type"] == "execute_result"


def test_a_version_is_a_table_of_its_first_records(shown: dict[str, list[Any]]) -> None:
    (result,) = shown["ref"]
    page = result["data"]["text/html"]
    assert "data:image/png;base64," in page
    assert "&lt;b&gt;0" in page
    assert "<b>0" not in page
    assert len(page) < 100_000


@pytest.mark.parametrize("cell", ["element", "stream"])
def test_a_large_element_and_a_stream_do_not_flood_a_cell(shown: dict[str, list[Any]], cell: str) -> None:
    (result,) = shown[cell]
    assert len(result["data"]["text/plain"]) < 5000
    assert result["data"]["text/plain"].count("\n") < 70


def texts(book: Any) -> list[str]:
    """What each cell of a notebook shows, as text: what is printed may come in any number of pieces."""
    cells = [cell["outputs"] for cell in book.cells if cell["cell_type"] == "code"]
    return ["".join(output.get("text") or output["data"]["text/plain"] for output in outputs) for outputs in cells]


@pytest.mark.needs("polars", "pyarrow", "sklearn", "duckdb")
@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_of_the_examples_shows_what_its_cells_give(path: Path, tmp_path: Path) -> None:
    import nbformat

    stored = nbformat.read(path, as_version=4)
    before = texts(stored)
    assert len(before) > 5
    assert all(before)
    run(stored, tmp_path)
    assert texts(stored) == before
