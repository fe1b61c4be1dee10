"""What the pages show, also of data that strangers made."""

import io
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from servers import Server, new_bucket
from stored import shard_files
from view_client import Client, cards, serving

import cachelayer
from cachelayer.objects.local import LocalStore
from cachelayer.page import storage_pages
from cachelayer.page.record_pages import MOST

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&\ud800\u202e"
RECORDS = 60


def element(number: int) -> dict[str, object]:
    rng = np.random.default_rng(number)
    return {
        "image": rng.integers(0, 256, (12, 10, 3), np.uint8),
        "signal": rng.normal(size=100),
        "table": np.array([[np.nan, 1.0, np.inf], [2.0, 3.0, -np.inf]]),
        "text": f"{number} " + HOSTILE.encode("utf-8", "replace").decode(),
        "tokens": np.arange(number % 5, dtype=np.int32),
        "maybe": None if number % 2 else 7,
        "<b>key</b>": number,
    }


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> cachelayer.Storage:
    storage = cachelayer.Storage(tmp_path_factory.mktemp("storage"))
    spec = {
        "image": cachelayer.ArraySpec(np.uint8, (12, 10, 3)),
        "signal": cachelayer.ArraySpec(np.float64, (100,)),
        "table": cachelayer.ArraySpec(np.float64, (2, 3)),
        "text": cachelayer.ArraySpec(str),
        "tokens": cachelayer.ArraySpec(np.int32, (None,)),
        "maybe": cachelayer.ArraySpec(np.int64, nullable=True),
        "<b>key</b>": cachelayer.ArraySpec(np.int64),
    }
    storage.submit(
        [element(number) for number in range(RECORDS)],
        "d@v1",
        element_spec=spec,
        description=HOSTILE.replace("\ud800", ""),
        metadata={"<i>": "<u>", "tfds": {"class_names": {"['<b>key</b>']": [HOSTILE.replace("\ud800", "")] * RECORDS}}},
        shard_bytes=60_000,
    )
    storage.append("d@v1", "v2", [element(number) for number in range(5)])
    changed = [{**element(number), **({"text": HOSTILE} if number == 7 else {})} for number in range(2, RECORDS)]
    storage.submit(changed, "d@changed", element_spec=spec)
    storage.tag("d@v2", "best")
    storage.submit([], "empty@v1", element_spec=cachelayer.ArraySpec(np.int64), allow_empty=True)
    return storage


