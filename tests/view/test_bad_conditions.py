"""The page under bad conditions: clients that are slow, gone, greedy or no browsers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest
from view_client import Client, serving

import cachelayer

CLIENTS = 60


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> cachelayer.Storage:
    storage = cachelayer.Storage(tmp_path_factory.mktemp("storage"))
    storage.submit({"x": np.arange(50_000)}, "d@v1")
    for name in ("v2", "v3"):
        storage.append("d", "v1", name, {"x": np.arange(int(name[1]))})
    return storage


@pytest.fixture(scope="module")
def client(storage: cachelayer.Storage) -> Iterator[Client]:
    with serving(storage) as client:
        yield client


def connected(client: Client, sent: bytes) -> socket.socket:
    """A client with a small window that has sent this, and reads nothing."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.settimeout(30)
    connection.connect(("127.0.0.1", client.server.port))
    connection.sendall(sent)
    return connection


def request(client: Client, path: str, method: str = "GET", more: str = "") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {client.cookie}\r\n{more}\r\n".encode()


@pytest.mark.parametrize("kind", ["half a request", "half a form", "never reads", "asks again and again"])
def test_slow_clients_keep_nobody_waiting(client: Client, kind: str) -> None:
    sent = {
        "half a request": b"GET /d/d HTTP/1.1\r\nHost: 127",
        "half a form": request(client, "/d/d/v1/statistics", "POST", "Content-Length: 100\r\n") + b"do=",
        "never reads": request(client, "/d/d/v1/records?count=200"),
        "asks again and again": 20 * request(client, "/d/d/v1/records?count=200"),
    }[kind]
    with ExitStack() as clients:
        for _ in range(CLIENTS if kind != "asks again and again" else 3):
            clients.enter_context(connected(client, sent))
        assert client.get("/d/d/v1").status == 200


def test_a_client_that_goes_in_the_middle_of_a_form_is_no_bug(
    storage: cachelayer.Storage, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with serving(storage) as client:
        for _ in range(5):
            sent = request(client, "/d/d/v1/statistics", "POST", "Content-Length: 100\r\n") + b"do=all"
            connected(client, sent).close()
        assert client.get("/").status == 200
    assert caplog.records == []
    assert capfd.readouterr().err == ""
