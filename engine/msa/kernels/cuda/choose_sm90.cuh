// The choice of a row's pages: from candidates (score_sm90.cuh) or from blocks named by the caller. One CTA makes it for
// itself, in shared memory.
#pragma once
#include "select.cuh"

namespace msa {

struct AttendParams {
  const void* query;
  int64_t query_row_stride, query_head_stride;  // elements
  const void *keys, *values;
  int64_t k_page_stride, k_token_stride, k_head_stride;  // elements
  int64_t v_page_stride, v_token_stride, v_head_stride;
  void* output;
  int64_t output_row_stride, output_head_stride;
  float* lse;
  Candidates candidates;
  int32_t* blocks;  // written when candidates are given (or null), read when not
  int64_t blocks_row_stride, blocks_group_stride;
  PageTable table;
  Lengths lengths;
  int32_t groups, heads, topk, score_ctas;
  float scale_log2, value_scale;  // softmax scale * key scale * log2(e)
};

// The pages a row attends to, in any order: page, tokens of it that the row sees, and what block it is
// (an index of Candidates::block if >= 0, else -1 - block).
struct Chosen {
  int32_t page[kTopK], limit[kTopK], source[kTopK];
  int32_t count;
};

template <int WARPS>
struct Chooser {
  static constexpr int kThreads = WARPS * 32;
  static constexpr int kPool = kMaxScoreCtas * kTopK;  // even
  static constexpr int kList = kTopK * ((kPool / 2 + kThreads - 1) / kThreads * 2);  // items of 16 threads
  struct alignas(16) Arena {  // dead once the choice is made
    uint64_t best[kThreads];
    uint64_t item[kPool];  // key << 32 | ~index: all different, equal keys by lower index
    int32_t page[kPool];
    uint64_t list[kList];
    uint64_t floor;
    uint32_t warp_floor[WARPS];
    int32_t count;
  };
  struct alignas(16) Smem { Chosen chosen; };

  // Everything up to the own block: fewer blocks than k. One warp.
  MSA_DEVICE static void take_all(const AttendParams& p, Smem& sm, int request, int length, int own) {
    if (lane() <= own) {
      sm.chosen.page[lane()] = page_of(p.table, table_row(p.table, request), lane());
      sm.chosen.limit[lane()] = length - lane() * kBlock;
      sm.chosen.source[lane()] = -1 - lane();
    }
    if (lane() == 0) sm.chosen.count = own + 1;
  }

  // Lists this thread's items that are not below the floor.
  MSA_DEVICE static void collect(Arena& arena, int n, uint64_t best, uint64_t floor) {
    if (best < floor) return;
    MSA_NO_UNROLL
    for (int i = 2 * tid(); i < n; i += (i & 1) ? 2 * kThreads - 1 : 1) {
      const uint64_t v = arena.item[i];
      if (v >= floor) {
        const int at = smem_add(&arena.count, 1);
        if (at < kList) arena.list[at] = v;
      }
    }
  }

