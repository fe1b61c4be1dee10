"""Windows and packs for language models, against a flat file of tokens, LitData and Grain; in one run.

Run: ``python benchmarks/language.py [megabytes] [documents]``: 200 MB of tokens to read, and 10 million documents to
open, by default. LitData takes part if it is installed.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from harness import machine, median, medians, table

import cachelayer
from cachelayer import ArraySpec, Ragged
from cachelayer.access.sequences.pack_planner import Packing, plan

LENGTH, BATCH, MEAN = 2048, 32, 512
STEPS = 300
FLAT, LITDATA, GRAIN = "slices of a flat np.memmap", "LitData's TokensLoader", "Grain's FirstFitPackIterDataset"
AIMS = (("windows", FLAT, 0.6), ("windows", LITDATA, 3), ("packed", GRAIN, 10))
SPEC = {"tokens": ArraySpec("int32", (None,))}


def lengths_of(documents: int, mean: float) -> Any:
    """Log-normal lengths."""
    drawn = np.random.default_rng(0).lognormal(0, 1, documents)
    return np.maximum(1, drawn / drawn.mean() * mean).astype(np.int64)


def drawn_tokens(count: int) -> Any:
    """So many tokens."""
    return np.random.default_rng(1).integers(0, 50_000, count, dtype=np.int32)


def cached(folder: Path, lengths: Any, tokens: Any) -> Any:
    """A version of documents of these lengths."""
    splits = np.concatenate([[0], np.cumsum(lengths)])

    def batches() -> Iterator[Any]:
        for start in range(0, len(lengths), 4096):
            part = splits[start : start + 4097]
            yield {"tokens": Ragged(tokens[part[0] : part[-1]], part - part[0])}

    return cachelayer.Storage(folder).cache(batches, "docs", "v1", element_spec=SPEC, unbatch=True)


def flat_file(tokens: Any, folder: Path) -> Callable[[], int]:
    """Batches of slices of one file at random places, as nanoGPT reads them."""
    path, rng = folder / "tokens.bin", np.random.default_rng(2)
    tokens.tofile(path)

    def work() -> int:
        data = np.memmap(path, np.int32, "r")
        for _ in range(STEPS):
            places = rng.integers(0, len(data) - LENGTH, BATCH)
            np.stack([data[place : place + LENGTH] for place in places.tolist()])
        return STEPS

    return work


def litdata(lengths: Any, tokens: Any, folder: Path) -> Callable[[], int]:
    """LitData's loader of windows, shuffled."""
    import litdata
    import torch
    from torch.utils.data import DataLoader

    splits = np.concatenate([[0], np.cumsum(lengths)])
    writer = litdata.streaming.writer.BinaryWriter(
        str(folder / "lit"), chunk_bytes="64MB", item_loader=litdata.streaming.item_loader.TokensLoader()
    )
    for number in range(len(lengths)):
        writer.add_item(number, torch.from_numpy(tokens[splits[number] : splits[number + 1]]))
    writer.done()
    writer.merge()
    dataset = litdata.StreamingDataset(
        str(folder / "lit"),
        item_loader=litdata.streaming.item_loader.TokensLoader(LENGTH),
        shuffle=True,
        drop_last=True,
    )

    def work() -> int:
        return sum(1 for _ in islice(DataLoader(dataset, batch_size=BATCH), STEPS))

    return work


def streamed(view: Any) -> Callable[[], int]:
    """Shuffled batches of a view."""

    def work() -> int:
        batches = iter(view.stream(BATCH, shuffle=True, seed=1, num_epochs=None))
        return sum(1 for _ in islice(batches, STEPS))

    return work


