"""Train with the Hugging Face `Trainer`: a `Sampler` that a callback tells the epoch."""

import os
import sys

import torch
from corpus import rows
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from cachelayer.adapters.torch import Sampler, to_torch


class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x, y, record):
        return {"loss": ((self.layer(x)[:, 0] - y) ** 2).mean()}


sampler = Sampler(rows, 1, 0, seed=0)  # new: of one process, because accelerate divides the batches


class Epochs(TrainerCallback):  # new: accelerate does not tell the sampler of several processes
    def on_epoch_begin(self, args, state, control, **others):
        sampler.set_epoch(int(state.epoch))


class OurTrainer(Trainer):
    def _get_train_sampler(self, train_dataset=None):  # new
        return sampler

    def training_step(self, model, inputs, *others):
        loss = super().training_step(model, inputs, *others)
        print(self.state.global_step + 1, inputs["record"].tolist(), loss.item(), flush=True)
        return loss


arguments = TrainingArguments(
    sys.argv[1],
    per_device_train_batch_size=32 // int(os.environ.get("WORLD_SIZE", "1")),
    num_train_epochs=3,
    learning_rate=0.01,
    save_steps=5,
    logging_strategy="no",
    remove_unused_columns=False,
    use_cpu=True,
    report_to="none",
    disable_tqdm=True,
)
torch.manual_seed(0)
dataset = to_torch(rows)  # was: datasets.load_from_disk(...)
trainer = OurTrainer(Linear(), arguments, train_dataset=dataset, callbacks=[Epochs()])  # new: callbacks
trainer.train(resume_from_checkpoint=get_last_checkpoint(sys.argv[1]) if os.path.isdir(sys.argv[1]) else None)
