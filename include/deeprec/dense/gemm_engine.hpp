// What multiplies one tile of a matrix product: the words that every engine and the verb share.
//
//   gemm(ctx, desc, a, b, c)  ──tiles by shape──>  engine.multiply(gemm_tile)     one thread a tile
//
// An engine is single-threaded, has no state and answers with a status. eigen_engine
// (eigen_gemm.hpp) is always there; onednn_engine (onednn_gemm.hpp) where oneDNN is. Not here: who
// runs the tiles.
#pragma once

#include <concepts>
#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec::inline DEEPREC_ABI {

/// How an operand lies in memory: as it is used, or transposed.
enum class gemm_operand : std::uint8_t { normal, transposed };

/// What happens to the old values of the result.
enum class gemm_output : std::uint8_t { overwrite, accumulate };

/// Which product: c = op(a) op(b), or c += op(a) op(b). Later fields will have defaults that mean
/// this.
struct gemm_desc {
  gemm_operand a = gemm_operand::normal;
  gemm_operand b = gemm_operand::normal;
  gemm_output c = gemm_output::overwrite;
};

/// One product for an engine: op(a) is m x k, op(b) is k x n, c is m x n; all row-major, the row
/// strides in elements. m, n and k are at least 1, and the pointers fit them.
template <class A, class B, class C>
struct gemm_tile {
  gemm_desc desc;
  index_t m, n, k;
  const A* a;
  index_t a_stride;
  const B* b;
  index_t b_stride;
  C* c;
  index_t c_stride;
};

/// Multiplies tiles of A by B into C. The same tile gives the same bits, wherever its memory lies
/// and whatever runs beside it.
template <class E, class A = float, class B = float, class C = float>
concept GemmEngine = std::default_initializable<E> &&
    requires(const E engine, const gemm_tile<A, B, C>& tile) {
  { engine.multiply(tile) } -> std::same_as<status>;
  { E::name } -> std::convertible_to<const char*>;
};

}  // namespace deeprec::inline DEEPREC_ABI
