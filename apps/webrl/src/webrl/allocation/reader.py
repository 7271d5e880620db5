"""Reads `allocation_mode` strings.

Invariant: reading is total: a value, or a `ConfigError` that points at the character.

Grammar (blanks are allowed around the operators)::

    expression := component ("+" component)*     separate devices
    component  := role ("|" role)*               shared devices; binds tighter than "+"
    role       := backend [ "[" name "]" ] ":" dims
    dims       := (letter number)+               inference: d t p     training: d t p c e

`d` counts data-parallel members, `t` tensor, `p` pipeline, `c` context parallel ones; `e` splits
the experts over devices that are already counted. A missing letter counts 1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from webrl.allocation.values import (
    INFERENCE_BACKENDS,
    TRAINING_BACKENDS,
    Allocation,
    Backend,
    Component,
    Dims,
    Role,
)
from webrl.errors import ConfigError, Problem

_REFUSED = {
    "vllm": "this system speaks SGLang's HTTP protocol; use sglang, or embedded without a GPU",
    "megatron": "this system trains with FSDP2; use fsdp",
    "archon": "this system trains with FSDP2; use fsdp",
}
_LETTERS = {"inference": "dtp", "training": "dtpce"}
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_NUMBER = re.compile(r"[0-9]+")
MAX_DIGITS = 6
"""A million members is past any cluster; longer numbers are a slip of the keyboard."""


@dataclass(slots=True)
class _RawRole:
    """A role as read, before names and devices are settled."""

    backend: Backend
    name: str | None
    dims: Dims
    start: int
    name_start: int


class _Reader:
    """Reads the string left to right; `position` is always the next unread character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def fail(self, message: str, position: int | None = None) -> ConfigError:
        """Return the error, with a caret under the place."""
        where = self.position if position is None else position
        shown = "".join(" " if character.isspace() else character for character in self.text)
        drawn = f"{message}\n  {shown}\n  {' ' * where}^"
        return ConfigError([Problem(key="allocation_mode", message=drawn)])

    def skip_blanks(self) -> None:
        while self.position < len(self.text) and self.text[self.position].isspace():
            self.position += 1

    def peek(self) -> str:
        return self.text[self.position : self.position + 1]

    def found(self) -> str:
        return repr(self.peek()) if self.peek() else "the end"

    def take(self, pattern: re.Pattern[str]) -> str | None:
        match = pattern.match(self.text, self.position)
        if match is None:
            return None
        self.position = match.end()
        return match.group()

    def read_expression(self) -> list[list[_RawRole]]:
        components = [self.read_component()]
        while self.peek() == "+":
            self.position += 1
            components.append(self.read_component())
        if self.peek():
            raise self.fail(f"expects '+' (separate devices) or '|' (shared), got {self.found()}.")
        return components

    def read_component(self) -> list[_RawRole]:
        roles = [self.read_role()]
        while self.peek() == "|":
            self.position += 1
            roles.append(self.read_role())
        return roles

    def read_role(self) -> _RawRole:
        self.skip_blanks()
        start = self.position
        backend = self.read_backend()
        name, name_start = self.read_name()
        if self.peek() != ":":
            fix = " Write backend:dims with a ':', not a '.'." if self.peek() == "." else ""
            raise self.fail(f"expects ':' before the dims, got {self.found()}.{fix}")
        self.position += 1
        dims = self.read_dims(backend)
        self.skip_blanks()
        return _RawRole(backend, name, dims, start, name_start)

    def read_backend(self) -> Backend:
        start = self.position
        word = self.take(_WORD)
        allowed = ", ".join((*INFERENCE_BACKENDS, *TRAINING_BACKENDS))
        if word is None:
            raise self.fail(f"expects a backend ({allowed}), got {self.found()}.")
        for backend in (*INFERENCE_BACKENDS, *TRAINING_BACKENDS):
            if word == backend:
                return backend
        if word in _REFUSED:
            raise self.fail(f"can not use backend {word!r}: {_REFUSED[word]}.", start)
        if re.fullmatch(r"[dtpce][0-9]+.*", word):
            raise self.fail(
                f"expects a backend ({allowed}) before the dims {word!r}. Write e.g. fsdp:{word}.",
                start,
            )
        raise self.fail(f"expects a backend ({allowed}), got {word!r}.", start)

    def read_name(self) -> tuple[str | None, int]:
        if self.peek() != "[":
            return None, self.position
        self.position += 1
        start = self.position
        name = self.take(_WORD)
        if name is None:
            raise self.fail(f"expects a role name after '[', got {self.found()}.")
        if self.peek() != "]":
            raise self.fail(f"expects ']' after the role name {name!r}, got {self.found()}.")
        self.position += 1
        return name, start

    def read_dims(self, backend: Backend) -> Dims:
        kind = "inference" if backend in INFERENCE_BACKENDS else "training"
        letters = _LETTERS[kind]
        values: dict[str, int] = {}
        first = self.position
        while (letter := self.peek()).isalpha():
            if letter not in letters:
                allowed = " ".join(letters)
                raise self.fail(f"allows the dims {allowed} for {kind}, got {letter!r}.")
            if letter in values:
                raise self.fail(f"names the dim {letter!r} twice in one role.")
            self.position += 1
            start = self.position
            digits = self.take(_NUMBER)
            if digits is None:
                raise self.fail(f"expects a number after {letter!r}, got {self.found()}.")
            if len(digits) > MAX_DIGITS:
                raise self.fail(f"must have {letter} of at most {MAX_DIGITS} digits.", start)
            if int(digits) == 0:
                raise self.fail(f"must have {letter} >= 1, got {letter}{digits}.", start)
            values[letter] = int(digits)
        if not values:
            raise self.fail(f"expects dims such as d4 after ':', got {self.found()}.")
        dims = Dims(**values)
        self.check_dims(backend, dims, first)
        return dims

    def check_dims(self, backend: Backend, dims: Dims, position: int) -> None:
        if backend == "fsdp" and dims.p > 1:
            raise self.fail(f"must have p = 1 with fsdp (no pipeline), got p{dims.p}.", position)
        if backend == "fsdp" and dims.e > 1:
            raise self.fail(f"must have e = 1 with fsdp (no experts), got e{dims.e}.", position)


