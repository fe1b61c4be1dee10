"""Run the code of a page, block by block, against what the page shows."""

import io
import linecache
import re
from contextlib import redirect_stdout
from typing import Any

from repository import ROOT


def run_page(name: str, least: int = 3) -> dict[str, Any]:
    """Run the blocks of a page in docs/, at least so many, check what each prints, and return what they define."""
    page = ROOT / "docs" / name
    blocks = re.findall(r"```python\n(.*?)```\n(?:```text\n(.*?)```)?", page.read_text(), re.DOTALL)
    assert len(blocks) >= least
    names: dict[str, Any] = {}
    for number, (code, output) in enumerate(blocks):
        # As in a notebook: the source of what a block defines is known.
        filename = f"{page}#{number}"
        linecache.cache[filename] = (len(code), None, code.splitlines(keepends=True), filename)
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile(code, filename, "exec"), names)
        assert printed.getvalue() == output
    return names
