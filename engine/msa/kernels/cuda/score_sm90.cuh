// Index scores, maximum per block, and the best 16 blocks of this CTA's share: one pass over the index keys.
//
//   in   query      [requests * queries, groups, 128]  16-bit, row and head strides in elements
//        keys       [pages, 128, 128]  bf16, fp16 or e4m3; a page is contiguous up to its page stride (bytes)
//   out  candidates (select.cuh): the best 16 blocks of every split of every request, per column = query row x group
//
// A query's own block is always chosen and later blocks are not causal, so only complete blocks before it are scored:
// no key is ever masked, and the last page, with whatever lies behind its end, is never read here.
//
// One warp scores 8 KB of keys at a time (a quarter or half of a page), brought by the bulk copy engine into its own
// ring of two: 128 KB in flight per multiprocessor without a register or a cache line held for it. (Loads into registers
// did as well only with a large L1: in-flight lines are kept there. See docs/kernels.md.) Keys are the 16-row matrix
// operand, the query columns (queries x groups, padded to 8) the other one, so one m16n8k16 step serves 16 tokens and
// all heads. Bound by memory: bytes / 4.3 TB/s on an H200.
#pragma once
#include "select.cuh"

namespace msa {

struct ScoreParams {
  const void* query;
  int64_t query_row_stride, query_head_stride;  // elements
  const void* keys;
  int64_t page_stride;  // bytes
  Candidates candidates;
  PageTable table;
  Lengths lengths;
  int32_t groups, topk, init_blocks, local_blocks;
  int32_t early, pad;  // what may be read before the grid before this one has finished: 0 nothing, 1 table and lengths,
                       // 2 also keys of complete blocks (only with one query row per request)
};

template <int KD, int QD, int NT, int WARPS>  // key type, query type, tiles of 8 query columns, warps
struct Score {
  static constexpr int kThreads = WARPS * 32, kMinCtas = 1;
  static constexpr int kRowBytes = kDim * Storage<KD>::kBytes;
  static constexpr int kStages = 2;
  static constexpr int kUnitBytes = 8192;
  static constexpr int kUnit = kUnitBytes / kRowBytes;  // tokens
  static constexpr int kUnitsPerPage = kBlock / kUnit;
  static constexpr int kColumns = 8 * NT;
  static constexpr int kRound = 256;  // pages between two selections
  static constexpr int kScratch = (select_scratch(kRound + kTopK) + 1) / 2 * 2;
  static constexpr int kChunks = Storage<KD>::kChunks;

  struct alignas(128) Smem {
    char ring[WARPS][kStages][kUnitBytes];
    uint64_t arrived[WARPS][kStages];
    uint64_t scratch[WARPS][kScratch];
    uint64_t picked[WARPS][kTopK];
    uint32_t key[kColumns][kRound + 1];  // 1 more against bank conflicts
    int32_t page[kRound];
    int32_t own[kColumns];
    uint32_t kept_key[kColumns][kTopK];
    int32_t kept_block[kColumns][kTopK], kept_page[kColumns][kTopK];
  };

  struct State {
    bool waited;        // for the grid before this one
    uint32_t parity[kStages];  // next phase of each stage of this warp's ring
  };

  MSA_DEVICE static void run(const ScoreParams& p, char* memory) {
    Smem& sm = *reinterpret_cast<Smem*>(memory);
    stamp(0, 0);
    State state{p.early == 0, {}};
    if (state.waited) await_inputs();
    if (lane() == 0) {
      MSA_UNROLL
      for (int s = 0; s < kStages; s++) bytes_init(&sm.arrived[warp()][s]);
      bytes_init_done();
    }
    warp_sync();
    Partition partition(p.lengths, p.topk, grid_size());
    MSA_NO_UNROLL
    for (int base = 0; base < p.lengths.requests; base += 32) {
      Share mine = partition.next(p.lengths, p.topk, base);
      bool here = mine.blocks > 0 && bid() >= mine.first && bid() < mine.first + mine.splits;
      for (uint32_t left = ballot(here); left; left &= left - 1) {
        int from = first_bit(left);
        Share s{shfl(mine.blocks, from), shfl(mine.first, from), shfl(mine.splits, from)};
        segment(p, sm, base + from, s, state);
      }
    }
    if (!state.waited) await_inputs();  // a grid that never waits could end before the one it follows
    stamp(0, 14);
  }

