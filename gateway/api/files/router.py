"""/v1/files: upload once, refer by id in image and video parts; OpenAI's shapes, purpose `vision` only."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import orjson
from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from gateway.api.body import drop_rest
from gateway.api.files.content import FileContent
from gateway.api.files.multipart import OVERHEAD_BYTES, Form, read_form
from gateway.errors import ApiError
from gateway.media.files import FileStore, StoredFile
from gateway.media.problems import MediaProblem

PURPOSES = ("vision", "user_data")
ROUTE = "/v1/files"
DROPPED_BYTES = 8 << 20


def create_router(store_of: Callable[[Request], FileStore | None], tenant_of: Callable[[Request], str]) -> APIRouter:
    router = APIRouter(tags=["files"])

    def store(request: Request) -> FileStore:
        found = store_of(request)
        if found is None:
            raise ApiError("not_found", "this server keeps no files")
        return found

    @router.post(ROUTE)
    async def upload(request: Request) -> Response:
        return _json(_shown(await _receive(store(request), tenant_of(request), request)))

    @router.get(ROUTE)
    async def listing(request: Request) -> Response:
        limit, after, oldest_first = _page(request)
        files = await store(request).listing(tenant_of(request))
        if oldest_first:
            files.reverse()
        if (purpose := request.query_params.get("purpose")) is not None:
            files = [f for f in files if f.purpose == purpose]
        if after is not None:
            start = next((i + 1 for i, f in enumerate(files) if f.id == after), len(files))
            files = files[start:]
        page = files[:limit]
        body: dict[str, Any] = {"object": "list", "data": [_shown(f) for f in page], "has_more": len(files) > limit}
        if page:
            body |= {"first_id": page[0].id, "last_id": page[-1].id}
        return _json(body)

    @router.get(ROUTE + "/{file_id}")
    async def retrieve(request: Request, file_id: str) -> Response:
        return _json(_shown(await _named(store(request).get(tenant_of(request), file_id))))

    @router.get(ROUTE + "/{file_id}/content")
    async def content(request: Request, file_id: str) -> Response:
        files, tenant = store(request), tenant_of(request)
        size = (await _named(files.get(tenant, file_id))).bytes
        # Never a guessed type: a browser must not run what a stranger uploaded.
        headers = {
            "content-disposition": "attachment",
            "x-content-type-options": "nosniff",
            "content-security-policy": "default-src 'none'; sandbox",
            "cache-control": "private, no-store",
        }
        return FileContent(size, partial(files.read_part, tenant, file_id), headers)

    @router.delete(ROUTE + "/{file_id}")
    async def remove(request: Request, file_id: str) -> Response:
        await _named(store(request).delete(tenant_of(request), file_id))
        return _json({"id": file_id, "object": "file", "deleted": True})

    return router


async def _receive(store: FileStore, tenant: str, request: Request) -> StoredFile:
    """Stores the upload. A refusal half way drops some of the rest, or the client would see a reset instead of it."""
    body = _Body(request)
    try:
        async with asyncio.timeout(store.upload_timeout_s):
            return await _store(store, tenant, request, body)
    except MediaProblem as problem:
        refusal = problem.at("file")
    except TimeoutError:
        message = f"the upload took longer than {store.upload_timeout_s:g} s"
        refusal = ApiError("request_timeout", message, param="file")
    except ClientDisconnect:
        raise ApiError("client_closed_request", "the client left while sending the file") from None
    except ApiError as error:
        refusal = error
    if not body.ended:
        refusal.headers["connection"] = "close"
        await drop_rest(request, DROPPED_BYTES)
    raise refusal


async def _store(store: FileStore, tenant: str, request: Request, body: _Body) -> StoredFile:
    most = store.max_file_bytes + OVERHEAD_BYTES
    declared = request.headers.get("content-length", "")
    if re.fullmatch("[0-9]{1,18}", declared) and int(declared) > most:
        message = f"the upload is {declared} bytes; the limit is {store.max_file_bytes}"
        raise ApiError("request_too_large", message, param="file")
    content_type = request.headers.get("content-type", "")
    upload = await store.begin(tenant)
    try:
        form = await read_form(body.pieces(), content_type, upload.write, most)
        purpose, ttl_s = _checked(form)
        return await store.commit(upload, filename=form.filename or "", purpose=purpose, ttl_s=ttl_s)
    finally:
        store.end(upload)


class _Body:
    """The request's body, and whether all of it has come."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.ended = False

    async def pieces(self) -> AsyncIterator[bytes]:
        while not self.ended:
            message = await self._request.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            self.ended = not message.get("more_body", False)
            yield message.get("body", b"")


def _checked(form: Form) -> tuple[str, float | None]:
    if form.filename is None:
        raise ApiError("missing_required_parameter", "missing required parameter: 'file'", param="file")
    purpose = form.fields.get("purpose")
    if purpose is None:
        raise ApiError("missing_required_parameter", "missing required parameter: 'purpose'", param="purpose")
    if purpose not in PURPOSES:
        raise ApiError("invalid_value", f"purpose must be one of {', '.join(PURPOSES)}", param="purpose")
    seconds = form.fields.get("expires_after[seconds]")
    if seconds is None:
        return purpose, None
    if not (re.fullmatch("[0-9]{1,7}", seconds) and 1 <= int(seconds) <= 2_592_000):
        raise ApiError(
            "invalid_value",
            "expires_after[seconds] must be a whole number from 1 to 2592000",
            param="expires_after[seconds]",
        )
    return purpose, float(seconds)


async def _named(found: Any) -> Any:
    try:
        return await found
    except MediaProblem as problem:
        raise problem.at("file_id") from None


def _page(request: Request) -> tuple[int, str | None, bool]:
    """(limit, after, whether the oldest come first)"""
    text = request.query_params.get("limit", "10000")
    if not (re.fullmatch("[0-9]{1,5}", text) and 1 <= int(text) <= 10_000):
        raise ApiError("invalid_value", "limit must be a whole number from 1 to 10000", param="limit")
    order = request.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise ApiError("invalid_value", "order must be asc or desc", param="order")
    return int(text), request.query_params.get("after"), order == "asc"


def _shown(stored: StoredFile) -> dict[str, Any]:
    return {
        "id": stored.id,
        "object": "file",
        "bytes": stored.bytes,
        "created_at": stored.created_at,
        "expires_at": stored.expires_at,
        "filename": stored.filename,
        "purpose": stored.purpose,
        "status": "processed",
    }


def _json(body: object) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")
