// The end of a decode step: choose the blocks from the candidates, attend to them, merge the parts.
//
//   in   query   [rows, groups * heads, 128] 16-bit; keys, values: pages of 128 tokens, bf16, fp16 or e4m3,
//                element (page, token, group, d) at base + page * page_stride + token * token_stride + group * head_stride + d
//        candidates (score_sm90.cuh), or blocks [rows, groups, 16] chosen by the caller
//   out  output  [rows, groups * heads, 128] in the query's type; lse [rows, groups * heads] fp32 if wanted;
//        blocks  [rows, groups, 16] if wanted: ascending, own block last, then -1
//
// One cluster of CTAs serves one (query row, group): up to 16 query heads are the 16 rows of the matrix operand. The
// chosen pages are dealt to the CTAs of the cluster; in a CTA every warp takes 16 or 32 tokens of each page. K and V go
// from memory straight into matrix registers (see `operand` for why K needs no transposition; V is paired by byte_perm).
// Parts are merged by log-sum-exp: warps through shared memory, CTAs through distributed shared memory. No workspace, no
// atomics, the same bits every time.
// The choice is repeated by every CTA of the cluster: that is cheaper than publishing it from one of them.
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
  const uint32_t* candidate_key;
  const int32_t* candidate_block;
  const int32_t* candidate_page;
  int32_t* blocks;  // written when candidates are given, read when not
  int64_t blocks_row_stride, blocks_group_stride;
  PageTable table;
  Lengths lengths;
  int32_t groups, heads, topk, score_ctas;
  int32_t init_blocks, local_blocks;
  float scale_log2, value_scale;  // softmax scale * key scale * log2(e)
};

// The pages a row attends to, in shared memory: blocks ascending.
struct Chosen {
  int32_t block[kTopK], page[kTopK];
  int32_t count;
};

template <int WARPS>
struct Chooser {
  static constexpr int kPool = 1024;  // candidates ranked together; more are taken in turns
  struct Smem {
    uint64_t scratch[WARPS][16 * (kPool / 32 + 1)];
    uint64_t picked[WARPS][kTopK];
    uint32_t pool_key[WARPS * kTopK];
    int32_t pool_block[WARPS * kTopK], pool_page[WARPS * kTopK];
    int32_t raw_block[kTopK], raw_page[kTopK];
    Chosen chosen;
  };

  // Sorts raw (any order, block -1: empty) into chosen; warp 0 only.
  MSA_DEVICE static void order(Smem& sm, int block, int page) {
    int rank = 0;
    for (int i = 0; i < kTopK; i++) {
      int other = shfl(block, i);
      rank += other >= 0 && other < block;
    }
    if (lane() < kTopK && block >= 0) {
      sm.chosen.block[rank] = block;
      sm.chosen.page[rank] = page;
    }
    int count = popc(ballot(lane() < kTopK && block >= 0));
    if (lane() == 0) sm.chosen.count = count;
  }

  // Fills sm.chosen for (request, row j, group). Ends with a CTA barrier. `share` of the request as in select.cuh.
  MSA_DEVICE static void choose(const AttendParams& p, Smem& sm, int request, int j, int group, const Share& share, int ready_own_page) {
    const int length = row_length(p.lengths, request, j), own = length > 0 ? (length - 1) >> 7 : -1;
    if (own < p.topk) {  // everything is chosen
      if (warp() == 0) {
        bool in = lane() <= own;
        order(sm, in ? lane() : -1, in ? page_of(p.table, table_row(p.table, request), lane()) : 0);
      }
      cta_sync();
      return;
    }
    const int columns = p.lengths.queries * p.groups, col = j * p.groups + group, want = p.topk - 1;
    const int slots = share_slots(share.blocks, share.splits), n = share.splits * slots;
    const int64_t entry = share.first + request;
    auto at = [&](int i) { return ((entry + i / slots) * columns + col) * kTopK + i % slots; };
    // Every warp ranks a contiguous part; parts above kPool items go in turns, carrying 16 along in the pool arrays.
    const int per_warp = (n + WARPS - 1) / WARPS, begin = warp() * per_warp;
    const int stop = begin + per_warp < n ? begin + per_warp : n;
    int kept = 0;
    uint32_t* pool_key = sm.pool_key + warp() * kTopK;
    int32_t* pool_block = sm.pool_block + warp() * kTopK;
    int32_t* pool_page = sm.pool_page + warp() * kTopK;
    if (lane() < kTopK) pool_key[lane()] = 0;
    warp_sync();
    for (int from = begin; from < stop; from += kPool) {
      const int count = stop - from < kPool ? stop - from : kPool;
      auto key = [&](int i) { return i < kept ? pool_key[i] : p.candidate_key[at(from + i - kept)]; };
      int got = warp_select(kept + count, want, key, sm.scratch[warp()], sm.picked[warp()]);
      uint64_t best = lane() < got ? sm.picked[warp()][lane()] : 0;
      int i = best ? picked_index(best) : 0, block = 0, page = 0;
      if (best) {
        block = i < kept ? pool_block[i] : p.candidate_block[at(from + i - kept)];
        page = i < kept ? pool_page[i] : p.candidate_page[at(from + i - kept)];
      }
      warp_sync();
      if (lane() < kTopK) {
        pool_key[lane()] = picked_key(best);
        pool_block[lane()] = block;
        pool_page[lane()] = page;
      }
      warp_sync();
      kept = kTopK;
    }
    cta_sync();
    if (warp() == 0) {
      auto key = [&](int i) { return sm.pool_key[i]; };
      int got = warp_select(WARPS * kTopK, want, key, sm.scratch[0], sm.picked[0]);
      int block = -1, page = 0;
      if (lane() < got) {
        int i = picked_index(sm.picked[0][lane()]);
        block = sm.pool_block[i];
        page = sm.pool_page[i];
      } else if (lane() == want) {
        block = own;
        page = ready_own_page;
      }
      order(sm, block, page);
    }
    cta_sync();
  }

