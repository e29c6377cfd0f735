"""The gateway's one configuration: built-in defaults < YAML file < environment < command line.

Environment names are `CATALEJO_` + the field, `__` between levels: CATALEJO_PORT, CATALEJO_API__KEEP_ALIVE_S. Lists and
objects in the environment are JSON. A wrong or unknown key stops the start and is named. Each room declares its own
part in gateway/<room>/settings.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, cast

from pydantic import BaseModel, Field, SecretStr, ValidationError, model_validator
from pydantic_core import to_jsonable_python
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from gateway.admission.keys import KeyRing
from gateway.admission.settings import AdmissionSettings
from gateway.api.models.settings import ModelSettings, RouteSettings, name_mistakes
from gateway.api.settings import ApiSettings
from gateway.media.settings import MediaSettings
from gateway.observability.settings import ObservabilitySettings
from gateway.processes.settings import OperationsSettings, TlsSettings, overlap
from gateway.prompt.settings import PromptSettings
from gateway.routing.discovery.settings import DiscoverySettings
from gateway.routing.settings import EngineEndpoint, RoutingSettings
from gateway.upstream.settings import UpstreamSettings
from gateway.yaml_text import parse

SHORT_FORM: Final = ("model_path", "model_name", "model_aliases", "context_length", "engines", "discovery")


class ConfigError(ValueError):
    """The configuration is wrong; the text has one line per mistake and names the key."""


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="CATALEJO_",
        env_nested_delimiter="__",
        extra="forbid",
        allow_inf_nan=False,
        protected_namespaces=(),
        nested_model_default_partial_update=True,
    )

    host: str = Field(default="127.0.0.1", description="Address to listen on; 0.0.0.0: every one.")
    port: int = Field(default=8000, ge=0, le=65535, description="0: any free one.")
    workers: int = Field(default=1, ge=1, le=256, description="Gateway processes on the port, with common limits.")
    worker_timeout_s: float = Field(
        default=60.0,
        ge=1,
        description="One of several gateway processes that hangs for so long is killed and replaced.",
    )
    tls: TlsSettings = Field(default_factory=TlsSettings)
    operations: OperationsSettings = Field(default_factory=OperationsSettings)
    model_path: Path | None = Field(
        default=None, description="Checkpoint folder of the only model: tokenizer, chat template, config.json."
    )
    model_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=512,
        description="Its public name; absent: the checkpoint folder's (its parent's, if it is called `model`).",
    )
    model_aliases: list[str] = Field(
        default_factory=lambda: ["MiniMaxAI/MiniMax-M3", "accounts/fireworks/models/minimax-m3"],
        description="Other names clients may ask for.",
    )
    context_length: int | None = Field(
        default=None,
        ge=1,
        description="Most tokens of prompt and answer; absent: the engines' or the checkpoint's own.",
    )
    engines: list[EngineEndpoint] = Field(default_factory=list, description="Engines that run the model.")
    discovery: DiscoverySettings = Field(
        default_factory=DiscoverySettings, description="Where more engines of the model are found."
    )
    engine_token: SecretStr | None = Field(
        default=None, description="Bearer token for engines that name none, of every model."
    )
    models: list[ModelSettings] = Field(
        default_factory=list,
        description="Several models; `model_path` and the fields up to `discovery` are the short form of one entry.",
    )
    routes: list[RouteSettings] = Field(
        default_factory=list, description="Names that are split over models by weight, or fall back to others."
    )
    cors_origins: list[Annotated[str, Field(pattern=r"^(\*|[a-z][a-z0-9+.-]*://[^/\s]+)$")]] = Field(
        default_factory=list, description="Web pages that may call from a browser: `https://app.example`; `*`: all."
    )
    shutdown_grace_s: float = Field(
        default=30.0, ge=0, description="After SIGTERM running answers have this long; 0: until they end."
    )
    server_keep_alive_s: int = Field(default=90, ge=1, description="Idle client connections are kept this long.")
    server_header_timeout_s: float = Field(
        default=30.0,
        gt=0,
        description="A client has this long for the TLS handshake, and to send the headers of a request; one that takes less "
        "than 1 KiB/s of a finished answer for as long is dropped.",
    )

    api: ApiSettings = Field(
        default_factory=ApiSettings, description="What clients may send, and choices where clients disagree."
    )
    admission: AdmissionSettings = Field(default_factory=AdmissionSettings, description="Who may, and how much.")
    media: MediaSettings = Field(default_factory=MediaSettings, description="Pictures and videos.")
    prompt: PromptSettings = Field(default_factory=PromptSettings)
    routing: RoutingSettings = Field(
        default_factory=RoutingSettings, description="Which engine gets a request, and when one is lost."
    )
    upstream: UpstreamSettings = Field(default_factory=UpstreamSettings, description="Connections to engines.")
    observability: ObservabilitySettings = Field(
        default_factory=ObservabilitySettings, description="Logs, traces and the usage ledger."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        if mistakes := list(self.mistakes()):
            raise ValueError("\n".join(mistakes))
        return self

    def mistakes(self) -> Iterator[str]:
        """What is wrong with settings that are right one by one."""
        operations = self.operations
        if self.port and self.port == operations.port and overlap(self.host, operations.host):
            yield (
                f"port and operations.port are both {self.port}, on {self.host} and {operations.host}; they must differ"
            )
        if self.models:
            fields = type(self).model_fields
            short = [n for n in SHORT_FORM if getattr(self, n) != fields[n].get_default(call_default_factory=True)]
            if short:
                yield f"{', '.join(short)}: part of the short form; with 'models' each entry has its own"
        elif self.model_path is None:
            yield "model_path: name a checkpoint folder, or list several 'models'"
            return
        yield from name_mistakes(self.served, self.routes)
        yield from self._unknown_to_tenants()
        try:
            KeyRing(self.admission)
        except ValueError as e:
            yield f"admission: {e}"

    def _unknown_to_tenants(self) -> Iterator[str]:
        known = set(self.public_names)
        for tenant in self.admission.tenants:
            for name in tenant.models or ():
                if name not in known:
                    yield f"admission.tenants: {tenant.name} may use {name!r}, which is no model and no route"

    @property
    def served(self) -> list[ModelSettings]:
        """The models, whichever form they were given in. With several every engine has a name of its own."""
        if self.models:
            return [self._completed(m) for m in self.models]
        assert self.model_path is not None
        return [
            ModelSettings(
                name=self.model_name,
                aliases=self.model_aliases,
                model_path=self.model_path,
                context_length=self.context_length,
                engines=self.engines,
                discovery=self.discovery,
                engine_token=self.engine_token,
                routing=self.routing,
            )
        ]

    def _completed(self, model: ModelSettings) -> ModelSettings:
        """With the gateway's token and routing where it has none of its own, and engine names that differ between models."""
        engines = model.engines
        if len(self.models) > 1:
            engines = [e.named_for(model.served_name) for e in engines]
        return model.model_copy(
            update={
                "engines": engines,
                "engine_token": model.engine_token or self.engine_token,
                "routing": model.routing or self.routing,
            }
        )

    @property
    def public_names(self) -> tuple[str, ...]:
        """Every name a client may ask for: routes first, then models."""
        names = [*(r.names for r in self.routes), *(m.names for m in self.served)]
        return tuple(name for one in names for name in one)


