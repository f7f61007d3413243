// Who multiplies: the words that gemm() and its backends share.
//
//   gemm() cuts c into tiles by shape ──> asks backend after backend: can_run(query)?  ──> a reason, or
//                                         plan(query) ──> plan.run(pointers), one thread a tile
//
// gemm() converts operands and composes what a plan does not fuse. thin_gemm and eigen_gemm are always
// there, onednn_gemm where oneDNN is. Not here: devices (cuda_cublaslt_gemm.hpp).
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/core/isa.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/dense/gemm_desc.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// One tile's product, without its pointers: op(a) m x k, op(b) k x n, c m x n, all at least 1. Row
/// strides in elements; a single row has the stride of a dense matrix.
struct gemm_problem {
  index_t m = 0, n = 0, k = 0;
  index_t a_stride = 0, b_stride = 0, c_stride = 0;
  gemm_operand a = gemm_operand::normal;
  gemm_operand b = gemm_operand::normal;
  gemm_storage inputs = gemm_storage::f32;  ///< of a and b both
  gemm_storage output = gemm_storage::f32;
  bool packed = false;  ///< b is what the backend's pack() made, and has no stride
  bool accumulates = false;
  bool bias = false;
  bool residual = false;  ///< float, of c's stride
  bool finite = false;    ///< no sum can be infinite or NaN
  gemm_activation activation = gemm_activation::none;
  isa instruction_set = isa::avx512_bf16;  ///< the context's: the most that kernels chosen at run time may use

  friend constexpr bool operator==(const gemm_problem&, const gemm_problem&) = default;
  friend constexpr std::uint64_t hash_of(const gemm_problem& q) noexcept {
    std::uint64_t h = 0;
    for (const index_t x : {q.m, q.n, q.k, q.a_stride, q.b_stride, q.c_stride}) {
      h = mix64(h ^ static_cast<std::uint64_t>(x));
    }
    const auto bits = [](auto x, int at) { return static_cast<std::uint64_t>(x) << at; };
    return mix64(h ^ (bits(q.a, 0) | bits(q.b, 1) | bits(q.inputs, 2) | bits(q.output, 3) | bits(q.packed, 4) |
                      bits(q.accumulates, 5) | bits(q.bias, 6) | bits(q.residual, 7) | bits(q.finite, 8) |
                      bits(q.activation, 9) | bits(q.instruction_set, 12)));
  }
};

/// Yes, or why not.
struct gemm_support {
  const char* refusal = nullptr;  ///< a literal

  constexpr explicit operator bool() const noexcept { return refusal == nullptr; }
};

struct gemm_args {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  const float* bias = nullptr;
  const float* residual = nullptr;
  void* scratch = nullptr;              ///< plan.scratch_bytes, aligned to 64
  isa instruction_set = isa::portable;  ///< for kernels of our own
};

/// A product ready to run, any number of times, by any number of threads at once.
struct gemm_plan {
  gemm_problem query;
  status (*run)(const gemm_plan&, const gemm_args&) = nullptr;  ///< null: there is no plan
  std::size_t scratch_bytes = 0;
  const char* implementation = "";      ///< a literal, or what `state` keeps
  std::shared_ptr<const void> state{};  ///< what run needs
};

/// Multiplies tiles of A by B into C on the calling thread. The same tile gives the same bits, wherever
/// its memory lies and whatever runs beside it. plan() of what can_run() accepts has a run().
template <class B>
concept GemmBackend = requires(const gemm_problem& query) {
  { B::name } -> std::convertible_to<const char*>;
  { B::can_run(query) } -> std::same_as<gemm_support>;
  { B::plan(query) } -> std::same_as<gemm_plan>;
};

/// b laid out anew for products with one backend.
struct gemm_packed {
  std::shared_ptr<const void> data{};
  std::size_t bytes = 0;
};

/// A backend that multiplies faster by an operand b that it has laid out itself. `b` is dense: k x n, or
/// n x k where `how` is transposed.
template <class B>
concept PackingGemmBackend = GemmBackend<B> &&
    requires(const void* b, index_t k, index_t n, gemm_operand how, gemm_storage storage) {
  { B::pack(b, k, n, how, storage) } -> std::same_as<gemm_packed>;
};

/// In order of preference: the first backend that can run a product does.
template <GemmBackend... Backends>
struct gemm_backends {};

/// What a cache of plans did since the process began.
struct gemm_cache_report {
  std::size_t kept = 0;  ///< now
  std::size_t made = 0;
  std::size_t found = 0;
  std::size_t dropped = 0;  ///< to make room
  std::size_t capacity = 0;
};

}}  // namespace deeprec::DEEPREC_ABI
