// Top-k over candidates by one warp, and the split of the scoring work over CTAs that writer and reader agree on.
#pragma once
#include "device.cuh"

namespace msa {

// ---------------------------------------------------------------------------------------------- who scores what
// The complete blocks of all requests are cut into `ctas` nearly equal shares, cut again at request borders. Request r
// is scored by CTAs first .. first + splits - 1; split s takes blocks [n s / splits, n (s + 1) / splits). Its candidates
// stand in entries first + r + s: distinct for all (r, s), below ctas + requests.
struct Share { int blocks, first, splits; };

// Walks the requests 32 at a time, all lanes together: the share of request base + lane(). 32-bit on purpose (a 64-bit
// division is a hundred instructions): total blocks times CTAs must stay below 2^32, which a plan checks.
struct Partition {
  uint32_t total, before;
  int ctas;

  MSA_DEVICE static uint32_t warp_sum(uint32_t v) {
    for (int d = 16; d > 0; d >>= 1) v += shfl_xor(v, d);
    return v;
  }
  MSA_DEVICE Partition(const Lengths& l, int topk, int ctas_) : total(0), before(0), ctas(ctas_) {
    for (int base = 0; base < l.requests; base += 32) {
      int r = base + lane();
      total += warp_sum(r < l.requests ? scored_blocks(l, r, topk) : 0);
    }
  }
  MSA_DEVICE Share next(const Lengths& l, int topk, int base) {
    int r = base + lane(), n = r < l.requests ? scored_blocks(l, r, topk) : 0;
    uint32_t sum = n;  // inclusive prefix sum over the lanes
    for (int d = 1; d < 32; d <<= 1) {
      uint32_t other = shfl(sum, lane() >= d ? lane() - d : 0);
      if (lane() >= d) sum += other;
    }
    Share s{n, 0, 1};
    if (total > 0 && n > 0) {
      s.first = static_cast<int>((before + sum - n) * ctas / total);
      int end = static_cast<int>((before + sum) * ctas / total);
      s.splits = end - s.first;
      s.splits = s.splits < 1 ? 1 : s.splits > n ? n : s.splits;
    }
    before += shfl(sum, 31);
    return s;
  }
};

MSA_DEVICE int share_begin(int blocks, int splits, int s) {
  return static_cast<int>(static_cast<uint32_t>(blocks) * static_cast<uint32_t>(s) / static_cast<uint32_t>(splits));
}
// Candidates every split of a request writes per column: the same for writer and reader.
MSA_DEVICE int share_slots(int blocks, int splits) {
  int most = (blocks + splits - 1) / splits;
  return most < kTopK ? most : kTopK;
}

// ---------------------------------------------------------------------------------------------- top-k in a warp
// Items i = 0 .. n - 1 with 32-bit keys key(i); key 0 means "not a candidate". Writes the (at most k <= 16) best to
// out, best first, as key << 32 | ~i, equal keys by lower i; returns their number. All lanes take part.
// scratch: room for 16 * ceil(n / 32) numbers.
// Each lane's best goes into a ranking of 32; the k-th of those is a floor under the k-th of all, and the few items
// above that floor are then ranked exactly by counting.
template <typename Key>
MSA_DEVICE int warp_select(int n, int k, Key key, uint64_t* scratch, uint64_t* out) {
  auto item = [&](int i) -> uint64_t {
    uint32_t v = i < n ? key(i) : 0;
    return v ? static_cast<uint64_t>(v) << 32 | (0xffffffffu - static_cast<uint32_t>(i)) : 0;
  };
  int rounds = (n + 31) >> 5;
  uint64_t best = 0;
  MSA_NO_UNROLL
  for (int j = 0; j < rounds; j++) {
    uint64_t v = item(j * 32 + lane());
    best = v > best ? v : best;
  }
  int rank = 0;
  MSA_NO_UNROLL
  for (int d = 1; d < 32; d++) rank += shfl(best, (lane() + d) & 31) > best;
  uint32_t kth = ballot(rank == k - 1 && best != 0);
  uint64_t floor = kth ? shfl(best, first_bit(kth)) : 1;
  int count = 0;
  MSA_NO_UNROLL
  for (int j = 0; j < rounds; j++) {
    uint64_t v = item(j * 32 + lane());
    uint32_t passed = ballot(v >= floor);
    if (v >= floor) scratch[count + popc(passed & ((1u << lane()) - 1))] = v;
    count += popc(passed);
  }
  warp_sync();
  for (int i = lane(); i < count; i += 32) {
    uint64_t mine = scratch[i];
    int above = 0;
    for (int j = 0; j < count; j++) above += scratch[j] > mine;
    if (above < k) out[above] = mine;
  }
  warp_sync();
  return count < k ? count : k;
}
MSA_DEVICE int picked_index(uint64_t picked) { return static_cast<int>(0xffffffffu - static_cast<uint32_t>(picked)); }
MSA_DEVICE uint32_t picked_key(uint64_t picked) { return static_cast<uint32_t>(picked >> 32); }

}  // namespace msa
