"""What it takes until a program can begin: to import the library, beside numpy, and to start its command line.

Run: ``python benchmarks/start.py``. Each round is a fresh process for each row; all files are in the page cache.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from harness import machine, median, table

ROUNDS = 15
BARE, NUMPY, OURS, HELP = "python", "import numpy", "import cachelayer", "cachelayer --help"
STORAGE = "from cachelayer import Storage"
PROGRAMS = {
    BARE: ("-c", "pass"),
    NUMPY: ("-c", NUMPY),
    OURS: ("-c", OURS),
    STORAGE: ("-c", STORAGE),
    HELP: ("-m", "cachelayer", "--help"),
}
AIMS = {OURS: "0.06 s more than numpy", HELP: "0.4 s"}
REPORTED = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)
"""


def seconds(arguments: tuple[str, ...]) -> float:
    """How long a Python with these arguments takes from its start to its end."""
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def peak_mb(arguments: tuple[str, ...]) -> float:
    """The peak memory of a Python with these arguments."""
    command = [sys.executable, "-c", REPORTED, sys.executable, *arguments]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Print the table."""
    rounds: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for number in range(ROUNDS + 1):
        for name, arguments in PROGRAMS.items():
            taken = seconds(arguments)
            if number:
                rounds[name].append(taken)
    found = {name: median(each) for name, each in rounds.items()}
    rows = []
    for name, arguments in PROGRAMS.items():
        more = statistics.median(ours - numpy for ours, numpy in zip(rounds[name], rounds[NUMPY], strict=True))
        shown = f"{more:+.3f} s" if name in (OURS, STORAGE) else ""
        rows.append((f"`{name}`", f"{found[name]:.3f} s", shown, AIMS.get(name, ""), f"{peak_mb(arguments):,.0f} MB"))
    title = f"From the start of a process to its end, medians of {ROUNDS} ({machine()})"
    print(table(title, ("program", "time", "beside `import numpy`", "aim", "peak memory"), rows))


if __name__ == "__main__":
    main()
