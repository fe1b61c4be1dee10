"""The programs of `examples/`: killed in mid-epoch, resumed, and compared with a run that lived."""

from __future__ import annotations

import ast
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from client_child import declare_operators
from PIL import Image
from repository import ROOT, SUPPORT

import cachelayer

CHILD = SUPPORT / "client_child.py"
EXAMPLES = ROOT / "examples"
ENVIRONMENT = {"KERAS_BACKEND": "torch", "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
# `tests/clients/run` installs them. Some programs need less, but these tests take minutes, so they run there alone.
pytestmark = [pytest.mark.slow, pytest.mark.needs("accelerate", "flax", "lightning")]


@dataclass(frozen=True)
class Line:
    """What a program prints at a step."""

    step: int
    records: list[int] | list[list[int]]
    loss: float


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the versions that the programs read."""
    folder = tmp_path_factory.mktemp("clients")
    subprocess.run([sys.executable, EXAMPLES / "corpus.py"], cwd=folder, check=True)
    return folder


class Program:
    """A program that runs, and prints to files: worker processes that outlive it would keep a pipe open."""

    def __init__(self, folder: Path, name: str, kill_at: int, *arguments: str, **environment: str) -> None:
        command = [sys.executable, str(CHILD), str(kill_at), str(EXAMPLES / f"{name}_train.py"), *arguments]
        rank = environment.get("RANK", arguments[-1])
        self._printed = folder / f"{arguments[0]}-{kill_at}-{rank}.out"
        self._complaints = self._printed.with_suffix(".err")
        self._ended = kill_at
        with self._printed.open("w") as out, self._complaints.open("w") as err:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=os.environ | ENVIRONMENT | environment,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def lines(self) -> list[Line]:
        """Wait for the program, and return what it printed."""
        expected = -signal.SIGKILL if self._ended else 0
        assert self._process.wait() == expected, self._complaints.read_text()
        self.__exit__()
        return list(parsed(self._printed.read_text()))


def parsed(printed: str) -> Iterator[Line]:
    for line in printed.splitlines():
        step, _, rest = line.partition(" ")
        if step.isdigit():
            records, _, loss = rest.rpartition(" ")
            yield Line(int(step), ast.literal_eval(records), float(loss))


def run(folder: Path, name: str, kill_at: int, *hosts: str) -> list[list[Line]]:
    """Return the lines of a run that lived, of one that was killed, and of the one that followed it."""
    killed = [f"{name}-killed", *hosts]
    with Program(folder, name, 0, f"{name}-whole", *hosts) as lived:
        with Program(folder, name, kill_at, *killed) as died:
            before = died.lines()
        with Program(folder, name, 0, *killed) as following:
            return [lived.lines(), before, following.lines()]


# The step at which a program is killed, the step of its last checkpoint, and the steps of an epoch: 0 if the records of
# a step are rows of tokens.
CASES = {
    "trainer": (18, 15, 13),
    "timm": (18, 15, 13),
    "lightning": (18, 15, 13),
    "keras": (18, 15, 13),
    "nanogpt": (73, 70, 0),
    "torchtitan": (78, 75, 0),
    "maxtext_packs": (148, 145, 0),
    "maxtext_olmo": (158, 155, 0),
}


@pytest.mark.parametrize("name", CASES)
def test_a_program_that_is_killed_in_mid_epoch_goes_on_as_if_it_had_lived(cached: Path, name: str) -> None:
    kill_at, checkpoint, per_epoch = CASES[name]
    hosts = ["0", "1"] if name.startswith("maxtext") else []
    whole, before, after = run(cached, name, kill_at, *hosts)
    assert before == whole[:kill_at]
    assert after == whole[checkpoint:]
    assert [line.step for line in whole] == list(range(1, len(whole) + 1))
    if per_epoch:
        assert checkpoint % per_epoch
        assert len(whole) == 3 * per_epoch
        epoch = [record for line in whole[per_epoch : 2 * per_epoch] for record in line.records]
        assert len(set(epoch)) == len(epoch) == 400


@pytest.mark.parametrize("name", ["maxtext_packs", "maxtext_olmo"])
def test_maxtexts_pipelines_go_on_on_two_hosts(cached: Path, name: str) -> None:
    with Program(cached, name, 0, f"{name}-one", "0", "1") as lived:
        with Program(cached, name, 78, f"{name}-two-0", "0", "1") as died:
            died.lines()
        (cached / f"{name}-two-1.json").write_bytes((cached / f"{name}-two-0.json").read_bytes())
        with (
            Program(cached, name, 0, f"{name}-two-0", "0", "2") as first,
            Program(cached, name, 0, f"{name}-two-1", "1", "2") as second,
        ):
            whole, *parts = lived.lines(), first.lines(), second.lines()
    together = [sorted([*first.records, *second.records]) for first, second in zip(*parts, strict=True)]
    assert together == [sorted(line.records) for line in whole[75:]]


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_the_trainer_on_two_processes_goes_on_where_both_were_killed(cached: Path) -> None:
    def both(folder: str, kill_at: int) -> list[list[Line]]:
        host, port = free_address().split(":")
        shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": host, "MASTER_PORT": port}
        ranks = [{**shared, "RANK": rank, "LOCAL_RANK": rank} for rank in ("0", "1")]
        with (
            Program(cached, "trainer", kill_at, folder, **ranks[0]) as first,
            Program(cached, "trainer", kill_at, folder, **ranks[1]) as second,
        ):
            return [first.lines(), second.lines()]

    whole, before, after = both("two-whole", 0), both("two-killed", 18), both("two-killed", 0)
    for mine, begun, rest in zip(whole, before, after, strict=True):
        assert [line.step for line in mine] == list(range(1, 40))
        assert begun == mine[:18]
        assert rest == mine[15:]
    for epoch in range(3):
        steps = range(13 * epoch, 13 * epoch + 13)
        assert len({record for mine in whole for step in steps for record in mine[step].records}) == 400


def test_flax_on_two_processes_goes_on_where_both_were_killed(cached: Path) -> None:
    def both(folder: str, kill_at: int) -> list[list[Line]]:
        job = (cached, "nnx", kill_at, folder, free_address(), "2")
        with Program(*job, "0") as first, Program(*job, "1") as second:
            return [first.lines(), second.lines()]

    whole, before, after = both("nnx-whole", 0), both("nnx-killed", 18), both("nnx-killed", 0)
    for mine, begun, rest in zip(whole, before, after, strict=True):
        assert len(mine) == 36
        assert begun == mine[:18]
        assert rest == mine[15:]
    rows = [record for mine in whole for line in mine[12:24] for record in line.records]
    assert len(set(rows)) == len(rows) == 384


def test_an_image_folder_of_torchvision_comes_in_by_its_files(tmp_path: Path) -> None:
    declare_operators()
    import torchvision

    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (4, 5), (number, 0, 0)).save(tmp_path / "pets" / name / f"{number}.png")
    storage = cachelayer.Storage(tmp_path / "cache")
    folder = torchvision.datasets.ImageFolder(tmp_path / "pets")
    ref: Any = storage.cache(folder, "pets@v1")
    assert ref.metadata["classes"] == ["cat", "dog"]
    for number, (picture, label) in enumerate(folder):
        pixels, stored = ref[number]
        assert (pixels.tolist(), stored) == (np.asarray(picture).tolist(), label)
        assert ref.raw()[number][0] == Path(folder.samples[number][0]).read_bytes()
    transformed = torchvision.datasets.ImageFolder(tmp_path / "pets", transform=torchvision.transforms.ToTensor())
    with pytest.warns(cachelayer.CacheLayerWarning, match="transforms of the ImageFolder are not cached"):
        assert storage.cache(transformed, "others@v1").digest == ref.digest
