// Kernels with what kernels_test.sh has to find.

/// 64 numbers alive at once, and room for 32 registers: they spill.
__global__ void __launch_bounds__(1024, 2) spills(const float* from, float* to) {
  float x[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) x[i] = from[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; ++i) to[i * 1024 + threadIdx.x] = x[i] * x[(i + 31) % 64];
}

/// An array whose indices are known only when it runs.
__global__ void indexes(const int* from, int* to, int n) {
  int x[32] = {};
  for (int i = 0; i < n; ++i) x[from[i] & 31] += from[i + n];
  for (int i = 0; i < n; ++i) to[i] = x[from[i + 2 * n] & 31];
}

/// Four rows on their way at once.
__global__ void gathers_four(const float4* rows, const int* ids, float4* to) {
  float4 x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = __ldg(rows + ids[i] * 32 + threadIdx.x);
#pragma unroll
  for (int i = 1; i < 4; ++i) x[0] = {x[0].x + x[i].x, x[0].y + x[i].y, x[0].z + x[i].z, x[0].w + x[i].w};
  to[threadIdx.x] = x[0];
}

/// One at a time: where the next one is says the one before.
__global__ void gathers_one(const uint4* rows, int n, uint4* to) {
  uint4 x = rows[threadIdx.x];
  for (int i = 0; i < n; ++i) x = rows[x.x];
  to[threadIdx.x] = x;
}
/// Four at once, of four bytes each.
__global__ void gathers_narrow(const float* rows, const int* ids, float* to) {
  float x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = __ldg(rows + ids[i] * 32 + threadIdx.x);
  to[threadIdx.x] = x[0] + x[1] + x[2] + x[3];
}

__global__ void simple(float* to) { to[threadIdx.x] = 1; }
