"""Run a program, and kill its process at a step: `client_child.py STEP PROGRAM ARGS...`; STEP 0 lets it live.

A program prints a line for each step, which begins with the number of the step. The line of the last step is printed.
"""

import builtins
import os
import runpy
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def kill_at(step: str) -> None:
    """Kill this process right after it has printed the line of a step."""
    shown = builtins.print

    def printed(*values: Any, **options: Any) -> None:
        shown(*values, **options)
        if values and str(values[0]) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    builtins.print = printed


def declare_operators() -> None:
    """Declare two operators of torchvision if its library does not load, so that it can be imported.

    PyPI has torchvision for PyTorch with CUDA only. Beside PyTorch for processors alone its compiled operators do not
    load, and nothing here needs them.
    """
    import torch

    if torch.version.cuda is None and find_spec("torchvision"):
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, name):
                library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        # It undefines them when it is collected.
        builtins.torchvision_operators = library  # type: ignore[attr-defined]


if __name__ == "__main__":
    step, program, *arguments = sys.argv[1:]
    path = Path(program).resolve()
    if path.name.startswith(("trainer", "lightning", "timm")):
        declare_operators()
    if step != "0":
        kill_at(step)
    sys.argv = [program, *arguments]
    sys.path[0] = str(path.parent)
    runpy.run_path(str(path), run_name="__main__")
