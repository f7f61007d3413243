// Ops, numbers and lists of them in words, for what passes explain and refuse.
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

struct op_words {
  const flat_graph& graph;
  index_t most;  // ops in a list

  [[nodiscard]] std::string named(index_t op) const {
    return graph.name(op).empty() ? "op " + std::to_string(op) : "'" + std::string(graph.name(op)) + "'";
  }
  static std::string number(double x) {
    char text[32];
    std::snprintf(text, sizeof text, "%.4g", x);
    return text;
  }
  static std::string counted(index_t n, const char* what) {
    return std::to_string(n) + ' ' + what + (n == 1 ? "" : "s");
  }
  // "'a', 'b' and 7 more"
  [[nodiscard]] std::string listed(const std::vector<index_t>& ops) const {
    std::string text;
    for (std::size_t i = 0; i < ops.size() && static_cast<index_t>(i) < most; ++i)
      text += (i == 0 ? "" : ", ") + named(ops[i]);
    if (static_cast<index_t>(ops.size()) > most)
      text += " and " + std::to_string(static_cast<index_t>(ops.size()) - most) + " more";
    return text;
  }
};

/// A fault of a caller: "rule (was)". `op`: -1 where it is of none.
inline fault refused(const char* rule, const std::string& was, index_t op = -1, std::int64_t value = 0) {
  return {status(errc::invalid_value, fault_place{.value = value, .item = op}),
          {},
          std::string(rule) + " (" + was + ')'};
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
