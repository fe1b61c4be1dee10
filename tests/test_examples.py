"""Public classes, functions and methods have examples in their docstrings, which run and print what stands there."""

import doctest
import os
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from optional_packages import lacking
from public_names import everything, has_example, without_examples

import cachelayer

PACKAGE = Path(cachelayer.__file__).parent
# JAX warns of every later fork of a process that has imported it. Its examples run in a process of their own.
OF_JAX = {"cachelayer.adapters.jax", "cachelayer.adapters.orbax"}
IS_CHILD = "EXAMPLES_OF_JAX" in os.environ
# Each process collects the tests, so they are found without griffe, which reads the package for two seconds.
FILES = {
    path for folder in (PACKAGE, PACKAGE / "adapters") for path in folder.rglob("*.py") if ">>> " in path.read_text()
}
MODULES = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__") for path in FILES}


@cache
def examples() -> dict[str, list[doctest.DocTest]]:
    """Return the examples of each module."""
    of_modules = defaultdict(list)
    for obj in filter(has_example, everything()):
        parse, globs = doctest.DocTestParser().get_doctest, {"cachelayer": cachelayer}
        example = parse(obj.docstring.value, globs, obj.path, str(obj.filepath), obj.docstring.lineno)
        of_modules[obj.module.path].append(example)
    return of_modules


class Runner(doctest.DocTestRunner):
    """Skips an example for which a framework is not installed."""

    def report_unexpected_exception(self, out: Any, test: Any, example: Any, exc_info: Any) -> None:
        if package := lacking(exc_info[1]):
            pytest.skip(f"needs {package}")
        super().report_unexpected_exception(out, test, example, exc_info)


@pytest.mark.filterwarnings(
    "ignore::cachelayer.CacheLayerWarning",
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning",  # Keras on PyTorch
)
@pytest.mark.parametrize("module", sorted(MODULES & OF_JAX if IS_CHILD else MODULES - OF_JAX))
def test_the_examples_of_docstrings_print_what_stands_there(module: str, tmp_path: Path) -> None:
    left_out: list[str] = []
    for number, example in enumerate(examples()[module]):
        example.globs["folder"] = tmp_path / str(number)
        example.globs["folder"].mkdir()
        try:
            done = Runner(optionflags=doctest.ELLIPSIS).run(example)
        except pytest.skip.Exception as skipped:
            left_out.append(str(skipped))
        else:
            assert (done.failed, done.attempted) == (0, len(example.examples)), example.name
    if left_out:
        pytest.skip(", ".join(left_out))


@pytest.mark.skipif(IS_CHILD, reason="this is the child")
@pytest.mark.needs("jax", "orbax")
def test_the_examples_of_jax_print_what_stands_there() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "docstring"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["EXAMPLES_OF_JAX"] = "1"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_everything_public_but_properties_has_an_example() -> None:
    assert without_examples() == []
    assert examples().keys() == MODULES
