"""The walk that docs/view.md describes, and the pictures of it: ``pytest tests/page/test_walk.py --screenshots``."""

import getpass
import socket
from pathlib import Path
from typing import Any, Literal

import pytest
from browsing import IN_BROWSER, place, tab
from repository import ROOT
from view_client import Client
from wrong_label import BATCH, CLASSES, SEED, losses, wrongly_labelled

import cachelayer

pytestmark = IN_BROWSER
WRONG, EPOCHS = 937, 12
PICTURES = ROOT / "docs" / "page"
SIZE = {"width": 1100, "height": 700}
# What the docs show beside the order, with the path of its page.
SHOWN = {"records": "/d/digits/v1/records?from=930"}


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> cachelayer.Storage:
    storage = cachelayer.Storage(tmp_path_factory.mktemp("caches"))
    rows = list(wrongly_labelled(WRONG))
    storage.submit(rows, "digits@v1", metadata={"classes": CLASSES}, shard_bytes=40_000)
    storage.append("digits@v1", "v2", rows[:300])
    storage.derive("digits@v2", "odd", keep=range(1, len(rows), 2))
    storage.tag("digits@v2", "best")
    return storage


def keep(page: Any, storage: cachelayer.Storage, request: pytest.FixtureRequest, name: str) -> None:
    """Write a picture of a tab if the run is to make them, with nothing of this machine in it."""
    if not request.config.getoption("screenshots"):
        return
    PICTURES.mkdir(exist_ok=True)
    names = {storage.url: "/data/caches", f"{getpass.getuser()}@{socket.gethostname()}": "you@host"}
    page.evaluate(
        """names => {
            const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
            while (walker.nextNode())
                for (const [name, other] of Object.entries(names))
                    walker.currentNode.data = walker.currentNode.data.replaceAll(name, other);
        }""",
        names,
    )
    page.screenshot(path=PICTURES / f"{name}.png")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_stranger_finds_the_wrong_label_behind_a_jump_of_the_loss(
    storage: cachelayer.Storage,
    client: Client,
    browser: Any,
    request: pytest.FixtureRequest,
    scheme: Literal["light", "dark"],
) -> None:
    """Five clicks and four fields: the batch of the jump, sorted by label, has one digit among others."""
    curve = losses(storage.fetch("digits@v1"), EPOCHS)
    last_epoch = range(len(curve) - len(curve) // EPOCHS, len(curve))
    step = max(last_epoch, key=lambda each: curve[each])
    with tab(browser, client, viewport=SIZE, color_scheme=scheme) as page:
        page.get_by_role("link", name="digits", exact=True).click()
        page.get_by_role("link", name="v1", exact=True).click()
        page.get_by_role("link", name="Order").click()
        page.get_by_label("global batch size").fill(str(BATCH))
        page.get_by_label("seed", exact=True).fill(str(SEED))
        page.get_by_label("step", exact=True).fill(str(step))
        page.get_by_label("sort by").select_option("label")
        page.get_by_role("button", name="Show").click()
        assert page.locator(".card").count() == BATCH
        keep(page, storage, request, f"order-{scheme}")
        # A record's number says what it shows: the reader of the page has eyes.
        groups = page.evaluate(
            """[...document.querySelectorAll("h2.group")].map(each => [each.textContent,
               [...each.nextElementSibling.querySelectorAll("h3")].map(one => one.textContent.replace(",", ""))])"""
        )
        odd = [
            (heading.split()[1], number)
            for heading, numbers in groups
            for number in map(int, numbers)
            if int(heading.split()[1]) != number % 10
        ]
        assert odd == [(str((WRONG + 3) % 10), WRONG)]
        page.get_by_role("link", name=str(WRONG), exact=True).first.click()
        assert place(page) == f"/d/digits/v1/records/{WRONG}"
        assert f"{CLASSES[(WRONG + 3) % 10]} {(WRONG + 3) % 10}" in " ".join(page.inner_text("main").split())


def test_a_bar_of_the_labels_leads_to_the_records_behind_it(client: Client, browser: Any) -> None:
    """Without a step and a seed: the records of a class, of which one shows another digit."""
    wrong = (WRONG + 3) % 10
    with tab(browser, client, viewport=SIZE) as page:
        page.goto("/d/digits/v1/statistics")
        page.get_by_text("Statistics of 1,797 records").wait_for()
        bar = page.get_by_role("link", name=f"{wrong} {CLASSES[wrong]}: 181")
        bar.focus()
        page.keyboard.press("Enter")
        page.wait_for_url("**/records?where=label*")
        assert page.get_by_label("where").input_value() == f"label == {wrong}"
        assert page.locator(".bars .chosen").count() == 1
        found: list[int] = []
        while True:
            found += [int(text.replace(",", "")) for text in page.locator("tbody th").all_inner_texts()]
            if not page.locator('a[rel="next"]').count():
                break
            place_before = page.url
            page.keyboard.press("ArrowRight")
            page.wait_for_url(lambda url, before=place_before: url != before)
        page.get_by_label("where").fill("label == 99")
        page.keyboard.press("Enter")
        page.get_by_text("There are no records.").wait_for()
        assert len(found) == 181
        assert [number for number in found if number % 10 != wrong] == [WRONG]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_for_the_docs_are_made_if_asked_for(
    storage: cachelayer.Storage,
    client: Client,
    browser: Any,
    request: pytest.FixtureRequest,
    scheme: Literal["light", "dark"],
) -> None:
    if not request.config.getoption("screenshots"):
        pytest.skip("pass --screenshots")
    with tab(browser, client, viewport=SIZE, color_scheme=scheme) as page:
        for name, path in SHOWN.items():
            page.goto(path)
            keep(page, storage, request, f"{name}-{scheme}")


def test_the_docs_show_pictures_that_exist() -> None:
    for document in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = document.read_text()
        for name in {*SHOWN, "order"}:
            for scheme in ("light", "dark"):
                assert f"page/{name}-{scheme}.png" not in text or (PICTURES / f"{name}-{scheme}.png").is_file()
    assert all(path.stem.rpartition("-")[0] in {*SHOWN, "order"} for path in Path(PICTURES).glob("*.png"))
