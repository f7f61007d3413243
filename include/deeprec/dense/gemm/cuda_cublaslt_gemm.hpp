// gemm() on a CUDA stream, by cuBLASLt: the same call with device views.
//
//   gemm(stream, {.b = gemm_operand::transposed, .math = gemm_math::tf32, .bias = bias,
//                 .activation = gemm_activation::relu, .relu_bits = bits}, x, weights, y)
//   gemm(stream, {.mask_bits = bits, .column_sums = bias_gradient}, dy, weights, dx)   // enqueued
//   gemm_tune(stream, {...}, x, weights, y)     // the same, and later calls use the fastest algorithm
//
// Needs the CUDA host API only; link deeprec::cublaslt. One launch with everything in its epilogue, and a
// copy where a bias or sums are not aligned to 16 bytes. Plans are cached; the workspace is the stream's
// scratch. Not here, and refused: masks by value, sigmoid, GELU by erf, operands of two types.
//
// Errors are within gemm()'s bounds, but for GELU: cuBLASLt's is within 2^-18 (1 + |x|) of GELU of x, and
// where c is bf16, x is the sum rounded to bf16.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <type_traits>

#include <deeprec/dense/gemm/detail/cuda_cublaslt_operands.hpp>
#include <deeprec/dense/gemm/detail/cuda_cublaslt_plan.hpp>
#include <deeprec/dense/gemm/detail/cuda_cublaslt_stopwatch.hpp>
#include <deeprec/dense/gemm/gemm.hpp>
#include <deeprec/exec/cuda/cuda_stream.hpp>
#include <deeprec/memory/cuda_runtime.hpp>
#include <deeprec/support/scratch_layout.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

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
      return {errc::unsupported, "gemm: cuBLASLt sums columns after mask_bits only"};
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

/// gemm() by cuBLASLt, on streams with scratch memory.
struct cublaslt_backend {
  using view = gemm_view<device_space>;
  using result = gemm_result<device_space>;
  using desc_type = basic_gemm_desc<device_space>;

  template <class E>
  static status run(context<E> ctx, const desc_type& desc, const view& a, const view& b, const result& c) {
    return checked(desc, a, b, c, [&](const product& p) { return enqueue(*ctx.executor, p); });
  }
  template <class E>
  static status tune(context<E> ctx, const desc_type& desc, const view& a, const view& b, const result& c) {
    return checked(desc, a, b, c, [&](const product& p) { return tune(*ctx.executor, p); });
  }

 private:
  using product = cublaslt_request;
  using operands = cublaslt_operands;

  template <class Then>
  static status checked(const desc_type& desc, const view& a, const view& b, const result& c,
                        const Then& then) {
    const product p{desc, a, b, c, c.data()};
    if (const status s = cublaslt_gemm::can_run(desc, p.a.storage(), p.b.storage(), p.c.storage()); !s) {
      return s;
    }
#if DEEPREC_EXCEPTIONS
    try {
      return then(p);
    } catch (const std::bad_alloc&) {
      return {errc::out_of_memory, "gemm: the host must have memory for plans of cuBLASLt"};
    }
#else
    return then(p);
#endif
  }

