"""Train with Lightning, whose checkpoints keep the state of `loader`."""

import sys
from pathlib import Path

import lightning
import torch
from corpus import rows
from lightning.pytorch.callbacks import ModelCheckpoint

from cachelayer.adapters.torch import loader


class Linear(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        loss = ((self.layer(batch["x"])[:, 0] - batch["y"]) ** 2).mean()
        print(self.trainer.global_step + 1, batch["record"].tolist(), loss.item(), flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


torch.manual_seed(0)
batches = loader(rows.stream(32, shuffle=True, seed=0))  # was: DataLoader(dataset, 32, shuffle=True)
trainer = lightning.Trainer(
    max_epochs=3,
    accelerator="cpu",
    logger=False,
    callbacks=[ModelCheckpoint(sys.argv[1], every_n_train_steps=5, save_last=True)],
    enable_progress_bar=False,
    enable_model_summary=False,
)
last = Path(sys.argv[1]) / "last.ckpt"
trainer.fit(Linear(), batches, ckpt_path=last if last.exists() else None)
