"""The public suites of tests pass for a store, a source and an engine of another package, and catch broken ones."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign import DictStore, Spectra, Subprocesses
from repository import ROOT, SUPPORT

from cachelayer.engines import Engine
from cachelayer.objects.store import Store
from cachelayer.testing import FailingSourceTests, StoreTests, YieldingEngineTests


class TestDictStore(StoreTests):
    @pytest.fixture
    def store(self) -> Store:
        return DictStore()


class TestSpectra(FailingSourceTests):
    def source(self, count: int, folder: Path) -> Any:
        np.arange(4 * count, dtype="<f4").tofile(folder / "spectra.bin")
        return Spectra(folder / "spectra.bin", self.error)

    def element(self, number: int) -> Any:
        return {"spectrum": 4 * number + np.arange(4, dtype=np.float32), "peak": np.int64(3)}


@pytest.mark.slow
class TestSubprocesses(YieldingEngineTests):
    program = "from foreign import Subprocesses; engine = Subprocesses()"
    most_ahead = 2

    @pytest.fixture
    def engine(self) -> Engine:
        return Subprocesses()


BROKEN = """
import pytest
from foreign import DictStore, Spectra, Subprocesses
from test_testing import TestDictStore, TestSpectra, TestSubprocesses

class Overwriting(DictStore):
    def put_if_absent(self, name, data):
        self.put(name, data)
        return True

class TestStore(TestDictStore):
    @pytest.fixture
    def store(self):
        return Overwriting()

class Backwards(Spectra):
    def __getitem__(self, number):
        return super().__getitem__(len(self) - 1 - number)

class TestSource(TestSpectra):
    def source(self, count, folder):
        super().source(count, folder)
        return Backwards(folder / "spectra.bin", self.error)

class Forgetful(Subprocesses):
    def run(self, task, numbers):
        return super().run(task, list(numbers)[:-1])

class TestEngine(TestSubprocesses):
    @pytest.fixture
    def engine(self):
        return Forgetful()

del TestDictStore, TestSpectra, TestSubprocesses
"""
CAUGHT = {
    "test_only_the_first_put_wins_unless_the_bytes_are_the_same",
    "test_an_object_is_put_by_exactly_one_of_many_threads",
    "test_values_types_order_and_length_are_those_of_the_source",
    "test_an_element_that_fails_is_named_and_is_no_end",
    "test_the_task_is_run_on_each_number",
}


def test_the_suites_catch_what_breaks_a_promise(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text(BROKEN)
    chosen = "TestStore and put or TestSource or TestEngine and each_number"
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", "-k", chosen, "test_broken.py"]
    settings = ["-o", f"pythonpath={ROOT} {SUPPORT} {ROOT / 'tests'}", "-o", "markers=slow"]
    done = subprocess.run([*command, *settings], cwd=tmp_path, capture_output=True, text=True, check=False)
    failed = set(re.findall(r"^FAILED \S+::(\w+)", done.stdout, re.MULTILINE))
    assert failed == CAUGHT, done.stdout
