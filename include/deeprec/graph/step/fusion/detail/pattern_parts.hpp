// A pattern of ops without the types of its handles: what the matcher reads.
//
//   ops      0 scale (w0)   1 concat ([w1, 0.0, w2])   cells of arguments: a wildcard, or an output of an op
//   wild     w0: a value of type matrix                w1, w2: any number of them, side by side in a list
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/graph/step/detail/step_core.hpp>
#include <deeprec/graph/step/detail/step_inputs.hpp>
#include <deeprec/graph/step/step_graph.hpp>
#include <deeprec/graph/step/step_handles.hpp>
#include <deeprec/graph/step/type_id.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// What a wildcard stands for: a value or an access of a variable, or any number of them in a list.
struct pattern_wildcard {
  bool is_access = false;
  bool any_number = false;
  type_id type{};  // of the values, the objects
  variable_use use = variable_use::read;
};
/// An input of an op of a pattern: output `port` of an op, or, where op is -1, the wildcard `port`.
struct pattern_cell {
  std::uint64_t pattern = 0;
  index_t op = -1;
  index_t port = 0;
};
/// Cells of an argument: of a list any number, of which each may be a wildcard for any number.
using pattern_argument = std::vector<pattern_cell>;
struct pattern_op_parts {
  type_id type{};
  std::string_view kind;
  bool commutative = false;  // the first two arguments may be exchanged
  std::vector<pattern_argument> arguments;
  std::vector<type_id> outputs;
};

/// The ops of a graph that a pattern stands for, and what its wildcards do.
struct pattern_binding {
  std::vector<index_t> ops;                   // by the ops of the pattern; -1: not yet
  std::vector<std::vector<step_input>> wild;  // empty: not yet, or an empty list
  std::vector<bool> bound;                    // of wildcards
};

struct pattern_parts {
  pattern_parts(std::string_view of, std::uint64_t number) : name(of), id(number) {}
  std::string name;
  std::uint64_t id;
  std::vector<pattern_op_parts> ops{};
  std::vector<pattern_wildcard> wild{};
  std::vector<pattern_cell> outputs{};  // what the macro op's outputs replace
  std::vector<pattern_cell> passed{};   // what it takes
  bool takes_whole_batch = false;       // it may stand for ops of which some are sample-wise
  type_id macro{};
  std::string_view macro_kind{};
  /// Adds the macro op for a match, or says no.
  std::function<bool(const pattern_binding& found, const step_graph& from, step_graph& to,
                     std::string_view name)>
      make{};

  static std::uint64_t new_id() noexcept {
    static std::atomic<std::uint64_t> given{0};
    return given.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  [[nodiscard]] bool is_any_number(const pattern_cell& cell) const noexcept {
    return cell.op < 0 && wild[static_cast<std::size_t>(cell.port)].any_number;
  }
  [[nodiscard]] bool is_output(index_t op, index_t port) const noexcept {
    for (const pattern_cell& out : outputs) {
      if (out.op == op && out.port == port) return true;
    }
    return false;
  }
};

/// What makes an op commutative: its first two inputs may be exchanged, and the bits stay.
template <class Op>
constexpr bool is_commutative_op() noexcept {
  if constexpr (requires { Op::commutative; }) {
    return Op::commutative;
  } else {
    return false;
  }
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
