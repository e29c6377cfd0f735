"""Constrained decoding: what comes out satisfies the constraint, and what does not compile is refused."""

import json
import re

import pytest
from tokenizers import Tokenizer

from engine.contract.errors import BadGrammar
from engine.wire import Grammar
from tests.unit.engine.harness import TINY, Driver, grammars, text_ids

EOS = 498
THINK_END = 509
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
)


def text(ids):
    return Tokenizer.from_file(str(TINY / "tokenizer.json")).decode([i for i in ids if i != EOS])


def generate(grammar, count=80, seed=1, **fields):
    d = Driver()
    request = d.ask(
        text_ids(30, seed), count, grammar=grammar, ignore_eos=False, temperature=1.0, sampling_seed=seed, **fields
    )
    d.run()
    return d, request


@pytest.mark.parametrize("seed", range(4))
def test_json_schema(seed):
    d, request = generate(Grammar("json_schema", SCHEMA), 300, seed=seed)
    assert d.finish(request).type == "stop"
    value = json.loads(text(d.tokens(request)))
    assert value["city"] in ("Paris", "Rome")
    assert 1 <= value["days"] <= 9


@pytest.mark.parametrize(
    "grammar",
    [Grammar("regex", r"[a-c]{3}-[0-9]{2}"), Grammar("ebnf", 'root ::= [a-c] [a-c] [a-c] "-" [0-9] [0-9]')],
    ids=lambda g: g.type,
)
def test_regex_and_ebnf(grammar):
    d, request = generate(grammar)
    assert re.fullmatch(r"[a-c]{3}-[0-9]{2}", text(d.tokens(request)))
    assert d.finish(request).matched == EOS


def test_nothing_is_constrained_until_thinking_ends():
    """The end of thinking is made certain after five tokens by a prompt-independent bias towards it."""
    free, _ = generate(None, 20)
    d = Driver()
    grammar = Grammar("regex", "[0-9]{4}", after_ids=(THINK_END,))
    request = d.ask(text_ids(30, 1), 60, grammar=grammar, ignore_eos=False, temperature=1.0, sampling_seed=3,
                    logit_bias={str(THINK_END): 3.0})  # fmt: skip
    d.run()
    ids = d.tokens(request)
    at = ids.index(THINK_END)
    assert re.fullmatch("[0-9]{4}", text(ids[at + 1 :]))
    assert not re.fullmatch("[0-9]*", text(ids[:at])) or at == 0
    assert free.core.busy is False


def test_each_choice_has_its_own_state():
    d, request = generate(Grammar("regex", "[ab]{6}"), n=3)
    answers = [text(d.tokens(request, i)) for i in range(3)]
    assert all(re.fullmatch("[ab]{6}", a) for a in answers)
    assert len(set(answers)) > 1


def test_special_tokens_are_no_text_and_other_added_tokens_are():
    """`.` would match the text of `]<]image[>[`; the token itself must never come. `<tool_call>` is one token of text."""
    d, request = generate(Grammar("regex", ".{30}"), 60, logit_bias={"500": 50.0, "497": 50.0})
    assert not {500, 497} & set(d.tokens(request))
    d, request = generate(Grammar("regex", r"\]<\]minimax\[>\[<tool_call>x"), 60, logit_bias={"507": 30.0, "510": 30.0})
    assert d.tokens(request)[:2] == [507, 510]


def test_a_complete_text_ends_below_min_new_tokens():
    d, request = generate(Grammar("regex", "ab"), 20, min_new_tokens=10)
    assert text(d.tokens(request)) == "ab"
    assert d.finish(request).type == "stop"


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("json_schema", "{not json"),
        Grammar("json_schema", '{"type": "nonsense"}'),
        Grammar("regex", "[unclosed"),
        Grammar("ebnf", "root ::= undefined_rule"),
        Grammar("structural_tag", "{}"),
    ],
    ids=lambda g: g.type,
)
def test_what_does_not_compile_is_refused(grammar):
    with pytest.raises(BadGrammar, match=grammar.type) as caught:
        grammars().compile(grammar, frozenset({EOS}))
    assert not re.search(r"\.cc|\.py|\d\d:\d\d:\d\d|\n$", str(caught.value)), "no place inside the compiler"
