"""The operations that make a version: each makes ``new`` in a storage that has the version ``d@v1``."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import cachelayer
from cachelayer import DataRef, Storage
from cachelayer.streams.order.permutation import permuted

RECORDS = 60
OPTIONS: dict[str, Any] = {"shard_bytes": 6_000, "progress": False}
KEPT = [3, 1, 4, 59, 4]
SEED = 7


def row(number: int) -> dict[str, Any]:
    text = None if number == 99 else f"row {number}"
    return {"number": number, "payload": np.full(500, number % 251, np.uint8), "text": text}


def rows(start: int = 0, stop: int = RECORDS) -> list[dict[str, Any]]:
    return [row(number) for number in range(start, stop)]


def generated() -> Iterator[dict[str, Any]]:
    yield from rows(RECORDS, 2 * RECORDS)


class Listed:
    """The records as a sequence, which can begin at any of them."""

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, number: int) -> Any:
        if not 0 <= number < RECORDS:
            raise IndexError(number)
        return row(RECORDS + number)


def part(index: int, count: int) -> list[dict[str, Any]]:
    return rows(RECORDS + RECORDS * index // count, RECORDS + RECORDS * (index + 1) // count)


def doubled(batch: dict[str, Any]) -> dict[str, Any]:
    return {"double": batch["number"] * 2}


TABLE = {"number": np.arange(2 * RECORDS)[::-2], "half": np.arange(2 * RECORDS)[::-2] / 2}
Operation = Callable[[Storage, str], DataRef[Any]]
BUILDS: dict[str, Operation] = {
    "submit": lambda storage, new: storage.submit(generated, f"d@{new}", **OPTIONS),
    "cache": lambda storage, new: storage.cache(generated, f"d@{new}", **OPTIONS),
    "sequence": lambda storage, new: storage.cache(Listed(), f"d@{new}", **OPTIONS),
    "parts": lambda storage, new: storage.cache(cachelayer.sharded(part, 6), f"d@{new}", hosts=(0, 1), **OPTIONS),
}
OF_A_BASE: dict[str, Operation] = {
    "append": lambda storage, new: storage.append("d@v1", new=new, source=generated, **OPTIONS),
    "derive": lambda storage, new: storage.derive("d@v1", new=new, keep=KEPT),
    "rewrite": lambda storage, new: storage.rewrite("d@v1", new=new, shuffle_seed=SEED, **OPTIONS),
    "columns": lambda storage, new: storage.add_columns("d@v1", new=new, columns=doubled, batched=True, **OPTIONS),
    "join": lambda storage, new: storage.add_columns(
        "d@v1", new=new, columns=TABLE, on="number", how="left", **OPTIONS
    ),
    "copy": lambda storage, new: storage.copy("d@v1", to=storage, new=new, progress=False),
}
OPERATIONS = BUILDS | OF_A_BASE


def expected(name: str) -> list[dict[str, Any]]:
    """Return the elements of the version that an operation makes."""
    base = rows()
    of_a_base: dict[str, Callable[[], list[Any]]] = {
        "append": lambda: base + list(generated()),
        "derive": lambda: [base[number] for number in KEPT],
        "rewrite": lambda: [base[number] for number in permuted(RECORDS, SEED, 0, 0, RECORDS).tolist()],
        "columns": lambda: [{**element, "double": 2 * element["number"]} for element in base],
        "join": lambda: [
            {**element, "half": element["number"] / 2 if element["number"] % 2 else None} for element in base
        ],
        "copy": lambda: base,
    }
    return of_a_base.get(name, lambda: list(generated()))()


def submit_base(storage: Storage) -> DataRef[Any]:
    return storage.submit(rows(), "d@v1", metadata={"of": "tests"}, description="numbers", **OPTIONS)