@pytest.fixture(scope="module")
def client(storage: cachelayer.Storage) -> Iterator[Client]:
    with serving(storage, detokenize=lambda tokens: f"<{len(tokens)} tokens>" if len(tokens) < 4 else 1 // 0) as client:
        yield client


def shown(client: Client, path: str, status: int = 200) -> str:
    answer = client.get(path)
    assert answer.status == status, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert_harmless(answer.text)
    return answer.text


def assert_harmless(html: str) -> None:
    """Nothing but the page's own file of script is run, and no markup of the data is markup of the page."""
    assert re.findall(r"<script[^>]*>", html) in ([], ['<script type="module" src="/static/view.js">'])
    markup = re.sub(r'="[^"]*"', '=""', html)
    assert not re.search(r"<(b|i|u|img src=x)>|<img src=x|<[^>]*\sonerror\s*=|<[^>]*\sstyle\s*=", markup)
    assert "http://" not in html.replace('http-equiv="refresh"', "")


PAGES = [
    "/",
    "/d/d",
    "/d/d/v1",
    "/d/d/best",
    "/d/d/latest",
    "/d/d/v1/records",
    "/d/d/v1/records/3",
    "/d/d/v1/order?batch=8&shards=4&shard=2&step=3",
    "/d/d/v1/order?batch=8&by=text",
    "/d/d/v1/order?batch=8&by=%3Cb%3Ekey%3C/b%3E",
    "/diff?one=d@v1",
    "/diff?one=d@v1&other=d@v2",
    "/diff?one=d@v1&other=d@changed&key=%3Cb%3Ekey%3C/b%3E",
    "/d/d/v1/statistics",
    "/d/empty/v1",
    "/d/empty/v1/records",
    "/d/empty/v1/statistics",
]
ABSENT = {"/d/empty/v1/order": 400, "/d/none": 404, "/d/d/none": 404, "/x": 404, "/d/d/%00": 400, "/d/d/a%20b": 400}


@pytest.mark.parametrize(("path", "status"), [*((path, 200) for path in PAGES), *ABSENT.items()])
def test_no_page_runs_what_strangers_stored(client: Client, path: str, status: int) -> None:
    shown(client, path, status)


def test_a_version_shows_its_spec_its_provenance_and_the_line_that_opens_it(
    client: Client, storage: cachelayer.Storage
) -> None:
    text = shown(client, "/d/d/v1")
    assert "uint8[12, 10, 3]" in text
    assert "&lt;b&gt;key" in text
    assert "&lt;script&gt;alert(1)" in text
    assert storage.fetch("d@v1").digest in text
    tagged = [path for path in ("/d/d", "/d/d/v1", "/d/d/v2") if '<span class="tag">best</span>' in client.shown(path)]
    assert tagged == ["/d/d", "/d/d/v2"]
    assert "cachelayer.open(" in text


def test_records_have_fixed_urls_by_number(client: Client) -> None:
    assert cards(shown(client, "/d/d/v1/records?from=50&count=4")) == [50, 51, 52, 53]
    for wrong in ("from=60", "from=-1", "count=0", f"count={MOST + 1}", "from=x", "from=" + "9" * 5000):
        shown(client, f"/d/d/v1/records?{wrong}", 400)
    for number in ("60", "99999999999999999999999"):
        shown(client, f"/d/d/v1/records/{number}", 404)
    assert cards(shown(client, "/d/d/v1/records?at=7,3,59")) == [7, 3, 59]
    for wrong in ("7,60", "x"):
        shown(client, f"/d/d/v1/records?at={wrong}", 400)


def test_each_leaf_is_shown_as_what_it_is(client: Client) -> None:
    text = shown(client, "/d/d/v1/records/3")
    assert text.count('src="data:image/png;base64,') == 2
    assert "<polyline points=" in text
    assert "&lt;3 tokens&gt;" in text
    assert '<span class="null">null</span>' in text
    assert "the detokeniser raised ZeroDivisionError" in shown(client, "/d/d/v1/records/4")
    answer = client.get("/d/d/v1/records/3/0.png")
    assert (answer.headers["content-type"], answer.body[:4]) == ("image/png", b"\x89PNG")
    shown(client, "/d/d/v1/records/3/3.png", 400)
    shown(client, "/d/d/v1/records/3/99.png", 404)
    shown(client, "/d/d/v1/records/3/0.wav", 400)


def test_a_diff_shows_both_versions_beside_each_other(client: Client) -> None:
    text = shown(client, "/diff?one=d@v1&other=d@v2")
    assert "The data differ." in text
    assert re.search(r"shared shards</th><td colspan=\"2\">[1-9]", text)
    assert "digests are equal" in shown(client, "/diff?one=d@v2&other=d@best")
    shown(client, "/diff")
    assert "d@v1 and d@v2" in shown(client, "/diff?one=d@v1")
    shown(client, "/diff?one=d@v1&other=d@none", 404)


def test_a_diff_shows_the_rows_that_came_went_and_changed(client: Client) -> None:
    text = shown(client, "/diff?one=d@v1&other=d@changed&key=%3Cb%3Ekey%3C/b%3E")
    assert "By &lt;b&gt;key&lt;/b&gt;: 57 are the same." in text
    for name, count in (("came", 0), ("went", 2), ("changed", 1), ("text", 1)):
        assert re.search(rf">{name}</th><td>{count}</td>", text)
    assert 'href="/d/d/v1/records/7">record 7</a></td><td><a href="/d/d/changed/records/5">record 5</a>' in text
    assert "By record number: 60 are the same." in shown(client, "/diff?one=d@v1&other=d@v2")
    shown(client, "/diff?one=d@v1&other=d@v2&key=none", 400)


def test_rows_of_large_versions_are_compared_when_somebody_asks(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_pages, "SMALL_RECORDS", 10)
    text = shown(client, "/diff?one=d@v1&other=d@v2")
    (more,) = re.findall(r'Not compared: <a href="([^"]*)"', text)
    assert "By record number: 60 are the same." in shown(client, more.replace("&amp;", "&"))


def test_a_damaged_shard_hides_no_other_record(tmp_path: Path) -> None:
    storage = cachelayer.Storage(tmp_path)
    ref = storage.submit([{"x": number, "y": bytes(3000)} for number in range(40)], "d@v1", shard_bytes=40_000)
    with serving(cachelayer.Storage(tmp_path, verify="always")) as client:
        shard = shard_files(ref)[0]
        whole = shard.read_bytes()
        shard.write_bytes(b"damaged")
        text = shown(client, "/d/d/v1/records?count=40")
        assert 'class="problem">' in text
        assert "3,000 bytes" in text
        assert "no distributions" in text
        for path in ("/d/d/v1/records/0", "/d/d/v1/records?where=x+%3E+3"):
            assert "cachelayer verify" in shown(client, path, 500)
        shown(client, "/d/d/v1/records/39")
        text = shown(client, "/d/d/v1/order?batch=40&shuffle=none&by=x")
        assert "not sorted:" in text
        assert cards(text) == list(range(40))
        shard.write_bytes(whole)
        assert "36 found" in shown(client, "/d/d/v1/records?where=x+%3E+3")
        assert "Distribution of x" in shown(client, "/d/d/v1/records")


def test_a_storage_that_fails_is_a_page_that_says_what_to_do(tmp_path: Path) -> None:
    storage = cachelayer.Storage(tmp_path)
    storage.submit([1], "d@v1")
    for file in list(tmp_path.glob("d/_log/*")):
        file.unlink()
        # A link to itself: the system refuses to open it.
        file.symlink_to(file.name)
    with serving(storage) as client:
        for path in ("/", "/d/d", "/d/d/v1/records"):
            assert "reload this page" in shown(client, path, 503)


def test_images_and_sounds_are_decoded_within_limits_and_never_passed_on(tmp_path: Path) -> None:
    image_module = pytest.importorskip("PIL.Image")
    soundfile = pytest.importorskip("soundfile")
    whole, bomb, sound = io.BytesIO(), io.BytesIO(), io.BytesIO()
    image_module.new("RGB", (300, 200), (250, 10, 20)).save(whole, "JPEG")
    image_module.new("1", (9000, 9000)).save(bomb, "PNG")
    soundfile.write(sound, np.zeros((800, 1), np.float32), 8000, format="FLAC")
    polyglot = whole.getvalue() + b"<script>alert(1)</script>"
    spec = {"image": cachelayer.ImageSpec(nullable=True), "sound": cachelayer.AudioSpec(nullable=True)}
    rows = [
        {"image": polyglot, "sound": sound.getvalue()},
        {"image": bomb.getvalue(), "sound": None},
        {"image": None, "sound": None},
    ]
    storage = cachelayer.Storage(tmp_path)
    storage.submit(rows, "d@v1", element_spec=spec, validate=False)
    with serving(storage) as client:
        text = shown(client, "/d/d/v1/records")
        assert text.count("data:image/png") == 1
        assert "9,000 x 9,000" in text
        picture = client.get("/d/d/v1/records/0/0.png")
        assert picture.body[:4] == b"\x89PNG"
        assert b"script" not in picture.body
        assert "<audio" in shown(client, "/d/d/v1/records/0")
        assert client.get("/d/d/v1/records/0/1.wav").body[:4] == b"RIFF"
        shown(client, "/d/d/v1/records/1/0.png", 400)
        shown(client, "/d/d/v1/records/1/1.wav", 400)


def test_statistics_are_those_that_were_asked_for_last(client: Client) -> None:
    titles = {"": "of 65 records<", "?records=7": "of 7 records, drawn from 65", "?records=99": "of 65 records<"}
    for asked, title in titles.items():
        text = shown(client, f"/d/d/v2/statistics{asked}")
        assert f"Statistics {title}" in text
        assert f"Statistics {title}" in shown(client, "/d/d/v2/statistics")
    assert re.search(r"<h3>signal <small>float64\[100\]", text)
    for records in ("0", "x", "9" * 300):
        shown(client, f"/d/d/v1/statistics?records={records}", 400)


def test_many_leaves_and_a_huge_text_are_cut(tmp_path: Path) -> None:
    storage = cachelayer.Storage(tmp_path)
    storage.submit([{f"leaf{number}": number for number in range(3000)}], "d@v1")
    storage.submit(["x" * 3_000_000], "text@v1")
    with serving(storage) as client:
        assert "and 2,976 more fields" in shown(client, "/d/d/v1/records")
        assert "and 2,500 more fields" in shown(client, "/d/d/v1/records/0")
        assert "and 1,001 more" in shown(client, "/d/d/v1")
        assert len(shown(client, "/d/text/v1/records")) < 20_000
        assert "of 3,000,000 characters" in shown(client, "/d/text/v1/records/0")


def test_builds_that_are_not_published_are_shown_with_their_shards(tmp_path: Path) -> None:
    storage = cachelayer.Storage(tmp_path)
    storage.submit([1], "d@v1")

    rows = [{"x": np.full(2000, number, np.float32)} for number in range(900)]
    for name in ("d@v2", "first@v1"):
        with pytest.raises(cachelayer.ElementError):
            storage.submit([*rows, "no row"], name, shard_bytes=1_000_000, resume=True)
    (tmp_path / "somebody's").mkdir()
    (tmp_path / "others").mkdir()
    with serving(storage) as client:
        text = client.shown("/")
        builds = storage.builds("d")
        assert "others" not in text
        assert re.findall(r'href="/d/(\w+)">1 (\w+) build<', text) == [
            ("d", builds[0].state),
            ("first", builds[0].state),
        ]
        text = client.shown("/d/d")
        assert "Builds that are not published" in text
        assert f'<td class="right">{builds[0].shards}</td>' in text
        text = client.shown("/d/first")
        assert "No version of it is published yet." in text
        assert "Nothing is published yet." in text
        assert "no dataset" in client.shown("/d/others", 404)


def test_a_dataset_that_may_not_be_listed_stands_in_the_storage_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = cachelayer.Storage(tmp_path)
    storage.submit([1], "d@v1")
    names = LocalStore.names

    def refused(store: LocalStore, folder: str) -> list[str]:
        if store.name == "d":
            raise cachelayer.StorageError(f"may not list d/{folder}") from PermissionError(13, "refused")
        return names(store, folder)

    with serving(storage) as client:
        monkeypatch.setattr(LocalStore, "names", refused)
        assert "may not list d/" in shown(client, "/")


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
