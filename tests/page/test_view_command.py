"""The command `view`."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from commands import SCRIPT, refused
from view_client import asked

import cachelayer


def test_view_prints_a_url_that_opens_the_version_and_ends_at_ctrl_c(tmp_path: Path) -> None:
    cachelayer.Storage(tmp_path / "cache").submit(
        [[1, 2], [3]], "d@v1", element_spec=cachelayer.ArraySpec("int64", (None,))
    )
    (tmp_path / "mine.py").write_text("def words(tokens):\n    return f'words of {tokens}'\n")
    proxied = ["--root-path", "data", "--allow-host", "proxy.example", "--token-file", "token"]
    command = [SCRIPT, "view", "cache/d", "--no-open", "--detokenize", "mine.py:words", *proxied]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        url = urlsplit(child.stdout.readline().strip())
        assert (url.scheme, url.hostname, url.path) == ("http", "127.0.0.1", "/data/d/d/v1")
        token = tmp_path / "token"
        assert (url.query, token.stat().st_mode & 0o777) == (f"token={token.read_text().strip()}", 0o600)
        assert asked(url.port, f"{url.path}?{url.query}", Host="proxy.example").status == 303
        cookie = asked(url.port, f"{url.path}?{url.query}").headers["set-cookie"].partition(";")[0]
        assert "words of [1, 2]" in asked(url.port, "/d/d/v1/records", Cookie=cookie).text
        child.send_signal(signal.SIGINT)
        _, problems = child.communicate(timeout=30)
        assert (child.returncode, problems) == (0, "")


def test_mistakes_are_errors_before_anything_is_served(tmp_path: Path) -> None:
    storage = cachelayer.Storage(tmp_path / "cache")
    storage.submit([1], "d@v1")
    assert str(tmp_path / "none") in refused("view", tmp_path / "none", "--no-open")
    assert "no dataset 'e'" in refused("view", f"{storage.url}/e@v1", "--no-open")
    assert "no_such_module" in refused("view", storage.url, "--no-open", "--detokenize", "no_such_module:f")
    assert "--host" in refused("view", storage.url, "--no-open", "--host", "no.such.host.invalid")
    (tmp_path / "short").write_text("secret")
    for name in ("short", "none/token"):
        assert "--token-file" in refused("view", storage.url, "--no-open", "--token-file", tmp_path / name)
    assert "--root-path" in refused("view", storage.url, "--no-open", "--root-path", "a b")
    for name in ("http://proxy.example", "proxy.example:8000", "*.example", ""):
        assert "--allow-host" in refused("view", storage.url, "--no-open", "--allow-host", name)


def test_without_the_extra_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("cachelayer.page")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "uvicorn: pip install 'cachelayer[view]'" in refused("view", tmp_path, "--no-open")
