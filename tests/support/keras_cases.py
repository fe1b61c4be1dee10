"""Keras on streams, in a process of its own for each backend: ``fit`` trains the epochs of the stream."""

import contextlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

if os.environ["KERAS_BACKEND"] == "tensorflow":
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], two)

import keras

import cachelayer
from cachelayer.adapters.keras import Resume, to_keras
from cachelayer.adapters.tensorflow import to_tf

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning",  # Keras's own
)
RECORDS, BATCH, STEPS = 38, 4, 9
STRATEGIES: dict[str, Any] = {"none": None}
if os.environ["KERAS_BACKEND"] == "tensorflow":
    STRATEGIES |= {
        "one device": lambda: tf.distribute.OneDeviceStrategy("CPU:0"),
        "mirrored": lambda: tf.distribute.MirroredStrategy(["CPU:0"]),
        "mirrored twice": lambda: tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
    }


@pytest.fixture
def scope(request: pytest.FixtureRequest) -> Any:
    """The strategy that splits batches between devices, if the backend has one, unless a test names another."""
    make = STRATEGIES[getattr(request, "param", [*STRATEGIES][-1])]
    return contextlib.nullcontext if make is None else make().scope


def stream(**options: Any) -> Any:
    """Return a stream of records that are rows of the identity; it drops two of them from each epoch."""
    ref = cachelayer.wrap([(row, np.float32(0)) for row in np.eye(RECORDS, dtype="f4")], identity="rows")
    return ref.stream(BATCH, **{"shuffle": True, "seed": 7, "remainder": "drop", **options})


def expected(*epochs: int, skipped: int = 0) -> list[int]:
    """Return how often each record comes in some epochs, of which the first lacks so many steps."""
    batches = [batch for epoch in epochs for batch in stream().epoch(epoch)][skipped:]
    return [int(count) for count in sum(x.sum(0) for x, _ in batches)]


def model(scope: Any) -> Any:
    """Return a model whose weights count how often each record was trained on."""
    with scope():
        dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        made = keras.Sequential([dense])
        made.compile(optimizer=keras.optimizers.SGD(float(BATCH)), loss=lambda y, p: keras.ops.mean(0 * y - p, axis=-1))
    return made


def trained(made: Any, *arguments: Any, **options: Any) -> list[int]:
    made.fit(*arguments, verbose=0, shuffle=False, **options)
    return [round(float(weight)) for weight in np.ravel(made.get_weights()[0])]


@pytest.mark.parametrize("scope", STRATEGIES, indirect=True)
def test_fit_of_a_dataset_trains_the_first_epochs(scope: Any) -> None:
    data = to_tf(stream())
    made = model(scope)
    assert trained(made, data, epochs=2) == expected(0, 1)
    assert trained(made, data, epochs=1) == expected(0, 1, 2)


def test_a_look_at_a_batch_before_fit_uses_up_nothing(scope: Any) -> None:
    data = to_tf(stream())
    next(iter(data))
    for _ in data.take(3):
        pass
    assert trained(model(scope), data, epochs=2) == expected(0, 1)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # of a first epoch that is shorter
def test_fit_from_a_start_trains_the_rest_of_its_epoch(scope: Any) -> None:
    assert trained(model(scope), to_tf(stream(start=2 * BATCH)), epochs=2) == expected(0, 1, skipped=2)


def test_a_dataset_made_within_a_scope_trains_the_first_epochs(scope: Any) -> None:
    with scope():
        data = to_tf(stream())
    assert trained(model(scope), data, epochs=2) == expected(0, 1)


def test_elements_that_are_batched_later_train_the_first_epochs(scope: Any) -> None:
    elements = stream()
    data = to_tf(cachelayer.wrap(list(np.eye(RECORDS, dtype="f4")), identity="x").stream(shuffle=True, seed=7))
    data = data.map(lambda x: (x, tf.constant(0.0))).batch(BATCH, drop_remainder=True)
    assert trained(model(scope), data, epochs=2) == expected(0, 1)
    assert len(elements) == STEPS


def test_steps_per_epoch_go_through_the_epochs(scope: Any) -> None:
    assert trained(model(scope), to_tf(stream()), epochs=6, steps_per_epoch=3) == expected(0, 1)


def test_class_weights_and_validation_change_no_epoch(scope: Any) -> None:
    validation = to_tf(stream(shuffle=False, seed=None))
    data = to_tf(stream())
    made = model(scope)
    assert trained(made, data, epochs=2, class_weight={0: 1.0}, validation_data=validation) == expected(0, 1)
    assert made.predict(to_tf(stream(shuffle=False, seed=None)), verbose=0).shape == (STEPS * BATCH, 1)
    assert np.isfinite(made.evaluate(validation, verbose=0))


@pytest.mark.parametrize("told", [True, False])
def test_fit_of_batches_trains_the_first_epochs(scope: Any, told: bool) -> None:
    data = to_keras(stream())
    callbacks = [data.callback] if told else []
    assert trained(model(scope), data, epochs=2, callbacks=callbacks) == expected(0, 1)


def test_a_run_goes_on_in_mid_epoch(scope: Any, tmp_path: Path) -> None:

    class Stop(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 3:
                raise KeyboardInterrupt

    def run(*callbacks: Any) -> list[int]:
        made = model(scope)
        with scope():
            made.build((None, RECORDS))
        backup = keras.callbacks.BackupAndRestore(tmp_path / "backup", save_freq=1)
        batches = stream()
        return trained(made, to_keras(batches), epochs=2, callbacks=[backup, Resume(batches), *callbacks])

    with pytest.raises(KeyboardInterrupt):
        run(Stop())
    assert run() == expected(0, 1)
