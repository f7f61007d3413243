// Products by oneDNN, which picks its instruction set at run time whatever this unit is compiled for.
// Declares nothing unless DEEPREC_WITH_ONEDNN is defined (the target deeprec::onednn does that).
//
//   query ──> a matmul primitive, cached ──> run on one thread
//
// OpenMP is limited to one thread around every call, planning included: neither scratch nor code depends on
// omp_set_num_threads(), and no thread is started. DEEPREC_ISA limits oneDNN as well, unless other code in
// the process used oneDNN first; a context with a lower instruction set than oneDNN's is refused, as oneDNN
// selects its instruction set once per process.
//
// Signals are blocked while oneDNN's gemm:jit runs: up to 3.11 its stack register points into the heap, where
// a handler's frame would overwrite memory. A profiler that samples by signals sees such a product only at
// its end.
//
// Fused: accumulation, bias, a dense residual, GELU, sigmoid, the cast to bf16; ReLU where no NaN can arise,
// as oneDNN's ReLU turns NaN into 0. Works with oneDNN 2.6 and 3.x.
#pragma once

#include <deeprec/dense/gemm/gemm_backend.hpp>

#if defined(DEEPREC_WITH_ONEDNN) && DEEPREC_WITH_ONEDNN
#  include <algorithm>
#  include <cstddef>
#  include <cstdint>
#  include <cstring>
#  include <new>
#  include <utility>

#  include <deeprec/core/isa.hpp>
#  include <deeprec/dense/gemm/detail/gemm_arithmetic.hpp>
#  include <deeprec/dense/gemm/detail/onednn_api.hpp>
#  include <deeprec/dense/gemm/detail/plan_cache.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// @numerics float sums in oneDNN's order, which depends on the machine and the shape. With bf16 inputs
///           VDPBF16PS treats denormals as zeros, in factors and sums
/// @cost     O(mnk); about 0.3 ms for a new gemm_backend::problem; the primitives of 1024 problems are cached
/// @threads  thread-safe; uses one thread (a oneDNN built on TBB: those of the caller's arena)
/// @error    unsupported: oneDNN refused to run · out_of_memory
struct onednn_gemm {
  static constexpr const char* name = "oneDNN";

  [[nodiscard]] static status can_run(const gemm_backend::problem& q) {
    if (const status s = refuses(q); !s) return s;
    return judge(q, primitive(q).get());
  }

  [[nodiscard]] static gemm_backend::plan plan(const gemm_backend::problem& q) {
    if (!refuses(q)) return {.query = q};
    auto made = primitive(q);
    if (!judge(q, made.get())) return {.query = q};
    const std::size_t scratch = made->scratch_bytes();
    const char* const implementation = made->implementation();
    return {.query = q,
            .run = &run,
            .scratch_bytes = scratch == 0 ? 0 : scratch + page + beyond(q),
            .implementation = implementation,
            .state = std::move(made)};
  }

  [[nodiscard]] static gemm_backend::bf16_unit bf16_products(isa which) noexcept {
    const isa most = detail::onednn_isa();
    return detail::unit_of({.vectors = (std::min)(best_isa(), most) == isa::avx512_bf16 &&
                                       (which == best_isa() || which >= most),
                            .tiles = detail::onednn_has_tiles(),
                            .full_rate = detail::has_fast_bf16_vectors()});
  }

  /// As measured with 2.6.3. brg: a sum runs over k in one order whatever the rows, but few values of bf16
  /// are multiplied by vectors where more are by AMX. gemm:jit with AVX-512: so for 2 to 15 rows.
  [[nodiscard]] static bool same_rows(const gemm_backend::plan& plan, index_t rows) noexcept {
    const gemm_backend::problem& q = plan.query;
    if (std::strstr(plan.implementation, "brg") == nullptr) {
      return q.inputs == gemm_storage::f32 && detail::onednn_isa() >= isa::avx512 && q.m < 16 && rows > 1 &&
             rows < 16;
    }
    const auto by_vectors = [&](index_t m) {
      return (m == 1 && q.k == 256) || (m <= 32 && m * q.n <= 256) || q.k <= 16;
    };
    return q.inputs == gemm_storage::f32 || by_vectors(q.m) == by_vectors(rows);
  }

  /// As measured with 2.6.3, for k below 256.
  [[nodiscard]] static bool same_depths() noexcept { return detail::onednn_isa() >= isa::avx512; }

  /// @cost    O(kn)
  /// @threads thread-safe
  /// @error   unsupported: oneDNN refuses
  [[nodiscard]] static result<gemm_backend::packed> pack(const void* b, index_t k, index_t n,
                                                         gemm_operand orientation, gemm_storage storage,
                                                         std::pmr::memory_resource* memory) {
    const bool turned = orientation == gemm_operand::transposed;
    const onednn_layout from(k, n, detail::onednn_type(storage), turned ? 1 : n, turned ? k : 1);
    const onednn_layout to = weights_layout(k, n, storage);
    detail::onednn_primitive copy;
    if (to.bytes() == 0 || !copy.make_reorder(from, to)) {
      return status(errc::unsupported, "oneDNN can't pack b");
    }
    const std::size_t bytes = (to.bytes() + 127) / 64 * 64;
    const std::shared_ptr<void> data = detail::shared_memory(memory, bytes, page);
    const std::shared_ptr<void> scratch =
        detail::shared_memory(memory, std::max<std::size_t>(copy.scratch_bytes(), 64), page);
    if (const status s = copy.run({b, data.get(), scratch.get()}); !s) return s;
    return gemm_backend::packed{data, bytes};
  }

