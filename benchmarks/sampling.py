"""Mixtures, weighted samples, and stand-ins for bad records: all tables in one run.

Run: ``python benchmarks/sampling.py [folder]``.
"""

from __future__ import annotations

import sampling_mixtures
import sampling_replaced
import sampling_weighted
from harness import machine, named_folder, table


def main() -> None:
    """Print the tables."""
    with named_folder() as folder:
        mixtures = sampling_mixtures.rows(folder)
    print(machine(), end="\n\n")
    print(table("Mixtures", ("what", "measured", "at least"), mixtures), end="\n\n")
    head: tuple[str, ...] = ("what", "measured", "of the shuffle", "aim")
    title = f"Weighted sampling of {sampling_weighted.RECORDS:,} records, batches of {sampling_weighted.BATCH}"
    print(table(title, head, sampling_weighted.rows()), end="\n\n")
    head = ("what fails", "elements/s if failures raise", "replaced, none fails", "replaced, 1 % fail", "aim")
    title = f"One element of {sampling_replaced.ONE_IN} fails, and another stands in"
    print(table(title, head, sampling_replaced.rows()))


if __name__ == "__main__":
    main()
