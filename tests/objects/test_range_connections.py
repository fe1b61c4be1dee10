"""Ranges that are read from the socket straight into their memory: any pieces, other replies, closed connections."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from yarl import URL

from cachelayer.objects.bucket_store import BucketStore
from cachelayer.objects.open_store import open_store
from cachelayer.objects.range_connections import Head, RangeConnections, Reply

DATA = bytes(range(256)) * 1_000
RANGE = (1_000, 201_000)
HEAD = b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 1000-200999/256000\r\nContent-Length: 200000\r\n\r\n"
BODY = DATA[slice(*RANGE)]


class Raw(bytes):
    """Bytes that are sent as they are, in spite of TLS."""


class Peer:
    """A server that gives each request the next answer, as pieces that are sent one by one; None ends the connection.

    Attributes:
        url: its address.
        requests: what came.
        connections: how many connections were made.
        ended: set if one has ended.
    """

    def __init__(self, answers: Sequence[Sequence[bytes | None]], tls: ssl.SSLContext | None = None) -> None:
        self._answers = iter(answers)
        self._tls = tls
        self.requests: list[bytes] = []
        self.connections = 0
        self.ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        scheme = "http" if tls is None else "https"
        self.url = URL(f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}/download/a%2Fb?alt=media")

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._last = connection
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection, suppress(OSError):
                if self._tls is None:
                    self._answer(connection)
                else:
                    with self._tls.wrap_socket(connection, server_side=True) as secret:
                        self._last = secret
                        self._answer(secret)
            self.ended.set()

    def _answer(self, connection: socket.socket) -> None:
        request = b""
        while came := connection.recv(1 << 16):
            request += came
            if request.endswith(b"\r\n\r\n"):
                self.requests.append(request)
                request = b""
                for piece in next(self._answers):
                    if piece is None:
                        return
                    if isinstance(piece, Raw):
                        os.write(connection.fileno(), piece)
                    else:
                        connection.sendall(piece)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        # A client may keep it open.
        with suppress(OSError):
            self._last.shutdown(socket.SHUT_RDWR)


@contextmanager
def peer(*answers: Sequence[bytes | None], tls: ssl.SSLContext | None = None) -> Iterator[Peer]:
    server = Peer(list(answers), tls)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join()


def read(server: Peer, times: int = 1, silence: float = 20, headers: dict[str, str] | None = None) -> list[Any]:
    """The range, as often as that, by the same connections."""

    async def work() -> list[Any]:
        connections = RangeConnections(silence)
        try:
            return [await connections.read(server.url, headers or {}, *RANGE) for _ in range(times)]
        finally:
            connections.close()

    return asyncio.run(work())


def bodies(replies: list[Reply | None]) -> list[bytes | None]:
    return [None if reply is None else bytes(reply.body) for reply in replies]


@pytest.mark.parametrize("size", [7, 61, len(HEAD) - 2, len(HEAD), len(HEAD) + 5, 70_000, 1 << 20])
def test_however_a_reply_is_cut_its_bytes_are_right_and_the_connection_is_used_again(size: int) -> None:
    whole = HEAD + BODY
    # Small pieces are sent of the head alone.
    begin = [whole[at : at + size] for at in range(0, min(len(whole), 50 * size), size)]
    with peer(*[[*begin, whole[50 * size :]]] * 3) as server:
        replies = read(server, 3)
    assert bodies(replies) == [BODY] * 3
    assert {reply.head for reply in replies} == {Head(206, 200_000, True, "bytes 1000-200999/256000")}
    assert server.connections == 1
    # The caller owns this memory and may change it.
    assert not any(reply.body.readonly for reply in replies)


def test_a_request_has_its_headers_and_its_range() -> None:
    with peer([HEAD + BODY]) as server:
        read(server, headers={"Authorization": "Bearer x"})
    first, *lines = server.requests[0].decode().rstrip().split("\r\n")
    assert first == "GET /download/a%2Fb?alt=media HTTP/1.1"
    assert {"Authorization: Bearer x", "Range: bytes=1000-200999", f"Host: 127.0.0.1:{server.url.port}"} <= {*lines}


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.0 206 Partial Content\r\nContent-Length: 5",
        b"HTTP/1.1 206 Partial Content",
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\nTransfer-Encoding: chunked",
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\nContent-Encoding: gzip",
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\nContent-Length: 6",
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: -5",
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: \xb2",
        b"HTTP/1.1 206 Partial Content\r\nContent-Length : 5",
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\n folded",
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: 200001",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999",
        b"HTTP/1.1 100 Continue\r\nContent-Length: 0",
        b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0",
        b"HTTP/1.1 xyz\r\nContent-Length: 0",
        b"HTTP/2 206\r\nContent-Length: 5",
        b"\xff\x00",
        b"",
    ],
)
def test_a_reply_of_another_kind_is_left_to_others_and_ends_its_connection(head: bytes) -> None:
    with peer([head + b"\r\n\r\nhello"], [HEAD + BODY]) as server:
        assert bodies(read(server, 2)) == [None, BODY]
        assert server.connections == 2


@pytest.mark.parametrize(
    "begin",
    [b"HTTP/1.1 206 Partial Content\r\n" + b"a: b\r\n" * 20_000, HEAD.replace(b"\r\n", b"\n") + BODY[:100]],
    ids=["a head without end", "other ends of lines"],
)
def test_what_is_no_whole_head_is_left_to_others_at_once(begin: bytes) -> None:
    with peer([begin, None]) as server:
        assert read(server) == [None]


def test_an_idle_connection_that_the_server_has_closed_is_not_missed() -> None:
    with peer([HEAD + BODY], [None], [HEAD + BODY]) as server:
        assert bodies(read(server, 2)) == [BODY] * 2
        # The second request came by the first connection, and again by a new one.
        assert (server.connections, len(server.requests)) == (2, 3)


def test_more_than_a_reply_is_part_of_no_other() -> None:
    with peer([HEAD + BODY + b"more"], [HEAD + BODY], [HEAD + BODY]) as server:
        first, second, third = bodies(read(server, 3))
    # It comes before the next request, or is taken for the begin of its reply, which nobody understands then.
    assert (first, third) == (BODY, BODY)
    assert second in (BODY, None)
    assert server.connections == 2


@pytest.mark.parametrize("answer", [[None], [HEAD[:30], None], [HEAD, None], [HEAD, BODY[:100_000], None]])
def test_a_reply_that_is_cut_short_is_an_error(answer: list[bytes | None]) -> None:
    with peer(answer) as server, pytest.raises(ConnectionError):
        read(server)


@pytest.mark.parametrize("answer", [[], [HEAD[:30]], [HEAD], [HEAD, BODY[:100_000]]])
def test_a_server_that_falls_silent_is_an_error(answer: list[bytes | None]) -> None:
    with peer(answer) as server, pytest.raises(TimeoutError, match="nothing came for"):
        read(server, silence=0.05)


def test_who_gives_up_leaves_no_connection_to_the_next() -> None:
    async def work(server: Peer) -> Reply | None:
        connections = RangeConnections(20)
        first = asyncio.ensure_future(connections.read(server.url, {}, *RANGE))
        while not server.requests:
            await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        try:
            return await connections.read(server.url, {}, *RANGE)
        finally:
            connections.close()

    with peer([HEAD, BODY[:1000]], [HEAD + BODY]) as server:
        assert bodies([asyncio.run(work(server))]) == [BODY]
        assert server.connections == 2


@pytest.fixture
def certified(tmp_path: Path) -> tuple[ssl.SSLContext, Path]:
    """A host's side of TLS, and its certificate, which it has made itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "host")])
    begin = datetime(2020, 1, 1, tzinfo=UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, begin, begin.replace(year=2120))
    made = made.add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
    kept = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "key").write_bytes(kept)
    (tmp_path / "certificate").write_bytes(made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
    return context, tmp_path / "certificate"


def test_ranges_come_over_tls(certified: tuple[ssl.SSLContext, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    context, certificate = certified
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with peer([HEAD + BODY], [HEAD[:30], HEAD[30:] + BODY[:9], BODY[9:]], tls=context) as server:
        assert bodies(read(server, 2)) == [BODY] * 2
        assert server.connections == 1


def test_a_host_that_nobody_certifies_gets_no_request(certified: tuple[ssl.SSLContext, Path]) -> None:
    context, _ = certified
    with peer([HEAD + BODY], tls=context) as server, pytest.raises(ssl.SSLCertVerificationError):
        read(server, headers={"Authorization": "Bearer x"})
    assert server.requests == []


def store_at(server: Peer, **options: Any) -> BucketStore:
    store = open_store("gs://bucket", {"token": "anon", "endpoint_url": str(server.url.origin()), **options})
    assert isinstance(store, BucketStore)
    return store


CHUNKS = b"30d40\r\n" + BODY + b"\r\n0\r\n\r\n"
CHUNKED = HEAD.replace(b"Content-Length: 200000", b"Transfer-Encoding: chunked") + CHUNKS


@pytest.mark.needs("gcsfs")
@pytest.mark.parametrize(
    ("answers", "options", "is_by_gcsfs"),
    [
        ([[HEAD + BODY]], {}, [False]),
        ([[CHUNKED], [CHUNKED]], {}, [False, True]),
        ([[HEAD + BODY]], {"session_kwargs": {"trust_env": True}}, [True]),
    ],
)
def test_gcsfs_reads_what_is_not_understood_or_if_its_sessions_are_the_users_own(
    answers: list[list[bytes | None]], options: dict[str, Any], is_by_gcsfs: list[bool]
) -> None:
    with peer(*answers) as server:
        assert store_at(server, **options).read_ranges([("a", *RANGE)]) == [BODY]
    assert [b"\r\naccept-encoding:" in request.lower() for request in server.requests] == is_by_gcsfs


@pytest.mark.parametrize(
    "more", [b"Connection: close", b"Connection: x-y, Close", b"Connection: x-y\r\nConnection: close"]
)
def test_a_reply_may_end_its_connection(more: bytes) -> None:
    with peer([HEAD[:-2] + more + b"\r\n\r\n" + BODY], [HEAD + BODY]) as server:
        assert bodies(read(server, 2)) == [BODY] * 2
        assert server.connections == 2


@pytest.mark.parametrize("url", ["ftp://127.0.0.1:1/a", "localhost:1/a", "http://user:word@127.0.0.1:1/a"])
def test_an_address_of_another_kind_is_left_to_others(url: str) -> None:
    async def work() -> Reply | None:
        return await RangeConnections(20).read(URL(url), {}, *RANGE)

    assert asyncio.run(work()) is None


def test_a_host_that_takes_no_connection_in_time_is_named() -> None:
    # A queue that is full: the system leaves further connections unanswered.
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as stack:
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        url = URL(f"http://127.0.0.1:{listener.getsockname()[1]}/a")

        async def work() -> None:
            await RangeConnections(0.05).read(url, {}, *RANGE)

        with pytest.raises(ConnectionError, match=rf"cannot connect to 127.0.0.1:{url.port}: .*0\.05 s"):
            asyncio.run(work())


@pytest.mark.parametrize("name", ["a b", "100%", "a+b", "ä/ü", "a?b", "a#b", "%2F", "~!'()*", "a&b=c", "a;b"])
@pytest.mark.needs("gcsfs")
def test_an_object_is_asked_for_as_gcsfs_asks(name: str) -> None:
    with peer([CHUNKED], [CHUNKED]) as server:
        assert store_at(server, requester_pays="p q&r").read_ranges([(name, *RANGE)]) == [BODY]
    first, second = (request.partition(b"\r\n")[0] for request in server.requests)
    assert first == second


def test_a_connection_whose_tls_breaks_is_one_that_breaks(
    certified: tuple[ssl.SSLContext, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    context, certificate = certified
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    broken = Raw(b"\x17\x03\x03\x00\x20" + bytes(32))
    with peer([HEAD, BODY[:1000], broken], tls=context) as server, pytest.raises(ConnectionError, match=r"(?i)mac"):
        read(server)
    with peer([HEAD, broken], [HEAD + BODY], tls=context) as server:
        assert store_at(server).read_ranges([("a", *RANGE)]) == [BODY]
