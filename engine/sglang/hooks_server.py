"""What the plugin does inside SGLang's HTTP server process, for every SGLang it supports; what differs between versions
is in the adapter of each. SGLang is imported inside functions only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from engine.sglang.rows import Row

if TYPE_CHECKING:
    import torch

HERE = "engine.sglang.hooks_server"
HTTP = "sglang.srt.entrypoints.http_server"
MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
BATCH = "sglang.srt.managers.schedule_batch"

ROWS = (
    # ---- pictures
    Row(f"{BATCH}.MultimodalDataItem", "use", "server", ("modality", "offsets", "feature", "model_specific_data"),
        "no picture can be handed over", some=True),
    Row(f"{BATCH}.MultimodalProcessorOutput", "use", "server", ("mm_items", "input_ids", "im_token_id", "video_token_id"),
        "no picture can be handed over", some=True),
    # ---- requests
    Row(f"{MANAGER}._tokenize_one_request", "around", "server", ("self", "obj"),
        "prepared pictures would go through SGLang's own media processor", f"{HERE}.tokenize"),
    Row(f"{MANAGER}._validate_one_request", "use", "server", ("self", "obj", "input_ids"), "lengths are not checked"),
    Row(f"{MANAGER}._create_tokenized_object", "use", "server",
        ("self", "obj", "input_text", "input_ids", "input_embeds", "mm_inputs", "token_type_ids"),
        "no request can be handed to the scheduler"),
    Row(f"{MANAGER}.generate_request", "use", "server", ("self", "obj", "request"), "nothing can be generated"),
    Row(f"{MANAGER}.abort_request", "use", "server", ("self", "rid", "abort_all"), "nothing can be aborted"),
    # ---- the server
    Row(f"{HTTP}._setup_and_run_http_server", "before", "server",
        ("server_args", "tokenizer_manager", "template_manager", "port_args", "scheduler_infos", "subprocess_watchdog",
         "execute_warmup_func", "launch_callback"),
        "the route is not there", f"{HERE}.set_up_server"),
    Row(f"{HTTP}.model_info", "use", "server", (), "the gateway takes the engine for a plain SGLang"),
    Row(f"{HTTP}.abort_request", "use", "server", ("obj", "request"), "requests of our route cannot be aborted by id"),
)  # fmt: skip

REQUEST_FIELDS = ("rid", "input_ids", "sampling_params", "return_logprob", "logprob_start_len", "top_logprobs_num",
                  "stream", "priority", "external_trace_header")  # fmt: skip


# ------------------------------------------------------------------------------------------------ pictures
def media_inputs(
    identify: Callable[[Any, str], None],
    input_ids: list[int],
    items: Sequence[tuple[Any, torch.Tensor]],
    image_id: int,
    video_id: int,
) -> Any:
    """SGLang's multimodal inputs from (wire.Item, rows) pairs: one item per picture. `identify`
    gives an item of SGLang its identity, from our 64 hex digits."""
    import torch
    from sglang.srt.managers.schedule_batch import Modality, MultimodalDataItem, MultimodalProcessorOutput

    made = []
    for item, rows in items:
        one = MultimodalDataItem(
            modality=Modality.IMAGE if item.modality == "image" else Modality.VIDEO,
            offsets=[(offset, offset + length - 1) for offset, length in item.ranges],
            feature=rows,
            model_specific_data={f"{item.modality}_grid_thw": torch.tensor([list(item.grid)])},
        )
        identify(one, item.hash)
        made.append(one)
    return MultimodalProcessorOutput(
        mm_items=made, input_ids=input_ids, im_token_id=image_id, video_token_id=video_id
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------ requests
PREPARED = "catalejo_media"


def request_input(prepared: Any, **fields: Any) -> Any:
    """A GenerateReqInput; `prepared`, from `media_inputs`, rides along."""
    from sglang.srt.managers.io_struct import GenerateReqInput

    made = GenerateReqInput(**fields)
    setattr(made, PREPARED, prepared)
    return made


async def tokenize(original: Callable[..., Awaitable[Any]], manager: Any, obj: Any) -> Any:
    """AROUND TokenizerManager._tokenize_one_request: our requests are ids already."""
    if not hasattr(obj, PREPARED):
        return await original(manager, obj)
    manager._validate_one_request(obj, obj.input_ids)
    return manager._create_tokenized_object(obj, None, obj.input_ids, None, getattr(obj, PREPARED), None)


_waiting: dict[str, Callable[[], None]] = {}


def on_dispatch(rid: str, call: Callable[[], None]) -> Callable[[], None]:
    """`call` runs once the scheduler has the request. Returns what takes the wish back."""
    _waiting[rid] = call
    return lambda: _waiting.pop(rid, None) and None


def tell_dispatched(rid: str) -> None:
    call = _waiting.pop(rid, None)
    if call is not None:
        call()


# ------------------------------------------------------------------------------------------------ the server
def set_up_server(server_args: Any, tokenizer_manager: Any, *args: Any, **kwargs: Any) -> None:
    """BEFORE _setup_and_run_http_server: the route goes onto SGLang's own app."""
    from sglang.srt.entrypoints import http_server
    from sglang.srt.runtime_context import get_serving

    from engine.sglang import plugin, server

    if get_serving().tokenizer_worker_num != 1:
        raise SystemExit("catalejo: --tokenizer-worker-num above 1 is not supported; refusing to serve")
    server.install(http_server.app, Host(tokenizer_manager), plugin.adapter(), get_serving().api_key)


class Host:
    """The one SGLang server of this process, as the route sees it."""

    def __init__(self, manager: Any) -> None:
        config = manager.model_config
        hf = config.hf_config
        self._manager = manager
        self.vocab_size: int = config.vocab_size
        self.context_length: int = manager.context_len
        self.image_token_id: int | None = getattr(hf, "image_token_index", getattr(hf, "image_token_id", None))
        self.video_token_id: int | None = getattr(hf, "video_token_index", getattr(hf, "video_token_id", None))

    @property
    def seeds(self) -> bool:
        from engine.sglang.hooks_model import seeded_sampler

        return seeded_sampler()

    @property
    def incremental(self) -> bool:
        return bool(self._manager.incremental_streaming_output)

    @property
    def priorities(self) -> bool:
        return bool(self._manager.enable_priority_scheduling)

    def generate(self, obj: Any) -> Any:
        return self._manager.generate_request(obj, None)

    def runs(self, rid: str) -> bool:
        return rid in self._manager.rid_to_state

    def abort(self, rid: str) -> None:
        self._manager.abort_request(rid=rid)

    async def model_info(self) -> dict[str, Any]:
        from sglang.srt.entrypoints import http_server

        return dict(await http_server.model_info())
