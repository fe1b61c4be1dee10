"""Train a Flax NNX model on several processes: `global_batches`, with its position in Orbax."""

import sys
from pathlib import Path

import jax
import optax
import orbax.checkpoint as ocp
from corpus import rows
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from cachelayer.adapters.jax import global_batches
from cachelayer.adapters.orbax import CheckpointRestore, CheckpointSave

folder, address, processes, process = sys.argv[1:]
jax.distributed.initialize(address, int(processes), int(process))
mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
stream = rows.stream(32, shuffle=True, seed=0, num_epochs=3, remainder="drop")
batches = iter(global_batches(stream, NamedSharding(mesh, P("data"))))  # was: a loader for each process
everywhere = NamedSharding(mesh, P())


@nnx.jit
def train_step(model, optimizer, batch):
    def loss_of(model):
        return ((model(batch["x"])[:, 0] - batch["y"]) ** 2).mean()

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss


model = nnx.Linear(4, 1, rngs=nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(0.01), wrt=nnx.Param)
graph, state = nnx.split((model, optimizer))
state = jax.jit(lambda tree: tree, out_shardings=everywhere)(jax.tree.map(lambda leaf: jax.device_get(leaf), state))
with ocp.CheckpointManager(Path(folder).absolute()) as manager:
    step = manager.latest_step() or 0
    if step:
        restore = ocp.args.Composite(
            model=ocp.args.StandardRestore(state), data=CheckpointRestore(batches)
        )  # new: data
        state = manager.restore(step, args=restore).model
    model, optimizer = nnx.merge(graph, state)
    for batch in batches:
        loss = train_step(model, optimizer, batch)
        step += 1
        mine = [int(each) for shard in batch["record"].addressable_shards for each in shard.data]
        print(step, mine, float(loss), flush=True)
        if step % 5 == 0:
            state = nnx.state((model, optimizer))
            manager.save(
                step,
                args=ocp.args.Composite(model=ocp.args.StandardSave(state), data=CheckpointSave(batches)),  # new: data
            )
            manager.wait_until_finished()
