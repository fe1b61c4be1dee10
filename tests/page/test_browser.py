"""The page in Chromium."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import IN_BROWSER, place, tab
from view_client import Client, serving

import cachelayer
from cachelayer.page import distributions

pytestmark = IN_BROWSER
HOSTILE = "<img src=x onerror='document.title=\"owned\"'><script>document.title='owned'</script>"


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> cachelayer.Storage:
    storage = cachelayer.Storage(tmp_path_factory.mktemp("storage"))
    rng = np.random.default_rng(0)
    rows = [
        {
            "image": rng.integers(0, 256, (16, 16, 3), np.uint8),
            "signal": np.sin(np.arange(200) / (number + 1)),
            "text": f"{number} {HOSTILE}",
            "third": number % 3 == 0,
        }
        for number in range(300)
    ]
    storage.submit(rows, "d@v1", description=HOSTILE, shard_bytes=1_000_000)
    storage.derive("d@v1", "half", keep=range(150))
    return storage


@pytest.fixture
def page(browser: Any, client: Client) -> Iterator[Any]:
    with tab(browser, client) as page:
        yield page


def test_links_lead_from_the_storage_to_a_record(page: Any) -> None:
    assert "token" not in page.url
    page.get_by_role("link", name="d", exact=True).click()
    page.get_by_role("link", name="v1", exact=True).click()
    page.get_by_role("link", name="Records", exact=True).click()
    page.get_by_role("link", name="5", exact=True).click()
    assert place(page) == "/d/d/v1/records/5"
    assert HOSTILE in page.inner_text("main")
    assert page.locator("dd a:has(img)").first.get_attribute("href") == "/d/d/v1/records/5/0.png"


PATHS = [
    "/",
    "/d/d",
    "/d/d/v1",
    "/d/d/v1/records",
    "/d/d/v1/records/2",
    "/d/d/v1/order?batch=8&shards=2",
    "/d/d/v1/records?at=1,5,9",
    "/d/d/v1/records?where=text+%3D%3D+%223%22",
    "/diff?one=d@v1&other=d@half",
    "/d/d/v1/statistics",
]
SHADES = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}


def test_pages_fit_a_phone_in_light_and_dark(page: Any) -> None:
    page.set_viewport_size({"width": 360, "height": 640})
    for path in PATHS:
        page.goto(path)
        for scheme, shade in SHADES.items():
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("getComputedStyle(document.body).backgroundColor") == shade, path
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        unnamed = page.evaluate(
            """[...document.querySelectorAll("input, select, textarea, button, img, svg, audio, canvas")]
               .filter(each => !each.hidden && each.type !== "hidden")
               .filter(each => !(each.labels?.length || each.alt || each.getAttribute("aria-label") || each.innerText))
               .map(each => each.outerHTML)"""
        )
        assert unnamed == [], path


def test_the_slider_shows_other_records_and_their_url(page: Any) -> None:
    page.goto("/d/d/v1/records?count=12")
    page.locator(".scroll").fill("200")
    page.wait_for_url("**/records?count=12&from=200")
    assert page.locator("tbody th").first.inner_text() == "200"
    assert page.get_by_role("row").nth(1).get_by_role("img", name="image: a picture").count() == 1


def test_keys_turn_pages(page: Any) -> None:
    page.goto("/d/d/v1/records/7")
    for key, path in [("ArrowRight", "8"), ("ArrowRight", "9"), ("ArrowLeft", "8")]:
        page.keyboard.press(key)
        page.wait_for_url(f"**/records/{path}")
    page.keyboard.press("g")
    page.keyboard.type("123")
    page.keyboard.press("Enter")
    page.wait_for_url("**/records?from=123")
    page.keyboard.press("ArrowRight")
    page.wait_for_url("**/records?from=173")


def test_another_site_gets_nothing(browser: Any, client: Client, tmp_path: Path) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(client.server.url())
    origin = page.evaluate("location.origin")
    other = tmp_path / "other.html"
    other.write_text(
        f"<iframe src='{origin}/'></iframe><img src='{origin}/d/d/v1/records/0/0.png'>"
        f"<script>fetch('{origin}/', {{credentials: 'include'}}).then(() => document.title = 'read',"
        " () => document.title = 'refused')</script>"
    )
    page.goto(other.as_uri())
    page.wait_for_function("document.title !== ''")
    assert page.title() == "refused"
    assert page.evaluate("document.querySelector('img').naturalWidth") == 0
    context.close()


def test_a_storage_that_goes_away_under_the_page_is_a_page_that_says_so(browser: Any, tmp_path: Path) -> None:
    storage = cachelayer.Storage(tmp_path / "gone")
    storage.submit(list(range(100)), "d@v1")
    with serving(storage) as client:
        page = browser.new_page()
        page.goto(client.server.url("/d/d/v1/records"))
        shutil.rmtree(tmp_path / "gone")
        page.locator(".scroll").fill("50")
        page.get_by_role("alert").wait_for()
        assert "no dataset 'd'" in page.inner_text("main")
        storage.submit(list(range(200)), "d@v1")
        page.reload()
        page.get_by_text("Records 50 to 99 of 200").wait_for()
        page.close()


def test_statistics_of_a_large_version_are_read_at_a_click(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = cachelayer.Storage(tmp_path)
    storage.submit({"x": np.arange(30_000)}, "d@v1")
    monkeypatch.setattr(distributions, "SMALL_RECORDS", 20_000)
    with serving(storage) as client:
        assert "Read a sample" in client.shown("/d/d/v1/statistics")
        with tab(browser, client) as page:
            page.goto("/d/d/v1/records")
            page.get_by_role("link", name="Read the distributions of a sample").click()
            page.get_by_text("Statistics of 10,000 records, drawn from 30,000").wait_for()
            page.get_by_role("link", name="Read all").click()
            page.get_by_text("Statistics of 30,000 records").wait_for()
