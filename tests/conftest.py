"""Object stores that run for the whole session, and the same environment for every test."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from servers import Server, gcs_server, s3_server

# Who runs tests in several processes may set the width of a terminal, which tables would keep to.
os.environ.pop("COLUMNS", None)


@pytest.fixture(scope="session")
def s3() -> Iterator[Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def gcs() -> Iterator[Server]:
    with gcs_server() as server:
        yield server


@pytest.fixture(params=["s3", "gcs"])
def server(request: pytest.FixtureRequest) -> Server:
    """Each of them in turn."""
    found: Server = request.getfixturevalue(request.param)
    return found
