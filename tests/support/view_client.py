"""A page in a thread, and a plain HTTP client with a cookie jar."""

import http.client
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import cachelayer
from cachelayer.page.render import OpenVersions
from cachelayer.page.server import PageServer


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


def asked(port: int | None, path: str, method: str = "GET", **headers: str) -> Answer:
    """Send one request to a port of this machine."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request(method, path, headers=headers)
        reply = connection.getresponse()
        return Answer(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())


@dataclass
class Client:
    """Asks one server, and keeps its cookie."""

    server: PageServer
    cookie: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    def ask(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """Send one request, and follow no redirection."""
        given = {**({"Cookie": self.cookie} if self.cookie else {}), **headers}
        return asked(self.server.port, path, method, **given)

    def get(self, path: str) -> Answer:
        return self.ask(path)

    def shown(self, path: str, status: int = 200) -> str:
        """Return the text of a page, which has to have this status."""
        answer = self.get(path)
        assert answer.status == status, answer.text
        return answer.text

    def sign_in(self) -> Answer:
        """Open the URL that the server printed."""
        parts = urlsplit(self.server.url())
        answer = self.ask(f"{parts.path}?{parts.query}")
        self.cookie = answer.headers["set-cookie"].partition(";")[0]
        return answer


def cards(text: str) -> list[int]:
    """Return the numbers of the records that a page shows."""
    return [int(number) for number in re.findall(r'<(?:h3|th scope="row")><a href="[^"]*/records/(\d+)">', text)]


@contextmanager
def serving(
    storage: cachelayer.Storage, detokenize: Callable[[list[int]], Any] | None = None, **options: Any
) -> Iterator[Client]:
    """A page of a storage, with a client that has signed in."""
    server = PageServer(OpenVersions(storage, detokenize), **options)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        client = Client(server)
        client.sign_in()
        yield client
    finally:
        server.stop()
        thread.join()