  /// Counters of the cache of primitives.
  ///
  /// @cost    O(1)
  /// @threads thread-safe
  /// @error   none
  [[nodiscard]] static gemm_cache_report cache_report() { return cache().report(); }

 private:
  using onednn_layout = detail::onednn_layout;

  // oneDNN assumes that its scratch is page-aligned, and uses more than it requests where it is not.
  static constexpr std::size_t page = 4096;
  // oneDNN 2.6 also writes a row of a beyond what it requests (m = 1, n = 2, k = 70: 1,432 bytes of 1,152).
  static std::size_t beyond(const gemm_backend::problem& q) noexcept {
    return static_cast<std::size_t>(16 * 4 * (q.k + q.n));
  }
  static void* whole_page(void* p) noexcept {
    return reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(p) + page - 1) / page * page);
  }
  using primitives = detail::plan_cache<gemm_backend::problem, detail::onednn_primitive>;

  static primitives& cache() {
    static auto* const kept = new primitives(1024);  // outlives every static object that multiplies
    return *kept;
  }

  static status refuses(const gemm_backend::problem& q) noexcept {
    if (q.activation == gemm_activation::relu && !q.finite)
      return {errc::unsupported, "oneDNN's ReLU makes a 0 of a NaN"};
    if (q.n == 1) return {errc::unsupported, "oneDNN is slow where the result has one column"};
    if (q.instruction_set < best_isa() && q.instruction_set < detail::onednn_isa()) {
      return {errc::unsupported, "oneDNN uses instructions above the context's set"};
    }
    if (q.inputs == gemm_storage::bf16 && (std::min)(best_isa(), detail::onednn_isa()) != isa::avx512_bf16) {
      return {errc::unsupported, "this machine has no instructions for bf16 products"};
    }
    if (q.residual && q.c_stride != q.n)
      return {errc::unsupported, "oneDNN adds a residual to a dense result only"};
    if (detail::onednn_engine() == nullptr)
      return {errc::unsupported, "oneDNN has no engine for this machine"};
    return {};
  }

  static status judge(const gemm_backend::problem& q, const detail::onednn_primitive* made) {
    if (made == nullptr) return {errc::unsupported, "oneDNN has no primitive for this product"};
    if (std::strncmp(made->implementation(), "ref", 3) == 0) {
      return {errc::unsupported, "oneDNN has only its reference code for this product"};
    }
    if (q.inputs == gemm_storage::bf16) {
      const bool brgemm = std::strstr(made->implementation(), "brg") != nullptr;
      if (brgemm && std::strstr(made->implementation(), "bf16") == nullptr &&
          std::strstr(made->implementation(), "amx") == nullptr) {
        return {errc::unsupported, "oneDNN would not multiply in bf16"};
      }
      if (!brgemm && q.k % 2 != 0) {
        return {errc::unsupported, "oneDNN's products of strided bf16 read past the end of an odd k"};
      }
    }
    return {};
  }

  // The same for any m, so that one packed operand serves every batch size.
  static onednn_layout weights_layout(index_t k, index_t n, gemm_storage storage) {
    detail::onednn_primitive typical;
    const gemm_backend::problem q{.m = 64, .n = n, .k = k, .a_stride = k, .c_stride = n, .inputs = storage};
    if (!typical.make_matmul(q, onednn_layout(k, n, detail::onednn_type(storage)))) return {};
    return onednn_layout(typical.b_layout().get());
  }

  static std::shared_ptr<const detail::onednn_primitive> primitive(gemm_backend::problem q) {
    q.instruction_set = gemm_backend::problem{}.instruction_set;  // not passed to oneDNN
    return cache().get(q, [&]() -> std::shared_ptr<const detail::onednn_primitive> {
      const bool turned = q.b == gemm_operand::transposed;
      const onednn_layout b = q.packed ? weights_layout(q.k, q.n, q.inputs)
                                       : onednn_layout(q.k, q.n, detail::onednn_type(q.inputs),
                                                       turned ? 1 : q.b_stride, turned ? q.b_stride : 1);
      auto made = std::make_shared<detail::onednn_primitive>();
      if (b.bytes() == 0 || !made->make_matmul(q, b)) return nullptr;
      return made;
    });
  }

  static status run(const gemm_backend::plan& plan, const gemm_backend::args& p) {
    const auto& made = *static_cast<const detail::onednn_primitive*>(plan.state.get());
    std::array<const void*, detail::onednn_run::most> at{p.a, p.b, p.c};
    std::size_t next = 3;
    if (plan.query.bias) at[next++] = p.bias;
    if (plan.query.residual) at[next++] = p.residual;
    at[next] = whole_page(p.scratch);
    return made.run(at);
  }
};

static_assert(PackingGemmBackend<onednn_gemm>);

}}  // namespace deeprec::DEEPREC_ABI
#endif
