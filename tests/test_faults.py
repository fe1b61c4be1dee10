"""The fault proxy does what it says, seen by plain HTTP clients."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from faults import Exchange, FaultProxy, Total, cut, fault_proxy, lose
from servers import connect

BODY = bytes(range(256)) * 16


class Echo(BaseHTTPRequestHandler):
    """Remembers what it is asked, and answers with BODY, in chunks under /chunks."""

    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, str, bytes]]

    def do_GET(self) -> None:
        self.seen.append((self.command, self.path, self.rfile.read(int(self.headers.get("Content-Length", 0)))))
        self.send_response(200)
        if self.path == "/chunks":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            half = len(BODY) // 2
            for chunk in (BODY[:half], BODY[half:], b""):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        elif self.path == "/until-close":
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(BODY)
        else:
            self.send_header("Content-Length", str(len(BODY)))
            self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/next")  # type: ignore[attr-defined]
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(BODY)

    do_PUT = do_POST = do_HEAD = do_GET

    def log_message(self, *arguments: object) -> None: ...


@pytest.fixture
def echo() -> Iterator[tuple[str, list[tuple[str, str, bytes]]]]:
    """An endpoint and what it has been asked."""
    handler = type("Handler", (Echo,), {"seen": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01], daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", handler.seen  # type: ignore[attr-defined]
        server.shutdown()
        thread.join()


@pytest.fixture
def seen(echo: tuple[str, list[tuple[str, str, bytes]]]) -> list[tuple[str, str, bytes]]:
    return echo[1]


@pytest.fixture
def proxy(echo: tuple[str, list[tuple[str, str, bytes]]]) -> Iterator[FaultProxy]:
    with fault_proxy(echo[0]) as proxy:
        yield proxy


@contextmanager
def connected(proxy: FaultProxy, timeout: float = 30) -> Iterator[http.client.HTTPConnection]:
    with closing(connect(proxy.endpoint, timeout)) as connection:
        yield connection


def ask(proxy: FaultProxy, path: str = "/", method: str = "GET", body: bytes = b"") -> tuple[int, bytes]:
    """Status and body, on a connection of its own."""
    with connected(proxy) as connection:
        connection.request(method, path, body or None)
        reply = connection.getresponse()
        return reply.status, reply.read()


def test_what_no_fault_hits_passes_unchanged(proxy: FaultProxy, seen: list[tuple[str, str, bytes]]) -> None:
    assert ask(proxy, "/a?b=c") == (200, BODY)
    assert ask(proxy, "/chunks") == (200, BODY)
    assert ask(proxy, "/until-close") == (200, BODY)
    assert ask(proxy, "/", "HEAD") == (200, b"")
    assert ask(proxy, "/", "PUT", BODY) == (200, BODY)
    paths = ["/a?b=c", "/chunks", "/until-close", "/", "/"]
    assert [path for _, path, _ in seen] == paths
    assert seen[-1] == ("PUT", "/", BODY)


def test_a_lost_reply_leaves_the_request_carried_out(proxy: FaultProxy, seen: list[tuple[str, str, bytes]]) -> None:
    proxy.add(lose(times=1))
    with pytest.raises(http.client.RemoteDisconnected):
        ask(proxy, "/", "PUT", b"hello")
    assert seen == [("PUT", "/", b"hello")]
    assert proxy.exchanges() == [Exchange("PUT", "/", "", 200, 5, 0, "lose")]
    assert ask(proxy) == (200, BODY)


@pytest.mark.parametrize("path", ["/", "/until-close"])
@pytest.mark.parametrize("after", [0, 1000])
def test_a_cut_reply_ends_after_that_many_bytes(proxy: FaultProxy, path: str, after: int) -> None:
    proxy.add(cut(after, times=1))
    if path == "/":
        with pytest.raises(http.client.IncompleteRead) as error:
            ask(proxy, path)
        assert error.value.partial == BODY[:after]
    else:
        assert ask(proxy, path) == (200, BODY[:after])
    assert proxy.totals() == {"GET": Total(1, 0, after)}
    assert ask(proxy, path) == (200, BODY)
