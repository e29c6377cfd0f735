// The end of a decode step: choose the pages, attend to them, merge the parts.
//
//   in   query   [rows, groups * heads, 128] 16-bit; keys, values: pages of 128 tokens, bf16, fp16 or e4m3,
//                element (page, token, group, d) at base + page * page_stride + token * token_stride + group * head_stride + d
//        candidates (score_sm90.cuh), or blocks [rows, groups, 16] chosen by the caller
//   out  output  [rows, groups * heads, 128] in the query's type; lse [rows, groups * heads] fp32 if wanted;
//        blocks  [rows, groups, 16] if wanted: ascending, own block last, then -1
//
// One cluster of CTAs serves one (query row, group): up to 16 query heads are the 16 rows of the matrix operand. The
// chosen pages are dealt to the CTAs of the cluster; in a CTA every warp takes 16 or 32 tokens of each page, a step of 16
// at a time. Steps stream through a ring in shared memory that is private to each lane: a lane copies exactly the 16-byte
// chunks that it will need as matrix operands (see `operand` for why K needs no transposition; V is paired by byte_perm),
// so there is nothing to synchronise, and DEPTH - 1 steps of 16 tokens (8 KB; e4m3: a half step more) are in flight per warp.
// Parts are merged by log-sum-exp: warps through shared memory; CTAs store theirs into the shared memory of the peer that
// finishes that share of the elements (a store does not wait, a load across the cluster does). No workspace, no atomics on
// memory, the same bits every time.
// The choice is repeated by every CTA of the cluster: that is cheaper than publishing it from one of them.
#pragma once
#include "choose_sm90.cuh"

namespace msa {

// K/V type, query type, warps a CTA, 8 KB steps in its ring, blocks given
template <int KD, int QD, int WARPS, int DEPTH, bool GIVEN>
struct Attend {
  static constexpr int kThreads = WARPS * 32, kMinCtas = DEPTH == 2 ? 3 : 2;
  static constexpr int kMath = kMathType<KD>;
  static constexpr int kBytes = Storage<KD>::kBytes;
  static constexpr int kChunks = Storage<KD>::kChunks;
  static constexpr int kHalves = KD == kE4m3 ? 1 : 2;              // 16-byte chunks of a value row per lane
  static constexpr int kStepChunks = 2 * kChunks + 4 * kHalves;    // of keys: tokens g, g + 8; of values: 2c, 2c+1, 2c+8, 2c+9
  static constexpr int kStages = DEPTH * (KD == kE4m3 ? 2 : 1);
  static constexpr int kStepsPerPage = kBlock / 16 / WARPS;        // 16-token steps a warp takes of each page
  static constexpr int kRow = kDim + 16;                           // floats of a head's part: 16 more against bank conflicts
  static_assert(WARPS == 4 || WARPS == 8, "a page is shared by 4 or 8 warps");

  using Ring = uint4[WARPS][kStages][kStepChunks][32];
  using Part = float[WARPS][16][kRow];
  union alignas(16) Arena {  // one after the other
    typename Chooser<WARPS>::Arena choose;
    Ring ring;
    Part part;
    MSA_DEVICE Arena() {}
  };
  struct alignas(16) Smem {
    Arena arena;
    float warp_max[WARPS][16], warp_sum[WARPS][16];
    // From every CTA of the cluster, this one's share of the elements (in the order of `element`): sum of
    // exp2(score - max) v; and the max and sum of every head. Peers write here while this CTA may still be working.
    float4 parts[16 * kDim / 4];
    float2 states[16][16];
    typename Chooser<WARPS>::Smem chooser;
  };

