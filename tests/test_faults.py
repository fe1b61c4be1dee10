"""The fault proxy does what it says, seen by plain HTTP clients and by those of the stores."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import fsspec
import pytest
from faults import Exchange, Fault, FaultProxy, Total, answer, cut, fault_proxy, lose
from servers import Server, connect, gone, new_bucket

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


def outcomes(proxy: FaultProxy, count: int) -> list[int]:
    return [ask(proxy)[0] for _ in range(count)]


def test_what_no_fault_hits_passes_unchanged(proxy: FaultProxy, seen: list[tuple[str, str, bytes]]) -> None:
    assert ask(proxy, "/a?b=c") == (200, BODY)
    assert ask(proxy, "/chunks") == (200, BODY)
    assert ask(proxy, "/until-close") == (200, BODY)
    assert ask(proxy, "/", "HEAD") == (200, b"")
    assert ask(proxy, "/", "PUT", BODY) == (200, BODY)
    paths = ["/a?b=c", "/chunks", "/until-close", "/", "/"]
    assert [path for _, path, _ in seen] == paths
    assert seen[-1] == ("PUT", "/", BODY)


def test_a_chunked_upload_passes_unchanged_and_marks_in_it_are_found(s3: Server) -> None:
    bucket = new_bucket(s3)
    with fault_proxy(s3.endpoint) as proxy:
        proxy.add(answer(503, containing="absent"))
        with connected(proxy) as connection:
            public = {"x-amz-acl": "public-read"}
            connection.request("PUT", f"/{bucket}/x", iter([b"one ", BODY, b" two"]), public, encode_chunked=True)
            reply = connection.getresponse()
            reply.read()
            assert reply.status == 200
        assert ask(proxy, f"/{bucket}/x") == (200, b"one " + BODY + b" two")
        proxy.add(answer(503, containing=" two"))
        with connected(proxy) as connection:
            connection.request("PUT", f"/{bucket}/x", iter([b"one", b" two"]), encode_chunked=True)
            assert connection.getresponse().status == 503


def test_an_answered_request_does_not_reach_the_server(proxy: FaultProxy, seen: list[tuple[str, str, bytes]]) -> None:
    proxy.add(answer(503, times=2), answer(429, times=1))
    assert outcomes(proxy, 4) == [503, 503, 429, 200]
    assert len(seen) == 1


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


def test_refused_connections_are_refused_until_accepted(proxy: FaultProxy) -> None:
    with connected(proxy) as connection:
        connection.request("GET", "/")
        connection.getresponse().read()
        proxy.refuse()
        assert connection.sock
        assert gone(connection.sock)
    with pytest.raises(ConnectionRefusedError):
        ask(proxy)
    proxy.accept()
    assert ask(proxy) == (200, BODY)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (answer(503, every=3), [200, 200, 503, 200, 200, 503]),
        (answer(503, times=2), [503, 503, 200, 200, 200, 200]),
        (answer(503, every=2, times=1), [200, 503, 200, 200, 200, 200]),
        (answer(503, probability=0), [200] * 6),
        (answer(503, method="GET"), [503] * 6),
        (answer(503, method="PUT"), [200] * 6),
    ],
)
def test_a_fault_hits_the_requests_it_is_aimed_at(proxy: FaultProxy, fault: Fault, expected: list[int]) -> None:
    proxy.add(fault)
    assert outcomes(proxy, 6) == expected


def test_clients_of_the_stores_work_through_the_proxy(server: Server) -> None:
    bucket = new_bucket(server)
    with fault_proxy(server.endpoint) as proxy:
        options = server.storage_options(proxy.endpoint)
        store = fsspec.filesystem(server.scheme, skip_instance_cache=True, **options)
        large = BODY * 200
        store.pipe_file(f"{bucket}/large", large)
        assert store.cat_file(f"{bucket}/large", start=5, end=50) == large[5:50]
        assert store.cat_file(f"{bucket}/large") == large
        proxy.add(lose(containing="token", times=1))
        with pytest.raises(FileExistsError):  # the client's retry meets its own object
            store.pipe_file(f"{bucket}/x", b"token", mode="create")
        assert store.cat_file(f"{bucket}/x") == b"token"
        assert [exchange.fault for exchange in proxy.exchanges()].count("lose") == 1
