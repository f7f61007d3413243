// Secret seeds of this process for hash tables, so that keys can't be chosen to collide.
//
// They affect the speed of a table, never the result of a verb. Hashes that are part of a model
// (core/hash.hpp) don't use them.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <ctime>

#include <deeprec/core/config.hpp>
#include <deeprec/core/hash.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

struct key_seed {
  std::uint64_t start = 0;
  std::uint64_t key[4] = {};
};

/// Made once from the system's random numbers; where it has none, from an address and the time.
inline const key_seed& process_key_seed() noexcept {
  static const key_seed made = [] {
    key_seed seed;
    if (::getentropy(&seed, sizeof(seed)) != 0) {
      ::timespec now{};  // <chrono> takes longer to compile than this header
      ::clock_gettime(CLOCK_MONOTONIC, &now);
      auto state =
          static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(&seed)) ^
          (static_cast<std::uint64_t>(now.tv_sec) * 1000000000 + static_cast<std::uint64_t>(now.tv_nsec));
      for (std::uint64_t& word : seed.key) word = mix64(state += hash_key[0]);
      seed.start = mix64(state += hash_key[0]);
    }
    seed.key[1] |= 1;  // factors are odd
    seed.key[3] |= 1;
    return seed;
  }();
  return made;
}

/// Hash of an id; the upper bits are the best mixed. Two multiplications: after one, the upper bits of ids in
/// an arithmetic progression are such a progression themselves, and with one seed in a hundred they cluster.
inline std::uint64_t id_hash(const key_seed& seed, std::uint64_t id) noexcept {
  return fold_multiply(fold_multiply(id ^ seed.start, seed.key[1]) ^ seed.key[2], seed.key[3]);
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
