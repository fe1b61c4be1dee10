"""Test files that import a package which is not installed: they are left out, as with the extra `test-core`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from repository import ROOT, SUPPORT, TESTS

# The packages whose modules need what is optional.
FOLDERS = {"cachelayer.adapters": ROOT / "adapters", "cachelayer.page": ROOT / "cachelayer" / "page"}
# What the extra `test` brings beyond `test-core`. Any other package that is missing fails the tests that import it.
OPTIONAL = {
    "PIL", "adlfs", "apache_beam", "cryptography", "datasets", "gcsfs", "grain", "jax", "jinja2", "keras", "moto",
    "mypy", "obstore", "optax", "orbax", "pandas", "polars", "playwright", "pyarrow", "ray", "s3fs", "sklearn",
    "soundfile", "soxr", "starlette", "tensorflow", "tensorflow_datasets", "torch", "torchdata", "torchtitan", "tyro",
    "uvicorn", "uvloop", "webdataset",
}  # fmt: skip


def left_out() -> dict[Path, frozenset[str]]:
    """Return the test files that cannot be imported here, each with the packages that it lacks."""
    if all(map(find_spec, OPTIONAL)):
        return {}
    lacking = {path: absent(path) for path in sorted(TESTS.rglob("test_*.py"))}
    return {path: names for path, names in lacking.items() if names}


@cache
def absent(path: Path) -> frozenset[str]:
    """Return the packages that a file imports at its top, itself or by way of our own modules, and that are absent."""
    found: set[str] = set()
    for name in _imported(path):
        own = _own(name)
        if own:
            found |= absent(own)
        elif (package := name.partition(".")[0]) in OPTIONAL and not find_spec(package):
            found.add(package)
    return frozenset(found)


def _imported(path: Path) -> Iterator[str]:
    """Yield the names that a file imports while it is imported itself, even within a `try` or a `with`."""
    top = ast.parse(path.read_text(encoding="utf-8")).body
    for node in chain(top, *(each.body for each in top if isinstance(each, ast.Try | ast.With))):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{each.name}" for each in node.names)


def _own(name: str) -> Path | None:
    """Return the file of a module of the tests, of an adapter, or of the page."""
    parts = name.split(".")
    folder = FOLDERS.get(".".join(parts[:2]))
    if folder is None:
        file = SUPPORT / f"{parts[0]}.py"
    else:
        # "cachelayer.adapters.frameworks.torch_tensors.tensors" is in frameworks/torch_tensors.py.
        inner = folder.joinpath(*parts[2:3])
        file = inner / f"{parts[3]}.py" if inner.is_dir() and parts[3:] else inner.with_suffix(".py")
    return file if file.exists() else None