  // Operand registers of output tile `i` (0..15): column g of the tile is element
  // 64 (i / 8) + 8 g + i % 8 of the value row (16-bit) or 16 g + i (e4m3).
  MSA_DEVICE static void value_operand(const uint4 (&v)[4][kHalves], int i, uint32_t& b0, uint32_t& b1) {
    if constexpr (KD == kE4m3) {
      const int w = i >> 2;
      const uint32_t sel = (i & 2) ? 0x7362 : 0x5140;
      uint32_t first = byte_perm(word(v[0][0], w), word(v[1][0], w), sel);
      uint32_t second = byte_perm(word(v[2][0], w), word(v[3][0], w), sel);
      b0 = e4m3_to_half2((i & 1) ? first >> 16 : first & 0xffffu);
      b1 = e4m3_to_half2((i & 1) ? second >> 16 : second & 0xffffu);
    } else {
      const int h = i >> 3, w = (i & 7) >> 1;
      const uint32_t sel = (i & 1) ? 0x7632 : 0x5410;
      b0 = byte_perm(word(v[0][h], w), word(v[1][h], w), sel);
      b1 = byte_perm(word(v[2][h], w), word(v[3][h], w), sel);
    }
  }
  // A head's part is kept in the order that its owners write it: float4 number (i / 4 * 2 + second) * 4 + c holds tiles
  // i .. i + 3 of column 2c + second. The value element its first float stands for; the other three follow it.
  MSA_DEVICE static int element(int four) {
    const int i = (four >> 3) * 4, col = 2 * (four & 3) + ((four >> 2) & 1);
    return KD == kE4m3 ? 16 * col + i : 64 * (i >> 3) + 8 * col + (i & 7);
  }

