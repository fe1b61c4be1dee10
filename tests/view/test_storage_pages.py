"""The pages of a storage and a dataset: builds, folders of others, buckets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from servers import Server, new_bucket
from view_client import serving

import cachelayer
from cachelayer.objects.local import LocalStore


def test_builds_that_are_not_published_are_shown_with_their_shards(tmp_path: Path) -> None:
    storage = cachelayer.Storage(tmp_path)
    storage.submit([1], "d@v1")

    def interrupted() -> Iterator[dict[str, object]]:
        for number in range(900):
            yield {"x": np.full(2000, number, np.float32)}
        raise OSError("the disk of the source is gone")

    for name in ("d@v2", "first@v1"):
        with pytest.raises(cachelayer.SourceError):
            storage.submit(interrupted, name, shard_bytes=1_000_000, resume=True)
    (tmp_path / "somebody's").mkdir()
    (tmp_path / "others").mkdir()
    with serving(storage) as client:
        text = client.shown("/")
        builds = storage.builds("d")
        assert "others" not in text
        assert re.findall(r'href="/d/(\w+)">1 (\w+) build<', text) == [
            ("d", builds[0].state),
            ("first", builds[0].state),
        ]
        text = client.shown("/d/d")
        assert "Builds that are not published" in text
        assert f'<td class="right">{builds[0].shards}</td>' in text
        text = client.shown("/d/first")
        assert "No version of it is published yet." in text
        assert "Nothing is published yet." in text
        assert "no dataset" in client.shown("/d/others", 404)


@pytest.mark.parametrize("name", ["names", "read"])
def test_a_refused_read_of_a_dataset_is_no_empty_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    storage = cachelayer.Storage(tmp_path)
    storage.submit([1], "d@v1")
    real = getattr(LocalStore, name)

    def refused(store: LocalStore, path: str) -> object:
        if not path.startswith("d/"):
            return real(store, path)
        raise cachelayer.StorageError(f"may not read {path}") from PermissionError(13, "refused")

    with serving(storage) as client:
        monkeypatch.setattr(LocalStore, name, refused)
        assert "may not read d/" in client.get("/").text


def test_a_page_of_a_bucket_reads_ranges_and_downloads_nothing(
    s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHELAYER_LOCAL_CACHE", str(tmp_path / "copies"))
    url, options = s3.url(new_bucket(s3), "caches"), s3.storage_options()
    storage = cachelayer.Storage(url, local_cache_bytes=0, storage_options=options)
    storage.submit([bytes(2000)] * 4000, "d@v1", shard_bytes=10_000_000)
    with serving(storage) as client:
        for path in ("/", "/d/d", "/d/d/v1", "/d/d/v1/records?from=3000", "/d/d/v1/records/7", "/d/d/v1/order?batch=8"):
            answer = client.get(path)
            assert answer.status == 200, answer.text
    assert "bytes" in cachelayer.Storage(url, storage_options=options).fetch("d@v1")._repr_html_()
    assert not list(tmp_path.rglob("*.array_record"))
