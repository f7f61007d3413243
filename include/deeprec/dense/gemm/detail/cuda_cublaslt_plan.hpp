// Plans of cuBLASLt products, keyed by everything that the heuristic's result depends on.
//
//   cublaslt_key ──found──> cublaslt_plan: handle, descriptors without pointers, an algorithm, its workspace
//        └──else──> ask_cublaslt(): descriptors, preferences, one call of the heuristic; its first algorithm,
//                   unless gemm_tune() has pinned another
//
// The heuristic gets the alignment of a product's pointers, not the pointers. That there is no algorithm is
// cached as well.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include <deeprec/core/config.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/dense/gemm/detail/plan_cache.hpp>
#include <deeprec/dense/gemm/gemm_desc.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Alignment in bytes of a pointer, and of those at multiples of step from it: a power of two, at most 256.
constexpr std::uint32_t cublaslt_alignment(std::uintptr_t at, std::uintptr_t step = 0) noexcept {
  const std::uintptr_t bits = at | step | 256U;
  return static_cast<std::uint32_t>(bits & (~bits + 1));  // the lowest set bit
}

/// The most workspace that an algorithm may use, in bytes.
inline constexpr std::size_t cublaslt_workspace = std::size_t{32} << 20;

/// Sizes and strides in elements, as in gemm_desc; batch strides are 0 unless there is a batch.
struct cublaslt_key {
  index_t m = 0, n = 0, k = 0;
  index_t a_stride = 0, b_stride = 0, c_stride = 0, old_stride = 0, bits_stride = 0;
  index_t count = 1, a_batch_stride = 0, b_batch_stride = 0, c_batch_stride = 0;
  int device = 0;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  std::uint32_t a_begins = 256, b_begins = 256, c_begins = 256, old_begins = 256;
  std::uint32_t vector_begins = 256, bits_begin = 256;  ///< bias or its gradient; the mask
  gemm_operand a = gemm_operand::normal, b = gemm_operand::normal;
  gemm_storage inputs = gemm_storage::f32, output = gemm_storage::f32;
  gemm_math math = gemm_math::f32;

  friend constexpr bool operator==(const cublaslt_key&, const cublaslt_key&) = default;
  friend constexpr std::uint64_t hash_of(const cublaslt_key& q) noexcept {
    std::uint64_t h = 0;
    const auto stir = [&](auto x) { h = mix64(h ^ static_cast<std::uint64_t>(x)); };
    for (const index_t x : {q.m, q.n, q.k, q.a_stride, q.b_stride, q.c_stride, q.old_stride}) stir(x);
    for (const index_t x : {q.bits_stride, q.count, q.a_batch_stride, q.b_batch_stride, q.c_batch_stride})
      stir(x);
    // Powers of two up to 256: as digits in base 512 they are distinct.
    std::uint64_t begins = 0;
    for (const std::uint32_t x :
         {q.a_begins, q.b_begins, q.c_begins, q.old_begins, q.vector_begins, q.bits_begin}) {
      begins = begins * 512 + x;
    }
    stir(begins);
    const auto bits = [](auto x, int at) { return static_cast<std::uint64_t>(x) << at; };
    stir(bits(q.device, 32) | bits(q.epilogue, 8) | bits(q.a, 0) | bits(q.b, 1) | bits(q.inputs, 2) |
         bits(q.output, 3) | bits(q.math, 4));
    return h;
  }
};

/// The error text for types and an epilogue that have no algorithm.
struct cublaslt_refusal {
  char text[120] = {};
};
struct cublaslt_refusals {
  static constexpr const char* types[] = {"f32", "f32 by TF32", "f32 by bf16", "bf16", "bf16 to f32"};
  static constexpr int epilogues = 11;
  static constexpr const char* steps[epilogues] = {"",
                                                   " with bias",
                                                   " with ReLU",
                                                   " with bias and ReLU",
                                                   " with ReLU and its bits",
                                                   " with bias, ReLU and its bits",
                                                   " with GELU",
                                                   " with bias and GELU",
                                                   " with a mask of bits",
                                                   " with a mask of bits and column sums",
                                                   " with a bias gradient"};
  cublaslt_refusal said[5][epilogues] = {};

