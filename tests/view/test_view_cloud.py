"""The page of a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest
from servers import Server, new_bucket
from view_client import serving

import cachelayer


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
