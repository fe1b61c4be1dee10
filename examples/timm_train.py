"""Train a timm model on pictures whose random transforms are the same after a restart."""

import os
import random
import sys

import timm
import torch
from corpus import pictures

from cachelayer.adapters.torch import loader

CHECKPOINT, EPOCHS = f"{sys.argv[1]}.pt", 3
transform = timm.data.create_transform(32, is_training=True, no_aug=False, auto_augment=None, re_prob=0.25)


def augmented(element, rng):
    seed = int(rng.integers(2**32))
    random.seed(seed)
    torch.manual_seed(seed)
    return {**element, "image": transform(timm.data.dataset.Image.fromarray(element["image"])).numpy()}


stream = pictures.stream(32, shuffle=True, seed=0, num_epochs=EPOCHS).map(augmented, rng=True)
batches = loader(stream, num_workers=2)  # was: timm.data.create_loader(dataset, (3, 32, 32), 32, is_training=True)
torch.manual_seed(0)
model = timm.create_model("test_efficientnet", num_classes=4, in_chans=3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = 0
if os.path.exists(CHECKPOINT):
    saved = torch.load(CHECKPOINT)
    model.load_state_dict(saved["model"])
    batches.load_state_dict(saved["batches"])
    step = saved["step"]
for batch in batches:
    loss = torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    print(step, batch["record"].tolist(), loss.item(), flush=True)
    if step % 5 == 0:
        torch.save({"model": model.state_dict(), "batches": batches.state_dict(), "step": step}, f"{CHECKPOINT}.new")
        os.replace(f"{CHECKPOINT}.new", CHECKPOINT)
