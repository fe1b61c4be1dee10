"""The engine on a real Ray cluster of several nodes, one of which goes away."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from parts_child import PARTS, SHARD_BYTES, row, rows

from cachelayer import DataRef, Storage, sharded
from cachelayer.engines import Engine, Ray
from cachelayer.records.infer import infer_spec
from cachelayer.testing.engines import YieldingEngineTests, wait_until

# Some versions of Ray leave files open.
pytestmark = [
    pytest.mark.needs("ray"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
SMALL = 80 * 2**20
SPEC = infer_spec([row(0)])


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder whose name is short enough for sockets in it."""
    made = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Any]:
    """A node of two CPUs; this process and those it starts are connected to it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", str(folder))
        # Else it keeps a token in the home folder.
        patch.setenv("RAY_AUTH_MODE", "disabled")
        import ray
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 2, "object_store_memory": SMALL, "include_dashboard": False}
        made = Cluster(initialize_head=True, head_node_args=head)

        patch.setenv("RAY_ADDRESS", made.address)
        ray.init(log_to_driver=False)
        yield made
        ray.shutdown()
        made.shutdown()


@pytest.mark.usefixtures("cluster")
@pytest.mark.soak
class TestRay(YieldingEngineTests):
    program = "from cachelayer.engines import Ray; engine = Ray()"
    most_ahead = 4

    @pytest.fixture
    def engine(self) -> Engine:
        return Ray()


def test_options_of_tasks_are_handed_on(cluster: Any) -> None:
    def assigned(_number: int) -> str:
        import ray

        return str(ray.get_runtime_context().get_assigned_resources())

    assert list(Ray(num_cpus=0.5).run(assigned, [0])) == ["{'CPU': 0.5}"]


def note_and_wait(folder: Path, number: int) -> str:
    """Note where a task runs, and wait until the node that goes away is gone; the node."""
    import ray

    node = str(ray.get_runtime_context().get_node_id())
    (folder / f"{number}-{node}").touch()
    wait_until((folder / "go on").exists)
    return node


@contextmanager
def node_that_goes_away(cluster: Any, folder: Path) -> Iterator[str]:
    """A node that is lost when a task is at work on it; its name."""
    lost = cluster.add_node(num_cpus=1, object_store_memory=SMALL)

    def remove() -> None:
        wait_until(lambda: list(folder.glob(f"*-{lost.node_id}")))
        cluster.remove_node(lost, allow_graceful=False)
        (folder / "go on").touch()

    remover = threading.Thread(target=remove, daemon=True)
    remover.start()
    yield lost.node_id
    remover.join()


def submit(storage: Storage, part: Callable[[int, int], Any], engine: str | None, **options: Any) -> DataRef[Any]:
    return storage.submit(sharded(part, PARTS), "d@v1", shard_bytes=SHARD_BYTES, engine=engine, **options)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    return submit(Storage(tmp_path_factory.mktemp("expected")), rows, None).digest


def test_a_build_survives_the_loss_of_a_node(cluster: Any, tmp_path: Path, expected: str) -> None:
    def part(index: int, count: int) -> Iterator[Any]:
        note_and_wait(tmp_path, index)
        return rows(index, count)

    storage = Storage(tmp_path / "storage")
    with node_that_goes_away(cluster, tmp_path):
        ref = submit(storage, part, "ray", element_spec=SPEC)
    assert ref.digest == expected
    assert storage.verify("d@v1", progress=False)


OWN = """
from cachelayer.engines import Ray
import ray

print(sorted(Ray().run(abs, range(5))), ray.is_initialized())
"""


@pytest.mark.soak
def test_without_a_cluster_one_of_its_own_is_started_and_ended(folder: Path) -> None:
    own = Path(tempfile.mkdtemp(prefix="own", dir=folder))
    environment = {**os.environ, "RAY_TMPDIR": str(own), "RAY_AUTH_MODE": "disabled"}
    environment.pop("RAY_ADDRESS", None)
    done = subprocess.run([sys.executable, "-c", OWN], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines()[-1] == "[0, 1, 2, 3, 4] False"
    command = f"raylet.*{own}"
    wait_until(lambda: subprocess.run(["pgrep", "-f", command], capture_output=True).returncode == 1)


def test_an_address_that_is_none_is_named(folder: Path) -> None:
    environment = {**os.environ, "RAY_ADDRESS": "nonsense", "RAY_AUTH_MODE": "disabled", "RAY_TMPDIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", OWN], capture_output=True, text=True, env=environment)
    assert re.search(r"StorageError: no Ray cluster: .* nonsense. Set RAY_ADDRESS to", done.stderr)