def grain_packs(ref: Any, documents: int) -> Callable[[], int]:
    """Grain's first-fit packing of the same documents, shuffled."""
    import grain
    from grain.experimental import FirstFitPackIterDataset

    def work() -> int:
        source = grain.MapDataset.source(ref).shuffle(seed=1).map(lambda each: {"tokens": each["tokens"][:LENGTH]})
        packed = FirstFitPackIterDataset(
            source.to_iter_dataset(grain.ReadOptions(num_threads=0)),
            length_struct={"tokens": LENGTH},
            num_packing_bins=BATCH,
            shuffle_bins=False,
        )
        batches = iter(packed.batch(BATCH))
        return sum(1 for _ in islice(batches, max(1, documents * MEAN // LENGTH // BATCH // 20)))

    return work


def planning(lengths: Any) -> Callable[[], int]:
    """Plans of all documents."""

    def work() -> int:
        for _ in plan([lengths], Packing(LENGTH, LENGTH)):
            pass
        return len(lengths)

    return work


def resident_mb() -> float:
    """This process's own memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) / 1024


def one(reference: str, how: str) -> None:
    """Print, as JSON, what it costs to open a view of a version and read a first shuffled batch."""
    opened = cachelayer.open  # the imports that it brings are not what is measured
    own, started, worked = resident_mb(), time.perf_counter(), time.process_time()
    ref = opened(reference)
    whole = ref[1000:-1000] if how.endswith("slice") else ref
    view = whole.packed("tokens", LENGTH) if how.startswith("packed") else whole.windows("tokens", LENGTH)
    batch = next(iter(view.stream(BATCH, shuffle=True, seed=1)))
    done, work = time.perf_counter(), time.process_time() - worked
    if batch["tokens"].shape != (BATCH, LENGTH):
        raise ValueError("a whole batch was asked for")
    print(json.dumps({"ms": (done - started) * 1e3, "work": work * 1e3, "mb": resident_mb() - own}))


def opening(documents: int, folder: Path) -> Iterator[tuple[str, ...]]:
    """The cost of opening views of very many documents, in fresh processes."""
    lengths = lengths_of(documents, 32)
    tokens = drawn_tokens(int(lengths.sum()))
    started = time.perf_counter()
    ref = cached(folder / "many", lengths, tokens)
    yield "the build, from batches", f"{(time.perf_counter() - started) * 1e3:,.0f}", "", ""
    started = time.perf_counter()
    ref.packed("tokens", LENGTH)
    ref[1000:-1000].packed("tokens", LENGTH)
    yield "two plans, made and stored", f"{(time.perf_counter() - started) * 1e3:,.0f}", "", ""
    for how in ("windows", "windows of a slice", "packed", "packed of a slice"):
        command = [sys.executable, __file__, "--one", ref.reference, how]
        runs = [
            json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(5)
        ]
        times = (f"{median(run[key] for run in runs):.0f}" for key in ("ms", "work"))
        yield how, *times, f"{statistics.median(run['mb'] for run in runs):.0f}"


def main(megabytes: int, documents: int) -> None:
    """Print the tables."""
    lengths = lengths_of(megabytes * 1_000_000 // 4 // MEAN, MEAN)
    tokens = drawn_tokens(int(lengths.sum()))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ref = cached(folder / "storage", lengths, tokens)
        packed = ref.packed("tokens", LENGTH)
        contenders = {
            "windows": streamed(ref.windows("tokens", LENGTH)),
            FLAT: flat_file(tokens, folder),
            "packed": streamed(packed),
            GRAIN: grain_packs(ref, len(lengths)),
        }
        if find_spec("litdata"):
            contenders[LITDATA] = litdata(lengths, tokens, folder)
        rates = medians(contenders)
        rows = [(name, f"{rate:,.0f}", f"{rate * BATCH * LENGTH / 1e6:,.0f}") for name, rate in rates.items()]
        if LITDATA not in rates:
            rows.append((LITDATA, "litdata is not installed", ""))
        head = (f"batches of {BATCH} x {LENGTH}", "batches a second", "million tokens a second")
        print(table(f"{megabytes} MB of tokens in {len(lengths):,} documents ({machine()})", head, rows), end="\n\n")
        rows = [
            (f"{ours} / {other}", f"{rates[ours] / rates[other]:.2f}", f"{aim}")
            for ours, other, aim in AIMS
            if other in rates
        ]
        rows.append(("how far packs are filled", f"{packed.fill:.4f}", "0.97"))
        rate = medians({"plan": planning(lengths_of(1_000_000, LENGTH / 4))})["plan"]
        rows.append(("planning packs, million documents a second", f"{rate / 1e6:.2f}", "2"))
        print(table("Ratios", ("what", "measured", "aim"), rows), end="\n\n")
        head = (f"{documents:,} documents", "to the first shuffled batch, ms", "processor time, ms", "own memory, MB")
        title = "Opening, in a fresh process, page cache hot (aims: 50 ms, 50 MB)"
        print(table(title, head, list(opening(documents, folder))))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(*sys.argv[2:])
    else:
        main(*(int(text) for text in (sys.argv[1:] + ["200", "10000000"][len(sys.argv) - 1 :])))
