"""API keys to tenants. Only digests are kept, and a key is compared in constant time."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

from starlette.requests import Request

from gateway.admission.settings import AdmissionSettings, Limits, Tenant
from gateway.errors import ApiError


def digest(key: str) -> str:
    """The form keys take in a configuration file. Keys are long random strings, so one fast hash is enough."""
    return "blake2b:" + blake2b(key.encode(), digest_size=32).hexdigest()


INFERENCE: Final = frozenset({"inference"})
WITHOUT_KEYS: Final = frozenset({"inference", "metrics"})
"""Of a gateway without keys: nobody knows who calls, so nobody administers it."""


def has_scope(request: Request, scope: str) -> bool:
    return scope in request.scope["catalejo"].scopes


class KeyRing:
    """`default` is the tenant of a gateway without keys. `scopes`: what each tenant's keys may do."""

    def __init__(self, settings: AdmissionSettings) -> None:
        self.tenants: dict[str, tuple[Limits, int]] = {}
        self.scopes: dict[str, frozenset[str]] = {}
        self._by_digest: dict[str, str] = {}
        for tenant in settings.tenants:
            self._add(tenant, settings.default_limits)
        for secret in settings.api_keys:
            known = digest(secret.get_secret_value())
            if known not in self._by_digest:
                name = "key-" + known.removeprefix("blake2b:")[:12]
                self._by_digest[known] = name
                self.tenants[name] = (settings.default_limits, 0)
                self.scopes[name] = INFERENCE
        self.open = not self._by_digest
        if self.open:
            self.tenants["default"] = (settings.default_limits, 0)
            self.scopes["default"] = WITHOUT_KEYS

    def _add(self, tenant: Tenant, default: Limits) -> None:
        own = tenant.model_dump(include=set(Limits.model_fields), exclude_none=True)
        self.tenants[tenant.name] = (default.model_copy(update=own), tenant.priority)
        self.scopes[tenant.name] = frozenset(tenant.scopes)
        for known in [*tenant.api_key_hashes, *(digest(k.get_secret_value()) for k in tenant.api_keys)]:
            if self._by_digest.setdefault(known, tenant.name) != tenant.name:
                raise ValueError(f"tenants {self._by_digest[known]} and {tenant.name} share an API key")

    def authenticate(self, headers: Mapping[str, str]) -> str:
        """The tenant's name, from `authorization: Bearer KEY` or `x-api-key: KEY`. Raises ApiError("invalid_api_key")."""
        if self.open:
            return "default"
        scheme, _, given = headers.get("authorization", "").partition(" ")
        key = given.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        mine = digest(key)
        # The digest is no secret's prefix, so the lookup tells nothing; the comparison is constant-time all the same.
        for known, name in self._by_digest.items():
            if hmac.compare_digest(known, mine):
                return name
        message = "give a valid API key in the header 'Authorization: Bearer KEY'"
        raise ApiError("invalid_api_key", message, headers={"www-authenticate": "Bearer"})
