"""Answers that no healthy store gives: of caches on the way, of hosts that are no store, of token servers."""

import json
import os
import ssl
import threading
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
from faults import answer, fault_proxy
from samples import pairwise
from servers import AZURITE, Server, new_bucket

from cachelayer import CorruptionError, StorageError
from cachelayer.objects.bucket_store import BucketStore
from cachelayer.objects.open_store import open_store
from cachelayer.testing.stores import blob_of

Answer = tuple[int, dict[str, str], bytes]

DATA = os.urandom(10_000)
GOOGLE = {"token": "anon"}
AMAZON = {"key": "a", "secret": "b"}
CLIENTS = [
    pytest.param("gs://bucket", GOOGLE, id="gcsfs"),
    pytest.param("s3://bucket", AMAZON, id="obstore"),
    # What obstore cannot be told keeps it out.
    pytest.param("s3://bucket", {**AMAZON, "config_kwargs": {}}, id="s3fs"),
    pytest.param("az://bucket", {}, id="azure"),
]


@contextmanager
def serving(respond: Callable[[BaseHTTPRequestHandler], Answer], tls: ssl.SSLContext | None = None) -> Iterator[str]:
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
            with suppress(ConnectionError):
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
    azure = {"connection_string": f"{AZURITE};BlobEndpoint={endpoint}"}
    place = azure if url.startswith("az:") else {"endpoint_url": endpoint}
    store = open_store(url, {**options, **place, "timeout": timeout})
    assert isinstance(store, BucketStore)
    return store


TOLD = {"ETag": '"1"', "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}


def place_of(request: BaseHTTPRequestHandler) -> tuple[int, int]:
    """The range that is asked for."""
    start, stop = request.headers["Range"].removeprefix("bytes=").split("-")
    return int(start), int(stop) + 1


def part_of(data: bytes, start: int, stop: int) -> Answer:
    return 206, {"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}", **TOLD}, data[start:stop]


# The file systems themselves tell of a wrong range only that it has another length.
@pytest.mark.parametrize(("url", "options"), [client for client in CLIENTS if client.id != "s3fs"])
@pytest.mark.parametrize("shift", [None, -1000, 500])
def test_a_range_of_another_place_is_asked_for_again(url: str, options: dict[str, Any], shift: int | None) -> None:
    wrong = [True, True]

    def respond(request: BaseHTTPRequestHandler) -> Answer:
        start, stop = place_of(request)
        is_wrong = bool(wrong and wrong.pop())
        if is_wrong and shift is None:
            return 200, {}, DATA
        return part_of(DATA, start + is_wrong * (shift or 0), stop + is_wrong * (shift or 0))

    with serving(respond) as endpoint:
        assert open_one(url, options, endpoint).read_ranges([("a", 2000, 5000)]) == [DATA[2000:5000]]
    assert not wrong


@pytest.mark.needs("gcsfs")
def test_an_answer_that_is_longer_than_its_range_is_an_error_and_not_written(tmp_path: Path) -> None:
    data = bytes(9 << 20)

    def respond(request: BaseHTTPRequestHandler) -> Answer:
        if "Range" not in request.headers:
            return 200, {}, json.dumps({"name": "a", "size": str(len(data))}).encode()
        start, stop = place_of(request)
        return part_of(data + b"more", start, stop + 1)

    with serving(respond) as endpoint, pytest.raises(StorageError, match="gs://bucket/a: "):
        open_one("gs://bucket", GOOGLE, endpoint, timeout=2).download("a", tmp_path / "file", len(data))
    assert (tmp_path / "file").stat().st_size <= len(data)


def checksum_of(data: bytes) -> str:
    return b64encode(google_crc32c.Checksum(data).digest()).decode()


def test_an_upload_that_arrives_otherwise_is_sent_again_or_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    changes, stored = [True], [b""]

    def respond(request: BaseHTTPRequestHandler) -> Answer:
        if request.command == "POST":
            sent = request.body.rpartition(b"\n--")[0].rpartition(b"\n")[2]  # type: ignore[attr-defined]
            stored[0] = sent[::-1] if changes and changes.pop() else sent
        (data,) = stored
        return 200, {}, json.dumps({"name": "a", "size": str(len(data)), "crc32c": checksum_of(data)}).encode()

    with serving(respond) as endpoint:
        store = open_one("gs://bucket", GOOGLE, endpoint, timeout=2)
        store.put_file(tmp_path / "file", blob_of("a", b"12345"))
        assert (stored, changes) == ([b"12345"], [])
        changes += [True] * 100
        with pytest.raises(StorageError, match="gs://bucket/a: "):
            store.put_file(tmp_path / "file", blob_of("a", b"12345"))


NAMED = json.dumps({"name": "a", "size": "7", "updated": "2015-10-21T07:28:00Z"}).encode()


@pytest.mark.parametrize(
    ("url", "options", "headers", "right", "wrong"),
    [
        pytest.param(
            "gs://bucket",
            GOOGLE,
            {"x-goog-hash": f"crc32c={checksum_of(DATA)}"},
            DATA,
            [DATA[1:] + DATA[:1], DATA[:-1]],
            id="checksum of Google",
        ),
        pytest.param(
            "s3://bucket",
            AMAZON,
            {"x-amz-checksum-crc32": b64encode(zlib.crc32(DATA).to_bytes(4, "big")).decode()},
            DATA,
            [DATA[1:] + DATA[:1], DATA[:-1]],
            id="checksum of Amazon",
        ),
        pytest.param("gs://bucket", GOOGLE, {}, NAMED, [b"\xff" + NAMED, NAMED[:-1]], id="no text"),
    ],
)
def test_a_damaged_reply_is_asked_for_again(
    url: str, options: dict[str, Any], headers: dict[str, str], right: bytes, wrong: list[bytes]
) -> None:
    left = [*wrong]

    with serving(lambda request: (200, {**headers, **TOLD}, left.pop() if left else right)) as endpoint:
        store = open_one(url, options, endpoint)
        stat = store.stat("a") if right is NAMED else None
        assert stat.nbytes == 7 if stat is not None else store.read("a") == DATA
    assert not left


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("client", "body", "what"),
    pairwise(range(len(CLIENTS)), [b"", b"{}", b"[]", b"<html>sign in</html>"], ["ranges", "upload"]),
)
def test_a_host_that_is_no_store_is_an_error(client: int, body: bytes, what: str, tmp_path: Path) -> None:
    url, options = CLIENTS[client].values
    data = bytes(40_000_000 if what == "upload" else 1)
    (tmp_path / "file").write_bytes(data)
    calls: dict[str, Callable[[BucketStore], object]] = {
        "ranges": lambda store: store.read_ranges([("a", 0, 1000)]),
        "upload": lambda store: store.put_file(tmp_path / "file", blob_of("a", data)),
    }
    with serving(lambda request: (200, {}, body)) as endpoint:
        store = open_one(url, options, endpoint, timeout=2)
        with pytest.raises((StorageError, CorruptionError), match="://bucket/a: "):
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


