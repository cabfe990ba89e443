"""The tokenize stage: short texts on the event loop, long ones a part at a time in threads of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from service.bundle import Bundle
from service.engine.attention import check_response_size
from service.engine.request import EncodeRequest, Text, TokenList
from service.engine.tokenizer import Encoding, TextTokenizer
from service.errors import NotReadyError, RequestError
from service.manifest import TOKENIZER, TextManifest
from service.runners.base import Array
from service.runners.cpus import usable_cpus
from service.settings import Settings, Truncate


class TextStage:
    """Turns a request's inputs into encodings. Used by one event loop; requests take turns in its threads."""

    def __init__(self, bundle: Bundle[TextManifest], settings: Settings) -> None:
        """Raises StartupError when the bundle's tokenizer cannot be used."""
        manifest = bundle.manifest
        self._tokenizer = TextTokenizer(
            bundle.file(TOKENIZER),
            manifest.text,
            max_text_chars=settings.max_text_chars,
            token_ids=settings.token_ids,
            special_tokens=settings.special_tokens,
        )
        num_types = manifest.encoder_size("num_token_types", 2)
        self._takes_pairs = num_types == 0 or self._tokenizer.num_pair_types <= num_types
        self._max_response_bytes = settings.max_response_bytes
        self._threads = ThreadPoolExecutor(usable_cpus(), thread_name_prefix="qkv-tokenizer")

    async def encode(self, request: EncodeRequest, truncate: Truncate | None) -> list[Encoding]:
        """The encodings of all inputs, in order.

        truncate: what happens over the model's limit, None = there is none. Cancelling ends it after the part at work.
        Raises RequestError naming the input at fault, NotReadyError during a shutdown.
        """
        self._check(request)
        prompt = self._tokenizer.resolve_prompt(request.prompt_name)

        def encode(part: range) -> list[Encoding]:
            return self._tokenizer.encode(
                request.inputs,
                part,
                truncate=truncate,
                prompt=prompt,
                add_special_tokens=request.add_special_tokens,
                with_tokens=request.needs_tokens,
                param=request.param,
                is_single=request.is_single,
            )

        # Long texts would hold the event loop up; short ones cost less than a thread switch.
        if not self._tokenizer.is_costly(request.inputs):
            return encode(range(len(request.inputs)))
        encodings: list[Encoding] = []
        for part in self._tokenizer.parts(request.inputs):
            encodings += await self._in_thread(encode, part)
            if (
                "tokens" in request.include
            ):  # with no limit on their length, the answer's own is what ends a list of long texts
                num_tokens = sum(len(encoding.ids) for encoding in encodings)
                check_response_size(0, 0, self._max_response_bytes, num_tokens=num_tokens)
        return encodings

    def tokens(self, encoding: Encoding) -> TokenList:
        """The tokens of an encoding whose request included them."""
        return self._tokenizer.tokens(encoding)

    def words(self, ids: Array) -> tuple[str, ...]:
        """The tokenizer's own string of each id, empty for one that it does not know. ids: `[n]`"""
        return self._tokenizer.words(ids)

    def close(self) -> None:
        """Take no further parts."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _check(self, request: EncodeRequest) -> None:
        if request.prompt_name is not None and not all(isinstance(item, Text) for item in request.inputs):
            raise RequestError("prompt_name: a prompt goes before text, token ids were given", param="prompt_name")
        if self._takes_pairs:
            return
        if any(isinstance(item, Text) and item.pair is not None for item in request.inputs):
            raise RequestError(
                f"{request.param}: this model knows one kind of token and takes no pairs",
                param=request.param,
                code="unsupported",
            )

    async def _in_thread(self, encode: Callable[[range], list[Encoding]], part: range) -> list[Encoding]:
        try:
            work = self._threads.submit(encode, part)
        except RuntimeError:  # the pool was shut down between two parts
            raise NotReadyError("the server is shutting down", retry_after_s=5, code="draining") from None
        return await asyncio.wrap_future(work)
