"""Run what pages of the documentation show: `page_child.py PAGE...`, each in a new folder that it may fill.

Python blocks run one after the other, as one program, and must print what the ```text block below them shows. A block
with a title is written to a file of that name instead, and commands of ```console blocks run if they start such a file.
A comment, `<!-- test ... -->`, holds what the page takes for granted, and runs first. `/data` is the folder `data`.
"""

import io
import linecache
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

FENCE = re.compile(r'^```(python|console)(?: title="([\w.]+)")?\n(.*?)^```\n(?:```text\n(.*?)^```$)?', re.M | re.S)
GIVEN = re.compile(r"^<!-- test\n(.*?)^-->", re.M | re.S)
COMMAND = re.compile(r"^\$ (.*)\n", re.M)


def run_code(code: str, label: str, names: dict[str, Any]) -> str:
    """What a block prints. It keeps its source, for functions that are asked for theirs."""
    linecache.cache[label] = (len(code), None, code.splitlines(keepends=True), label)
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, label, "exec"), names)
    return printed.getvalue()


def run_commands(text: str, files: set[str]) -> Iterator[tuple[str, str]]:
    """What each command of a console block should print, and what it prints."""
    _, *parts = COMMAND.split(text)
    for command, expected in zip(parts[::2], parts[1::2], strict=True):
        if not any(f"python {file}" in command for file in files):
            continue
        done = subprocess.run(
            ["bash", "-c", command.replace("python ", f"{sys.executable} ")],
            capture_output=True,
            text=True,
            check=False,
        )
        yield expected, done.stdout if done.stdout == expected else done.stdout + done.stderr


def main(page: Path) -> None:
    text = page.read_text(encoding="utf-8").replace('"/data', f'"{Path.cwd()}/data')
    names: dict[str, Any] = {"__name__": "__main__"}
    files: set[str] = set()
    wrong = []
    for given in GIVEN.findall(text):
        run_code(given, f"<{page.name}, given>", names)
    for number, (kind, title, body, output) in enumerate(FENCE.findall(GIVEN.sub("", text)), 1):
        if kind == "console":
            checks = list(run_commands(body, files))
        elif title:
            Path(title).write_text(body)
            files.add(title)
            checks = []
        else:
            checks = [(output, run_code(body, f"<{page.name}, block {number}>", names))]
        wrong += [
            f"{page}, block {number}:\n{body}\nshould print\n{expected}\nbut prints\n{printed}"
            for expected, printed in checks
            if printed != expected
        ]
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    sys.path.insert(0, "")
    here = Path.cwd()
    for page in map(Path, sys.argv[1:]):
        (here / page.stem).mkdir()
        os.chdir(here / page.stem)
        main(page)
