"""The programs of examples/, before and after: lines changed, and what happens when they are killed and resume.

Run: ``tests/clients/run python benchmarks/clients.py``, which brings transformers, accelerate, Lightning and
Flax. Names, such as ``lightning keras``, choose programs; of those whose packages are missing, the table says so.

The programs before are those of `examples/` with the replacements below. They are killed at a step in the second epoch
and started again, as the tests do with those of `examples/`.
"""

from __future__ import annotations

import ast
import difflib
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from harness import machine, table

ROOT = Path(__file__).parent.parent
NEEDS = {"trainer": "transformers", "lightning": "lightning", "keras": "keras", "nanogpt": "torch"}
KILL_AT = 18
# What stands in the programs without cachelayer: pairs of a text of the program, and what stands there instead.
POINTS = "from corpus import points\n"
BEFORE = {
    "trainer": [
        ("from corpus import rows\n", "import datasets\n" + POINTS),
        ("from cachelayer.adapters.torch import Sampler, to_torch\n", ""),
        ("    def _get_train_sampler(self, train_dataset=None):  # new\n", ""),
        ("        return Sampler(rows, 1, 0, seed=0)  # new\n", ""),
        ("to_torch(rows)", 'datasets.Dataset.from_dict(points()).with_format("torch")'),
    ],
    "lightning": [
        ("from corpus import rows\n", POINTS),
        ("from cachelayer.adapters.torch import loader\n", "from torch.utils.data import DataLoader\n"),
        (
            "loader(rows.stream(32, shuffle=True, seed=0))",
            "DataLoader([dict(zip(points(), each)) for each in zip(*points().values())], 32, shuffle=True)",
        ),
    ],
    "keras": [
        ("from corpus import rows\n", "import numpy as np\n" + POINTS),
        (
            "\n\ndef loss_of",
            "\n\nclass Points(keras.utils.PyDataset):\n"
            "    arrays = points()\n"
            "    def __len__(self):\n"
            "        return 13\n"
            "    def __getitem__(self, number):\n"
            "        return inputs({k: v[32 * number : 32 * number + 32] for k, v in self.arrays.items()})\n"
            "\n\ndef loss_of",
        ),
        ("rows.stream(32, shuffle=True, seed=0, num_epochs=3).map_batches(inputs)", "Points()"),
        ("rest = iter(stream)\nrest.set_state(stream.state(done))\n", ""),
        ("(batch for batch in rest), steps_per_epoch=steps, shuffle=False, ", "stream, epochs=3, shuffle=True, "),
    ],
    "nanogpt": [
        ("from corpus import documents\n", "import numpy as np\nfrom corpus import stories\n"),
        ("from cachelayer.adapters.torch import loader\n", ""),
        (
            'windows = documents.windows("tokens", block_size + 1, stride=block_size, separator=0)\n',
            'data = np.concatenate([np.append(each["tokens"], 0) for each in stories()])\n',
        ),
        ("stream = windows.stream(batch_size, shuffle=True, seed=0, num_epochs=None)\n", ""),
        ("rows = iter(loader(stream))\nrows.set_state(stream.state(iter_num * accumulation))\n", ""),
        (
            '    tokens = next(rows)["tokens"].long()\n',
            "    places = torch.randint(len(data) - block_size, (batch_size,))\n"
            "    tokens = torch.stack([torch.from_numpy(data[i : i + block_size + 1]) for i in places]).long()\n",
        ),
    ],
}


def programs(folder: Path) -> dict[str, tuple[str, str]]:
    """Write the programs, and return each before and after."""
    found = {path.stem: path.read_text() for path in (ROOT / "examples").glob("*.py")}
    for name, text in found.items():
        (folder / f"{name}.py").write_text(text)
    both = {}
    for name, replacements in BEFORE.items():
        after = before = found[f"{name}_train"]
        for text, instead in replacements:
            if text not in before:
                raise SystemExit(f"{name}: the program does not have {text!r}")
            before = before.replace(text, instead)
        (folder / f"{name}_before.py").write_text(before)
        both[name] = before, after
    return both


def lines_changed(before: str, after: str) -> int:
    """Return how many lines of a program are not those of the program before; imports and empty lines aside."""
    new = (line[2:] for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line.startswith("+ "))
    return sum(bool(line.strip()) and not re.match(r"\s*(import|from|#)\b", line) for line in new)


def run(folder: Path, program: str, kill_at: int, run_folder: str) -> dict[int, list[int]]:
    """Return the records of each step that a program printed."""
    child = ROOT / "tests" / "support" / "client_child.py"
    environment = os.environ | {"KERAS_BACKEND": "torch", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(child), str(kill_at), f"{program}.py", run_folder]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, -9):
        raise SystemExit(f"{program}: {done.stderr[-2000:]}")
    steps = [line.split(" ", 1) for line in done.stdout.splitlines() if line.partition(" ")[0].isdigit()]
    return {int(step): ast.literal_eval(rest.rpartition(" ")[0]) for step, rest in steps}


def resuming(folder: Path, program: str) -> str:
    """Return what a program does that is killed in its second epoch and started again."""
    whole = run(folder, program, 0, f"{program}-whole")
    killed = run(folder, program, KILL_AT, f"{program}-killed")
    rest = run(folder, program, 0, f"{program}-killed")
    first = min(rest)
    kept = {step: records for step, records in killed.items() if step < first}
    if kept | rest == whole:
        return f"goes on at step {first}: every batch as without the kill"
    if not isinstance(rest[first][0], int):
        equal = sum(rest[step] == whole.get(step) for step in rest)
        return f"goes on at step {first} with other random windows: {equal} of {len(rest)} batches as without the kill"
    # The second epoch of what was trained on: the steps that the checkpoint has, and those until the third begins.
    per_epoch = len(whole) // 3
    left = len(rest) - per_epoch
    epoch = [step for step in kept if step > per_epoch], sorted(rest)[:left]
    seen = Counter(
        record for steps, lines in zip(epoch, (kept, rest), strict=True) for s in steps for record in lines[s]
    )
    every = {record for records in whole.values() for record in records}
    twice, never = sum(count > 1 for count in seen.values()), len(every - set(seen))
    return f"goes on at step {first}: of {len(every)} records, the epoch has {twice} twice, and {never} never"


def main(names: Sequence[str]) -> None:
    """Print the table."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="clients-") as made:
        folder = Path(made)
        both = programs(folder)
        for name in names or BEFORE:
            if not find_spec(NEEDS[name]):
                rows.append((name, f"{NEEDS[name]} is not installed", "", ""))
                continue
            with ThreadPoolExecutor(2) as both_at_once:
                found = list(both_at_once.map(partial(resuming, folder), (f"{name}_before", f"{name}_train")))
            rows.append((name, str(lines_changed(*both[name])), *found))
            print(rows[-1], file=sys.stderr)
    head = ("program", "lines changed", "killed and resumed: before", "after")
    print(table(f"Programs that other people wrote ({machine()})", head, rows))


if __name__ == "__main__":
    main(sys.argv[1:])