  constexpr cublaslt_refusals() {
    for (int t = 0; t < 5; ++t) {
      for (int e = 0; e < epilogues; ++e) {
        char* to = said[t][e].text;
        for (const char* from : {"gemm: cuBLASLt has no algorithm for this shape in ", types[t], steps[e]}) {
          while (*from != 0) *to++ = *from++;
        }
      }
    }
  }
};
inline constexpr cublaslt_refusals cublaslt_refusal_texts{};

constexpr int cublaslt_types(const cublaslt_key& q) noexcept {
  if (q.inputs == gemm_storage::bf16) return q.output == gemm_storage::bf16 ? 3 : 4;
  return q.math == gemm_math::f32 ? 0 : q.math == gemm_math::tf32 ? 1 : 2;
}
constexpr int cublaslt_steps(cublasLtEpilogue_t epilogue) noexcept {
  switch (epilogue) {
    case CUBLASLT_EPILOGUE_BIAS:
      return 1;
    case CUBLASLT_EPILOGUE_RELU:
      return 2;
    case CUBLASLT_EPILOGUE_RELU_BIAS:
      return 3;
    case CUBLASLT_EPILOGUE_RELU_AUX:
      return 4;
    case CUBLASLT_EPILOGUE_RELU_AUX_BIAS:
      return 5;
    case CUBLASLT_EPILOGUE_GELU:
      return 6;
    case CUBLASLT_EPILOGUE_GELU_BIAS:
      return 7;
    case CUBLASLT_EPILOGUE_DRELU:
      return 8;
    case CUBLASLT_EPILOGUE_DRELU_BGRAD:
      return 9;
    case CUBLASLT_EPILOGUE_BGRADB:
      return 10;
    default:
      return 0;
  }
}
constexpr bool cublaslt_has_vector(cublasLtEpilogue_t epilogue) noexcept {
  constexpr int sums_of_masked = CUBLASLT_EPILOGUE_DRELU_BGRAD & ~CUBLASLT_EPILOGUE_DRELU;
  return (epilogue & (CUBLASLT_EPILOGUE_BIAS | sums_of_masked | CUBLASLT_EPILOGUE_BGRADB)) != 0;
}
constexpr bool cublaslt_has_bits(cublasLtEpilogue_t epilogue) noexcept {
  constexpr int reads_or_writes = CUBLASLT_EPILOGUE_RELU_AUX & ~CUBLASLT_EPILOGUE_RELU;
  return (epilogue & reads_or_writes) != 0;
}

inline status cublaslt_no_algorithm(const cublaslt_key& q) noexcept {
  return {errc::unsupported, cublaslt_refusal_texts.said[cublaslt_types(q)][cublaslt_steps(q.epilogue)].text};
}

inline status cublaslt_status(cublasStatus_t answer) noexcept {
  switch (answer) {
    case CUBLAS_STATUS_SUCCESS:
      return {};
    case CUBLAS_STATUS_ALLOC_FAILED:
      return {errc::out_of_memory, "gemm: cuBLASLt has no memory"};
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return {errc::unsupported, "gemm: cuBLASLt does not support this product"};
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return {errc::unsupported, "gemm: this device can't run cuBLASLt's product"};
    case CUBLAS_STATUS_INVALID_VALUE:
      return {errc::device_error, "gemm: cuBLASLt refuses a value of a descriptor"};
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return {errc::device_error, "gemm: cuBLASLt has no usable device"};
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return {errc::device_error, "gemm: cuBLASLt's kernel failed to start"};
    default:
      return {errc::device_error, "gemm: cuBLASLt failed"};
  }
}

/// Descriptors of a product d = op(first) op(second) + c: the operation (steps) and the column-major layouts.
/// Plain structs, initialised in place: a copy is an independent descriptor.
struct cublaslt_product {
  cublasLtMatmulDescOpaque_t steps;
  cublasLtMatrixLayoutOpaque_t first, second, c, d;
};

struct cublaslt_plan {
  status answer;         ///< why there is nothing to run
  bool settled = false;  ///< the heuristic has returned; else the failure may be transient
  cublasLtHandle_t handle = nullptr;
  cublaslt_product product;
  cublasLtMatmulAlgo_t algorithm;
  std::size_t workspace = 0;
};

/// The algorithms that the heuristic names, in its order.
struct cublaslt_choices {
  static constexpr int most = 8;
  struct choice {
    cublasLtMatmulAlgo_t algorithm;
    std::size_t workspace;
  };

