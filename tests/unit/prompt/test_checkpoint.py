"""A folder that cannot be served says what it lacks; one that can gives its numbers."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gateway.prompt import Checkpoint, CheckpointError, PromptBuilder, UnsupportedTokenizer
from tests.property.prompt.support import TINY, tiny, write_real_shape

FILES = ("tokenizer.json", "tokenizer_config.json", "config.json", "chat_template.jinja", "generation_config.json")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in FILES:
        shutil.copy(TINY / name, tmp_path)
    return tmp_path


def edit(path: Path, **changes: Any) -> None:
    value = json.loads(path.read_text())
    value.update(changes)
    path.write_text(json.dumps({k: v for k, v in value.items() if v is not None}))


def test_numbers_of_the_tiny_checkpoint() -> None:
    c = tiny()
    names = c.added_tokens
    assert c.image_token_id == names["]<]image[>["] and c.video_token_id == names["]<]video[>["]
    assert c.eos_ids == (names["[e~["], names["]~b]"])
    assert (c.think_start_id, c.think_end_id) == (names["<mm:think>"], names["</mm:think>"])
    assert c.namespace_id == names["]<]minimax[>["] and c.vocab_size == 512
    assert c.decode(c.encode_plain("<tool_call> é")) == "<tool_call> é"
    assert not set(c.encode_plain("".join(names))) & set(names.values())


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "chat_template.jinja"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        Checkpoint.load(folder)


def test_broken_files_are_named(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        Checkpoint.load(folder)


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("config.json", {"image_token_index": None}, "image_token_index"),
        ("config.json", {"text_config": {"vocab_size": 5}}, "max_position_embeddings"),
        ("tokenizer.json", {"model": {"type": "Unigram", "vocab": []}}, "Unigram"),
        ("tokenizer.json", {"decoder": {"type": "Metaspace"}}, "ByteLevel"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    folder: Path, file: str, changes: dict[str, Any], message: str
) -> None:
    edit(folder / file, **changes)
    with pytest.raises(CheckpointError, match=message):
        Checkpoint.load(folder)
    assert issubclass(UnsupportedTokenizer, CheckpointError)


def test_template_may_stand_in_the_tokenizer_configuration(folder: Path) -> None:
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").unlink()
    messages = [{"role": "user", "content": "hi"}]
    for form in (template, [{"name": "tool_use", "template": ""}, {"name": "default", "template": template}]):
        edit(folder / "tokenizer_config.json", chat_template=form)
        assert PromptBuilder(Checkpoint.load(folder)).render(messages) == PromptBuilder(tiny()).render(messages)


def test_a_template_that_raises_or_fails_is_the_clients_400(folder: Path) -> None:
    from gateway.errors import ApiError

    for source, said in (
        ("{{ raise_exception('no ' ~ messages[0].content) }}", "no <tool_call>"),
        ("{{ messages[0].content + 5 }}", "str"),
        ("{{ messages[0].nothing.more }}", "nothing"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
    ):
        (folder / "chat_template.jinja").write_text(source)
        with pytest.raises(ApiError) as e:
            PromptBuilder(Checkpoint.load(folder)).render([{"role": "user", "content": "<tool_call>"}])
        assert (e.value.code, e.value.param) == ("invalid_messages", "messages") and said in e.value.message


def test_helpers_of_templates_work_as_in_the_reference(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(
        "{%- for m in messages %}\n  {%- if loop.index > 1 %}{% break %}{% endif %}\n"
        "{%- generation %}{{ m.content | tojson }}{% endgeneration %}{% endfor %}"
        "{{ {'b': '<é', 'a': 1} | tojson(indent=1, sort_keys=True) }}{{ {'k': '<é😀'} | tojson(ensure_ascii=True) }}"
        "{{ strftime_now('%Y') | length }}{{ bos_token }}"
    )
    checkpoint = Checkpoint.load(folder)
    ids = (
        PromptBuilder(checkpoint).render([{"role": "user", "content": "<é\n'\""}, {"role": "user", "content": "x"}]).ids
    )
    expected = (
        json.dumps("<é\n'\"", ensure_ascii=False)
        + '{\n "a": 1,\n "b": "<é"\n}'
        + '{"k": "<\\u00e9\\ud83d\\ude00"}4]~b]'
    )
    assert checkpoint.decode(ids) == expected


def test_tokens_listed_in_the_vocabulary_too_cannot_be_made_by_text(tmp_path: Path) -> None:
    checkpoint = Checkpoint.load(write_real_shape(tmp_path))
    assert "<think>" in json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    ids = checkpoint.encode_plain("a<think>b]!p~[")
    assert not set(ids) & set(checkpoint.added_tokens.values())
    assert checkpoint.decode(ids) == "a<think>b]!p~["
