"""Everything the plugin knows about the inside of SGLang 0.5.23: the rows, and the few functions that build or read its
objects. No other file of this folder names an SGLang internal. SGLang is imported inside functions only.

A new SGLang version gets a copy of this file; what changed shows as a failing row at start-up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from engine.sglang.rows import Row

if TYPE_CHECKING:
    import torch

HERE = "engine.sglang.adapter_0_5_23"
MSA_OPS = "sglang.srt.layers.attention.minimax_sparse_ops.minimax_sparse"
HTTP = "sglang.srt.entrypoints.http_server"
MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
MODEL = "sglang.srt.models.minimax_m3_vl.MiniMaxM3SparseForConditionalGeneration"
BATCH = "sglang.srt.managers.schedule_batch"

_PREFILL = """q k_cache v_cache sink idx_q idx_k_cache idx_v_cache idx_sink req_to_token slot_ids cu_seqlens seq_lens
prefix_lens max_seqlen_q max_seqlen_k block_size_q block_size_k topk init_blocks local_blocks sm_scale idx_sm_scale
score_type disable_index_value use_msa cu_seqblocks_q max_seqblock_q all_seqblock_q seqlens_cpu q_scale k_scale v_scale
idx_q_scale idx_k_scale idx_v_scale cached_topk_idx return_topk_idx loc_mapping page_size seq_lens_cpu"""
_DECODE = """q sink k_cache v_cache idx_q idx_sink idx_k_cache idx_v_cache req_to_token slot_ids seq_lens max_seqlen
block_size_q block_size_k topk init_blocks local_blocks sm_scale idx_sm_scale score_type disable_index_value
dense_main_attn_fn page_size use_msa msa_kv_indices msa_plan q_scale k_scale v_scale idx_q_scale idx_k_scale idx_v_scale
cached_topk_idx topk_out hisparse_swap_in_fn indexer_cp packed_queries"""


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ROWS = (
    # ---- sparse attention
    Row(f"{MSA_OPS}.minimax_sparse_prefill", "around", "model", _names(_PREFILL),
        "sparse prefill runs SGLang's own kernels", f"{HERE}.sparse_prefill"),
    Row(f"{MSA_OPS}.minimax_sparse_decode", "around", "model", _names(_DECODE),
        "sparse decode runs SGLang's own kernels", f"{HERE}.sparse_decode"),
    # ---- pictures
    Row(f"{MODEL}.get_image_feature", "around", "model", ("self", "items"),
        "uint8 picture rows reach the vision tower unnormalised", f"{HERE}.image_feature"),
    Row(f"{MODEL}.get_video_feature", "around", "model", ("self", "items"),
        "video rows reach the vision tower in the sender's dtype", f"{HERE}.video_feature"),
    Row(f"{BATCH}.MultimodalDataItem.set_identity", "use", "server", ("self", "identity"),
        "pictures are not told apart in the prefix cache"),
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
    Row(f"{MANAGER}._mark_state_dispatched", "after", "server", ("self", "rid"),
        "the answer's headers cannot be sent before the first token", f"{HERE}.dispatched"),
    Row(f"{MANAGER}.generate_request", "use", "server", ("self", "obj", "request"), "nothing can be generated"),
    Row(f"{MANAGER}.abort_request", "use", "server", ("self", "rid", "abort_all"), "nothing can be aborted"),
    Row("sglang.srt.managers.io_struct.GenerateReqInput", "use", "server",
        ("rid", "input_ids", "sampling_params", "return_logprob", "logprob_start_len", "top_logprobs_num", "stream",
         "priority", "cache_salt", "external_trace_header"),
        "no request can be made", some=True),
    # ---- the server
    Row(f"{HTTP}._setup_and_run_http_server", "before", "server",
        ("server_args", "tokenizer_manager", "template_manager", "port_args", "scheduler_infos", "subprocess_watchdog",
         "execute_warmup_func", "launch_callback"),
        "the route is not there", f"{HERE}.set_up_server"),
    Row(f"{HTTP}.model_info", "use", "server", (), "the gateway takes the engine for a plain SGLang"),
    Row(f"{HTTP}.abort_request", "use", "server", ("obj", "request"), "requests of our route cannot be aborted by id"),
    # ---- sampling
    Row("sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo.from_schedule_batch", "after", "model",
        ("batch", "vocab_size"), "seeds have no effect without --enable-deterministic-inference", f"{HERE}.seeds"),
    # ---- grammars
    Row("sglang.srt.constrained.grammar_manager.GrammarManager._apply_request_reasoning_config", "after", "model",
        ("self", "req"), "a grammar binds the thinking as well", f"{HERE}.grammar_after"),
    Row("sglang.srt.constrained.reasoner_grammar_backend.ReasonerGrammarObject", "use", "model",
        ("grammar", "think_end_ids"), "a grammar binds the thinking as well", some=True),
)  # fmt: skip


def started(process: str) -> None:
    """After the rows of a process were checked and hooked."""
    if process == "model":
        from engine.sglang import msa

        msa.start()


# ------------------------------------------------------------------------------------------------ sparse attention
def sparse_decode(
    original: Callable[..., Any], q: Any, sink: Any, k_cache: Any, v_cache: Any, idx_q: Any, idx_sink: Any,
    idx_k_cache: Any, idx_v_cache: Any, req_to_token: Any, slot_ids: Any, seq_lens: Any, max_seqlen: int,
    block_size_q: int, block_size_k: int, topk: int, init_blocks: int, local_blocks: int, **options: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """AROUND minimax_sparse_decode: (None, o), or what SGLang's own returns."""
    from engine.sglang import msa

    reason = _unusual(q, sink, idx_q, idx_sink, idx_v_cache, k_cache, options, block_size_k) or next(
        (name for name in ("topk_out", "hisparse_swap_in_fn", "dense_main_attn_fn", "indexer_cp")
         if options.get(name) is not None), None)  # fmt: skip
    if reason is None and options.get("packed_queries", 1) != 1:
        reason = "packed_queries"
    done = None
    if reason is None:
        work = msa.Work(q, idx_q, k_cache, v_cache, idx_k_cache, req_to_token, slot_ids,
                        block_size_k, topk, init_blocks, local_blocks, options.get("sm_scale"),
                        options.get("k_scale"), options.get("v_scale"))  # fmt: skip
        done, reason = msa.decode(work, seq_lens)
    if done is not None:
        return None, done
    msa.fell_back("decode", reason or "off")
    return original(q, sink, k_cache, v_cache, idx_q, idx_sink, idx_k_cache, idx_v_cache, req_to_token, slot_ids,
                    seq_lens, max_seqlen, block_size_q, block_size_k, topk, init_blocks, local_blocks, **options)  # fmt: skip


