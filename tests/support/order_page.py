"""The functions that docs/order.md defines, which know nothing of the library, and the golden vectors beside it."""

import ast
import json
import re
from functools import cache
from types import SimpleNamespace
from typing import Any

from repository import ROOT

PAGE = ROOT / "docs" / "order.md"
VECTORS: dict[str, list[dict[str, Any]]] = json.loads((ROOT / "docs" / "order-vectors.json").read_text())


@cache
def reference() -> SimpleNamespace:
    """Return the functions of the page, without what it does with the library."""
    body: list[ast.stmt] = []
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        for node in ast.parse(code).body:
            imports = isinstance(node, (ast.Import, ast.ImportFrom)) and "cachelayer" not in ast.unparse(node)
            is_constant = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "WORD"
            if imports or is_constant or isinstance(node, ast.FunctionDef):
                body.append(node)
    names: dict[str, Any] = {}
    exec(compile(ast.Module(body, []), str(PAGE), "exec"), names)
    return SimpleNamespace(**names)