def _check_names(reader: _Reader, components: list[list[_RawRole]]) -> None:
    """Refuse missing names where they are needed, and names used twice."""
    seen: set[str] = set()
    for component in components:
        for raw in component:
            if raw.name is None and (len(component) > 1 or len(components) > 2):
                why = "shares devices" if len(component) > 1 else "is one of three or more"
                raise reader.fail(
                    f"needs a name for a role that {why}. Write {raw.backend}[name]:...", raw.start
                )
            if raw.name is not None and raw.name in seen:
                raise reader.fail(f"names the role {raw.name!r} twice.", raw.name_start)
            if raw.name is not None:
                seen.add(raw.name)


def _check_sizes(reader: _Reader, component: list[_RawRole]) -> None:
    """Refuse roles of unequal size on shared devices."""
    anchor = component[0].dims.num_devices
    for raw in component[1:]:
        if raw.dims.num_devices != anchor:
            raise reader.fail(
                f"must give roles joined by '|' equal sizes, got {anchor} and "
                f"{raw.dims.num_devices} devices.",
                raw.start,
            )


def parse_allocation(text: str) -> Allocation:
    """Return what an `allocation_mode` string says.

    A nameless role is called `rollout` when it generates and `actor` when it trains.

    Args:
        text: for example `sglang[rollout]:d48+fsdp[actor]:d16`.

    Returns:
        Components in the order written, with device numbers settled.

    Raises:
        ConfigError: The string does not parse; the message draws a caret under the place.
    """
    reader = _Reader(text)
    raws = reader.read_expression()
    _check_names(reader, raws)
    components: list[Component] = []
    first_device = 0
    used: set[str] = set()
    for raw_component in raws:
        _check_sizes(reader, raw_component)
        roles: list[Role] = []
        for raw in raw_component:
            name = raw.name or ("rollout" if raw.backend in INFERENCE_BACKENDS else "actor")
            if name in used:
                raise reader.fail(f"names the role {name!r} twice.", raw.start)
            used.add(name)
            roles.append(
                Role(name=name, backend=raw.backend, dims=raw.dims, first_device=first_device)
            )
        component = Component(roles=tuple(roles))
        components.append(component)
        first_device += component.num_devices
    return Allocation(text=text, components=tuple(components))
