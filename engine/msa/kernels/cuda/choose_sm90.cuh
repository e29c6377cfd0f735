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
  static constexpr int kScratch = (select_scratch((kPool + WARPS - 1) / WARPS) + 1) / 2 * 2;
  struct alignas(16) Arena {  // dead once the choice is made
    uint64_t scratch[WARPS][kScratch];
    uint32_t key[kPool];
    int32_t page[kPool];
    uint32_t part_key[WARPS * kTopK];
    int32_t part_index[WARPS * kTopK];
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
    MSA_UNROLL_4
    for (int i = tid(); i < n; i += kThreads) {
      const uint2 one = p.candidates.key_page[base + i];
      arena.key[i] = one.x;
      arena.page[i] = static_cast<int>(one.y);
    }
    cta_sync();
    stamp(1, 2);
    // Level 0: every warp ranks its part of the pool. Level 1: one warp ranks the winners, or a small pool at once.
    const bool two = n > kOneLevel;
    const int part = (n + WARPS - 1) / WARPS;
    MSA_NO_UNROLL
    for (int level = two ? 0 : 1; level < 2; level++) {
      int begin = 0, size = two ? WARPS * kTopK : n;
      const uint32_t* keys = two ? arena.part_key : arena.key;
      if (level == 0) {
        begin = warp() * part;
        size = n - begin < part ? (n > begin ? n - begin : 0) : part;
        keys = arena.key + begin;
      }
      if (level == 0 || warp() == 0) {
        const int got = warp_select(size, want, [&](int i) { return keys[i]; }, arena.scratch[warp()], sm.picked[warp()]);
        const bool in = lane() < got;
        const uint64_t best = in ? sm.picked[warp()][lane()] : 0;
        if (level == 0) {
          if (lane() < kTopK) {
            arena.part_key[warp() * kTopK + lane()] = picked_key(best);
            arena.part_index[warp() * kTopK + lane()] = in ? begin + picked_index(best) : 0;
          }
        } else {
          if (in) {
            const int i = two ? arena.part_index[picked_index(best)] : picked_index(best);
            sm.chosen.page[lane()] = arena.page[i];
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
      }
      cta_sync();
    }
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