  // After this the inputs are there, and so the grid after this one may be set up and read what this one may.
  MSA_DEVICE static void await_inputs() {
    grid_wait();
    grid_trigger();
  }

  // Keys of candidates of a column: what this row may not choose becomes 0, forced blocks rise to the top.
  MSA_DEVICE static uint32_t judged(const ScoreParams& p, int own, int block, uint32_t key) {
    if (block > own - p.local_blocks) key = 0xfffffffeu;
    if (block < p.init_blocks) key = 0xffffffffu;
    return block >= own ? 0 : key;
  }

  MSA_DEVICE static void segment(const ScoreParams& p, Smem& sm, int request, Share share, State& state) {
    const int columns = p.lengths.queries * p.groups, split = bid() - share.first;
    const int begin = share_begin(share.blocks, share.splits, split);
    const int end = share_begin(share.blocks, share.splits, split + 1);
    const int slots = share_slots(share.blocks, share.splits);
    const int32_t* table = table_row(p.table, request);
    auto put = [&](int col, int slot, uint32_t key, int block, int page) {
      int64_t at = candidate_base(p.candidates, request, col, share) + split * slots + slot;
      p.candidates.key_page[at] = uint2{key, static_cast<uint32_t>(page)};
      p.candidates.block[at] = block;
    };

    int kept = 0;  // entries of the kept list, the same for every column
    MSA_NO_UNROLL
    for (int from = begin; from < end; from += kRound) {
      const int count = end - from < kRound ? end - from : kRound;
      cta_sync();  // readers of the round before are done
      for (int i = tid(); i < count; i += kThreads) sm.page[i] = page_of(p.table, table, from + i);
      MSA_NO_UNROLL
      for (int i = tid(); i < count * kColumns; i += kThreads) sm.key[i % kColumns][i / kColumns] = 0;
      if (tid() < kColumns) sm.own[tid()] = tid() < columns ? (row_length(p.lengths, request, tid() / p.groups) - 1) >> 7 : 0;
      cta_sync();
      stamp(0, 1);
      score_round(p, sm, request, count, state);
      cta_sync();
      stamp(0, 4);
      if (end - begin <= kTopK) {  // every block of the share is a candidate
        MSA_NO_UNROLL
        for (int i = tid(); i < columns * slots; i += kThreads) {
          const int col = i / slots, slot = i % slots;
          const bool in = slot < count;
          put(col, slot, in ? judged(p, sm.own[col], from + slot, sm.key[col][slot]) : 0, from + slot, in ? sm.page[slot] : 0);
        }
        stamp(0, 5);
        return;
      }
      MSA_NO_UNROLL
      for (int col = warp(); col < columns; col += WARPS) {
        const int own = sm.own[col];
        auto key = [&](int i) {
          return i < kept ? sm.kept_key[col][i] : judged(p, own, from + i - kept, sm.key[col][i - kept]);
        };
        int n = warp_select(kept + count, kTopK, key, sm.scratch[warp()], sm.picked[warp()]);
        uint64_t best = lane() < n ? sm.picked[warp()][lane()] : 0;
        int i = best ? picked_index(best) : 0, block = 0, page = 0;
        if (best) {
          block = i < kept ? sm.kept_block[col][i] : from + i - kept;
          page = i < kept ? sm.kept_page[col][i] : sm.page[i - kept];
        }
        warp_sync();
        if (lane() < kTopK) {
          sm.kept_key[col][lane()] = picked_key(best);
          sm.kept_block[col][lane()] = block;
          sm.kept_page[col][lane()] = page;
          if (from + count == end && lane() < slots) put(col, lane(), picked_key(best), block, page);
        }
        warp_sync();
      }
      kept = kTopK;
    }
    stamp(0, 5);
  }

