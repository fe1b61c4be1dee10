"""Callbacks of Keras that tell a dataset which epoch runs, and keep the position in a stream beside the model."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from cachelayer.errors import InvalidArgumentError
from cachelayer.streams.stream import with_options

if TYPE_CHECKING:
    from cachelayer.adapters.keras import StreamDataset

_PLACE = "position.json"


class EpochsCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Tells a dataset which epoch runs."""

    def __init__(self, dataset: StreamDataset) -> None:
        super().__init__()
        self._dataset = dataset
        # What to add to the epoch of fit() for that of the stream; None before the first epoch.
        self._offset: int | None = 0

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        if self._dataset.goes_on:
            self._offset = None
        steps = self.params.get("steps")
        if steps is not None and steps != len(self._dataset):
            raise InvalidArgumentError(
                f"steps_per_epoch={steps}: an epoch of fit() is an epoch of the stream, which has {len(self._dataset)} "
                "batches: leave steps_per_epoch out"
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        if self._offset is None:
            self._offset = max(0, self._dataset.following - epoch)
        self._dataset.set_epoch(epoch + self._offset)


class BackupCallback(EpochsCallback):
    """Writes the model and its position in the stream, and continues from there.

    ::

        <folder>/position.json          the state of the stream, the seeds, and the file of the weights
        <folder>/<n>.weights.h5         the weights, and the state of the optimizer, at position n
    """

    def __init__(self, dataset: StreamDataset, folder: Path, every: int) -> None:
        super().__init__(dataset)
        self._folder = folder
        self._every = every
        self._unsaved = 0
        self._saved: int | None = None
        self._resumed: int | None = None
        self._quiet: warnings.catch_warnings[None] | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        super().on_train_begin(logs)
        # The position that was written decides.
        self._offset = 0
        self._unsaved = 0
        self._folder.mkdir(parents=True, exist_ok=True)
        place = self._folder / _PLACE
        if not place.exists():
            return
        saved = json.loads(place.read_text())
        at = iter(self._dataset.stream)
        at.set_state(saved["state"])
        optimizer = self.model.optimizer
        if optimizer is not None and not optimizer.built:
            # Only then are there variables to load.
            optimizer.build(self.model.trainable_variables)
        self.model.load_weights(self._folder / saved["weights"])
        for variable, values in zip(_seeds(self.model), saved["seeds"], strict=True):
            variable.assign(np.asarray(values, variable.dtype))
        self._saved = at.position
        self._resumed = at.position
        # Keras's own BackupAndRestore sets it too: there is no other way.
        self.model._initial_epoch = at.position // self._dataset.steps.records

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_begin(epoch, logs)
        if self._resumed is not None and self._resumed // self._dataset.steps.records == epoch:
            self._dataset.begin = self._resumed
        if self._dataset.num_batches < len(self._dataset):
            self._quiet = warnings.catch_warnings()
            self._quiet.__enter__()
            # Keras has asked for the length of an epoch before this callback could resume one.
            warnings.filterwarnings("ignore", message="Your input ran out of data")

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        if batch >= self._dataset.num_batches and keras.backend.backend() == "tensorflow":
            # A step of TensorFlow that finds no batch has counted as one of the optimizer by then.
            raise StopIteration

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._unsaved += 1
        if self._unsaved >= self._every:
            step = self._dataset.steps.nth(self._dataset.begin, batch)
            if step is not None:
                self._save(step.end)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        if self._quiet is not None:
            self._quiet.__exit__(None, None, None)
            self._quiet = None
        self._save((epoch + 1) * self._dataset.steps.records)

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        self._resumed = None
        self.model._initial_epoch = None

    def _save(self, position: int) -> None:
        """Write the weights, then the file that names them: a process that is killed in between leaves the old ones."""
        self._unsaved = 0
        if position == self._saved:
            return
        state = iter(with_options(self._dataset.stream, start=position)).get_state()
        weights = self._folder / f"{position}.weights.h5"
        self.model.save_weights(weights)
        seeds = [keras.ops.convert_to_numpy(each).tolist() for each in _seeds(self.model)]
        new = self._folder / f"{_PLACE}.new"
        new.write_text(json.dumps({"state": state, "weights": weights.name, "seeds": seeds}))
        new.replace(self._folder / _PLACE)
        for old in self._folder.glob("*.weights.h5"):
            if old != weights:
                old.unlink()
        self._saved = position


def _seeds(model: Any) -> list[Any]:
    """Return the variables of random layers such as Dropout, which are not saved with the weights."""
    weights = set(map(id, model.weights))
    return [each for each in model.variables if id(each) not in weights and "int" in str(each.dtype)]