  // Blocks named by the caller: ids outside 0..own are ignored.
  MSA_DEVICE static void take(const AttendParams& p, Smem& sm, int request, int j, int group) {
    const int length = row_length(p.lengths, request, j), own = length > 0 ? (length - 1) >> 7 : -1;
    if (warp() == 0) {
      int block = -1, page = 0;
      if (lane() < p.topk) {
        int64_t row = static_cast<int64_t>(request) * p.lengths.queries + j;
        block = p.blocks[row * p.blocks_row_stride + group * p.blocks_group_stride + lane()];
        if (block < 0 || block > own) block = -1;
        else page = page_of(p.table, table_row(p.table, request), block);
      }
      order(sm, block, page);
    }
    cta_sync();
  }
};

// The share of one request: a walk of the partition up to it.
MSA_DEVICE Share share_of(const Lengths& l, int topk, int ctas, int request) {
  Partition partition(l, topk, ctas);
  Share mine{0, 0, 1};
  for (int base = 0; base <= request; base += 32) {
    Share s = partition.next(l, topk, base);
    if (request < base + 32) {
      int from = request - base;
      mine = Share{shfl(s.blocks, from), shfl(s.first, from), shfl(s.splits, from)};
    }
  }
  return mine;
}

// Writes chosen blocks: ascending, -1 behind.
MSA_DEVICE void put_blocks(const AttendParams& p, const Chosen& chosen, int64_t row, int group) {
  if (tid() < p.topk)
    p.blocks[row * p.blocks_row_stride + group * p.blocks_group_stride + tid()] = tid() < chosen.count ? chosen.block[tid()] : -1;
}

// The choice alone: one CTA per (row, group).
struct Select {
  static constexpr int kWarps = 4, kThreads = 128, kMinCtas = 4;
  using Smem = Chooser<kWarps>::Smem;
  MSA_DEVICE static void run(const AttendParams& p, char* memory) {
    Smem& sm = *reinterpret_cast<Smem*>(memory);
    const int row = bid() / p.groups, group = bid() % p.groups;
    const int request = row / p.lengths.queries, j = row % p.lengths.queries;
    grid_wait();
    grid_trigger();
    const int length = row_length(p.lengths, request, j);
    Share share = share_of(p.lengths, p.topk, p.score_ctas, request);
    int own_page = length > 0 ? page_of(p.table, table_row(p.table, request), (length - 1) >> 7) : 0;
    Chooser<kWarps>::choose(p, sm, request, j, group, share, own_page);
    put_blocks(p, sm.chosen, row, group);
  }
};

template <int KD, int QD, int WARPS, bool GIVEN>  // K/V type, query type, warps a CTA, blocks given by the caller
struct Attend {
  static constexpr int kThreads = WARPS * 32;
  static constexpr int kMath = kMathType<KD>;
  static constexpr int kChunks = Storage<KD>::kChunks;
  static constexpr int kStepsPerPage = kBlock / 16 / WARPS;  // 16-token steps a warp takes of each page
  static constexpr int kRow = kDim + 4;                      // floats a merged row takes: 4 more against bank conflicts
  static_assert(WARPS == 4 || WARPS == 8, "a page is shared by 4 or 8 warps");

