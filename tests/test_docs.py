"""The pages show what happens: their code is run, and none is left out."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import public_names
import pytest
import write_api
from page_child import FENCE, GIVEN
from repository import ROOT, SUPPORT
from servers import connect, free_port, gcs_server

CHILD = SUPPORT / "page_child.py"
# Pages whose code other tests run, beside what they test.
ELSEWHERE = {
    "cli": "test_cli_page.py",
    "files": "test_folders.py",
    "grain": "test_grain.py",
    "howto-formats": "test_formats.py",
    "huggingface": "test_huggingface.py",
    "jax": "jax_cases.py",
    "keras": "test_keras.py",
    "loaders": "test_tfds.py",
    "torch": "test_torch.py",
}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# It quotes programs of examples/, which tests/clients runs.
HERE = [page for page in PAGES if page.stem not in ELSEWHERE and FENCE.search(page.read_text())]
# TensorFlow takes a process five seconds to import: one process runs these pages, one after the other.
OF_TENSORFLOW = [page for page in HERE if "import tensorflow" in page.read_text()]
TOGETHER = [OF_TENSORFLOW, *([page] for page in HERE if page not in OF_TENSORFLOW)]


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """What the pages take for given of their surroundings: credentials for gs://bucket, and a quiet CPU."""
    with gcs_server() as server, closing(connect(server.endpoint)) as connection:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/storage/v1/b?project=p", '{"name": "bucket"}', headers)
        assert connection.getresponse().status == 200
        options = {f"FSSPEC_GS_{name.upper()}": value for name, value in server.storage_options().items()}
        # TensorFlow then imports no Keras, which takes a third of its time.
        quick = {"TF_USE_LEGACY_KERAS": "1", "KERAS_BACKEND": "jax"}
        yield os.environ | options | quick | {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}


def run(pages: list[Path], folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    # An unbuffered program writes a line and its end apart, so that lines of programs side by side run into each other.
    buffered = {name: value for name, value in environment.items() if name != "PYTHONUNBUFFERED"}
    settings = buffered | {"CACHELAYER_LOCAL_CACHE": str(folder / "copies"), "PORT": str(free_port())}
    command = [sys.executable, str(CHILD), *map(str, pages)]
    return subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("pages", TOGETHER, ids=lambda pages: pages[0].stem)
@pytest.mark.needs("duckdb", "gcsfs", "ibis", "jax", "polars", "tensorflow")
def test_the_code_of_pages_does_what_stands_there(
    pages: list[Path], tmp_path: Path, environment: dict[str, str]
) -> None:
    done = run(pages, tmp_path, environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_block_escapes_the_runner(page: Path) -> None:
    text = GIVEN.sub("", page.read_text())
    assert len(re.findall(r"```+\s*(?:python|py)\b", text)) == sum(kind == "python" for kind, *_ in FENCE.findall(text))


def file_of_tests(name: str) -> Path:
    """Return the file of the tests that has this name; no two have one name."""
    (found,) = (ROOT / "tests").rglob(name)
    return found


@pytest.mark.parametrize(("name", "file"), ELSEWHERE.items())
def test_pages_that_other_tests_run_are_run_there(name: str, file: str) -> None:
    assert f'"{name}.md"' in file_of_tests(file).read_text()


def test_the_reference_has_every_public_name_and_no_other() -> None:
    assert write_api.documented() == public_names.exported().keys()


def test_the_reference_is_up_to_date() -> None:
    assert write_api.PAGE.read_text() == write_api.text(), "run python docs/write_api.py"


def test_the_adapter_that_contributors_begin_with_passes_the_suite(tmp_path: Path) -> None:
    blocks = {title: body for _, title, body, _ in FENCE.findall((ROOT / "CONTRIBUTING.md").read_text()) if title}
    assert sum(body.count("\n") for body in blocks.values()) < 60
    for title, body in blocks.items():
        (tmp_path / title).write_text(body)
    # As if the adapter lay in the folder of adapters.
    program = (
        "import pytest, cachelayer.adapters as a; a.__path__.append('.'); pytest.main(['-q', '-p', 'no:cacheprovider'])"
    )
    plain = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=plain, capture_output=True, text=True, check=False)
    assert re.search(r"^5 passed", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.parametrize("page", ["CONTRIBUTING.md"])
def test_the_modules_that_a_page_names_are_there(page: str) -> None:
    named = set(re.findall(r"`((?:\w+/)+(?:\w+\.(?:py|md))?)`", (ROOT / page).read_text()))
    assert len(named) > 20
    assert [name for name in named if not any((place / name).exists() for place in (ROOT, ROOT / "cachelayer"))] == []


def test_the_first_page_names_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    table = (ROOT / "docs" / "index.md").read_text().partition("| for | extras |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([\w-]+)`", table)) == {
        extra for extra in extras if not extra.startswith(("test", "lint"))
    }


def test_the_layers_of_contributing_are_those_that_are_checked() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["name"] == "Imports point down")
    layer_of = {
        name.removeprefix("cachelayer."): number for number, layer in enumerate(layers) for name in layer.split(" | ")
    }
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("| layer | packages |")[2].partition("\n\n")[0]
    packages = re.findall(r"`(\w+)/`", table)
    assert [layer_of[name] for name in packages] == sorted(layer_of[name] for name in packages)
    assert set(packages) == {name for name in layer_of if (ROOT / "cachelayer" / name).is_dir()}
