// The interface between gemm() and the backends that multiply.
//
//   gemm() cuts c into tiles by shape ──> for each backend in order: can_run(query) ──> a refusal, or
//                                         plan(query) ──> plan.run(pointers), one thread per tile
//
// gemm() converts operands and runs the epilogues that a plan does not fuse. thin_gemm and eigen_gemm are
// always available, onednn_gemm where oneDNN is. Not here: devices (cuda_cublaslt_gemm.hpp).
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <memory_resource>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/core/isa.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/dense/gemm/gemm_desc.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace gemm_backend {

/// What multiplies factors of bf16, in rising order of speed.
enum class bf16_unit : std::uint8_t {
  none,
  slow_vectors,  ///< AVX512-BF16, slower than float
  vectors,       ///< AVX512-BF16, faster than float
  tiles,         ///< AMX
};

/// One tile's product, without its pointers: op(a) m x k, op(b) k x n, c m x n, all at least 1. Row
/// strides in elements; a single row has the stride of a dense matrix.
struct problem {
  index_t m = 0, n = 0, k = 0;
  index_t a_stride = 0, b_stride = 0, c_stride = 0;
  gemm_operand a = gemm_operand::normal;
  gemm_operand b = gemm_operand::normal;
  gemm_storage inputs = gemm_storage::f32;  ///< of a and b both
  gemm_storage output = gemm_storage::f32;
  bool packed = false;  ///< b was made by the backend's pack(), and has no stride
  bool accumulates = false;
  bool bias = false;
  bool residual = false;  ///< float, of c's stride
  bool finite = false;    ///< no sum can be infinite or NaN
  gemm_activation activation = gemm_activation::none;
  isa instruction_set = isa::avx512_bf16;  ///< the context's: the highest that run-time dispatch may use

  friend constexpr bool operator==(const problem&, const problem&) = default;
  friend constexpr std::uint64_t hash_of(const problem& q) noexcept {
    std::uint64_t h = 0;
    for (const index_t x : {q.m, q.n, q.k, q.a_stride, q.b_stride, q.c_stride}) {
      h = mix64(h ^ static_cast<std::uint64_t>(x));
    }
    const auto bits = [](auto x, int at) { return static_cast<std::uint64_t>(x) << at; };
    return mix64(h ^ (bits(q.a, 0) | bits(q.b, 1) | bits(q.inputs, 2) | bits(q.output, 3) |
                      bits(q.packed, 4) | bits(q.accumulates, 5) | bits(q.bias, 6) | bits(q.residual, 7) |
                      bits(q.finite, 8) | bits(q.activation, 9) | bits(q.instruction_set, 12)));
  }
};

struct args {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  const float* bias = nullptr;
  const float* residual = nullptr;
  void* scratch = nullptr;              ///< plan.scratch_bytes, aligned to 64
  isa instruction_set = isa::portable;  ///< for deeprec's own kernels
};

/// A product ready to run, any number of times, by any number of threads at once.
struct plan {
  problem query;
  status (*run)(const plan&, const args&) = nullptr;  ///< null: there is no plan
  std::size_t scratch_bytes = 0;
  const char* implementation = "";      ///< a literal, or owned by `state`
  std::shared_ptr<const void> state{};  ///< what run needs
};

/// b in the packed layout of one backend.
struct packed {
  std::shared_ptr<const void> data{};
  std::size_t bytes = 0;
};

}  // namespace gemm_backend

namespace detail {

/// Aligned memory of a resource, given back with its last owner.
inline std::shared_ptr<void> shared_memory(std::pmr::memory_resource* from, std::size_t bytes,
                                           std::size_t alignment) {
  const auto give_back = [=](void* p) { from->deallocate(p, bytes, alignment); };
  return {from->allocate(bytes, alignment), give_back, std::pmr::polymorphic_allocator<std::byte>(from)};
}

}  // namespace detail

/// Multiplies tiles of A by B into C on the calling thread. The same tile gives the same bits, whatever its
/// address and whatever runs at the same time. can_run() returns unsupported, with the reason, where
/// plan() has no run.
///
/// Optional members, all static: `can_multiply(m, n, k)`, an early can_run() of a whole product;
/// `bf16_products(isa)`, the bf16_unit of a context with this instruction set (absent: none);
/// `same_rows(plan, rows)`, true where a row of the plan's result has the same bits in a product of `rows`
/// rows (absent: false); `same_depths()`, true where zeros after the end of k change no bit (absent: false).
template <class B>
concept GemmBackend = requires(const gemm_backend::problem& query) {
  { B::name } -> std::convertible_to<const char*>;
  { B::can_run(query) } -> std::same_as<status>;
  { B::plan(query) } -> std::same_as<gemm_backend::plan>;
};

/// A backend with same_rows().
template <class B>
concept SameRowsBackend = GemmBackend<B> && requires(const gemm_backend::plan& plan, index_t rows) {
  { B::same_rows(plan, rows) } -> std::same_as<bool>;
};

/// A backend that multiplies faster by an operand b in a packed layout of its own. `b` is dense: k x n, or
/// n x k where `orientation` is transposed. The packed form is in `memory`, which the calling thread has for
/// itself.
template <class B>
concept PackingGemmBackend =
    GemmBackend<B> && requires(const void* b, index_t k, index_t n, gemm_operand orientation,
                               gemm_storage storage, std::pmr::memory_resource* memory) {
      { B::pack(b, k, n, orientation, storage, memory) } -> std::same_as<result<gemm_backend::packed>>;
    };

/// Backends in order of preference: the first that can run a product does.
template <GemmBackend... Backends>
struct gemm_backends {};

/// Counters of a cache of plans since the process began.
struct gemm_cache_report {
  std::size_t kept = 0;  ///< at present
  std::size_t made = 0;
  std::size_t found = 0;
  std::size_t dropped = 0;  ///< to make room
  std::size_t capacity = 0;
};

}}  // namespace deeprec::DEEPREC_ABI
