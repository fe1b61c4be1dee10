"""Read Keras datasets as sources, and turn streams into Keras datasets, on any backend.

``storage.cache(dataset, ...)`` takes a ``keras.utils.PyDataset`` (``Sequence``) as it is; :func:`to_keras` turns a
stream into one, for ``model.fit``.
"""

from __future__ import annotations

import itertools
import operator
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

from cachelayer.adapters.frameworks.stream_or_ref import check_numbers, check_stream
from cachelayer.builds.batches import snapshot
from cachelayer.builds.source import Source, read_once
from cachelayer.builds.unbatched_source import unbatched
from cachelayer.errors import (
    InvalidArgumentError,
    InvalidTypeError,
    RecordIndexError,
)
from cachelayer.specs import tree
from cachelayer.specs.schema import not_taken
from cachelayer.specs.tree import Tree
from cachelayer.streams.epochs import EpochCursor
from cachelayer.streams.iterator import StreamIterator
from cachelayer.streams.order.orders import MOST_POSITIONS
from cachelayer.streams.stream import Stream, stream_of
from cachelayer.support.arguments import explains_options
from cachelayer.support.extras import packages_of

with packages_of("keras", "this needs Keras and a backend"):
    import keras

__all__ = ["Resume", "StreamDataset", "as_source", "to_keras"]

_MAP = (
    "pass stream.map_batches(lambda batch: (batch['image'], batch['label'])), with your own keys, and filled(value) of "
    "what is a Nullable"
)


# Datasets of Keras as sources.


def as_source(obj: Any, *, unbatch: bool = False, element_spec: Tree | None = None) -> Source | None:  # noqa: ARG001
    """Return the source of an epoch of a ``PyDataset``; None for anything else. It always takes batches apart.

    Examples:
        >>> import keras
        >>> import numpy as np
        >>> class Batches(keras.utils.PyDataset):
        ...     def __len__(self):
        ...         return 2
        ...     def __getitem__(self, number):
        ...         return np.full((3, 1), number), np.array([0, 1, 0])
        >>> ref = cachelayer.Storage(folder).cache(Batches(), "pairs@v1")
        >>> len(ref), ref[5]
        (6, (array([1]), np.int64(0)))
    """
    if not isinstance(obj, keras.utils.PyDataset):
        return None
    endless = "give the PyDataset a __len__" if _batch_count(obj) is None else ""
    batches = (snapshot(_without_weight(batch)) for batch in _epoch(obj))
    return unbatched(Source("keras", read_once(batches), endless=endless), declared=element_spec)


def _batch_count(dataset: Any) -> int | None:
    try:
        count: int | None = dataset.num_batches
    except (TypeError, NotImplementedError):
        # Python raises a TypeError if __len__ returns None.
        return None
    return count


def _without_weight(batch: Any) -> Any:
    """Return ``(x, y)`` for ``(x, y, None)``, as Keras does."""
    no_weight = isinstance(batch, (tuple, list)) and len(batch) == 3 and batch[2] is None
    return tuple(batch[:2]) if no_weight else batch


def _epoch(dataset: Any) -> Iterator[Any]:
    """Yield the batches of a dataset in order. Its workers are not used."""
    count = _batch_count(dataset)
    dataset.on_epoch_begin()
    for number in itertools.count() if count is None else range(count):
        yield dataset[number]
    dataset.on_epoch_end()


# Streams for Keras.


