"""The order in blocks beside the exact one: what hosts fetch, how mixed batches are, what models learn, what it costs.

Run: ``python benchmarks/locality_order.py``; it takes some minutes. Every number is a ratio within one run, or a count.
`blocks_walk.py` counts the requests of many hosts; what it walks is compared with the code of docs/order.md.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import numpy as np
from blocks_walk import Dataset, Epoch, reader_of, walk
from harness import machine, table
from numpy.typing import NDArray
from order_page import reference
from scale_costs import Traffic, _storage, _traffic, cloud

from cachelayer.streams.order.blocks import BlockOrder, Blocks
from cachelayer.streams.order.orders import ExactOrder, Order
from cachelayer.streams.steps import Step

Indices = NDArray[np.int64]
DATASET = Dataset(10**9, 10_000)
SEEDS = range(5)
AIMS = dict.fromkeys((1, 8, 64), "80, 1.05") | dict.fromkeys((3, 6, 12, 100), "1.3")
SEED = 1


def compare(order: BlockOrder, hosts: int, batch_a_host: int, places: int = 50) -> None:
    """Raise if the walk reads other records at some places than docs/order.md says."""
    page, sizes = reference(), (order.records, *order.sizes.values())
    begin = order.records // 2
    step = Step(begin, begin + hosts * batch_a_host)
    arranged = page.arranged(range(step.begin, step.end), order.lanes)
    rng = np.random.default_rng(0)
    for host in rng.choice(hosts, min(hosts, 5), replace=False).tolist():
        mine = reader_of(order, DATASET, host, hosts, batch_a_host).read_rows.of(step).positions
        if mine.tolist() != arranged[host * batch_a_host : (host + 1) * batch_a_host]:
            raise RuntimeError(f"the rows of host {host} are not those of the page")
        for place in rng.choice(mine, places // 5).tolist():
            expected = page.record_in_blocks(*sizes, order.seed, 0, place)
            if order.at(0, np.array([place])).tolist() != [expected]:
                raise RuntimeError(f"the record at place {place} is not that of the page")


def simulated(hosts: int, lanes: int | None = None) -> tuple[BlockOrder, Epoch]:
    """An epoch of 10^9 records of 10 kB on some hosts."""
    order = Blocks(lanes=lanes).order(DATASET.records, DATASET.record_nbytes, seed=SEED)
    compare(order, hosts, 256)
    return order, walk(order, DATASET, hosts, 256, walked=32)


def requests_table() -> str:
    """Requests and bytes of an epoch for several numbers of hosts."""
    rows = []
    for hosts, lanes in ((1, None), (8, None), (64, None), (1000, None), (3, 32), (6, 64), (12, 128), (100, 1024)):
        order, epoch = simulated(hosts, lanes)
        blocks = epoch.requests - epoch.index_requests
        rows.append(
            (
                f"{hosts}",
                f"{order.lanes:,}",
                f"{DATASET.records / blocks:.0f}",
                f"{epoch.records_a_request:.1f}",
                f"{epoch.headers / epoch.requests:.2f}",
                f"{epoch.amplification:.3f}",
                AIMS.get(hosts, ""),
                f"{epoch.held / 1e6:,.0f} MB",
            )
        )
    head = (
        "hosts",
        "lanes",
        "records for each request of a block",
        "records for each request, with those of index rows",
        "headers of indices for each request, in the first epoch of a process",
        "bytes read / wanted",
        "aim",
        "memory of a host",
    )
    return table(f"An epoch in blocks of {DATASET.records:,} records of 10 kB, simulated", head, rows)


def served_table(count: int = 16_000, nbytes: int = 10_000) -> str:
    """Requests and bytes of a whole epoch, counted at a server."""
    noise = np.random.default_rng(0).bytes(2 * nbytes)
    rows = []
    with cloud() as (server, proxy):
        storage = _storage(server, proxy, 0)
        made = ({"n": number, "x": noise[number % nbytes : number % nbytes + nbytes]} for number in range(count))
        storage.submit(made, "d", "v1")
        for hosts in (1, 8):
            proxy.forget()
            seen: list[int] = []
            for host in range(hosts):
                ref = _storage(server, proxy, 0, url=storage.url).fetch("d@v1")
                stream = ref.stream(256, shuffle="blocks", seed=SEED, shard=(host, hosts))
                for batch in stream:
                    seen += batch["n"].tolist()
            if sorted(seen) != list(range(count)):
                raise RuntimeError("an epoch is not an epoch")
            found: Traffic = _traffic(proxy)
            ratio = found.received / (count * (nbytes + 8))
            rows.append((f"{hosts}", f"{found.reads:,}", f"{count / found.reads:.0f}", f"{ratio:.3f}"))
    head = ("hosts", "requests", "records a request (aim 80)", "bytes received / wanted (aim 1.05)")
    return table(f"An epoch in blocks of {count:,} records of 10 kB, counted at a server", head, rows)


def chi_square(numbers: Indices, labels: Indices, classes: int) -> float:
    """The mean chi-square of the labels of batches; a row of ``numbers`` is a batch."""
    counts = np.stack([np.count_nonzero(labels[numbers] == label, axis=1) for label in range(classes)], axis=1)
    expected = numbers.shape[1] / classes
    return float(np.mean(((counts - expected) ** 2 / expected).sum(axis=1)))


def mixing_table(records: int = 200_000, batch: int = 256, classes: int = 10) -> str:
    """The chi-square of the labels of batches over a dataset sorted by class, against that of an exact shuffle."""
    labels = np.arange(records) * classes // records
    steps = records // batch

    def mean(order: Order) -> float:
        return chi_square(order.at(0, range(steps * batch)).reshape(steps, batch), labels, classes)

    exact = statistics.mean(mean(ExactOrder(records, True, seed)) for seed in SEEDS)
    rows = []
    for lanes, depth in ((64, 8), (64, 16), (256, 1), (256, 4), (1024, 1)):
        sizes = Blocks(records=16, window=lanes * depth, lanes=lanes)
        found = [mean(sizes.order(records, 10_000, seed=seed)) / exact for seed in SEEDS]
        rows.append(
            (
                f"{lanes}",
                f"{depth}",
                f"{statistics.mean(found):.3f}",
                f"{min(found):.3f} to {max(found):.3f}",
                "1.05" if lanes >= batch else "",
            )
        )
    head = (
        "lanes",
        "blocks of 16 in a window of a lane",
        "chi-square, blocks / exact",
        f"of {len(SEEDS)} seeds",
        "aim",
    )
    return table(f"Labels of batches of {batch}, {records:,} records sorted by {classes} classes", head, rows)


def tf_buffer(records: int, buffer: int, seed: int) -> Iterator[int]:
    """The order of ``tf.data.Dataset.range(records).shuffle(buffer)``."""
    import tensorflow as tf

    for numbers in tf.data.Dataset.range(records).shuffle(buffer, seed=seed).batch(1024).as_numpy_iterator():
        yield from numbers.tolist()


def trained(images: Any, labels: Any, held_out: tuple[Any, Any], numbers: Indices, seed: int) -> tuple[float, float]:
    """The losses of the tutorial's model after it saw batches of these records: over all records, and held out ones."""
    import jax
    import jax.numpy as jnp
    import optax

    adam = optax.adam(0.003)
    first, second = jax.random.split(jax.random.key(seed))
    width = images.shape[1]
    weights = [jax.random.normal(first, (width, 64)) / width**0.5, jax.random.normal(second, (64, 10)) / 8]

    def loss_of(weights: Any, image: Any, label: Any) -> Any:
        hidden = jax.nn.relu(image @ weights[0])
        return optax.softmax_cross_entropy_with_integer_labels(hidden @ weights[1], label).mean()

    @jax.jit
    def epoch(weights: Any, batches: Any) -> Any:
        def step(model: Any, batch: Any) -> Any:
            weights, state = model
            updates, state = adam.update(jax.grad(loss_of)(weights, images[batch], labels[batch]), state)
            return (optax.apply_updates(weights, updates), state), None

        return jax.lax.scan(step, (weights, adam.init(weights)), batches)[0][0]

    weights = epoch(weights, jnp.asarray(numbers))
    return float(loss_of(weights, images, labels)), float(loss_of(weights, *held_out))


