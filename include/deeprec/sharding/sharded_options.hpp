// What a sharded_group is told, and counts: the order of sums, the element types of messages, their limits.
#pragma once

#include <chrono>
#include <cstdint>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The order in which the gradients of a row are added.
enum class row_sums : std::uint8_t {
  by_parts,  ///< within each part of a batch, then in the order of ranks and parts: a row is sent for each
             ///< distinct id of a part
  in_order,  ///< as one process adds those of all batches in the order of the ranks: a row for each bag
             ///< and owner of its ids, so that the bits do not depend on the number of ranks
};

/// The element types of rows and of gradients in messages: float, f16 or bf16.
///
///   sharded_group<rowwise_adagrad, mpi_ranks, jagged_view<>, wire<bf16>> group(comm);
///
/// @numerics to nearest even, once: a row (or a pooled one) where its owner sends it, a gradient after its
///           sum within the rank. A rank's own rows and gradients are rounded as those of others. Beyond the
///           range of f16: infinity
template <class Row = float, class Gradient = float>
struct wire {
  template <class T>
  static constexpr bool is_wire_type =
      std::is_same_v<T, float> || std::is_same_v<T, f16> || std::is_same_v<T, bf16>;
  static_assert(is_wire_type<Row> && is_wire_type<Gradient>,
                "deeprec::wire: messages have elements of float, f16 or bf16. Fix: wire<bf16>.");

  using row_type = Row;
  using gradient_type = Gradient;
};

struct sharded_options {
  /// Of each message; then the verb returns timed_out, and the communicator has ended.
  std::chrono::nanoseconds patience = std::chrono::minutes(10);
  /// The same at all ranks.
  row_sums sums = row_sums::by_parts;
  /// Of the batches of all ranks, of by_parts: a multiple of the number of ranks, of which each cuts its
  /// batch into as many, equal in bags. The bits do not depend on the number of ranks where the parts are the
  /// same. 0: one for each rank.
  int parts = 0;
};

/// What a rank has sent.
struct sharded_traffic {
  std::uint64_t messages = 0, bytes = 0;
};

}}  // namespace deeprec::DEEPREC_ABI
