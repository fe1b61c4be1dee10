"""Which store a URL names, and which are refused."""

import os
import pwd
import sys
from pathlib import Path
from typing import Any

import pytest
from servers import Server, new_bucket

import cachelayer
from cachelayer import InvalidArgumentError, MissingDependencyError, StorageError
from cachelayer.objects.local import LocalStore
from cachelayer.objects.open_store import open_store
from cachelayer.objects.store import Blob
from cachelayer.testing.stores import is_stat_of

TEXT = os.urandom(300_000)


def test_paths_and_file_urls_are_on_the_local_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "a b"
    for url in (folder, str(folder), "a b", "~/a b", f"file://{tmp_path}/a%20b", f"file://localhost{tmp_path}/a%20b"):
        store = open_store(url, {"timeout": 5})
        assert isinstance(store, LocalStore)
        assert store.root == folder


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "a path or a URL"),
        (b"bytes", "a path or a URL"),
        ("a\0b", "a path or a URL"),
        ("file://host/x", "another host"),
        ("file:///x?y", "no query"),
        ("file:///x#y", "no query"),
        ("~nobody-of-this-name/x", "nobody-of-this-name"),
        ("gs://bucket/x?y=1", "no query"),
        ("s3:///x", "names no bucket"),
        ("gs://", "names no bucket"),
        ("az://", "names no bucket"),
        ("s3:/bucket/x", "s3://bucket/x"),
        ("memory:/x", "memory://x"),
        ("s3://key:secret@bucket/x", "storage_options"),
        ("gs://key@bucket/x", "storage_options"),
        ("sftp://user:secret@host/x", "storage_options"),
        ("simplecache::gs://bucket/x", "chained"),
        ("filecache::s3://user:secret@bucket/x", "storage_options"),
        ("https://secret@host/x", "storage_options"),
        ("https://host/x?X-Amz-Signature=secret", "no query"),
        ("https://host/x#secret", "no query"),
        ("simplecache::https://host/x?sig=secret", "chained"),
        ("s3://user:secret@[bad/x", "storage_options"),
        ("https://[bad/x", "no URL"),
        ("s3:/key:secret@bucket", "storage_options"),
        ("s3:key:secret@bucket/x", "storage_options"),
        ("s3:///key:secret@bucket", "storage_options"),
        ("s3//key:secret@bucket/x", "storage_options"),
        ("S3://key:secret@bucket", "storage_options"),
        ("s3://key:a/secret@bucket/x", "storage_options"),
        ("s3://key:a/secret", "storage_options"),
        ("key:secret@bucket/x", "storage_options"),
        ("https:/user:secret@host", "storage_options"),
        ("https://u:p@secret@host", "storage_options"),
        ("https://u:a/secret@host", "storage_options"),
        ("abfs://container:secret@account.dfs.core.windows.net/x", "storage_options"),
        ("s3:bucket/x", "s3://bucket/x"),
        ("gs//bucket/x", "gs://bucket/x"),
    ],
)
def test_what_is_no_place_is_refused(url: Any, reason: str) -> None:
    with pytest.raises(InvalidArgumentError, match=reason) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)
    if "secret" in str(url):
        for text in (url, f"{url}/d@v1", f"{url}[:3]"):
            with pytest.raises(InvalidArgumentError) as caught:
                cachelayer.open(text)
            assert "secret" not in str(caught.value)


def test_the_user_of_the_history_is_the_operating_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "somebody")
    storage = cachelayer.Storage(tmp_path)
    storage.submit([1, 2], "d@v1")
    assert storage.history("d")[0].user == pwd.getpwuid(os.getuid()).pw_name