def loss_table(copies: int = 30, batch: int = 64) -> str:
    """The loss after an epoch over handwritten digits that are sorted by class, by order."""
    import jax.numpy as jnp
    from sklearn.datasets import load_digits

    digits, classes = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    chosen = rng.permutation(len(digits))
    train, test = np.repeat(chosen[:1500], copies), chosen[1500:]
    train = rng.permutation(train)
    train = train[np.argsort(classes[train], kind="stable")]
    noisy = digits[train] / 16 + rng.normal(0, 0.3, (len(train), 64))
    images, labels = jnp.asarray(noisy, jnp.float32), jnp.asarray(classes[train])
    held_out = jnp.asarray(digits[test] / 16, jnp.float32), jnp.asarray(classes[test])
    records, lanes = len(train), 128
    steps = records // batch
    sizes = Blocks(records=8, window=2 * lanes, lanes=lanes)
    window = 2 * lanes * sizes.order(records, 256, seed=0).block
    ways: dict[str, Callable[[int], Indices]] = {
        "exact": lambda seed: ExactOrder(records, True, seed).at(0, range(records)),
        f"blocks: {lanes} lanes, window of {window:,} records": lambda seed: sizes.order(records, 256, seed=seed).at(
            0, range(records)
        ),
        f"tf.data, a buffer of {window:,} records": lambda seed: np.fromiter(
            tf_buffer(records, window, seed), np.int64
        ),
        "sorted by class": lambda _: np.arange(records),
    }
    rows = []
    for way, numbers in ways.items():
        found = np.array(
            [
                trained(images, labels, held_out, numbers(seed)[: steps * batch].reshape(steps, batch), seed)
                for seed in SEEDS
            ]
        )
        cells = [
            f"{each.mean():.3f} ± {each.std(ddof=1):.3f} ({each.min():.3f} to {each.max():.3f})" for each in found.T
        ]
        rows.append((way, *cells))
    head = ("order", "loss over all records", "loss over records held out")
    title = f"Loss after an epoch over {records:,} digits sorted by class, batches of {batch}, {len(SEEDS)} seeds"
    return table(title, head, rows)


def main() -> None:
    """Print the tables that the arguments name, or all."""
    tables = {
        "requests": requests_table,
        "served": served_table,
        "mixing": mixing_table,
        "loss": loss_table,
    }
    print(f"Measured on {machine()}.\n")
    for name in sys.argv[1:] or tables:
        print(tables[name](), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
