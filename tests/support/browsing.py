"""Tabs of Chromium in which nothing may fail, be blocked or ask another server."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from view_client import Client

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
IN_BROWSER = [
    pytest.mark.browser,
    pytest.mark.needs("playwright"),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt-get install chromium"),
]


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class _Problems(list[str]):
    """What a page complained about."""

    def watch(self, page: Any) -> None:
        page.on("pageerror", lambda error: self.append(str(error)))
        page.on("console", lambda message: self.append(message.text) if message.type in ("error", "warning") else None)
        page.on("request", lambda request: self._check(request.url))

    def _check(self, url: str) -> None:
        if not url.startswith(("http://127.0.0.1:", "data:")):
            self.append(f"asked {url}")


@contextmanager
def tab(browser: Any, client: Client, **options: Any) -> Iterator[Any]:
    """A tab that has signed in; nothing in it may fail, be blocked or ask another server."""
    size = {"width": 1000, "height": 700}
    context = browser.new_context(**{"viewport": size, "base_url": client.server.url().split("/?")[0], **options})
    page = context.new_page()
    problems = _Problems()
    problems.watch(page)
    page.goto(client.server.url())
    yield page
    assert page.title() != "owned"
    context.close()
    assert problems == []


def place(page: Any) -> str:
    """Return the path and the query of a tab."""
    return str(page.evaluate("location.pathname + location.search"))
