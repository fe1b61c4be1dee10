"""Run the page: one server, one port, one token."""

from __future__ import annotations

import secrets
import socket

import uvicorn

from cachelayer.errors import InvalidArgumentError
from cachelayer.view.app import application
from cachelayer.view.guard import TOKEN, Guard
from cachelayer.view.shelf import Shelf

_PATIENCE = 1


class PageServer:
    """A server that listens already, so that its port is known; :meth:`run` answers requests.

    Args:
        shelf: what it shows.
        host: the address to listen on.
        port: the port; 0 for a free one.

    Raises:
        InvalidArgumentError: if it cannot listen there.
    """

    def __init__(self, shelf: Shelf, host: str = "127.0.0.1", port: int = 0) -> None:
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._socket = socket.create_server((host, port), family=family)
        except (OSError, OverflowError) as error:
            raise InvalidArgumentError(
                f"cannot listen on {host}, port {port}: {error}: pass another --host or --port"
            ) from error
        self.port: int = self._socket.getsockname()[1]
        self._host = f"[{host}]" if ":" in host else host
        self._token = secrets.token_urlsafe(24)
        guarded = Guard(application(shelf), self._token, host, self.port)
        config = uvicorn.Config(
            guarded,
            # Requests that are no HTTP fill no terminal.
            log_level="error",
            # It would hold the token.
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=_PATIENCE,
        )
        self._server = uvicorn.Server(config)

    def url(self, path: str = "/") -> str:
        """Return the URL of a path, with the token."""
        return f"http://{self._host}:{self.port}{path}?{TOKEN}={self._token}"

    def run(self) -> None:
        """Answer requests until the process is interrupted, or :meth:`stop` is called."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """End :meth:`run` from another thread."""
        self._server.should_exit = True
