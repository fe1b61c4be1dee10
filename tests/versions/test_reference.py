"""References: what a text names, and what it says where that is not there."""

import inspect
import re
from dataclasses import replace
from typing import Any

import pytest

import cachelayer
from cachelayer import CorruptionError, DataRef, InvalidArgumentError, InvalidNameError, VersionNotFoundError
from cachelayer.versions.reference import Reference
from cachelayer.versions.snapshot import Snapshot, VersionInfo
from cachelayer.versions.view_calls import METHODS, ViewCall

DIGESTS = {"v1": "aa11" + "0" * 60, "v2": "aa22" + "0" * 60, "again": "aa22" + "0" * 60}
INFO = VersionInfo("", "_builds/a/manifest.json", "", "", 1, 1, "")
SNAPSHOT = Snapshot(
    3, {name: replace(INFO, version=name, digest=digest) for name, digest in DIGESTS.items()}, {"t": "v1"}
)


def cut(*ends: Any) -> ViewCall:
    return ViewCall("", (slice(*ends),))


STRATIFIED = {"seed": 0, "stratify": "label"}
SPLIT = ViewCall("split", ({"t": 0.9, "v": 0.1},), {"seed": 0, "by": ["u"]}, ("v",))
EXCLUDED = ViewCall("exclude", (range(2, 9),))


@pytest.mark.parametrize(
    ("text", "version", "found"),
    [
        ("d", None, "again"),
        ("d", "latest", "again"),
        ("d@latest", None, "again"),
        ("d@v1", None, "v1"),
        ("d", "v2", "v2"),
        ("d@t", None, "v1"),
        ("d@sha256:aa1", None, "v1"),
        ("d", "sha256:aa22", "again"),
        ("d@v2@sha256:aa22", None, "v2"),
        ("d@t@sha256:" + DIGESTS["v1"], None, "v1"),
        ("d@latest@sha256:aa22", None, "again"),
    ],
)
def test_a_reference_names_a_version(text: str, version: str | None, found: str) -> None:
    assert Reference.parse(text, version).resolve(SNAPSHOT).version == found


WRONG = ["", "d@", "d@v1@", "d@v1@v2", "d@sha256", "d@sha256:", "d@sha256:xyz", "d@sha256:AA11"]
WRONG += ["d@sha256:" + "0" * 65, "@v1", "d@v1\n"]


@pytest.mark.parametrize(
    ("text", "version"),
    [*((text, None) for text in WRONG), ("d", ""), ("a/d", "v1"), (None, None), (b"d", None), ("d", 3)],
)
def test_what_is_no_reference_is_refused(text: Any, version: Any) -> None:
    with pytest.raises(InvalidNameError):
        Reference.parse(text, version)


@pytest.mark.parametrize(
    ("want", "taken", "refused"),
    [
        ("version", ["d", "d@v1", "d@latest", "d@sha256:aa1", "d@v1@sha256:aa1"], ["d@v1[:3]", "d[1:]"]),
        ("base", ["d@v1", "d@latest", "d@sha256:aa1", "d@v1@sha256:aa1"], ["d", "d@v1.raw()"]),
        ("name", ["d@v1", "d@t", "d@v1@sha256:aa1"], ["d", "d@latest", "d@sha256:aa1", "d@v1@sha256:", "d@v1[:3]"]),
        ("new", ["d@v9"], ["d", "d@latest", "d@auto", "d@sha256:aa1", "d@v1@sha256:aa1", "d@v9[:3]", "d@a b"]),
        ("template", ["d@auto", "d@size-{size}"], ["d"]),
        ("any", ["d", "d@v1[:3]", "s/d@a b"], ["a b", "@v1"]),
    ],
)
def test_what_is_wanted_is_taken_and_anything_else_is_refused(want: Any, taken: list[str], refused: list[str]) -> None:
    assert {Reference.parse(text, want=want).dataset_id for text in taken} == {"d"}
    for text in refused:
        with pytest.raises((InvalidNameError, InvalidArgumentError)):
            Reference.parse(text, want=want)


@pytest.mark.parametrize("text", ["d@v1", "d@"])
def test_a_version_that_is_named_twice_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="pass one"):
        Reference.parse(text, "v1")