  static status copy(void* to, const void* from, std::size_t bytes, cudaStream_t on) noexcept {
    return cuda_status(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, on));
  }
  static status zero(void* to, std::size_t bytes, cudaStream_t on) noexcept {
    return cuda_status(cudaMemsetAsync(to, 0, bytes, on));
  }

  /// An empty product: column sums are 0.
  static status nothing(cudaStream_t on, const product& p) {
    const desc_type& desc = p.desc;
    if (desc.bias_gradient.data_handle() != nullptr && p.m() > 0 && desc.batch.count != 0) {
      return {errc::unsupported, "gemm: c must have columns for cuBLASLt to make a bias gradient"};
    }
    if (desc.column_sums.data_handle() == nullptr || p.n() == 0) return {};
    return zero(desc.column_sums.data_handle(), static_cast<std::size_t>(p.n()) * sizeof(float), on);
  }

  /// Enqueues a plan's product on `on`, with scratch of `stream`, to `out`.
  template <class Stream>
  static status enqueue(Stream& stream, cudaStream_t on, const product& p, const operands& with,
                        const cublaslt_plan& plan, void* out) {
    scratch_layout layout;
    static_cast<void>(layout.add<std::byte>(static_cast<index_t>(plan.workspace)));  // at offset 0
    const std::size_t vector_at =
        layout.add<std::byte>(with.moved ? static_cast<index_t>(with.vector_bytes) : 0);
    const std::size_t zeros =
        p.k() == 0 ? static_cast<std::size_t>((std::max)(p.m(), p.n())) * sizeof(float) : 0;
    const std::size_t zeros_at = layout.add<std::byte>(static_cast<index_t>(zeros));
    std::byte* scratch = nullptr;
    if (layout.bytes() > 0) {
      if (const status s = stream.scratch(layout.bytes(), scratch); !s) return s;
    }
    if (zeros > 0) {
      if (const status s = zero(scratch + zeros_at, zeros, on); !s) return s;
    }
    const void* vector = with.sums != nullptr ? with.sums : with.bias;
    if (with.moved) {
      vector = scratch + vector_at;
      if (with.sums == nullptr) {
        if (const status s = copy(scratch + vector_at, with.bias, with.vector_bytes, on); !s) return s;
      }
    }
    cublaslt_product made = plan.product;  // a copy: threads share the plan
    if (const status s = place_cublaslt_pointers(with.key, made.steps, vector, with.bits); !s) return s;
    const float one = 1, beta = p.adds() ? 1.0F : 0.0F;
    const void* const first = p.k() == 0 ? scratch + zeros_at : p.b.data();
    const void* const second = p.k() == 0 ? scratch + zeros_at : p.a.data();
    const cublasStatus_t s = cublasLtMatmul(
        plan.handle, &made.steps, &one, first, &made.first, second, &made.second, &beta, p.old(), &made.c,
        out, &made.d, &plan.algorithm, plan.workspace > 0 ? scratch : nullptr, plan.workspace, on);
    if (s != CUBLAS_STATUS_SUCCESS) return cublaslt_status(s);
    if (with.moved && with.sums != nullptr)
      return copy(with.sums, scratch + vector_at, with.vector_bytes, on);
    return {};
  }

  template <class Stream>
  static status enqueue(Stream& stream, const product& p) {
    if (p.empty()) return nothing(stream.get(), p);
    operands with;
    if (const status s = describe_cublaslt(p, with); !s) return s;
    const std::shared_ptr<const cublaslt_plan> plan = cublaslt_plan_for(with.key);
    if (!plan->answer) return plan->answer;
    return enqueue(stream, stream.get(), p, with, *plan, p.out);
  }

  /// Where products are timed: in scratch if they read c, else in c.
  template <class Scope>
  static status place_to_time(Scope& scope, const product& p, void*& out) {
    out = p.out;
    if (!p.adds() || p.old() != p.out) return {};
    const index_t step = p.desc.batch.count == 1 ? 0 : p.desc.batch.c_batch_stride;
    const index_t others = (p.desc.batch.count - 1) * (step < 0 ? -step : step);
    const index_t one = (p.m() - 1) * leading_dimension(p.c) + p.n();
    std::byte* made = nullptr;
    const auto bytes = static_cast<std::size_t>((others + one) * bytes_of(p.c.storage()));
    if (const status s = scope.take(bytes, made); !s) return s;
    out = step < 0 ? offset_by(static_cast<void*>(made), others, p.c.storage()) : made;
    return {};
  }

  template <class Stream>
  static status tune(Stream& stream, const product& p) {
    const cudaStream_t on = stream.get();
    bool capturing = false;
    if (const status s = cuda_runtime::capturing(capturing, on); !s) return s;
    if (capturing) return {errc::unsupported, "gemm_tune: the stream must not be captured"};
    if (p.empty()) return nothing(on, p);
    operands with;
    if (const status s = describe_cublaslt(p, with); !s) return s;
    const cublaslt_choices choices = ask_cublaslt(with.key);
    if (!choices.plan.answer) return choices.plan.answer;

    cublaslt_stopwatch watch;
    if (const status s = watch.start(); !s) return s;
    status failed;  // of the first algorithm that can't run
    {
      typename Stream::scratch_scope scope(stream);
      void* out = nullptr;
      if (const status s = place_to_time(scope, p, out); !s) return s;
      for (int i = 0; i < choices.count; ++i) {
        auto& t = watch.of[watch.count];
        t.plan = std::make_shared<const cublaslt_plan>(choices.plan_of(i));
        const auto run = [&](cudaStream_t where) { return enqueue(stream, where, p, with, *t.plan, out); };
        status ran = run(on);  // scratch grows here, and modules are loaded
        if (ran.ok()) ran = watch.capture(t, run);
        if (ran.ok()) ++watch.count;
        if (failed.ok()) failed = ran;
      }
      if (watch.count == 0) return failed;
      for (int round = 0; round < cublaslt_stopwatch::rounds; ++round) {
        for (int i = 0; i < watch.count; ++i) {
          if (const status s = watch.time(watch.of[i], on); !s) return s;
        }
      }
    }
    const cublaslt_stopwatch::timed* fastest = watch.of;
    for (int i = 1; i < watch.count; ++i) {
      if (watch.of[i].least < fastest->least) fastest = watch.of + i;
    }
    cublaslt_plans().put(with.key, fastest->plan);
    return enqueue(stream, on, p, with, *fastest->plan, p.out);
  }
};

}  // namespace detail

