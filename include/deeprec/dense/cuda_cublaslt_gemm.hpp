// gemm() on a CUDA stream, by cuBLASLt: the same call with device views.
//
//   gemm(stream, {.b = gemm_operand::transposed, .math = gemm_math::tf32, .bias = bias,
//                 .activation = gemm_activation::relu}, x, weights, y)          // enqueued
//
// Needs the CUDA host API only; link deeprec::cublaslt. One launch: bias, ReLU, GELU (by tanh),
// accumulation, a residual of c's type and the bias gradient are cuBLASLt's epilogues. Not here: masks,
// sigmoid, GELU by erf, operands of two types; they are refused.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <type_traits>

#include <deeprec/dense/gemm.hpp>
#include <deeprec/exec/cuda_stream.hpp>

namespace deeprec::inline DEEPREC_ABI {

template <>
struct gemm_space<cuda_backend> {
  using type = device_space;
};

struct cublaslt_gemm {
  static constexpr const char* name = "cuBLASLt";

  /// Whether a product of these storages is one launch, or why not.
  ///
  /// @cost    O(1)
  /// @threads reentrant
  /// @error   none
  [[nodiscard]] static gemm_answer can_run(const basic_gemm_desc<device_space>& desc, gemm_storage a,
                                           gemm_storage b, gemm_storage c) noexcept {
    if (a != b) return {"gemm: cuBLASLt multiplies operands of one type"};
    if (a == gemm_storage::f32 && c == gemm_storage::bf16)
      return {"gemm: cuBLASLt has no bf16 result of floats"};
    if (a == gemm_storage::bf16 && desc.math == gemm_math::tf32) return {"gemm: TF32 is for float operands"};
    if (!desc.mask.absent()) return {"gemm: cuBLASLt has no mask of ReLU's output"};
    if (desc.activation == gemm_activation::sigmoid) return {"gemm: cuBLASLt has no sigmoid"};
    if (desc.activation == gemm_activation::gelu) return {"gemm: cuBLASLt's GELU is gelu_tanh"};
    if (!desc.residual.absent() && desc.c == gemm_output::accumulate) {
      return {"gemm: cuBLASLt adds a residual or the old values, not both"};
    }
    if (!desc.residual.absent() && desc.residual.storage() != c) {
      return {"gemm: cuBLASLt's residual has the type of c"};
    }
    if (desc.bias_gradient.data_handle() != nullptr &&
        (desc.bias.data_handle() != nullptr || desc.activation != gemm_activation::none ||
         c != gemm_storage::f32)) {
      return {"gemm: cuBLASLt makes a bias gradient beside a plain product of floats only"};
    }
    if (desc.bias.data_handle() != nullptr && c != gemm_storage::f32) {
      return {"gemm: cuBLASLt's bias has the type of c"};
    }
    return {};
  }
};

namespace detail {

/// A handle of cuBLASLt's, destroyed at the end of its scope.
template <class Handle, cublasStatus_t (*Destroy)(Handle)>
class cublaslt_owned {
 public:
  cublaslt_owned() = default;
  cublaslt_owned(const cublaslt_owned&) = delete;
  cublaslt_owned& operator=(const cublaslt_owned&) = delete;
  ~cublaslt_owned() {
    if (handle != nullptr) static_cast<void>(Destroy(handle));
  }
  Handle handle = nullptr;
};

inline status cublaslt_status(cublasStatus_t answer) noexcept {
  if (answer == CUBLAS_STATUS_SUCCESS) return {};
  if (answer == CUBLAS_STATUS_ALLOC_FAILED) return {errc::out_of_memory, "gemm: cuBLASLt"};
  if (answer == CUBLAS_STATUS_NOT_SUPPORTED)
    return {errc::unsupported, "gemm: cuBLASLt has no kernel for this product"};
  return {errc::device_error, "gemm: cuBLASLt failed"};
}

/// One for each device, made at the first product; never destroyed, as the driver may be gone by then.
inline cublasLtHandle_t cublaslt_handle() noexcept {
  constexpr int most = 64;
  static cublasLtHandle_t* const handles = new cublasLtHandle_t[most]();
  static std::mutex* const mutex = new std::mutex;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device >= most) return nullptr;
  const std::lock_guard lock(*mutex);
  if (handles[device] == nullptr) static_cast<void>(cublasLtCreate(&handles[device]));
  return handles[device];
}

}  // namespace detail

