"""A fault proxy in front of an HTTP server on loopback, in a process of its own.

In tests::

    with fault_proxy(server.endpoint, latency_ms=20) as proxy:
        proxy.add(lose(containing="token", times=1), answer(503, method="GET", every=3))
        ... server.storage_options(proxy.endpoint) ...
        assert not [e for e in proxy.exchanges() if "list-type" in e.path]

As a program, `faults.py HOST:PORT` is such a proxy: it prints its port, and takes calls on its standard input.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import IO, Any
from urllib.parse import urlsplit

from fault_proxy import HOST, Relay
from fault_rules import Exchange, Fault, answer, cut, lose, reset, stall
from servers import die_with_parent

__all__ = ["Exchange", "Fault", "FaultProxy", "Total", "answer", "cut", "fault_proxy", "lose", "reset", "stall"]

LONGEST_CALL = 1 << 24


@dataclass(frozen=True)
class Total:
    """Of one method: how many requests ended, and the bytes of their bodies and of their replies' bodies."""

    requests: int = 0
    sent: int = 0
    received: int = 0

    def __add__(self, other: Total) -> Total:
        return Total(self.requests + other.requests, self.sent + other.sent, self.received + other.received)


class FaultProxy:
    """A running proxy. Threads may share it.

    Attributes:
        endpoint: Its http:// address.
    """

    def __init__(self, calls: IO[str], answers: IO[str]) -> None:
        self._calls, self._answers = calls, answers
        self._lock = threading.Lock()
        self.endpoint = f"http://{HOST}:{int(answers.readline())}"

    def add(self, *faults: Fault) -> None:
        """Arm faults. The first that fires, in the order they were added, hits a request."""
        self._call("add", *map(asdict, faults))

    def clear(self) -> None:
        """Disarm all faults; new requests pass."""
        self._call("clear")

    def shape(self, latency_ms: float = 0, bandwidth: float | None = None) -> None:
        """Delay every message by `latency_ms` each way, and let through `bandwidth` bytes/s each way (None: all)."""
        self._call("shape", latency_ms, bandwidth)

    def refuse(self) -> None:
        """Reset all connections and refuse new ones, until `accept`."""
        self._call("refuse")

    def accept(self) -> None:
        self._call("accept")

    def exchanges(self) -> list[Exchange]:
        """Return the exchanges since the start or the last `forget`, in the order in which they ended."""
        return [Exchange(**exchange) for exchange in self._call("exchanges")]

    def totals(self) -> dict[str, Total]:
        """Return the sums of these exchanges by method."""
        totals: dict[str, Total] = {}
        for exchange in self.exchanges():
            one = Total(1, exchange.sent, exchange.received)
            totals[exchange.method] = totals.get(exchange.method, Total()) + one
        return totals

    def connections(self) -> int:
        """Return how many connections clients have made since the start or the last `forget`."""
        return int(self._call("connections_made"))

    def forget(self) -> None:
        self._call("forget")

    def _call(self, name: str, *arguments: Any) -> Any:
        with self._lock:
            self._calls.write(json.dumps([name, *arguments]) + "\n")
            self._calls.flush()
            reply = self._answers.readline()
        if not reply:
            raise ConnectionError(f"the fault proxy at {self.endpoint} is gone")
        return json.loads(reply)


@contextmanager
def fault_proxy(endpoint: str, latency_ms: float = 0, bandwidth: float | None = None) -> Iterator[FaultProxy]:
    """A proxy in front of `endpoint`; it ends with the block, or with this process."""
    command = [sys.executable, __file__, urlsplit(endpoint).netloc]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            proxy = FaultProxy(child.stdin, child.stdout)
            proxy.shape(latency_ms, bandwidth)
            yield proxy
        finally:
            child.kill()


async def obey(host: str, port: int) -> None:
    """Say the port of a proxy, and carry out calls until standard input ends."""
    relay = Relay((host, port))
    await relay.accept()
    say(str(relay.port))
    lines = asyncio.StreamReader(limit=LONGEST_CALL)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        name, *arguments = json.loads(line)
        say(json.dumps(await getattr(relay, name)(*arguments)))


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(upstream: str) -> None:
    die_with_parent()
    host, _, port = upstream.rpartition(":")
    # uvloop is several times as fast.
    runs = importlib.import_module("uvloop" if importlib.util.find_spec("uvloop") else "asyncio").run
    runs(obey(host, int(port)))


if __name__ == "__main__":
    main(sys.argv[1])
