"""A JAX process among several, for tests that start, kill and restart them: it trains, or looks at meshes.

It writes a line of JSON for each step to its log.
"""

import json
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax_process import BATCH, EPOCHS, RECORDS, SEED, STEPS, Job

import cachelayer
from cachelayer.adapters.jax import GlobalBatchIterator, global_batches, shard_by_process
from cachelayer.adapters.orbax import CheckpointRestore, CheckpointSave

ADAM = optax.adam(0.02)


def points() -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(RECORDS, 4)).astype(np.float32)
    return {"x": x, "y": np.sin(x.sum(axis=1)), "id": np.arange(RECORDS, dtype=np.int32)}


def jittered(element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return element | {"x": element["x"] + rng.normal(0, 0.1, 4).astype(np.float32)}


def batches(data: str, sharding: NamedSharding) -> GlobalBatchIterator[Any]:
    ref = cachelayer.Storage(data).cache(points, "points@v1", hosts=shard_by_process(), shard_bytes=4096)
    stream = ref.stream(BATCH, shuffle=True, seed=SEED, num_epochs=EPOCHS, remainder="drop")
    return iter(global_batches(stream.map(jittered, rng=True), sharding))


@jax.jit
def init() -> Any:
    keys = jax.random.split(jax.random.key(0))
    weights = {"hidden": jax.random.normal(keys[0], (4, 16)) / 2, "out": jax.random.normal(keys[1], (16,)) / 4}
    return weights, ADAM.init(weights)


@jax.jit
def train_step(model: Any, batch: Any) -> Any:
    def loss_of(weights: Any) -> Any:
        return jnp.mean((jnp.tanh(batch["x"] @ weights["hidden"]) @ weights["out"] - batch["y"]) ** 2)

    weights, optimiser = model
    loss, gradients = jax.value_and_grad(loss_of)(weights)
    updates, optimiser = ADAM.update(gradients, optimiser)
    return (optax.apply_updates(weights, updates), optimiser), loss


def held_rows(batch: Any) -> dict[int, list[float]]:
    """The rows that this process holds: the number of the record, and what became of its first value."""
    found = {}
    for ids, xs in zip(batch["id"].addressable_shards, batch["x"].addressable_shards, strict=True):
        first = ids.index[0].start or 0
        for row, (number, x) in enumerate(zip(np.asarray(ids.data), np.asarray(xs.data), strict=True)):
            found[first + row] = [int(number), float(x[0])]
    return found


def train(job: Job, log: Any, talk: Connection) -> None:
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    iterator = batches(job.data, NamedSharding(mesh, P("data")))
    model = jax.jit(init, out_shardings=NamedSharding(mesh, P()))()
    options = ocp.CheckpointManagerOptions(enable_async_checkpointing=True)
    with ocp.CheckpointManager(job.checkpoints, options=options) as manager:
        first = manager.latest_step() or 0
        if first:
            restore = ocp.args.Composite(model=ocp.args.StandardRestore(model), data=CheckpointRestore(iterator))
            model = manager.restore(first, args=restore).model
        for step in range(first, STEPS):
            if step == job.save:
                save = ocp.args.Composite(model=ocp.args.StandardSave(model), data=CheckpointSave(iterator))
                manager.save(step, args=save)
            if step == job.stop:
                manager.wait_until_finished()
                log.flush()
                talk.send("stopped")
                signal.pause()
            batch = next(iterator)
            model, loss = train_step(model, batch)
            line = {"step": step, "loss": float(loss), "rows": held_rows(batch), "state": iterator.get_state()}
            log.write(json.dumps(line) + "\n")
    assert next(iterator, None) is None


class Noted:
    """The records of a test of meshes, which notes those that are read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, number: int) -> dict[str, Any]:
        self.read.append(number)
        return {"id": np.int32(number), "grid": np.arange(4, dtype=np.int32) + 4 * number}


def look_at_meshes(job: Job, log: Any, talk: Connection) -> None:
    """For each way to lay the devices of all processes out: which records of the first batch this process read."""
    assert shard_by_process() == (job.process, job.processes)
    devices = np.array(jax.devices()).reshape(jax.process_count(), -1)
    layouts = {
        "blocks": (Mesh(devices.reshape(-1), "data"), P("data")),
        "strided": (Mesh(devices.T.reshape(-1), "data"), P("data")),
        "replicated over processes": (Mesh(devices, ("model", "data")), P("data", "model")),
        "split over processes": (Mesh(devices, ("data", "model")), P("data", "model")),
        "both axes": (Mesh(devices.T, ("a", "b")), P(("a", "b"))),
        "of process 0": (Mesh(devices[0], "data"), P("data")),
    }
    for name, (mesh, spec) in layouts.items():
        records = Noted()
        stream = cachelayer.wrap(records, identity="noted").stream(BATCH, shuffle=True, seed=SEED, remainder="pad")
        expected = list(stream)
        records.read.clear()
        held = set()
        for number, batch in enumerate(global_batches(stream, NamedSharding(mesh, spec))):
            for leaf, whole in zip(jax.tree.leaves(batch), jax.tree.leaves(expected[number]), strict=True):
                assert leaf.shape == whole.shape
                for shard in leaf.addressable_shards:
                    np.testing.assert_array_equal(shard.data, whole[shard.index])
            for shard in batch[0]["id"].addressable_shards:
                held.update((number, row) for row in range(BATCH)[shard.index[0]])
        log.write(json.dumps({"name": name, "held": sorted(held), "read": len(records.read)}) + "\n")


def main(job: Job, environment: dict[str, str], errors: str, talk: Connection) -> None:
    """Do a job; say "stopped" where it stops, and wait to be killed."""
    os.environ.update(environment)
    for stream in (1, 2):
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{job.port}", job.processes, job.process)
    with Path(job.log).open("w") as log:
        {"train": train, "meshes": look_at_meshes}[job.task](job, log, talk)
    # A child of multiprocessing ends without what JAX does at exit: process 0 would leave while others still ask it.
    jax.distributed.shutdown()
