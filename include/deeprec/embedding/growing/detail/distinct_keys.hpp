// The keys of a batch, each once, for number_keys.
#pragma once

#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/support/key_hash.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// In the order of their first position, and how often each comes.
struct distinct_keys {
  const key_seed& seed;
  const std::uint64_t* all;
  std::uint64_t* distinct;
  std::uint32_t* occurrences;
  std::uint32_t known = 0;

  [[nodiscard]] std::uint64_t hash(index_t k) const { return id_hash(seed, all[k]); }
  [[nodiscard]] bool same(index_t k, std::uint32_t number) const { return distinct[number] == all[k]; }
  void add(index_t k) {
    distinct[known] = all[k];
    occurrences[known++] = 1;
  }
  void again(std::uint32_t number) { ++occurrences[number]; }
  void fetch(std::uint32_t number) const { __builtin_prefetch(distinct + number); }
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
