"""Draw the output of commands as ``docs/terminal/*.svg``: run ``python docs/record_terminal.py``."""

from __future__ import annotations

import fcntl
import getpass
import io
import os
import pty
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

FOLDER = Path(__file__).resolve().parent / "terminal"
COLUMNS, LINES = 100, 60
COMMANDS = {
    "build": ("build", "digits:digits", "cache/digits@v1", "--arg", "brightness=255"),
    "show": ("show", "cache/digits"),
    "stats": ("stats", "cache/digits"),
}


def printed(arguments: tuple[str, ...], folder: Path) -> str:
    """Return what the installed script prints in a terminal, with colours. End the program if the script fails."""
    script = Path(sys.executable).with_name("cachelayer")
    main, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    command = [str(script), *arguments]
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=other, stderr=other)  # noqa: S603
    os.close(other)
    output = bytearray()
    while True:
        try:
            read = os.read(main, 1 << 16)
        except OSError:  # how Linux says that the other end was closed
            break
        if not read:
            break
        output += read
    os.close(main)
    if process.wait():
        raise SystemExit(f"{arguments} failed:\n{output.decode()}")
    return output.decode()


def picture(arguments: tuple[str, ...], output: str, names: dict[str, str]) -> str:
    """Draw a terminal with a command and its output as SVG, with some names replaced."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.assemble(("$ ", "bold green"), ("cachelayer " + " ".join(arguments), "bold")))
    for line in Text.from_ansi(output.replace("\r\n", "\n").rstrip("\n")).split("\n", allow_blank=True):
        line = renamed(line, names)
        # As a terminal does it: in the middle of a word.
        for row in line.divide(range(COLUMNS, len(line), COLUMNS)):
            console.print(row, no_wrap=True, overflow="ignore")
    return console.export_svg(title="cachelayer")


def renamed(line: Text, names: dict[str, str]) -> Text:
    """Replace words in a line of output, keeping its colours."""
    for name, shown in names.items():
        for match in reversed([*re.finditer(rf"(?<!\w){re.escape(name)}(?!\w)", line.plain)]):
            line = Text.assemble(line[: match.start()], shown, line[match.end() :])
    return line


def main() -> None:
    """Run all commands on a small dataset in a temporary folder, then write their pictures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(FOLDER / "digits.py", folder)
        # Of this machine nothing is shown.
        names = {str(folder): "/home/user/train", socket.gethostname(): "host", getpass.getuser(): "user"}
        pictures = {name: picture(arguments, printed(arguments, folder), names) for name, arguments in COMMANDS.items()}
    for name, drawn in pictures.items():
        (FOLDER / f"{name}.svg").write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
