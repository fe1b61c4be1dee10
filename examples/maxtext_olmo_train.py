"""Feed MaxText's OLMo pipeline with windows: a `Sampler` begins at the step of the checkpoint."""

import json
import os
import sys

import grain
import numpy as np
from absl import flags
from corpus import documents

from cachelayer.adapters.grain import Sampler

LENGTH, BATCH = 64, 4


def shift(element):
    tokens, ones = element["tokens"], np.ones(LENGTH, np.int32)
    return {
        "inputs": tokens,
        "inputs_segmentation": ones,
        "inputs_position": np.arange(LENGTH, dtype=np.int32),
        "targets": np.append(tokens[1:], np.int32(0)),
        "targets_segmentation": np.append(ones[1:], np.int32(0)),
    }


def loader_of(step, host, hosts):
    windows = documents.windows("tokens", LENGTH, separator=0)  # was: OlmoNpyDataSource(index)
    sampler = Sampler(  # was: OlmoIndexSampler(...)
        windows, shuffle=True, seed=0, num_epochs=None, shard=(host, hosts), start=step * BATCH
    )
    operations = [grain.transforms.Batch(BATCH // hosts, drop_remainder=True)]
    mapping = type("Shift", (grain.transforms.Map,), {"map": lambda self, element: shift(element)})
    return grain.DataLoader(data_source=windows, sampler=sampler, operations=[mapping(), *operations])


if __name__ == "__main__":
    flags.FLAGS.mark_as_parsed()
    checkpoint = f"{sys.argv[1]}.json"
    host, hosts = map(int, sys.argv[2:])
    saved = {"weights": [0.0] * 100, "step": 0}
    if os.path.exists(checkpoint):
        saved = json.loads(open(checkpoint).read())
    weights, step = np.array(saved["weights"]), saved["step"]
    for batch in loader_of(step, host, hosts):
        inputs, targets = (batch[name][batch["targets_segmentation"] > 0] for name in ("inputs", "targets"))
        loss = np.square(weights[inputs] - targets / 100).mean()
        np.add.at(weights, inputs, 0.001 * (targets / 100 - weights[inputs]))
        step += 1
        print(step, batch["inputs"].tolist(), float(loss), flush=True)
        if step % 5 == 0:
            with open(f"{checkpoint}.new", "w") as file:
                json.dump({"weights": weights.tolist(), "step": step}, file)
            os.replace(f"{checkpoint}.new", checkpoint)
        if step == 240:
            break