def test_a_store_that_overwrites_whatever_it_is_told_is_refused_at_the_first_write() -> None:
    objects: dict[str, bytes] = {}

    def respond(request: BaseHTTPRequestHandler) -> Answer:
        path = request.path.partition("?")[0]
        if request.command == "PUT":
            objects[path] = request.body  # type: ignore[attr-defined]
            return 200, {"ETag": '"1"'}, b""
        if path not in objects:
            return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
        return 200, TOLD, objects[path]

    with serving(respond) as endpoint, pytest.raises(StorageError, match=r"s3://bucket/a: .*overwrites"):
        open_one("s3://bucket", AMAZON, endpoint).put_if_absent("a", b"1")


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


@pytest.mark.parametrize("body", [b"unavailable", b'{"error": "internal_failure"}'])
def test_a_token_server_that_fails_for_a_while_is_asked_again(gcs: Server, body: bytes) -> None:
    # google-auth asks three times by itself.
    failures = [503] * 4
    with serving(lambda _: (failures.pop(), {}, body) if failures else (200, {}, TOKEN)) as endpoint:
        store = open_one(gcs.url(new_bucket(gcs)), {"token": token_of(endpoint)}, gcs.endpoint)
        assert store.put_if_absent("a", b"1")


def test_credentials_that_get_no_token_are_named(gcs: Server) -> None:
    refusal = json.dumps({"error": "invalid_grant", "error_description": "the account is gone"}).encode()
    with serving(lambda _: (400, {}, refusal)) as endpoint:
        store = open_one(gcs.url(new_bucket(gcs)), {"token": token_of(endpoint)}, gcs.endpoint)
        with pytest.raises(StorageError, match=r"refused: .*gone.*Are the credentials valid"):
            store.read("a")


def test_credentials_that_were_refused_are_looked_for_again(
    s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's side is the proxy, which refuses the first key."""
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))

    def write(key: str) -> None:
        (tmp_path / "credentials").write_text(f"[default]\naws_access_key_id={key}\naws_secret_access_key=secret\n")

    write("expired")
    with fault_proxy(s3.endpoint) as proxy:
        bucket = new_bucket(s3)
        open_store(s3.url(bucket), s3.storage_options()).put("a", DATA)
        store = open_store(s3.url(bucket), {"endpoint_url": proxy.endpoint})
        proxy.add(answer(400, containing="Credential=expired"))
        for read in (lambda: store.read("a"), lambda: store.read_ranges([("a", 0, 10)])):
            with pytest.raises(StorageError, match="Are the credentials valid"):
                read()
        write("renewed")
        assert store.read("a") == DATA
        assert store.read_ranges([("a", 0, 10)]) == [DATA[:10]]


def test_tokens_that_expire_are_asked_for_again_for_every_kind_of_request() -> None:
    """The host that gives tokens gives each for some seconds; the store takes only the newest."""
    given: list[str] = []

    def give(_: BaseHTTPRequestHandler) -> Answer:
        given.append(f"token-{len(given)}")
        return 200, {}, json.dumps({"access_token": given[-1], "expires_in": 1, "token_type": "Bearer"}).encode()

    def respond(request: BaseHTTPRequestHandler) -> Answer:
        if request.headers["Authorization"] != f"Bearer {given[-1]}":
            return 401, {}, b"{}"
        return part_of(DATA, *place_of(request)) if "Range" in request.headers else (200, TOLD, DATA)

    with serving(give) as tokens, serving(respond) as endpoint:
        store = open_one("gs://bucket", {"token": token_of(tokens)}, endpoint)
        for start in range(3):
            assert store.read("a") == DATA
            assert store.read_ranges([("a", start, 10)]) == [DATA[start:10]]
    assert len(given) > 3
