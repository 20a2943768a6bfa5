"""Read the bytes of each token from a byte-level BPE or SentencePiece tokenizer."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from tidewire_server.generation.vocabulary import Vocabulary

_PRINTABLE: Final = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS: Final = sorted(set(range(0x100)) - set(_PRINTABLE))
BYTE_OF: Final[dict[str, int]] = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(0x100 + i): byte for i, byte in enumerate(_OTHERS)
}
"""Character of the byte-level BPE alphabet → byte. Characters above U+00FF represent bytes that are not printable."""

BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class UnsupportedTokenizerError(Exception):
    """The tokenizer is neither a byte-level nor a SentencePiece tokenizer, so its tokens cannot be mapped to bytes."""


def vocabulary_of(
    tokenizer: Mapping[str, Any], ids: Mapping[str, int], size: int, special: Collection[int] = ()
) -> Vocabulary:
    """Read the vocabulary of a tokenizer. The result contains the ids below `size`. Ids that the tokenizer does not use have
    empty bytes. Ids from `size` on are left out, because the model cannot generate them.

    Args:
        tokenizer: Content of the tokenizer's file `tokenizer.json`.
        ids: Id of each token.
        size: Number of ids.
        special: Ids of special tokens that are not marked as special in the file.

    Raises:
        UnsupportedTokenizerError: The tokenizer is neither a byte-level nor a SentencePiece tokenizer.
    """
    steps = _decoders(tokenizer.get("decoder"))
    if "ByteLevel" in steps:
        to_bytes = _byte_level
    elif "Metaspace" in steps or {"Replace", "ByteFallback"} <= steps:
        to_bytes = _sentence_piece
    else:
        raise UnsupportedTokenizerError(
            "only byte-level and SentencePiece tokenizers are supported, but the decoders of this tokenizer are "
            f"{', '.join(sorted(steps)) or 'none'}"
        )
    known = {token_id: to_bytes(token) for token, token_id in ids.items()}
    special = set(special)
    for added in tokenizer.get("added_tokens", []):
        if added["special"]:
            special.add(added["id"])
        # Added tokens of a byte-level tokenizer are plain text. Those of SentencePiece have U+2581 for a space.
        if added["special"] or to_bytes is _byte_level:
            known[added["id"]] = added["content"].encode()
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