  cublaslt_plan plan;  ///< without an algorithm
  int count = 0;       ///< 0 where the plan's answer is a failure
  choice found[most];

  [[nodiscard]] cublaslt_plan plan_of(int i) const {
    cublaslt_plan made = plan;
    if (!made.answer) return made;
    made.algorithm = found[i].algorithm;
    made.workspace = found[i].workspace;
    return made;
  }
};

/// One handle for each device, made at the first product; never destroyed, as the driver may be unloaded
/// before static objects are destroyed.
inline status cublaslt_handle(int device, cublasLtHandle_t& handle) {
  constexpr int most = 64;
  static cublasLtHandle_t* const handles = new cublasLtHandle_t[most]();
  static std::mutex* const mutex = new std::mutex;
  if (device >= most) return {errc::unsupported, "gemm: the device number must be below 64 for cuBLASLt"};
  const std::lock_guard lock(*mutex);
  if (handles[device] == nullptr) {
    if (const cublasStatus_t s = cublasLtCreate(&handles[device]); s != CUBLAS_STATUS_SUCCESS) {
      handles[device] = nullptr;
      return cublaslt_status(s);
    }
  }
  handle = handles[device];
  return {};
}

// Row-major is column-major transposed: c^T (n,m) = op(b)^T op(a)^T. So the first operand is b, the
// bias runs along c^T's columns, and so do the bits of a row.
inline status make_cublaslt_product(const cublaslt_key& q, cublaslt_product& made) {
  const cublasComputeType_t compute = q.inputs == gemm_storage::bf16 ? CUBLAS_COMPUTE_32F
                                      : q.math == gemm_math::tf32    ? CUBLAS_COMPUTE_32F_FAST_TF32
                                      : q.math == gemm_math::bf16    ? CUBLAS_COMPUTE_32F_FAST_16BF
                                                                     : CUBLAS_COMPUTE_32F;
  cublasStatus_t s = cublasLtMatmulDescInit(&made.steps, compute, CUDA_R_32F);
  const auto set = [&](cublasLtMatmulDescAttributes_t which, const auto& value) {
    if (s == CUBLAS_STATUS_SUCCESS) {
      s = cublasLtMatmulDescSetAttribute(&made.steps, which, &value, sizeof(value));
    }
  };
  const bool a_turned = q.a == gemm_operand::transposed;
  const bool b_turned = q.b == gemm_operand::transposed;
  const cublasOperation_t first_as = b_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second_as = a_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
  set(CUBLASLT_MATMUL_DESC_TRANSA, first_as);
  set(CUBLASLT_MATMUL_DESC_TRANSB, second_as);
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, q.epilogue);
  if (cublaslt_has_bits(q.epilogue)) {
    const std::int64_t stride = q.bits_stride;
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, stride);
  }

  const auto m = static_cast<std::uint64_t>(q.m), n = static_cast<std::uint64_t>(q.n),
             k = static_cast<std::uint64_t>(q.k);
  const auto describe = [&](cublasLtMatrixLayoutOpaque_t& layout, gemm_storage storage, std::uint64_t rows,
                            std::uint64_t columns, index_t stride, index_t step) {
    const cudaDataType_t type = storage == gemm_storage::f32 ? CUDA_R_32F : CUDA_R_16BF;
    const auto set_layout = [&](cublasLtMatrixLayoutAttribute_t which, const auto& value) {
      if (s == CUBLAS_STATUS_SUCCESS) {
        s = cublasLtMatrixLayoutSetAttribute(&layout, which, &value, sizeof(value));
      }
    };
    if (s == CUBLAS_STATUS_SUCCESS) s = cublasLtMatrixLayoutInit(&layout, type, rows, columns, stride);
    if (q.count == 1) return;
    const auto count = static_cast<std::int32_t>(q.count);
    const std::int64_t apart = step;
    set_layout(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, count);
    set_layout(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, apart);
  };
  describe(made.first, q.inputs, b_turned ? k : n, b_turned ? n : k, q.b_stride, q.b_batch_stride);
  describe(made.second, q.inputs, a_turned ? m : k, a_turned ? k : m, q.a_stride, q.a_batch_stride);
  describe(made.c, q.output, n, m, q.old_stride, q.c_batch_stride);
  describe(made.d, q.output, n, m, q.c_stride, q.c_batch_stride);
  return cublaslt_status(s);
}

