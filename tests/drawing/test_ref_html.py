"""The table that notebooks show of a version."""

import shutil
from pathlib import Path

import numpy as np

import cachelayer


def test_a_notebook_shows_the_spec_and_the_first_records(tmp_path: Path) -> None:
    rows = [
        {"image": np.full((9, 9, 3), number, np.uint8), "wave": np.arange(50.0), "label": number} for number in range(9)
    ]
    ref = cachelayer.Storage(tmp_path).submit(rows, "d@v1")
    html = ref._repr_html_()
    assert "d@v1" in html
    assert "uint8[9, 9, 3]" in html
    assert html.count("data:image/png;base64,") == html.count("<polyline") == html.count("<th>record") == 4
    assert html.count("<tr>") == 1 + len(rows[0])
    view = ref[7:]
    html = view._repr_html_()
    assert html.count("<th>record") == 2
    for shown in ("View(&#x27;d@v1[7:9]&#x27;)", "records 2 of 9", f"about {view.nbytes:,}", view.digest):
        assert shown in html
    assert (
        repr(view) == f"View('d@v1[7:9]', records=2 of 9, nbytes=about {view.nbytes:,}, digest='sha256:{view.digest}')"
    )
    assert 0 < view.nbytes < ref.nbytes


def test_class_names_stand_beside_labels_in_a_notebook(tmp_path: Path) -> None:
    rows = [{"label": number} for number in range(3)]
    html = cachelayer.Storage(tmp_path).submit(rows, "d@v1", metadata={"classes": ["cat", "<b>dog"]})._repr_html_()
    assert "<td>0 cat</td>" in html
    assert "<td>1 &lt;b&gt;dog</td>" in html
    assert "<td>2</td>" in html


def test_a_notebook_shows_the_spec_of_views_and_mixtures(tmp_path: Path) -> None:
    rows = [{"tokens": np.arange(number), "<b>": number} for number in range(1, 9)]
    ref = cachelayer.Storage(tmp_path).submit(rows, "d@v1", element_spec={"tokens": cachelayer.ArraySpec(int, (None,))})
    for view in (
        ref.fields("tokens"),
        ref.windows("tokens", 4),
        ref.packed("tokens", 9),
        ref.padded({"tokens": 9}, long="truncate"),
    ):
        html = view._repr_html_()
        assert f"<strong>{repr(view).partition('(')[0]}(" in html
        assert "int64[" in html
        assert f"records {len(view)}" in html
        assert ("of 8 · nbytes about" in html) == (view.digest == ref.fields("tokens").digest)
    assert "<b>" not in ref.padded({"tokens": 9}, long="truncate")._repr_html_()
    html = cachelayer.mix([(ref, 3), (ref[:4], 1)])._repr_html_()
    assert "DataRef(&#x27;d@v1&#x27;, records=8) 3 · View(&#x27;d@v1[0:4]&#x27;, records=4 of 8" in html


def test_what_is_stored_is_text_in_a_notebook(tmp_path: Path) -> None:
    rows = [{"<b>key": "<script>alert(1)</script>" * 1000}]
    html = cachelayer.Storage(tmp_path).submit(rows, "d@v1")._repr_html_()
    assert "<script" not in html
    assert "<b>" not in html
    assert len(html) < 2000


def test_damage_is_text_in_a_notebook(tmp_path: Path) -> None:
    ref = cachelayer.Storage(tmp_path).submit([1, 2], "d@v1")
    shutil.rmtree(tmp_path)
    again = cachelayer.Storage(tmp_path).submit([1, 2], "d@v1")
    for shard in tmp_path.rglob("*.array_record"):
        shard.write_bytes(b"")
    assert "damaged" in again._repr_html_() or "bytes" in again._repr_html_()
    assert ref._repr_html_()