def test_what_is_not_there_is_told_with_what_is() -> None:
    with pytest.raises(VersionNotFoundError, match="'again'"):
        Reference.parse("d@agian").resolve(SNAPSHOT)
    with pytest.raises(VersionNotFoundError, match="sha256:bb"):
        Reference.parse("d@sha256:bb").resolve(SNAPSHOT)
    with pytest.raises(VersionNotFoundError, match="no version is published"):
        Reference.parse("d").resolve(Snapshot(4))
    with pytest.raises(InvalidArgumentError, match=r"several versions: v1 .*v2"):
        Reference.parse("d@sha256:aa").resolve(SNAPSHOT)
    with pytest.raises(CorruptionError, match="pinned"):
        Reference.parse("d@v1@sha256:aa22").resolve(SNAPSHOT)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("d@v1[:3]", Reference("d", "v1", calls=(cut(None, 3),))),
        ("d[1:9:2]", Reference("d", calls=(cut(1, 9, 2),))),
        ("[a:b]/d@v1[::-1]", Reference("d", "v1", url="[a:b]", calls=(cut(None, None, -1),))),
        ("/a.raw()/d@v1.2.raw()", Reference("d", "v1.2", url="/a.raw()", calls=(ViewCall("raw"),))),
        ("d@v1.raw[2:]", Reference("d", "v1.raw", calls=(cut(2, None),))),
        (
            "gs://b/d@sha256:ab.where(\"x == 'a/d@v1[1:]'\")[1:]@sha256:cd",
            Reference("d", None, "ab", "gs://b", (ViewCall("where", ("x == 'a/d@v1[1:]'",)), cut(1, None)), "cd"),
        ),
        (
            "a/d@v1.split({'t': 0.9, 'v': 0.1}, seed=0, by=['u'])['v'].select([3, 1]).exclude(range(2, 9))",
            Reference("d", "v1", url="a", calls=(SPLIT, ViewCall("select", ([3, 1],)), EXCLUDED)),
        ),
        (
            "d@v1.folds(5, seed=0, stratify='label')[2][0][1:9:2]",
            Reference("d", "v1", calls=(ViewCall("folds", (5,), STRATIFIED, (2, 0)), cut(1, 9, 2))),
        ),
        ("at@home/d@v1@sha256:ab", Reference("d", "v1", "ab", "at@home")),
        ("gs://b/p/d@sha256:ab[:]", Reference("d", None, "ab", "gs://b/p", (cut(None, None),))),
        ("/d@v1", Reference("d", "v1", url="/")),
    ],
)
def test_a_whole_reference_has_parts(text: str, expected: Reference) -> None:
    assert Reference.parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "d@v1[3]",
        "d@v1[a:b]",
        "d@v1[1.5:]",
        "d@v1[1:2, 3]",
        "d@v1.drop('x')",
        "d@v1.where(x > 1)",
        "d@v1.where(*'ab')",
        "d@v1.where(**{'condition': 'x'})",
        "d@v1.split({'a': 1}, seed=0)",
        "d@v1.folds(5, seed=0)",
        "d@v1.folds(5, seed=0)[2]",
        "d@v1.folds(5, seed=0)[2][0][1]",
        "d@v1.select(range('a'))",
        "d@v1.where(__import__('os'))",
        "gs://d@v1",
        "a/@v1",
        "gs://u:hunter2@b/d@v1?sig=hunter2/x",
    ],
)
def test_what_has_no_such_parts_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        Reference.parse(text)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "d", "d@v1", "/a/@v1", "/a/d@v1[3]", None, b"/a/d@v1"])
def test_opening_what_is_no_reference_is_refused(text: Any) -> None:
    with pytest.raises((InvalidArgumentError, cachelayer.InvalidTypeError)):
        cachelayer.open(text)


@pytest.mark.parametrize("name", ["plain", "a b", "a@b", "ü", "x[1:2]", "50%25", "#?&"])
def test_the_reference_of_a_storage_anywhere_opens_it(tmp_path: Any, name: str) -> None:
    ref = cachelayer.Storage(tmp_path / name).submit([1, 2, 3], "d@v1")
    assert cachelayer.open(ref.reference).digest == ref.digest
    assert len(cachelayer.open(ref.reference + "[1:]")) == 2


def test_references_may_have_every_method_that_makes_a_view() -> None:
    methods = {name: method for name, method in inspect.getmembers(DataRef, inspect.isfunction) if name[0] != "_"}
    returned = {name: str(inspect.signature(method).return_annotation) for name, method in methods.items()}
    views = {
        name for name, kind in returned.items() if re.search("Self|View|DataRef|Packed|Padded|Rolling|Sampled", kind)
    }
    assert views == set(METHODS)
