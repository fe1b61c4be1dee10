"""The server of the page: who may ask it for what, and the command that starts it."""

import re
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from commands import SCRIPT, refused
from view_client import Client, asked, serving

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


def test_view_prints_a_url_that_opens_the_version_and_ends_at_ctrl_c(tmp_path: Path) -> None:
    cachelayer.Storage(tmp_path / "cache").submit(
        [[1, 2], [3]], "d@v1", element_spec=cachelayer.ArraySpec("int64", (None,))
    )
    (tmp_path / "mine.py").write_text("def words(tokens):\n    return f'words of {tokens}'\n")
    proxied = ["--root-path", "data", "--allow-host", "proxy.example", "--token-file", "token"]
    command = [SCRIPT, "view", "cache/d", "--no-open", "--detokenize", "mine.py:words", *proxied]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        url = urlsplit(child.stdout.readline().strip())
        assert (url.scheme, url.hostname, url.path) == ("http", "127.0.0.1", "/data/d/d/v1")
        token = tmp_path / "token"
        assert (url.query, token.stat().st_mode & 0o777) == (f"token={token.read_text().strip()}", 0o600)
        assert asked(url.port, f"{url.path}?{url.query}", Host="proxy.example").status == 303
        cookie = asked(url.port, f"{url.path}?{url.query}").headers["set-cookie"].partition(";")[0]
        assert "words of [1, 2]" in asked(url.port, "/d/d/v1/records", Cookie=cookie).text
        child.send_signal(signal.SIGINT)
        _, problems = child.communicate(timeout=30)
        assert (child.returncode, problems) == (0, "")


def test_mistakes_are_errors_before_anything_is_served(tmp_path: Path) -> None:
    storage = cachelayer.Storage(tmp_path / "cache")
    storage.submit([1], "d@v1")
    assert str(tmp_path / "none") in refused("view", tmp_path / "none", "--no-open")
    assert "no dataset 'e'" in refused("view", f"{storage.url}/e@v1", "--no-open")
    assert "no_such_module" in refused("view", storage.url, "--no-open", "--detokenize", "no_such_module:f")
    assert "--host" in refused("view", storage.url, "--no-open", "--host", "no.such.host.invalid")
    (tmp_path / "short").write_text("secret")
    for name in ("short", "none/token"):
        assert "--token-file" in refused("view", storage.url, "--no-open", "--token-file", tmp_path / name)
    assert "--root-path" in refused("view", storage.url, "--no-open", "--root-path", "a b")
    for name in ("http://proxy.example", "proxy.example:8000", "*.example", ""):
        assert "--allow-host" in refused("view", storage.url, "--no-open", "--allow-host", name)


def test_without_the_extra_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("cachelayer.page")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "uvicorn: pip install 'cachelayer[view]'" in refused("view", tmp_path, "--no-open")