def test_a_local_disk_needs_no_home_and_no_name_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> Any:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr("pwd.getpwuid", nobody)
    for name in ("HOME", "XDG_CACHE_HOME", "CACHELAYER_LOCAL_CACHE", "LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    storage = cachelayer.Storage(tmp_path)
    assert list(storage.cache([1, 2], "d@v1")) == [1, 2]
    assert storage.history("d")[0].user == f"uid {os.getuid()}"
    with pytest.raises(InvalidArgumentError, match="CACHELAYER_LOCAL_CACHE"):
        cachelayer.Storage("gs://bucket")


@pytest.mark.parametrize("timeout", [0, -1, "5", None, True, float("inf"), float("nan")])
def test_a_timeout_is_seconds(timeout: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="timeout"):
        open_store("gs://bucket", {"timeout": timeout})


def test_a_local_disk_takes_no_options(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"storage_options.*'key'"):
        open_store(tmp_path, {"key": "x"})


@pytest.mark.needs("s3fs")
def test_options_that_the_client_does_not_know_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="storage_options"):
        open_store("s3://bucket", {"no_such_option": 1}).read("a")


@pytest.mark.parametrize(
    ("url", "packages", "extra"),
    [("gs://b", "gcsfs gcsfs.core", "gcs"), ("s3://b", "s3fs s3fs.core obstore", "s3"), ("az://b", "adlfs", "azure")],
)
def test_a_missing_package_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, url: str, packages: str, extra: str
) -> None:
    for module in packages.split():
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependencyError, match=rf"cachelayer\[{extra}\]"):
        open_store(url, {"timeout": 17}).read("a")


@pytest.mark.needs("obstore")
def test_without_s3fs_what_only_that_can_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.setattr("cachelayer.objects.file_systems._file_systems", {})
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidArgumentError, match=r"'profile'.*cachelayer\[s3\]"):
        open_store("s3://bucket", {"profile": "work"}).read("a")
    monkeypatch.setattr("cachelayer.objects.cloud_client._is_forked", True)
    with pytest.raises(MissingDependencyError, match=r"forked.*cachelayer\[s3\]"):
        open_store("s3://bucket", {"anon": True}).read("a")


def test_what_cannot_put_if_absent_is_refused_at_the_first_write(tmp_path: Path) -> None:
    store = open_store("http://127.0.0.1:9/a")
    for write in (
        lambda: store.put("b", b""),
        lambda: store.put_if_absent("b", b""),
        lambda: store.put_file(Path(__file__), Blob("b", Path(__file__).stat().st_size, 0)),
        lambda: store.delete("a"),
        lambda: store.delete_folder(""),
    ):
        with pytest.raises(InvalidArgumentError, match=r"http:// has no put-if-absent"):
            write()


def test_plain_http_is_read(s3: Server) -> None:
    bucket = new_bucket(s3)
    public = {**s3.storage_options(), "s3_additional_kwargs": {"ACL": "public-read"}}
    open_store(s3.url(bucket), public).put("a/b", TEXT)
    open_store(s3.url(bucket), s3.storage_options()).put("secret", TEXT)
    store = open_store(f"{s3.endpoint}/{bucket}")
    assert store.read("a/b") == TEXT
    assert is_stat_of(TEXT, store.stat("a/b"))
    assert store.read_ranges([("a/b", 5, 10), ("a/b", 200_000, 200_010)]) == [TEXT[5:10], TEXT[200_000:200_010]]
    with pytest.raises(StorageError, match="refused"):
        store.stat("secret")


def test_a_container_is_named_with_its_account(azure: Server) -> None:
    server = azure
    bucket = new_bucket(server)
    url = f"abfs://{bucket}@devstoreaccount1.dfs.core.windows.net"
    open_store(f"{url}/a//", server.storage_options()).put("b", TEXT)
    assert open_store(server.url(bucket), server.storage_options()).read("a/b") == TEXT
    assert open_store(url, server.storage_options()).read_ranges([("a/b", 5, 10)]) == [TEXT[5:10]]
    with pytest.raises(InvalidArgumentError, match="devstoreaccount1"):
        open_store(f"abfs://{bucket}@other.dfs.core.windows.net", server.storage_options()).read("a/b")


@pytest.mark.parametrize("scheme", ["s3", "gs", "az", "abfs", "memory"])
@pytest.mark.parametrize("path", ["bucket//a", "bucket///a", "bucket/./a", "bucket/b/../a"])
def test_a_step_that_is_no_name_is_refused_and_the_url_without_it_shown(scheme: str, path: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"write {scheme}://bucket/(b/)?a$"):
        open_store(f"{scheme}://{path}")
    assert open_store(f"{scheme}://bucket/a//").url == f"{scheme}://bucket/a"