  struct Smem {
    float part[WARPS][16][kRow];
    float warp_max[WARPS][16], warp_sum[WARPS][16];
    float out[16 * kDim];     // of this CTA: sum of exp2(score - max) v
    float max[16], sum[16];
    typename Chooser<WARPS>::Smem chooser;
  };

  struct Keys { uint4 chunk[2][kChunks]; };                     // tokens g and g + 8
  struct Values { uint4 chunk[4][KD == kE4m3 ? 1 : 2]; };       // tokens 2c, 2c+1, 2c+8, 2c+9; chunk g (and g + 8)

  MSA_DEVICE static uint4 load_or_zero(const char* at, bool in) { return in ? load_stream(at) : uint4{0, 0, 0, 0}; }

  MSA_DEVICE static void load_keys(Keys& k, const AttendParams& p, int page, int token, int group, int limit) {
    constexpr int bytes = Storage<KD>::kBytes;
    const char* base = static_cast<const char*>(p.keys) + (page * p.k_page_stride + group * p.k_head_stride) * bytes + (lane() & 3) * 16;
    MSA_UNROLL
    for (int t = 0; t < 2; t++) {
      int at = token + 8 * t + (lane() >> 2);
      const char* row = base + at * p.k_token_stride * bytes;
      MSA_UNROLL
      for (int j = 0; j < kChunks; j++) k.chunk[t][j] = load_or_zero(row + j * 64, at < limit);
    }
  }

  MSA_DEVICE static void load_values(Values& v, const AttendParams& p, int page, int token, int group, int limit) {
    constexpr int bytes = Storage<KD>::kBytes;
    const char* base = static_cast<const char*>(p.values) + (page * p.v_page_stride + group * p.v_head_stride) * bytes + (lane() >> 2) * 16;
    MSA_UNROLL
    for (int t = 0; t < 4; t++) {
      int at = token + 2 * (lane() & 3) + (t & 1) + (t >> 1) * 8;
      const char* row = base + at * p.v_token_stride * bytes;
      v.chunk[t][0] = load_or_zero(row, at < limit);
      if constexpr (KD != kE4m3) v.chunk[t][1] = load_or_zero(row + 128, at < limit);
    }
  }

  // Operand registers of output tile `i` (0..15): column g of the tile is element
  // 64 (i / 8) + 8 g + i % 8 of the value row (16-bit) or 16 g + i (e4m3).
  MSA_DEVICE static void value_operand(const Values& v, int i, uint32_t& b0, uint32_t& b1) {
    if constexpr (KD == kE4m3) {
      const int w = i >> 2;
      const uint32_t sel = (i & 2) ? 0x7362 : 0x5140;
      uint32_t first = byte_perm(word(v.chunk[0][0], w), word(v.chunk[1][0], w), sel);
      uint32_t second = byte_perm(word(v.chunk[2][0], w), word(v.chunk[3][0], w), sel);
      b0 = e4m3_to_half2((i & 1) ? first >> 16 : first & 0xffffu);
      b1 = e4m3_to_half2((i & 1) ? second >> 16 : second & 0xffffu);
    } else {
      const int h = i >> 3, w = (i & 7) >> 1;
      const uint32_t sel = (i & 1) ? 0x7632 : 0x5410;
      b0 = byte_perm(word(v.chunk[0][h], w), word(v.chunk[1][h], w), sel);
      b1 = byte_perm(word(v.chunk[2][h], w), word(v.chunk[3][h], w), sel);
    }
  }
  // Element of the value row that accumulator 0 (plus 2: accumulator 1) of tile i belongs to.
  MSA_DEVICE static int value_element(int i, int second) {
    int col = 2 * (lane() & 3) + second;
    return KD == kE4m3 ? 16 * col + i : 64 * (i >> 3) + 8 * col + (i & 7);
  }

