"""The C functions of cuda/decode_sm90.cu as seen from Python: parameter structs, pointers, error codes. No decisions."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p
from functools import cache

import torch
from torch import Tensor

from engine.msa.kernels import build
from engine.msa.layouts import DecodeShape, PageTable

TYPE_CODES = {torch.bfloat16: 0, torch.float16: 1, torch.float8_e4m3fn: 2}


class CTable(ctypes.Structure):
    _fields_ = [
        ("table", c_void_p),
        ("row_stride", c_int64),
        ("step", c_int32),
        ("shift", c_int32),
        ("rows", c_void_p),
        ("rows_64", c_int32),
        ("pad", c_int32),
    ]


class CLengths(ctypes.Structure):
    _fields_ = [
        ("lengths", c_void_p),
        ("is_64", c_int32),
        ("per_row", c_int32),
        ("requests", c_int32),
        ("queries", c_int32),
    ]


class CCandidates(ctypes.Structure):
    _fields_ = [
        ("key_page", c_void_p),
        ("block", c_void_p),
        ("entries", c_int32),
        ("pad", c_int32),
    ]


class CScore(ctypes.Structure):
    _fields_ = [
        ("query", c_void_p),
        ("query_row_stride", c_int64),
        ("query_head_stride", c_int64),
        ("keys", c_void_p),
        ("page_stride", c_int64),
        ("candidates", CCandidates),
        ("table", CTable),
        ("lengths", CLengths),
        ("groups", c_int32),
        ("topk", c_int32),
        ("init_blocks", c_int32),
        ("local_blocks", c_int32),
        ("early", c_int32),
        ("pad", c_int32),
    ]


class CAttend(ctypes.Structure):
    _fields_ = [
        ("query", c_void_p),
        ("query_row_stride", c_int64),
        ("query_head_stride", c_int64),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("k_page_stride", c_int64),
        ("k_token_stride", c_int64),
        ("k_head_stride", c_int64),
        ("v_page_stride", c_int64),
        ("v_token_stride", c_int64),
        ("v_head_stride", c_int64),
        ("output", c_void_p),
        ("output_row_stride", c_int64),
        ("output_head_stride", c_int64),
        ("lse", c_void_p),
        ("candidates", CCandidates),
        ("blocks", c_void_p),
        ("blocks_row_stride", c_int64),
        ("blocks_group_stride", c_int64),
        ("table", CTable),
        ("lengths", CLengths),
        ("groups", c_int32),
        ("heads", c_int32),
        ("topk", c_int32),
        ("score_ctas", c_int32),
        ("scale_log2", c_float),
        ("value_scale", c_float),
    ]


class NativeKernelError(RuntimeError):
    """A launch was refused: the CUDA error code is in the text."""


@cache
def load(emulate: bool = False) -> ctypes.CDLL:
    """The library, compiled on first use; its idea of the structs is checked against ours."""
    lib = ctypes.CDLL(str(build.library(emulate=emulate)))
    for which, struct in enumerate((CScore, CAttend)):
        theirs, ours = lib.msa_abi(which), ctypes.sizeof(struct)
        if theirs != ours:
            raise NativeKernelError(f"{struct.__name__} has {ours} bytes here and {theirs} in the library: rebuild it")
    lib.msa_score.argtypes = [ctypes.POINTER(CScore)] + [c_int32] * 4 + [c_void_p]
    lib.msa_read.argtypes = [ctypes.POINTER(CScore)] + [c_int32] * 2 + [c_void_p]
    lib.msa_select.argtypes = [ctypes.POINTER(CAttend)] + [c_int32] * 2 + [c_void_p]
    lib.msa_attend.argtypes = [ctypes.POINTER(CAttend)] + [c_int32] * 7 + [c_void_p]
    return lib


def check(code: int, what: str) -> None:
    if code != 0:
        reason = "no kernel for these types" if code == -1 else f"CUDA error {code}"
        raise NativeKernelError(f"{what}: {reason}")


def set_table(c: CTable, table: PageTable) -> None:
    c.table, c.row_stride = table.table.data_ptr(), table.table.stride(0)
    c.step, c.shift = table.step, table.shift
    c.rows = None if table.rows is None else table.rows.data_ptr()
    c.rows_64 = table.rows is not None and table.rows.dtype == torch.int64


def set_lengths(c: CLengths, lengths: Tensor, shape: DecodeShape) -> None:
    c.lengths, c.is_64 = lengths.data_ptr(), lengths.dtype == torch.int64
    c.per_row, c.requests, c.queries = shape.lengths_per_row, shape.requests, shape.queries


def stream_of(device: torch.device) -> int | None:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None
