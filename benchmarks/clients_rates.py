"""Records a second of the data of programs that other people wrote, before and after: used by clients.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from harness import medians

import cachelayer
from cachelayer import ArraySpec

RECORDS, SIDE, BATCH = 20_000, 32, 128
PICTURES, PIXELS = 1000, 160
DOCUMENTS, LENGTH = 20_000, 1024
Rates = tuple[float, float]


def images() -> dict[str, np.ndarray]:
    """Records of 3 KB."""
    pixels = np.random.default_rng(0).integers(0, 256, (RECORDS, SIDE, SIDE, 3), dtype=np.uint8)
    return {"image": pixels, "label": np.arange(RECORDS)}


def cached(folder: Path) -> Any:
    """The records as a version."""
    return cachelayer.Storage(folder / "cache").cache(images, "images-3k", "v1")


def compared(size: int, before: Callable[[int], Iterable[Any]], after: Callable[[int], Iterable[Any]]) -> Rates:
    """Go through an epoch of each, in turn; both get the number of the epoch."""
    epochs = iter(range(1000))

    def counted(batches: Callable[[int], Iterable[Any]]) -> Callable[[], int]:
        return lambda: sum(1 for _ in batches(next(epochs))) * size

    found = medians({"before": counted(before), "after": counted(after)}, rounds=3)
    return found["before"], found["after"]


def trainer(folder: Path) -> Rates:
    """``datasets`` on disk, in torch's format, against ``to_torch``: what ``get_train_dataloader`` gives."""
    import datasets
    from torch.utils.data import DataLoader
    from transformers import default_data_collator

    from cachelayer.adapters.torch import Sampler, to_torch

    arrays = images()
    table = {"image": arrays["image"].reshape(RECORDS, -1)[:2000], "label": arrays["label"][:2000]}
    datasets.Dataset.from_dict(table).save_to_disk(str(folder / "datasets"))
    before = datasets.load_from_disk(str(folder / "datasets")).with_format("torch")
    ref = cachelayer.Storage(folder / "cache").cache(table, "flat", "v1")

    def loader(dataset: Any, **options: Any) -> Any:
        return DataLoader(dataset, 50, collate_fn=default_data_collator, **options)

    ours = to_torch(ref)
    return compared(
        50, lambda _: loader(before, shuffle=True), lambda e: loader(ours, sampler=Sampler(ref, 1, 0, seed=e))
    )


def memory_map(folder: Path) -> np.ndarray:
    """The pixels as a memory map."""
    path = folder / "images.npy"
    if not path.exists():
        np.save(path, images()["image"])
    return np.load(path, mmap_mode="r")


def lightning(folder: Path) -> Rates:
    """A ``DataLoader`` with ``shuffle=True`` over a memory map, against ``loader(stream)``."""
    from torch.utils.data import DataLoader, Dataset

    from cachelayer.adapters.torch import loader

    class Mapped(Dataset):
        pixels = memory_map(folder)

        def __len__(self) -> int:
            return RECORDS

        def __getitem__(self, number: int) -> dict[str, Any]:
            return {"image": np.array(self.pixels[number]), "label": number}

    ref = cached(folder)
    return compared(
        BATCH,
        lambda _: DataLoader(Mapped(), BATCH, shuffle=True),
        lambda e: loader(ref.stream(BATCH, shuffle=True, seed=e)),
    )


def keras(folder: Path) -> Rates:
    """A ``PyDataset`` that picks the rows of an exactly shuffled batch from a memory map, against ``to_keras``."""
    import keras as k

    from cachelayer.adapters.keras import to_keras

    class Mapped(k.utils.PyDataset):
        pixels = memory_map(folder)

        def __init__(self, epoch: int) -> None:
            super().__init__()
            self.order = np.random.default_rng(epoch).permutation(RECORDS)

        def __len__(self) -> int:
            return RECORDS // BATCH

        def __getitem__(self, number: int) -> Any:
            rows = self.order[number * BATCH : (number + 1) * BATCH]
            return self.pixels[rows], rows

    def through(dataset: Any) -> Iterable[Any]:
        return (dataset[number] for number in range(len(dataset)))

    stream = cached(folder).stream
    pairs = lambda batch: (batch["image"], batch["label"])  # noqa: E731
    return compared(
        BATCH,
        lambda e: through(Mapped(e)),
        lambda e: through(to_keras(stream(BATCH, shuffle=True, seed=e, remainder="drop").map_batches(pairs))),
    )