  MSA_DEVICE static void run(const AttendParams& p, char* memory, int cluster_size) {
    Smem& sm = *reinterpret_cast<Smem*>(memory);
    const int rank = bid() % cluster_size, unit = bid() / cluster_size;
    const int row = unit / p.groups, group = unit % p.groups;
    const int request = row / p.lengths.queries, j = row % p.lengths.queries;

    // Not written by the grid before this one (scores): may be read before the wait, since that grid itself has waited.
    if constexpr (GIVEN) grid_wait();
    const int length = row_length(p.lengths, request, j);
    uint32_t q[8][4];
    MSA_UNROLL
    for (int s = 0; s < 8; s++) {
      MSA_UNROLL
      for (int h = 0; h < 2; h++) {
        int head = (lane() >> 2) + 8 * h;
        uint32_t lo = 0, hi = 0;
        if (head < p.heads)
          query_operand<KD, QD>(static_cast<const char*>(p.query) + 2 * (row * p.query_row_stride + (group * p.heads + head) * p.query_head_stride),
                                lane() & 3, s, lo, hi);
        q[s][h] = lo;
        q[s][2 + h] = hi;
      }
    }
    if constexpr (GIVEN) {
      grid_trigger();
      Chooser<WARPS>::take(p, sm.chooser, request, j, group);
    } else {
      Share share = share_of(p.lengths, p.topk, p.score_ctas, request);
      int own_page = length > 0 ? page_of(p.table, table_row(p.table, request), (length - 1) >> 7) : 0;
      grid_wait();
      grid_trigger();
      Chooser<WARPS>::choose(p, sm.chooser, request, j, group, share, own_page);
      if (p.blocks && rank == 0) put_blocks(p, sm.chooser.chosen, row, group);
    }
    const Chosen& chosen = sm.chooser.chosen;

    float out[16][4], top[2] = {-INFINITY, -INFINITY}, total[2] = {0.f, 0.f};
    MSA_UNROLL
    for (int i = 0; i < 16; i++) out[i][0] = out[i][1] = out[i][2] = out[i][3] = 0.f;

    // Steps of this warp: page rank + cluster_size * (step / kStepsPerPage), its step % kStepsPerPage-th 16 tokens.
    const int pages = chosen.count > rank ? (chosen.count - rank + cluster_size - 1) / cluster_size : 0;
    const int steps = pages * kStepsPerPage;
    auto place = [&](int step, int& page, int& token, int& limit) {
      int at = rank + cluster_size * (step / kStepsPerPage);
      page = chosen.page[at];
      limit = length - chosen.block[at] * kBlock;
      token = (warp() * kStepsPerPage + step % kStepsPerPage) * 16;
    };
    int page, token, limit;
    Keys k;
    if (steps > 0) {
      place(0, page, token, limit);
      load_keys(k, p, page, token, group, limit);
    }
    MSA_NO_UNROLL
    for (int step = 0; step < steps; step++) {
      Values v;
      load_values(v, p, page, token, group, limit);
      float s[2][4] = {{0.f, 0.f, 0.f, 0.f}, {0.f, 0.f, 0.f, 0.f}};
      MSA_UNROLL
      for (int st = 0; st < 8; st++) {
        MSA_UNROLL
        for (int t = 0; t < 2; t++) {
          uint32_t b0, b1;
          operand<KD>(k.chunk[t], st, b0, b1);
          mma<kMath>(s[t], q[st][0], q[st][1], q[st][2], q[st][3], b0, b1);
        }
      }
      const int first = token + 2 * (lane() & 3), end = limit;
      const bool empty = token >= limit;
      if (step + 1 < steps) {
        place(step + 1, page, token, limit);
        load_keys(k, p, page, token, group, limit);
      }
      if (empty) continue;  // the whole warp: this step lies behind the last token

      MSA_UNROLL
      for (int t = 0; t < 2; t++) {
        MSA_UNROLL
        for (int i = 0; i < 4; i++) s[t][i] = first + 8 * t + (i & 1) < end ? s[t][i] * p.scale_log2 : -INFINITY;
      }
      float shrink[2];
      MSA_UNROLL
      for (int h = 0; h < 2; h++) {
        float m = fast_max(fast_max(s[0][2 * h], s[0][2 * h + 1]), fast_max(s[1][2 * h], s[1][2 * h + 1]));
        m = fast_max(m, shfl_xor(m, 1));
        m = fast_max(m, shfl_xor(m, 2));
        m = fast_max(m, top[h]);
        shrink[h] = fast_exp2(top[h] - m);
        top[h] = m;
        float sum = 0.f;
        MSA_UNROLL
        for (int t = 0; t < 2; t++) {
          s[t][2 * h] = fast_exp2(s[t][2 * h] - m);
          s[t][2 * h + 1] = fast_exp2(s[t][2 * h + 1] - m);
          sum += s[t][2 * h] + s[t][2 * h + 1];
        }
        total[h] = total[h] * shrink[h] + sum;
      }
      const uint32_t a0 = pack2<kMath>(s[0][0], s[0][1]), a1 = pack2<kMath>(s[0][2], s[0][3]);
      const uint32_t a2 = pack2<kMath>(s[1][0], s[1][1]), a3 = pack2<kMath>(s[1][2], s[1][3]);
      MSA_UNROLL
      for (int i = 0; i < 16; i++) {
        uint32_t b0, b1;
        value_operand(v, i, b0, b1);
        out[i][0] *= shrink[0];
        out[i][1] *= shrink[0];
        out[i][2] *= shrink[1];
        out[i][3] *= shrink[1];
        mma<kMath>(out[i], a0, a1, a2, a3, b0, b1);
      }
    }
    merge(p, sm, out, top, total, row, group, rank, cluster_size);
  }

