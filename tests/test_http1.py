"""Messages are found in any cuts of the bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from http1 import Messages
from hypothesis import given
from hypothesis import strategies as st

REQUESTS = (
    b"GET / HTTP/1.1\r\n\r\n",
    b"PUT /a HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
    b"PUT /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nT: 1\r\n\r\n",
    b"POST /c HTTP/1.1\r\ncontent-length: 0\r\n\r\n",
)
REPLIES = (
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 300\r\n\r\n" + b"x" * 300,
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n\n\r\n0\r\n\r\n",
    b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
)


def found(messages: Messages, data: bytes, cuts: list[int]) -> list[bytes]:
    """The messages in data that arrives in these cuts, and what is left."""
    whole, current = [], b""
    for start, end in pairwise([0, *sorted(cuts), len(data)]):
        for piece in messages.feed(data[start:end]):
            current += piece.head + piece.body
            if piece.last:
                whole.append(current)
                current = b""
    return [*whole, current]


@pytest.mark.parametrize(("replies", "expected"), [(False, (*REQUESTS, b"")), (True, REPLIES)])
@given(st.data())
def test_messages_are_found_however_the_bytes_are_cut(
    replies: bool, expected: tuple[bytes, ...], data: st.DataObject
) -> None:
    joined = b"".join(expected)
    cuts = data.draw(st.lists(st.integers(0, len(joined)), max_size=20))
    messages = Messages(replies)
    assert found(messages, joined, cuts) == list(expected)
    assert messages.until_close == replies


def test_the_reply_to_head_has_no_body() -> None:
    messages = Messages(replies=True)
    messages.bodiless = True
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 300\r\n\r\n"
    assert found(messages, head + head, []) == [head, head, b""]
