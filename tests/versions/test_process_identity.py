"""Processes: known to have ended at once on their own host, and nowhere else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from cachelayer.versions.process_identity import Process, this_process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only /proc tells of processes so exactly")
WHO = """
import json, sys
from cachelayer.versions.process_identity import this_process
print(json.dumps(this_process().to_json()), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def here() -> Process:
    found = this_process()
    assert found is not None
    return found


def test_a_process_has_ended_once_it_was_killed_even_before_its_parent_asks_for_it(here: Process) -> None:

    with subprocess.Popen([sys.executable, "-c", WHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        process = Process.from_json(json.loads(child.stdout.readline()))
        assert process is not None
        assert (process.pid, process.boot) == (child.pid, here.boot)
        assert not process.has_ended()
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert process.has_ended()
        child.wait()
        assert process.has_ended()


def test_a_pid_that_was_given_away_again_is_another_process(here: Process) -> None:
    assert not here.has_ended()
    assert replace(here, start=here.start + 1).has_ended()


@pytest.mark.parametrize("other", [{"host": "b"}, {"boot": "b"}, {"namespace": 1}])
def test_nothing_is_known_of_processes_elsewhere(here: Process, other: dict[str, Any]) -> None:
    assert not replace(here, start=here.start + 1, **other).has_ended()
    assert not replace(here, pid=2**31 - 1, **other).has_ended()


def test_a_process_in_a_container_of_this_host_is_not_misjudged(here: Process) -> None:
    command = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", sys.executable, "-c", WHO]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        said = child.stdout.readline()
        if not said:
            child.kill()
            pytest.skip("this host makes no pid namespaces")
        process = Process.from_json(json.loads(said))
        assert process is not None
        assert (process.boot, process.pid) == (here.boot, 1)
        assert process.namespace != here.namespace
        assert not process.has_ended()
        child.communicate()
        assert not process.has_ended()


@pytest.mark.parametrize("field", ["host", "boot", "namespace", "pid", "start"])
@pytest.mark.parametrize("value", [None, "", 0, -1, True, 1.5, [], {}, 2**400])
def test_what_is_no_process_is_none(here: Process, field: str, value: Any) -> None:
    document = {**here.to_json(), field: value}
    if field in ("namespace", "start") and value == 2**400:
        assert Process.from_json(document) is not None
    else:
        assert Process.from_json(document) is None
    assert Process.from_json(value) is None
