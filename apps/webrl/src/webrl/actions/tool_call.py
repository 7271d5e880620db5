"""Calls of tools, as models write them: JSON of several kinds, some of it mended, and XML.

Invariants:

* what is mended is what can be read in one way only: brackets that the end lacks after a whole value,
  or that it has too many of; nothing inside a string or a number is ever completed;
* names of tools do not matter, verbs and arguments do: `computer_use` of Qwen, with `action` among the
  arguments, and a tool for each verb are read alike, and an unknown argument is refused by name;
* `pixels` of a scroll are units of the grid and count upwards, as Qwen's models are taught.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from webrl.actions.action import GRID_SIZE, Action, ActionMode
from webrl.actions.build import (
    Argument,
    RejectedReply,
    build_action,
    checked_text,
    checked_verb,
)

_VERBS = {
    "click": "left_click",
    "mouse_move": "hover",
    "left_click_drag": "drag",
    "key": "press",
    "hotkey": "press",
    "keypress": "press",
    "terminate": "answer",
    "finish": "answer",
    "hscroll": "scroll",
    "goto": "navigate",
    "visit_url": "navigate",
    "open_url": "navigate",
    "back": "go_back",
    "history_back": "go_back",
}
"""Verbs of other tools that have another name here."""
_FIELDS = (
    "mark",
    "start_coordinate",
    "coordinate",
    "x",
    "y",
    "to_mark",
    "to_coordinate",
    "to_x",
    "to_y",
    "dx",
    "dy",
    "text",
    "key",
    "keys",
    "url",
)
"""Arguments of a tool call, in the order in which a call by position takes them."""
_TEXTS = frozenset({"text", "key", "keys", "url"})
_SAME = {
    "coordinates": "coordinate",
    "position": "coordinate",
    "point": "coordinate",
    "start": "start_coordinate",
    "end": "coordinate",
    "end_coordinate": "coordinate",
    "element": "mark",
    "element_id": "mark",
    "index": "mark",
    "id": "mark",
    "scroll_direction": "direction",
    "content": "text",
    "value": "text",
    "answer": "text",
}
"""Other names of arguments."""
_DIRECTIONS = {
    "down": (0, GRID_SIZE // 2),
    "up": (0, -GRID_SIZE // 2),
    "right": (GRID_SIZE // 2, 0),
    "left": (-GRID_SIZE // 2, 0),
}
"""Half a page, where a call says only whither."""
_AROUND = r"(?:[\s\[\](){}]|<[^<>]{1,20}>)*"
_NUMBERS = re.compile(rf"{_AROUND}(-?\d{{1,9}}(?:\.0+)?(?:[\s,;]+-?\d{{1,9}}(?:\.0+)?)*){_AROUND}")
_FUNCTION = re.compile(r"<function=([\w.-]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([\w.-]+)>(.*?)</parameter>", re.DOTALL)
_FORM = 'tool call must have the form {"name": ..., "arguments": {...}}'


def parse_tool_call(body: str, mode: ActionMode) -> Action:
    """Return the action that the text of one call spells.

    Raises:
        RejectedReply: It spells none.
    """
    call = _decoded(body)
    if isinstance(call, list) and len(calls := cast("list[object]", call)) > 0:
        if len(calls) > 1:
            raise RejectedReply("reply must hold one tool call, got several")
        call = calls[0]
    if not isinstance(call, dict):
        raise RejectedReply(_FORM)
    fields = cast("dict[str, Any]", call)
    if isinstance(inner := fields.get("function"), dict) and "name" not in fields:
        fields = cast("dict[str, Any]", inner)  # as an OpenAI-compatible server wraps it
    arguments: object = fields.get("arguments", fields.get("parameters"))
    if isinstance(arguments, str):
        arguments = _decoded(arguments)
    if arguments is None and "action" in fields:
        arguments, fields = fields, {}
    if not isinstance(arguments, dict):
        raise RejectedReply(_FORM)
    return action_of_call(str(fields.get("name")), cast("dict[str, Any]", arguments), mode)


def action_of_call(tool: str, arguments: Mapping[str, Any], mode: ActionMode) -> Action:
    """Return the action of a call.

    Args:
        tool: Name of the tool: the verb, unless `arguments` has `action`.

    Raises:
        RejectedReply: There is no such verb, or it takes other arguments.
    """
    given = {_SAME.get(name, name): value for name, value in arguments.items()}
    verb = str(given.pop("action", tool))
    name = _VERBS.get(verb, verb)
    checked_verb(name, mode)
    if name == "wait":
        given.pop("time", None)
    if verb == "terminate":
        given.pop("status", None)
        given.setdefault("text", "")
    if name == "scroll":
        given = _scrolled(given, mode, is_sideways=verb == "hscroll")
    if verb == "left_click_drag" and mode == "coordinates" and "start_coordinate" not in given:
        raise RejectedReply("left_click_drag needs start_coordinate and coordinate")
    unknown = sorted(given.keys() - set(_FIELDS))
    if unknown:
        raise RejectedReply(f"{name} takes no argument {unknown[0][:32]!r}")
    if isinstance(keys := given.get("keys"), list):
        given["keys"] = "+".join(map(str, cast("list[object]", keys)))
    values = [(field, given[field]) for field in _FIELDS if field in given]
    flat = [value for field, given in values for value in _values(field, given)]
    return build_action(name, flat, mode)


def _scrolled(given: dict[str, Any], mode: ActionMode, *, is_sideways: bool) -> dict[str, Any]:
    """Return the arguments of a scroll with its place and both distances."""
    distance = _distance(given.pop("pixels", None))
    direction = given.pop("direction", None)
    if distance is not None:
        # Qwen counts upwards, and scrolls wherever the pointer is.
        given |= {"dx": distance, "dy": 0} if is_sideways else {"dx": 0, "dy": -distance}
    elif isinstance(direction, str):
        if direction.lower() not in _DIRECTIONS:
            raise RejectedReply(
                f"direction must be up, down, left or right, got {direction[:32]!r}"
            )
        given["dx"], given["dy"] = _DIRECTIONS[direction.lower()]
    else:
        return given
    place: dict[str, Any] = {"mark": 0}
    if mode == "coordinates":
        is_placed = "coordinate" in given or "x" in given
        place = {} if is_placed else {"coordinate": [GRID_SIZE // 2, GRID_SIZE // 2]}
    return {**place, **given}


def _distance(pixels: object) -> int | None:
    """Return what `pixels` says, within what a scroll can be."""
    if isinstance(pixels, str) and (found := _NUMBERS.fullmatch(pixels)) is not None:
        pixels = float(found.group(1)) if re.fullmatch(r"-?[\d.]+", found.group(1)) else None
    if not isinstance(pixels, int | float) or isinstance(pixels, bool) or pixels != pixels:
        return None
    return int(min(max(pixels, -GRID_SIZE), GRID_SIZE))


def _values(field: str, value: object) -> list[Argument]:
    """Return one argument as a call by position takes it: numbers one by one, a text whole."""
    if isinstance(value, dict):
        inner = cast("dict[str, object]", value)
        if field in _TEXTS or set(inner) != {"x", "y"}:
            raise RejectedReply(f"{field} must be a list of whole numbers or a string")
        return [*_values(field, inner["x"]), *_values(field, inner["y"])]
    if isinstance(value, list | tuple):
        return [v for item in cast("list[object]", value) for v in _flat_value(field, item)]
    return _flat_value(field, value)


def _flat_value(field: str, value: object) -> list[Argument]:
    if isinstance(value, list) and field not in _TEXTS:
        return [_value(item) for item in cast("list[object]", value)]
    if isinstance(value, str) and field not in _TEXTS:
        found = _NUMBERS.fullmatch(value)
        if found is not None:
            return [_value(float(number)) for number in re.split(r"[\s,;]+", found.group(1))]
    return [_value(value)]


def _value(value: object) -> Argument:
    if isinstance(value, str):
        return checked_text("tool call", value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > 999_999:
        raise RejectedReply("arguments of a tool call must be whole numbers or strings")
    return value


def _decoded(body: str) -> object:
    """Return the value that a text holds as JSON, or as one of its near relatives.

    Raises:
        RejectedReply: It holds none.
    """
    function = _FUNCTION.fullmatch(body)
    if function is not None:
        # Without the unclosed rest, which every opening tag would be followed through.
        found = _PARAMETER.findall(function.group(2).rpartition("</parameter>")[0] + "</parameter>")
        return {"name": function.group(1), "arguments": {k: _parameter(v) for k, v in found}}
    for text in _candidates(body):
        try:
            return json.loads(text, strict=False)
        except (ValueError, RecursionError):
            continue
    try:
        return ast.literal_eval(body)
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError) as error:
        raise RejectedReply("tool call must be a JSON object") from error


def _parameter(text: str) -> object:
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return text.strip("\n")


def _candidates(body: str) -> Sequence[str]:
    """Return the text, then the text with a comma too many gone and its brackets in balance."""
    found = [body]
    open_brackets, end, last = "", len(body), ""
    for place, character in _outside_strings(body):
        last = character if not character.isspace() else last
        if character in "{[":
            open_brackets += "}" if character == "{" else "]"
        elif character in "}]":
            if not open_brackets.endswith(character):
                end = place  # one too many
                break
            open_brackets = open_brackets[:-1]
    if end < len(body) and not body[end:].strip("}] \n\t"):
        found.append(body[:end])
    elif open_brackets and last in '"}]':
        found.append(body + open_brackets[::-1])
    return [*found, *(re.sub(r",(\s*[\]}])", r"\1", text) for text in found if '"' in text)]


def _outside_strings(body: str) -> Sequence[tuple[int, str]]:
    """Return the characters of JSON that are in no string, each with its place; `'` opens one."""
    found: list[tuple[int, str]] = []
    is_inside = is_escaped = False
    for place, character in enumerate(body):
        if is_inside:
            is_inside = is_escaped or character != '"'
            is_escaped = not is_escaped and character == "\\"
            if not is_inside:
                found.append((place, character))
        elif character == '"':
            is_inside = True
            found.append((place, "'"))  # stands for an open string
        else:
            found.append((place, character))
    return found
