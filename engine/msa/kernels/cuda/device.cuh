// The device vocabulary of the MSA kernels: every instruction and synchronisation they use, by name.
// Two backs: the GPU (inline PTX, sm_90a) and, with -DMSA_EMULATE, a lock-step emulator (emulate.hpp) that runs the
// same kernel sources on a CPU for tests. Kernels never use a CUDA builtin directly.
#pragma once
#include <cstdint>

#ifdef MSA_EMULATE
#include "emulate.hpp"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#define MSA_DEVICE __device__ __forceinline__
#define MSA_DEVICE_CALL __device__ __noinline__
#define MSA_UNROLL _Pragma("unroll")
#define MSA_UNROLL_2 _Pragma("unroll 2")
#define MSA_UNROLL_4 _Pragma("unroll 4")
#define MSA_UNROLL_8 _Pragma("unroll 8")
#define MSA_NO_UNROLL _Pragma("unroll 1")
#endif

namespace msa {

enum DType : int { kBf16 = 0, kF16 = 1, kE4m3 = 2 };

constexpr int kBlock = 128;  // tokens in a key block and in a page
constexpr int kDim = 128;    // head dim of attention and index heads
constexpr int kTopK = 16;    // most blocks a query attends to: capacity of every list

template <int D>
struct Storage {
  static constexpr int kBytes = D == kE4m3 ? 1 : 2;
  static constexpr int kPerChunk = 16 / kBytes;               // elements in 16 bytes
  static constexpr int kChunks = kDim / kPerChunk / 4;        // 16-byte chunks of a row that one lane of a quad holds
  static constexpr int kStepsPerChunk = kPerChunk / 4;        // k16 matrix steps one chunk feeds: 4 elements a lane
};

#ifndef MSA_EMULATE
MSA_DEVICE int tid() { return threadIdx.x; }
MSA_DEVICE int bid() { return blockIdx.x; }
MSA_DEVICE int grid_size() { return gridDim.x; }
MSA_DEVICE void cta_sync() { __syncthreads(); }
MSA_DEVICE void warp_sync() { __syncwarp(); }
template <typename T>
MSA_DEVICE T shfl_xor(T v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
template <typename T>
MSA_DEVICE T shfl(T v, int lane) { return __shfl_sync(0xffffffffu, v, lane); }
MSA_DEVICE uint32_t ballot(bool p) { return __ballot_sync(0xffffffffu, p); }
MSA_DEVICE int popc(uint32_t v) { return __popc(v); }
MSA_DEVICE int first_bit(uint32_t v) { return __ffs(v) - 1; }
MSA_DEVICE void smem_max(uint32_t* p, uint32_t v) { atomicMax(p, v); }
MSA_DEVICE uint32_t warp_max(uint32_t v) { return __reduce_max_sync(0xffffffffu, v); }
MSA_DEVICE int smem_add(int* p, int v) { return atomicAdd(p, v); }
MSA_DEVICE uint32_t float_bits(float f) { return __float_as_uint(f); }
MSA_DEVICE float fast_exp2(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
MSA_DEVICE float fast_max(float a, float b) { return fmaxf(a, b); }
// Programmatic dependent launch: wait until the grid before this one has finished and its writes are visible;
// allow the grid after this one to be set up early.
MSA_DEVICE void grid_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
MSA_DEVICE void grid_trigger() { asm volatile("griddepcontrol.launch_dependents;"); }
// The cluster's barrier in halves: what was stored before the one is seen after the other, by all its CTAs.
MSA_DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.aligned;" ::: "memory"); }
MSA_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }
// Stores into CTA `rank` of the cluster, at the address that `p` has in this CTA's shared memory.
MSA_DEVICE uint32_t cluster_address(const void* p, int rank) {
  uint32_t local = static_cast<uint32_t>(__cvta_generic_to_shared(p)), remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(rank));
  return remote;
}
MSA_DEVICE void cluster_store(float4* p, int rank, float4 v) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(cluster_address(p, rank)), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}
MSA_DEVICE void cluster_store(float2* p, int rank, float2 v) {
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1,%2};" ::"r"(cluster_address(p, rank)), "f"(v.x), "f"(v.y) : "memory");
}
// Copies 16 bytes, or 16 zeros when not `in`, in the background; groups of copies complete in the order of commits.
MSA_DEVICE void copy_async(void* to_smem, const void* from, bool in) {
  uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(to_smem));
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(in ? 16 : 0) : "memory");
}
// A barrier in shared memory that counts bytes copied in the background by the copy engine. One phase per copy.
MSA_DEVICE void bytes_init(uint64_t* bar) {
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(bar))) : "memory");
}
MSA_DEVICE void bytes_init_done() { asm volatile("fence.mbarrier_init.release.cluster;\n fence.proxy.async.shared::cta;" ::: "memory"); }
// One thread: starts the copy of `bytes` (a multiple of 16) of contiguous memory.
MSA_DEVICE void bytes_copy(void* to_smem, const void* from, int bytes, uint64_t* bar) {
  uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(to_smem)), b = static_cast<uint32_t>(__cvta_generic_to_shared(bar));
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(b), "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(b) : "memory");
}
// Waits until phase `parity` (0, 1, 0, ..) of the barrier is complete.
MSA_DEVICE void bytes_wait(uint64_t* bar, uint32_t parity) {
  uint32_t b = static_cast<uint32_t>(__cvta_generic_to_shared(bar));
  asm volatile(
      "{\n .reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(b), "r"(parity) : "memory");
}
MSA_DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
MSA_DEVICE void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }
// 16 bytes that this kernel reads once and nobody writes meanwhile.
MSA_DEVICE uint4 load_stream(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
MSA_DEVICE uint4 load_16(const void* p) { return *static_cast<const uint4*>(p); }
MSA_DEVICE uint32_t byte_perm(uint32_t a, uint32_t b, uint32_t sel) { return __byte_perm(a, b, sel); }
MSA_DEVICE uint32_t e4m3_to_half2(uint32_t two) {
  uint32_t out;
  asm("{ .reg .b16 t; cvt.u16.u32 t, %1; cvt.rn.f16x2.e4m3x2 %0, t; }" : "=r"(out) : "r"(two));
  return out;
}
MSA_DEVICE uint32_t bf16x2_to_half2(uint32_t two) {
  float lo = __uint_as_float(two << 16), hi = __uint_as_float(two & 0xffff0000u);
  uint32_t out;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(hi), "f"(lo));
  return out;
}
template <int D>
MSA_DEVICE uint32_t pack2(float lo, float hi) {  // two floats to bf16x2 (kBf16) or half2
  uint32_t out;
  if constexpr (D == kBf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(hi), "f"(lo));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(hi), "f"(lo));
  }
  return out;
}
// C[16 x 8] += A[16 x 16] B[16 x 8], one warp. Lane = 4 g + c holds
//   a0 (row g, k 2c..2c+1), a1 (row g+8, same k), a2 (row g, k 2c+8..), a3 (row g+8, k 2c+8..);
//   b0 (k 2c..2c+1, col g), b1 (k 2c+8.., col g);  c0 c1 (row g, cols 2c 2c+1), c2 c3 (row g+8).
template <int D>
MSA_DEVICE void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  if constexpr (D == kBf16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}
#endif

