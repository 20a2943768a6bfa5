import json

import pytest

from support.nested_arrays import nested
from tidewire.protocol.strict_json import MAX_DEPTH, MAX_INTEGER, StrictJsonError, check, dumps, loads


@pytest.mark.parametrize(
    "text",
    [
        '""', '" world"', "null", "true", "0", "-0.5", "1e5", "[]", "{}", '{"a":[1,{"b":null}]}',
        str(MAX_INTEGER), str(-MAX_INTEGER), '"\\ud83d\\ude00"', '"é漢🙂"', '"NaN"', '"1234567890123456789012"',
        "0.12345678901234567", '"[[[[["', "1" + "0" * 400 + "e-400", '{"a:b":"c:d","e":[":",{"f":"\\u003a"}]}',
    ],
)  # fmt: skip
def test_valid_json_is_read_like_the_standard_library_does(text):
    value = loads(text)
    assert value == json.loads(text)
    assert type(value) is type(json.loads(text))
    assert loads(text.encode()) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nul", "not JSON: Expecting value at character 0"),
        ("[1, 2", "not JSON: Expecting ',' delimiter at character"),
        ("NaN", "NaN"),
        ("[Infinity]", "Infinity"),
        ("1e400", "too large"),
        (str(MAX_INTEGER + 1), "2^53"),
        ("1" * 5000, "2^53"),
        ('{"a":1,"a":1}', "duplicate member 'a'"),
        ('{"a" :1,"a": {"b":":"}}', "duplicate member 'a'"),
        ('{"a":[{"b":1},{"b":1,"b":"\\":"}]}', "duplicate member 'b'"),
        ('{"a":1,"a":"\\u003a"}', "duplicate member 'a'"),
        ('[{"a":":","a":"\\u003A\\u003A"}]', "duplicate member 'a'"),
        ('"\\ud83d"', "surrogate"),
        ('{"\\ud83d":1}', "surrogate"),
    ],
)
def test_json_outside_the_protocol_is_refused_with_a_reason(text, reason):
    with pytest.raises(StrictJsonError, match=reason.replace("^", r"\^")):
        loads(text)


def test_duplicate_name_among_200_000_members_is_detected():
    many = ",".join(f'"k{n}":1' for n in range(200_000))
    with pytest.raises(StrictJsonError, match="duplicate member 'k199999'"):
        loads('{"input":{' + many + ',"k199999":2}}')


def test_bytes_that_are_not_utf8_are_refused_with_their_offset():
    with pytest.raises(StrictJsonError, match="byte 1"):
        loads(b'"\xff"')


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")])
def test_excessive_depth_is_refused_without_a_recursion_error(opening, closing):
    levels = 2 if opening.startswith("[{") else 1
    fits = MAX_DEPTH // levels
    assert loads(opening * fits + "1" + closing * fits) is not None
    for too_many in (fits + 1, 100_000):
        with pytest.raises(StrictJsonError, match="deeper than 64"):
            loads(opening * too_many + "1" + closing * too_many)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), "nan is not a JSON number; send null or a string"),
        ({"a": [float("inf")]}, "'/a/0'"),
        ({"a/b": 2**53 + 1}, "'/a~1b'"),
        ("\ud83d", "surrogate"),
        ({1: 2}, "member name 1"),
        ({"x": (1,)}, "tuple"),
        ({"x": b""}, "bytes"),
        (nested(MAX_DEPTH + 1), "deeper than 64"),
        (nested(100_000), "deeper than 64"),
    ],
)
def test_value_that_cannot_be_encoded_is_refused_with_its_path(value, reason):
    with pytest.raises(StrictJsonError, match=reason):
        check(value)
    with pytest.raises(StrictJsonError):
        dumps(value)


def test_encoded_value_is_one_compact_line_and_decodes_unchanged():
    value = {"text": "a\nb\r\u2028é🙂", "n": [1, 1.0, True, None], "deep": nested(MAX_DEPTH - 1)}
    text = dumps(value)
    assert "\n" not in text
    assert "\r" not in text
    assert " " not in text
    assert loads(text) == value