def revealed(value: Any) -> Any:
    """Settings as plain JSON values, secrets in the clear: only for a file that nobody else can read."""
    if isinstance(value, BaseModel):
        return {name: revealed(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, dict):
        return {name: revealed(one) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [revealed(one) for one in value]
    return to_jsonable_python(value)


def load(config_file: str | Path | None = None, **overrides: Any) -> Settings:
    """Reads the configuration. `overrides` win over everything; None among them means "not given".

    Raises ConfigError with one line per mistake."""
    values = {} if config_file is None else _read_yaml(Path(config_file))
    return _build(Settings, values, {k: v for k, v in overrides.items() if v is not None})


class _ObservabilityOnly(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="CATALEJO_",
        env_nested_delimiter="__",
        extra="ignore",
        allow_inf_nan=False,
        nested_model_default_partial_update=True,
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
        raise ConfigError("\n".join(_lines(e))) from None
    except SettingsError as e:
        raise ConfigError(str(e)) from None
    except RecursionError:  # an alias that holds itself, or brackets in brackets
        raise ConfigError("the configuration is nested too deeply") from None


def _lines(error: ValidationError) -> Iterator[str]:
    for one in error.errors():
        where = ".".join(str(part) for part in one["loc"])
        for line in one["msg"].removeprefix("Value error, ").splitlines():
            yield f"{where}: {line}" if where else line


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as e:
        raise ConfigError(f"cannot read configuration file {path}: {e.strerror}") from None
    except UnicodeDecodeError as e:
        raise ConfigError(f"configuration file {path} is not UTF-8 text: {e.reason} at byte {e.start}") from None
    try:
        value = parse(text)
    except ValueError as e:
        raise ConfigError(f"configuration file {path} is not YAML: {e}") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"configuration file {path} must hold a mapping at the top")
    if wrong := [_key(name) for name in value if not isinstance(name, str)]:
        raise ConfigError("\n".join(f"{name}: no setting has this name" for name in wrong))
    return value


def _key(name: Any) -> str:
    return " ".join(("null" if name is None else str(name)).split())