@explains_options
def to_keras(stream: Stream[Any]) -> StreamDataset:
    """Return a ``PyDataset`` whose epochs are those of a stream: epoch e of ``fit`` has the records of epoch e.

    Call ``model.fit(dataset, epochs=3, shuffle=False, callbacks=[dataset.callback])``. The callback tells the dataset
    which epoch runs, also with ``initial_epoch`` and after ``BackupAndRestore``. Each ``fit`` begins with epoch 0, or
    with ``initial_epoch``; if the stream is endless, it goes on after the epochs of the last ``fit``. Without the
    callback, each epoch that Keras begins is the next one of the stream once Keras has taken the last batch of the one
    before. ``shuffle=False`` keeps ``fit`` from shuffling the batches again. The dataset reads ahead as the stream
    does. It does not use Keras's own workers, because they return batches of one epoch in the next.

    Args:
        stream: its batches must be what ``fit`` takes: ``(x, y)``, ``(x, y, sample_weight)``, ``(x,)``, or a dict of
            inputs. ``fit`` decides the number of epochs. Remainder "pad" is refused: Keras would count the padding,
            whose weight is 0, as rows, in each mean of losses.

    Raises:
        InvalidArgumentError: if the stream has no batches, has a start, is padded, or has empty batches for a shard.
        InvalidTypeError: if the argument is not a stream.

    Examples:
        >>> import keras
        >>> import numpy as np
        >>> from cachelayer.adapters.keras import to_keras
        >>> x = np.arange(6, dtype=np.float32).reshape(6, 1)
        >>> ref = cachelayer.Storage(folder).cache((x, 2 * x), "pairs@v1")
        >>> data = to_keras(ref.stream(2, shuffle=True, seed=1))
        >>> model = keras.Sequential([keras.layers.Dense(1, use_bias=False)])
        >>> model.compile("sgd", "mse")
        >>> history = model.fit(data, epochs=3, shuffle=False, callbacks=[data.callback], verbose=0)
        >>> len(data), history.epoch
        (3, [0, 1, 2])
    """
    check_stream(stream)
    check_numbers(stream, "Keras", _has_dtype)
    schedule = stream._reader.schedule
    if not schedule.batched:
        raise InvalidArgumentError("fit() takes batches: pass a global_batch_size to stream()")
    if schedule.start:
        raise InvalidArgumentError(
            f"start={schedule.start}: Keras needs whole epochs: leave start out, and pass initial_epoch= to fit()"
        )
    if schedule.records >= MOST_POSITIONS:
        raise InvalidArgumentError(
            "a mixture or a weighted sample has no epochs, and Keras asks for them: pass to_tf(stream), or batches in "
            "a loop of your own, and steps_per_epoch= to fit()"
        )
    if schedule.pads:
        raise InvalidArgumentError(
            "remainder='pad': Keras counts rows without a weight in its means, so that losses and metrics would be "
            "wrong: pass 'keep' or 'drop' to stream()"
        )
    if not schedule.epochs_are_alike:
        raise InvalidArgumentError(
            "Keras takes epochs of one length: pass remainder='drop' or 'keep', and leave no steps out"
        )
    epoch = replace(schedule, num_epochs=1)
    if not epoch.count(0):
        raise InvalidArgumentError(f"{schedule.records} records give no batch of {schedule.global_batch}")
    if min(epoch.step_sizes(0)) < schedule.shard_count:
        raise InvalidArgumentError(
            "a shorter step may have no records for some shards, and Keras does not take empty batches: pass "
            "remainder='drop' to stream(), or batches over fewer shards; or leave erased records out with "
            "ref.exclude(ref.erased)"
        )
    dataset = StreamDataset(stream)
    _DATASETS.setdefault(stream, WeakSet()).add(dataset)
    return dataset


_DATASETS: WeakKeyDictionary[Stream[Any], WeakSet[StreamDataset]] = WeakKeyDictionary()
"""The datasets that were made of each stream."""


