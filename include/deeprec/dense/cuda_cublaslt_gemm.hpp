// gemm() on a CUDA stream, by cuBLASLt: the same call with device views.
//
//   gemm(stream, {.b = gemm_operand::transposed, .math = gemm_math::tf32, .bias = bias,
//                 .activation = gemm_activation::relu, .relu_bits = bits}, x, weights, y)
//   gemm(stream, {.mask_bits = bits, .column_sums = bias_gradient}, dy, weights, dx)   // enqueued
//
// Needs the CUDA host API only; link deeprec::cublaslt. One launch with everything in its epilogue, and a
// copy where a bias or sums are not aligned to 16 bytes. Plans are cached; the workspace is the stream's
// scratch. Not here, and refused: masks by value, sigmoid, GELU by erf, operands of two types.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <type_traits>

#include <deeprec/dense/detail/cuda_cublaslt_plan.hpp>
#include <deeprec/dense/gemm.hpp>
#include <deeprec/exec/cuda_stream.hpp>
#include <deeprec/exec/scratch_layout.hpp>
#include <deeprec/memory/cuda_runtime.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

template <>
struct detail::gemm_space<cuda_backend> {
  using type = device_space;
};

struct cublaslt_gemm {
  static constexpr const char* name = "cuBLASLt";

  /// Fails unless a product of these storage types is one launch. Does not check shapes: cuBLASLt may have no
  /// algorithm for some of them.
  ///
  /// @cost    O(1)
  /// @threads reentrant
  /// @error   unsupported
  [[nodiscard]] static status can_run(const basic_gemm_desc<device_space>& desc, gemm_storage a,
                                      gemm_storage b, gemm_storage c) noexcept {
    const bool has_bias = desc.bias.data_handle() != nullptr;
    const bool has_gradient = desc.bias_gradient.data_handle() != nullptr;
    const bool has_sums = desc.column_sums.data_handle() != nullptr;
    if (a != b) return {errc::unsupported, "gemm: cuBLASLt multiplies operands of one type"};
    if (a == gemm_storage::f32 && c == gemm_storage::bf16)
      return {errc::unsupported, "gemm: cuBLASLt has no bf16 result of floats"};
    if (a == gemm_storage::bf16 && detail::permission_of(desc.math) == gemm_math::tf32)
      return {errc::unsupported, "gemm: TF32 is for float operands"};
    if (!desc.mask.absent())
      return {errc::unsupported, "gemm: cuBLASLt's mask of ReLU's output is mask_bits"};
    if (desc.activation == gemm_activation::sigmoid)
      return {errc::unsupported, "gemm: cuBLASLt has no sigmoid"};
    if (desc.activation == gemm_activation::gelu)
      return {errc::unsupported, "gemm: cuBLASLt's GELU is gelu_tanh"};
    if (!desc.residual.absent() && desc.c == gemm_output::accumulate) {
      return {errc::unsupported, "gemm: cuBLASLt adds a residual or the old values, not both"};
    }
    if (!desc.residual.absent() && desc.residual.storage() != c) {
      return {errc::unsupported, "gemm: cuBLASLt's residual has the type of c"};
    }
    if (has_gradient && (has_bias || has_sums || !desc.mask_bits.absent() ||
                         desc.activation != gemm_activation::none || c != gemm_storage::f32)) {
      return {errc::unsupported,
              "gemm: cuBLASLt makes a bias gradient beside a plain product of floats only"};
    }
    if (!desc.mask_bits.absent() && (has_bias || desc.activation != gemm_activation::none)) {
      return {errc::unsupported, "gemm: cuBLASLt masks by bits without bias and activation"};
    }
    if (has_sums && desc.mask_bits.absent())
      return {errc::unsupported, "gemm: cuBLASLt sums columns behind mask_bits only"};
    if (has_sums && c != gemm_storage::f32)
      return {errc::unsupported, "gemm: cuBLASLt's column sums have the type of c"};
    if (has_bias && c != gemm_storage::f32)
      return {errc::unsupported, "gemm: cuBLASLt's bias has the type of c"};
    if (desc.batch.count > (std::numeric_limits<std::int32_t>::max)()) {
      return {errc::unsupported, "gemm: cuBLASLt's batches are below 2^31"};
    }
    return {};
  }

