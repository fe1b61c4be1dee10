"""Keras in and out: what is put in comes back, and a real ``fit`` sees the epochs of a stream."""

import contextlib
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np
import pytest
from pages import run_page

import cachelayer
from cachelayer import Storage
from cachelayer.adapters.keras import Resume, to_keras
from cachelayer.testing import FailingSourceTests, SinkTests

# Forks beside threads are what Keras's multiprocessing does.
pytestmark = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning",
    "ignore:os.fork.. was called:RuntimeWarning",
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning",  # Keras on PyTorch
)
RECORDS, BATCH = 40, 16


class Batches(keras.utils.PyDataset):  # type: ignore[misc]
    """``count`` elements in batches of 8, of which batch 2 may raise an error."""

    def __init__(self, count: int, error: Exception | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.count, self.error = count, error

    def __len__(self) -> int:
        return -(-self.count // 8)

    def __getitem__(self, index: int) -> Any:
        if index == 2 and self.error is not None:
            raise self.error
        rows = np.arange(8 * index, min(8 * index + 8, self.count))
        return {"x": np.stack([rows, rows / 2], 1), "name": [f"n{row}" for row in rows]}, rows.astype(np.int32)


class Endless(Batches):
    num_batches = None


# In.


class TestPyDataset(FailingSourceTests):
    seeks = False
    named = "record 16"
    workers: ClassVar[dict[str, Any]] = {}

    def source(self, count: int, folder: Path) -> Any:
        return Batches(count, self.error, **self.workers)

    def element(self, number: int) -> Any:
        return {"x": np.array([number, number / 2]), "name": f"n{number}"}, np.int32(number)


class TestPyDatasetInThreads(TestPyDataset):
    workers: ClassVar = {"workers": 3, "max_queue_size": 4}


class TestPyDatasetInProcesses(TestPyDataset):
    workers: ClassVar = {"workers": 2, "use_multiprocessing": True}


def test_an_endless_dataset_needs_a_number_of_records(storage: Storage) -> None:
    for endless in (Endless(80, workers=2), Given(lambda rows: rows, None)):
        with pytest.raises(cachelayer.InvalidArgumentError, match="max_records="):
            storage.cache(endless, "d@v1")
        name = type(endless).__name__
        assert len(storage.cache(endless, f"{name}@v1", max_records=21)) == 21


class Given(keras.utils.PyDataset):  # type: ignore[misc]
    """Batches that a test makes; ``length`` is what its ``__len__`` returns."""

    def __init__(self, make: Any, length: Any = 2) -> None:
        super().__init__()
        self.make, self.length = make, length

    def __len__(self) -> int:
        return self.length  # type: ignore[no-any-return]

    def __getitem__(self, index: int) -> Any:
        return self.make(np.arange(3, dtype=np.float32) + 3 * index)


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_batches_of_tensors_are_those_of_arrays(storage: Storage, framework: str) -> None:
    tensor = importlib.import_module(framework)
    make = tensor.tensor if framework == "torch" else tensor.constant
    kind = tensor.bfloat16
    ref = storage.cache(Given(lambda rows: (make(rows), {"y": make(rows.tolist(), dtype=kind)})), "d@v1")
    assert ref.element_spec == (cachelayer.ArraySpec("float32"), {"y": cachelayer.ArraySpec("bfloat16")})
    assert [(float(x), float(y["y"])) for x, y in ref] == [(row, row) for row in range(6)]


def test_a_sample_weight_of_none_is_left_out_in_and_out(storage: Storage) -> None:
    ref = storage.cache(Given(lambda rows: (rows, rows, None)), "d@v1")
    assert [tuple(map(float, row)) for row in ref] == [(row, row) for row in range(6)]
    stream = ref.stream(4).map_batches(lambda batch: (*batch, None))
    assert [part.tolist() for part in to_keras(stream)[1]] == [[4, 5], [4, 5]]


# Out.


@pytest.fixture(scope="module")
def ref(tmp_path_factory: pytest.TempPathFactory) -> Any:
    numbers = np.arange(RECORDS)
    storage = Storage(tmp_path_factory.mktemp("keras"))
    return storage.submit({"x": np.stack([numbers, numbers], 1).astype("f4"), "y": numbers}, "numbers@v1")


class TestStreams(SinkTests):
    without: ClassVar = {"epochs", "elements", "padded", "empty batches", "start"}

    def sink(self, stream: Any) -> Any:
        return to_keras(stream)


def test_an_endless_stream_goes_on_with_the_next_epoch(ref: Any) -> None:
    dataset = to_keras(ref.stream(BATCH, shuffle=True, seed=7, num_epochs=None))
    read = list[list[int]]()
    for epochs in (range(2), range(1), range(5, 6)):
        callback = dataset.callback
        callback.set_params({"steps": len(dataset)})
        callback.on_train_begin()
        for epoch in epochs:
            callback.on_epoch_begin(epoch)
            read += [dataset[number]["y"].tolist() for number in range(len(dataset))]
    assert read == [batch for (batch,) in expected(ref) + expected(ref, epochs=6, start=5)]


REFUSED: dict[str, tuple[Any, str]] = {
    "no batches": (lambda ref: ref.stream(), "global_batch_size"),
    "a start": (lambda ref: ref.stream(8, start=8), "initial_epoch="),
    "no whole batch": (lambda ref: ref.stream(64, remainder="drop"), "64"),
    "an empty batch": (lambda ref: ref.stream(39, remainder="keep", shard=(0, 3)), "remainder="),
    "a mixture": (lambda ref: cachelayer.mix([(ref, 1)]).stream(8), "to_tf"),
    "padding": (lambda ref: ref.stream(BATCH, remainder="pad"), "remainder='pad'"),
    "epochs of other lengths": (lambda ref: ref.stream(BATCH, remainder="wrap"), "remainder="),
    "a sample": (lambda ref: ref.sample("y", seed=4).stream(8), "to_tf"),
}
BATCHES: dict[str, tuple[Any, str]] = {
    "text": (lambda x, y: (x, np.array(["a"] * len(y), object)), r"leaf \[1\] is object.*map_batches"),
    "four parts": (lambda x, y: (1, 2, 3, 4), r"fit\(\) takes \(x, y\)"),
    "None": (lambda x, y: (x, None), r"leaf \[1\] is NoneType"),
    "int4": (lambda x, y: (x.astype("int4"),), r"leaf \[0\] is int4"),
    "float128": (lambda x, y: (x.astype("g"),), r"leaf \[0\] is float128"),
    "times": (lambda x, y: {"x": x, "t": y.view("M8[s]")}, r"leaf \['t'\] is datetime64"),
}


@pytest.mark.parametrize("name", [*REFUSED, *BATCHES])
def test_what_keras_cannot_take_is_refused_with_its_option_or_leaf(ref: Any, name: str) -> None:
    if name in REFUSED:
        make, message = REFUSED[name]
        with pytest.raises(cachelayer.InvalidArgumentError, match=message):
            to_keras(make(ref))
        return
    fn, message = BATCHES[name]
    with pytest.raises(cachelayer.InvalidTypeError, match=message):
        to_keras(ref.stream(BATCH).map_batches(lambda batch: fn(**batch)))[0]


def test_records_that_were_erased_are_left_out_before(storage: Storage) -> None:
    storage.cache([{"x": float(number)} for number in range(16)], "rows@v1")
    storage.erase("rows@v1", records=range(8), reason="a request")
    ref: Any = storage.fetch("rows@v1", erased="exclude")
    with pytest.raises(cachelayer.InvalidArgumentError, match="exclude"):
        to_keras(ref.stream(BATCH))
    assert len(to_keras(ref.exclude(ref.erased).stream(BATCH))) == -(-8 // BATCH)


def pair(batch: Any) -> Any:
    return batch["x"], batch["y"]


class Watched(keras.Model):  # type: ignore[misc]
    """A model that keeps the targets and weights of every step."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.seen: list[Any] = []

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, *arguments: Any) -> Any:
        self.seen.append([keras.ops.convert_to_numpy(part).tolist() for part in arguments[-1][1:] if part is not None])
        return super().train_step(*arguments)


def watched() -> Watched:
    model = Watched()
    model.compile(loss="mse", optimizer="sgd", run_eagerly=True)
    return model


def fit(model: Watched, dataset: Any, epochs: int = 3, **options: Any) -> list[Any]:
    model.seen.clear()
    model.fit(dataset, epochs=epochs, verbose=0, shuffle=False, callbacks=[dataset.callback], **options)
    return model.seen[:]


def expected(ref: Any, epochs: int = 3, start: int = 0, **options: Any) -> list[Any]:
    stream = ref.stream(BATCH, shuffle=True, seed=7, num_epochs=epochs, start=start * RECORDS, **options)
    return [[batch["y"].tolist()] for batch in stream]


def test_fit_sees_every_epoch_of_the_stream_in_its_order(ref: Any) -> None:
    dataset = to_keras(ref.stream(BATCH, shuffle=True, seed=7).map_batches(pair))
    model = watched()
    assert len(dataset) == 3
    assert fit(model, dataset) == expected(ref)
    assert fit(model, dataset, epochs=4, initial_epoch=2) == expected(ref, epochs=4, start=2)
    assert fit(watched(), dataset) == expected(ref)


def test_a_shorter_last_batch_counts_by_its_rows(ref: Any) -> None:
    model = watched()
    dataset = to_keras(ref.stream(BATCH).map_batches(lambda batch: (batch["x"], 0 * batch["y"])))
    loss = model.evaluate(dataset, verbose=0)
    rows = np.concatenate([x for x, _ in dataset])
    assert loss == pytest.approx(np.mean(np.square(model.predict(rows, verbose=0))), rel=1e-5)


def test_without_the_callback_each_epoch_is_another_one_of_the_stream(ref: Any) -> None:
    dataset = to_keras(ref.stream(BATCH, shuffle=True, seed=7).map_batches(pair))
    model = watched()
    model.fit(dataset, epochs=3, verbose=0, shuffle=False)
    assert model.seen == expected(ref)


def test_an_epoch_has_its_own_batches_and_no_others(ref: Any) -> None:
    dataset = to_keras(ref.stream(BATCH, shuffle=True, seed=7).map_batches(pair))
    dataset.set_epoch(1)
    wanted = [batch[0] for batch in expected(ref, epochs=2, start=1)]
    assert [dataset[index][1].tolist() for index in (0, 1, 2, -1, -3)] == [*wanted, wanted[2], wanted[0]]
    assert [y.tolist() for _, y in dataset] == wanted
    for index in (3, 99, -4):
        with pytest.raises(cachelayer.RecordIndexError, match=f"batch {index} of an epoch of 3 batches"):
            dataset[index]


class Stop(keras.callbacks.Callback):  # type: ignore[misc]
    """Ends a run after so many batches, as a kill does."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def train(ref: Any, folder: Path, stop: int) -> tuple[list[Any], dict[str, Any], Any]:
    """Train three epochs; return the batches, the history, and the weights."""
    stream = ref.stream(BATCH, shuffle=True, seed=7).map_batches(pair)
    keras.utils.set_random_seed(1)
    model = Watched()
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([2, 5], [1e-3, 1e-4, 1e-5])
    model.compile(loss="mse", optimizer=keras.optimizers.Adam(schedule), run_eagerly=True)
    model(np.zeros((1, 2), "f4"))
    backup = keras.callbacks.BackupAndRestore(folder, save_freq=1)
    validation = to_keras(ref.stream(BATCH).map_batches(pair))
    history: dict[str, Any] = {}
    try:
        callbacks = [backup, Resume(stream), Stop(stop)]
        arguments = {"verbose": 0, "shuffle": False, "validation_data": validation, "callbacks": callbacks}
        history = model.fit(to_keras(stream), epochs=3, **arguments).history
    except KeyboardInterrupt:
        pass
    return model.seen, history, np.concatenate([np.ravel(weight) for weight in model.get_weights()])


@pytest.mark.filterwarnings("error:Your input ran out of data")
def test_a_run_that_is_killed_goes_on_in_mid_epoch_and_twice(ref: Any, tmp_path: Path) -> None:
    whole, history, weights = train(ref, tmp_path / "whole", 0)
    assert whole == expected(ref)
    # Within an epoch, at its end, and after it.
    for stop in (2, 3, 4):
        folder = tmp_path / str(stop)
        begun, _, _ = train(ref, folder, stop)
        more, _, _ = train(ref, folder, 1 + stop % 2)
        rest, later, same = train(ref, folder, 0)
        assert begun + more + rest == whole
        assert same == pytest.approx(weights)
        assert later["val_loss"] == history["val_loss"][-len(later["val_loss"]) :]


def test_each_batch_is_one_step_of_the_optimizer_in_runs_that_are_killed_twice(ref: Any, tmp_path: Path) -> None:
    stream = ref.stream(8, shuffle=True, seed=7).map_batches(pair)
    counted = []
    for stop in (7, 7, 0):
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        watch = Stop(stop)
        backup = keras.callbacks.BackupAndRestore(tmp_path, save_freq=1, delete_checkpoint=False)
        callbacks = [backup, Resume(stream), watch]
        with contextlib.suppress(KeyboardInterrupt):
            model.fit(to_keras(stream), epochs=4, verbose=0, shuffle=False, callbacks=callbacks)
        counted.append((stop - watch.left, int(model.optimizer.iterations)))
    assert counted == [(7, 7), (7, 14), (6, 20)]


def test_resume_says_what_it_needs(ref: Any, tmp_path: Path) -> None:
    stream = ref.stream(BATCH, shuffle=True, seed=7).map_batches(pair)
    with pytest.raises(cachelayer.InvalidTypeError, match="stream"):
        Resume(ref)
    model = watched()
    with pytest.raises(cachelayer.InvalidArgumentError, match="to_keras"):
        model.fit(to_keras(ref.stream(BATCH).map_batches(pair)), verbose=0, callbacks=[Resume(stream)])
    dataset = to_keras(stream)
    model(np.zeros((1, 2), "f4"))
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup", save_freq=1, delete_checkpoint=False)
    model.fit(dataset, verbose=0, shuffle=False, callbacks=[backup, Resume(dataset)])
    late = watched()
    late(np.zeros((1, 2), "f4"))
    with pytest.raises(cachelayer.InvalidArgumentError, match="after what restores"):
        late.fit(dataset, epochs=2, verbose=0, shuffle=False, callbacks=[Resume(dataset), backup])
    late.compile(loss="mse", optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()))
    with pytest.raises(cachelayer.InvalidArgumentError, match="LossScaleOptimizer"):
        late.fit(dataset, verbose=0, shuffle=False, callbacks=[Resume(dataset)])


@pytest.mark.soak
def test_fit_on_other_backends_sees_the_same() -> None:
    chosen = "fit_sees or shorter or without_the_callback or killed"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", chosen]
    children = [
        subprocess.Popen(
            command,
            env=os.environ | {"KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for backend in ("torch", "jax")
    ]
    for child in children:
        out, _ = child.communicate()
        assert child.returncode == 0, out
        assert "4 passed" in out


@pytest.mark.parametrize(
    "backend", ["tensorflow", *(pytest.param(name, marks=pytest.mark.soak) for name in ("jax", "torch"))]
)
def test_fit_trains_the_first_epochs_under_every_strategy(backend: str) -> None:
    cases = Path(__file__).parents[1] / "support" / "keras_cases.py"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", str(cases)]
    env = os.environ | {"KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_page_shows_what_happens() -> None:
    run_page("keras.md")