  MSA_DEVICE static void run(const AttendParams& p, char* memory, int cluster_size) {
    Smem& sm = *reinterpret_cast<Smem*>(memory);
    stamp(1, 0);
    cluster_arrive();
    const int log_cluster = popc(cluster_size - 1);  // a power of two
    const int rank = bid() & (cluster_size - 1), unit = bid() >> log_cluster;
    const int row = unit / p.groups, group = unit - row * p.groups;
    const int request = row / p.lengths.queries, j = row - request * p.lengths.queries;
    const int g = lane() >> 2, c = lane() & 3;

    // With candidates, the grid before this one (scores) has itself waited for the queries: they may be read at once.
    if constexpr (GIVEN) grid_wait();
    const int length = row_length(p.lengths, request, j);
    uint32_t q[8][4];
    MSA_UNROLL
    for (int s = 0; s < 8; s++) {
      MSA_UNROLL
      for (int h = 0; h < 2; h++) {
        const int head = g + 8 * h;
        uint32_t lo = 0, hi = 0;
        if (head < p.heads)
          query_operand<KD, QD>(static_cast<const char*>(p.query) + 2 * (row * p.query_row_stride + (group * p.heads + head) * p.query_head_stride),
                                c, s, lo, hi);
        q[s][h] = lo;
        q[s][2 + h] = hi;
      }
    }
    if constexpr (GIVEN) {
      Chooser<WARPS>::take(p, sm.chooser, request, j, group);
    } else {
      const Share share = share_of(p.lengths, p.topk, p.score_ctas, request);
      const int own_page = length > 0 ? page_of(p.table, table_row(p.table, request), (length - 1) >> 7) : 0;
      grid_wait();
      stamp(1, 1);
      Chooser<WARPS>::choose(p, sm.chooser, sm.arena.choose, request, j, group, share, own_page);
    }
    const Chosen& chosen = sm.chooser.chosen;
    stamp(1, 4);

    // Steps of this warp: page rank + cluster_size * (step / kStepsPerPage), its step % kStepsPerPage-th 16 tokens.
    const int pages = chosen.count > rank ? (chosen.count - rank + cluster_size - 1) >> log_cluster : 0;
    const int steps = pages * kStepsPerPage;
    uint4* ring = &sm.arena.ring[warp()][0][0][lane()];
    const char* keys = static_cast<const char*>(p.keys) + group * p.k_head_stride * kBytes + c * 16;
    const char* values = static_cast<const char*>(p.values) + group * p.v_head_stride * kBytes + g * 16;
    auto token_of = [&](int step) { return (warp() * kStepsPerPage + step % kStepsPerPage) * 16; };
    auto fetch = [&](int step, int stage) {
      if (step < steps) {
        const int at = rank + cluster_size * (step / kStepsPerPage), limit = chosen.limit[at], token = token_of(step);
        const int64_t page = chosen.page[at];
        uint4* to = ring + stage * kStepChunks * 32;
        MSA_UNROLL
        for (int t = 0; t < 2; t++) {
          const int own = token + 8 * t + g;
          const char* from = keys + (page * p.k_page_stride + own * p.k_token_stride) * kBytes;
          MSA_UNROLL
          for (int x = 0; x < kChunks; x++) copy_async(to + (t * kChunks + x) * 32, from + x * 64, own < limit);
        }
        MSA_UNROLL
        for (int t = 0; t < 4; t++) {
          const int own = token + 2 * c + (t & 1) + (t >> 1) * 8;
          const char* from = values + (page * p.v_page_stride + own * p.v_token_stride) * kBytes;
          MSA_UNROLL
          for (int x = 0; x < kHalves; x++) copy_async(to + (2 * kChunks + t * kHalves + x) * 32, from + x * 128, own < limit);
        }
      }
      copy_commit();
    };

    float out[16][4], top[2] = {-INFINITY, -INFINITY}, total[2] = {0.f, 0.f};
    MSA_UNROLL
    for (int i = 0; i < 16; i++) out[i][0] = out[i][1] = out[i][2] = out[i][3] = 0.f;
    int stage = 0, refill = 0;
    MSA_NO_UNROLL
    for (int step = 1 - kStages; step < steps; step++) {  // the first kStages - 1 rounds only fetch
      if (step >= 0) copy_wait<kStages - 2>();
      fetch(step + kStages - 1, refill);
      refill = refill + 1 == kStages ? 0 : refill + 1;
      if (step < 0) continue;
      const uint4* mine = ring + stage * kStepChunks * 32;
      stage = stage + 1 == kStages ? 0 : stage + 1;
      const int end = chosen.limit[rank + cluster_size * (step / kStepsPerPage)], token = token_of(step), first = token + 2 * c;
      if (token >= end) continue;  // the whole warp: this step lies behind the last token

      uint4 k[2][kChunks];
      MSA_UNROLL
      for (int t = 0; t < 2; t++) {
        MSA_UNROLL
        for (int x = 0; x < kChunks; x++) k[t][x] = load_16(mine + (t * kChunks + x) * 32);
      }
      float s[2][4] = {{0.f, 0.f, 0.f, 0.f}, {0.f, 0.f, 0.f, 0.f}};
      MSA_UNROLL
      for (int st = 0; st < 8; st++) {
        MSA_UNROLL
        for (int t = 0; t < 2; t++) {
          uint32_t b0, b1;
          operand<KD>(k[t], st, b0, b1);
          mma<kMath>(s[t], q[st][0], q[st][1], q[st][2], q[st][3], b0, b1);
        }
      }
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
      uint4 v[4][kHalves];
      MSA_UNROLL
      for (int t = 0; t < 4; t++) {
        MSA_UNROLL
        for (int x = 0; x < kHalves; x++) v[t][x] = load_16(mine + (2 * kChunks + t * kHalves + x) * 32);
      }
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
    stamp(1, 5);
    grid_trigger();  // not before: what the next grid reads early would only delay the pages above
    merge(p, sm, out, top, total, row, group, rank, cluster_size);
    if constexpr (!GIVEN) {
      if (p.blocks && rank == 0 && warp() == 0) Chooser<WARPS>::report(p, sm.chooser, row, group);
    }
    stamp(1, 14);
  }

  MSA_DEVICE static float weight(float part_max, float max) { return part_max == -INFINITY ? 0.f : fast_exp2(part_max - max); }

  MSA_DEVICE static void merge(const AttendParams& p, Smem& sm, float (&out)[16][4], float (&top)[2], float (&total)[2], int row,
                               int group, int rank, int cluster_size) {
    const int g = lane() >> 2, c = lane() & 3;
    // Warps of the CTA.
    MSA_UNROLL
    for (int h = 0; h < 2; h++) {
      total[h] += shfl_xor(total[h], 1);
      total[h] += shfl_xor(total[h], 2);
      if (c == 0) {
        sm.warp_max[warp()][g + 8 * h] = top[h];
        sm.warp_sum[warp()][g + 8 * h] = total[h];
      }
    }
    cta_sync();  // also: the ring is dead, its memory becomes `part`
    MSA_UNROLL
    for (int h = 0; h < 2; h++) {
      const int head = g + 8 * h;
      float max = -INFINITY;
      MSA_UNROLL
      for (int w = 0; w < WARPS; w++) max = fast_max(max, sm.warp_max[w][head]);
      const float f = weight(top[h], max);
      float4* to = reinterpret_cast<float4*>(sm.arena.part[warp()][head]);
      MSA_UNROLL
      for (int i = 0; i < 16; i += 4) {
        MSA_UNROLL
        for (int second = 0; second < 2; second++) {
          const int a = 2 * h + second;
          to[(i / 4 * 2 + second) * 4 + c] = float4{out[i][a] * f, out[i + 1][a] * f, out[i + 2][a] * f, out[i + 3][a] * f};
        }
      }
    }
    cta_sync();
    constexpr int fours = kDim / 4;
    const int log_each = 9 - popc(cluster_size - 1), each = 1 << log_each;  // 512 float4s in all
    cluster_wait();  // every CTA of the cluster has begun: its shared memory may be written
    for (int i = tid(); i < 16 * cluster_size; i += kThreads) {
      const int head = i & 15;
      float max = -INFINITY, sum = 0.f;
      MSA_UNROLL
      for (int w = 0; w < WARPS; w++) max = fast_max(max, sm.warp_max[w][head]);
      MSA_UNROLL
      for (int w = 0; w < WARPS; w++) sum += sm.warp_sum[w][head] * weight(sm.warp_max[w][head], max);
      cluster_store(&sm.states[rank][head], i >> 4, float2{max, sum});
    }
    for (int i = tid(); i < 16 * fours; i += kThreads) {
      float4 sum{0.f, 0.f, 0.f, 0.f};
      MSA_UNROLL
      for (int w = 0; w < WARPS; w++) add(sum, 1.f, reinterpret_cast<const float4*>(sm.arena.part[w][i / fours])[i % fours]);
      cluster_store(&sm.parts[rank * each + (i & (each - 1))], i >> log_each, sum);
    }
    stamp(1, 6);
    // CTAs of the cluster: each finishes its share of the elements.
    cluster_arrive();
    cluster_wait();
    stamp(1, 7);
    for (int i = tid(); i < each; i += kThreads) {
      const int four = rank * each + i, head = four / fours;
      float max = -INFINITY, total_sum = 0.f;
      MSA_UNROLL_4
      for (int r = 0; r < cluster_size; r++) max = fast_max(max, sm.states[r][head].x);
      float4 value{0.f, 0.f, 0.f, 0.f};
      MSA_UNROLL_4
      for (int r = 0; r < cluster_size; r++) {
        const float2 state = sm.states[r][head];
        const float f = weight(state.x, max);
        total_sum += f * state.y;
        add(value, f, sm.parts[r * each + i]);
      }
      if (head < p.heads) {
        const float f = total_sum > 0.f ? p.value_scale / total_sum : 0.f;
        const int64_t at = row * p.output_row_stride + (group * p.heads + head) * p.output_head_stride + element(four % fours);
        const uint2 packed{pack2<QD>(value.x * f, value.y * f), pack2<QD>(value.z * f, value.w * f)};
        *reinterpret_cast<uint2*>(static_cast<uint16_t*>(p.output) + at) = packed;
        if (p.lse && four % fours == 0)
          p.lse[row * (p.groups * p.heads) + group * p.heads + head] = total_sum > 0.f ? max * 0.6931471805599453f + logf(total_sum) : -INFINITY;
      }
    }
    stamp(1, 8);
  }

  MSA_DEVICE static void add(float4& to, float f, const float4& from) {
    to.x += f * from.x;
    to.y += f * from.y;
    to.z += f * from.z;
    to.w += f * from.w;
  }
};

}  // namespace msa
