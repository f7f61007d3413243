// A product that gemm() is asked for, as cuBLASLt sees it: the key of its plan, and the pointers beside it.
//
//   request ──describe──> key (shape, strides, types, epilogue, alignments) + bias, sums, bits
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/dense/gemm/detail/cuda_cublaslt_plan.hpp>
#include <deeprec/dense/gemm/gemm.hpp>
#include <deeprec/memory/cuda_runtime.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// A product as gemm() was asked for it.
struct cublaslt_request {
  using view = gemm_view<device_space>;

  const basic_gemm_desc<device_space>& desc;
  view a, b, c;
  void* out;  // c's

  [[nodiscard]] index_t m() const noexcept { return c.extent(0); }
  [[nodiscard]] index_t n() const noexcept { return c.extent(1); }
  [[nodiscard]] index_t k() const noexcept { return a.extent(desc.a == gemm_operand::transposed ? 0 : 1); }
  [[nodiscard]] bool empty() const noexcept { return m() == 0 || n() == 0 || desc.batch.count == 0; }
  [[nodiscard]] const void* old() const noexcept {
    return desc.residual.absent() ? out : desc.residual.data();
  }
  [[nodiscard]] bool adds() const noexcept {
    return !desc.residual.absent() || desc.c == gemm_output::accumulate;
  }
};

inline cublasLtEpilogue_t cublaslt_epilogue_of(const basic_gemm_desc<device_space>& desc) noexcept {
  const bool bias = desc.bias.data_handle() != nullptr;
  if (desc.bias_gradient.data_handle() != nullptr) return CUBLASLT_EPILOGUE_BGRADB;
  if (!desc.mask_bits.absent()) {
    return desc.column_sums.data_handle() != nullptr ? CUBLASLT_EPILOGUE_DRELU_BGRAD
                                                     : CUBLASLT_EPILOGUE_DRELU;
  }
  if (!desc.relu_bits.absent()) return bias ? CUBLASLT_EPILOGUE_RELU_AUX_BIAS : CUBLASLT_EPILOGUE_RELU_AUX;
  if (desc.activation == gemm_activation::relu) {
    return bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
  }
  if (desc.activation == gemm_activation::gelu_tanh) {
    return bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
  }
  return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

/// The key of a plan, and the pointers that are not in it.
struct cublaslt_operands {
  cublaslt_key key;
  const void* bias = nullptr;
  float* sums = nullptr;  ///< of columns, or the bias gradient
  std::size_t vector_bytes = 0;
  bool moved = false;  ///< bias or sums are used in scratch
  const void* bits = nullptr;
};
inline status describe_cublaslt(const cublaslt_request& p, cublaslt_operands& made) {
  const basic_gemm_desc<device_space>& desc = p.desc;
  cublaslt_key& key = made.key;
  const auto address = [](const void* at) { return reinterpret_cast<std::uintptr_t>(at); };
  key.m = p.m();
  key.n = p.n();
  key.k = p.k();
  if (const status s = cuda_runtime::get_device(key.device); !s) return s;

  // Bias, its gradient or column sums (a product has at most one of them); in scratch where unaligned.
  key.epilogue = cublaslt_epilogue_of(desc);
  const bool of_rows = key.epilogue == CUBLASLT_EPILOGUE_BGRADB;
  made.bias = desc.bias.data_handle();
  made.sums = of_rows ? desc.bias_gradient.data_handle() : desc.column_sums.data_handle();
  const std::uintptr_t vector = made.sums != nullptr ? address(made.sums) : address(made.bias);
  made.vector_bytes = static_cast<std::size_t>(of_rows ? key.m : key.n) * sizeof(float);
  made.moved = vector % 16 != 0;
  key.vector_begins = made.moved ? 256 : cublaslt_alignment(vector);
  if (cublaslt_has_bits(key.epilogue)) {
    const bool masks = desc.relu_bits.absent();
    made.bits = masks ? desc.mask_bits.data_handle() : desc.relu_bits.data_handle();
    key.bits_stride = masks ? desc.mask_bits.stride(0) : desc.relu_bits.stride(0);
    if (address(made.bits) % 16 != 0) {
      return {errc::unsupported, masks ? "gemm: cuBLASLt's mask_bits begin at a multiple of 16 bytes"
                                       : "gemm: relu_bits must begin at a multiple of 16 bytes for cuBLASLt"};
    }
    key.bits_begin = cublaslt_alignment(address(made.bits));
  }

  key.inputs = p.a.storage();
  key.output = p.c.storage();
  key.math = key.inputs == gemm_storage::bf16 ? gemm_math::f32 : permission_of(desc.math);
  key.c_stride = leading_dimension(p.c);
  key.old_stride = leading_dimension(desc.residual.absent() ? p.c : desc.residual);
  key.count = desc.batch.count;
  if (key.count != 1) key.c_batch_stride = desc.batch.c_batch_stride;
  const auto begins = [&](const void* at, index_t step, gemm_storage storage) {
    return cublaslt_alignment(address(at), static_cast<std::uintptr_t>(step * bytes_of(storage)));
  };
  key.c_begins = begins(p.out, key.c_batch_stride, key.output);
  key.old_begins = begins(p.old(), key.c_batch_stride, key.output);
  if (key.k == 0) {  // a sum of no terms: a product of zeros with k = 1
    key.k = 1;
    key.a_stride = 1;
    key.b_stride = key.n;
    return {};
  }
  key.a = desc.a;
  key.b = desc.b;
  key.a_stride = leading_dimension(p.a);
  key.b_stride = leading_dimension(p.b);
  if (key.count != 1) {
    key.a_batch_stride = desc.batch.a_batch_stride;
    key.b_batch_stride = desc.batch.b_batch_stride;
  }
  key.a_begins = begins(p.a.data(), key.a_batch_stride, key.inputs);
  key.b_begins = begins(p.b.data(), key.b_batch_stride, key.inputs);
  return {};
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
