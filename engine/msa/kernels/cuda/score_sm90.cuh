// Index scores, maximum per block, and the best 16 blocks of this CTA's share: one pass over the index keys.
//
//   in   query      [requests * queries, groups, 128]  16-bit, row and head strides in elements
//        keys       [pages, 128, 128]  bf16, fp16 or e4m3; a page is contiguous up to its page stride (bytes)
//   out  candidates (select.cuh): the best 16 blocks of every split of every request, per column = query row x group
//
// A query's own block is always chosen and later blocks are not causal, so only complete blocks before it are scored:
// no key is ever masked, and the last page, with whatever lies behind its end, is never read here.
//
// One warp scores `kUnit` tokens at a time (a quarter or half of a page): rows of keys go from memory straight into the
// matrix registers as the 16-row operand, the query columns (queries x groups, padded to 8) are the other one, so one
// m16n8k16 step serves 16 tokens and all heads. Loads of the next unit are issued as soon as a tile's registers are free:
// 8 KB (bf16) in flight per warp. Bound by memory: bytes / 4.3 TB/s on an H200.
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
  static constexpr int kThreads = WARPS * 32, kMinCtas = 16 / WARPS;
  static constexpr int kTiles = (KD == kE4m3 ? 4 : 2) / (NT >= 4 ? 2 : 1);  // 16-token tiles in flight per warp
  static constexpr int kUnit = 16 * kTiles;
  static constexpr int kUnitsPerPage = kBlock / kUnit;
  static constexpr int kColumns = 8 * NT;
  static constexpr int kRound = NT >= 4 ? 256 : 512;                     // pages between two selections
  static constexpr int kScratch = select_scratch(kRound + kTopK);
  static constexpr int kChunks = Storage<KD>::kChunks;
  static constexpr bool kQueryInSmem = NT >= 4;                          // else 16 registers per tile

  struct alignas(16) Smem {
    uint64_t scratch[WARPS][kScratch];
    uint64_t picked[WARPS][kTopK];
    uint2 query[kQueryInSmem ? NT : 1][8][32];
    uint32_t key[kColumns][kRound + 1];  // 1 more against bank conflicts
    int32_t page[kRound];
    int32_t own[kColumns];
    uint32_t kept_key[kColumns][kTopK];
    int32_t kept_block[kColumns][kTopK], kept_page[kColumns][kTopK];
  };

  MSA_DEVICE static void load_tile(uint4 (&tile)[2][kChunks], const char* rows) {
    constexpr int row_bytes = kDim * Storage<KD>::kBytes;
    const char* at = rows + (lane() >> 2) * row_bytes + (lane() & 3) * 16;
    MSA_UNROLL
    for (int j = 0; j < kChunks; j++) {
      tile[0][j] = load_stream(at + j * 64);
      tile[1][j] = load_stream(at + 8 * row_bytes + j * 64);
    }
  }

  MSA_DEVICE static void run(const ScoreParams& p, char* memory) {
    Smem& sm = *reinterpret_cast<Smem*>(memory);
    bool waited = p.early == 0;
    if (waited) await_inputs();
    Partition partition(p.lengths, p.topk, grid_size());
    for (int base = 0; base < p.lengths.requests; base += 32) {
      Share mine = partition.next(p.lengths, p.topk, base);
      bool here = mine.blocks > 0 && bid() >= mine.first && bid() < mine.first + mine.splits;
      for (uint32_t left = ballot(here); left; left &= left - 1) {
        int from = first_bit(left);
        Share s{shfl(mine.blocks, from), shfl(mine.first, from), shfl(mine.splits, from)};
        segment(p, sm, base + from, s, waited);
      }
    }
    if (!waited) await_inputs();  // a grid that never waits could end before the one it follows
  }

  // After this the inputs are there, and so the grid after this one may be set up and read what this one may.
  MSA_DEVICE static void await_inputs() {
    grid_wait();
    grid_trigger();
  }

  // Keys of candidates of column `col`: what this row may not choose becomes 0, forced blocks rise to the top.
  MSA_DEVICE static uint32_t judged(const ScoreParams& p, int own, int block, uint32_t key) {
    if (block >= own) return 0;
    if (block < p.init_blocks) return 0xffffffffu;
    if (block > own - p.local_blocks) return 0xfffffffeu;
    return key;
  }

  MSA_DEVICE static void segment(const ScoreParams& p, Smem& sm, int request, Share share, bool& waited) {
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
    for (int from = begin; from < end; from += kRound) {
      const int count = end - from < kRound ? end - from : kRound;
      cta_sync();  // readers of the round before are done
      for (int i = tid(); i < count; i += kThreads) sm.page[i] = page_of(p.table, table, from + i);
      for (int i = tid(); i < count * kColumns; i += kThreads) sm.key[i % kColumns][i / kColumns] = 0;
      if (tid() < kColumns) sm.own[tid()] = tid() < columns ? (row_length(p.lengths, request, tid() / p.groups) - 1) >> 7 : 0;
      cta_sync();
      score_round(p, sm, request, count, waited);
      waited = true;
      cta_sync();
      if (end - begin <= kTopK) {  // every block of the share is a candidate
        for (int i = tid(); i < columns * slots; i += kThreads) {
          int col = i / slots, slot = i % slots;
          if (slot < count) put(col, slot, judged(p, sm.own[col], from + slot, sm.key[col][slot]), from + slot, sm.page[slot]);
          else put(col, slot, 0, 0, 0);
        }
        return;
      }
      const int pool = kept + count;
      for (int col = warp(); col < columns; col += WARPS) {
        int own = sm.own[col];
        auto key = [&](int i) {
          return i < kept ? sm.kept_key[col][i] : judged(p, own, from + i - kept, sm.key[col][i - kept]);
        };
        int n = warp_select(pool, kTopK, key, sm.scratch[warp()], sm.picked[warp()]);
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
  }

  // Scores of the `count` pages in sm.page into sm.key.
  // Not inlined: its 64 to 96 operand registers then do not compete with the state of the walk around it.
  MSA_DEVICE_CALL static void score_round(const ScoreParams& p, Smem& sm, int request, int count, bool waited) {
    const int columns = p.lengths.queries * p.groups;
    constexpr int tile_bytes = 16 * kDim * Storage<KD>::kBytes;
    const int units = count * kUnitsPerPage;
    auto rows_of = [&](int unit) {
      return static_cast<const char*>(p.keys) + sm.page[unit / kUnitsPerPage] * p.page_stride +
             (unit % kUnitsPerPage) * kTiles * tile_bytes;
    };
    if (!waited && p.early < 2) await_inputs();
    uint4 tile[kTiles][2][kChunks];
    int unit = warp();
    if (unit < units) {
      const char* rows = rows_of(unit);
      MSA_UNROLL
      for (int t = 0; t < kTiles; t++) load_tile(tile[t], rows + t * tile_bytes);
    }
    if (!waited && p.early == 2) await_inputs();
    // Query columns, in matrix operand order.
    uint32_t q[kQueryInSmem ? 1 : NT][8][2];
    MSA_UNROLL
    for (int t = 0; t < NT; t++) {
      int col = t * 8 + (lane() >> 2);
      int64_t row = static_cast<int64_t>(request) * p.lengths.queries + col / p.groups;
      const char* at = static_cast<const char*>(p.query) +
                       2 * (row * p.query_row_stride + (col % p.groups) * p.query_head_stride);
      MSA_UNROLL
      for (int s = 0; s < 8; s++) {
        uint32_t lo = 0, hi = 0;
        if (kQueryInSmem ? (s % WARPS == warp() && col < columns) : col < columns)
          query_operand<KD, QD>(at, lane() & 3, s, lo, hi);
        if constexpr (kQueryInSmem) {
          if (s % WARPS == warp()) sm.query[t][s][lane()] = uint2{lo, hi};
        } else {
          q[t][s][0] = lo;
          q[t][s][1] = hi;
        }
      }
    }
    if constexpr (kQueryInSmem) cta_sync();

    MSA_NO_UNROLL
    for (; unit < units; unit += WARPS) {
      const bool more = unit + WARPS < units;
      const char* next = more ? rows_of(unit + WARPS) : nullptr;
      float high[NT][2];
      MSA_UNROLL
      for (int n = 0; n < NT; n++) high[n][0] = high[n][1] = -INFINITY;
      MSA_UNROLL
      for (int t = 0; t < kTiles; t++) {
        float dot[NT][4];
        MSA_UNROLL
        for (int n = 0; n < NT; n++) dot[n][0] = dot[n][1] = dot[n][2] = dot[n][3] = 0.f;
        MSA_UNROLL
        for (int s = 0; s < 8; s++) {
          uint32_t a0, a1, a2, a3;
          operand<KD>(tile[t][0], s, a0, a2);
          operand<KD>(tile[t][1], s, a1, a3);
          MSA_UNROLL
          for (int n = 0; n < NT; n++) {
            if constexpr (kQueryInSmem) {
              uint2 b = sm.query[n][s][lane()];
              mma<kMathType<KD>>(dot[n], a0, a1, a2, a3, b.x, b.y);
            } else {
              mma<kMathType<KD>>(dot[n], a0, a1, a2, a3, q[n][s][0], q[n][s][1]);
            }
          }
        }
        if (more) load_tile(tile[t], next + t * tile_bytes);
        MSA_UNROLL
        for (int n = 0; n < NT; n++) {
          high[n][0] = fast_max(high[n][0], fast_max(dot[n][0], dot[n][2]));
          high[n][1] = fast_max(high[n][1], fast_max(dot[n][1], dot[n][3]));
        }
      }
      MSA_UNROLL
      for (int n = 0; n < NT; n++) {
        MSA_UNROLL
        for (int d = 4; d < 32; d <<= 1) {
          high[n][0] = fast_max(high[n][0], shfl_xor(high[n][0], d));
          high[n][1] = fast_max(high[n][1], shfl_xor(high[n][1], d));
        }
        if ((lane() >> 2) == (n & 7)) {
          uint32_t* at = &sm.key[n * 8 + (lane() & 3) * 2][unit / kUnitsPerPage];
          smem_max(at, ordered_key(high[n][0]));
          smem_max(at + kRound + 1, ordered_key(high[n][1]));
        }
      }
    }
  }
};

}  // namespace msa
