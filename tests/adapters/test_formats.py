"""The recipes for other formats do what their page shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from repository import ROOT, SUPPORT

PAGE = ROOT.joinpath("docs", "howto-formats.md")
# `tests/clients/run` installs the packages that the other tests do not have.
NEEDS = {
    "HDF5 and Zarr": ("h5py", "zarr"),
    "Lance": ("lance",),
    "MDS (MosaicML Streaming)": ("streaming",),
    "LitData": ("litdata",),
}
RUN_PAGE = """
import sys
from client_child import declare_operators
from page_child import main
from pathlib import Path
declare_operators()
sys.path.insert(0, "")
main(Path(sys.argv[1]))
"""


def sections() -> tuple[str, dict[str, str]]:
    """What stands above the first heading of the page, and what stands below each heading."""
    top, *parts = re.split(r"^## (.+)\n", PAGE.read_text(), flags=re.M)
    return top, dict(zip(parts[::2], parts[1::2], strict=True))


def test_every_section_is_run() -> None:
    assert list(sections()[1]) == list(NEEDS)


@pytest.mark.parametrize(
    "title", [pytest.param(title, marks=pytest.mark.needs(*names)) for title, names in NEEDS.items()]
)
def test_a_section_does_what_stands_there(title: str, tmp_path: Path) -> None:
    top, texts = sections()
    page = tmp_path / "page.md"
    page.write_text(top + texts[title])
    path = os.pathsep.join(filter(None, [str(SUPPORT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-c", RUN_PAGE, str(page)]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
