// Entry points of the decode kernels: plain C functions over device pointers and a stream, so that nothing here or in
// the caller depends on a framework's ABI. Return 0, or a cudaError_t, or -1: no kernel for these types.
#include "attend_sm90.cuh"
#include "read_sm90.cuh"
#include "score_sm90.cuh"

using namespace msa;

#ifdef MSA_EMULATE
using Stream = void*;
template <typename K, typename P>
static int launch(const P& p, int grid, int, Stream) {
  emu::launch(grid, K::kThreads, 1, sizeof(typename K::Smem), [&](char* smem) { K::run(p, smem); });
  return 0;
}
template <typename K>
static int launch_cluster(const AttendParams& p, int grid, int cluster, int, Stream) {
  emu::launch(grid, K::kThreads, cluster, sizeof(typename K::Smem), [&](char* smem) { K::run(p, smem, cluster); });
  return 0;
}
#else
using Stream = cudaStream_t;
template <typename K, typename P>
__global__ void __launch_bounds__(K::kThreads, K::kMinCtas) kernel(const __grid_constant__ P p) {
  extern __shared__ __align__(16) char smem[];
  K::run(p, smem);
}
template <typename K>
__global__ void __launch_bounds__(K::kThreads, K::kMinCtas) cluster_kernel(const __grid_constant__ AttendParams p, int cluster) {
  extern __shared__ __align__(16) char smem[];
  K::run(p, smem, cluster);
}
template <typename F, typename... Args>
static int launch_any(F* f, int grid, int threads, size_t smem, int cluster, int pdl, Stream stream, Args... args) {
  static thread_local F* prepared[64];  // raising the limits is per function and device; once is enough, done lazily
  bool seen = false;
  int slot = 0;
  for (; slot < 64 && prepared[slot]; slot++) seen |= prepared[slot] == f;
  if (!seen) {
    cudaError_t e = cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(smem));
    // One carve-out for all: kernels with different ones cannot share a multiprocessor, nor follow without draining it.
    if (e == cudaSuccess && smem > 1024) e = cudaFuncSetAttribute(f, cudaFuncAttributePreferredSharedMemoryCarveout, 100);
    if (e == cudaSuccess) e = cudaFuncSetAttribute(f, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (e != cudaSuccess) return e;
    if (slot < 64) prepared[slot] = f;
  }
  cudaLaunchAttribute attributes[2];
  unsigned n = 0;
  if (pdl) {
    attributes[n].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[n++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    attributes[n].id = cudaLaunchAttributeClusterDimension;
    attributes[n].val.clusterDim.x = cluster;
    attributes[n].val.clusterDim.y = attributes[n].val.clusterDim.z = 1;
    n++;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(grid);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = smem;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = n;
  return cudaLaunchKernelEx(&config, f, args...);
}
template <typename K, typename P>
static int launch(const P& p, int grid, int pdl, Stream stream) {
  return launch_any(kernel<K, P>, grid, K::kThreads, sizeof(typename K::Smem), 1, pdl, stream, p);
}
template <typename K>
static int launch_cluster(const AttendParams& p, int grid, int cluster, int pdl, Stream stream) {
  return launch_any(cluster_kernel<K>, grid, K::kThreads, sizeof(typename K::Smem), cluster, pdl, stream, p, cluster);
}
#endif

template <int KD, int QD>
static int score_tiles(const ScoreParams& p, int ctas, int pdl, Stream stream) {
  constexpr int WARPS = 8;
  const int tiles = (p.lengths.queries * p.groups + 7) / 8;
  if (tiles == 1) return launch<Score<KD, QD, 1, WARPS>>(p, ctas, pdl, stream);
  if (tiles == 2) return launch<Score<KD, QD, 2, WARPS>>(p, ctas, pdl, stream);
  if (tiles <= 4) return launch<Score<KD, QD, 4, WARPS>>(p, ctas, pdl, stream);
  return -1;
}
template <int KD, int QD, bool GIVEN>
static int attend_depth(const AttendParams& p, int rows, int depth, int cluster, int pdl, Stream stream) {
  const int grid = rows * p.groups * cluster;
  if (depth == 2) return launch_cluster<Attend<KD, QD, 4, 2, GIVEN>>(p, grid, cluster, pdl, stream);
  if (depth == 3) return launch_cluster<Attend<KD, QD, 4, 3, GIVEN>>(p, grid, cluster, pdl, stream);
  return -1;
}
template <int KD, int QD>
static int attend_given(const AttendParams& p, int rows, int given, int depth, int cluster, int pdl, Stream stream) {
  return given ? attend_depth<KD, QD, true>(p, rows, depth, cluster, pdl, stream)
               : attend_depth<KD, QD, false>(p, rows, depth, cluster, pdl, stream);
}

extern "C" {
int msa_score(const ScoreParams* p, int key_type, int query_type, int ctas, int pdl, Stream stream) {
  if (key_type == kBf16 && query_type == kBf16) return score_tiles<kBf16, kBf16>(*p, ctas, pdl, stream);
  if (key_type == kF16 && query_type == kF16) return score_tiles<kF16, kF16>(*p, ctas, pdl, stream);
  if (key_type == kE4m3 && query_type == kBf16) return score_tiles<kE4m3, kBf16>(*p, ctas, pdl, stream);
  if (key_type == kE4m3 && query_type == kF16) return score_tiles<kE4m3, kF16>(*p, ctas, pdl, stream);
  return -1;
}
int msa_read(const ScoreParams* p, int ctas, int pdl, Stream stream) { return launch<Read>(*p, ctas, pdl, stream); }
int msa_select(const AttendParams* p, int rows, int pdl, Stream stream) {
  return launch<Select>(*p, rows * p->groups, pdl, stream);
}
// given: 0 choose from the candidates; 1 attend to p->blocks.
int msa_attend(const AttendParams* p, int kv_type, int query_type, int rows, int given, int depth, int cluster, int pdl, Stream stream) {
  if (kv_type == kBf16 && query_type == kBf16) return attend_given<kBf16, kBf16>(*p, rows, given, depth, cluster, pdl, stream);
  if (kv_type == kF16 && query_type == kF16) return attend_given<kF16, kF16>(*p, rows, given, depth, cluster, pdl, stream);
  if (kv_type == kE4m3 && query_type == kBf16) return attend_given<kE4m3, kBf16>(*p, rows, given, depth, cluster, pdl, stream);
  if (kv_type == kE4m3 && query_type == kF16) return attend_given<kE4m3, kF16>(*p, rows, given, depth, cluster, pdl, stream);
  return -1;
}
#if defined(MSA_STAMPS) && !defined(MSA_EMULATE)
int msa_stamps(void* host) { return cudaMemcpyFromSymbol(host, stamps, sizeof(stamps)); }
#endif
// Sizes of the parameter structs, for the caller to check its own layout against.
int msa_abi(int which) { return which == 0 ? sizeof(ScoreParams) : sizeof(AttendParams); }
}
