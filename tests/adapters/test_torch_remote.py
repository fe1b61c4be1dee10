"""torch's worker processes read from a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch.utils.data
from forks import importing
from servers import Server, new_bucket

import cachelayer
from cachelayer.adapters.torch import to_torch


@pytest.fixture(autouse=True, scope="module")
def _forks() -> Iterator[None]:
    with importing("torch.utils.data", "cachelayer.adapters.torch", "gcsfs"):
        yield


@pytest.mark.parametrize(("context", "limit"), [("fork", 0), ("forkserver", None)])
def test_workers_read_every_record_from_a_bucket(gcs: Server, tmp_path: Path, context: str, limit: int | None) -> None:
    options = gcs.storage_options()
    storage = cachelayer.Storage(gcs.url(new_bucket(gcs), "caches"), storage_options=options, local_cache_bytes=0)
    built = storage.cache({"n": np.arange(600)}, "numbers", "v1", shard_bytes=4000)
    ref = cachelayer.open(built.reference, storage_options=options, local_cache=tmp_path, local_cache_bytes=limit)
    assert ref[7]["n"] == 7
    loader: torch.utils.data.DataLoader[dict[str, torch.Tensor]] = torch.utils.data.DataLoader(
        to_torch(ref), batch_size=50, num_workers=2, multiprocessing_context=context
    )
    assert [n for batch in loader for n in batch["n"].tolist()] == list(range(600))
