"""Files a client uploaded to refer to by id: kept whole, per tenant, for a limited time, in a bounded store.

Layout under the root: `<tenant digest>/<file id>.bin` and `<file id>.json`; the JSON is written last and removed
first, so a file exists exactly when its JSON does. The root is a folder or any fsspec URL (S3 and the like), so
replicas may share it. An upload is spooled to a local temporary file first: a client that leaves half way leaves
nothing in the store. A file id carries its creation time, so sweeping needs names only.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import IO, Any, Final, TypeVar

from blake3 import blake3

from gateway.media.metrics import MediaMetrics
from gateway.media.preproc import HEAD_BYTES, check_upload
from gateway.media.problems import MediaProblem, mib
from gateway.media.settings import FileSettings
from gateway.own_folders import OwnFolder

T = TypeVar("T")
FILE_ID: Final = re.compile(r"file-([0-9a-f]{8})[0-9a-f]{24}")
_SPOOL_MEMORY_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class StoredFile:
    id: str
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str


class Upload:
    """One upload under way. Ends in `FileStore.commit`; `close` is safe on every path."""

    def __init__(self, tenant: str, room: int, in_threads: Callable[..., Any]) -> None:
        self.tenant = tenant
        self.size = 0
        self.head = b""
        self._room = room
        self._in_threads = in_threads
        self.spool: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=_SPOOL_MEMORY_BYTES)  # noqa: SIM115

    async def write(self, chunk: bytes) -> None:
        self.size += len(chunk)
        if self.size > self._room:
            raise MediaProblem("media_too_large", f"the file is larger than {mib(self._room)}, what may be stored now")
        if len(self.head) < HEAD_BYTES:
            self.head += chunk[: HEAD_BYTES - len(self.head)]
        if self.size <= _SPOOL_MEMORY_BYTES:
            self.spool.write(chunk)
        else:
            await self._in_threads(self.spool.write, chunk)

    def close(self) -> None:
        self.spool.close()


class FileStore:
    """Raises MediaProblem; `file_not_found` also for other tenants' files, expired ones and ids that cannot be."""

    def __init__(self, settings: FileSettings, metrics: MediaMetrics, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="media-files")
        self._own_folder: OwnFolder | None = None
        self._fs: Any = None
        self._root = ""
        self._uploading: dict[str, int] = {}
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def upload_timeout_s(self) -> float:
        return self._settings.upload_timeout_s

    @property
    def max_file_bytes(self) -> int:
        return self._settings.max_file_bytes

    async def start(self) -> None:
        """Raises ValueError, naming the setting, when there is no such store."""
        location = self._settings.location
        try:
            if location == "local":
                self._own_folder = await self._run(OwnFolder, "files-")
                location = str(self._own_folder.path / "files")
            url_to_fs = importlib.import_module("fsspec.core").url_to_fs
            self._fs, self._root = await self._run(url_to_fs, location)
        except (ImportError, OSError, ValueError) as error:
            raise ValueError(f"media.files.location is {self._settings.location!r}: {error}") from error
        self._sweeper = asyncio.create_task(self._sweep_for_ever())

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        self._threads.shutdown(wait=True, cancel_futures=True)
        if self._own_folder is not None:
            self._own_folder.close()

    async def begin(self, tenant: str) -> Upload:
        """Raises when the tenant's share is used up or too many uploads are under way."""
        most = self._settings.uploads_at_once
        if sum(self._uploading.values()) >= most:
            raise MediaProblem("overloaded", f"{most} uploads are under way; try again", reason="queue_full")
        share = max(1, most // 2)
        if self._uploading.get(tenant, 0) >= share:
            raise MediaProblem("rate_limit_exceeded", f"{share} uploads of yours are under way; try again")
        self._uploading[tenant] = self._uploading.get(tenant, 0) + 1
        try:
            count, used = await self._run(self._usage, tenant)
            if count + self._uploading[tenant] > self._settings.max_files_per_tenant:
                raise MediaProblem(
                    "media_limit_exceeded",
                    f"{count} files are stored; the limit is {self._settings.max_files_per_tenant}. Delete some",
                )
            room = self._settings.max_bytes_per_tenant - used
            return Upload(tenant, min(room, self._settings.max_file_bytes), self._run)
        except BaseException:
            self._uploaded(tenant)
            raise

    async def commit(self, upload: Upload, *, filename: str, purpose: str, ttl_s: float | None = None) -> StoredFile:
        """Raises for what is no image and no video: nothing else can be used here."""
        check_upload(upload.head)
        now = int(self._clock())
        stored = StoredFile(
            id=f"file-{now & 0xFFFFFFFF:08x}{secrets.token_hex(12)}",
            bytes=upload.size,
            created_at=now,
            expires_at=now + int(min(ttl_s or self._settings.ttl_s, self._settings.ttl_s)),
            filename=filename,
            purpose=purpose,
        )
        await self._run(self._write, upload, stored)
        self._metrics.stored_bytes.inc(stored.bytes)
        return stored

    def end(self, upload: Upload) -> None:
        """Gives the place back, whether or not the upload was committed."""
        upload.close()
        self._uploaded(upload.tenant)

    async def get(self, tenant: str, file_id: str) -> StoredFile:
        return await self._run(self._load, tenant, file_id)

    async def read(self, tenant: str, file_id: str, max_bytes: int) -> bytes:
        def work() -> bytes:
            size = self._load(tenant, file_id).bytes
            if size > max_bytes:
                raise MediaProblem("media_too_large", f"the file is {mib(size)}; the limit is {mib(max_bytes)}")
            try:
                return bytes(self._fs.cat_file(self._path(tenant, file_id, "bin")))
            except FileNotFoundError:
                raise _not_found() from None

        return await self._run(work)

    async def read_part(self, tenant: str, file_id: str, start: int, end: int) -> bytes:
        """Of a file that was there a moment ago. Raises OSError."""
        return bytes(await self._run(self._fs.cat_file, self._path(tenant, file_id, "bin"), start, end))

    async def listing(self, tenant: str) -> list[StoredFile]:
        """Newest first."""

        def work() -> list[StoredFile]:
            found = []
            for file_id in self._names(tenant):
                try:
                    found.append(self._load(tenant, file_id))
                except MediaProblem:
                    continue
            return sorted(found, key=lambda f: (f.created_at, f.id), reverse=True)

        return await self._run(work)

    async def delete(self, tenant: str, file_id: str) -> None:
        def work() -> None:
            self._load(tenant, file_id)
            self._remove(self._folder(tenant), file_id)

        await self._run(work)

    async def sweep(self) -> int:
        """Removes what is older than the longest life. Returns how many."""

        def work() -> int:
            removed = 0
            oldest = self._clock() - self._settings.ttl_s
            for path in self._fs.find(self._root):
                folder, _, name = path.rpartition("/")
                found = FILE_ID.match(name)
                if found and name.endswith(".bin") and int(found.group(1), 16) < oldest:
                    self._remove(folder, name.removesuffix(".bin"))
                    removed += 1
            return removed

        return await self._run(work)

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.sweep_every_s)
            try:
                await self.sweep()
            except OSError:
                continue  # the store is away; the next round tries again

    async def _run(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    def _uploaded(self, tenant: str) -> None:
        self._uploading[tenant] -= 1
        if not self._uploading[tenant]:
            del self._uploading[tenant]

    # Below: synchronous, in the store's threads.
    def _folder(self, tenant: str) -> str:
        return f"{self._root}/{blake3(tenant.encode()).hexdigest()[:32]}"

    def _path(self, tenant: str, file_id: str, ending: str) -> str:
        return f"{self._folder(tenant)}/{file_id}.{ending}"

    def _names(self, tenant: str) -> list[str]:
        try:
            paths = self._fs.ls(self._folder(tenant), detail=False, refresh=True)
        except FileNotFoundError:
            return []
        names = [path.rpartition("/")[2] for path in paths]
        return [name.removesuffix(".json") for name in names if name.endswith(".json")]

    def _usage(self, tenant: str) -> tuple[int, int]:
        try:
            entries = self._fs.ls(self._folder(tenant), detail=True, refresh=True)
        except FileNotFoundError:
            return 0, 0
        sizes = [entry.get("size") or 0 for entry in entries if entry["name"].endswith(".bin")]
        return len(sizes), sum(sizes)

    def _write(self, upload: Upload, stored: StoredFile) -> None:
        self._fs.makedirs(self._folder(upload.tenant), exist_ok=True)
        upload.spool.seek(0)
        with self._fs.open(self._path(upload.tenant, stored.id, "bin"), "wb") as target:
            shutil.copyfileobj(upload.spool, target, 1 << 20)
        self._fs.pipe_file(self._path(upload.tenant, stored.id, "json"), json.dumps(asdict(stored)).encode())

    def _load(self, tenant: str, file_id: str) -> StoredFile:
        if not FILE_ID.fullmatch(file_id):
            raise _not_found()
        try:
            stored = StoredFile(**json.loads(self._fs.cat_file(self._path(tenant, file_id, "json"))))
        except FileNotFoundError:
            raise _not_found() from None
        if stored.expires_at <= self._clock():
            self._remove(self._folder(tenant), file_id)
            raise _not_found()
        return stored

    def _remove(self, folder: str, file_id: str) -> None:
        for ending in ("json", "bin"):
            try:
                self._fs.rm_file(f"{folder}/{file_id}.{ending}")
            except FileNotFoundError:
                continue


def _not_found() -> MediaProblem:
    return MediaProblem("file_not_found", "no such file; it may have expired or been deleted")
