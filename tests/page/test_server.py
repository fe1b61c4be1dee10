"""The server of the page: who gets in, and clients that are slow, gone, greedy or no browsers."""

from __future__ import annotations

import re
import socket
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from view_client import Client, serving

import cachelayer
from cachelayer.page.render import OpenVersions
from cachelayer.page.server import PageServer

CLIENTS = 60


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> cachelayer.Storage:
    storage = cachelayer.Storage(tmp_path_factory.mktemp("storage"))
    storage.submit({"x": np.arange(50_000)}, "d@v1")
    return storage


def stranger(client: Client) -> Client:
    return Client(client.server)


@pytest.mark.parametrize("path", ["/", "/d/d/v1", "/d/d/v1/records/0/0.png", "/static/view.js", "/nothing"])
def test_nothing_answers_without_the_token(client: Client, path: str) -> None:
    assert stranger(client).get(path).status == 403
    assert stranger(client).get(f"{path}?token=guessed").status == 403
    name = client.cookie.partition("=")[0]
    for cookie in (
        client.cookie + "x",
        *(f"{name}={damaged}" for damaged in ('"', '"\\', '"x', "", "\xe9", '"\\777"')),
    ):
        assert stranger(client).ask(path, Cookie=cookie).status == 403


def test_the_token_moves_into_a_cookie_and_leads_to_no_other_site(client: Client) -> None:
    other = stranger(client)
    token = client.server.url().rpartition("=")[2]
    answer = other.get(f"/d/d/v1/records?from=1&token={token}&count=2")
    assert (answer.status, answer.headers["location"]) == (303, "/d/d/v1/records?from=1&count=2")
    assert {"HttpOnly", "SameSite=lax", "Path=/"} <= set(answer.headers["set-cookie"].split("; "))
    other.cookie = answer.headers["set-cookie"].partition(";")[0]
    assert other.get(answer.headers["location"]).status == 200
    for path in ("//evil.example/", "/\\evil.example/", "///evil.example"):
        assert client.get(f"{path}?token={token}").headers["location"].startswith("/evil.example")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("localhost:9000", 200),
        ("[::1]:80", 200),
        ("LOCALHOST", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example:80", 421),
        ("[", 421),
        ("", 421),
    ],
)
def test_a_name_that_is_not_this_machine_s_is_refused(client: Client, host: str, status: int) -> None:
    assert client.ask("/", Host=host).status == status


def test_the_full_name_of_the_machine_is_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.getfqdn", lambda: "Node7.cluster.example")
    with serving(cachelayer.Storage(tmp_path)) as other:
        for host, status in {"node7.cluster.example:80": 200, "node7.cluster.example.": 200, "node7": 421}.items():
            assert other.ask("/", Host=host).status == status


def test_a_proxy_may_put_a_path_before_all_others_and_have_names_of_its_own(storage: cachelayer.Storage) -> None:
    options = {"root_path": "/data/view", "allowed_hosts": ["proxy.example"], "token": "x" * 20}
    with serving(storage, **options) as other:
        assert urlsplit(other.server.url("/d/d/v1")).path == "/data/view/d/d/v1"
        assert other.server.url().endswith(f"?token={'x' * 20}")
        for path in ("/data/view/d/d/v1", "/d/d/v1"):
            answer = other.ask(path, Host="proxy.example")
            assert answer.status == 200, answer.text
            links = re.findall(r'(?:href|src|action)="(/[^"]*)', answer.text)
            assert links
            assert [link for link in links if not link.startswith("/data/view/")] == []
        assert other.get("/data/view/static/view.css").status == 200
        assert other.get("/data/viewer").status == 404
        signed_in = stranger(other).get(f"/data/view/d/d/v1?token={'x' * 20}")
        assert signed_in.headers["location"] == "/data/view/d/d/v1"
        assert other.ask("/", Host="other.example").status == 421


def test_the_page_only_reads(client: Client) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        assert client.ask("/d/d/v1", method).status == 405


@pytest.mark.parametrize("path", ["/", "/d/d/v1/records", "/static/view.css", "/nothing", "/d/d/none"])
def test_every_answer_forbids_what_pages_of_strangers_could_do(client: Client, path: str) -> None:
    for asking in (client, stranger(client)):
        headers = asking.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"


def test_no_path_leads_out_of_the_files_of_the_page(client: Client) -> None:
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/static/..%2fapp.py"):
        assert client.get(path).status == 404


def test_a_port_that_is_taken_is_an_error_of_ours(client: Client, tmp_path: Path) -> None:
    with pytest.raises(cachelayer.InvalidArgumentError, match="--port"):
        PageServer(OpenVersions(cachelayer.Storage(tmp_path)), port=client.server.port)
    with pytest.raises(cachelayer.InvalidArgumentError, match="--host"):
        PageServer(OpenVersions(cachelayer.Storage(tmp_path)), "no.such.host.invalid")


def connected(client: Client, sent: bytes) -> socket.socket:
    """A client with a small window that has sent this, and reads nothing."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.settimeout(30)
    connection.connect(("127.0.0.1", client.server.port))
    connection.sendall(sent)
    return connection


def request(client: Client, path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {client.cookie}\r\n\r\n".encode()


@pytest.mark.parametrize("kind", ["half a request", "never reads", "asks again and again"])
def test_slow_clients_keep_nobody_waiting(client: Client, kind: str) -> None:
    sent = {
        "half a request": b"GET /d/d HTTP/1.1\r\nHost: 127",
        "never reads": request(client, "/d/d/v1/records?count=200"),
        "asks again and again": 20 * request(client, "/d/d/v1/records?count=200"),
    }[kind]
    with ExitStack() as clients:
        for _ in range(CLIENTS if kind != "asks again and again" else 3):
            clients.enter_context(connected(client, sent))
        assert client.get("/d/d/v1").status == 200
