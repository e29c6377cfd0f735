"""Tool calls in M3's syntax for a handful of schemas (and made-up ones), and answers that follow a tool's result."""

# ruff: noqa: E501  (tables of wordings)
from __future__ import annotations

import json
import random
from typing import Any

from .prompt import Call, Turn
from .talk_tasks import ME, chat, r
from .words import CITIES, COLOUR_NAMES, NAMES, OBJECTS, READ

Prop = tuple[str, dict[str, Any]]


def schema(rng: random.Random, name: str, text: str, props: list[Prop], required: list[str]) -> dict[str, Any]:
    params: dict[str, Any] = {"type": "object", "properties": {k: dict(v) for k, v in props}}
    for k, v in params["properties"].items():
        if rng.random() < 0.3 and "description" not in v:
            v["description"] = f"The {k.replace('_', ' ')}"
    if rng.random() < 0.85:
        params["required"] = required
    if rng.random() < 0.2:
        params["additionalProperties"] = False
    out: dict[str, Any] = {"name": name}
    if rng.random() < 0.8:
        out["description"] = text
    out["parameters"] = params
    if rng.random() < 0.15:
        out["strict"] = True
    if rng.random() < 0.25:  # some clients sort keys
        out = json.loads(json.dumps(out, sort_keys=True))
    return out


STR, INT, NUM, BOOL = ({"type": t} for t in ("string", "integer", "number", "boolean"))
LIST = {"type": "array", "items": {"type": "string"}}


def weather(rng: random.Random) -> tuple[dict[str, Any], str, Call, str, str]:
    key = r(rng, "city", "city", "location")
    name = r(rng, "get_weather", "get_weather", "get_current_weather", "weather")
    unit = rng.random() < 0.25
    props: list[Prop] = [(key, STR)] + (
        [("unit", {"type": "string", "enum": ["celsius", "fahrenheit"]})] if unit else []
    )
    city = rng.choice(CITIES)
    args = {key: city}
    ask = ""
    if unit and rng.random() < 0.6:
        args["unit"] = rng.choice(("celsius", "fahrenheit"))
        ask = f" in {args['unit']}"
    q = r(rng, f"What is the weather in {city}{ask}?", f"What's the weather like in {city}{ask}?", f"weather in {city}{ask}", f"How is the weather in {city}{ask}?", f"Tell me the weather in {city}{ask}.",
          f"Is it cold in {city}?" if not ask else f"Weather for {city}{ask}, please", f"What is the weather in {city} today{ask}?", f"Give me the weather for {city}{ask}",
          f"What is the temperature in {city}{ask}?", f"Please check the weather in {city}{ask}.", f"Use the tool to get the weather in {city}{ask}.")  # fmt: skip
    t, sky = rng.randint(-10, 40), r(rng, "sunny", "rainy", "cloudy", "windy", "snowy", "foggy", "clear")
    tk = r(rng, "temperature", "temp", "temperature_c", "degrees", "temp_c")
    body: dict[str, Any] = {tk: t}
    if rng.random() < 0.7:
        body[r(rng, "condition", "sky", "conditions", "description", "weather", "summary")] = sky
    if rng.random() < 0.3:
        body = {key: city, **body}
    a = f"It is {t} degrees" + (f" and {sky}" if sky in body.values() else "") + f" in {city}."
    k = rng.random()
    res = json.dumps(body)
    if k < 0.15:
        res, a = f"{t} degrees, {sky}", f"It is {t} degrees and {sky} in {city}."
    elif k < 0.3:
        res, a = f"{sky}, {t} degrees", f"It is {t} degrees and {sky} in {city}."
    return schema(rng, name, "Get the weather of a city", props, [key]), q, Call(name, args), res, a


def calculator(rng: random.Random) -> tuple[dict[str, Any], str, Call, str, str]:
    name, sign = rng.choice((("add", "+"), ("add_numbers", "+"), ("multiply", "*")))
    x, y = (("a", "b"), ("x", "y"))[rng.randrange(2)]
    a, b = rng.randint(0, 999), rng.randint(0, 999)
    word = "plus" if sign == "+" else "times"
    kind = rng.choice((INT, NUM))
    q = r(
        rng,
        f"What is {a} {sign} {b}?",
        f"What is {a} {word} {b}?",
        f"Use the tool to compute {a} {sign} {b}.",
        f"Calculate {a} {sign} {b}",
        f"Compute {a} {word} {b}.",
    )
    v = a + b if sign == "+" else a * b
    res = rng.choice((str(v), json.dumps({"result": v}), json.dumps({"value": v})))
    return (
        schema(rng, name, f"{name.replace('_', ' ').capitalize()} two numbers", [(x, kind), (y, kind)], [x, y]),
        q,
        Call(name, {x: a, y: b}),
        res,
        f"The result is {v}.",
    )


