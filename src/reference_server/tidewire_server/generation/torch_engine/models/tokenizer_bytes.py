"""Read the bytes of each token from a byte-level BPE or SentencePiece tokenizer."""

from __future__ import annotations

import json
import re
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from tidewire_server.generation.vocabulary import Vocabulary

BYTE_OF: dict[str, int] = {
    character: byte
    for byte, character in bytes_to_unicode().items()  # type: ignore[no-untyped-call]
}
"""Byte of each character of the byte-level BPE alphabet."""

BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class UnsupportedTokenizerError(Exception):
    """The tokenizer is neither a byte-level nor a SentencePiece tokenizer, so its tokens cannot be mapped to bytes."""


def vocabulary_of(tokenizer: PreTrainedTokenizerBase, size: int) -> Vocabulary:
    """Read the vocabulary of a tokenizer. The result contains `size` ids. Ids that the tokenizer does not use have empty
    bytes. Higher ids of the tokenizer are left out, because the model cannot generate them.

    Raises:
        UnsupportedTokenizerError: The tokenizer is neither a byte-level nor a SentencePiece tokenizer.
    """
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    steps = _decoders(backend.get("decoder"))
    if "ByteLevel" in steps:
        to_bytes = _byte_level
    elif "Metaspace" in steps or {"Replace", "ByteFallback"} <= steps:
        to_bytes = _sentence_piece
    else:
        raise UnsupportedTokenizerError(
            "only byte-level and SentencePiece tokenizers are supported, but the decoders of this tokenizer are "
            f"{', '.join(sorted(steps)) or 'none'}"
        )
    ids: dict[str, int] = tokenizer.get_vocab()
    known = {token_id: to_bytes(token) for token, token_id in ids.items()}
    special = set(tokenizer.all_special_ids)
    for added in backend.get("added_tokens", []):
        known[added["id"]] = added["content"].encode()
        if added["special"]:
            special.add(added["id"])
    return Vocabulary([known.get(i, b"") for i in range(size)], {i for i in special if i < size})


def _decoders(decoder: dict[str, Any] | None) -> set[str]:
    if decoder is None:
        return set()
    return {decoder["type"]}.union(*(_decoders(part) for part in decoder.get("decoders", [])))


def _byte_level(token: str) -> bytes:
    return b"".join(bytes([BYTE_OF[c]]) if c in BYTE_OF else c.encode() for c in token)


def _sentence_piece(token: str) -> bytes:
    fallback = BYTE_FALLBACK.fullmatch(token)
    return bytes([int(fallback[1], 16)]) if fallback else token.replace("\u2581", " ").encode()
