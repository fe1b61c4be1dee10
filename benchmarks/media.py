"""JPEG files of 500 x 400 pixels as batches of 224 x 224: threads, against the pipelines of TensorFlow and PyTorch.

Run: ``python benchmarks/media.py``. Each contender has a process of its own, and they take turns. Wall time says little
while other programs run; the time of the processor does not change much then.
"""

from __future__ import annotations

import io
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import numpy as np
from harness import ROUNDS, machine, note_spread, table
from PIL import Image

PICTURES, DISTINCT, BATCH, SIDE = 640, 80, 64, 224
ONE, TWO, WHOLE = "cachelayer, 1 thread", "cachelayer, 2 threads", "500 x 400 as they are"
ONE_WHOLE, TWO_WHOLE = f"{ONE}, {WHOLE}", f"{TWO}, {WHOLE}"
AIMS = {ONE: 1.8, ONE_WHOLE: 1.8}
Epoch = Callable[[], Iterable[Any]]


def jpegs(count: int, width: int, height: int) -> list[bytes]:
    """Different files of smooth shapes with some noise, about as long as those of photographs."""
    rng = np.random.default_rng(0)
    files = []
    for _ in range(count):
        shapes = Image.fromarray(rng.integers(0, 256, (height // 16, width // 16, 3), np.uint8))
        smooth = np.asarray(shapes.resize((width, height), Image.Resampling.BICUBIC))
        noisy = smooth + rng.normal(0, 6, smooth.shape)
        file = io.BytesIO()
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
        files.append(file.getvalue())
    return files


def ours(folder: Path, threads: int | None, *, whole: bool = False) -> Epoch:
    """A stream of the cached files."""
    import cachelayer

    if threads is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    ref = cachelayer.Storage(folder / "cache").fetch("pictures@v1")
    stream = (ref if whole else ref.decoded(size=(SIDE, SIDE))).stream(BATCH, num_epochs=1)
    return lambda: stream


def tf_data(folder: Path, *, antialias: bool) -> Epoch:
    """A tf.data pipeline that tunes itself, over a TFRecord file."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    def decode(file: Any) -> Any:
        image = tf.image.resize(tf.io.decode_jpeg(file, 3), (SIDE, SIDE), antialias=antialias)
        return tf.cast(image, tf.uint8)

    dataset = tf.data.TFRecordDataset(str(folder / "pictures.tfrecord")).map(decode, tf.data.AUTOTUNE)
    dataset = dataset.batch(BATCH).prefetch(tf.data.AUTOTUNE)
    return dataset.as_numpy_iterator


class Pictures:
    """A map-style dataset of files in memory, decoded as ``ref.decoded`` does."""

    def __init__(self, files: list[bytes]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> np.ndarray:
        image = Image.open(io.BytesIO(self.files[number]))
        image.draft(None, (SIDE, SIDE))
        return np.array(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR))


def torch_loader(folder: Path) -> Epoch:
    """A DataLoader with two workers, which go on from epoch to epoch, over files in memory."""
    from torch.utils.data import DataLoader

    data, ends = (folder / "pictures.bin").read_bytes(), np.cumsum(np.load(folder / "lengths.npy")).tolist()
    files = [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    loader = DataLoader(Pictures(files), BATCH, num_workers=2, persistent_workers=True)  # type: ignore[arg-type]
    return lambda: loader


CONTENDERS: dict[str, Callable[[Path], Epoch]] = {
    ONE: lambda folder: ours(folder, 1),
    TWO: lambda folder: ours(folder, 2),
    "tf.data, AUTOTUNE, antialias=True": lambda folder: tf_data(folder, antialias=True),
    "tf.data, AUTOTUNE, antialias=False": lambda folder: tf_data(folder, antialias=False),
    "torch DataLoader, 2 workers": torch_loader,
    ONE_WHOLE: lambda folder: ours(folder, 1, whole=True),
    TWO_WHOLE: lambda folder: ours(folder, 2, whole=True),
}


def store(folder: Path) -> None:
    """Write the files in the form that each contender reads."""
    import tensorflow as tf

    import cachelayer

    files = jpegs(DISTINCT, 500, 400) * (PICTURES // DISTINCT)
    cachelayer.Storage(folder / "cache").submit(files, "pictures", "v1", element_spec=cachelayer.ImageSpec())
    with tf.io.TFRecordWriter(str(folder / "pictures.tfrecord")) as writer:
        for file in files:
            writer.write(file)
    with (folder / "pictures.bin").open("wb") as out:
        out.writelines(files)
    np.save(folder / "lengths.npy", [len(file) for file in files])


def processor_seconds() -> float:
    """The time of the processor that this process and its workers have taken."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    ticks = 0
    for worker in active_children():
        fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return own.ru_utime + own.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


def peak_of_all_mb() -> float:
    """The peak of this process and those of its workers, in MB. Workers share some of it with their parent."""
    peaks = 0
    for pid in ["self", *(worker.pid for worker in active_children())]:
        (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
        peaks += int(line.split()[1])
    return peaks / 1024


def serve(name: str, folder: Path) -> None:
    """Do an epoch for each line of the standard input, and print what it took."""
    epoch = CONTENDERS[name](folder)
    for _ in sys.stdin:
        processor, started = processor_seconds(), time.perf_counter()
        pictures = sum(len(batch) for batch in epoch())
        seconds = time.perf_counter() - started
        if pictures != PICTURES:
            raise ValueError(f"{name} gave {pictures} pictures")
        used = (processor_seconds() - processor) / pictures * 1e6
        print(json.dumps([pictures / seconds, used, peak_of_all_mb()]), flush=True)


def measured(folder: Path) -> dict[str, list[list[float]]]:
    """Rates, microseconds of the processor and peaks of all contenders, in rounds after a first that does not count."""
    commands = {name: [sys.executable, __file__, "serve", name, str(folder)] for name in CONTENDERS}
    running = {
        name: subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for name, command in commands.items()
    }
    found: dict[str, list[list[float]]] = {name: [] for name in running}
    for number in range(ROUNDS + 1):
        for name, process in running.items():
            print("epoch", file=process.stdin, flush=True)
            result = json.loads(process.stdout.readline())
            if number:
                found[name].append(result)
    for process in running.values():
        process.communicate()
    return found


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        # TensorFlow writes a file here, and no contender must have it in its process.
        subprocess.run([sys.executable, __file__, "store", folder], check=True)
        found = measured(Path(folder))
    ratios = compared(found)
    lines = []
    for name, results in found.items():
        rates, used, peaks = (list(column) for column in zip(*results, strict=True))
        note_spread((max(rates) - min(rates)) / statistics.median(rates))
        spread = f"{statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"
        lines.append((name, spread, f"{statistics.median(used):,.0f}", ratios.get(name, ""), f"{max(peaks):,.0f} MB"))
    head = ("500 x 400 JPEG to 224 x 224", "pictures/s", "processor, us a picture", "2 threads / this", "peak memory")
    title = f"Images, batches of {BATCH}, medians of {ROUNDS} and spread ({machine()}; load {os.getloadavg()[0]:.1f})"
    print(table(title, head, lines))


def compared(found: dict[str, list[list[float]]]) -> dict[str, str]:
    """How many times as fast two threads are, round by round: the median."""
    ratios = {}
    for name, results in found.items():
        first = TWO_WHOLE if WHOLE in name else TWO
        if name != first:
            each = [two[0] / other[0] for two, other in zip(found[first], results, strict=True)]
            ratios[name] = f"{statistics.median(each):.2f} (aim {AIMS.get(name, 1)})"
    return ratios


if __name__ == "__main__":
    if sys.argv[1:2] == ["store"]:
        store(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2], Path(sys.argv[3]))
    else:
        main()
