"""Public classes, functions and methods have examples in their docstrings, which run and print what stands there."""

import doctest
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from optional_packages import lacking
from public_names import everything, has_example, without_examples

import cachelayer


def doctest_of(name: str, obj: Any) -> doctest.DocTest:
    lineno, globs = obj.docstring.lineno, {"cachelayer": cachelayer}
    return doctest.DocTestParser().get_doctest(obj.docstring.value, globs, name, str(obj.filepath), lineno)


# JAX warns of every later fork of a process that has imported it. Its examples run in a process of their own.
OF_JAX = ("cachelayer.adapters.jax.", "cachelayer.adapters.orbax.")
IS_CHILD = "EXAMPLES_OF_JAX" in os.environ
EXAMPLES = [
    doctest_of(obj.path, obj) for obj in everything() if has_example(obj) and obj.path.startswith(OF_JAX) == IS_CHILD
]


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
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name.removeprefix("cachelayer."))
def test_the_example_of_a_docstring_prints_what_stands_there(example: doctest.DocTest, tmp_path: Path) -> None:
    example.globs["folder"] = tmp_path
    done = Runner(optionflags=doctest.ELLIPSIS).run(example)
    assert (done.failed, done.attempted) == (0, len(example.examples))


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
