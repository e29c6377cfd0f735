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
  static constexpr int kPool = kMaxScoreCtas * kTopK;
  static constexpr int kOneLevel = 256;  // up to here one warp ranks all; above, every warp first ranks its part
  static constexpr int kScratch = select_scratch((kPool + WARPS - 1) / WARPS);
  struct alignas(16) Arena {  // dead once the choice is made
    uint64_t scratch[WARPS][(kScratch + 1) / 2 * 2];
    uint2 pool[kPool];
  };
  struct alignas(16) Smem {
    uint64_t picked[WARPS][kTopK];
    Chosen chosen;
  };

  // Everything up to the own block: fewer blocks than k. One warp.
  MSA_DEVICE static void take_all(const AttendParams& p, Smem& sm, int request, int length, int own) {
    if (lane() <= own) {
      sm.chosen.page[lane()] = page_of(p.table, table_row(p.table, request), lane());
      sm.chosen.limit[lane()] = length - lane() * kBlock;
      sm.chosen.source[lane()] = -1 - lane();
    }
    if (lane() == 0) sm.chosen.count = own + 1;
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
    MSA_UNROLL_8
    for (int i = tid(); i < n; i += kThreads) arena.pool[i] = p.candidates.key_page[base + i];
    cta_sync();
    int rest = n;  // what the last ranking has to look at
    if (n > kOneLevel) {
      const int part = (n + WARPS - 1) / WARPS, begin = warp() * part, size = n - begin < part ? n - begin : part;
      const int got = warp_select(size > 0 ? size : 0, want, [&](int i) { return arena.pool[begin + i].x; }, arena.scratch[warp()],
                                  sm.picked[warp()]);
      if (lane() < kTopK) {
        uint64_t best = lane() < got ? sm.picked[warp()][lane()] : 0;  // index within the part -> within the pool
        sm.picked[warp()][lane()] = best ? best - begin : 0;
      }
      rest = WARPS * kTopK;
      cta_sync();
    }
    if (warp() == 0) {
      const uint64_t* parts = &sm.picked[0][0];
      uint64_t* out = arena.scratch[WARPS - 1];  // not the ranking's own
      auto key = [&](int i) { return rest < n ? picked_key(parts[i]) : arena.pool[i].x; };
      const int got = warp_select(rest, want, key, arena.scratch[0], out);
      if (lane() < got) {
        int i = picked_index(out[lane()]);
        if (rest < n) i = picked_index(parts[i]);
        sm.chosen.page[lane()] = static_cast<int>(arena.pool[i].y);
        sm.chosen.limit[lane()] = kBlock;
        sm.chosen.source[lane()] = static_cast<int>(base) + i;
      }
      if (lane() == 0) {
        sm.chosen.page[got] = own_page;
        sm.chosen.limit[got] = length - own * kBlock;
        sm.chosen.source[got] = -1 - own;
        sm.chosen.count = got + 1;
      }
    }
    cta_sync();
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
    MSA_UNROLL
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
