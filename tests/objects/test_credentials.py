"""Credentials: in no pickle, no repr, no error; children that are started get them."""

import copy
import json
import logging
import multiprocessing
import pickle
import traceback
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import RUNNER
from forks import beside_threads
from servers import Server, new_bucket

import cachelayer
from cachelayer import ArrayRecordDataSource, CacheLayerError, CacheLayerWarning, Storage, StorageError
from cachelayer.adapters.pyarrow import from_parquet
from cachelayer.adapters.tfrecord import from_tfrecord
from cachelayer.cli.addresses import Address
from cachelayer.cli.app import app
from cachelayer.objects.bucket_store import BucketStore
from cachelayer.objects.credentials import StorageOptions
from cachelayer.objects.file_systems import file_system
from cachelayer.objects.open_store import open_store

SECRETS = {
    "key": "hush-1",
    "secret": "hush-2",
    "token": {"private_key": "hush-3"},
    "client_kwargs": {"aws_secret_access_key": "hush-4", "region_name": "eu"},
    "account_key": "hush-5",
    "headers": {"X-Mine": "hush-6"},
    "proxy": "http://user:hush-7@host:1",
    "account_host": "https://host/x?sig=hush-8",
    "credential": object,
    "password": 12345,
    # Nobody knows what lies in it.
    "config_kwargs": {"retries": {"max": 3}},
}
PLAIN = {
    "endpoint_url": "http://127.0.0.1:5000",
    "anon": False,
    "project": "p",
    "requester_pays": None,
    "profile": "work",
}


def test_a_pickle_holds_no_credentials() -> None:
    raw = pickle.dumps(open_store("s3://bucket/x", {**SECRETS, **PLAIN}))
    assert b"hush" not in raw
    assert b"12345" not in raw
    with pytest.warns(CacheLayerWarning, match="client_kwargs"):
        again = pickle.loads(raw)
    assert again.options == PLAIN
    assert set(again.options.missing) == SECRETS.keys()


def test_no_repr_shows_credentials(tmp_path: Path) -> None:
    storage = Storage("s3://bucket/x", storage_options=SECRETS, local_cache=tmp_path)
    store = storage._store
    for shown in (storage, store, store.options, vars(store)):  # type: ignore[union-attr]
        assert "hush" not in repr(shown)
    assert copy.deepcopy(store) == copy.copy(store) == store


