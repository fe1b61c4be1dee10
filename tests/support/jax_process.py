"""What tests of JAX share, without JAX: a process that has started it can neither fork nor change its devices."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import samples

RECORDS, BATCH, EPOCHS, SEED = 100, 8, 2, 3
STEPS = EPOCHS * (RECORDS // BATCH)


@dataclass(frozen=True)
class Job:
    """What a child does.

    Args:
        task: "train", or "meshes".
        process: its number among ``processes``.
        port: the port on which process 0 coordinates them.
        data: folder of the cached records.
        checkpoints: folder of the checkpoints, shared by all.
        log: file of its lines.
        save: the step before which it saves.
        stop: the step before which it says "stopped", and waits to be killed.
    """

    task: str
    process: int
    processes: int
    port: int
    data: str
    checkpoints: str
    log: str
    save: int | None = None
    stop: int | None = None


def run_child(*arguments: Any) -> None:
    """Run `train_child.main` in a process of its own: only there is JAX imported."""
    import train_child

    train_child.main(*arguments)


def on_devices(count: int) -> str:
    """Return the flags of XLA for so many CPU devices, beside those that are set for all tests."""
    return f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}".strip()


def assert_tests_pass(file: str, *, devices: int = 1) -> None:
    """Run the tests of a file in this folder in a process of their own, and raise unless all pass.

    Args:
        devices: the number of CPU devices that JAX shows.
    """
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": on_devices(devices),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(Path(__file__).with_name(file))]
    # All tests of the file, as in the soak suite.
    command += ["-m", "soak or slow or not slow"] if samples.IN_FULL else []
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
