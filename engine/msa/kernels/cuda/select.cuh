// Top-k over candidates by one warp, and the split of the scoring work over CTAs that writer and reader agree on.
#pragma once
#include "device.cuh"

namespace msa {

// ---------------------------------------------------------------------------------------------- who scores what
// The complete blocks of all requests are cut into `ctas` nearly equal shares, cut again at request borders. Request r
// is scored by CTAs first .. first + splits - 1; split s takes blocks [n s / splits, n (s + 1) / splits).
constexpr int kMaxScoreCtas = 288;

struct Share { int blocks, first, splits; };

// Walks the requests 32 at a time, all lanes together: the share of request base + lane(). 32-bit on purpose (a 64-bit
// division is a hundred instructions): total blocks times CTAs must stay below 2^32, which a plan checks.
struct Partition {
  uint32_t total = 0, before = 0;
  int ctas;

  MSA_DEVICE static uint32_t prefix_sum(uint32_t v) {  // inclusive, over the lanes
    MSA_UNROLL
    for (int d = 1; d < 32; d <<= 1) {
      uint32_t other = shfl(v, lane() >= d ? lane() - d : 0);
      if (lane() >= d) v += other;
    }
    return v;
  }
  MSA_DEVICE Partition(const Lengths& l, int topk, int ctas_) : ctas(ctas_) {
    if (l.requests <= 32) return;  // next() sees them all at once
    MSA_NO_UNROLL
    for (int base = 0; base < l.requests; base += 32) {
      int r = base + lane();
      total += shfl(prefix_sum(r < l.requests ? scored_blocks(l, r, topk) : 0), 31);
    }
  }
  MSA_DEVICE Share next(const Lengths& l, int topk, int base) {
    int r = base + lane(), n = r < l.requests ? scored_blocks(l, r, topk) : 0;
    uint32_t sum = prefix_sum(n), all = shfl(sum, 31);
    if (l.requests <= 32) total = all;
    Share s{n, 0, 1};
    if (total > 0 && n > 0) {
      s.first = static_cast<int>((before + sum - n) * ctas / total);
      int end = static_cast<int>((before + sum) * ctas / total);
      s.splits = end - s.first;
      s.splits = s.splits < 1 ? 1 : s.splits > n ? n : s.splits;
    }
    before += all;
    return s;
  }
};

// The share of one request: a walk of the partition up to it.
MSA_DEVICE Share share_of(const Lengths& l, int topk, int ctas, int request) {
  Partition partition(l, topk, ctas);
  Share mine{0, 0, 1};
  MSA_NO_UNROLL
  for (int base = 0; base <= request; base += 32) {
    Share s = partition.next(l, topk, base);
    if (request < base + 32) {
      int from = request - base;
      mine = Share{shfl(s.blocks, from), shfl(s.first, from), shfl(s.splits, from)};
    }
  }
  return mine;
}

MSA_DEVICE int share_begin(int blocks, int splits, int s) {
  return static_cast<int>(static_cast<uint32_t>(blocks) * static_cast<uint32_t>(s) / static_cast<uint32_t>(splits));
}

// Candidates: key (ordered score, 0: none) and page together, logical block apart (needed only to report a choice).
// Those of (request, column) are contiguous: split by split, `slots` each, from candidate_base.
struct Candidates {
  uint2* key_page;
  int32_t* block;
  int32_t entries, pad;  // ctas + requests: entries first + r .. of request r are its own
};
MSA_DEVICE int share_slots(int blocks, int splits) {
  int most = (blocks + splits - 1) / splits;
  return most < kTopK ? most : kTopK;
}
MSA_DEVICE int64_t candidate_base(const Candidates& c, int request, int col, const Share& share) {
  return (static_cast<int64_t>(col) * c.entries + share.first + request) * kTopK;
}

// ---------------------------------------------------------------------------------------------- top-k in a warp
struct alignas(16) Pair { uint64_t a, b; };

// How many of list[0 .. n) are above v; n even, the list 16-byte aligned.
MSA_DEVICE int count_above(const uint64_t* list, int n, uint64_t v) {
  int above = 0;
  MSA_UNROLL_4
  for (int i = 0; i < n; i += 2) {
    Pair p = *reinterpret_cast<const Pair*>(list + i);
    above += (p.a > v) + (p.b > v);
  }
  return above;
}

// Items i = 0 .. n - 1 with 32-bit keys key(i); key 0 means "not a candidate". Writes the (at most k <= 16) best to
// out, best first, as key << 32 | ~i, equal keys by lower i; returns their number. All lanes take part.
// scratch: 16-byte aligned, room for select_scratch(n) numbers.
// Each lane's best goes into a ranking of 32; the k-th of those is a floor under the k-th of all, and the few items
// above that floor are then ranked exactly by counting.
constexpr int select_scratch(int n) { return (n <= 32 ? 32 : kTopK * ((n + 31) / 32)) + 2; }

template <typename Key>
MSA_DEVICE int warp_select(int n, int k, Key key, uint64_t* scratch, uint64_t* out) {
  auto item = [&](int i) -> uint64_t {
    uint32_t v = i < n ? key(i) : 0;
    return v ? static_cast<uint64_t>(v) << 32 | (0xffffffffu - static_cast<uint32_t>(i)) : 0;
  };
  const int rounds = (n + 31) >> 5;
  uint64_t best = 0;
  MSA_UNROLL_4
  for (int j = 0; j < rounds; j++) {
    uint64_t v = item(j * 32 + lane());
    best = v > best ? v : best;
  }
  scratch[lane()] = best;
  warp_sync();
  int rank = count_above(scratch, 32, best);
  if (n <= 32) {
    if (best && rank < k) out[rank] = best;
    int count = popc(ballot(best != 0));
    warp_sync();
    return count < k ? count : k;
  }
  uint32_t kth = ballot(rank == k - 1 && best != 0);
  uint64_t floor = kth ? shfl(best, first_bit(kth)) : 1;
  int count = 0;
  warp_sync();
  MSA_UNROLL_2
  for (int j = 0; j < rounds; j++) {
    uint64_t v = item(j * 32 + lane());
    uint32_t passed = ballot(v >= floor);
    if (v >= floor) scratch[count + popc(passed & ((1u << lane()) - 1))] = v;
    count += popc(passed);
  }
  if (lane() < 2) scratch[count + lane()] = 0;  // evens out the length
  warp_sync();
  MSA_NO_UNROLL
  for (int i = lane(); i < count; i += 32) {
    uint64_t mine = scratch[i];
    int above = count_above(scratch, (count + 1) & ~1, mine);
    if (above < k) out[above] = mine;
  }
  warp_sync();
  return count < k ? count : k;
}
MSA_DEVICE int picked_index(uint64_t picked) { return static_cast<int>(0xffffffffu - static_cast<uint32_t>(picked)); }
MSA_DEVICE uint32_t picked_key(uint64_t picked) { return static_cast<uint32_t>(picked >> 32); }

}  // namespace msa
