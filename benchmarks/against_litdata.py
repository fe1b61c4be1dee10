"""LitData and torchvision beside cachelayer: JPEG files, decoded and resized, in the first epoch and in the second.

LitData published this for ImageNet on a large machine (https://lightning.ai/docs/litdata/benchmarks). Here are fewer
files of that kind, from moto on the cores of what is measured: the same files, transform, batches, seed and number of
workers on both sides. torchvision's ImageFolder has them on the disk. Each contender has a process of its own and an
empty cache; they take turns. Processor time is that of the process and its workers: what others do on the machine
changes it least. A third epoch of the first turn, which does not count, shows that each gives all files, whole.

Run: ``python benchmarks/against_litdata.py [--pictures N] [--rounds N]``, after ``pip install -e '.[s3,torch]' moto
litdata==0.2.76 pillow psutil torchvision``.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import numpy as np
from harness import arguments, jpegs, machine, table
from PIL import Image
from servers import new_bucket, s3_server

BATCH, SIDE, WORKERS, SEED = 64, 224, 2, 1
CHUNK = 16 << 20
FILES = "PICTURES"
"""The variable of the environment that has the folder of the files on the disk."""
Epochs = Callable[[int], Iterable[Any]]
Setup = Callable[[str, dict[str, str], str], Epochs]


def decoded(element: dict[str, Any]) -> dict[str, Any]:
    """The picture of an element as pixels of one size."""
    image = Image.open(io.BytesIO(element["image"]))
    image.draft("RGB", (SIDE, SIDE))
    pixels = np.array(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR))
    return {"image": pixels, "label": element["label"]}


def as_it_is(value: Any) -> Any:
    return value


def litdata(transform: Callable[[Any], Any], workers: int, collate: Any = None) -> Setup:
    """Its loader of its dataset."""

    def setup(url: str, options: dict[str, str], cache: str) -> Epochs:
        from litdata import StreamingDataLoader, StreamingDataset
        from litdata.streaming import downloader

        # LitData has no option for a server without TLS.
        downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
        keys = {"aws_access_key_id": options["key"], "aws_secret_access_key": options["secret"]}
        dataset = StreamingDataset(
            f"{url}/lit",
            cache_dir=cache,
            shuffle=True,
            seed=SEED,
            transform=transform,
            storage_options={**keys, "endpoint_url": options["endpoint_url"]},
        )
        staying = {"num_workers": workers, "persistent_workers": workers > 0}
        loader = StreamingDataLoader(dataset, batch_size=BATCH, collate_fn=collate, **staying)
        return lambda _: loader

    return setup


def decoded_file(path: str) -> Any:
    return decoded({"image": Path(path).read_bytes(), "label": 0})["image"]


def collated(pairs: list[tuple[Any, int]]) -> dict[str, Any]:
    import torch

    pixels, labels = zip(*pairs, strict=True)
    return {"image": torch.stack([torch.as_tensor(each) for each in pixels]), "label": torch.tensor(labels)}


def folder(url: str, options: dict[str, str], cache: str) -> Epochs:  # noqa: ARG001
    """An ImageFolder of files on the disk."""
    import torch
    from torchvision.datasets import ImageFolder

    torch.manual_seed(SEED)
    dataset = ImageFolder(os.environ[FILES], loader=decoded_file)
    options_of_loader = {"batch_size": BATCH, "num_workers": WORKERS, "persistent_workers": True}
    loader = torch.utils.data.DataLoader(dataset, shuffle=True, collate_fn=collated, **options_of_loader)
    return lambda _: loader


def ours(way: str, shuffle: Any = True) -> Setup:
    """A shuffled stream of the files, or a loader that decodes them."""

    def setup(url: str, options: dict[str, str], cache: str) -> Epochs:
        import cachelayer
        from cachelayer.adapters.torch import loader

        storage = cachelayer.Storage(f"{url}/ours", storage_options=options, local_cache=cache)
        if way == "threads":
            pictures = storage.fetch("pictures@v1").decoded(size=(SIDE, SIDE))
            threads = loader(pictures.stream(BATCH, shuffle=shuffle, seed=SEED))
            return lambda _: threads
        stream = storage.fetch("files@v1").stream(BATCH, shuffle=shuffle, seed=SEED)
        if way == "workers":
            workers = loader(stream.map(decoded), num_workers=WORKERS)
            return lambda _: workers
        return stream.epoch

    return setup


CONTENDERS: dict[str, Setup] = {
    f"LitData, decoded in {WORKERS} workers": litdata(decoded, WORKERS),
    f"ImageFolder of files on the disk, decoded by the same function in {WORKERS} workers": folder,
    f"cachelayer, decoded by the same function in {WORKERS} workers": ours("workers"),
    "cachelayer, decoded by `ref.decoded` in threads": ours("threads"),
    f"cachelayer in blocks, decoded by the same function in {WORKERS} workers": ours("workers", "blocks"),
    "cachelayer in blocks, decoded by `ref.decoded` in threads": ours("threads", "blocks"),
    "LitData, files as they are, no workers": litdata(as_it_is, 0, collate=as_it_is),
    "cachelayer, files as they are, no workers": ours("files"),
    "cachelayer in blocks, files as they are, no workers": ours("files", "blocks"),
}


def store(url: str, options: dict[str, str], pictures: int) -> None:
    """Write the same files for both."""
    import s3fs
    from litdata import optimize

    import cachelayer

    elements = [{"image": file, "label": number} for number, file in enumerate(jpegs(pictures))]
    for element in elements:
        # One class a picture: so a label says which picture it is of.
        path = Path(os.environ[FILES], f"{element['label']:07}", "picture.jpg")
        path.parent.mkdir()
        path.write_bytes(element["image"])
    storage = cachelayer.Storage(f"{url}/ours", storage_options=options, local_cache_bytes=0)
    storage.submit(elements, "files@v1", shard_bytes=CHUNK, progress=False)
    spec = {"image": cachelayer.ImageSpec(), "label": cachelayer.ArraySpec("int64")}
    storage.submit(elements, "pictures@v1", element_spec=spec, shard_bytes=CHUNK, progress=False)
    with tempfile.TemporaryDirectory() as folder:
        optimize(as_it_is, elements, folder, chunk_bytes=CHUNK, num_workers=1, start_method="fork", verbose=False)
        s3fs.S3FileSystem(**options).put(f"{folder}/", f"{url}/lit/", recursive=True)


def contents(batches: Iterable[Any]) -> dict[int, int]:
    """A checksum of the picture of each label."""
    found: dict[int, int] = {}
    for batch in batches:
        pairs = (
            zip(batch["label"], batch["image"], strict=True)
            if isinstance(batch, dict)
            else ((element["label"], element["image"]) for element in batch)
        )
        for label, image in pairs:
            raw = image if isinstance(image, bytes) else np.ascontiguousarray(image)
            found[int(label)] = zlib.crc32(raw)
    return found


def processor_seconds() -> float:
    """The processor time of this process and its workers, also those that ended."""
    import psutil

    me = psutil.Process()
    return sum(sum(each.cpu_times()[:4]) for each in (me, *me.children(recursive=True)))


def serve(name: str, url: str, options: dict[str, str], cache: str, check: bool) -> None:
    """Do two epochs, and print the pictures a second of each; then a third if what is in it is to be checked."""
    epochs = CONTENDERS[name](url, options, cache)
    rates = []
    rates_of_processor = []
    for epoch in range(2):
        started = time.perf_counter()
        spent = processor_seconds()
        count = sum(len(batch["label"]) if isinstance(batch, dict) else len(batch) for batch in epochs(epoch))
        rates.append(count / (time.perf_counter() - started))
        rates_of_processor.append(count / (processor_seconds() - spent))
    checksum = zlib.crc32(repr(sorted(contents(epochs(2)).items())).encode()) if check else None
    print(json.dumps({"rates": rates + rates_of_processor, "count": count, "checksum": checksum}))


def main(pictures: int, rounds: int) -> None:
    """Print the table."""
    rates: dict[str, list[tuple[float, ...]]] = {name: [] for name in CONTENDERS}
    checksums: dict[bool, set[tuple[int, int]]] = {True: set(), False: set()}
    with s3_server() as server, tempfile.TemporaryDirectory() as files:
        url, options = server.url(new_bucket(server)), json.dumps(server.storage_options())
        environment = {**os.environ, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", FILES: files}

        def child(*arguments: str) -> str:
            command = [sys.executable, __file__, *arguments]
            return subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True).stdout

        child("store", url, options, str(pictures))
        for number in range(rounds):
            for name in CONTENDERS:
                with tempfile.TemporaryDirectory() as cache:
                    report = json.loads(child("serve", name, url, options, cache, str(number)).splitlines()[-1])
                print(name, report, file=sys.stderr, flush=True)
                if number == 0:
                    checksums["decoded" in name].add((report["count"], report["checksum"]))
                rates[name].append(tuple(report["rates"]))
    if any(len(found) != 1 for found in checksums.values()):
        raise ValueError(f"the contenders gave different pictures: {checksums}")
    title = f"Pictures a second, medians of {rounds} rounds ({machine('litdata', 'torch', 'torchvision')})"
    medians = {name: [median(epoch) for epoch in zip(*rounds_of, strict=True)] for name, rounds_of in rates.items()}
    rows = [(name, *(f"{rate:,.0f}" for rate in found)) for name, found in medians.items()]
    head = "contender", "first epoch", "second epoch", "first, a processor second", "second, a processor second"
    print(table(title, head, rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["store"]:
        store(sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4]))
    elif sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2], sys.argv[3], json.loads(sys.argv[4]), sys.argv[5], sys.argv[6] == "0")
    else:
        given = arguments(__doc__, pictures=1_200, rounds=3)
        main(given.pictures, given.rounds)