class StreamDataset(keras.utils.PyDataset):  # type: ignore[misc]
    """The batches of one epoch of a stream; made by :func:`to_keras`.

    Examples:
        >>> import numpy as np
        >>> from cachelayer.adapters.keras import to_keras
        >>> x = np.arange(4, dtype=np.float32)
        >>> data = to_keras(cachelayer.wrap(list(zip(x, x)), identity="pairs").stream(2))
        >>> len(data), data[1]
        (2, (array([2., 3.], dtype=float32), array([2., 3.], dtype=float32)))
    """

    def __init__(self, stream: Stream[Any]) -> None:
        super().__init__()
        reader = stream._reader
        self._endless = stream_of(reader.with_schedule(num_epochs=None))
        self._epochs: EpochCursor[Any] = EpochCursor(replace(reader.with_schedule(num_epochs=1), convert=_for_fit))
        self._goes_on = reader.schedule.is_endless
        """Whether each ``fit`` goes on after the epochs of the last one."""
        self._following = 0
        """The epoch after the last one that a callback chose."""
        self._given: set[int] = set()
        """The numbers of the batches that Keras has taken since it began the current epoch."""
        self._epoch_ended: Callable[[], None] | None = None
        """What :class:`Resume` does at the end of an epoch, before any callback."""
        # Hands out the batches of the current epoch, and the number of the next of them.
        self._batches: StreamIterator[Any] | None = None
        self._next = 0

    def __repr__(self) -> str:
        return f"to_keras({self._epoch!r})"

    @property
    def _epoch(self) -> Stream[Any]:
        return stream_of(self._epochs.reader)

    def __len__(self) -> int:
        """Return the number of batches of the current epoch: those that are left of one that a `Resume` continues."""
        return len(self._epoch)

    def __getitem__(self, index: int) -> Any:
        """Return a batch of the current epoch; negative numbers count from its end."""
        number = operator.index(index)
        count = len(self)
        if not -count <= number < count:
            raise RecordIndexError(f"batch {number} of an epoch of {count} batches")
        number %= count
        self._given.add(number)
        if number == 0:
            self._batches = iter(self._epoch)
            self._next = 0
        if self._batches is None or number != self._next:
            return self._epoch[number]
        batch = next(self._batches)
        self._next += 1
        return batch

    @property
    def callback(self) -> keras.callbacks.Callback:
        """The callback that tells this dataset which epoch ``fit`` is in: pass it to ``fit``.

        Examples:
            >>> import numpy as np
            >>> from cachelayer.adapters.keras import to_keras
            >>> x = np.arange(4, dtype=np.float32)
            >>> stream = cachelayer.wrap(list(zip(x, x)), identity="pairs").stream(2, shuffle=True, seed=1)
            >>> data = to_keras(stream)
            >>> data.callback.on_epoch_begin(2)  # as fit() does
            >>> data[0][0].tolist() == next(stream.epoch(2))[0].tolist()
            True
        """
        return _EpochsCallback(self)

    def set_epoch(self, epoch: int) -> None:
        """Continue with the given epoch, and then with those after it. :attr:`callback` calls this.

        Examples:
            >>> import numpy as np
            >>> from cachelayer.adapters.keras import to_keras
            >>> x = np.arange(4, dtype=np.float32)
            >>> stream = cachelayer.wrap(list(zip(x, x)), identity="pairs").stream(2, shuffle=True, seed=1)
            >>> data = to_keras(stream)
            >>> data.set_epoch(3)
            >>> data[0][0].tolist() == next(stream.epoch(3))[0].tolist()
            True
        """
        self._epochs.set_epoch(epoch)
        self._following = epoch + 1
        self._batches = None
        self._given.clear()

    def on_epoch_begin(self) -> None:
        # Keras calls this, also before it builds a model with a batch, which uses up no epoch.
        if self._given and len(self._given) == len(self):
            self._end_epoch()
        self._given.clear()

    def on_epoch_end(self) -> None:
        if self._epoch_ended is not None:
            self._epoch_ended()

    def _end_epoch(self) -> None:
        """Go to the next epoch, a whole one."""
        self._epoch_ended = None
        self._epochs.begin_next()
        self._batches = None

    def _continue_after(self, batches: int) -> None:
        """Go to the epoch, and the rest of it, that follows so many batches. :class:`Resume` calls this."""
        self._epochs.restore(self._endless.state(batches))
        self._batches = None
        self._given.clear()


class _EpochsCallback(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self, dataset: StreamDataset) -> None:
        super().__init__()
        self._dataset = dataset
        # What to add to the epoch of fit() for that of the stream; None before the first epoch.
        self._offset: int | None = 0

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        if self._dataset._goes_on:
            self._offset = None
        _check_steps(self.params.get("steps"), self._dataset)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        if self._offset is None:
            self._offset = max(0, self._dataset._following - epoch)
        self._dataset.set_epoch(epoch + self._offset)


def _check_steps(steps: int | None, dataset: StreamDataset) -> None:
    if steps is not None and steps != len(dataset):
        raise InvalidArgumentError(
            f"steps_per_epoch={steps}: an epoch of fit() is an epoch of the stream, which has {len(dataset)} batches: "
            "leave steps_per_epoch out"
        )


