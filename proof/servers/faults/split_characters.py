"""Faulty servers with errors in characters whose bytes belong to several tokens."""

from proof.servers import table_engine
from proof.servers.faults import fault

FIRST_BYTES, LAST_BYTE = " 😀".encode()[:-1], "😀".encode()[-1:]


def split_characters(hooks=None):
    """Use a model with two tokens that end or begin within a character."""
    words = {" 😀": FIRST_BYTES, " night": LAST_BYTE}
    table_engine.WORDS = [words.get(each, each) for each in table_engine.WORDS]


def _replace_at_once(hooks):
    split_characters()
    inner = table_engine.whole_characters
    table_engine.whole_characters = lambda written, *, final: inner(written, final=True)


def _decode_each_token(hooks):
    split_characters()
    inner = table_engine.added_bytes
    table_engine.added_bytes = lambda token: inner(token).decode("utf-8", "replace").encode()


# fmt: off
fault("incomplete_character_sent", "TW-GEN-015", "split_characters.text_has_only_whole_characters",
      "The bytes of an incomplete character are sent as U+FFFD at once.",
      install=_replace_at_once,
      also_fails={"the text is sent before the character is complete": "state.* logprobs.* generation.*"})
fault("each_token_decoded_alone", "TW-GEN-015", "split_characters.text_has_only_whole_characters",
      "The text consists of the separately decoded texts of its tokens, with U+FFFD for the parts of a character.",
      install=_decode_each_token,
      also_fails={"the bytes of the tokens do not spell the text": "logprobs.*"})
fault("token_text_without_its_incomplete_bytes", "TW-GEN-042", "split_characters.text_of_tokens_is_decoded_separately",
      "`token_text` omits the bytes that are not a whole character.",
      install=split_characters,
      deltas=lambda delta, request: setattr(delta, "token_text",
          [each.replace("\ufffd", "") for each in delta.token_text]))
# fmt: on
