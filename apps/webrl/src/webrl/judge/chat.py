"""Questions to an OpenAI-compatible server: bounded, retried, cached by content.

Invariants:

* an answer is what its reader accepts; a request that fails, is late, or is answered out of form
  is sent again `max_retries` times, and then there is no answer but a `JudgeError`;
* a refusal that a second request can not change (401, 404, ...) is not retried;
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
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary

import aiohttp
import msgspec
from awrl_rollout import Clock, RealClock, RetryPolicy

from webrl.judge.answer import MalformedAnswerError
from webrl.judge.config import JudgeConfig
from webrl.judge.errors import JudgeError

if TYPE_CHECKING:
    from types import TracebackType

_T = TypeVar("_T")
_LOGGER = logging.getLogger(__name__)

_RETRIED = frozenset({408, 409, 425, 429})
"""Statuses below 500 that another request may not meet."""
_SHOWN_LENGTH = 200
_MAX_ANSWER_BYTES = 1 << 22
"""More is no answer to a yes-or-no question."""
_REMINDER = "\n\nYour last answer was not of this form. Answer with the JSON object alone."


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One request: text and pictures."""

    system: str
    """Who the model is."""
    text: str
    """What is asked."""
    images: tuple[str, ...] = ()
    """`data:` addresses, in order."""


class _Choice(msgspec.Struct):
    class Message(msgspec.Struct):
        content: str

    message: Message


class _Completion(msgspec.Struct):
    choices: list[_Choice]


class _RetryableError(Exception):
    """Internal: a request failed in a way that another may not."""

    def __init__(self, reason: str, after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.after_s = after_s


class ChatClient:
    """Asks one server. Used as `async with ChatClient(config) as client:`."""

    def __init__(
        self,
        config: JudgeConfig,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        """Prepare the client; nothing is sent yet.

        Args:
            config: Where the server is, and the limits.
            clock: Waits between retries; the real one when `None`.
            rng: Jitter of those waits.
            retry: Their lengths; one second, doubling, when `None`.

        Raises:
            JudgeError: the environment lacks the key.
        """
        self._config = config
        self._clock = clock or RealClock()
        self._rng = rng or random.Random()
        self._retry = retry or RetryPolicy(max_retries=config.max_retries)
        self._key = _key(config)
        self._slots = asyncio.Semaphore(config.max_concurrent)
        self._answers: OrderedDict[str, str] = OrderedDict()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._session: aiohttp.ClientSession | None = None
        self.num_requests = 0
        """Requests sent, retries included."""
        self.num_cached = 0
        """Questions answered without one."""

    async def __aenter__(self) -> ChatClient:
        """Open the connections."""
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._config.request_timeout_s),
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
        )
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def ask(self, question: Question, read: Callable[[str], _T]) -> _T:
        """Return what `read` makes of the answer.

        Args:
            question: What is asked.
            read: Raises `MalformedAnswerError` for a text that is no answer.

        Raises:
            JudgeError: there is no answer, after all retries.
        """
        body = self._body(question, question.text)
        key = hashlib.sha256(body).hexdigest()
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            if key in self._answers:
                self._answers.move_to_end(key)
                self.num_cached += 1
                return read(self._answers[key])
            text, value = await self._ask(question, body, read)
            self._answers[key] = text
            while len(self._answers) > self._config.max_cached:
                self._answers.popitem(last=False)
            return value

    async def _ask(
        self, question: Question, body: bytes, read: Callable[[str], _T]
    ) -> tuple[str, _T]:
        """Send until an answer is accepted."""
        attempts = self._config.max_retries + 1
        for number in range(1, attempts + 1):
            wait_s = 0.0
            try:
                async with self._slots:
                    text = await self._send(body)
                return text, read(text)
            except MalformedAnswerError as error:
                reason = str(error)
                body = self._body(question, question.text + _REMINDER)
            except _RetryableError as error:
                reason, wait_s = str(error), error.after_s
            _LOGGER.info("judge, attempt %d of %d: %s", number, attempts, reason)
            if number == attempts:
                raise JudgeError(f"the judge gave no answer in {attempts} attempts: {reason}")
            await self._clock.sleep(max(wait_s, self._retry.delay_s(number, self._rng)))
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _send(self, body: bytes) -> str:
        if self._session is None:
            raise RuntimeError("ask must be called inside of `async with`. Enter it first.")
        self.num_requests += 1
        url = f"{self._config.url.rstrip('/')}/chat/completions"
        headers = {"Content-Type": "application/json"}
        try:
            async with self._session.post(url, data=body, headers=headers) as answer:
                content = await _whole(answer.content)
                status, after = answer.status, answer.headers.get("Retry-After", "")
        except TimeoutError as error:
            limit = self._config.request_timeout_s
            raise _RetryableError(f"no answer within {limit:g} s") from error
        except aiohttp.ClientError as error:
            raise _RetryableError(self._shown(f"{type(error).__name__}: {error}")) from error
        if status == 200:
            return _content(content)
        reason = self._shown(f"status {status}: {content.decode('utf-8', 'replace')}")
        if status >= 500 or status in _RETRIED:
            raise _RetryableError(reason, self._after_s(after))
        raise JudgeError(f"the judge refused the request with {reason}")

    def _after_s(self, header: str) -> float:
        """Return the wait that the server asks for; only seconds are understood."""
        return min(float(header), self._config.deadline_s) if header.isdecimal() else 0.0

    def _shown(self, text: str) -> str:
        if self._key:
            text = text.replace(self._key, "***")
        return text[:_SHOWN_LENGTH]

    def _body(self, question: Question, text: str) -> bytes:
        content: list[object] = [{"type": "text", "text": text}]
        content += [{"type": "image_url", "image_url": {"url": url}} for url in question.images]
        config = self._config
        settings = {
            "temperature": config.temperature,
            config.token_limit_field: config.max_answer_tokens,
        }
        return msgspec.json.encode(
            {
                "model": config.model,
                "messages": [
                    {"role": "system", "content": question.system},
                    {"role": "user", "content": content},
                ],
                **{name: value for name, value in settings.items() if value is not None},
            }
        )


def _key(config: JudgeConfig) -> str | None:
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
    """Return all bytes of an answer.

    Raises:
        MalformedAnswerError: there are too many of them.
    """
    body = bytearray()
    async for chunk in stream.iter_any():
        body += chunk
        if len(body) > _MAX_ANSWER_BYTES:
            raise MalformedAnswerError(f"the answer has more than {_MAX_ANSWER_BYTES} bytes")
    return bytes(body)


def _content(body: bytes) -> str:
    """Return the text of the first choice."""
    try:
        return msgspec.json.decode(body, type=_Completion).choices[0].message.content
    except (msgspec.DecodeError, IndexError) as error:
        raise MalformedAnswerError(f"the server's answer is no chat completion: {error}") from error
