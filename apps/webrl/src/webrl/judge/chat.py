"""Questions to an OpenAI-compatible server: bounded, retried, cached by content.

Invariants:

* an answer is what its reader accepts and what the model ended by itself (`finish_reason`); a request
  that fails, is late, or is answered out of form is sent again `max_retries` times, and then there is
  no answer but a `JudgeError`, a `JudgeDownError` where the server is to blame;
* after an answer that the token limit cut the limit is doubled, up to `MOST_GROWTH` times;
* a refusal that a second request can not change (401, 404, ...) is not retried;
* a verdict's deadline runs while a request of its questions is under way or waits to be sent again,
  never while it waits for one of the `max_concurrent` places or for an equal question of another;
* equal questions are asked once, also when they come at one moment; only accepted answers are kept;
* the key is read from the environment, lives in one request header, and is in no message: what a
  server says about it is blotted out.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import random
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar
from weakref import WeakValueDictionary

import aiohttp
import msgspec
from awrl_rollout import RetryPolicy

from webrl.config import JudgeSection
from webrl.errors import JudgeError
from webrl.judge.verdict import JudgeUsage

AnswerT = TypeVar("AnswerT")
logger = logging.getLogger(__name__)

MAX_CACHED = 10_000
"""Answers kept: about as many as a day of judging asks, at a kilobyte each."""
MAX_ANSWER_BYTES = 1 << 22
"""More is no answer to a yes-or-no question."""
RETRIED_STATUSES = frozenset({408, 409, 425, 429})
"""Statuses below 500 that another request may not meet."""
SHOWN_LENGTH = 200
"""Characters of a server's own words in a message."""
MOST_GROWTH = 4
"""How far the limit of tokens grows for a question whose answers it cuts."""
REMINDER = "\n\nYour last answer was not of this form. Answer with the JSON object alone."


class MalformedAnswerError(ValueError):
    """The model did not answer in form. Internal to the judge: it asks again."""


class _TruncatedError(MalformedAnswerError):
    """The limit of tokens cut the answer."""


class JudgeDownError(JudgeError):
    """The server can not be reached or is overloaded. Internal to the judge: it waits."""