def search(rng: random.Random) -> tuple[dict[str, Any], str, Call, str, str]:
    name = r(rng, "search", "web_search", "search_web", "lookup")
    what = " ".join(rng.sample(OBJECTS + READ, rng.randint(1, 3)))
    q = r(
        rng,
        f"Search for {what}",
        f"Search the web for {what}.",
        f"Look up {what}",
        f"Please search for {what}.",
        f"Find information about {what}",
    )
    fact = f"{what} is {rng.choice(COLOUR_NAMES)}" if rng.random() < 0.5 else f"{rng.randint(1, 99)} results"
    return (
        schema(rng, name, "Search the web", [("query", STR)], ["query"]),
        q,
        Call(name, {"query": what}),
        rng.choice((fact, json.dumps({"result": fact}))),
        f"The result is: {fact}",
    )


def timer(rng: random.Random) -> tuple[dict[str, Any], str, Call, str, str]:
    n = rng.randint(1, 90)
    unit = rng.choice(("minutes", "seconds"))
    loud = rng.random() < 0.3
    props: list[Prop] = [(unit, INT)] + ([("loud", BOOL)] if loud else [])
    args: dict[str, Any] = {unit: n}
    tail = ""
    if loud:
        args["loud"] = rng.random() < 0.5
        tail = " and make it loud" if args["loud"] else " and make it quiet"
    q = r(
        rng,
        f"Set a timer for {n} {unit}{tail}.",
        f"Start a timer of {n} {unit}{tail}",
        f"Timer for {n} {unit}{tail}, please",
        f"Please set a timer for {n} {unit}{tail}",
    )
    return (
        schema(rng, "set_timer", "Start a timer", props, list(args)),
        q,
        Call("set_timer", args),
        r(rng, "ok", '{"status": "ok"}', "done", '{"ok": true}'),
        "It is done.",
    )


def message(rng: random.Random) -> tuple[dict[str, Any], str, Call, str, str]:
    name = r(rng, "send_message", "send_email", "send_mail")
    to, text = rng.choice(NAMES), " ".join(rng.choice(READ) for _ in range(rng.randint(2, 6)))
    tk, bk = r(rng, "to", "recipient"), r(rng, "text", "body", "message")
    many = rng.random() < 0.3
    who: Any = to
    if many:
        who = [to, rng.choice(NAMES)]
        to = " and ".join(who)
    q = r(
        rng,
        f"Send a message to {to}: {text}",
        f"Write to {to}: {text}",
        f"Tell {to}: {text}",
        f'Send "{text}" to {to}',
        f"Please send {to} this message: {text}",
    )
    props: list[Prop] = [(tk, LIST if many else STR), (bk, STR)]
    return (
        schema(rng, name, "Send a message", props, [tk, bk]),
        q,
        Call(name, {tk: who, bk: text}),
        r(rng, "sent", '{"status": "sent"}', "ok"),
        "It is done.",
    )


def light(rng: random.Random) -> tuple[dict[str, Any], str, Call, str, str]:
    room = r(rng, "kitchen", "garden", "bedroom", "hall", "office", "bathroom", "garage")
    name = r(rng, "set_light", "turn_light", "light_switch")
    on = rng.random() < 0.5
    key = r(rng, "on", "state")
    props: list[Prop] = [("room", STR), (key, BOOL if key == "on" else {"type": "string", "enum": ["on", "off"]})]
    args: dict[str, Any] = {"room": room, key: on if key == "on" else ("on" if on else "off")}
    w = "on" if on else "off"
    q = r(
        rng,
        f"Turn {w} the light in the {room}.",
        f"Switch {w} the {room} light",
        f"Light {w} in the {room}, please",
        f"Please turn the {room} light {w}.",
    )
    return (
        schema(rng, name, "Switch a light on or off", props, ["room", key]),
        q,
        Call(name, args),
        r(rng, "ok", "done", '{"ok": true}'),
        "It is done.",
    )