/// Sets the pointers to bias and bits.
inline status place_cublaslt_pointers(const cublaslt_key& q, cublasLtMatmulDescOpaque_t& steps,
                                      const void* vector, const void* bits) {
  cublasStatus_t s = CUBLAS_STATUS_SUCCESS;
  if (cublaslt_has_vector(q.epilogue)) {
    s = cublasLtMatmulDescSetAttribute(&steps, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &vector, sizeof(vector));
  }
  if (s == CUBLAS_STATUS_SUCCESS && cublaslt_has_bits(q.epilogue)) {
    s = cublasLtMatmulDescSetAttribute(&steps, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &bits,
                                       sizeof(bits));
  }
  return cublaslt_status(s);
}

/// Calls the heuristic once.
inline cublaslt_choices ask_cublaslt(const cublaslt_key& q) {
  cublaslt_choices made{};
  cublaslt_plan& plan = made.plan;
  plan.answer = cublaslt_handle(q.device, plan.handle);
  if (!plan.answer) return made;
  plan.answer = make_cublaslt_product(q, plan.product);
  if (!plan.answer) return made;

  cublasLtMatmulPreferenceOpaque_t wish;
  cublasStatus_t s = cublasLtMatmulPreferenceInit(&wish);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t which, const auto& value) {
    if (s == CUBLAS_STATUS_SUCCESS)
      s = cublasLtMatmulPreferenceSetAttribute(&wish, which, &value, sizeof(value));
  };
  // By default the heuristic assumes that every matrix is aligned to 256 bytes.
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, cublaslt_workspace);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, q.b_begins);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, q.a_begins);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, q.old_begins);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, q.c_begins);
  // By default pieces of k may be summed in the type of the result. As bf16 they would be rounded one by one,
  // and the error would grow with the pieces, not with their sum.
  const std::uint32_t sums = q.output == gemm_storage::bf16 ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                                                            : CUBLASLT_REDUCTION_SCHEME_MASK;
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, sums);
  plan.answer = cublaslt_status(s);
  if (!plan.answer) return made;

  // It takes the alignment of bias and bits from their pointers, which it does not dereference. These
  // pointers have the alignment in the key, so the result depends on the key alone.
  cublaslt_product asked = plan.product;
  plan.answer = place_cublaslt_pointers(
      q, asked.steps, reinterpret_cast<const void*>(static_cast<std::uintptr_t>(q.vector_begins)),
      reinterpret_cast<const void*>(static_cast<std::uintptr_t>(q.bits_begin)));
  if (!plan.answer) return made;
  cublasLtMatmulHeuristicResult_t found[cublaslt_choices::most] = {};
  int count = 0;
  s = cublasLtMatmulAlgoGetHeuristic(plan.handle, &asked.steps, &asked.first, &asked.second, &asked.c,
                                     &asked.d, &wish, cublaslt_choices::most, found, &count);
  if (s != CUBLAS_STATUS_SUCCESS && s != CUBLAS_STATUS_NOT_SUPPORTED) {
    plan.answer = cublaslt_status(s);
    return made;
  }
  plan.settled = true;
  for (int i = 0; s == CUBLAS_STATUS_SUCCESS && i < count; ++i) {
    if (found[i].state != CUBLAS_STATUS_SUCCESS || found[i].workspaceSize > cublaslt_workspace) continue;
    made.found[made.count++] = {found[i].algo, found[i].workspaceSize};
  }
  if (made.count == 0) plan.answer = cublaslt_no_algorithm(q);
  return made;
}

inline plan_cache<cublaslt_key, cublaslt_plan>& cublaslt_plans() {
  static auto* const kept =
      new plan_cache<cublaslt_key, cublaslt_plan>(1024);  // outlives every static object
  return *kept;
}

/// The plan of a key, cached once the heuristic has returned.
inline std::shared_ptr<const cublaslt_plan> cublaslt_plan_for(const cublaslt_key& q) {
  auto& plans = cublaslt_plans();
  auto plan = plans.get(q, [&] { return std::make_shared<const cublaslt_plan>(ask_cublaslt(q).plan_of(0)); });
  if (!plan->settled) plans.forget(q, plan);
  return plan;
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
