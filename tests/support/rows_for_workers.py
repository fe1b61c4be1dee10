"""Rows that worker processes make: each process imports this file, and nothing of the tests."""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

RECORDS = 5000


def row(number: int) -> dict[str, Any]:
    return {"x": number, "text": None if number == 4000 else "t" * (number % 50), "pid": np.zeros(number % 9)}


class Rows(Sequence[Any]):
    """Rows, some of which may do something else."""

    def __init__(self, at: int = -1, do: str = "", records: int = RECORDS) -> None:
        self.at, self.do, self.records = at, do, records

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, number: Any) -> Any:
        if not 0 <= number < self.records:
            raise IndexError(number)
        if number == self.at:
            if self.do == "fail":
                raise OSError("the disk of the source went away")
            if self.do == "misfit":
                return {**row(number), "x": "one"}
            if self.do == "print":
                sys.stdout.write("a line of the source\n")
                sys.stdout.flush()
            if self.do == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.do == "exit":
                os._exit(7)
        return row(number)


def uniform(number: int) -> dict[str, Any]:
    return {"x": np.full(100, number, np.int32), "y": number if number % 7 else None}


class Listed(Sequence[Any]):
    """Elements of one size; a part of them is not known to be."""

    def __init__(self, records: int = 1000, make: Callable[[int], Any] = uniform) -> None:
        self.records, self.make = records, make

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, number: Any) -> Any:
        if not 0 <= number < self.records:
            raise IndexError(number)
        return self.make(number)