#if defined(MSA_STAMPS) && !defined(MSA_EMULATE)
// Where the time goes inside a kernel: a build for measurements only.
__device__ long long stamps[2][64][16];
MSA_DEVICE void stamp(int kernel, int k) {
  if (threadIdx.x == 0 && blockIdx.x < 64) {
    long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    if (k == 0) stamps[kernel][blockIdx.x][15] = t;
    stamps[kernel][blockIdx.x][k] = clock64();
    if (k == 14) stamps[kernel][blockIdx.x][14] = t;
  }
}
#else
MSA_DEVICE void stamp(int, int) {}
#endif

MSA_DEVICE int lane() { return tid() & 31; }
MSA_DEVICE int warp() { return tid() >> 5; }

MSA_DEVICE uint32_t word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// The matrix operand type that storage type D is multiplied in.
template <int D>
constexpr int kMathType = D == kBf16 ? kBf16 : kF16;

// Order of floats as order of unsigned numbers; 0 is below everything, for "no candidate".
MSA_DEVICE uint32_t ordered_key(float score) {
  uint32_t bits = float_bits(score + 0.0f);  // -0 becomes +0
  return (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
}

// k16 step `s` of a row whose 16-byte chunks 4j + c this lane holds in `chunks[j]`: the lane's four elements of the step.
// The dot product does not care in which order k is walked, as long as both operands agree: that is what lets rows go
// straight from memory to matrix registers, 16 bytes at a time, without shared memory or ldmatrix.
template <int D>
MSA_DEVICE void operand(const uint4* chunks, int s, uint32_t& lo, uint32_t& hi) {
  if constexpr (D == kE4m3) {
    uint32_t w = word(chunks[s >> 2], s & 3);
    lo = e4m3_to_half2(w & 0xffffu);
    hi = e4m3_to_half2(w >> 16);
  } else {
    lo = word(chunks[s >> 1], (s & 1) * 2);
    hi = word(chunks[s >> 1], (s & 1) * 2 + 1);
  }
}

// The same four elements of a query row stored as QD (16-bit), converted to the math type of keys stored as KD.
template <int KD, int QD>
MSA_DEVICE void query_operand(const void* row, int c, int s, uint32_t& lo, uint32_t& hi) {
  constexpr int per_chunk = Storage<KD>::kPerChunk, steps = Storage<KD>::kStepsPerChunk;
  int element = (4 * (s / steps) + c) * per_chunk + 4 * (s % steps);
  const uint32_t* at = reinterpret_cast<const uint32_t*>(static_cast<const char*>(row) + element * 2);
  lo = at[0];
  hi = at[1];
  if constexpr (kMathType<KD> == kF16 && QD == kBf16) {
    lo = bf16x2_to_half2(lo);
    hi = bf16x2_to_half2(hi);
  }
}

// Where the pages of a request are. Block b of request r is page  table[rows[r] * row_stride + b * step] >> shift:
// page tables have step 1, shift 0; token tables (slot of every token) step 128, shift 7.
struct PageTable {
  const int32_t* table;
  int64_t row_stride;
  int32_t step, shift;
  const void* rows;  // null: request r is row r
  int32_t rows_64;   // rows holds int64
  int32_t pad;
};

struct Lengths {
  const void* lengths;  // tokens of the request after its last query row, [requests]; or one per query row
  int32_t is_64, per_row;
  int32_t requests, queries;  // query rows of a request, consecutive
};

// Small non-negative integers in int32 or int64 arrays (little endian: the low half is the number). No branch.
MSA_DEVICE int load_int(const void* p, int is_64, int64_t i) { return static_cast<const int32_t*>(p)[i << is_64]; }
MSA_DEVICE const int32_t* table_row(const PageTable& t, int request) {
  int row = t.rows ? load_int(t.rows, t.rows_64, request) : request;
  return t.table + row * t.row_stride;
}
MSA_DEVICE int page_of(const PageTable& t, const int32_t* row, int block) {
  return row[static_cast<int64_t>(block) * t.step] >> t.shift;
}
// Tokens that query row j of request r may see, itself included.
MSA_DEVICE int row_length(const Lengths& l, int r, int j) {
  return load_int(l.lengths, l.is_64, l.per_row ? static_cast<int64_t>(r) * l.queries + j : r) - (l.per_row ? 0 : l.queries - 1 - j);
}
// Blocks of request r that have to be scored: all complete ones, or none when everything is chosen anyway.
MSA_DEVICE int scored_blocks(const Lengths& l, int r, int topk) {
  int length = row_length(l, r, l.queries - 1);
  int own = length > 0 ? (length - 1) / kBlock : 0;
  return own >= topk ? own : 0;
}

}  // namespace msa
