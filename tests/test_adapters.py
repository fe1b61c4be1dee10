"""What holds for every adapter, asked of one process in which no framework can be imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from absent import OPTIONAL

import cachelayer

ADAPTERS = Path(cachelayer.__file__).parent / "adapters"
MODULES = sorted(path.stem for path in ADAPTERS.glob("[a-z]*.py"))
# Adapters that need no framework, or only for some of what they do.
ALONE = {"folders", "npy", "tfrecord"}
EXTRA = {"pyarrow": "arrow"}
EXPECTED = {name: f"cachelayer[{EXTRA.get(name, name)}]" for name in MODULES}
IMPORT = """
import importlib, json, sys
sys.modules |= dict.fromkeys({missing!r})
import cachelayer
said = {{}}
for name in {modules!r}:
    try:
        importlib.import_module(f"cachelayer.adapters.{{name}}")
    except cachelayer.MissingDependencyError as error:
        said[name] = str(error)
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said() -> dict[str, str]:
    """The errors of the adapters that cannot be imported when no framework can."""
    missing = sorted(OPTIONAL - {"gcsfs", "s3fs", "obstore"})
    code = IMPORT.format(missing=missing, modules=MODULES)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("name", sorted(set(MODULES) - ALONE))
def test_a_missing_framework_is_an_import_error_that_names_the_extra(name: str, said: dict[str, str]) -> None:
    assert EXPECTED[name] in said[name]


def test_adapters_that_need_no_framework_can_be_imported_without_any(said: dict[str, str]) -> None:
    assert ALONE.isdisjoint(said)