  // Scores of the `count` pages in sm.page into sm.key.
  MSA_DEVICE static void score_round(const ScoreParams& p, Smem& sm, int request, int count, State& state) {
    const int columns = p.lengths.queries * p.groups;
    const int units = count * kUnitsPerPage;
    auto fetch = [&](int unit, int stage) {
      if (lane() == 0 && unit < units) {
        const char* from = static_cast<const char*>(p.keys) + sm.page[unit / kUnitsPerPage] * p.page_stride + (unit % kUnitsPerPage) * kUnitBytes;
        bytes_copy(sm.ring[warp()][stage], from, kUnitBytes, &sm.arrived[warp()][stage]);
      }
    };
    if (!state.waited && p.early < 2) {
      await_inputs();
      state.waited = true;
    }
    MSA_UNROLL
    for (int s = 0; s < kStages; s++) fetch(warp() + s * WARPS, s);
    if (!state.waited) {
      await_inputs();
      state.waited = true;
    }
    stamp(0, 2);

    uint32_t q[NT][8][2];  // query columns, in matrix operand order
    MSA_UNROLL
    for (int t = 0; t < NT; t++) {
      const int col = t * 8 + (lane() >> 2);
      const int64_t row = static_cast<int64_t>(request) * p.lengths.queries + col / p.groups;
      const char* at = static_cast<const char*>(p.query) + 2 * (row * p.query_row_stride + (col % p.groups) * p.query_head_stride);
      MSA_UNROLL
      for (int s = 0; s < 8; s++) {
        q[t][s][0] = q[t][s][1] = 0;
        if (col < columns) query_operand<KD, QD>(at, lane() & 3, s, q[t][s][0], q[t][s][1]);
      }
    }

    int stage = 0;
    MSA_NO_UNROLL
    for (int unit = warp(); unit < units; unit += WARPS) {
      uint32_t parity = state.parity[0];  // selects, so that the array stays in registers
      MSA_UNROLL
      for (int s = 1; s < kStages; s++) parity = stage == s ? state.parity[s] : parity;
      bytes_wait(&sm.arrived[warp()][stage], parity);
      MSA_UNROLL
      for (int s = 0; s < kStages; s++) state.parity[s] ^= stage == s;
      float high[NT][2];
      MSA_UNROLL
      for (int n = 0; n < NT; n++) high[n][0] = high[n][1] = -INFINITY;
      const char* rows = sm.ring[warp()][stage] + (lane() >> 2) * kRowBytes + (lane() & 3) * 16;
      MSA_UNROLL_2
      for (int t = 0; t < kUnit / 16; t++) {
        uint4 tile[2][kChunks];
        MSA_UNROLL
        for (int j = 0; j < kChunks; j++) {
          tile[0][j] = load_16(rows + t * 16 * kRowBytes + j * 64);
          tile[1][j] = load_16(rows + (t * 16 + 8) * kRowBytes + j * 64);
        }
        float dot[NT][4];
        MSA_UNROLL
        for (int n = 0; n < NT; n++) dot[n][0] = dot[n][1] = dot[n][2] = dot[n][3] = 0.f;
        MSA_UNROLL
        for (int s = 0; s < 8; s++) {
          uint32_t a0, a1, a2, a3;
          operand<KD>(tile[0], s, a0, a2);
          operand<KD>(tile[1], s, a1, a3);
          MSA_UNROLL
          for (int n = 0; n < NT; n++) mma<kMathType<KD>>(dot[n], a0, a1, a2, a3, q[n][s][0], q[n][s][1]);
        }
        MSA_UNROLL
        for (int n = 0; n < NT; n++) {
          high[n][0] = fast_max(high[n][0], fast_max(dot[n][0], dot[n][2]));
          high[n][1] = fast_max(high[n][1], fast_max(dot[n][1], dot[n][3]));
        }
      }
      warp_sync();  // the stage has been read by all lanes
      fetch(unit + kStages * WARPS, stage);
      stage = stage + 1 == kStages ? 0 : stage + 1;
      MSA_UNROLL
      for (int n = 0; n < NT; n++) {
        MSA_UNROLL
        for (int d = 4; d < 32; d <<= 1) {
          high[n][0] = fast_max(high[n][0], shfl_xor(high[n][0], d));
          high[n][1] = fast_max(high[n][1], shfl_xor(high[n][1], d));
        }
        if ((lane() >> 2) == n) {
          uint32_t* at = &sm.key[n * 8 + (lane() & 3) * 2][unit / kUnitsPerPage];
          smem_max(at, ordered_key(high[n][0]));
          smem_max(at + kRound + 1, ordered_key(high[n][1]));
        }
      }
    }
    stamp(0, 3);
  }
};

}  // namespace msa