  // For (request, row j, group). Starts after the candidates are written; ends with a CTA barrier.
  MSA_DEVICE static void choose(const AttendParams& p, Smem& sm, Arena& arena, int request, int j, int group, const Share& share,
                                int own_page) {
    const int length = row_length(p.lengths, request, j), own = length > 0 ? (length - 1) >> 7 : -1;
    if (own < p.topk) {
      if (warp() == 0) take_all(p, sm, request, length, own);
      cta_sync();
      return;
    }
    const int want = p.topk - 1;
    const int n = share.splits * share_slots(share.blocks, share.splits);
    const int64_t base = candidate_base(p.candidates, request, j * p.groups + group, share);
    // Each warp finds its share of the k best among the bests of its lanes; the lowest of those is a floor under the k-th
    // of all, and the few items not below it are ranked exactly by counting. Short code on purpose: it runs once, and
    // waiting is what it costs.
    uint64_t best = 0;
    MSA_UNROLL_4
    for (int i = 2 * tid(); i < n; i += 2 * kThreads) {
      const uint4 two = load_16(p.candidates.key_page + base + i);  // may look one behind the last, never behind the buffer
      const uint64_t a = two.x ? static_cast<uint64_t>(two.x) << 32 | (0xffffffffu - static_cast<uint32_t>(i)) : 0;
      const uint64_t b = two.z && i + 1 < n ? static_cast<uint64_t>(two.z) << 32 | (0xfffffffeu - static_cast<uint32_t>(i)) : 0;
      arena.item[i] = a;
      arena.item[i + 1] = b;
      arena.page[i] = static_cast<int>(two.y);
      arena.page[i + 1] = static_cast<int>(two.w);
      const uint64_t higher = a > b ? a : b;
      best = higher > best ? higher : best;
    }
    arena.best[tid()] = best;
    if (tid() == 0) arena.count = 0;
    const int busy = n >= 2 * kThreads ? WARPS : (n + 63) >> 6, take = busy >= WARPS ? (kTopK + WARPS - 1) / WARPS : (kTopK + busy - 1) / busy;
    uint32_t mine = picked_key(best), high = 0;
    MSA_NO_UNROLL
    for (int r = 0; r < take; r++) {
      high = warp_max(mine);
      if (lane() == first_bit(ballot(mine == high))) mine = 0;
    }
    if (lane() == 0) arena.warp_floor[warp()] = warp() < busy ? high : 0xffffffffu;
    cta_sync();
    stamp(1, 2);
    uint32_t lowest = arena.warp_floor[0];
    MSA_UNROLL
    for (int w = 1; w < WARPS; w++) lowest = arena.warp_floor[w] < lowest ? arena.warp_floor[w] : lowest;
    collect(arena, n, best, lowest > 0 ? static_cast<uint64_t>(lowest) << 32 : 1);
    cta_sync();
    if (arena.count > kList) {  // very many equal keys: a floor that tells them apart
      cta_sync();
      if (tid() == 0) {
        arena.count = 0;
        arena.floor = 1;
      }
      cta_sync();
      if (best != 0 && count_above(arena.best, kThreads, best) == want - 1) arena.floor = best;
      cta_sync();
      collect(arena, n, best, arena.floor);
      cta_sync();
    }
    const int count = arena.count, got = count < want ? count : want;
    MSA_NO_UNROLL
    for (int i = tid(); i < count; i += kThreads) {
      const uint64_t mine = arena.list[i];
      int above = 0;
      MSA_UNROLL_4
      for (int j = 0; j < count; j++) above += arena.list[j] > mine;
      if (above < want) {
        const int index = picked_index(mine);
        sm.chosen.page[above] = arena.page[index];
        sm.chosen.limit[above] = kBlock;
        sm.chosen.source[above] = static_cast<int>(base) + index;
      }
    }
    if (tid() == 0) {
      sm.chosen.page[got] = own_page;
      sm.chosen.limit[got] = length - own * kBlock;
      sm.chosen.source[got] = -1 - own;
      sm.chosen.count = got + 1;
    }
    cta_sync();
    stamp(1, 3);
  }

  // Blocks named by the caller, in any order; ids outside 0..own are ignored.
  MSA_DEVICE static void take(const AttendParams& p, Smem& sm, int request, int j, int group) {
    if (warp() == 0) {
      const int length = row_length(p.lengths, request, j);
      const int64_t row = static_cast<int64_t>(request) * p.lengths.queries + j;
      const int32_t* table = table_row(p.table, request);
      const int block = lane() < p.topk ? p.blocks[row * p.blocks_row_stride + group * p.blocks_group_stride + lane()] : -1;
      const bool in = block >= 0 && block * kBlock < length;
      const uint32_t all = ballot(in);
      if (in) {
        const int at = popc(all & ((1u << lane()) - 1));
        sm.chosen.page[at] = page_of(p.table, table, block);
        sm.chosen.limit[at] = length - block * kBlock;
        sm.chosen.source[at] = -1 - block;
      }
      if (lane() == 0) sm.chosen.count = popc(all);
    }
    cta_sync();
  }

  // Writes what was chosen: logical blocks ascending (so the own block is the last), then -1. One warp.
  MSA_DEVICE static void report(const AttendParams& p, const Smem& sm, int64_t row, int group) {
    int block = 0x7fffffff;
    if (lane() < sm.chosen.count) {
      const int source = sm.chosen.source[lane()];
      block = source >= 0 ? p.candidates.block[source] : -1 - source;
    }
    int rank = 0;
    MSA_UNROLL_4
    for (int i = 0; i < kTopK; i++) {
      const int other = shfl(block, i);
      rank += other < block || (other == block && i < lane());
    }
    if (lane() < p.topk)
      p.blocks[row * p.blocks_row_stride + group * p.blocks_group_stride + rank] = block == 0x7fffffff ? -1 : block;
  }
};

// The choice alone: one CTA per (row, group).
struct Select {
  static constexpr int kWarps = 4, kThreads = 128, kMinCtas = 3;
  struct alignas(16) Smem {
    Chooser<kWarps>::Arena arena;
    Chooser<kWarps>::Smem chooser;
  };
  MSA_DEVICE static void run(const AttendParams& p, char* memory) {
    Smem& sm = *reinterpret_cast<Smem*>(memory);
    const int row = bid() / p.groups, group = bid() % p.groups;
    const int request = row / p.lengths.queries, j = row % p.lengths.queries;
    const int length = row_length(p.lengths, request, j);
    const Share share = share_of(p.lengths, p.topk, p.score_ctas, request);
    const int own_page = length > 0 ? page_of(p.table, table_row(p.table, request), (length - 1) >> 7) : 0;
    grid_wait();
    grid_trigger();
    Chooser<kWarps>::choose(p, sm.chooser, sm.arena, request, j, group, share, own_page);
    if (warp() == 0) Chooser<kWarps>::report(p, sm.chooser, row, group);
  }
};

}  // namespace msa
