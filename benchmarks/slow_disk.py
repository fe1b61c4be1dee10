"""Shuffled epochs whose pages are not in memory: from this disk, and from slower ones that the kernel makes of it.

Run: ``python benchmarks/slow_disk.py [folder]``; the folder lies on the disk. Slower disks need root, and a control
group that limits the reads of a disk; without them, only this disk is measured.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cold import drop
from harness import ROUNDS, machine, median, named_folder, table
from locality import NBYTES, records

import cachelayer

RECORDS = 60_000
KINDS = {"exact": "exact", "quiet": "in blocks, not announced", "blocks": "in blocks"}
SECONDS = {"exact": 10, "quiet": 10, "blocks": 60}
"""Of an epoch that takes longer, only the beginning is read. In blocks, most of the disk's work comes there."""
_GROUPS = Path("/sys/fs/cgroup")
_NAME = "cachelayer-benchmark"

CHILD = """
import os, sys, time
folder, kind, seed, seconds, group = sys.argv[1:]
if group:
    with open(group, "w") as file:
        file.write(str(os.getpid()))
import cachelayer
from cachelayer.streams.ahead.block_announcer import BlockAnnouncer
if kind == "quiet":
    BlockAnnouncer.load = lambda *_: None
stream = cachelayer.Storage(folder).fetch("d@v1").stream(
    256, shuffle=True if kind == "exact" else "blocks", seed=int(seed)
)
count, started = 0, time.perf_counter()
for batch in stream:
    count += len(batch["n"])
    if time.perf_counter() - started > float(seconds):
        break
print(count / (time.perf_counter() - started))
"""


@dataclass(frozen=True)
class Disk:
    """A disk, by what it can do in a second.

    Args:
        name: its name.
        reads: the most reads; None for as many as this disk can do.
        nbytes: the most bytes.
    """

    name: str
    reads: int | None = None
    nbytes: int = 0


DISKS = (
    Disk("this one"),
    Disk("3,000 reads, 125 MB a second, as network disks", 3_000, 125_000_000),
    Disk("150 reads, 160 MB a second, as spinning disks", 150, 160_000_000),
)


def device_of(folder: Path) -> str:
    """The numbers of the disk that a folder lies on; limits are of disks, not of their partitions."""
    number = folder.stat().st_dev
    place = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    whole = place.parent if (place / "partition").exists() else place
    return (whole / "dev").read_text().strip()


@contextmanager
def limited(disk: Disk, folder: Path) -> Iterator[str]:
    """A file to which processes write their number, that then read from the disk as slowly as from another one.

    Raises:
        OSError: if the system does not allow it, or the folder lies on no disk.
    """
    if disk.reads is None:
        yield ""
        return
    device = device_of(folder)
    first = _GROUPS / "blkio"
    group = (first if first.exists() else _GROUPS) / _NAME
    group.mkdir(exist_ok=True)
    try:
        if first.exists():
            (group / "blkio.throttle.read_iops_device").write_text(f"{device} {disk.reads}")
            (group / "blkio.throttle.read_bps_device").write_text(f"{device} {disk.nbytes}")
        else:
            (_GROUPS / "cgroup.subtree_control").write_text("+io")
            (group / "io.max").write_text(f"{device} riops={disk.reads} rbps={disk.nbytes}")
        yield str(group / "cgroup.procs")
    finally:
        group.rmdir()


def rates(disk: Disk, folder: Path) -> dict[str, float]:
    """Records a second of each order, in processes of their own that take turns."""
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with limited(disk, folder) as group:
        for turn in range(ROUNDS):
            for kind in KINDS:
                drop(folder)
                command = [sys.executable, "-c", CHILD, str(folder), kind, str(turn), str(SECONDS[kind]), group]
                printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                found[kind].append(float(printed))
    return {kind: median(each) for kind, each in found.items()}


def main(folder: Path) -> None:
    """Print the table."""
    cachelayer.Storage(folder).cache(lambda: records(RECORDS), "d", "v1", progress=False)
    # Pages that are not on the disk yet are not dropped.
    os.sync()
    lines, left_out = [], []
    for disk in DISKS:
        try:
            found = rates(disk, folder)
        except OSError as error:
            left_out.append(f"Not measured, because this system does not limit the disk ({error}): {disk.name}.")
            continue
        lines += [
            (disk.name, KINDS[kind], f"{rate:,.0f}", f"{rate * NBYTES / 1e6:,.1f}", f"{rate / found['exact']:.2f}")
            for kind, rate in found.items()
        ]
    head = ("disk", "order", "records/s", "MB/s", "this / exact")
    print(table(f"Epochs of {RECORDS:,} records of 10 kB from a cold disk, batches of 256", head, lines))
    print("\n".join(["", *left_out]))


if __name__ == "__main__":
    print(f"{machine()}\n")
    with named_folder() as folder:
        main(folder)
