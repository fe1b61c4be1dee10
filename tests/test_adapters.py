"""What holds for every adapter, asked of one process in which no framework can be imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from optional_packages import OPTIONAL

import cachelayer

ADAPTERS = Path(cachelayer.__file__).parent / "adapters"
MODULES = sorted(path.stem for path in ADAPTERS.glob("[a-z]*.py"))
# Adapters that need no framework, or only for some of what they do.
ALONE = {"folders", "npy", "tfrecord"}
EXTRA = {"pyarrow": "arrow", "to_arrow": "arrow"}
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
try:
    cachelayer.wrap([{{"n": 1}}], identity="one").to_arrow()
except cachelayer.MissingDependencyError as error:
    said["to_arrow"] = str(error)
print(json.dumps(said))
"""


def test_only_a_missing_framework_is_an_import_error_which_names_the_extra() -> None:
    missing = sorted(OPTIONAL - {"gcsfs", "s3fs", "obstore"})
    code = IMPORT.format(missing=missing, modules=MODULES)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    assert said.keys() == {*MODULES, "to_arrow"} - ALONE
    for name, error in said.items():
        assert f"cachelayer[{EXTRA.get(name, name)}]" in error


@pytest.mark.needs("polars", "pyarrow")
def test_tables_and_frames_of_polars_need_no_pandas(tmp_path: Path) -> None:
    (tmp_path / "pandas.py").write_text("raise ModuleNotFoundError(\"No module named 'pandas'\")")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import cachelayer, polars\n"
        f"storage = cachelayer.Storage({str(tmp_path)!r})\n"
        "frame = polars.DataFrame({'n': [1, None], 'f': [[0.5], []], 'b': [True, False], 't': ['a', 'b']})\n"
        "for version, source in {'v1': frame, 'v2': frame.to_arrow()}.items():\n"
        "    ref = storage.cache(source, 'rows', version)\n"
        "    assert ref.to_arrow().to_pylist() == frame.to_dicts()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
