// Runs the kernels' sources on a CPU: one fiber per GPU thread, switched only where threads synchronise.
// For tests of indexing, masking and reductions. It knows nothing of time, caches, or races between warps.
#pragma once
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define MSA_DEVICE inline
#define MSA_DEVICE_CALL inline
#define MSA_UNROLL
#define MSA_UNROLL_2
#define MSA_UNROLL_4
#define MSA_UNROLL_8
#define MSA_NO_UNROLL

struct uint2 { uint32_t x, y; };
struct alignas(16) uint4 { uint32_t x, y, z, w; };
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };

namespace emu {
struct Barrier { int arrived = 0, generation = 0, size = 0; };
struct Warp { Barrier barrier; uint64_t slot[32][12]; };
struct Span { char* begin; char* data() { return begin; } };
struct Cta { std::vector<char> memory; Span smem; Barrier barrier; std::vector<Warp> warps; int bid = 0; };
struct Fiber { ucontext_t context; std::vector<char> stack; int tid = 0, rank = 0; bool done = false; Barrier* on = nullptr; int seen = 0; };
struct Cluster { std::vector<std::unique_ptr<Cta>> ctas; Barrier barrier; };

inline thread_local Fiber* current;
inline thread_local Cluster* cluster;
inline thread_local ucontext_t scheduler;
inline thread_local int grid;
inline thread_local const std::function<void(char*)>* body;

inline Cta& cta() { return *cluster->ctas[current->rank]; }
inline void wait(Barrier& b) {
  int generation = b.generation;
  if (++b.arrived == b.size) { b.arrived = 0; b.generation++; return; }
  current->on = &b;
  current->seen = generation;
  while (b.generation == generation) swapcontext(&current->context, &scheduler);
  current->on = nullptr;
}
inline Warp& warp() { return cta().warps[current->tid >> 5]; }
inline void entry() {
  (*body)(cta().smem.data());
  current->done = true;
  swapcontext(&current->context, &scheduler);
}
inline void launch(int grid_size, int threads, int cluster_size, size_t smem, const std::function<void(char*)>& kernel) {
  body = &kernel;
  grid = grid_size;
  for (int first = 0; first < grid_size; first += cluster_size) {
    Cluster c;
    c.barrier.size = cluster_size * threads;
    cluster = &c;
    std::vector<std::unique_ptr<Fiber>> fibers;
    for (int r = 0; r < cluster_size; r++) {
      auto one = std::make_unique<Cta>();
      one->memory.assign(smem + 128, char(0xA5));
      one->smem.begin = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(one->memory.data()) + 127) & ~uintptr_t(127));
      one->bid = first + r;
      one->barrier.size = threads;
      one->warps.resize(threads / 32);
      for (auto& w : one->warps) w.barrier.size = 32;
      c.ctas.push_back(std::move(one));
      for (int t = 0; t < threads; t++) {
        auto f = std::make_unique<Fiber>();
        f->stack.resize(64 << 10);
        f->tid = t;
        f->rank = r;
        getcontext(&f->context);
        f->context.uc_stack.ss_sp = f->stack.data();
        f->context.uc_stack.ss_size = f->stack.size();
        f->context.uc_link = nullptr;
        makecontext(&f->context, entry, 0);
        fibers.push_back(std::move(f));
      }
    }
    for (size_t left = fibers.size(); left > 0;) {
      bool moved = false;
      for (auto& f : fibers) {
        if (f->done || (f->on && f->on->generation == f->seen)) continue;
        moved = true;
        current = f.get();
        swapcontext(&scheduler, &f->context);
        if (f->done) left--;
      }
      if (!moved) { fprintf(stderr, "emulated kernel: threads wait for a barrier that others never reach\n"); abort(); }
    }
  }
}
inline float half_to_float(uint16_t h) { _Float16 f; memcpy(&f, &h, 2); return f; }
inline uint16_t float_to_half(float v) { _Float16 f = static_cast<_Float16>(v); uint16_t h; memcpy(&h, &f, 2); return h; }
inline float bf16_to_float(uint16_t h) { uint32_t b = uint32_t(h) << 16; float f; memcpy(&f, &b, 4); return f; }
inline uint16_t float_to_bf16(float v) {
  uint32_t b; memcpy(&b, &v, 4);
  if (std::isnan(v)) return 0x7fff;
  return uint16_t((b + 0x7fff + ((b >> 16) & 1)) >> 16);
}
inline float e4m3_to_float(uint8_t e) {
  int exponent = (e >> 3) & 15, mantissa = e & 7;
  float sign = e & 0x80 ? -1.f : 1.f;
  if (exponent == 15 && mantissa == 7) return NAN;
  return sign * (exponent ? std::ldexp(1.f + mantissa / 8.f, exponent - 7) : std::ldexp(mantissa / 8.f, -6));
}
}  // namespace emu

