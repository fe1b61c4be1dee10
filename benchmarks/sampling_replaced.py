"""A stream in which others stand in for one element of a hundred, against the same stream without failures; in one run.

Run: ``python benchmarks/sampling_replaced.py``. The function fails for one record of a hundred, or the JPEG of one
record of a hundred is damaged. Both streams call the same function for the same number of elements in batches of 256.
"""

from __future__ import annotations

import io
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from harness import machine, medians, table
from PIL import Image

import cachelayer

RECORDS, PICTURES, BATCH, ONE_IN = 65_536, 4096, 256, 100
MOST = 1 << 60


def pixels(folder: Path) -> Any:
    """A version of images of 3 KiB, uncompressed."""
    images = np.random.default_rng(0).integers(0, 256, (RECORDS, 32, 32, 3), np.uint8)
    batch = {"image": images, "id": np.arange(RECORDS)}
    return cachelayer.Storage(folder).cache([batch], "pixels", "v1", unbatch=True)


def pictures(folder: Path, version: str, *, damaged: bool) -> Any:
    """A version of JPEGs of 64 x 64 pixels, of which one of a hundred is cut off if they are ``damaged``."""

    def elements() -> Any:
        for number in range(PICTURES):
            file = io.BytesIO()
            pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8).repeat(8, 0).repeat(8, 1)
            Image.fromarray(pixels).save(file, "JPEG")
            data = file.getvalue()
            yield {"image": data[:300] if damaged and number % ONE_IN == 7 else data, "id": number}

    spec = {"image": cachelayer.ImageSpec(), "id": np.int64}
    return cachelayer.Storage(folder).cache(elements, "pictures", version, element_spec=spec)


def flipped(bad: int) -> Callable[[dict[str, Any], np.random.Generator], dict[str, Any]]:
    """A function that flips images at random, and fails for records whose number ends with ``bad``."""

    def fn(element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        number, image = int(element["id"]), element["image"]
        if number % ONE_IN == bad:
            raise ValueError(f"record {number} has no label")
        return {"image": image[:, ::-1] if rng.random() < 0.5 else image, "id": number}

    return fn


def scaled(element: dict[str, Any]) -> dict[str, Any]:
    """Pixels from 0 to 1."""
    return {"image": element["image"].astype(np.float32) / 255, "id": element["id"]}


def epoch(stream: Any, records: int, failures: int) -> Callable[[], int]:
    """The steps of an epoch, in which so many elements fail."""

    def work() -> int:
        iterator = iter(stream)
        for _ in iterator:
            pass
        if len(iterator.failures) != failures:
            raise RuntimeError(f"{len(iterator.failures)} failures instead of {failures}")
        return records

    return work


def rows() -> list[tuple[str, ...]]:
    """What fails, the elements a second without and with failures, and their ratio; for a table."""
    warnings.simplefilter("ignore")  # of the first failure, and of a stream that is read again
    with tempfile.TemporaryDirectory() as folder:
        whole, cut = (pictures(Path(folder), name, damaged=name == "cut") for name in ("whole", "cut"))
        stored = pixels(Path(folder))

        def stream(ref: Any, fn: Any, **options: Any) -> Any:
            return ref.stream(BATCH, shuffle=True, seed=1).map(fn, **options)

        replaced = {"on_error": "replace", "max_failures": MOST}
        bad = {count: len(range(7, count, ONE_IN)) for count in (RECORDS, PICTURES)}
        rates = medians(
            {
                "plain": epoch(stream(stored, flipped(-1), rng=True), RECORDS, 0),
                "none": epoch(stream(stored, flipped(-1), rng=True, **replaced), RECORDS, 0),
                "some": epoch(stream(stored, flipped(7), rng=True, **replaced), RECORDS, bad[RECORDS]),
                "plain pictures": epoch(stream(whole, scaled), PICTURES, 0),
                "no pictures": epoch(stream(whole, scaled, **replaced), PICTURES, 0),
                "some pictures": epoch(stream(cut, scaled, **replaced), PICTURES, bad[PICTURES]),
            }
        )
    return [
        (what, f"{rates[plain]:,.0f}", f"{rates[none] / rates[plain]:.2f}", f"{rates[some] / rates[plain]:.2f}", "0.9")
        for what, plain, none, some in (
            ("a function", "plain", "none", "some"),
            ("a JPEG", "plain pictures", "no pictures", "some pictures"),
        )
    ]


def main() -> None:
    """Print the table."""
    title = f"One element of {ONE_IN} fails, and another stands in, in batches of {BATCH} ({machine()})"
    head = ("what fails", "elements/s if failures raise", "replaced, none fails", "replaced, 1 % fail", "aim")
    print(table(title, head, rows()))


if __name__ == "__main__":
    main()
