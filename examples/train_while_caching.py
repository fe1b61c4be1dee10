"""Train while a slow source is cached, be killed in epoch 0, and go on with any number of hosts.

    $ python train_while_caching.py /data/shared          # one host; kill it, and start it again
    $ python train_while_caching.py /data/shared 0 2 &    # or go on on two
    $ python train_while_caching.py /data/shared 1 2

The losses are those of a run that waited for the version (`--wait`). The model is a line through 16 numbers, and hosts
exchange their gradients through files: any framework does it better.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import cachelayer

BATCH, EPOCHS, RATE = 20, 2, 0.1


class Measurements:
    """2,000 records a second."""

    def __len__(self):
        return 1000

    def __getitem__(self, number):
        time.sleep(1 / 2000)
        x = np.random.default_rng(number).normal(size=16)
        return {"x": x, "y": x @ np.arange(16) + number % 2}


def put(path, **arrays):
    """Have a file appear whole."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    with draft.open("wb") as file:
        np.savez(file, **arrays)
    draft.replace(path)


def summed(folder, step, host, hosts, gradient):
    """Return the sum of the gradients of all hosts."""
    if hosts == 1:
        return gradient
    put(folder / f"gradient-{step}-{host}.npz", gradient=gradient)
    total = 0
    for other in range(hosts):
        path = folder / f"gradient-{step}-{other}.npz"
        while not path.exists():
            time.sleep(0.001)
        total = total + np.load(path)["gradient"]
    return total


def train(folder, host, hosts, wait):
    ref = cachelayer.Storage(folder / "storage").cache(Measurements(), "lines@v1", wait=wait, shard_bytes=20_000)
    stream = ref.stream(BATCH, shuffle=True, seed=0, num_epochs=EPOCHS, shard=(host, hosts))
    iterator = iter(stream)
    weights, step = np.zeros(17), 0
    if (folder / "checkpoint.npz").exists():
        checkpoint = np.load(folder / "checkpoint.npz")
        weights, step = checkpoint["weights"], int(checkpoint["step"])
        iterator.set_state(str(checkpoint["state"]))
    for batch in iterator:
        x = np.concatenate([batch["x"], np.ones((len(batch["y"]), 1))], axis=1)
        error = x @ weights - batch["y"]
        sums = summed(folder, step, host, hosts, np.concatenate([error @ x, [error @ error]]))
        weights = weights - RATE * sums[:-1] / BATCH
        step += 1
        if host == 0:
            print(step, f"{sums[-1] / BATCH:.6f}", flush=True)
            state = json.dumps(iterator.get_state())
            put(folder / "checkpoint.npz", weights=weights, step=step, state=state)
    # The next run finds the whole version.
    print("digest", ref.digest)


if __name__ == "__main__":
    names = [argument for argument in sys.argv[1:] if argument != "--wait"]
    train(Path(names[0]), *map(int, names[1:] or (0, 1)), wait="--wait" in sys.argv)