class _RetryableError(Exception):
    """A request failed in a way that another may not."""

    def __init__(self, reason: str, after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.after_s = after_s


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One request: text and pictures."""

    kind: str
    """`blocked`, `relevant`, `supported`, `fact` or `reference`: which model is asked."""
    system: str
    """Who the model is."""
    text: str
    """What is asked."""
    images: tuple[str, ...] = ()
    """`data:` addresses, in order."""


class Stopwatch:
    """The time that a verdict may take, counted while at least one of its questions is at work.

    Args:
        limit_s: The limit in seconds.
        usage: Added to with each answer.
    """

    def __init__(self, limit_s: float, usage: JudgeUsage | None = None) -> None:
        self.limit_s = limit_s
        self.usage = usage or JudgeUsage()
        self._spent_s = 0.0
        self._num_running = 0
        self._since_s = 0.0

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Count the time of the block.

        Raises:
            JudgeError: The limit is used up.
        """
        clock = asyncio.get_running_loop().time
        if not self._num_running:
            self._since_s = clock()
        self._num_running += 1
        try:
            async with asyncio.timeout_at(self._since_s + self.limit_s - self._spent_s):
                yield
        except TimeoutError as error:
            raise JudgeError(f"the judge gave no verdict within {self.limit_s:g} s") from error
        finally:
            self._num_running -= 1
            if not self._num_running:
                self._spent_s += clock() - self._since_s


class _Part(msgspec.Struct):
    text: str = ""


class _Choice(msgspec.Struct):
    class Message(msgspec.Struct):
        content: str | list[_Part] | None = None

    message: Message
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None


class ChatClient:
    """Asks one server. Made inside of a running event loop, and ended by `aclose`.

    Args:
        config: Where the server is, and the limits.
        retry: Waits between retries; one second, doubling, when None.
        max_cached: Answers kept.

    Raises:
        JudgeError: The environment lacks the key.
    """

    def __init__(
        self,
        config: JudgeSection,
        *,
        retry: RetryPolicy | None = None,
        max_cached: int = MAX_CACHED,
    ) -> None:
        self._config = config
        self._key = _key(config)
        self._retry = retry or RetryPolicy()
        self._max_cached = max_cached
        self._slots = asyncio.Semaphore(config.max_concurrent)
        self._answers: OrderedDict[str, str] = OrderedDict()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=config.request_timeout_s),
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def ask(
        self, question: Question, read: Callable[[str], AnswerT], stopwatch: Stopwatch
    ) -> AnswerT:
        """Return what `read` makes of the answer.

        Args:
            read: Raises `MalformedAnswerError` for a text that is no answer.
            stopwatch: Counts the time of all questions of one verdict.

        Raises:
            JudgeError: There is no answer, after all retries or in time.
        """
        body = self._body(question)
        key = hashlib.sha256(body).hexdigest()
        async with self._locks.setdefault(key, asyncio.Lock()):
            if key in self._answers:
                self._answers.move_to_end(key)
                return read(self._answers[key])
            self._answers[key], value = await self._ask(question, body, read, stopwatch)
            if len(self._answers) > self._max_cached:
                self._answers.popitem(last=False)
            return value

    async def _ask(
        self,
        question: Question,
        body: bytes,
        read: Callable[[str], AnswerT],
        stopwatch: Stopwatch,
    ) -> tuple[str, AnswerT]:
        """Send until an answer is accepted."""
        num_attempts = self._config.max_retries + 1
        reason, growth, is_down = "", 1, False
        for number in range(1, num_attempts + 1):
            wait_s = 0.0
            try:
                async with self._slots, stopwatch.running():
                    text = await self._send(body, stopwatch.usage)
                return text, read(text)
            except MalformedAnswerError as error:
                reason, is_down = str(error), False
                is_cut = isinstance(error, _TruncatedError)
                growth = min(2 * growth, MOST_GROWTH) if is_cut else growth
                body = self._body(question, reminder="" if is_cut else REMINDER, growth=growth)
            except _RetryableError as error:
                reason, wait_s, is_down = str(error), error.after_s, True
            logger.info("judge, attempt %d of %d: %s", number, num_attempts, reason)
            if number < num_attempts:
                backoff_s = self._retry.delay_s(number, random.Random())
                async with stopwatch.running():
                    await asyncio.sleep(max(wait_s, backoff_s))
        error_type = JudgeDownError if is_down else JudgeError
        raise error_type(f"the judge gave no answer in {num_attempts} attempts: {reason}")

    async def _send(self, body: bytes, usage: JudgeUsage) -> str:
        """Return the text of one completion, and add what it took to `usage`."""
        url = f"{self._config.url or ''}".rstrip("/") + "/chat/completions"
        headers = {"Content-Type": "application/json"}
        try:
            async with self._session.post(url, data=body, headers=headers) as answer:
                content = await _whole(answer.content)
        except TimeoutError as error:
            limit = self._config.request_timeout_s
            raise _RetryableError(f"no answer within {limit:g} s") from error
        except aiohttp.ClientError as error:
            raise _RetryableError(self._shown(f"{type(error).__name__}: {error}")) from error
        if answer.status == 200:
            return self._text(content, usage)
        reason = self._shown(f"status {answer.status}: {content.decode('utf-8', 'replace')}")
        if answer.status >= 500 or answer.status in RETRIED_STATUSES:
            # Of the two forms that the header may have, only seconds are understood.
            after = answer.headers.get("Retry-After", "")
            after_s = float(after) if after.isdecimal() else 0.0
            raise _RetryableError(reason, min(after_s, self._config.deadline_s))
        raise JudgeError(f"the judge refused the request with {reason}")

    def _shown(self, text: str) -> str:
        return (text.replace(self._key, "***") if self._key else text)[:SHOWN_LENGTH]

    def _text(self, body: bytes, usage: JudgeUsage) -> str:
        """Return the text of the first choice."""
        try:
            completion = msgspec.json.decode(body, type=_Completion)
            choice = completion.choices[0]
        except (msgspec.DecodeError, IndexError) as error:
            raise MalformedAnswerError(
                f"the server's answer is no chat completion: {error}"
            ) from error
        self._count(completion.usage, usage)
        if choice.finish_reason == "length":
            raise _TruncatedError(
                "the limit of tokens cut the answer (raise judge.max_answer_tokens)"
            )
        content = choice.message.content
        if not content:
            raise MalformedAnswerError(f"the answer is empty ({choice.finish_reason})")
        return content if isinstance(content, str) else "".join(part.text for part in content)

    def _count(self, told: _Usage | None, usage: JudgeUsage) -> None:
        usage.num_requests += 1
        if told is None:
            return
        tokens_in, tokens_out = told.prompt_tokens or 0, told.completion_tokens or 0
        # Some servers leave the reasoning out of what they call the completion.
        tokens_out = max(tokens_out, (told.total_tokens or 0) - tokens_in)
        usage.tokens_in += tokens_in
        usage.tokens_out += tokens_out
        prices = self._config.input_price, self._config.output_price
        usage.cost += (tokens_in * prices[0] + tokens_out * prices[1]) / 1e6

    def _body(self, question: Question, *, reminder: str = "", growth: int = 1) -> bytes:
        config = self._config
        text = question.text + reminder
        images = [{"type": "image_url", "image_url": {"url": url}} for url in question.images]
        limit = config.max_answer_tokens
        settings = {
            "temperature": config.temperature,
            config.token_limit_field: None if limit is None else limit * growth,
        }
        extra = f"\n\n{config.instructions}" if config.instructions else ""
        return msgspec.json.encode(
            {
                "model": config.model_for(question.kind),
                "messages": [
                    {"role": "system", "content": question.system + extra},
                    {"role": "user", "content": [{"type": "text", "text": text}, *images]},
                ],
                **{name: value for name, value in settings.items() if value is not None},
            }
        )


def _key(config: JudgeSection) -> str | None:
    name = config.api_key_env
    if name is None:
        return None
    key = os.environ.get(name, "").strip()
    if not key:
        raise JudgeError(
            f"the environment variable {name} must hold the judge's key, got nothing. Set it where "
            "the workers start, or unset judge.api_key_env for a server without a key."
        )
    return key


async def _whole(stream: aiohttp.StreamReader) -> bytes:
    """Return all bytes of an answer, unless there are too many."""
    body = bytearray()
    async for chunk in stream.iter_any():
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise MalformedAnswerError(f"the answer has more than {MAX_ANSWER_BYTES} bytes")
    return bytes(body)
