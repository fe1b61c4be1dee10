"""Training on several JAX processes: killed, and resumed on another number of them."""

import json
import socket
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forks import FORKS, importing
from jax_process import BATCH, EPOCHS, RECORDS, SEED, STEPS, Job, on_devices, run_child
from reference import Case

pytestmark = pytest.mark.needs("jax", "orbax", "optax")
CASE = Case(RECORDS, BATCH, EPOCHS, remainder="drop", seed=SEED)
DEVICES = {"train": 1, "meshes": 2}
Lines = list[dict[str, Any]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(folder: Path, processes: int, *, task: str = "train", **options: Any) -> list[Lines]:
    """The lines of each process of a run, which ends by itself or is killed where it stops."""
    name, port = f"{task}-{processes}", free_port()
    jobs = [
        Job(
            task=task,
            process=process,
            processes=processes,
            port=port,
            data=str(folder / "data"),
            checkpoints=str(folder / "checkpoints"),
            log=str(folder / f"{name}-{process}.log"),
            **options,
        )
        for process in range(processes)
    ]
    errors = folder / f"{name}.err"
    children = [start(job, errors) for job in jobs]
    try:
        said = [first_word(talk) for _, talk in children]
        for child, _ in children:
            if "stop" not in options:
                child.join()
        codes = [child.exitcode for child, _ in children]
    finally:
        for child, _ in children:
            child.kill()
            child.join()
    assert said == ["stopped" if "stop" in options else ""] * processes, errors.read_text()
    assert not any(codes), errors.read_text()
    return [[json.loads(line) for line in Path(job.log).read_text().splitlines()] for job in jobs]


def start(job: Job, errors: Path) -> tuple[ForkServerProcess, Connection]:
    """Start a child; return it, and what it talks through."""
    environment = {"XLA_FLAGS": on_devices(DEVICES[job.task])}
    heard, talk = FORKS.Pipe(duplex=False)
    with talk:
        child = FORKS.Process(target=run_child, args=(job, environment, str(errors), talk))
        child.start()
    return child, heard


def first_word(talk: Connection) -> str:
    """Return what a child says; nothing if it ends without a word."""
    with talk:
        try:
            return str(talk.recv())
        except EOFError:
            return ""


def whole(runs: list[Lines], steps: range) -> Lines:
    """One line a step, with the rows that the processes of a run held together; the rest was the same on all."""
    for lines in runs:
        assert [line["step"] for line in lines] == list(steps)
    merged = []
    for parts in zip(*runs, strict=True):
        rows = {int(row): value for part in parts for row, value in part["rows"].items()}
        assert len(rows) == sum(len(part["rows"]) for part in parts) == BATCH
        assert len({(part["loss"], json.dumps(part["state"])) for part in parts}) == 1
        merged.append(parts[0] | {"rows": [rows[row] for row in range(BATCH)]})
    return merged


def assert_same(found: Lines, expected: Lines) -> None:
    """Whether steps had the same records, random numbers and states, and as good as the same losses."""
    assert [(line["step"], line["rows"], line["state"]) for line in found] == [
        (line["step"], line["rows"], line["state"]) for line in expected
    ]
    np.testing.assert_allclose([line["loss"] for line in found], [line["loss"] for line in expected], rtol=1e-5)


@pytest.fixture(autouse=True, scope="module")
def _forks() -> Iterator[None]:
    """Processes are forked off one that has imported JAX, but not started it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_PLATFORMS", "cpu")
        with importing("jax", "optax", "orbax.checkpoint", "cachelayer.adapters.jax", "cachelayer.adapters.orbax"):
            yield


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Lines:
    return whole(run(tmp_path_factory.mktemp("uninterrupted"), 1), range(STEPS))


def test_a_run_reads_the_order_of_the_contract_and_learns(uninterrupted: Lines) -> None:
    assert [[number for number, _ in line["rows"]] for line in uninterrupted] == [
        records for _, records in CASE.steps()
    ]
    assert [line["state"]["position"] for line in uninterrupted] == CASE.positions()[1:]
    losses = [line["loss"] for line in uninterrupted]
    assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])


def test_a_run_that_is_killed_goes_on_with_any_number_of_processes(tmp_path: Path, uninterrupted: Lines) -> None:
    first = whole(run(tmp_path, 2, save=5, stop=8), range(8))
    second = whole(run(tmp_path, 4, save=15, stop=17), range(5, 17))
    third = whole(run(tmp_path, 1), range(15, STEPS))
    assert_same(first, uninterrupted[:8])
    assert_same(second, uninterrupted[5:17])
    assert_same(third, uninterrupted[15:])


def test_a_process_reads_the_rows_that_its_devices_hold_and_no_others(tmp_path: Path) -> None:
    logs = run(tmp_path, 2, task="meshes")
    held = {}
    for parts in zip(*logs, strict=True):
        held[parts[0]["name"]] = [sorted({row for _, row in part["held"]}) for part in parts]
        for part in parts:
            assert part["read"] == len(part["held"]) or not part["held"]
    everything = list(range(BATCH))
    assert held == {
        "blocks": [[0, 1, 2, 3], [4, 5, 6, 7]],
        "strided": [[0, 1, 4, 5], [2, 3, 6, 7]],
        "replicated over processes": [everything, everything],
        "split over processes": [[0, 1, 2, 3], [4, 5, 6, 7]],
        "both axes": [[0, 1, 4, 5], [2, 3, 6, 7]],
        "of process 0": [everything, []],
    }