template <class Backends, class E>
status gemm_on(cuda_backend, context<E> ctx, const basic_gemm_desc<device_space>& desc,
               const gemm_view<device_space>& a, const gemm_factor<device_space>& b,
               const gemm_result<device_space>& c) {
  return detail::cublaslt_backend::run(ctx, desc, a, b.values(), c);
}

/// Times the algorithms that cuBLASLt's heuristic names for a product, and pins the fastest: gemm() takes the
/// first, which may be far from it. The result is that of one gemm(), enqueued.
///
/// The pinned algorithm serves every later product whose shape, strides, types, math, steps, device and
/// alignment of pointers (up to 256 bytes) are the same, whatever their addresses and values, until 1024
/// others have been used since: the cache keeps as many. Graphs that were captured before keep theirs.
///
/// @pre      as gemm() on a CUDA stream. Where c's old values are read (accumulate, or c as residual),
///           products are timed into scratch of c's size, which the workspace keeps; else into c. Bits, bias
///           gradient and sums are written by every product
/// @numerics as gemm(). Algorithms sum in different orders: tuning may change the bits of a product once, and
///           two processes may pin different algorithms; the same algorithm gives the same bits
/// @cost     waits; some 500 products: 8 algorithms, each once by itself, then the least of 5 times of 6
///           products in a graph. Allocates on host and device. Other work on the device spoils the times
/// @threads  as gemm(); other threads may run the same product
/// @error    as gemm(), also where there is no algorithm; unsupported while the stream is captured;
///           device_error, out_of_memory (events). An algorithm that fails by itself or in a graph is passed
///           over, and the first failure returned if all do. After a failure c is unchanged where its old
///           values are read, else written in part, as are bits, bias gradient and sums; nothing is pinned
///           unless only the last product, by the fastest, has failed
/// @example  gemm_tune(stream, desc, x, weights, y).or_throw();  // once, before the step is captured
template <class Context>
DEEPREC_PER_UNIT status gemm_tune(Context&& context_or_executor, const basic_gemm_desc<device_space>& desc,
                                  const gemm_view<device_space>& a, const gemm_factor<device_space>& b,
                                  const gemm_result<device_space>& c) {
  const auto ctx = detail::as_context(context_or_executor);
  static_assert(std::is_same_v<std::remove_cvref_t<decltype(ctx.backend())>, cuda_backend>,
                "deeprec::gemm_tune: an executor of the host. Fix: pass a cuda_stream or cuda_executor; the "
                "host's gemm() chooses by shape.");
  const detail::verb_call call(ctx, "gemm_tune", detail::in_spaces<device_space>);
  if (!call) return call.stopped();
  if (const status s = detail::check_gemm(desc, a, b.values(), c); !s) return s;
  return detail::cublaslt_backend::tune(ctx, desc, a, b.values(), c);
}

}}  // namespace deeprec::DEEPREC_ABI
