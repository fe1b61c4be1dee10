"""Feed MaxText with packs, as its Grain pipeline: the state fits any number of hosts."""

import json
import os
import sys

import numpy as np
from corpus import documents

from cachelayer.adapters.grain import iter_dataset

LENGTH, BATCH = 64, 4


def shifted(values):
    return np.pad(values[:, 1:], ((0, 0), (0, 1)))


def renamed(batch):
    tokens, segments, positions = (batch[f"tokens{name}"] for name in ("", "_segment_ids", "_positions"))
    return {
        "inputs": tokens,
        "inputs_segmentation": segments,
        "inputs_position": positions,
        "targets": shifted(tokens),
        "targets_segmentation": segments * (shifted(segments) == segments),
        "targets_position": positions,
    }


def dataset_of(host, hosts, epochs=3):
    packs = documents.packed("tokens", LENGTH)
    stream = packs.stream(BATCH, shuffle=True, seed=0, num_epochs=epochs, shard=(host, hosts), remainder="drop")
    return iter_dataset(stream.map_batches(renamed))


if __name__ == "__main__":
    checkpoint = f"{sys.argv[1]}.json"
    host, hosts = map(int, sys.argv[2:])
    weights, step, iterator = np.zeros(100), 0, iter(dataset_of(host, hosts))
    if os.path.exists(checkpoint):
        saved = json.loads(open(checkpoint).read())
        weights, step = np.array(saved["weights"]), saved["step"]
        iterator.set_state(saved["data"])
    for batch in iterator:
        inputs, targets = (batch[name][batch["targets_segmentation"] > 0] for name in ("inputs", "targets"))
        loss = np.square(weights[inputs] - targets / 100).mean()
        np.add.at(weights, inputs, 0.001 * (targets / 100 - weights[inputs]))
        step += 1
        print(step, batch["inputs"].tolist(), float(loss), flush=True)
        if step % 5 == 0:
            with open(f"{checkpoint}.new", "w") as file:
                json.dump({"weights": weights.tolist(), "step": step, "data": iterator.get_state()}, file)
            os.replace(f"{checkpoint}.new", checkpoint)
