"""What needs temporary files says what to do where there is no place for them, or does without."""

import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer import CacheLayerWarning, Storage, StorageError

ELEMENTS = [{"n": number, "tokens": np.arange(number % 7)} for number in range(100)]
SPEC = {"n": np.int64, "tokens": cachelayer.ArraySpec(np.int64, (None,))}
OPTIONS: dict[str, Any] = {"shard_bytes": 1000, "progress": False, "element_spec": SPEC}


@pytest.fixture
def remote() -> Storage:
    """A storage that is not local, without a folder of local copies, with a version."""
    storage = Storage(f"memory://{uuid.uuid4().hex}", local_cache_bytes=0)
    storage.cache(ELEMENTS, "d@v1", **OPTIONS)
    return storage


@pytest.fixture(params=["deleted", "none can be written"])
def nowhere(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Take away the folder for temporary files, as a job scheduler does, or every folder."""

    def take_away() -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "deleted") if request.param == "deleted" else None)
        monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "deleted")])

    return take_away


def test_builds_say_what_to_do(remote: Storage, nowhere: Callable[[], None]) -> None:
    nowhere()
    for build in (
        lambda: remote.cache(ELEMENTS, "d@v2", **OPTIONS),
        lambda: remote.rewrite("d@v1", "v2", shard_bytes=1000, progress=False),
    ):
        with pytest.raises(StorageError, match=r"temporary file|cannot open .*[.]lock"):
            build()


def test_a_plan_of_packs_is_made_in_memory(remote: Storage, nowhere: Callable[[], None]) -> None:
    ref = remote.fetch("d@v1")
    nowhere()
    with pytest.warns(CacheLayerWarning, match=r"each process makes it: cannot make a temporary file"):
        rows = list(ref.packed("tokens", 16))
    assert sum(int((row["tokens_segment_ids"] > 0).sum()) for row in rows) == sum(n % 7 for n in range(100))


def test_garbage_is_collected(remote: Storage, nowhere: Callable[[], None]) -> None:
    nowhere()
    assert remote.gc(grace=0) == []
