"""Tests of states in Orbax checkpoints: test_jax.py runs them in a process of their own."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from orbax.checkpoint import v1

import cachelayer
from cachelayer import StateError, Stream
from cachelayer.adapters.jax import global_batches
from cachelayer.adapters.orbax import CheckpointRestore, CheckpointSave

Args = ocp.args.Composite


def rows(*, records: int = 40, identity: str = "rows", **options: Any) -> Stream[Any]:
    options = {"shuffle": True, "seed": 1, "num_epochs": 2} | options
    return cachelayer.wrap(np.arange(records), identity=identity).stream(8, **options)


def plain(stream: Stream[Any]) -> Any:
    return iter(stream)


def on_devices(stream: Stream[Any]) -> Any:
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    return iter(global_batches(stream, NamedSharding(mesh, P("data"))))


@pytest.fixture(params=[plain, on_devices])
def iterate(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[ocp.CheckpointManager]:
    options = ocp.CheckpointManagerOptions(enable_async_checkpointing=True)
    with ocp.CheckpointManager(tmp_path / "checkpoints", options=options) as manager:
        yield manager


def saved(manager: ocp.CheckpointManager, iterator: Any) -> None:
    manager.save(3, args=Args(model=ocp.args.StandardSave({"w": jnp.arange(4)}), data=CheckpointSave(iterator)))


def test_a_manager_saves_the_state_as_it_was_and_sets_an_iterator_to_it(
    manager: ocp.CheckpointManager, iterate: Any
) -> None:
    iterator = iterate(rows())
    for _ in islice(iterator, 3):
        pass
    state = iterator.get_state()
    saved(manager, iterator)
    rest = [np.asarray(batch).tolist() for batch in iterator]
    manager.wait_until_finished()
    step = Path(manager.directory) / "3"
    assert [path.name for path in step.glob("data/*") if path.suffix == ".json"] == ["state.json"]
    assert json.loads((step / "data/state.json").read_text()) == state
    handlers = json.loads((step / "_CHECKPOINT_METADATA").read_text())["item_handlers"]
    assert handlers["data"] == "cachelayer.adapters.orbax.StateHandler"

    other = plain(rows())
    next(other)
    restore = Args(model=ocp.args.StandardRestore({"w": jnp.zeros(4, int)}), data=CheckpointRestore(other))
    restored = manager.restore(3, args=restore)
    assert restored.data is other
    assert restored.model["w"].tolist() == [0, 1, 2, 3]
    assert [batch.tolist() for batch in other] == rest == [rows()[step].tolist() for step in range(3, 10)]


def test_a_state_of_another_stream_is_refused_by_what_differs(manager: ocp.CheckpointManager, tmp_path: Path) -> None:
    iterator = plain(rows())
    next(iterator)
    saved(manager, iterator)
    other = plain(rows(seed=2))
    before = other.get_state()
    with pytest.raises(StateError, match="seed is 2"):
        manager.restore(3, args=Args(data=CheckpointRestore(other)))
    v1.save_checkpointables(tmp_path / "v1", {"data": iterator})
    with pytest.raises(StateError, match="seed is 2"):
        v1.load_checkpointables(tmp_path / "v1", {"data": other})
    assert other.get_state() == before


def test_a_checkpoint_without_a_state_is_refused(manager: ocp.CheckpointManager) -> None:
    saved(manager, plain(rows()))
    manager.wait_until_finished()
    (Path(manager.directory) / "3/data/state.json").unlink()
    with pytest.raises(StateError, match=r"state\.json"):
        manager.restore(3, args=Args(data=CheckpointRestore(plain(rows()))))


def test_the_second_api_takes_iterators_as_they_are(tmp_path: Path, iterate: Any) -> None:
    iterator, other = iterate(rows()), plain(rows())
    for _ in islice(iterator, 3):
        pass
    state = iterator.get_state()
    response = v1.save_checkpointables_async(tmp_path / "v1", {"model": {"w": jnp.arange(4)}, "data": iterator})
    next(iterator)
    response.result()
    loaded = v1.load_checkpointables(tmp_path / "v1", {"model": {"w": jnp.zeros(4, int)}, "data": other})
    assert loaded["data"] is other
    assert other.get_state() == state
    assert loaded["model"]["w"].tolist() == [0, 1, 2, 3]
    assert [path.name for path in (tmp_path / "v1/data").iterdir() if path.suffix == ".json"] == ["state.json"]