  MSA_DEVICE static float weight(float part_max, float max) { return part_max == -INFINITY ? 0.f : fast_exp2(part_max - max); }

  MSA_DEVICE static void merge(const AttendParams& p, Smem& sm, float (&out)[16][4], float (&top)[2], float (&total)[2], int row,
                               int group, int rank, int cluster_size) {
    // Warps of the CTA.
    MSA_UNROLL
    for (int h = 0; h < 2; h++) {
      total[h] += shfl_xor(total[h], 1);
      total[h] += shfl_xor(total[h], 2);
      if ((lane() & 3) == 0) {
        sm.warp_max[warp()][(lane() >> 2) + 8 * h] = top[h];
        sm.warp_sum[warp()][(lane() >> 2) + 8 * h] = total[h];
      }
    }
    cta_sync();
    MSA_UNROLL
    for (int h = 0; h < 2; h++) {
      const int head = (lane() >> 2) + 8 * h;
      float max = -INFINITY;
      MSA_UNROLL
      for (int w = 0; w < WARPS; w++) max = fast_max(max, sm.warp_max[w][head]);
      const float f = weight(top[h], max);
      MSA_UNROLL
      for (int i = 0; i < 16; i += 4) {
        MSA_UNROLL
        for (int second = 0; second < 2; second++) {
          const int a = 2 * h + second;
          float4 four{out[i][a] * f, out[i + 1][a] * f, out[i + 2][a] * f, out[i + 3][a] * f};
          *reinterpret_cast<float4*>(&sm.part[warp()][head][value_element(i, second)]) = four;
        }
      }
    }
    if (tid() < 16) {
      float max = -INFINITY, sum = 0.f;
      for (int w = 0; w < WARPS; w++) max = fast_max(max, sm.warp_max[w][tid()]);
      for (int w = 0; w < WARPS; w++) sum += sm.warp_sum[w][tid()] * weight(sm.warp_max[w][tid()], max);
      sm.max[tid()] = max;
      sm.sum[tid()] = sum;
    }
    cta_sync();
    for (int i = tid(); i < 16 * kDim; i += kThreads) {
      float sum = 0.f;
      MSA_UNROLL
      for (int w = 0; w < WARPS; w++) sum += sm.part[w][i / kDim][i % kDim];
      sm.out[i] = sum;
    }
    // CTAs of the cluster: each finishes its share of the elements.
    if (cluster_size > 1) cluster_sync(); else cta_sync();
    const int each = 16 * kDim / cluster_size;
    for (int i = rank * each + tid(); i < (rank + 1) * each; i += kThreads) {
      const int head = i / kDim;
      float max = sm.max[head], sum = sm.sum[head], value = sm.out[i];
      if (cluster_size > 1) {
        float maxes[16];
        max = -INFINITY, sum = 0.f, value = 0.f;
        MSA_UNROLL
        for (int r = 0; r < 16; r++) maxes[r] = r < cluster_size ? cluster_load(&sm.max[head], r) : -INFINITY;
        MSA_UNROLL
        for (int r = 0; r < 16; r++) max = fast_max(max, maxes[r]);
        MSA_UNROLL
        for (int r = 0; r < 16; r++) {
          if (r < cluster_size) {
            float f = weight(maxes[r], max);
            sum += f * cluster_load(&sm.sum[head], r);
            value += f * cluster_load(&sm.out[i], r);
          }
        }
      }
      if (head < p.heads) {
        const float result = sum > 0.f ? value / sum * p.value_scale : 0.f;
        const int64_t at = row * p.output_row_stride + (group * p.heads + head) * p.output_head_stride + i % kDim;
        static_cast<uint16_t*>(p.output)[at] = static_cast<uint16_t>(pack2<QD>(result, 0.f));
        if (p.lse && i % kDim == 0) p.lse[row * (p.groups * p.heads) + group * p.heads + head] = sum > 0.f ? max * 0.6931471805599453f + logf(sum) : -INFINITY;
      }
    }
    if (cluster_size > 1) cluster_sync();  // nobody leaves while its shared memory is still read
  }
};

}  // namespace msa
