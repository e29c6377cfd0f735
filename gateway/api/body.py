"""Reading a request body once, within a bound, and turning it into a model; every mistake becomes an ApiError.

A pydantic location is walked along the data, so that union tags vanish and the path is the client's own:
`messages[0].content[1].image_url.url`. Of the errors of a union's branches the deepest is told.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from gateway.api.settings import ApiSettings
from gateway.at_most import at_most
from gateway.errors import ApiError

Model = TypeVar("Model", bound=BaseModel)
DRAIN_TIMEOUT_S: Final = 2.0
SHOWN_CHARACTERS: Final = 80
ESCAPES: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[dD][89a-fA-F][0-9a-fA-F]{2}|.)", re.DOTALL
)
"""A whole surrogate pair, half of one, or the beginning of any other escape: only the second is six bytes long."""
LONE_HALF: Final = rb"\ufffd"
JOIN_OFF_LOOP_BYTES: Final = 1 << 20


async def read_body(request: Request, settings: ApiSettings) -> bytes:
    """The whole body. Above `max_body_bytes`: up to `drain_body_bytes` more are read and dropped, so that a reset does not
    eat the refusal, and the connection is closed. A body that stands still, or crawls, is a 408."""
    limit, loop = settings.max_body_bytes, asyncio.get_running_loop()
    began = loop.time()
    declared = request.headers.get("content-length", "")
    size = int(declared) if declared.isascii() and declared.isdigit() else 0
    pieces: list[bytes] = []
    more = True
    if size <= limit:
        size = 0
        while more and size <= limit:
            slowest = began + settings.body_idle_s + size / settings.body_min_bytes_per_s
            try:
                piece, more = await at_most(min(loop.time() + settings.body_idle_s, slowest), _receive(request))
            except TimeoutError:
                raise _too_slow(settings, size) from None
            size += len(piece)
            pieces.append(piece)
        if size <= limit:
            return await _joined(pieces, size)
    pieces.clear()
    if more and "100-continue" not in request.headers.get("expect", "").lower():
        await drop_rest(request, settings.drain_body_bytes)
    message = f"the request body is larger than {limit} bytes"
    raise ApiError("request_too_large", message, headers={"connection": "close"})


async def _joined(pieces: list[bytes], size: int) -> bytes:
    """Megabytes in a thread, which lets the others run while it copies them."""
    if len(pieces) == 1:
        return pieces[0]
    if size < JOIN_OFF_LOOP_BYTES:
        return b"".join(pieces)
    from gateway.media.preproc import join

    return await asyncio.to_thread(join, pieces)


def _too_slow(settings: ApiSettings, size: int) -> ApiError:
    message = (
        f"the request body comes too slowly: {size} bytes so far; nothing for {settings.body_idle_s:g} s, or less than "
        f"{settings.body_min_bytes_per_s} bytes per second, is not waited for"
    )
    return ApiError("request_timeout", message, headers={"connection": "close"})


async def _receive(request: Request) -> tuple[bytes, bool]:
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ApiError("client_closed_request", "the client left while sending the body")
    return message.get("body", b""), message.get("more_body", False)


async def drop_rest(request: Request, budget: int) -> None:
    """Reads and drops up to `budget` bytes of a body that has not ended, for a short time."""
    more = True
    try:
        async with asyncio.timeout(DRAIN_TIMEOUT_S):
            while more and budget > 0:
                piece, more = await _receive(request)
                budget -= max(1, len(piece))
    except TimeoutError:
        return


def require_json(request: Request) -> None:
    """A body of another declared type, or a compressed one, is a 415; none declared is taken as JSON."""
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        message = f"content-encoding {coding[:SHOWN_CHARACTERS]!r}: send the body as it is"
        raise ApiError("unsupported_media_type", message)
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind not in ("application/json", "") and not kind.endswith("+json") and kind != "text/plain":
        raise ApiError("unsupported_media_type", f"content-type {kind[:SHOWN_CHARACTERS]!r}: send application/json")


def parse(model: type[Model], body: bytes) -> Model:
    """Validates JSON bytes. Raises ApiError with `param`."""
    if b"NaN" in body or b"Infinity" in body:  # the validator would take them where anything is allowed
        _loaded(whole_characters(body))
    try:
        return model.model_validate_json(body)
    except ValidationError as e:
        if e.errors(include_url=False)[0]["type"] == "json_invalid" and (whole := whole_characters(body)) != body:
            return parse(model, whole)
        raise _as_api_error(e, body, model) from None


def whole_characters(body: bytes) -> bytes:
    """JSON bytes with U+FFFD for each escaped half of a surrogate pair whose other half is missing: what clients send
    that cut text by UTF-16 units. Refusing it would end a conversation for good, since its history is sent again."""
    return ESCAPES.sub(lambda found: LONE_HALF if len(found[0]) == len(LONE_HALF) else found[0], body)


def _loaded(body: bytes) -> Any:
    """Raises ApiError for what is no JSON: NaN and infinities too."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as e:
        raise ApiError("invalid_json", f"the body is not valid JSON: {e}") from None


