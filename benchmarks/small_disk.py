"""Read a version that is larger than the room for its local copies: the share of records that come from the disk.

Run: ``python benchmarks/small_disk.py [--records N]``. The version lies on fake-gcs-server. One host reads three epochs
of each order.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import numpy as np
from harness import arguments, machine, table
from servers import gcs_server, new_bucket

import cachelayer

SHARES = (0.25, 0.5, 0.75)
EPOCHS = 3
SHARD_BYTES = 1 << 20
RECORD_NBYTES = 4096


def main(records: int) -> None:
    """Print the table."""
    lines = []
    with gcs_server() as server:
        url = server.url(new_bucket(server), "caches")
        options = {"storage_options": server.storage_options()}
        images = np.random.default_rng(0).integers(0, 256, (records, RECORD_NBYTES), np.uint8)
        whole = cachelayer.Storage(url, **options, local_cache_bytes=0).submit(
            {"x": images}, "d@v1", shard_bytes=SHARD_BYTES, progress=False
        )
        for shuffle in (True, "blocks"):
            for share in SHARES:
                with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                    limit = int(share * whole.nbytes)
                    ref = cachelayer.open(f"{url}/d@v1", **options, local_cache=folder, local_cache_bytes=limit)
                    stream = ref.stream(64, shuffle=shuffle, seed=0, num_epochs=EPOCHS)
                    cells = [str(shuffle), f"{share:.0%}"]
                    for epoch in range(EPOCHS):
                        before, began = cachelayer.counters(), time.perf_counter()
                        read = sum(len(batch["x"]) for batch in stream.epoch(epoch))
                        seconds, after = time.perf_counter() - began, cachelayer.counters()
                        hits = after["copies_hit"] - before["copies_hit"]
                        cells.append(f"{hits / read:.0%}, {read / seconds:,.0f} /s")
                    lines.append(tuple(cells))
    title = f"{records:,} records of {RECORD_NBYTES} bytes: read from local copies, records a second ({machine()})"
    print(table(title, ("shuffle", "room", *(f"epoch {epoch}" for epoch in range(EPOCHS))), lines))


if __name__ == "__main__":
    main(arguments(__doc__, records=20_000).records)
