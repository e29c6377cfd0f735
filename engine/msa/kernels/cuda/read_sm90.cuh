// A yardstick, not an operator: reads the same index-key pages as the scores, with the same loads, and keeps nothing.
// What it reaches is the memory's speed for this access; the score kernel is measured against it. Equal lengths only.
#pragma once
#include "score_sm90.cuh"

namespace msa {

struct Read {
  static constexpr int kThreads = 256, kMinCtas = 2;
  struct Smem { int unused; };

  MSA_DEVICE static void run(const ScoreParams& p, char*) {
    grid_wait();
    grid_trigger();
    const int blocks = scored_blocks(p.lengths, 0, p.topk), pieces = static_cast<int>(p.page_stride / 8192);
    uint32_t seen = 0;
    for (int i = bid() * (kThreads / 32) + warp(); i < p.lengths.requests * blocks * pieces; i += grid_size() * (kThreads / 32)) {
      const int r = i / (blocks * pieces), rest = i % (blocks * pieces);
      const int page = page_of(p.table, table_row(p.table, r), rest / pieces);
      const char* at = static_cast<const char*>(p.keys) + page * p.page_stride + (rest % pieces) * 8192 + lane() * 16;
      uint4 part[16];
      MSA_UNROLL
      for (int j = 0; j < 16; j++) part[j] = load_stream(at + j * 512);
      MSA_UNROLL
      for (int j = 0; j < 16; j++) seen |= part[j].x & part[j].y & part[j].z & part[j].w;
    }
    if (seen == 0x12345678u) p.candidates.block[0] = static_cast<int>(seen);  // keeps the loads alive
  }
};

}  // namespace msa