async def parse_off_loop(model: type[Model], body: bytes, offload_bytes: int) -> Model:
    """`parse`, in a thread when the body is larger than `offload_bytes`."""
    return await asyncio.to_thread(parse, model, body) if len(body) > offload_bytes else parse(model, body)


def _as_api_error(error: ValidationError, body: bytes, model: type[BaseModel]) -> ApiError:
    errors = error.errors(include_url=False, include_context=True)
    if errors[0]["type"] == "json_invalid":
        return ApiError("invalid_json", f"the body is not valid JSON: {errors[0]['ctx']['error']}")
    data = _loaded(body)
    if not isinstance(data, dict):
        return ApiError("invalid_json", "the body must be a JSON object")
    paths = [path_of(e["loc"], data, missing=e["type"] == "missing") for e in errors]
    best = max(range(len(errors)), key=lambda i: (_rank(errors[i]["type"], len(paths[i])), -i))
    chosen, param = errors[best], spell(paths[best])
    if chosen["type"] == "union_tag_not_found":
        chosen["ctx"]["expected_tags"] = _expected_tags(chosen, data, paths[best], model)
    if chosen["type"] == "missing" or _is_absent(chosen, paths[best], model):
        return ApiError("missing_required_parameter", f"missing required parameter: '{param}'", param=param)
    if chosen["type"] == "extra_forbidden":
        return ApiError("unknown_parameter", f"unknown parameter: '{param}'", param=param)
    cause = chosen.get("ctx", {}).get("error")
    if isinstance(cause, ApiError):
        return cause
    code = "string_above_max_length" if chosen["type"] == "string_too_long" else "invalid_value"
    return ApiError(code, f"'{param}': {_sentence(chosen)}", param=param)


def _is_absent(error: Any, path: Sequence[int | str], model: type[BaseModel]) -> bool:
    """Whether a field that must be there is null, which means absent."""
    field = model.model_fields.get(str(path[0])) if len(path) == 1 else None
    return error["input"] is None and field is not None and field.is_required()


def _expected_tags(error: Any, data: Any, path: Sequence[int | str], model: type[BaseModel]) -> str:
    """What a missing discriminator may be: pydantic tells it only of a wrong one, so it is asked again with that."""
    holder = data
    for part in path:
        holder = holder[part]
    holder[error["ctx"]["discriminator"].strip("'")] = "?"
    try:
        model.model_validate_json(orjson.dumps(data))
    except ValidationError as e:
        for other in e.errors(include_url=False):
            if other["loc"] == error["loc"] and other["type"] == "union_tag_invalid":
                return str(other["ctx"]["expected_tags"])
    except TypeError:  # integers beyond 64 bits elsewhere in the body
        pass
    return ""


def _rank(kind: str, depth: int) -> tuple[bool, int, bool]:
    """Of the errors of a union's branches: one too many tells more than what is wrong with each of them; then the deepest;
    then the branch that takes values of this type."""
    return kind == "too_long", depth, not kind.endswith("_type")


def _sentence(error: Any) -> str:
    context = error.get("ctx", {})
    name = context.get("discriminator", "").strip("'")
    match error["type"]:
        case "union_tag_invalid":
            return f"'{name}' is '{context['tag'][:SHOWN_CHARACTERS]}'; it must be one of {context['expected_tags']}"
        case "union_tag_not_found":
            expected = context["expected_tags"]
            return f"'{name}' is missing" + (f"; it must be one of {expected}" if expected else "")
        case "too_long":
            given = f", got {context['actual_length']}" if context.get("actual_length") else ""
            return f"at most {context['max_length']} entries are allowed{given}"
        case "too_short":
            return f"at least {context['min_length']} entry is needed, got {context['actual_length']}"
        case "string_too_long":
            return f"at most {context['max_length']} characters are allowed, got {len(error['input'])}"
    text: str = error["msg"].removeprefix("Value error, ")
    text = text[:1].lower() + text[1:]
    value = error.get("input")
    short = (isinstance(value, str) and len(value) <= 40) or (isinstance(value, int) and abs(value) < 1e30)
    if short or isinstance(value, float) or value is None:
        shown = json.dumps(value)  # orjson refuses integers beyond 64 bits
        return f"{text}, got {shown}"
    return f"{text}, got {type(value).__name__}"


def path_of(loc: Sequence[int | str], data: Any, *, missing: bool) -> list[int | str]:
    """The part of a pydantic location that exists in `data`; a missing last name is kept."""
    path: list[int | str] = []
    for i, part in enumerate(loc):
        if part in data if isinstance(data, dict) else isinstance(part, int) and _has(data, part):
            data = data[part]
        elif not (missing and i == len(loc) - 1):
            continue
        path.append(part)
    return path


def _has(data: Any, index: int) -> bool:
    return isinstance(data, list) and index < len(data)


def spell(path: Sequence[int | str]) -> str:
    out = ""
    for part in path:
        out += f"[{part}]" if isinstance(part, int) else (f".{part}" if out else str(part))
    return out or "body"
