"""A rank of a job that trains as torchtitan does: its batches are written down, its state goes through checkpoints."""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
import torch.distributed.checkpoint as dcp

import cachelayer
from cachelayer.adapters.torchtitan import TokenDataLoader

SEQ_LEN = 24
GLOBAL_BATCH = 12


@dataclass(frozen=True)
class Job:
    """Some steps of a training.

    Args:
        folder: where the storage and the checkpoints are.
        rows: what is read, as :func:`rows_of` has it.
        ranks: the data-parallel degree.
        start: the step of the checkpoint to begin at; 0 for none.
        end: the step to end at, which a checkpoint gets.
    """

    folder: Path
    rows: str
    ranks: int
    start: int
    end: int

    def batches(self, rank: int) -> Path:
        return self.folder / f"{self.rows}-{self.ranks}-{rank}-{self.start}.npz"


def rows_of(folder: Path, name: str) -> object:
    storage = cachelayer.Storage(folder / "cache")
    stories, sums = storage.fetch("stories@v1"), storage.fetch("sums@v1")
    if name == "packed":
        return stories.packed("tokens", SEQ_LEN + 1)
    if name == "windows":
        return stories.windows("tokens", SEQ_LEN + 1, stride=SEQ_LEN)
    return cachelayer.mix([(stories.packed("tokens", SEQ_LEN + 1), 3), (sums.packed("tokens", SEQ_LEN + 1), 1)])


def loader_of(job: Job, rank: int) -> TokenDataLoader:
    config = TokenDataLoader.Config(rows=rows_of(job.folder, job.rows), seed=7)
    loader: TokenDataLoader = config.build(
        dp_world_size=job.ranks,
        dp_rank=rank,
        tokenizer=None,
        seq_len=SEQ_LEN,
        local_batch_size=GLOBAL_BATCH // job.ranks,
        snapshot_every_n_steps=None,
    )
    return loader


def train(job: Job, rank: int) -> None:
    store = f"file://{job.folder}/store-{job.rows}-{job.ranks}-{job.start}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=job.ranks)
    loader = loader_of(job, rank)
    checkpoint = job.folder / f"{job.rows}-step-{job.start}"
    if job.start:
        dcp.load({"dataloader": loader}, checkpoint_id=str(checkpoint))
    batches = list(islice(loader, job.end - job.start))
    if not job.start:
        dcp.save({"dataloader": loader}, checkpoint_id=str(checkpoint.with_name(f"{job.rows}-step-{job.end}")))
    columns = {"labels": [labels for _, labels in batches]}
    columns |= {name: [inputs[name] for inputs, _ in batches] for name in ("input", "positions")}
    np.savez(job.batches(rank), **{name: np.stack(values) for name, values in columns.items()})
    loader.close()
    torch.distributed.destroy_process_group()