template <>
struct backend<verbs::gemm, cuda_backend> {
  template <class Backends, class E, class A, class B, class C>
  static status run(context<E> ctx, const basic_gemm_desc<device_space>& desc, const A& a, const B& b,
                    const C& c) {
    static_assert(!std::is_same_v<B, gemm_weights>,
                  "deeprec::gemm: gemm_weights are the host's. Fix: pass a device view for b; a tensor core "
                  "needs no packing.");
    static_assert(reachable_as<typename A::space, device_space> &&
                      reachable_as<typename B::space, device_space> &&
                      reachable_as<typename C::space, device_space>,
                  "deeprec::gemm: a view of host memory on a CUDA stream. Fix: pass device views.");
    const gemm_view<device_space> left(a), right(b), out(c);
    if (const gemm_answer no = cublaslt_gemm::can_run(desc, left.storage(), right.storage(), out.storage());
        !no) {
      return {errc::unsupported, no.refusal};
    }
    if (c.extent(0) == 0 || c.extent(1) == 0 || desc.batch.count == 0) return {};
    return enqueue(ctx.executor->get(), desc, left, right, out, c.data_handle());
  }

 private:
  using view = gemm_view<device_space>;

  // Row-major is column-major transposed: c^T (n,m) = op(b)^T op(a)^T, so the bias runs along c^T's columns.
  static status enqueue(cudaStream_t stream, const basic_gemm_desc<device_space>& desc, const view& a,
                        const view& b, const view& c, void* out) {
    const auto m = static_cast<std::uint64_t>(c.extent(0));
    const auto n = static_cast<std::uint64_t>(c.extent(1));
    const bool a_turned = desc.a == gemm_operand::transposed;
    const bool b_turned = desc.b == gemm_operand::transposed;
    const auto k = static_cast<std::uint64_t>(a.extent(a_turned ? 0 : 1));
    const cublasLtHandle_t handle = detail::cublaslt_handle();
    if (handle == nullptr) return {errc::device_error, "gemm: cuBLASLt has no handle for this device"};

    const cublasComputeType_t compute = a.storage() == gemm_storage::bf16 ? CUBLAS_COMPUTE_32F
                                        : desc.math == gemm_math::tf32    ? CUBLAS_COMPUTE_32F_FAST_TF32
                                        : desc.math == gemm_math::bf16    ? CUBLAS_COMPUTE_32F_FAST_16BF
                                                                          : CUBLAS_COMPUTE_32F;
    detail::cublaslt_owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> what;
    cublasStatus_t s = cublasLtMatmulDescCreate(&what.handle, compute, CUDA_R_32F);
    if (s != CUBLAS_STATUS_SUCCESS) return detail::cublaslt_status(s);
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
      if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatmulDescSetAttribute(what.handle, attribute, &value, sizeof(value));
    };
    const cublasOperation_t b_as = b_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t a_as = a_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    set(CUBLASLT_MATMUL_DESC_TRANSA, b_as);
    set(CUBLASLT_MATMUL_DESC_TRANSB, a_as);
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    const void* bias = desc.bias.data_handle();
    if (desc.bias_gradient.data_handle() != nullptr) {
      epilogue = CUBLASLT_EPILOGUE_BGRADB;
      bias = desc.bias_gradient.data_handle();
    } else if (desc.activation == gemm_activation::relu) {
      epilogue = bias != nullptr ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    } else if (desc.activation == gemm_activation::gelu_tanh) {
      epilogue = bias != nullptr ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    } else if (bias != nullptr) {
      epilogue = CUBLASLT_EPILOGUE_BIAS;
    }
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    if (bias != nullptr) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);

    using layout = detail::cublaslt_owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
    const auto describe = [&](layout& made, gemm_storage storage, std::uint64_t rows, std::uint64_t columns,
                              std::int64_t stride, std::int64_t step) {
      const cudaDataType_t type = storage == gemm_storage::f32 ? CUDA_R_32F : CUDA_R_16BF;
      if (s == CUBLAS_STATUS_SUCCESS) s = cublasLtMatrixLayoutCreate(&made.handle, type, rows, columns, stride);
      if (s != CUBLAS_STATUS_SUCCESS || desc.batch.count == 1) return;
      const auto count = static_cast<std::int32_t>(desc.batch.count);
      s = cublasLtMatrixLayoutSetAttribute(made.handle, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                           sizeof(count));
      if (s != CUBLAS_STATUS_SUCCESS) return;
      s = cublasLtMatrixLayoutSetAttribute(made.handle, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step,
                                           sizeof(step));
    };
    const bool has_residual = !desc.residual.absent();
    layout first, second, old, result;
    describe(first, b.storage(), b_turned ? k : n, b_turned ? n : k, detail::leading_dimension(b),
             desc.batch.b_step);
    describe(second, a.storage(), a_turned ? m : k, a_turned ? k : m, detail::leading_dimension(a),
             desc.batch.a_step);
    describe(old, c.storage(), n, m, detail::leading_dimension(has_residual ? desc.residual : c),
             desc.batch.c_step);
    describe(result, c.storage(), n, m, detail::leading_dimension(c), desc.batch.c_step);

    detail::cublaslt_owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> wish;
    const std::size_t room = std::size_t{32} << 20;
    if (s == CUBLAS_STATUS_SUCCESS) s = cublasLtMatmulPreferenceCreate(&wish.handle);
    if (s == CUBLAS_STATUS_SUCCESS) {
      s = cublasLtMatmulPreferenceSetAttribute(wish.handle, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room,
                                               sizeof(room));
    }
    // Unless told otherwise the heuristic takes every matrix to begin at a multiple of 256 bytes.
    const auto begins = [&](cublasLtMatmulPreferenceAttributes_t which, const void* at, std::int64_t step,
                            gemm_storage storage) {
      const auto apart = static_cast<std::uintptr_t>(step * detail::bytes_of(storage));
      const auto bits = reinterpret_cast<std::uintptr_t>(at) | apart | 256U;
      const auto bytes = static_cast<std::uint32_t>(bits & (~bits + 1));  // the lowest of them
      if (s != CUBLAS_STATUS_SUCCESS) return;
      s = cublasLtMatmulPreferenceSetAttribute(wish.handle, which, &bytes, sizeof(bytes));
    };
    const void* const added = has_residual ? desc.residual.data() : out;
    begins(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, b.data(), desc.batch.b_step, b.storage());
    begins(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, a.data(), desc.batch.a_step, a.storage());
    begins(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, added, desc.batch.c_step, c.storage());
    begins(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, out, desc.batch.c_step, c.storage());
    cublasLtMatmulHeuristicResult_t chosen{};
    int found = 0;
    if (s == CUBLAS_STATUS_SUCCESS) {
      s = cublasLtMatmulAlgoGetHeuristic(handle, what.handle, first.handle, second.handle, old.handle,
                                         result.handle, wish.handle, 1, &chosen, &found);
    }
    if (s != CUBLAS_STATUS_SUCCESS) return detail::cublaslt_status(s);
    if (found == 0) return {errc::unsupported, "gemm: cuBLASLt has no kernel for this product"};

    void* workspace = nullptr;
    if (chosen.workspaceSize > 0 && cudaMallocAsync(&workspace, chosen.workspaceSize, stream) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      return {errc::out_of_memory, "gemm: workspace of cuBLASLt"};
    }
    const float one = 1;
    const float beta = has_residual || desc.c == gemm_output::accumulate ? 1.0F : 0.0F;
    s = cublasLtMatmul(handle, what.handle, &one, b.data(), first.handle, a.data(), second.handle, &beta,
                       added, old.handle, out, result.handle, &chosen.algo,
                       workspace, chosen.workspaceSize, stream);
    if (workspace != nullptr) static_cast<void>(cudaFreeAsync(workspace, stream));
    return detail::cublaslt_status(s);
  }
};

}  // namespace deeprec::inline DEEPREC_ABI
