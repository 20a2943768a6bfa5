import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from support.model_checkpoints import END, byte_level_tokens, random_tokenizer
from tidewire_server.generation.generate_input_and_value import Generate
from tidewire_server.generation.tokenizer_bytes import UnsupportedTokenizerError
from tidewire_server.generation.torch_engine.detokenizer import OutputText
from tidewire_server.generation.torch_engine.models.load_checkpoint import vocabulary_of_tokenizer
from tidewire_server.generation.vocabulary import Vocabulary


def bytes_vocabulary(*more: bytes) -> Vocabulary:
    """Return a vocabulary with token id b for byte b, then an end token (256), then the given tokens."""
    return Vocabulary([*(bytes([b]) for b in range(256)), b"<end>", *more], special={256})


def output(*stops: str, vocabulary: Vocabulary | None = None, max_tokens: int | None = None) -> OutputText:
    request = Generate(stop=[*stops], max_tokens=max_tokens)
    return OutputText(request, vocabulary or bytes_vocabulary(), {256})


def pieces(text: OutputText, data: bytes) -> list[str]:
    return [text.feed(byte)[0] for byte in data]


def test_character_split_over_tokens_is_emitted_with_its_last_byte():
    text = output()
    assert pieces(text, "aé🙂".encode()) == ["a", "", "é", "", "", "", "🙂"]


def test_text_is_the_same_for_any_split_into_tokens():
    whole = "naïve — 漢字 🙂👨‍👩‍👧 end"
    data = whole.encode()
    for size in range(1, 9):
        parts = [data[i : i + size] for i in range(0, len(data), size)]
        vocabulary = bytes_vocabulary(*parts)
        text = output(vocabulary=vocabulary)
        emitted = [text.feed(257 + i)[0] for i in range(len(parts))]
        assert "".join(emitted) == whole
        assert "\ufffd" not in "".join(emitted)


def test_invalid_bytes_become_replacement_characters():
    text = output()
    assert "".join(pieces(text, b"a\xffb\xed\xa0\x80c")) == "a\ufffdb\ufffd\ufffd\ufffdc"


def test_incomplete_character_at_the_end_is_omitted():
    text = output("zz", max_tokens=2)
    assert [text.feed(byte) for byte in "né".encode()[:2]] == [("n", None), ("", "length")]


def test_special_tokens_add_no_text():
    text = output(vocabulary=Vocabulary([b"<start>", b"A", b"B"], special={0}))
    assert pieces(text, bytes([1, 0, 2])) == ["A", "", "B"]


def test_end_token_ends_the_text_and_adds_nothing():
    text = output("abc")
    assert [text.feed(token) for token in (97, 98, 256)] == [("", None), ("", None), ("ab", "stop")]


def test_stop_string_over_token_boundaries_is_removed_completely():
    text = output("\n\ndef", "STOP")
    assert pieces(text, b"a\n\nST") == ["a", "", "", "\n\n", ""]
    assert [text.feed(byte) for byte in b"OP"] == [("", None), ("", "stop")]


def test_held_back_text_is_emitted_once_it_cannot_become_a_stop_string():
    text = output("abcd")
    assert pieces(text, b"xababce") == ["x", "", "", "ab", "", "", "abce"]
    fresh = output("abcd", max_tokens=6)
    assert "".join(pieces(fresh, b"xabab")) == "xab"
    assert fresh.feed(ord("c")) == ("abc", "length")


def test_earliest_stop_string_within_a_token_applies():
    text = output("three", "two", vocabulary=bytes_vocabulary(b"one two three"))
    assert text.feed(257) == ("one ", "stop")


def test_stop_strings_are_found_as_in_a_search_of_the_whole_text():
    whole = "aabaabaaabab" * 3
    for stop in ("aab", "aaab", "bab", "abaaabab", "bb", "a", "babaabaab"):
        text = output(stop, max_tokens=len(whole))
        emitted, finish = "", None
        for byte in whole.encode():
            piece, finish = text.feed(byte)
            emitted += piece
            if finish is not None:
                break
        at = whole.find(stop)
        assert emitted == (whole if at < 0 else whole[:at])
        assert finish == ("length" if at < 0 else "stop")


def test_vocabulary_has_raw_bytes_instead_of_the_byte_level_alphabet():
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=random_tokenizer(), eos_token=END)
    vocabulary = vocabulary_of_tokenizer(tokenizer, 300)
    for byte in range(256):
        token_id = tokenizer.convert_tokens_to_ids(byte_level_tokens(bytes([byte]))[0])
        assert vocabulary.bytes_of(token_id) == bytes([byte])
    assert vocabulary.bytes_of(tokenizer.convert_tokens_to_ids("ĠĠĠĠ")) == b"    "
    assert vocabulary.special == {0}
    assert len(vocabulary) == 300
    assert vocabulary.bytes_of(299) == b""


def test_vocabulary_agrees_with_the_tokenizer_on_real_text():
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=random_tokenizer(), eos_token=END)
    vocabulary = vocabulary_of_tokenizer(tokenizer, len(tokenizer))
    whole = "def naïve(x):\n    return '漢字 🙂'\n"
    ids = tokenizer(whole)["input_ids"]
    assert b"".join(vocabulary.bytes_of(i) for i in ids).decode() == whole == tokenizer.decode(ids)


def test_sentencepiece_tokens_become_spaces_and_bytes():
    model = models.BPE(
        vocab={"<unk>": 0, "▁the": 1, "<0xE2>": 2, "<0x0A>": 3, "é": 4}, merges=[], byte_fallback=True
    )
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    vocabulary = vocabulary_of_tokenizer(fast, 5)
    assert [vocabulary.bytes_of(i) for i in (1, 2, 3, 4)] == [b" the", b"\xe2", b"\n", "é".encode()]


def test_added_tokens_of_sentencepiece_have_spaces_too():
    vocab = {"<unk>": 0, "▁": 1, "▁▁": 2, "a": 3, "</s>": 4}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_tokens([AddedToken("▁▁", normalized=True)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")
    vocabulary = vocabulary_of_tokenizer(fast, 5)
    ids = fast("  a").input_ids
    assert ids == [2, 3]
    assert vocabulary.text_of_all(ids) == fast.decode(ids) == "  a"
    assert vocabulary.bytes_of(4) == b"</s>"


def test_tokenizer_without_byte_tokens_is_refused():
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "##ing": 1}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedTokenizerError, match="WordPiece"):
        vocabulary_of_tokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]"), 2)


def test_vocabulary_hash_depends_only_on_its_content():
    first, same, other = bytes_vocabulary(b"x"), bytes_vocabulary(b"x"), bytes_vocabulary(b"y")
    without_special = Vocabulary([*(bytes([b]) for b in range(256)), b"<end>", b"x"])
    body = first.body()
    assert body["hash"] == same.body()["hash"] != other.body()["hash"]
    assert body["hash"] != without_special.body()["hash"]
    assert len(body["tokens"]) == 258
    assert (body["tokens"][97], body["special"]) == ("YQ==", [256])
    assert (first.text_of(0xFF), first.text_of(97), first.longest) == ("\ufffd", "a", 5)