def records_of_grain(folder: Path, encoded: Iterable[bytes], name: str) -> Any:
    """An ArrayRecord file, as Grain's own source."""
    import grain
    from array_record.python.array_record_module import ArrayRecordWriter

    path = folder / f"{name}.array_record"
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for record in encoded:
        writer.write(record)
    writer.close()
    return grain.sources.ArrayRecordDataSource(str(path))


def nnx(folder: Path) -> Rates:
    """``ArrayRecordDataSource`` in Grain, then a global array, against ``global_batches``."""
    import grain
    import jax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    from cachelayer.adapters.jax import global_batches

    sharding = NamedSharding(jax.make_mesh((1,), ("data",)), P("data"))
    source = records_of_grain(folder, (each.tobytes() for each in images()["image"]), "images")

    def before(epoch: int) -> Iterable[Any]:
        dataset = grain.MapDataset.source(source).shuffle(seed=epoch)
        dataset = dataset.map(lambda raw: np.frombuffer(raw, np.uint8).reshape(SIDE, SIDE, 3)).batch(BATCH)
        return (jax.make_array_from_process_local_data(sharding, each) for each in dataset.to_iter_dataset())

    ref = cached(folder)
    return compared(
        BATCH, before, lambda e: global_batches(ref.stream(BATCH, shuffle=True, seed=e, remainder="drop"), sharding)
    )


def documents(folder: Path) -> tuple[list[np.ndarray], Any]:
    """Documents of 50 to 800 tokens, as arrays and as a version."""
    rng = np.random.default_rng(0)
    arrays = [rng.integers(1, 50_000, size).astype(np.int32) for size in rng.integers(50, 800, DOCUMENTS)]
    batch = {"tokens": cachelayer.Ragged(np.concatenate(arrays), np.cumsum([0, *map(len, arrays)]))}
    spec = {"tokens": ArraySpec("int32", (None,))}
    storage = cachelayer.Storage(folder / "cache")
    return arrays, storage.cache([batch], "documents-b", "v1", element_spec=spec, unbatch=True)


def nanogpt(folder: Path) -> Rates:
    """``get_batch`` at random offsets of a memory map, against a loader of windows: rows of 1,024 tokens."""
    import torch

    from cachelayer.adapters.torch import loader

    arrays, ref = documents(folder)
    np.concatenate(arrays).astype(np.uint16).tofile(folder / "train.bin")
    windows = ref.windows("tokens", LENGTH + 1, stride=LENGTH)
    count = len(windows) // 12

    def get_batch() -> Any:
        data = np.memmap(folder / "train.bin", dtype=np.uint16, mode="r")
        places = torch.randint(len(data) - LENGTH - 1, (12,))
        return torch.stack([torch.from_numpy(data[i : i + LENGTH + 1].astype(np.int64)) for i in places])

    return compared(
        12,
        lambda _: (get_batch() for _ in range(count)),
        lambda e: (batch["tokens"].long() for batch in loader(windows.stream(12, shuffle=True, seed=e))),
    )


def maxtext(folder: Path) -> Rates:
    """Grain's source, packing and batches, against packs: rows of 1,024 tokens, without worker processes."""
    import grain

    from cachelayer.adapters.grain import iter_dataset

    arrays, ref = documents(folder)
    source = records_of_grain(folder, (each.tobytes() for each in arrays), "documents")

    def before(epoch: int) -> Iterable[Any]:
        dataset = grain.MapDataset.source(source).shuffle(seed=epoch)
        dataset = dataset.map(lambda raw: {"tokens": np.frombuffer(raw, np.int32)}).to_iter_dataset()
        packed = grain.experimental.FirstFitPackIterDataset(
            dataset, length_struct={"tokens": LENGTH}, num_packing_bins=16
        )
        return packed.batch(16)

    packs = ref.packed("tokens", LENGTH)
    return compared(16, before, lambda e: iter_dataset(packs.stream(16, shuffle=True, seed=e, remainder="drop")))


RATES: dict[str, Callable[[Path], Rates]] = {
    "trainer": trainer,
    "lightning": lightning,
    "keras": keras,
    "nnx": nnx,
    "nanogpt": nanogpt,
    "maxtext": maxtext,
}
