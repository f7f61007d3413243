// The rules that step rows, by the names that the ops have for them and by the numbers that files have.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace deeprec_torch {

/// Files have the place of a rule in this list.
inline constexpr std::array<std::string_view, 4> rules{"sgd", "rowwise_adagrad", "adagrad", "adam"};

/// -1: no rule, or none of these.
inline std::int64_t number_of_rule(std::string_view name) {
  const auto found = std::ranges::find(rules, name);
  return found == rules.end() ? -1 : found - rules.begin();
}

/// The rule whose state a file has, where tables of `here` can't take it; empty where they can, and for files
/// without that number.
inline std::string_view other_rule(std::int64_t here, std::int64_t given) {
  if (here < 0 || given < 0 || given == here || given >= std::ssize(rules)) return {};
  return rules[static_cast<std::size_t>(given)];
}

}  // namespace deeprec_torch