  /// Counters of the cache of plans.
  ///
  /// @cost    O(1)
  /// @threads thread-safe
  /// @error   none
  [[nodiscard]] static gemm_cache_report cache_report() { return detail::cublaslt_plans().report(); }
};

namespace detail {

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

/// gemm() by cuBLASLt, on streams with scratch memory.
struct cublaslt_backend {
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
    const view left(a), right(b), out(c);
    if (const status s = cublaslt_gemm::can_run(desc, left.storage(), right.storage(), out.storage()); !s) {
      return s;
    }
#if DEEPREC_EXCEPTIONS
    try {
      return enqueue(*ctx.executor, desc, left, right, out, c.data_handle());
    } catch (const std::bad_alloc&) {
      return {errc::out_of_memory, "gemm: the host must have memory for plans of cuBLASLt"};
    }
#else
    return enqueue(*ctx.executor, desc, left, right, out, c.data_handle());
#endif
  }

 private:
  using view = gemm_view<device_space>;
  using desc_type = basic_gemm_desc<device_space>;

  static std::uintptr_t address(const void* p) noexcept { return reinterpret_cast<std::uintptr_t>(p); }

  static status copy(void* to, const void* from, std::size_t bytes, cudaStream_t on) noexcept {
    return cuda_status(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, on));
  }
  static status zero(void* to, std::size_t bytes, cudaStream_t on) noexcept {
    return cuda_status(cudaMemsetAsync(to, 0, bytes, on));
  }

  static cublasLtEpilogue_t epilogue_of(const desc_type& desc) noexcept {
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

  /// An empty product: column sums are 0.
  static status nothing(cudaStream_t on, const desc_type& desc, index_t m, index_t n) {
    if (desc.bias_gradient.data_handle() != nullptr && m > 0 && desc.batch.count != 0) {
      return {errc::unsupported, "gemm: c must have columns for cuBLASLt to make a bias gradient"};
    }
    if (desc.column_sums.data_handle() == nullptr || n == 0) return {};
    return zero(desc.column_sums.data_handle(), static_cast<std::size_t>(n) * sizeof(float), on);
  }

  template <class Stream>
  static status enqueue(Stream& stream, const desc_type& desc, const view& a, const view& b, const view& c,
                        void* out) {
    const index_t m = c.extent(0), n = c.extent(1);
    const index_t k = a.extent(desc.a == gemm_operand::transposed ? 0 : 1);
    const cudaStream_t on = stream.get();
    if (m == 0 || n == 0 || desc.batch.count == 0) return nothing(on, desc, m, n);
    cublaslt_key key{.m = m, .n = n, .k = k};
    if (const status s = cuda_runtime::get_device(key.device); !s) return s;
    cublasLtHandle_t handle = nullptr;
    if (const status s = cublaslt_handle(key.device, handle); !s) return s;

    // Bias, its gradient or column sums (a product has at most one of them); in scratch where unaligned.
    key.epilogue = epilogue_of(desc);
    const void* const bias = desc.bias.data_handle();
    float* const sums = key.epilogue == CUBLASLT_EPILOGUE_BGRADB ? desc.bias_gradient.data_handle()
                                                                 : desc.column_sums.data_handle();
    const void* vector = sums != nullptr ? sums : bias;
    const std::size_t vector_bytes =
        static_cast<std::size_t>(key.epilogue == CUBLASLT_EPILOGUE_BGRADB ? m : n) * sizeof(float);
    const bool moved = address(vector) % 16 != 0;
    key.vector_begins = moved ? 256 : cublaslt_alignment(address(vector));
    const void* bits = nullptr;
    if (cublaslt_has_bits(key.epilogue)) {
      const bool masks = desc.relu_bits.absent();
      bits = masks ? desc.mask_bits.data_handle() : desc.relu_bits.data_handle();
      key.bits_stride = masks ? desc.mask_bits.stride(0) : desc.relu_bits.stride(0);
      if (address(bits) % 16 != 0) {
        return {errc::unsupported, masks
                                       ? "gemm: cuBLASLt's mask_bits begin at a multiple of 16 bytes"
                                       : "gemm: relu_bits must begin at a multiple of 16 bytes for cuBLASLt"};
      }
      key.bits_begin = cublaslt_alignment(address(bits));
    }

    const bool has_residual = !desc.residual.absent();
    const void* const old = has_residual ? desc.residual.data() : out;
    key.inputs = a.storage();
    key.output = c.storage();
    key.math = key.inputs == gemm_storage::bf16 ? gemm_math::f32 : detail::permission_of(desc.math);
    key.c_stride = leading_dimension(c);
    key.old_stride = leading_dimension(has_residual ? desc.residual : c);
    key.count = desc.batch.count;
    if (key.count != 1) key.c_batch_stride = desc.batch.c_batch_stride;
    const auto begins = [](const void* at, index_t step, gemm_storage storage) {
      return cublaslt_alignment(address(at), static_cast<std::uintptr_t>(step * bytes_of(storage)));
    };
    key.c_begins = begins(out, key.c_batch_stride, key.output);
    key.old_begins = begins(old, key.c_batch_stride, key.output);
    if (k == 0) {  // a sum of no terms: a product of zeros with k = 1
      key.k = 1;
      key.a_stride = 1;
      key.b_stride = n;
    } else {
      key.a = desc.a;
      key.b = desc.b;
      key.a_stride = leading_dimension(a);
      key.b_stride = leading_dimension(b);
      if (key.count != 1) {
        key.a_batch_stride = desc.batch.a_batch_stride;
        key.b_batch_stride = desc.batch.b_batch_stride;
      }
      key.a_begins = begins(a.data(), key.a_batch_stride, key.inputs);
      key.b_begins = begins(b.data(), key.b_batch_stride, key.inputs);
    }

    const std::shared_ptr<const cublaslt_plan> plan = cublaslt_plan_for(handle, key);
    if (!plan->answer) return plan->answer;

    scratch_layout layout;
    static_cast<void>(layout.add<std::byte>(static_cast<index_t>(plan->workspace)));  // at offset 0
    const std::size_t vector_at = layout.add<std::byte>(moved ? static_cast<index_t>(vector_bytes) : 0);
    const std::size_t zeros = k == 0 ? static_cast<std::size_t>((std::max)(m, n)) * sizeof(float) : 0;
    const std::size_t zeros_at = layout.add<std::byte>(static_cast<index_t>(zeros));
    std::byte* scratch = nullptr;
    if (layout.bytes() > 0) {
      if (const status s = stream.scratch(layout.bytes(), scratch); !s) return s;
    }
    if (zeros > 0) {
      if (const status s = zero(scratch + zeros_at, zeros, on); !s) return s;
    }
    if (moved) {
      vector = scratch + vector_at;
      if (sums == nullptr) {
        if (const status s = copy(scratch + vector_at, bias, vector_bytes, on); !s) return s;
      }
    }
    cublaslt_product product = plan->product;  // a copy: threads share the plan
    if (const status s = place_cublaslt_pointers(key, product.steps, vector, bits); !s) return s;
    const float one = 1, beta = has_residual || desc.c == gemm_output::accumulate ? 1.0F : 0.0F;
    const void* const first = k == 0 ? scratch + zeros_at : b.data();
    const void* const second = k == 0 ? scratch + zeros_at : a.data();
    const cublasStatus_t s = cublasLtMatmul(
        handle, &product.steps, &one, first, &product.first, second, &product.second, &beta, old, &product.c,
        out, &product.d, &plan->algorithm, plan->workspace > 0 ? scratch : nullptr, plan->workspace, on);
    if (s != CUBLAS_STATUS_SUCCESS) return cublaslt_status(s);
    if (moved && sums != nullptr) return copy(sums, scratch + vector_at, vector_bytes, on);
    return {};
  }
};

}  // namespace detail

template <class Backends, class E, class A, class B, class C>
status gemm_on(cuda_backend, context<E> ctx, const basic_gemm_desc<device_space>& desc, const A& a,
               const B& b, const C& c) {
  return detail::cublaslt_backend::run<Backends>(ctx, desc, a, b, c);
}

}}  // namespace deeprec::DEEPREC_ABI