def clock(rng: random.Random) -> tuple[dict[str, Any], str, Call, str, str]:
    name = r(rng, "get_time", "get_current_time", "current_time")
    now = f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"
    if rng.random() < 0.35:
        q = r(rng, "What time is it?", "What is the time?", "Tell me the time", "time?")
        return (
            schema(rng, name, "Get the current time", [], []),
            q,
            Call(name, {}),
            rng.choice((now, json.dumps({"time": now}))),
            f"It is {now}.",
        )
    city, key = rng.choice(CITIES), r(rng, "city", "timezone", "location")
    q = r(
        rng,
        f"What time is it in {city}?",
        f"Tell me the time in {city}.",
        f"time in {city}",
        f"What is the time in {city}?",
    )
    return (
        schema(rng, name, "Get the time in a city", [(key, STR)], [key]),
        q,
        Call(name, {key: city}),
        rng.choice((now, json.dumps({"time": now}))),
        f"It is {now}.",
    )


def made_up(rng: random.Random) -> tuple[dict[str, Any], str, Call, str, str]:
    """A tool with random name and keys: the model must read the schema."""
    verb, noun = (
        r(rng, "get", "find", "make", "open", "check", "update", "create", "delete", "list", "read"),
        rng.choice(OBJECTS + READ),
    )
    name = f"{verb}_{noun}"
    n = rng.randint(1, 3)
    keys = rng.sample(
        [
            "name",
            "title",
            "size",
            "count",
            "color",
            "id",
            "path",
            "user",
            "date",
            "level",
            "amount",
            "price",
            "label",
            "owner",
            "file",
            "mode",
            *OBJECTS[:20],
        ],
        n,
    )
    props: list[Prop] = []
    args: dict[str, Any] = {}
    for k in keys:
        kind = rng.choice((STR, STR, INT))
        props.append((k, kind))
        args[k] = rng.randint(0, 999) if kind is INT else rng.choice(READ + NAMES + CITIES)
    spoken = r(rng, ", ", " and ").join(f"{k} {v}" for k, v in args.items())
    q = r(
        rng,
        f"{verb.capitalize()} the {noun} with {spoken}.",
        f"Please {verb} the {noun}: {spoken}",
        f"Use {name} with {spoken}.",
        f"Call {name} with {spoken}",
    )
    fact = rng.choice(READ) if rng.random() < 0.5 else str(rng.randint(0, 9999))
    return (
        schema(rng, name, f"{verb.capitalize()} the {noun}", props, keys),
        q,
        Call(name, args),
        rng.choice((fact, json.dumps({"result": fact}))),
        f"The result is: {fact}",
    )


TOOLS = (weather, weather, weather, calculator, search, timer, message, light, clock, made_up, made_up)


def conversation(rng: random.Random) -> tuple[list[dict[str, Any]], list[Turn]]:
    main = rng.choice(TOOLS)
    tool, q, call, result, answer = main(rng)
    tools = {tool["name"]: tool}
    for _ in range(rng.choices((0, 1, 2, 3), (45, 30, 15, 10))[0]):
        other = rng.choice(TOOLS)(rng)[0]
        tools.setdefault(other["name"], other)
    listed = list(tools.values())
    rng.shuffle(listed)
    calls, results = [call], [result]
    if main is weather and rng.random() < 0.15:  # two calls in one turn
        city = rng.choice(CITIES)
        k = next(iter(call.arguments))
        q = r(
            rng,
            f"What is the weather in {call.arguments[k]} and in {city}?",
            f"Weather in {call.arguments[k]} and {city}",
            f"Compare the weather in {call.arguments[k]} and {city}.",
        )
        t, u = rng.randint(-10, 40), rng.randint(-10, 40)
        call.arguments = {k: call.arguments[k]}
        calls.append(Call(call.name, {k: city}))
        results = [json.dumps({"temperature": t}), json.dumps({"temperature": u})]
        answer = f"It is {t} degrees in {call.arguments[k]} and {u} degrees in {city}."
    if rng.random() < 0.12:
        return listed, list(chat(rng))
    names = " and ".join(dict.fromkeys(c.name for c in calls))
    turns = [Turn("user", q), Turn("ai", "", f"I need a tool for this. I call {names}.", calls, task="tool_call")]
    turns += [
        Turn("tool", results=results),
        Turn("ai", answer, "The tool answered. I tell the user.", task="tool_result"),
    ]
    if rng.random() < 0.3:
        turns += chat(rng)
    assert ME
    return listed, turns
