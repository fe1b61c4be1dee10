"""Train nanoGPT on windows, each once an epoch: the position follows from the number of steps."""

import os
import sys

import torch
from corpus import documents

from cachelayer.adapters.torch import loader

CHECKPOINT = f"{sys.argv[1]}.pt"
block_size, batch_size, accumulation, max_iters, vocabulary = 16, 8, 2, 120, 100
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(vocabulary, 32), torch.nn.Linear(32, vocabulary))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
iter_num = 0
if os.path.exists(CHECKPOINT):
    saved = torch.load(CHECKPOINT)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    iter_num = saved["iter_num"]

# was: data = np.memmap("train.bin", dtype=np.uint16), and random offsets in get_batch
windows = documents.windows("tokens", block_size + 1, stride=block_size, separator=0)
stream = windows.stream(batch_size, shuffle=True, seed=0, num_epochs=None)
rows = iter(loader(stream))
rows.set_state(stream.state(iter_num * accumulation))


def get_batch():
    tokens = next(rows)["tokens"].long()
    return tokens[:, :-1], tokens[:, 1:]


X, Y = get_batch()
while iter_num < max_iters:
    if iter_num % 5 == 0:
        saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": iter_num}
        torch.save(saved, f"{CHECKPOINT}.new")
        os.replace(f"{CHECKPOINT}.new", CHECKPOINT)
    seen = []
    for _ in range(accumulation):
        loss = torch.nn.functional.cross_entropy(model(X).flatten(0, 1), Y.flatten()) / accumulation
        seen += X.tolist()
        X, Y = get_batch()  # while the model computes
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    iter_num += 1
    print(iter_num, seen, loss.item(), flush=True)
