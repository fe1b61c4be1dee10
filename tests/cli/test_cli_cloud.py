"""The command line on object stores: one flow through every command on each server."""

import json
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from commands import PIPELINE, SCRIPT, document, refused, script
from faults import fault_proxy, stall
from servers import Server, new_bucket

import cachelayer
from cachelayer.objects.open_store import open_store


def typed(server: Server, option: str = "--option", endpoint: str | None = None) -> list[str]:
    return [text for name, value in server.storage_options(endpoint).items() for text in (option, f"{name}={value}")]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a module of sources."""
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    (tmp_path / "people.csv").write_text("name,age\nAda,36\nAlan,41\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CACHELAYER_LOCAL_CACHE", str(tmp_path / "copies"))
    return tmp_path


def printed(*arguments: object, code: int = 0) -> Any:
    """What the installed script prints under --json, in the current folder."""
    return json.loads(script(*arguments, "--json", cwd=Path.cwd(), code=code).stdout)


@pytest.mark.parametrize("server", ["gcs", pytest.param("s3", marks=pytest.mark.soak)], indirect=True)
def test_a_version_goes_through_all_commands(server: Server, here: Path) -> None:
    url, options, to_options = server.url(new_bucket(server), "a/prefix"), typed(server), typed(server, "--to-option")
    script("build", "pipeline:rows", f"{url}/rows@v1", "--arg", "size=40", *options, cwd=here)
    assert printed("import", "people.csv", f"{url}/people@v1", *options)["records"] == 2
    assert [each["dataset_id"] for each in printed("ls", url, *options)] == ["people", "rows"]
    shown = script("show", f"{url}/rows", *options, cwd=here).stdout
    assert "number: float64" in shown
    assert "secret" not in shown
    assert len(printed("sample", f"{url}/rows", "-n", 7, *options)) == 7
    assert printed("stats", f"{url}/rows", *options)["records_read"] == 40
    script("tag", f"{url}/rows@v1", "best", *options, cwd=here)
    assert printed("ls", f"{url}/rows", *options)[0]["tags"] == ["best"]
    assert printed("verify", f"{url}/rows@best", *options)["records"] == 40
    copied = printed("cp", f"{url}/rows@best", f"{url}-2/copy@w1", *options, *to_options)
    back = printed("cp", f"{url}-2/copy@w1", "local", *options)
    assert copied["digest"] == back["digest"]
    assert printed("diff", f"{url}/rows@v1", f"{url}-2/copy", *options, *to_options)["same_data"]
    assert not printed("diff", f"{url}/rows", f"{url}/people", *options, *to_options, code=1)["same_data"]
    mirrored = printed("mirror", f"{url}-2/copy", *options, "--local-cache", here / "mirror")
    assert mirrored["local_shards"] == mirrored["shards"] == 1
    assert list((here / "mirror").glob("*/*.array_record"))
    script("tag", f"{url}/rows", "best", "--delete", *options, cwd=here)
    script("rm", f"{url}/rows@v1", "--yes", *options, cwd=here)
    assert [event["kind"] for event in printed("log", f"{url}/rows", *options)][:4] == [
        "publish",
        "tag",
        "untag",
        "delete",
    ]
    assert printed("gc", url, "--grace", "0", *options)["deleted"] == []
    assert printed("doctor", url, *options)["storage"]["problem"] == ""
    assert open_store(url, server.storage_options()).names("") == ["people", "rows"]


def test_the_environment_says_where_s3_is(s3: Server, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    url = s3.url(new_bucket(s3), "caches")
    assert document("build", "pipeline.py:rows", f"{url}/rows@v1")["records"] == 10
    assert document("verify", f"{url}/rows")["ok"]
    assert "'nosuch'" in refused("ls", f"{url}/nosuch", code=3)
    assert "'nosuch'" in refused("ls", f"{url}/nosuch", "--json", code=3)
    assert document("ls", url)[0]["dataset_id"] == "rows"


def test_a_bucket_that_does_not_exist_is_a_failure(server: Server, here: Path) -> None:
    url = server.url("nowhere-at-all", "prefix")
    for command in (
        ("ls", url),
        ("show", f"{url}/d"),
        ("build", "pipeline.py:rows", f"{url}/d@v1"),
        ("gc", url),
    ):
        assert "there is no bucket 'nowhere-at-all'" in refused(*command, *typed(server), code=7)
    assert "there is no bucket" in document("doctor", url, *typed(server), code=1)["storage"]["problem"]


def interrupted(arguments: Sequence[str], here: Path, when: Callable[[], bool]) -> str:
    """What the script says, without a traceback, when Ctrl-C comes once this is so."""
    with subprocess.Popen([SCRIPT, *arguments], cwd=here, stderr=subprocess.PIPE, text=True) as child:
        try:
            while not when():
                assert child.poll() is None
            child.send_signal(signal.SIGINT)
            _, said = child.communicate(timeout=60)
        finally:
            child.kill()
    assert child.returncode == 130
    assert "Traceback" not in said
    return said


def test_an_interrupted_build_does_not_wait_for_the_network_and_goes_on_after_finished_shards(
    s3: Server, here: Path
) -> None:
    url = s3.url(new_bucket(s3), "caches")
    store = open_store(url, s3.storage_options())
    with fault_proxy(s3.endpoint) as proxy:
        # Who waited for the upload that is stalled would wait for ever.
        options = (*typed(s3, "--option", proxy.endpoint), "--option", "timeout=100000")
        size = ("--arg", "size=5000", "--shard-bytes", "100kB")
        arguments = ("build", "pipeline:rows", f"{url}/d@v1", *size, *options)
        script("build", "pipeline:rows", "local/d@v1", *size, cwd=here)
        manifest = cachelayer.Storage("local").fetch("d@v1")._base.version.manifest  # type: ignore[attr-defined]
        finished, unfinished = (Path(shard.name).name for shard in manifest.shards[2:4])
        proxy.add(stall(containing=unfinished, method="PUT"))

        def are_finished() -> bool:
            return any(finished in name for name in store.names("d/shards"))

        said = interrupted(arguments, here, are_finished)
        assert "run the same command again" in said
        assert "no dataset" in refused("show", f"{url}/d", *typed(s3))
        proxy.clear()
        proxy.forget()
        script(*arguments, cwd=here)
        again = " ".join(each.path for each in proxy.exchanges() if each.method == "PUT")
        assert unfinished in again
        assert finished not in again
    assert document("verify", f"{url}/d", *typed(s3))["records"] == 5000
