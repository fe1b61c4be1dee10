"""The page under bad conditions: clients that are slow, gone, greedy or no browsers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from threads_denied import no_threads
from view_client import Client, serving

import cachelayer
from cachelayer.view import surveys
from cachelayer.view.surveys import Survey, Surveys

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


def test_a_client_that_reads_one_byte_at_a_time_gets_its_page_and_others_theirs(client: Client) -> None:
    with connected(client, request(client, "/static/view.css", more="Connection: close\r\n")) as slow:
        first = slow.recv(1)
        assert client.get("/d/d/v1").status == 200
        received = first + b"".join(iter(lambda: slow.recv(1), b""))
    assert received.startswith(b"HTTP/1.1 200")
    assert received.endswith(client.get("/static/view.css").body[-20:])


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"a" * 1_000_000 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00" + bytes(100),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["line of 1 MB", "header of 1 MB", "TLS", "no host"],
)
def test_what_is_no_request_is_refused_and_the_server_lives(
    client: Client, capfd: pytest.CaptureFixture[str], sent: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", client.server.port), timeout=30) as connection:
        try:
            connection.sendall(sent)
            answer = connection.recv(100)
        except ConnectionError:
            answer = b""
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
    assert client.get("/").status == 200
    assert capfd.readouterr().err == ""


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


def test_a_cookie_of_our_name_that_another_server_set_hides_not_ours(client: Client) -> None:
    name = client.cookie.partition("=")[0]
    for cookies in (f"{name}=old; {client.cookie}", f"{client.cookie}; {name}=old", f"a=b; ;=; {client.cookie}"):
        assert Client(client.server).ask("/", Cookie=cookies).status == 200
    assert Client(client.server).ask("/", Cookie=f"{name}=old; {name}=older").status == 403


def test_two_surveys_run_at_once_and_a_third_is_told_which(storage: cachelayer.Storage, monkeypatch: Any) -> None:
    waiting = threading.Event()
    monkeypatch.setattr(Survey, "_count", lambda *_: waiting.wait(60))
    running = Surveys()
    refs = [storage.fetch("d", name) for name in ("v1", "v2", "v3")]
    started = [running.start(ref, None) for ref in refs[:2]]
    try:
        assert running.start(refs[0], None) is started[0]
        with pytest.raises(cachelayer.InvalidArgumentError, match="d@v2"):
            running.start(refs[2], None)
    finally:
        waiting.set()
        for each in started:
            each.join(60)
    running.start(refs[2], None).join(60)


def test_a_survey_that_gets_no_thread_is_refused_and_started_by_the_next_try(storage: cachelayer.Storage) -> None:
    running, ref = Surveys(), storage.fetch("d@v1")
    with no_threads(), pytest.raises(cachelayer.StorageError, match="no thread to read statistics in"):
        running.start(ref, 10)
    assert running.find(ref) is None
    running.start(ref, 10).join(60)


def test_a_survey_that_was_stopped_is_started_anew_before_it_has_ended(
    storage: cachelayer.Storage, monkeypatch: Any
) -> None:
    reads, go_on, count = threading.Event(), threading.Event(), Survey._count

    def waiting(survey: Survey, read: int) -> None:
        reads.set()
        go_on.wait(60)
        count(survey, read)

    monkeypatch.setattr(Survey, "_count", waiting)
    running, ref = Surveys(), storage.fetch("d@v1")
    stopped = running.start(ref, 10)
    try:
        assert reads.wait(60)
        stopped.stop()
        assert (stopped.is_running, stopped.problem) == (False, "stopped")
        started = running.start(ref, 10)
    finally:
        go_on.set()
    for each in (stopped, started):
        each.join(60)
    assert (stopped.problem, started.problem, started.found is not None) == ("stopped", "", True)


def test_a_survey_that_nobody_looks_at_any_more_stops(storage: cachelayer.Storage, monkeypatch: Any) -> None:
    monkeypatch.setattr(surveys, "_UNSEEN", 0.0)
    survey = Survey(storage.fetch("d@v1"), None)
    survey.start()
    survey.join(60)
    assert (survey.found, survey.is_running) == (None, False)
    assert "nobody has looked" in survey.problem