@pytest.mark.needs("s3fs")
def test_a_process_that_cannot_find_them_says_so_and_takes_those_of_its_environment(
    s3: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage(s3.url(new_bucket(s3)), storage_options=s3.storage_options(), local_cache_bytes=0)
    raw = pickle.dumps(storage.cache([5, 6], "d@v1"))
    assert b"endpoint_url" in raw
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nowhere")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.warns(CacheLayerWarning, match="credentials key, secret of the storage_options are not in a pickle"):
        ref = pickle.loads(raw)
    with pytest.raises(StorageError, match="AWS_ACCESS_KEY_ID"):
        ref.read([1])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert ref.read([1]).tolist() == [6]


def options_of(options: StorageOptions, results: Any) -> None:
    results.put(dict(options))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_process_gets_them_however_it_is_started(method: str) -> None:
    options = {"key": "hush", "endpoint_url": "x"}
    context = multiprocessing.get_context(method)
    results = context.SimpleQueue()
    child = context.Process(target=options_of, args=(StorageOptions(options), results))
    with beside_threads():
        child.start()
    assert results.get() == options
    child.join()


def test_a_source_of_files_pickles_no_credentials(s3: Server, tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    ref = storage.submit([b"1", b"2"], "d@v1")
    path = tmp_path / "d" / ref._base.version.manifest.shards[0].name
    url = s3.url(new_bucket(s3))
    options = {**s3.storage_options(), "secret": "hush-hush"}
    open_store(url, options).put("a", path.read_bytes())
    source = ArrayRecordDataSource(f"{url}/a", storage_options=options)
    raw = pickle.dumps(source)
    assert b"hush" not in raw
    with pytest.warns(CacheLayerWarning, match="key, secret"):
        pickle.loads(raw)


@pytest.mark.parametrize(
    "reference",
    [
        "s3://key:hush@bucket/d@v1",
        "s3://key:hush@bucket",
        "s3:/key:hush@bucket",
        "s3://key:a@hush@bucket",
        "https://hush@host/d@v1",
        "https://host/d@v1?sig=hush",
        "https://host/d?sig=hush",
        "s3://bucket/d@v1?hush[0:5]",
        "s3://k:hush@[bad/d@v1",
    ],
)
def test_no_error_of_a_reference_shows_what_stands_in_it_as_a_credential(reference: str) -> None:
    for use in (cachelayer.open, Address.open):
        with pytest.raises(CacheLayerError) as caught:
            use(reference)
        assert "hush" not in f"{caught.value} {caught.value.__cause__!r}"


@pytest.mark.needs("adlfs", "obstore")
def test_a_signature_for_azure_opens_what_it_is_for_and_is_in_no_error(azure: Server) -> None:
    from azure.storage.blob import BlobServiceClient, ContainerSasPermissions, generate_container_sas

    bucket, whole = new_bucket(azure), azure.storage_options()
    open_store(azure.url(bucket), whole).put("a", b"12345")
    with BlobServiceClient.from_connection_string(whole["connection_string"]) as service:
        account, key = service.account_name, service.credential.account_key
    signature = generate_container_sas(
        account,
        bucket,
        account_key=key,
        permission=ContainerSasPermissions(read=True),
        expiry=datetime.now(UTC) + timedelta(hours=1),
    )
    place = f"BlobEndpoint={azure.endpoint}/{account};SharedAccessSignature="
    store = open_store(azure.url(bucket), {"connection_string": place + signature})
    assert isinstance(store, BucketStore)
    assert store.read("a") == b"12345"
    assert store.read_ranges([("a", 1, 3)]) == [b"23"]
    fs = file_system(store.url, store.options, store.timeout)
    assert fs._ranges is not None
    assert fs._refused == 0
    with pytest.raises(StorageError) as caught:
        store.put("b", b"1")
    told = [str(caught.value)]
    wrong = open_store(azure.url(bucket), {"connection_string": place + signature.replace("sig=", "sig=A")})
    with pytest.raises(StorageError) as caught:
        wrong.read_ranges([("a", 1, 3)])
    hush = signature.partition("sig=")[2].partition("&")[0]
    assert not [text for text in [*told, str(caught.value), str(caught.value.__cause__)] if hush in text]


ENDPOINT = "http://user:hush-9@127.0.0.1:9"
KEYS = {"key": "a", "secret": "b"}
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
ENDPOINTS: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "option": ("s3://bucket/cache", {"endpoint_url": ENDPOINT, **KEYS}, {}),
    "client_kwargs": ("s3://bucket/cache", {"client_kwargs": {"endpoint_url": ENDPOINT}, **KEYS}, {}),
    "environment": ("s3://bucket/cache", KEYS, {"AWS_ENDPOINT_URL": ENDPOINT}),
    "a slash in the password": ("s3://bucket/cache", {"endpoint_url": "http://user:a/hush-9@127.0.0.1:9", **KEYS}, {}),
    "no scheme": ("s3://bucket/cache", {"endpoint_url": "user:hush-9@host", **KEYS}, {}),
    "no host": ("s3://bucket/cache", {"endpoint_url": "http://user:hush-9@", **KEYS}, {}),
    "GCS": ("gs://bucket/cache", {"endpoint_url": ENDPOINT, "token": "anon"}, {}),
    "GCS, environment": ("gs://bucket/cache", {"token": "anon"}, {"STORAGE_EMULATOR_HOST": ENDPOINT}),
    "Azure": (
        "az://bucket/cache",
        {"connection_string": f"AccountName=a;AccountKey={AZURE_KEY};BlobEndpoint={ENDPOINT}/a;"},
        {},
    ),
}


async def no_pause(seconds: float) -> None:
    pass


@pytest.mark.needs("gcsfs")
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_password_in_the_url_of_an_endpoint_is_shown_nowhere(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    url, options, variables = ENDPOINTS[endpoint]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    # The clients that read files would pause between attempts for half a minute.
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr("gcsfs.retry.asyncio", SimpleNamespace(sleep=no_pause))
    caplog.set_level(logging.DEBUG, "cachelayer")
    storage = Storage(url, storage_options={**options, "timeout": 1})
    local = Storage(tmp_path)
    said = [repr(storage), repr(storage._store)]
    for use in (
        lambda: storage.fetch("d@v1"),
        lambda: storage.submit([1], "d@v1"),
        lambda: storage.gc(),
        lambda: local.submit(from_parquet(f"{url}/a.parquet", storage_options=options), "d@v1"),
        lambda: local.submit(from_tfrecord(f"{url}/a.tfrecord", storage_options=options), "d@v1"),
    ):
        with pytest.raises(CacheLayerError) as caught:
            use()
        said += [repr(caught.value), "".join(traceback.format_exception(caught.value))]
    given = [f"{name}={json.dumps(value)}" for name, value in {**options, "timeout": 1}.items()]
    arguments = [text for one in given for text in ("-o", one)]
    for command in (["ls", url], ["ls", url, "--traceback"], ["doctor", url, "--json"]):
        ran = RUNNER.invoke(app, [*command, *arguments])
        assert ran.exit_code != 0
        said += [ran.output, ran.stderr]
    said += [record.getMessage() for record in caplog.records if record.name.startswith("cachelayer")]
    assert not [text for text in said if "hush-9" in text]
