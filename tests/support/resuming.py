"""Builds that fail and are resumed."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cachelayer import Storage
from cachelayer.builds.as_source import as_source
from cachelayer.builds.batches import Batch
from cachelayer.builds.source import Source
from cachelayer.errors import SourceError


def noted(source: Source, fails_after: tuple[int, ...] = ()) -> tuple[Source, list[int]]:
    """Return a source that notes how many elements it gave, and may fail; and the note.

    Args:
        source: the source.
        fails_after: how many it gives before it fails, once; empty for never.
    """
    given, fails = [0], [*fails_after]

    def read(start: int, stop: int | None) -> Iterator[Batch]:
        for batch in source.batches(start, stop):
            if fails and given[0] >= fails[0]:
                fails.pop()
                raise SourceError("the source went away")
            yield batch
            given[0] += len(batch)

    # A source that is made anew has files that were written anew.
    return replace(source, read=read, files=(), files_now=list), given


def assert_resumes(make: Callable[[], Any], folder: Path, records: int, shard_bytes: int) -> None:
    """Raise unless a failed build resumes without the whole source, and makes the version of a single run.

    Args:
        make: makes a new source whose elements take eight shards or more.
        records: number of elements.
    """
    options: Any = {"shard_bytes": shard_bytes, "on_change": "ignore"}
    whole = Storage(folder / "whole").cache(noted(as_source(make()))[0], "d@v1", **options)
    assert len(whole._base.version.manifest.shards) >= 8
    storage = Storage(folder / "resumed")
    with pytest.raises(SourceError, match="went away"):
        storage.cache(noted(as_source(make()), (records // 2,))[0], "d@v1", **options)
    source, given = noted(as_source(make()))
    ref = storage.cache(source, "d@v1", **options)
    assert ref.digest == whole.digest
    assert given[0] < records - shard_bytes * records // (2 * whole.nbytes)
    assert storage.verify("d@v1", progress=False)
