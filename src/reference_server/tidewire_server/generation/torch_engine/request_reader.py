"""Reading and validation of requests (`RequestReader`): tokenizes prompts, and compiles JSON Schemas to grammars.

Tokenizing a long prompt can take seconds, and compiling a schema a tenth of a second. Both have separate threads, so that
neither delays the other. One caller can use half of the threads for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

from tidewire_server.generation.engine_interface import InputError
from tidewire_server.generation.generate_input_and_value import Generate
from tidewire_server.generation.schema_limits import DEFAULT_LIMITS, SchemaLimits
from tidewire_server.generation.torch_engine.fair_thread_pool import CallerThreads
from tidewire_server.generation.torch_engine.models.load_checkpoint import Checkpoint
from tidewire_server.generation.torch_engine.sampling.structured_output import Grammar, Grammars

SPARE_TOKENS = 8
"""Maximum number of tokens that a tokenizer adds to a text, such as a begin-of-text token or a prefix space."""

TOKENIZE_THREADS: Final = 4
"""Maximum number of prompts that are tokenized at the same time."""

COMPILE_THREADS: Final = 2
"""Maximum number of JSON Schemas that are compiled at the same time."""

MAX_WAITING: Final = 1024
"""Maximum number of prompts of one caller that wait for a thread. The limit for schemas is the same."""

COMPILE_STACK_BYTES: Final = 16 << 20
"""Stack size of a thread that compiles schemas. The library recurses over a schema and its references, and needs about 8 kB for
each of at most `max_resolved_depth` levels. The default of some platforms is only 512 kB."""


class RequestReader:
    """Reads the prompts and schemas of requests for one model. All methods are thread-safe.

    Args:
        checkpoint: The loaded model with its tokenizer.
        context: Maximum number of tokens of the prompt and the generated text together.
        limits: Limits on JSON Schemas.
    """

    def __init__(self, checkpoint: Checkpoint, context: int, limits: SchemaLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._tokenizing = CallerThreads("tokenizing", TOKENIZE_THREADS, MAX_WAITING)
        self._compiling = CallerThreads("schema", COMPILE_THREADS, MAX_WAITING, COMPILE_STACK_BYTES)
        self._checkpoint = checkpoint
        self._context = context
        # If the tokenizer has no normalizer, each token covers at least one byte. The number of tokens of a prompt is
        # then at most its size in bytes, so most prompts can be accepted without tokenizing them.
        self._byte_per_token = checkpoint.tokenizer.backend_tokenizer.normalizer is None
        # If the tokenizer has tokens that the model lacks, each prompt must be tokenized to find out whether it contains them.
        self._surplus = checkpoint.tokenizer.backend_tokenizer.get_vocab_size() > checkpoint.vocab_size

    async def check(self, request: Generate) -> None:
        """Validate the prompt and the schema of a request.

        The prompt is not tokenized if its size in bytes already shows that it fits into the context. If the model lacks tokens
        of its tokenizer, the prompt is always tokenized.

        Raises:
            InputError: The prompt or the schema cannot be used.
            EngineFullError: Too many requests of this caller wait.
        """
        await self._compile(request)
        if not self.surely_fits(request):
            await self._tokenizing.run(self.tokenize, request)

    async def read(self, request: Generate) -> tuple[list[int], Grammar | None]:
        """Tokenize the prompt and compile the schema of a request. Raises the same exceptions as `check`."""
        return await self._tokenizing.run(self.tokenize, request), await self._compile(request)

    async def _compile(self, request: Generate) -> Grammar | None:
        if request.json_schema is None:
            return None
        return await self._compiling.run(self.compile_schema, request.json_schema)

    def surely_fits(self, request: Generate) -> bool:
        """Return whether the size of the prompt in bytes already shows that `tokenize` accepts it."""
        size = len(request.prompt.encode()) if request.messages is None and self._byte_per_token else 0
        return not self._surplus and 0 < size <= self._context - (request.max_tokens or 1) - SPARE_TOKENS

    def tokenize(self, request: Generate) -> list[int]:
        """Tokenize the prompt or the messages of a request.

        Raises:
            InputError: The prompt is empty, the chat template cannot render the messages, or the prompt and `max_tokens`
                together do not fit into the context.
        """
        tokenizer = self._checkpoint.tokenizer
        member = "prompt" if request.messages is None else "messages"
        if request.messages is None:
            text, add_special = request.prompt, True
        else:
            turns = [message.model_dump() for message in request.messages]
            try:
                text = str(tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False))
            except Exception as error:  # a template can raise any exception
                raise InputError(
                    f"the model's chat template cannot render these messages: {error}", member=member
                ) from error
            add_special = False
        self._check_size(text, member)
        # Call the backend tokenizer, which is thread-safe. The tokenizer class of transformers is not thread-safe, because
        # it stores settings between calls. `encode` would hold the GIL, and block the event loop for seconds.
        (encoded,) = tokenizer.backend_tokenizer.encode_batch_fast([text], add_special_tokens=add_special)
        ids: list[int] = encoded.ids
        context = self._context
        if not ids:
            raise InputError(
                f"{member} is empty, but the model needs at least one token to continue", member=member
            )
        if len(ids) >= context:
            raise InputError(
                f"{member} has {_tokens(len(ids))}, but the model's context is limited to {context} tokens, including at "
                "least one generated token",
                member=member,
                code="input_too_long",
            )
        if max(ids) >= self._checkpoint.vocab_size:
            # A tokenizer with more tokens than the model produced this id.
            raise InputError(
                f"{member} contains {tokenizer.convert_ids_to_tokens(max(ids))!r}, which is token {max(ids)} of the "
                f"tokenizer, but the model has only the tokens up to {self._checkpoint.vocab_size - 1}; remove it",
                member=member,
            )
        if request.max_tokens is not None and len(ids) + request.max_tokens > context:
            raise InputError(
                f"max_tokens is {request.max_tokens}, but {member} has {_tokens(len(ids))}, and the context of {context} "
                f"tokens has room for only {context - len(ids)} more",
                member="max_tokens",
                code="input_too_long",
            )
        return ids

    def compile_schema(self, schema: Mapping[str, Any]) -> Grammar:
        """Compile a JSON Schema.

        Raises:
            InputError: The schema cannot be used.
        """
        return self._grammars.compile(schema)

    @cached_property
    def _grammars(self) -> Grammars:
        c = self._checkpoint
        return Grammars(c.vocabulary, c.vocab_size, c.end_ids, c.tokenizer.backend_tokenizer, self._limits)

    def _check_size(self, text: str, member: str) -> None:
        """Reject a text if its size in bytes already shows that it is too long. Such a text need not be tokenized.

        Args:
            text: The prompt, or the text that the chat template rendered. A template may omit parts of the messages.
            member: Input member that contains the text.

        Raises:
            InputError: The text does not fit into the context.
        """
        size = len(text.encode())
        fewest = size // self._checkpoint.vocabulary.longest
        if fewest > self._context:
            raise InputError(
                f"{member} has {size} bytes, which is at least {_tokens(fewest)}, but the model's context is limited to "
                f"{self._context} tokens",
                member=member,
                code="input_too_long",
            )


def _tokens(count: int) -> str:
    return f"{count} token{'' if count == 1 else 's'}"
