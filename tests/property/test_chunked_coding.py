"""`ChunkedDecoder`, with h11 as fallback, decodes any chunked body as h11 alone does, wherever it is cut."""

import random

import h11
import pytest

from tidewire.http.chunked_coding import SIZE_DIGITS, ChunkedDecoder
from tidewire.http.fast_body_reader import _h11_in_chunked_body


def decode_with_h11(pieces):
    """Return the decoded body, and whether it is complete, broken or unfinished."""
    http, body = _h11_in_chunked_body(), b""
    try:
        for piece in pieces:
            http.receive_data(piece)
            while type(event := http.next_event()) is h11.Data:
                body += bytes(event.data)
            if event is not h11.NEED_DATA:
                return body, "end"
    except h11.RemoteProtocolError:
        return body, "broken"
    return body, "open"


def decode_with_ours(pieces):
    chunks, body = ChunkedDecoder(), b""
    for at, piece in enumerate(pieces):
        body += chunks.feed(piece)
        if chunks.broken:
            return body, "broken"
        if chunks.rest is not None:
            rest, how = decode_with_h11([chunks.rest, *pieces[at + 1 :]])
            return body + rest, how
    return body, "open"


def random_chunk(rng):
    size = rng.choice([1, 2, 9, 10, 15, 16, 17, 255, 256, 300])
    data = bytes(rng.choice(b"ab\r\n0;") for _ in range(size))
    plain = [b"%x", b"%X", b"%04x"]
    unusual = [b"%09x", b"%x;e=1", b"%x ", b"%020x", b" %x", b"+%x", b"0x%x", b"%x_"]
    return rng.choice(plain if rng.random() < 0.9 else unusual) % size + b"\r\n" + data + b"\r\n"


def random_body(rng):
    """Return random chunks, with or without an end, and sometimes with one byte removed, changed or added."""
    ends = [b"", b"0\r\n\r\n", b"000\r\nX: y\r\n\r\n", b"0\r\n", b"x", b"\r\n"]
    body = b"".join(random_chunk(rng) for _ in range(rng.randrange(5))) + rng.choice(ends)
    if body and rng.random() < 0.5:
        at, noise = rng.randrange(len(body)), bytes([rng.choice(b"\r\n0fx; _+-\0\xff")])
        return rng.choice(
            [body[:at] + body[at + 1 :], body[:at] + noise + body[at:], body[:at] + noise + body[at + 1 :]]
        )
    return body


def cut(body, cuts):
    return [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True) if a < b]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
def test_any_body_is_decoded_as_by_h11_wherever_it_is_cut(seed):
    rng = random.Random(seed)
    ends = set()
    for number in range(1_000):
        body = random_body(rng)
        cuts = sorted(rng.sample(range(len(body) + 1), min(len(body) + 1, rng.choice([0, 1, 2, 5, 40]))))
        pieces = cut(body, range(1, len(body)) if number % 20 == 0 else cuts)
        read = decode_with_ours(pieces)
        assert read == decode_with_h11(pieces), pieces
        ends.add(read[1])
    assert ends == {"end", "broken", "open"}


def test_cut_at_any_byte_does_not_change_the_body():
    body = b"5\r\nhello\r\n10\r\n0123456789abcdef\r\n1;x\r\n\n\r\n0\r\nA: b\r\n\r\n"
    for at in range(len(body) + 1):
        assert decode_with_ours(cut(body, [at])) == (b"hello0123456789abcdef\n", "end"), at


def test_chunk_size_with_too_many_digits_is_left_to_h11():
    at_the_bound, beyond = ChunkedDecoder(), ChunkedDecoder()
    assert at_the_bound.feed(b"1".zfill(SIZE_DIGITS) + b"\r\nx") == b"x"
    assert beyond.feed(b"1".zfill(SIZE_DIGITS + 1) + b"\r\nx") == b""
    assert (at_the_bound.rest, beyond.rest) == (None, b"000000001\r\nx")


def test_overlong_chunk_size_line_is_not_buffered():
    chunks = ChunkedDecoder()
    assert chunks.feed(b"f" * (SIZE_DIGITS + 1)) == b""
    assert chunks.rest == b"f" * (SIZE_DIGITS + 1)