class Resume(keras.callbacks.Callback):  # type: ignore[misc]
    """Has ``fit`` go on after the last batch that the optimizer has seen, in the middle of an epoch.

    Pass it after what restores the weights, in place of ``dataset.callback``::

        backup = keras.callbacks.BackupAndRestore(folder, save_freq=100)
        model.fit(to_keras(stream), epochs=10, shuffle=False, callbacks=[backup, Resume(stream)])

    The number of steps that the optimizer has done, which is restored with its other variables, is all that is needed:
    the first epoch of a run has the batches that are left of it, and each later one all of its batches. Epochs end as
    they would have, so that validation and schedules see no difference. Weights that were restored before ``fit``, with
    those of the optimizer, do as well.

    Args:
        stream: the stream whose dataset is passed to ``fit``, or that dataset.

    Examples:
        >>> import keras
        >>> import numpy as np
        >>> from cachelayer.adapters.keras import Resume, to_keras
        >>> x = np.arange(6, dtype=np.float32).reshape(6, 1)
        >>> stream = cachelayer.wrap(list(zip(x, 2 * x)), identity="pairs").stream(2, shuffle=True, seed=1)
        >>> def fit():
        ...     model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
        ...     model.compile("sgd", "mse")
        ...     backup = keras.callbacks.BackupAndRestore(folder / "backup", save_freq=1, delete_checkpoint=False)
        ...     model.fit(to_keras(stream), epochs=2, shuffle=False, callbacks=[backup, Resume(stream)], verbose=0)
        ...     return int(model.optimizer.iterations)
        >>> fit(), fit()
        (6, 6)
    """

    @explains_options
    def __init__(self, stream: Stream[Any] | StreamDataset) -> None:
        super().__init__()
        if not isinstance(stream, StreamDataset):
            check_stream(stream)
        self._source = stream
        # The number of batches before this run; None after its first epoch.
        self._done: int | None = None
        self._quiet = ExitStack()

    def _datasets(self) -> list[StreamDataset]:
        source = self._source
        datasets = [source] if isinstance(source, StreamDataset) else [*_DATASETS.get(source, ())]
        if not datasets:
            raise InvalidArgumentError("Resume() of a stream without a dataset: pass to_keras(stream) to fit()")
        return datasets

    def _counter(self) -> Any:
        """Return the variable in which the optimizer counts the batches that it has seen."""
        optimizer = self.model.optimizer
        if hasattr(optimizer, "inner_optimizer"):
            raise InvalidArgumentError(
                f"a {type(optimizer).__name__} leaves out steps, so that the number of its steps is not that of the "
                "batches: train with bfloat16, or resume whole epochs with dataset.callback"
            )
        # With gradient accumulation, the public number is that of whole steps.
        return getattr(optimizer, "_iterations", optimizer.iterations)

    def _batches_done(self) -> int:
        # A sum is one number for all replicas.
        return int(self._counter() + 0)

    def _correct_counter(self, batches: int) -> None:
        """Have the optimizer count the batches up to the end of an epoch, but no more.

        If an epoch has fewer batches than Keras expects, TensorFlow counts a step more, for which there was no batch.
        """
        if self._batches_done() > batches:
            self._counter().assign(batches)

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        self._done = self._batches_done()
        for dataset in self._datasets():
            _check_steps(self.params.get("steps"), dataset)
            dataset._continue_after(self._done)
            if self._done:
                # As Keras's BackupAndRestore does, which knows whole epochs alone.
                self.model._initial_epoch = self._done // len(dataset._epochs)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        if self._done == 0 and self._batches_done():
            raise InvalidArgumentError("pass Resume() after what restores the weights, such as BackupAndRestore")
        for dataset in self._datasets():
            dataset.set_epoch(epoch)
            if self._done:
                dataset._epoch_ended = partial(self._correct_counter, (epoch + 1) * len(dataset._epochs))
        if self._done:
            # Keras expects as many batches as in any epoch.
            self._quiet.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", "Your input ran out of data", UserWarning)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._quiet.close()
        self._done = None
        for dataset in self._datasets():
            dataset._end_epoch()

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        # Another fit() of this model begins where its arguments say.
        self.model._initial_epoch = None


def _has_dtype(dtype: np.dtype[Any]) -> bool:
    try:
        return bool(keras.backend.standardize_dtype(dtype.name) != "string")
    except ValueError:
        return False


def _for_fit(batch: Any, rows: int) -> Any:  # noqa: ARG001
    if isinstance(batch, list) or tree.is_namedtuple(batch):
        batch = tuple(batch)
    batch = _without_weight(batch)
    if not isinstance(batch, (dict, np.ndarray)) and not (isinstance(batch, tuple) and 1 <= len(batch) <= 3):
        raise InvalidTypeError(f"fit() takes (x, y), (x, y, sample_weight), (x,) or a dict: {_MAP}")
    leaves = tree.leaf_values(batch)
    if not leaves:
        raise InvalidTypeError(f"the batch is {tree.describe(batch)} without an array: {_MAP}")
    for path, leaf in leaves:
        if not isinstance(leaf, np.ndarray) or not _has_dtype(leaf.dtype):
            raise not_taken(tree.leaf_title(path, "the batch"), tree.describe(leaf), "Keras", _MAP)
    return batch
