"""The gateway's one configuration: built-in defaults < YAML file < environment < command line.

Environment names are `CATALEJO_` + the field, `__` between levels: CATALEJO_PORT, CATALEJO_API__KEEP_ALIVE_S. Lists and
objects in the environment are JSON. A wrong or unknown key stops the start and is named. Each room declares its own
part in gateway/<room>/settings.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from gateway.admission.settings import AdmissionSettings
from gateway.api.settings import ApiSettings
from gateway.media.settings import MediaSettings
from gateway.observability.settings import ObservabilitySettings
from gateway.prompt.settings import PromptSettings
from gateway.routing.settings import EngineEndpoint, RoutingSettings
from gateway.upstream.settings import UpstreamSettings


class ConfigError(ValueError):
    """The configuration is wrong; the text has one line per mistake and names the key."""


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="CATALEJO_",
        env_nested_delimiter="__",
        extra="forbid",
        protected_namespaces=(),
        nested_model_default_partial_update=True,
    )

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    model_path: Path = Field(description="Checkpoint folder: tokenizer, chat template, config.json.")
    model_name: str | None = Field(
        default=None,
        min_length=1,
        description="None: the checkpoint folder's name (its parent's, if it is called model).",
    )
    model_aliases: list[str] = Field(
        default_factory=lambda: ["MiniMaxAI/MiniMax-M3", "accounts/fireworks/models/minimax-m3"],
        description="Other names clients may ask for.",
    )
    context_length: int | None = Field(default=None, ge=1, description="None: the engine's or the checkpoint's own.")
    engines: list[EngineEndpoint] = Field(default_factory=list)
    engine_token: SecretStr | None = None
    cors_origins: list[str] = Field(default_factory=list)
    shutdown_grace_s: float = Field(default=30.0, ge=0)
    server_keep_alive_s: int = Field(default=90, ge=1, description="Idle client connections are kept this long.")
    server_header_timeout_s: float = Field(
        default=30.0, gt=0, description="A client has this long to send the headers of a request."
    )

    api: ApiSettings = Field(default_factory=ApiSettings)
    admission: AdmissionSettings = Field(default_factory=AdmissionSettings)
    media: MediaSettings = Field(default_factory=MediaSettings)
    prompt: PromptSettings = Field(default_factory=PromptSettings)
    routing: RoutingSettings = Field(default_factory=RoutingSettings)
    upstream: UpstreamSettings = Field(default_factory=UpstreamSettings)
    observability: ObservabilitySettings = Field(default_factory=ObservabilitySettings)

    @model_validator(mode="after")
    def _distinct_names(self) -> Settings:
        names = [e.name for e in self.engines if e.name]
        if len(names) != len(set(names)):
            raise ValueError("engines: names must differ")
        return self

    @property
    def served_model(self) -> str:
        if self.model_name:
            return self.model_name
        return checkpoint_name(self.model_path)

    @property
    def model_names(self) -> tuple[str, ...]:
        """The served name first, then its aliases, each once."""
        return tuple(dict.fromkeys((self.served_model, *self.model_aliases)))


def checkpoint_name(path: Path) -> str:
    """The folder's name; its parent's when the folder is called `model`, which says nothing."""
    path = path.resolve()
    return path.parent.name if path.name == "model" else path.name


def load(config_file: str | Path | None = None, **overrides: Any) -> Settings:
    """Reads the configuration. `overrides` win over everything; None among them means "not given".

    Raises ConfigError with one line per mistake."""
    values = {} if config_file is None else _read_yaml(Path(config_file))
    return _build(Settings, values, {k: v for k, v in overrides.items() if v is not None})


class _ObservabilityOnly(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="CATALEJO_", env_nested_delimiter="__", extra="ignore", nested_model_default_partial_update=True
    )

    observability: ObservabilitySettings = Field(default_factory=ObservabilitySettings)


def load_observability(config_file: str | Path | None = None) -> ObservabilitySettings:
    """That part alone, for commands that need no model. Raises ConfigError."""
    values = {} if config_file is None else _read_yaml(Path(config_file))
    return _build(_ObservabilityOnly, values, {}).observability


S = TypeVar("S", bound=BaseSettings)


def _build(cls: type[S], values: dict[str, Any], overrides: dict[str, Any]) -> S:
    """`values` are the file's. Raises ConfigError."""

    class WithFile(cls):  # type: ignore[valid-type,misc]
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, init_kwargs=values)

    try:
        return cast(S, WithFile(**overrides))
    except ValidationError as e:
        lines = [f"{'.'.join(str(p) for p in err['loc']) or 'configuration'}: {err['msg']}" for err in e.errors()]
        raise ConfigError("\n".join(lines)) from None
    except SettingsError as e:
        raise ConfigError(str(e)) from None


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise ConfigError(f"cannot read configuration file {path}: {e.strerror}") from None
    except UnicodeDecodeError as e:
        raise ConfigError(f"configuration file {path} is not UTF-8 text: {e.reason} at byte {e.start}") from None
    except (yaml.YAMLError, ValueError) as e:  # ValueError: a date that is none, and the like
        raise ConfigError(f"configuration file {path} is not YAML: {e}") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"configuration file {path} must hold a mapping at the top")
    return value
