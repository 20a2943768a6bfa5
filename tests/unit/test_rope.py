from zlib import crc32

import pytest

from tidewire.protocol.document.versioned_text_and_arrays import (
    LATEST,
    MAX_LOOSE_PIECES,
    MAX_PIECE,
    Rope,
    RopeArray,
)


def test_text_and_array_can_be_read_at_each_version():
    text, array = Rope("ab"), RopeArray([1])
    for version in (1, 1, 2, 5, 5, 9):
        text.extend(str(version), version)
        array.extend([version], version)
    expected = {
        0: "ab",
        1: "ab11",
        2: "ab112",
        3: "ab112",
        4: "ab112",
        5: "ab11255",
        8: "ab11255",
        9: "ab112559",
    }
    assert {version: text.text_at(version) for version in expected} == expected
    assert text.text_at(LATEST) == expected[9]
    assert array.items_at(0) == [1]
    assert array.items_at(4) == [1, 1, 1, 2]
    assert array.items_at(LATEST) == [1, 1, 1, 2, 5, 5, 9]


@pytest.mark.parametrize("piece", ["a", "é", "🎉b", " word", "x" * 1000, "y" * (MAX_PIECE + 1)])
def test_length_crc_and_text_agree_at_every_size(piece):
    text, whole = Rope("start "), "start "
    for n in range(1, 2 * MAX_LOOSE_PIECES if len(piece) < 2000 else 5):
        text.extend(piece, n)
        whole += piece
        if n % 97 == 0 or n < 4:
            assert (text.length, text.crc()) == (len(whole), crc32(whole.encode()))
    assert text.text_at(LATEST) == whole


def test_many_small_pieces_are_merged_into_few_large_ones():
    text = Rope("")
    for n in range(200_000):
        text.extend("token", n)
    assert len(text._pieces) <= 1_000_000 // MAX_PIECE * 2 + MAX_LOOSE_PIECES + 20
    text.crc()
    assert len(text._pieces) <= 1_000_000 // MAX_PIECE * 2 + 20
    assert max(map(len, text._pieces)) <= MAX_PIECE


@pytest.mark.parametrize("since", [0, 1, 6, 7, 10, 2000, 2599, 2600])
def test_text_since_a_length_is_read(since):
    text, whole = Rope("start "), "start "
    for n in range(1297):
        text.extend("é🎉", n)
        whole += "é🎉"
    assert text.text_since(since) == whole[since:]


@pytest.mark.parametrize("length", [0, 1, 5, 6, 7, 1000, MAX_PIECE, MAX_PIECE + 1, 149_999, 150_000])
def test_shortened_copy_is_independent_of_its_source(length):
    text = Rope("x" * 100_000)
    for n in range(10_000):
        text.extend("é🎉abc", n)
    whole = "x" * 100_000 + "é🎉abc" * 10_000
    short = text.shortened(length)
    assert (short.text_at(LATEST), short.length) == (whole[:length], length)
    assert short.crc() == crc32(whole[:length].encode())
    short.extend("!", 1)
    text.extend("?", 20_000)
    assert short.text_at(LATEST) == whole[:length] + "!"
    assert short.crc() == crc32((whole[:length] + "!").encode())
    assert text.text_at(LATEST) == whole + "?"
    assert text.crc() == crc32((whole + "?").encode())


def test_cut_removes_the_latest_text_and_elements():
    text, array = Rope("ab"), RopeArray([1, 2])
    text.extend("cdef", 1)
    text.crc()
    text.extend("g", 1)
    array.extend([3, 4], 1)
    text.cut(text.length_at(0))
    array.cut(array.length_at(0))
    assert (text.text_at(LATEST), text.length, text.crc()) == ("ab", 2, crc32(b"ab"))
    assert (array.items_at(LATEST), array.length) == ([1, 2], 2)
    text.extend("x", 1)
    assert (text.text_at(0), text.text_at(1)) == ("ab", "abx")


def test_long_piece_is_kept_whole_until_it_is_truncated():
    long = "é" * (3 * MAX_PIECE)
    text = Rope("start ")
    text.extend(long, 1)
    text.extend("!", 2)
    assert text.crc() == crc32(f"start {long}!".encode())
    assert any(piece is long for piece in text.pieces())
    short = text.shortened(MAX_PIECE)
    assert max(map(len, short.pieces())) <= MAX_PIECE
    assert (short.text_at(LATEST), short.crc()) == (
        f"start {long}"[:MAX_PIECE],
        crc32(f"start {long}"[:MAX_PIECE].encode()),
    )
    assert text.text_at(LATEST) == f"start {long}!"


def test_repeated_truncations_copy_only_a_short_part():
    rope, copied = Rope("x" * 60_000), 0
    for _ in range(1000):
        copied += len([*rope.pieces()][-1])
        rope.cut(rope.length - 1)
    assert rope.text_at(LATEST) == "x" * 59_000
    assert copied <= 60_000 + 1000 * 512
    assert rope.crc() == crc32(b"x" * 59_000)
