"""Built-in defaults < YAML < environment < command line; a wrong key stops the start and is named."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from gateway.config import ConfigError, Settings, load


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text(
        "model_path: /m/tiny\nport: 1\nhost: h1\napi: {keep_alive_s: 3, max_n: 4}\nengines: [{url: http://e}]\n"
    )
    return path


def test_order_of_sources(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATALEJO_PORT", "2")
    monkeypatch.setenv("CATALEJO_API__KEEP_ALIVE_S", "5")
    settings = load(file, host="h2")
    assert (settings.port, settings.host) == (2, "h2")
    assert (settings.api.keep_alive_s, settings.api.max_n, settings.api.max_tools) == (5, 4, 1024)
    assert settings.engines[0].url == "http://e"


def test_served_names(file: Path) -> None:
    assert load(file).public_names[0] == "tiny"
    assert load(file, model_name="m3", model_aliases=["a", "m3"]).public_names == ("m3", "a")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("model_path: /m\nprot: 1\n", "prot"),
        ("model_path: /m\napi: {max_n: 0}\n", "api.max_n"),
        ("model_path: /m\napi: {keepalive: 1}\n", "api.keepalive"),
        ("model_path: /m\nport: seventy\n", "port"),
        ("model_path: /m\nengines: [{url: 'ftp://x'}]\n", "engines.0.url"),
        ("model_path: /m\nengines: [{url: 'http://x', name: a}, {url: 'http://y', name: a}]\n", "names must differ"),
        ("port: 1\n", "model_path"),
        ("model_path: /m\nprompt: {max_depth: 4}\n", "prompt.max_depth"),
        ("- 1\n", "mapping"),
        ("a: [", "not YAML"),
        ("a: 2020-13-40\n", "not YAML: this is no timestamp at line 1, column 4"),
        ("404: x\n", "404: no setting"),
        ("null: 2\n", "null: no setting"),
        ("tls: {404: x}\n", "tls.404"),
        ("port: !!bool abc\n", "this is no bool at line 1, column 7"),
        ("host: !!timestamp abc\n", "this is no timestamp"),
        ('port: !!int ""\n', "this is no int"),
        ("a: " + "[" * 3000, "nested too deeply"),
        ("a: [1\nb: 2\nc: {\n", "at line 2, column 2"),
        ("&a a: &b {a: *b}\n", "a: "),
        ("model_path: /m\nengines: [{url: 'http://u:secret@h:99999'}]\n", "engines.0.url: the port"),
        ("model_path: /m\nengines: [{url: 'http://u:sec/ret@h:1'}]\n", "engines.0.url: the port"),
        ("model_path: /m\nengines: [{url: 'http://h:0'}]\n", "engines.0.url: the port"),
        ("model_path: /m\nengines: [{url: 'http://[::1'}]\n", "engines.0.url: the host"),
        ("model_path: /m\nengines: [{url: 'http://:30000'}]\n", "engines.0.url: the URL has no host"),
        ("model_path: /m\nengines: [{url: 'http://h:1?a=b'}]\n", "engines.0.url: the URL ends"),
        ("models: [{model_path: /m, engines: [{url: 'http://h:x'}]}]\n", "models.0.engines.0.url: the port"),
        ("model_path: /m\nport: 9\noperations: {port: 9}\n", "port and operations.port are both 9"),
        ("model_path: /m\nshutdown_grace_s: .inf\n", "shutdown_grace_s: Input should be a finite"),
        ("model_path: /m\nrouting: {recent_s: .nan}\n", "routing.recent_s: Input should be a finite"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=named) as refused:
        load(path)
    assert len(str(refused.value).splitlines()) == 1 and "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("one", "other", "refused"),
    [
        ("127.0.0.1", "localhost", True),
        ("0.0.0.0", "10.0.0.1", True),
        ("", "::1", True),
        ("gateway", "0.0.0.0", True),
        ("Gateway", "gateway", True),
        ("::", "0.0.0.0", False),
        ("127.0.0.1", "127.0.0.2", False),
        ("10.0.0.1", "gateway", False),
    ],
)
def test_one_port_for_two_things_is_refused_where_the_hosts_overlap(one: str, other: str, refused: bool) -> None:
    for a, b in ((one, other), (other, one)):
        with pytest.raises(ConfigError, match=r"operations\.port") if refused else nullcontext():
            load(model_path="/m", host=a, port=9, operations={"host": b, "port": 9})
        load(model_path="/m", host=a, port=0, operations={"host": b, "port": 0})


def test_no_setting_takes_infinity() -> None:
    todo, seen = [Settings], set()
    while todo:
        model = todo.pop()
        assert model.model_config.get("allow_inf_nan") is False, model
        seen.add(model)
        for field in model.model_fields.values():
            inside = [field.annotation]
            while inside:
                kind = inside.pop()
                inside += get_args(kind)
                if isinstance(kind, type) and issubclass(kind, BaseModel) and kind not in seen:
                    todo.append(kind)
    assert len(seen) > 20


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        load(tmp_path / "none.yaml")


def test_keys_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATALEJO_ENGINE_TOKEN", "s3cret")
    monkeypatch.setenv("CATALEJO_ADMISSION__API_KEYS", '["sk-1"]')
    settings = load(model_path="/m")
    assert "s3cret" not in repr(settings) and "sk-1" not in repr(settings)
    assert settings.engine_token is not None and settings.engine_token.get_secret_value() == "s3cret"


@pytest.mark.parametrize("raw", [b"\xff\xfe\x00", "modèle: x".encode("latin-1")])
def test_a_file_that_is_no_text_is_named(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(raw)
    with pytest.raises(ConfigError, match=r"c\.yaml is not UTF-8 text"):
        load(path)


TWO = "models: [{name: a, model_path: /m/a}, {name: b, model_path: /m/b}]\n"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("models: [{model_path: /m}]\nmodel_path: /n\n", "model_path: part of the short form"),
        ("models: [{model_path: /m}]\nengines: [{url: 'http://e'}]\n", "engines: part of the short form"),
        ("models: [{name: a, model_path: /m}, {name: a, model_path: /n}]\n", "the name 'a' is given to"),
        ("models: [{name: a, model_path: /m, aliases: [b]}, {name: b, model_path: /n}]\n", "the name 'b' is given to"),
        (TWO + "routes: [{name: a, weights: {b: 1}}]\n", "the name 'a' is given to"),
        (TWO + "routes: [{name: r, weights: {c: 1}}]\n", "names the model 'c'"),
        (TWO + "routes: [{name: r, weights: {a: 1}, fallbacks: [c]}]\n", "names the model 'c'"),
        (TWO + "routes: [{name: r, weights: {a: 1}, fallbacks: [a]}]\n", "a is in the route already"),
        (TWO + "routes: [{name: r, weights: {a: 1}, fallbacks: [b, b]}]\n", "b is in the route already"),
        (TWO + "routes: [{name: r, weights: {a: 0}}]\n", "at least one must be above 0"),
        (TWO + "routes: [{name: r, weights: {a: -1, b: 1}}]\n", "weights.a is -1"),
        (TWO + "routes: [{name: r, weights: {a: .nan}}]\n", "routes.0.weights.a: Input should be a finite"),
        (TWO + "routes: [{name: r, weights: {}}]\n", "routes.0.weights"),
        (TWO + "admission: {tenants: [{name: t, api_keys: [k], models: [c]}]}\n", "t may use 'c'"),
        (
            "models: [{name: a, model_path: /m, engines: [{url: 'http://x', name: e}]},"
            " {name: b, model_path: /n, engines: [{url: 'http://y', name: e}]}]\n",
            "names must differ; 'e' of 'b' is in 'a' too",
        ),
        ("models: [{name: a, model_path: /m, max_in_flight: 0}]\n", "models.0.max_in_flight"),
        ('models: [{name: "a\\r\\nx: y", model_path: /m}]\n', "only printable ASCII"),
        ("model_path: /modèle\n", "only printable ASCII"),
    ],
)
def test_mistakes_of_several_models_are_named(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=named):
        load(path)


def test_every_mistake_is_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(TWO + "routes: [{name: a, weights: {c: 1}}, {name: r, weights: {d: 1}}]\n")
    with pytest.raises(ConfigError) as refused:
        load(path)
    assert len(str(refused.value).splitlines()) == 3


def test_the_short_form_is_one_model() -> None:
    [one] = load(model_path="/m/tiny", model_name="x", context_length=9, engines=[{"url": "http://e"}]).served
    assert (one.served_name, one.context_length, one.engines[0].url) == ("x", 9, "http://e")
    assert one.engines[0].name is None, "a gateway with one model keeps the names engine-0, engine-1, ..."


def test_engines_of_several_models_have_names_that_last(tmp_path: Path) -> None:
    models = [
        {"name": m, "model_path": f"/{m}", "engines": [{"url": f"http://{e}:1"} for e in engines]}
        for m, engines in (("a", "xy"), ("b", "x"))
    ]
    names = [[e.name for e in m.engines] for m in load(models=models).served]
    assert names == [["a/x:1", "a/y:1"], ["b/x:1"]]
    models[0]["engines"] = models[0]["engines"][1:]
    assert load(models=models).served[0].engines[0].name == "a/y:1"


def test_a_model_takes_what_it_lacks_from_the_gateway() -> None:
    models = [
        {"name": "a", "model_path": "/a"},
        {"name": "b", "model_path": "/b", "engine_token": "own", "routing": {"policy": "round_robin"}},
    ]
    a, b = load(models=models, engine_token="common", routing={"policy": "least_load"}).served
    tokens = [m.engine_token.get_secret_value() for m in (a, b) if m.engine_token]
    assert tokens == ["common", "own"]
    assert [m.routing.policy for m in (a, b) if m.routing] == ["least_load", "round_robin"]


def test_the_example_of_the_operations_page_is_a_configuration(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/operations.md").read_text(encoding="utf-8")
    section = page[page.index("## Several models") :]
    example = section[section.index("```yaml") + 7 : section.index("```\n", section.index("```yaml") + 7)]
    path = tmp_path / "c.yaml"
    path.write_text(example.replace("[...]", f"['blake2b:{'0' * 64}']"))
    settings = load(path)
    assert settings.public_names[:2] == ("minimax-m3", "MiniMaxAI/MiniMax-M3")
    assert len(settings.served) == 3 and settings.served[1].max_in_flight == 64
