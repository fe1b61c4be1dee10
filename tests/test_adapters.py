"""What holds for every adapter, asked of one process in which no framework can be imported."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from optional_packages import OPTIONAL
from packaging.requirements import Requirement
from repository import ROOT

import cachelayer

ADAPTERS = Path(cachelayer.__file__).parent / "adapters"
MODULES = sorted(path.stem for path in ADAPTERS.glob("[a-z]*.py"))
WORKFLOW = ROOT / ".github/workflows/ci.yml"
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
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

# Doors of other packages than frameworks: a storage, an engine, a file of a record.
OTHERS = {
    "gcs": "cachelayer.Storage('gs://bucket/caches').datasets()",
    "s3": "cachelayer.Storage('s3://bucket/caches').datasets()",
    "azure": "cachelayer.Storage('az://bucket/caches', storage_options={'account_name': 'a'}).datasets()",
    "ray": "storage.cache(range(3), 'numbers', 'v1', engine='ray')",
    "beam": "storage.cache(range(3), 'numbers', 'v2', engine='beam')",
    "image": "storage.submit([b'x'], 'images', 'v1', element_spec=cachelayer.ImageSpec())[0]",
    "audio": "storage.submit([b'x'], 'sounds', 'v1', element_spec=cachelayer.AudioSpec())[0]",
    "video": "storage.submit([b'x'], 'videos', 'v1', element_spec=cachelayer.VideoSpec())",
}
OLD = """
import importlib, json, sys
sys.path.insert(0, {folder!r})
import cachelayer
storage = cachelayer.Storage({folder!r})
said = {{}}
for name, call in {calls!r}.items():
    try:
        exec(call)
    except cachelayer.MissingDependencyError as error:
        said[name] = str(error)
print(json.dumps(said))
"""


def install(folder: Path, name: str, version: str, needs: str = "") -> None:
    """Make Python believe that a version of a package is installed, if the folder comes first in its path."""
    metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")


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


def test_a_version_below_the_bound_of_an_extra_is_refused_by_name(tmp_path: Path) -> None:
    needs = [f"{need}; extra == '{extra}'" for extra, packages in EXTRAS.items() for need in packages]
    install(tmp_path, "cachelayer", "1.0", "\n".join(f"Requires-Dist: {need}" for need in needs))
    for name in {Requirement(need).name for need in needs} - {"cachelayer"}:
        install(tmp_path, name, "0.0.1")
    calls = {name: f"importlib.import_module('cachelayer.adapters.{name}')" for name in {*MODULES} - ALONE} | OTHERS
    code = OLD.format(folder=str(tmp_path), calls=calls)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said = json.loads(done.stdout.splitlines()[-1])
    assert said.keys() == calls.keys()
    for name, error in said.items():
        assert " 0.0.1 is installed, and cachelayer needs " in error, name


@pytest.mark.needs("pandas")
def test_a_framework_that_is_too_old_hinders_only_its_own_objects(tmp_path: Path) -> None:
    install(tmp_path, "pandas", "1.5.3")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import cachelayer, pandas\n"
        f"storage = cachelayer.Storage({str(tmp_path)!r})\n"
        "assert len(storage.cache([1, 2], 'numbers', 'v1')) == 2\n"
        "storage.cache(pandas.DataFrame({'n': [1]}), 'rows', 'v1')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MissingDependencyError: pandas 1.5.3 is installed, and cachelayer needs pandas>=" in done.stderr


@pytest.mark.skipif(not WORKFLOW.exists(), reason="a source archive has no workflows")
def test_the_lowest_versions_of_each_extra_are_tested_by_a_job() -> None:
    rows = re.findall("extras: (.*)", WORKFLOW.read_text())
    tested = {extra for row in rows for extra in row.split(",")}
    # Tested extras include arrow, and what s3-lite has. What tests need is pinned.
    assert EXTRAS.keys() - tested == {"all", "arrow", "lint", "s3-lite", "test"}
