"""Feed torchtitan with packs: `TokenDataLoader`, whose checkpoint any number of ranks restores."""

import sys
from itertools import islice
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from corpus import documents

from cachelayer.adapters.torchtitan import TokenDataLoader

STEPS, SEQ_LEN, BATCH = 120, 64, 4
config = TokenDataLoader.Config(rows=lambda length: documents.packed("tokens", length), seed=0)

torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
loader = config.build(
    dp_world_size=1, dp_rank=0, tokenizer=None, seq_len=SEQ_LEN, local_batch_size=BATCH, snapshot_every_n_steps=5
)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(100, 32), torch.nn.Linear(32, 100))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = max((int(path.parent.name) for path in Path(sys.argv[1]).glob("*/.metadata")), default=0)
if step:
    weights = model.state_dict()
    dcp.load({"model": weights, "dataloader": loader}, checkpoint_id=f"{sys.argv[1]}/{step}")
    model.load_state_dict(weights)
for inputs, labels in islice(loader, STEPS - step):
    loss = torch.nn.functional.cross_entropy(model(inputs["input"]).flatten(0, 1), labels.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    print(step, inputs["input"].tolist(), loss.item(), flush=True)
    if step % 5 == 0:
        dcp.save({"model": model.state_dict(), "dataloader": loader}, checkpoint_id=f"{sys.argv[1]}/{step}")
