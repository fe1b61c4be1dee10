"""Train with Keras's `fit`, be killed, and resume in mid-epoch: `to_keras` and `Resume`."""

import sys

import keras
from corpus import rows

from cachelayer.adapters.keras import Resume, to_keras


def loss_of(truth, predicted):
    loss = keras.ops.mean((truth[:, 0] - predicted[:, 0]) ** 2)
    seen[:] = [int(each) for each in truth[:, 1]], float(keras.ops.convert_to_numpy(loss))
    return loss


class Printed(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print(int(self.model.optimizer.iterations), *seen, flush=True)


def inputs(batch):
    return batch["x"], keras.ops.convert_to_numpy(keras.ops.stack([batch["y"], batch["record"]], axis=1))


seen = []
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(loss=loss_of, optimizer=keras.optimizers.Adam(0.01), run_eagerly=True)
stream = rows.stream(32, shuffle=True, seed=0).map_batches(inputs)
backup = keras.callbacks.BackupAndRestore(sys.argv[1], save_freq=5)
callbacks = [backup, Resume(stream), Printed()]  # new: Resume
model.fit(to_keras(stream), epochs=3, shuffle=False, callbacks=callbacks, verbose=0)  # was: a PyDataset
