"""Answers that no healthy store gives: of caches on the way, of hosts that are no store, of token servers."""

from __future__ import annotations

import gzip
import json
import os
import ssl
import threading
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from faults import FaultProxy, answer, fault_proxy
from samples import pairwise
from servers import Server, new_bucket

from cachelayer import StorageError
from cachelayer.objects.bucket_store import BucketStore
from cachelayer.objects.loop import run
from cachelayer.objects.open_store import open_store
from cachelayer.objects.retry import RequestError

DATA = os.urandom(10_000)
GOOGLE = {"token": "anon"}
AMAZON = {"key": "a", "secret": "b"}
CLIENTS = [
    pytest.param("gs://bucket", GOOGLE, id="gcsfs"),
    pytest.param("s3://bucket", AMAZON, id="obstore"),
    # What obstore cannot be told keeps it out.
    pytest.param("s3://bucket", {**AMAZON, "config_kwargs": {}}, id="s3fs"),
]


@contextmanager
def serving(
    respond: Callable[[BaseHTTPRequestHandler], tuple[int, dict[str, str], bytes]], tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """A host that answers every request so; its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def respond(self) -> None:
            self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, headers, body = respond(self)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_HEAD = do_POST = do_PUT = respond

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
        server.shutdown()


def open_one(url: str, options: dict[str, Any], endpoint: str, timeout: float = 20) -> BucketStore:
    store = open_store(url, {**options, "endpoint_url": endpoint, "timeout": timeout})
    assert isinstance(store, BucketStore)
    return store


@pytest.mark.parametrize(("url", "options"), CLIENTS)
@pytest.mark.parametrize("shift", [None, -1000, 500])
def test_a_range_of_another_place_is_asked_for_again(url: str, options: dict[str, Any], shift: int | None) -> None:
    wrong = [True, True]

    def respond(request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        start, stop = (int(place) for place in request.headers["Range"].removeprefix("bytes=").split("-"))
        if wrong and shift is None:
            wrong.pop()
            return 200, {}, DATA
        place = start + (shift or 0) if wrong and wrong.pop() else start
        body = DATA[place : place + stop + 1 - start]
        headers = {
            "Content-Range": f"bytes {place}-{place + len(body) - 1}/{len(DATA)}",
            "ETag": '"1"',
            "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT",
        }
        return 206, headers, body

    with serving(respond) as endpoint:
        found = open_one(url, options, endpoint).read_ranges([("a", 2000, 5000)])
    assert found == [DATA[2000:5000]]
    assert not wrong


@pytest.mark.parametrize(
    ("url", "options", "name", "before"),
    [("gs://bucket", GOOGLE, "x-goog-hash", "crc32c="), ("s3://bucket", AMAZON, "x-amz-checksum-crc32", "")],
)
def test_bytes_that_do_not_match_the_checksum_that_came_with_them_are_asked_for_again(
    url: str, options: dict[str, Any], name: str, before: str
) -> None:
    wrong = [DATA[1:] + DATA[:1], DATA[:-1]]
    checksum = google_crc32c.value(DATA) if before else zlib.crc32(DATA)

    def respond(_: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        stated = before + b64encode(checksum.to_bytes(4, "big")).decode()
        return 200, {name: stated, "ETag": '"1"'}, wrong.pop() if wrong else DATA

    with serving(respond) as endpoint:
        assert open_one(url, options, endpoint).read("a") == DATA
    assert not wrong


def test_a_reply_about_an_object_that_is_no_text_is_asked_for_again() -> None:
    right = json.dumps({"size": "7", "updated": "2015-10-21T07:28:00Z"}).encode()
    wrong = [b"\xff" + right, right[:-1]]

    def respond(_: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        return 200, {}, wrong.pop() if wrong else right

    with serving(respond) as endpoint:
        assert open_one("gs://bucket", GOOGLE, endpoint).size("a") == 7
    assert not wrong


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("client", "body", "what"),
    pairwise(range(len(CLIENTS)), [b"", b"{}", b"[]", b"<html>sign in</html>"], ["exists", "names", "upload"]),
)
def test_a_host_that_is_no_store_is_an_error(client: int, body: bytes, what: str, tmp_path: Path) -> None:
    url, options = CLIENTS[client].values
    (tmp_path / "file").write_bytes(bytes(40_000_000 if what == "upload" else 1))
    calls: dict[str, Callable[[BucketStore], object]] = {
        "exists": lambda store: store.exists("a"),
        "names": lambda store: store.names("a"),
        "upload": lambda store: store.upload(tmp_path / "file", "a"),
    }
    with serving(lambda request: (200, {}, body)) as endpoint:
        store = open_one(url, options, endpoint, timeout=0.4)
        with pytest.raises(StorageError, match=endpoint.removeprefix("http://")):
            calls[what](store)


def self_signed(folder: Path) -> ssl.SSLContext:
    """A host's side of TLS, with a certificate that nobody trusts."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    begin = datetime(2020, 1, 1, tzinfo=UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, begin, begin.replace(year=2120))
    (folder / "key.pem").write_bytes(pem(key))
    (folder / "certificate.pem").write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    return context


@pytest.mark.parametrize(("url", "options"), CLIENTS)
def test_a_certificate_that_is_not_trusted_is_no_matter_of_trying_again(
    url: str, options: dict[str, Any], tmp_path: Path
) -> None:
    with serving(lambda request: (200, {}, b""), self_signed(tmp_path)) as endpoint:
        # With a time that no test has: who tries again runs into the limit of this one.
        store = open_one(url, options, endpoint, timeout=10_000)
        with pytest.raises(StorageError, match=rf"{endpoint.removeprefix('https://')}: refused: .*(?i:certificate)"):
            store.read("a")


def test_a_store_that_overwrites_whatever_it_is_told_is_refused_for_publishing() -> None:
    objects: dict[str, bytes] = {}

    def respond(request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        path = request.path.partition("?")[0]
        if request.command == "PUT":
            objects[path] = request.body  # type: ignore[attr-defined]
            return 200, {"ETag": '"1"'}, b""
        if path not in objects:
            return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
        return 200, {"ETag": '"1"', "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}, objects[path]

    with serving(respond) as endpoint:
        with pytest.raises(StorageError, match="unsafe_commit=True"):
            open_one("s3://bucket", AMAZON, endpoint).put_if_absent("a", b"1")
        objects["/bucket"] = b""
        alone = open_store("s3://bucket", {**AMAZON, "endpoint_url": endpoint, "timeout": 20}, unsafe_commit=True)
        assert alone.put_if_absent("b", b"1")
        assert not alone.put_if_absent("b", b"2")
        assert alone.read("b") == b"1"


def pem(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def token_of(endpoint: str) -> dict[str, str]:
    """Credentials of Google, whose tokens a host gives."""
    key = pem(rsa.generate_private_key(65537, 2048))
    named = {"project_id": "p", "client_email": "a@p.iam.gserviceaccount.com", "client_id": "1", "private_key_id": "1"}
    return {"type": "service_account", "private_key": key.decode(), "token_uri": endpoint, **named}


TOKEN = json.dumps({"access_token": "t", "expires_in": 3600, "token_type": "Bearer"}).encode()


@pytest.mark.parametrize("body", [b"unavailable", b'{"error": "internal_failure"}', b"<html>"])
def test_a_token_server_that_fails_for_a_while_is_asked_again(gcs: Server, body: bytes) -> None:
    # google-auth asks three times by itself.
    failures = [200 if body.startswith(b"<") else 503] * 4

    def respond(request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        return (failures.pop(), {}, body) if failures else (200, {}, TOKEN)

    with serving(respond) as endpoint:
        store = open_one(gcs.url(new_bucket(gcs)), {"token": token_of(endpoint)}, gcs.endpoint)
        assert store.put_if_absent("a", b"1")


def test_credentials_that_get_no_token_are_named(gcs: Server) -> None:
    refusal = json.dumps({"error": "invalid_grant", "error_description": "the account is gone"}).encode()
    with serving(lambda request: (400, {}, refusal)) as endpoint:
        store = open_one(gcs.url(new_bucket(gcs)), {"token": token_of(endpoint)}, gcs.endpoint)
        with pytest.raises(StorageError, match=r"refused: Google gave no token: .*gone.*Are the credentials valid\?"):
            store.read("a")


@pytest.fixture
def proxied(s3: Server) -> Iterator[tuple[BucketStore, FaultProxy]]:
    with fault_proxy(s3.endpoint) as proxy:
        store = open_store(s3.url(new_bucket(s3)), s3.storage_options(proxy.endpoint))
        assert isinstance(store, BucketStore)
        store.put("a", DATA)
        yield store, proxy


def test_credentials_that_were_refused_are_looked_for_again(proxied: tuple[BucketStore, FaultProxy]) -> None:
    store, proxy = proxied
    first = store._client()
    proxy.add(answer(403, times=1))
    with pytest.raises(StorageError, match="Do the credentials allow it"):
        store.read("a")
    assert store._client() is first
    # The proxy says ExpiredToken.
    proxy.add(answer(400, times=1))
    with pytest.raises(StorageError, match="Are the credentials valid"):
        store.read("a")
    assert store._client() is not first
    assert store.read("a") == DATA


def test_obstore_is_not_done_without_for_one_refusal(proxied: tuple[BucketStore, FaultProxy]) -> None:
    store, proxy = proxied
    for _ in range(2):
        proxy.add(answer(403, containing="object_store", times=1))
        assert store.read_ranges([("a", 0, 1000)]) == [DATA[:1000]]
    assert [each.fault for each in proxy.exchanges() if each.status == 403] == ["answer"] * 2


SLOW_DOWN = b'{"error": {"message": "slow down", "errors": [{"reason": "rateLimitExceeded"}]}}'
PLACE = {"Content-Range": "bytes 2000-4999/10000"}
REPLIES = [
    *((status, {}, body) for status in (401, 403, 404, 412, 416, 429, 503) for body in (b"", b"<html>", SLOW_DOWN)),
    (503, {}, bytes(100_000)),
    (200, {}, DATA),
    (200, {}, b""),
    (204, {"Content-Length": "3000"}, b""),
    (204, {}, b""),
    (206, {}, DATA[2000:5000]),
    (206, {"Content-Range": "bytes 1000-3999/10000"}, DATA[1000:4000]),
    (206, {"Content-Range": "what?"}, DATA[2000:5000]),
    (206, PLACE, DATA[2000:5000]),
    (206, PLACE, DATA[2000:4000]),
    (206, PLACE, DATA[2000:5001]),
    (206, {**PLACE, "Content-Encoding": "gzip"}, gzip.compress(DATA[2000:5000])),
    (206, {**PLACE, "Content-Encoding": "identity"}, DATA[2000:5000]),
    (301, {"Location": "/elsewhere"}, b""),
    (304, {}, b""),
]


@pytest.mark.needs("gcsfs")
@pytest.mark.parametrize("start", [0, 2000])
def test_every_reply_to_a_range_means_what_it_means_to_gcsfs(start: int) -> None:
    replies: dict[str, tuple[int, dict[str, str], bytes]] = {f"/{number}": each for number, each in enumerate(REPLIES)}
    elsewhere = 206, PLACE, DATA[2000:5000]

    def respond(request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        return replies.get(f"/{request.path.partition('?')[0].rpartition('%2F')[2]}", elsewhere)

    def outcome(client: Any, number: int) -> object:
        async def work() -> bytes:
            await client.open()
            return b"".join(await client.range(f"bucket/a/{number}", start, start + 3000))

        try:
            return run(work())
        except RequestError as error:
            return error.kind, error.reason

    with serving(respond) as endpoint:
        clients = [
            open_one("gs://bucket", {**GOOGLE, **options}, endpoint, timeout=4)._client()
            for options in ({}, {"session_kwargs": {"trust_env": False}})
        ]
        for number, reply in enumerate(REPLIES):
            found, expected = (outcome(client, number) for client in clients)
            assert found == expected, reply
