"""A process that opens a version and takes a batch imports what it uses, and nothing else of this package.

A module that such a process does not need is imported in the functions that need it. What a module needs when it is
imported, and for most of its functions, stands at its top.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np

from cachelayer import Storage

FIRST_BATCH = """
import sys
import cachelayer

ref = cachelayer.Storage(sys.argv[1]).fetch("rows@v1")
next(iter(ref.stream(2, shuffle=True, seed=0)))
print(*sys.modules)
"""
PACKAGES = {"arrayrecord", "datasets", "objects", "records", "specs", "storage", "streams", "support", "versions"}
PACKAGES |= {"streams.ahead", "streams.order", "streams.reading", "views"}
NEEDED = {
    "": "_gather errors gather protocols",
    "support.": "arguments counting credentials_in_urls json_values leases locks logs memory system_threads "
    "temporary_files user_warnings waits",
    "datasets.": "dataset dataset_view origins table version_records",
    "views.": "dataref view",
    "specs.": "dtypes leaf_names schema spec spec_json tree values",
    "arrayrecord.": "index local_shards mapping",
    "objects.": "local open_store paths store",
    "records.": "codec layout leaf_codecs leaf_columns selection spans stored_leaves",
    "storage.": "catalog storage",
    "streams.": "ahead.background ahead.prefetch cursor iterator order.orders order.permutation order.phases "
    "reading.chunk_plan reading.failures reading.functions reading.step_reader schedule state stream stream_options "
    "stream_stats",
    "versions.": "log manifest reference shard_set shard_table snapshot stored_version view_calls",
}
SLOW = {"asyncio", "click", "difflib", "fsspec", "multiprocessing", "shutil", "socket", "ssl", "tempfile", "zstandard"}
"""What takes long to import, and most processes need for nothing."""


TRAINING = """
import sys
import cachelayer
from cachelayer.adapters import torch

ref = cachelayer.Storage(sys.argv[1]).fetch("rows@v1")
next(iter(torch.loader(ref.stream(2, shuffle=True, seed=0))))
iterator = iter(ref.stream(2, shuffle="blocks", seed=0).map(lambda row: row))
next(iterator)
iterator.get_state()
next(iter(cachelayer.mix([(ref, 2), (ref[:3], 1)]).stream(2)))
print(*sys.modules)
"""


def test_what_trains_imports_no_page_and_no_command(tmp_path: Path) -> None:
    Storage(tmp_path).submit([{"x": np.arange(4)} for _ in range(10)], "rows@v1")
    result = subprocess.run([sys.executable, "-c", TRAINING, str(tmp_path)], check=True, capture_output=True, text=True)
    rooms = {".".join(name.split(".")[:2]) for name in result.stdout.split()}
    assert rooms.isdisjoint({"cachelayer.page", "cachelayer.drawing", "cachelayer.cli", "cachelayer.statistics"})


def test_a_first_batch_imports_what_it_uses(tmp_path: Path) -> None:
    Storage(tmp_path).submit([{"x": number} for number in range(10)], "rows@v1")
    result = subprocess.run(
        [sys.executable, "-c", FIRST_BATCH, str(tmp_path)], check=True, capture_output=True, text=True
    )
    imported = set(result.stdout.split())
    ours = {name.removeprefix("cachelayer.") for name in imported if name.startswith("cachelayer.")}
    needed = {package + name for package, names in NEEDED.items() for name in names.split()}
    assert ours - needed - PACKAGES - {"_gather_numpy"} == set()
    assert imported & SLOW == set()
