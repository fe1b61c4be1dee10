"""The door of the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from view_client import Client, serving

import cachelayer


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    storage = cachelayer.Storage(tmp_path_factory.mktemp("storage"))
    storage.submit([1, 2, 3], "d@v1")
    with serving(storage) as client:
        yield client


def stranger(client: Client) -> Client:
    return Client(client.server)


@pytest.mark.parametrize("path", ["/", "/d/d/v1", "/d/d/v1/records/0/0.png", "/static/view.js", "/nothing"])
def test_nothing_answers_without_the_token(client: Client, path: str) -> None:
    assert stranger(client).get(path).status == 403
    assert stranger(client).get(f"{path}?token=guessed").status == 403
    assert stranger(client).ask(path, Cookie=client.cookie + "x").status == 403


@pytest.mark.parametrize("value", ['"', '"\\', '"x', "", "\xe9", '"\\777"'])
def test_a_cookie_that_is_damaged_is_no_token(client: Client, value: str) -> None:
    name = client.cookie.partition("=")[0]
    assert stranger(client).ask("/", Cookie=f"{name}={value}").status == 403


def test_the_token_moves_into_a_cookie_and_out_of_the_url(client: Client) -> None:
    other = stranger(client)
    token = client.server.url().rpartition("=")[2]
    answer = other.get(f"/d/d/v1/records?from=1&token={token}&count=2")
    assert (answer.status, answer.headers["location"]) == (303, "/d/d/v1/records?from=1&count=2")
    assert {"HttpOnly", "SameSite=lax", "Path=/"} <= set(answer.headers["set-cookie"].split("; "))
    other.cookie = answer.headers["set-cookie"].partition(";")[0]
    assert other.get(answer.headers["location"]).status == 200


def test_the_token_leads_to_no_other_site(client: Client) -> None:
    token = client.server.url().rpartition("=")[2]
    for path in ("//evil.example/", "/\\evil.example/", "///evil.example"):
        assert client.get(f"{path}?token={token}").headers["location"].startswith("/evil.example")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("localhost:9000", 200),
        ("[::1]:80", 200),
        ("LOCALHOST", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example:80", 421),
        ("[", 421),
        ("", 421),
    ],
)
def test_a_name_that_is_not_this_machine_s_is_refused(client: Client, host: str, status: int) -> None:
    assert client.ask("/", Host=host).status == status


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_the_page_only_reads(client: Client, method: str) -> None:
    assert client.ask("/d/d/v1", method).status == 405


def test_another_site_starts_nothing(client: Client) -> None:
    answer = client.ask("/d/d/v1/statistics", "POST", {"do": "all"}, **{"Sec-Fetch-Site": "cross-site"})
    assert answer.status == 403


@pytest.mark.parametrize("path", ["/", "/d/d/v1/records", "/static/view.css", "/nothing", "/d/d/none"])
def test_every_answer_forbids_what_pages_of_strangers_could_do(client: Client, path: str) -> None:
    for asking in (client, stranger(client)):
        headers = asking.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"


def test_no_path_leads_out_of_the_files_of_the_page(client: Client) -> None:
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/static/..%2fapp.py"):
        assert client.get(path).status == 404


def test_a_port_that_is_taken_is_an_error_of_ours(client: Client, tmp_path: Path) -> None:
    from cachelayer.view.render import Shelf
    from cachelayer.view.server import PageServer

    with pytest.raises(cachelayer.InvalidArgumentError, match="--port"):
        PageServer(Shelf(cachelayer.Storage(tmp_path)), port=client.server.port)
    with pytest.raises(cachelayer.InvalidArgumentError, match="--host"):
        PageServer(Shelf(cachelayer.Storage(tmp_path)), "no.such.host.invalid")