def sparse_prefill(
    original: Callable[..., Any], q: Any, k_cache: Any, v_cache: Any, sink: Any, idx_q: Any, idx_k_cache: Any,
    idx_v_cache: Any, idx_sink: Any, req_to_token: Any, slot_ids: Any, cu_seqlens: Any, seq_lens: Any,
    prefix_lens: Any, max_seqlen_q: int, max_seqlen_k: int, block_size_q: int, block_size_k: int, topk: int,
    init_blocks: int, local_blocks: int, **options: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """AROUND minimax_sparse_prefill: (None, o), or what SGLang's own returns."""
    from engine.sglang import msa

    reason = _unusual(q, sink, idx_q, idx_sink, idx_v_cache, k_cache, options, block_size_k)
    if reason is None and options.get("return_topk_idx"):
        reason = "return_topk_idx"
    if reason is None and options.get("loc_mapping") is not None:
        reason = "loc_mapping"
    new, lengths = options.get("seqlens_cpu"), options.get("seq_lens_cpu")
    if reason is None and (new is None or lengths is None):
        reason = "lengths_not_on_host"
    done = None
    if reason is None:
        work = msa.Work(q, idx_q, k_cache, v_cache, idx_k_cache, req_to_token, slot_ids,
                        block_size_k, topk, init_blocks, local_blocks, options.get("sm_scale"),
                        options.get("k_scale"), options.get("v_scale"))  # fmt: skip
        done, reason = msa.extend(work, cu_seqlens, new, lengths)
    if done is not None:
        return None, done
    msa.fell_back("prefill", reason or "off")
    return original(q, k_cache, v_cache, sink, idx_q, idx_k_cache, idx_v_cache, idx_sink, req_to_token, slot_ids,
                    cu_seqlens, seq_lens, prefix_lens, max_seqlen_q, max_seqlen_k, block_size_q, block_size_k, topk,
                    init_blocks, local_blocks, **options)  # fmt: skip


def _unusual(
    q: Any, sink: Any, idx_q: Any, idx_sink: Any, idx_v_cache: Any, k_cache: Any, options: dict[str, Any], block: int
) -> str | None:
    """What both steps leave to SGLang's own kernels."""
    if sink is not None or idx_sink is not None:
        return "sink"
    if idx_v_cache is not None or not options.get("disable_index_value", False):
        return "index_value"
    if options.get("score_type", "max") != "max":
        return "score_type"
    if options.get("cached_topk_idx") is not None:
        return "cached_topk_idx"
    if options.get("use_msa"):
        return "sm100_msa"
    if idx_q.shape[1] != k_cache.shape[1]:
        return "index_heads"
    if options.get("page_size", 1) % block:
        return "page_size"
    if q.element_size() == 1:
        return "query_dtype"
    return None


# ------------------------------------------------------------------------------------------------ pictures
def image_feature(original: Callable[..., Any], model: Any, items: Sequence[Any]) -> Any:
    return original(model, [_normalised(model, item) for item in items])


def video_feature(original: Callable[..., Any], model: Any, items: Sequence[Any]) -> Any:
    return original(model, [_normalised(model, item) for item in items])


def _normalised(model: Any, item: Any) -> Any:
    """The item with rows as the vision tower takes them; the item itself keeps what was sent (eviction may need it)."""
    import copy

    import torch

    if not isinstance(item.feature, torch.Tensor) or item.feature.dtype != torch.uint8:
        return item
    from engine.sglang.normalise import normalised

    weight = model.vision_tower.vision_model.embeddings.patch_embedding.weight
    changed = copy.copy(item)
    changed.feature = normalised(item.feature.to(weight.device), model.vision_tower.dtype)
    return changed


def media_inputs(input_ids: list[int], items: Sequence[tuple[Any, torch.Tensor]], image_id: int, video_id: int) -> Any:
    """SGLang's multimodal inputs from (wire.Item, rows) pairs: one item per picture, known by its own 32-byte hash."""
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
        one.set_identity(bytes.fromhex(item.hash))
        made.append(one)
    return MultimodalProcessorOutput(
        mm_items=made, input_ids=input_ids, im_token_id=image_id, video_token_id=video_id
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------ requests
PREPARED = "catalejo_media"
AFTER_IDS = "catalejo_after_ids"


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


def dispatched(result: Any, manager: Any, rid: str) -> None:
    call = _waiting.pop(rid, None)
    if call is not None:
        call()


def grammar_after(result: Any, manager: Any, req: Any) -> None:
    """AFTER GrammarManager._apply_request_reasoning_config: the grammar waits for one of the request's marker ids."""
    params = req.sampling_params.custom_params
    after = params.get(AFTER_IDS) if isinstance(params, dict) else None
    if not after or not hasattr(req.grammar, "fill_vocab_mask") or hasattr(req.grammar, "error_message"):
        return
    from sglang.srt.constrained.reasoner_grammar_backend import ReasonerGrammarObject

    waiting = ReasonerGrammarObject(grammar=req.grammar, think_end_ids=after[:1])
    waiting._think_end_matcher = AnyOf(after)
    waiting.maybe_init_reasoning(True)
    req.grammar = waiting


def seeds(result: Any, cls: type, batch: Any, vocab_size: int) -> None:
    """AFTER SamplingBatchInfo.from_schedule_batch: SGLang keeps seeds for its deterministic mode, yet its PyTorch sampler
    honours them in any. Requests without a seed get one of their own, since batches are merged column by column."""
    if result.sampling_seed is not None or not _seeded_sampler():
        return
    import secrets

    import torch

    drawn = []
    for req in batch.reqs:
        if req.sampling_params.sampling_seed is None:
            req.sampling_params.sampling_seed = secrets.randbits(62)
        drawn.append(req.sampling_params.sampling_seed)
    result.sampling_seed = torch.tensor(drawn, dtype=torch.int64).to(result.temperatures.device, non_blocking=True)


def _seeded_sampler() -> bool:
    from sglang.srt.runtime_context import get_exec

    execution = get_exec()
    return execution.deterministic.enable_deterministic_inference or execution.kernel.sampling_backend == "pytorch"


class AnyOf:
    """Takes the place of SGLang's matcher of one sequence: any one of several ids ends the thinking."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = frozenset(ids)

    def __len__(self) -> int:
        return 1

    def advance(self, matched: int, token: int) -> int:
        return int(token in self._ids)


# ------------------------------------------------------------------------------------------------ the server
def set_up_server(server_args: Any, tokenizer_manager: Any, *args: Any, **kwargs: Any) -> None:
    """BEFORE _setup_and_run_http_server: the route goes onto SGLang's own app."""
    from sglang.srt.entrypoints import http_server
    from sglang.srt.runtime_context import get_serving

    from engine.sglang import server

    if get_serving().tokenizer_worker_num != 1:
        raise SystemExit("catalejo: --tokenizer-worker-num above 1 is not supported; refusing to serve")
    server.install(http_server.app, Host(tokenizer_manager), get_serving().api_key)


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
        return _seeded_sampler()

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
