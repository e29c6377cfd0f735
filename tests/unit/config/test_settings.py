"""Built-in defaults < YAML < environment < command line; a wrong key stops the start and is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config import ConfigError, load


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
        ("- 1\n", "mapping"),
        ("a: [", "not YAML"),
        ("a: 2020-13-40\n", "not YAML"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=named):
        load(path)


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
