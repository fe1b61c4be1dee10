"""Processes that tests fork off one that has imported what they need."""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection

import pytest
from forks import FORKS, IMPORTED


def tell_modules(told: Connection) -> None:
    told.send(set(sys.modules))


@pytest.mark.needs("gcsfs", "obstore", "s3fs")
def test_a_forked_process_has_imported_what_it_needs() -> None:
    heard, told = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=tell_modules, args=(told,))
    process.start()
    assert set(IMPORTED) <= heard.recv()
    process.join()