namespace msa {
inline int tid() { return emu::current->tid; }
inline int bid() { return emu::cta().bid; }
inline int grid_size() { return emu::grid; }
inline void cta_sync() { emu::wait(emu::cta().barrier); }
inline void warp_sync() { emu::wait(emu::warp().barrier); }
template <typename T>
inline T exchange(T v, int from) {
  static_assert(sizeof(T) <= 8);
  auto& w = emu::warp();
  memcpy(&w.slot[tid() & 31][0], &v, sizeof(T));
  emu::wait(w.barrier);
  T out;
  memcpy(&out, &w.slot[from & 31][0], sizeof(T));
  emu::wait(w.barrier);
  return out;
}
template <typename T>
inline T shfl_xor(T v, int mask) { return exchange(v, (tid() & 31) ^ mask); }
template <typename T>
inline T shfl(T v, int from) { return exchange(v, from); }
inline uint32_t ballot(bool p) {
  auto& w = emu::warp();
  w.slot[tid() & 31][0] = p;
  emu::wait(w.barrier);
  uint32_t out = 0;
  for (int i = 0; i < 32; i++) out |= uint32_t(w.slot[i][0]) << i;
  emu::wait(w.barrier);
  return out;
}
inline int popc(uint32_t v) { return __builtin_popcount(v); }
inline int first_bit(uint32_t v) { return __builtin_ffs(int(v)) - 1; }
inline void smem_max(uint32_t* p, uint32_t v) { if (v > *p) *p = v; }
inline uint32_t warp_max(uint32_t v) {
  auto& w = emu::warp();
  w.slot[tid() & 31][0] = v;
  emu::wait(w.barrier);
  uint32_t out = 0;
  for (int i = 0; i < 32; i++) out = uint32_t(w.slot[i][0]) > out ? uint32_t(w.slot[i][0]) : out;
  emu::wait(w.barrier);
  return out;
}
inline int smem_add(int* p, int v) { *p += v; return *p - v; }
inline uint32_t float_bits(float f) { uint32_t b; memcpy(&b, &f, 4); return b; }
inline float fast_exp2(float x) { return std::exp2(x); }
inline float fast_max(float a, float b) { return std::fmax(a, b); }
inline void grid_wait() {}
inline void grid_trigger() {}
inline void cluster_arrive() {}
inline void cluster_wait() { emu::wait(emu::cluster->barrier); }
template <typename T>
inline void cluster_store(T* p, int rank, T v) {
  size_t offset = reinterpret_cast<const char*>(p) - emu::cta().smem.data();
  memcpy(emu::cluster->ctas[rank]->smem.data() + offset, &v, sizeof(T));
}
inline void copy_async(void* to, const void* from, bool in) {
  if ((reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to)) & 15) { fprintf(stderr, "misaligned copy\n"); abort(); }
  if (in) memcpy(to, from, 16); else memset(to, 0, 16);
}
inline void bytes_init(uint64_t* bar) { *bar = 0; }
inline void bytes_init_done() {}
inline void bytes_copy(void* to, const void* from, int bytes, uint64_t* bar) {
  if ((reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to) | bytes) & 15) { fprintf(stderr, "misaligned copy\n"); abort(); }
  memcpy(to, from, bytes);
  ++*bar;
}
inline void bytes_wait(uint64_t* bar, uint32_t parity) {
  for (int spins = 0; (*bar & 1) == parity; spins++) {  // phase `parity` not complete
    if (spins > 1000000) { fprintf(stderr, "a copy that was waited for was never started\n"); abort(); }
    swapcontext(&emu::current->context, &emu::scheduler);
  }
}
inline void copy_commit() {}
template <int PENDING>
inline void copy_wait() {}
inline uint4 load_16(const void* p) { uint4 v; memcpy(&v, p, 16); return v; }
inline uint4 load_stream(const void* p) {
  if (reinterpret_cast<uintptr_t>(p) & 15) { fprintf(stderr, "misaligned 16-byte load\n"); abort(); }
  return load_16(p);
}
inline uint32_t byte_perm(uint32_t a, uint32_t b, uint32_t sel) {
  uint64_t both = (uint64_t(b) << 32) | a;
  uint32_t out = 0;
  for (int i = 0; i < 4; i++) out |= uint32_t((both >> (8 * ((sel >> (4 * i)) & 7))) & 255) << (8 * i);
  return out;
}
inline uint32_t e4m3_to_half2(uint32_t two) {
  return emu::float_to_half(emu::e4m3_to_float(two & 255)) | uint32_t(emu::float_to_half(emu::e4m3_to_float((two >> 8) & 255))) << 16;
}
inline uint32_t bf16x2_to_half2(uint32_t two) {
  return emu::float_to_half(emu::bf16_to_float(uint16_t(two))) | uint32_t(emu::float_to_half(emu::bf16_to_float(uint16_t(two >> 16)))) << 16;
}
template <int D>
inline uint32_t pack2(float lo, float hi) {
  return D == 0 ? emu::float_to_bf16(lo) | uint32_t(emu::float_to_bf16(hi)) << 16
                : emu::float_to_half(lo) | uint32_t(emu::float_to_half(hi)) << 16;
}
template <int D>
inline void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  auto& w = emu::warp();
  int me = tid() & 31, g = me >> 2, q = me & 3;
  uint64_t* s = w.slot[me];
  s[0] = a0, s[1] = a1, s[2] = a2, s[3] = a3, s[4] = b0, s[5] = b1;
  emu::wait(w.barrier);
  auto value = [](uint64_t pair, int half) {
    uint16_t h = uint16_t(pair >> (16 * half));
    return D == 0 ? emu::bf16_to_float(h) : emu::half_to_float(h);
  };
  for (int i = 0; i < 4; i++) {
    int row = g + 8 * (i >> 1), col = 2 * q + (i & 1);
    float sum = 0;
    for (int k = 0; k < 16; k++) {
      int half = k & 1, quad = (k & 7) >> 1, upper = k >> 3;
      sum += value(w.slot[(row & 7) * 4 + quad][upper * 2 + (row >> 3)], half) * value(w.slot[col * 4 + quad][4 + upper], half);
    }
    c[i] += sum;
  }
  emu::wait(w.barrier);
}
}  // namespace msa
