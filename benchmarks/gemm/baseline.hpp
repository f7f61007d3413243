// What the gemm suite compares with. No header of deeprec here; every function exists twice, built with
// -O2 (namespace o2) and with -O3 -march=native (namespace native).
#pragma once

#include <memory>

namespace gemm_baseline {

/// oneDNN's own matmul, made once and run again: c (m,n) = op(a) op(b) of dense matrices, all the rows at
/// once, on as many threads as OpenMP has.
class raw_matmul {
 public:
  virtual ~raw_matmul() = default;
  /// Lays b out as oneDNN likes it, where the matmul was made so.
  virtual void pack(const float* b) = 0;
  virtual void run(const void* a, const void* b, float* c) = 0;
  [[nodiscard]] virtual const char* implementation() const = 0;
};

struct raw_options {
  bool bf16 = false;          ///< a, and b where packed, are bf16
  bool packed = false;        ///< b was given to pack()
  bool a_transposed = false;  ///< a is stored (k,m)
  bool b_transposed = false;  ///< b is stored (n,k)
};

#define GEMM_BASELINES                                                                                   \
  /* Null without oneDNN. */                                                                             \
  std::unique_ptr<raw_matmul> make_raw(long m, long n, long k, const raw_options& how);                  \
  /* c = a b^T, then bias and ReLU as one more expression. */                                            \
  void eigen_layer(const float* a, const float* w, const float* bias, float* c, long m, long n, long k); \
  /* The passes of a framework that fuses nothing. */                                                    \
  void cast_pass(const float* from, unsigned short* to, long count);                                     \
  void bias_pass(float* c, const float* bias, long m, long n);                                           \
  void relu_pass(float* c, long count);

namespace o2 {
GEMM_BASELINES
}
namespace native {
GEMM_BASELINES
}
}  // namespace gemm_baseline
