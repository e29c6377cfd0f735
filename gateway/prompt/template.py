"""Runs a checkpoint's chat template the way the reference library does: sandboxed, same whitespace rules, same helpers.

Not here: what goes into the template (messages.py) and what becomes of its text (builder.py).
Case changes are the one string operation that needs the real characters: `upper` and its kin, as filters or methods,
see through the twins of shadow.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from gateway.prompt import json_text
from gateway.prompt.shadow import Shadow

_CASE: Final = frozenset({"upper", "lower", "title", "capitalize", "swapcase", "casefold"})
_OF_DICTS: Final = frozenset(dir(dict))
_USES_CASE: Final = re.compile(r"\b(?:" + "|".join(sorted(_CASE)) + r")\b")


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks what the model said, for training; serving passes it through."""

    tags = {"generation"}  # noqa: RUF012  (the name and type jinja2 asks for)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """The reference's sandbox, with a short way for what templates do most: ask a message, or their namespace, by name."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict and attribute not in _OF_DICTS:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if kind is Namespace and not attribute.startswith("_"):  # the template's own values, by names it gave itself
            try:
                return getattr(obj, attribute)
            except AttributeError:
                pass
        return super().getattr(obj, attribute)


class _CaseEnvironment(_Environment):
    shadow: Shadow

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        text = getattr(obj, "__self__", None)
        if isinstance(text, str) and obj.__name__ in _CASE and not args and not kwargs:
            return self.recase(text, lambda plain: str(getattr(plain, obj.__name__)()))
        return super().call(context, obj, *args, **kwargs)

    def recase(self, text: str, change: Callable[[str], str]) -> str:
        plain = self.shadow.reveal(text)
        return change(text) if plain == text else self.shadow.hide(change(plain))


class ChatTemplate:
    """A compiled template. Thread-safe: rendering keeps nothing."""

    def __init__(self, source: str, shadow: Shadow) -> None:
        kind = _CaseEnvironment if _USES_CASE.search(source) else _Environment
        env = kind(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])

        def tojson(value: Any, **options: Any) -> str:
            return json_text.dumps(value, shadow.reveal, **options)

        env.filters["tojson"] = tojson
        if isinstance(env, _CaseEnvironment):
            env.shadow = shadow
            for name in ("upper", "lower", "title", "capitalize"):
                env.filters[name] = _case_filter(env, env.filters[name])
        env.globals["raise_exception"] = _raise
        env.globals["strftime_now"] = _strftime_now
        self._template = env.from_string(source)

    def render(self, variables: Mapping[str, Any]) -> str:
        """Raises jinja2.TemplateError, or what the template's expressions raise (TypeError, ...)."""
        context = self._template.new_context(dict(variables))
        try:
            return "".join(self._template.root_render_func(context))
        finally:
            # A macro and the variables it sees hold each other: let go of, they would wait for the cycle collector, which
            # would come the more often for all of them.
            for value in context.vars.values():
                if isinstance(value, Macro):
                    del value._func


def _case_filter(env: _CaseEnvironment, original: Callable[..., Any]) -> Callable[..., str]:
    return lambda value: env.recase(str(value), lambda plain: str(original(plain)))


def _raise(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # local time, as the reference does
