"""The page in Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pytest
from browsing import IN_BROWSER, chromium, place, tab
from view_client import Client, serving

import cachelayer

pytestmark = IN_BROWSER
HOSTILE = "<img src=x onerror='document.title=\"owned\"'><script>document.title='owned'</script>"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    storage = cachelayer.Storage(tmp_path_factory.mktemp("storage"))
    rng = np.random.default_rng(0)
    rows = [
        {
            "image": rng.integers(0, 256, (16, 16, 3), np.uint8),
            "signal": np.sin(np.arange(200) / (number + 1)),
            "text": f"{number} {HOSTILE}",
            "clip": rng.integers(0, 256, (5, 12, 12, 3), np.uint8),
        }
        for number in range(300)
    ]
    storage.submit(rows, "d@v1", description=HOSTILE, shard_bytes=1_000_000)
    storage.derive("d", "v1", "half", keep=range(150))
    with serving(storage) as client:
        yield client


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


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
    assert page.locator("section a:has(img)").first.get_attribute("href") == "/d/d/v1/records/5/0.png"


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/d/d",
        "/d/d/v1",
        "/d/d/v1/records",
        "/d/d/v1/records/2",
        "/d/d/v1/order?batch=8&shards=2",
        "/diff?one=d@v1&other=d@half",
        "/d/d/v1/statistics",
    ],
)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_a_phone_in_light_and_dark(page: Any, path: str, scheme: Any) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 360, "height": 640})
    page.goto(path)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    shade = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert shade == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 23, 27)")
    unnamed = page.evaluate(
        """[...document.querySelectorAll("input, select, textarea, button, img, svg, audio, canvas")]
           .filter(each => !each.hidden)
           .filter(each => !(each.labels?.length || each.alt || each.getAttribute("aria-label") || each.innerText))
           .map(each => each.outerHTML)"""
    )
    assert unnamed == []


def test_scrolling_shows_other_records_and_their_url(page: Any) -> None:
    page.goto("/d/d/v1/records?count=12")
    page.locator(".scroll").fill("200")
    page.wait_for_url("**/records?from=200&count=12")
    assert page.locator(".card h3").first.inner_text() == "200"
    page.keyboard.press("Home")
    page.wait_for_url("**/records?from=0&count=12")
    page.locator(".scroll").evaluate("each => each.blur()")
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.locator(".card").last.hover()
    page.mouse.wheel(0, 100)
    page.wait_for_url(lambda url: "from=0&" not in url)
    page.reload()
    assert page.locator(".card").count() == 12


def test_scrolling_reaches_any_of_ten_billion_records(page: Any) -> None:
    """The page of 300 records is told that it has 10^10, and asks for the records that it scrolls to."""
    records = 10**10

    def answered(route: Any, request: Any) -> None:
        query = dict(parse_qsl(urlsplit(request.url).query))
        if "part" in query:
            route.fulfill(body=f"<article class='card'><h3>{query['from']}</h3></article>", content_type="text/html")
        else:
            text = route.fetch().text().replace('data-records="300"', f'data-records="{records}"')
            text = text.replace(f'max="{300 - 12}"', f'max="{records - 12}"')
            route.fulfill(body=text, content_type="text/html")

    page.route("**/records?*", answered)
    page.goto("/d/d/v1/records?count=12")
    slider, first = page.locator(".scroll"), page.locator(".card h3").first
    for number in (7_777_777_777, 1, records - 12):
        slider.fill(str(number))
        page.wait_for_url(f"**/records?from={number}&count=12")
        assert first.inner_text() == str(number)
    slider.press("ArrowLeft")
    page.wait_for_url(f"**/records?from={records - 13}&count=12")
    slider.press("Home")
    page.wait_for_url("**/records?from=0&count=12")


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
    page.wait_for_url("**/records?from=147&count=24")


def test_a_clip_is_played_stopped_and_moved_by_hand(page: Any) -> None:
    page.goto("/d/d/v1/records/3")
    player, shown = page.locator(".clip"), page.locator(".clip output")
    assert shown.inner_text() == ""
    player.get_by_role("slider").fill("4")
    player.get_by_text("frame 5 of 5").wait_for()
    assert player.locator("canvas").evaluate("each => [each.width, each.height]") == [156, 156]
    colours = "each => new Set(each.getContext('2d').getImageData(0, 0, 156, 156).data).size"
    assert player.locator("canvas").evaluate(colours) > 100
    player.get_by_role("button").click()
    player.get_by_text("frame 1 of 5").wait_for()
    player.get_by_role("button", name="Play or pause").click()
    assert player.get_by_role("button").inner_text() == "Play"


def test_statistics_are_drawn_after_a_click(page: Any) -> None:
    page.goto("/d/d/half/statistics")
    page.get_by_role("button", name="Read all 150").click()
    page.get_by_text("Statistics of 150 records").wait_for()
    assert page.locator("svg.bars rect").count() > 5


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


def test_a_server_that_ended_says_so(browser: Any, tmp_path: Path) -> None:
    storage = cachelayer.Storage(tmp_path)
    storage.submit(list(range(100)), "d@v1")
    with serving(storage) as client:
        page = browser.new_page()
        page.goto(client.server.url("/d/d/v1/records"))
    page.locator(".scroll").fill("50")
    page.get_by_text("start `cachelayer view` again").wait_for()
    page.close()
