// The keys of the growing suite, our index and the peers behind the same calls.
//
//   key i         mix64 of a counter; its code is i + 1
//   pass          batches of uniform keys, drawn anew each time, with the codes that they must have
//   ours, peer    find(keys, n, codes), insert(keys, n, first, codes)
#pragma once

#include <time.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory_resource>
#include <string>
#include <vector>

#include <deeprec/core/context.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/embedding/growing/key_index.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/memory/huge_page_resource.hpp>
#include <deeprec/memory/reclaimer.hpp>

#include "growing/baseline.hpp"
#include "support/machine.hpp"
#include "support/paired.hpp"

namespace growing_bench {

using namespace deeprec;

constexpr std::size_t batch = 4096;

/// One-to-one on 64 bits.
inline std::uint64_t key_of(std::uint64_t i) { return mix64(i * 0x9e3779b97f4a7c15U + 12345); }

/// Calls use(keys, n, i) for batches of the keys i in [begin, end).
template <class Use>
void each_batch(std::uint64_t begin, std::uint64_t end, Use&& use) {
  std::vector<std::uint64_t> keys(batch);
  for (std::uint64_t i = begin; i < end; i += batch) {
    const std::size_t n = std::min<std::size_t>(batch, end - i);
    for (std::size_t k = 0; k < n; ++k) keys[k] = key_of(i + k);
    use(keys.data(), n, i);
  }
}

/// Gives the keys [begin, end) their codes.
template <class Side>
void fill(Side& side, std::uint64_t begin, std::uint64_t end) {
  std::vector<std::uint32_t> codes(batch);
  each_batch(begin, end, [&](const std::uint64_t* keys, std::size_t n, std::uint64_t i) {
    side.insert(keys, n, static_cast<std::uint32_t>(i + 1), codes.data());
  });
}

/// Seconds that this thread had a processor.
inline double thread_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}
/// While it exists, figures are of the thread's time: others on its processor count through the caches only.
/// By the wall the longer side would lose, for it is interrupted more often.
class by_thread_time {
 public:
  by_thread_time() { deeprec_bench::clock_now = &thread_seconds; }
  by_thread_time(const by_thread_time&) = delete;
  by_thread_time& operator=(const by_thread_time&) = delete;
  ~by_thread_time() { deeprec_bench::clock_now = &deeprec_bench::steady_seconds; }
};

/// Keys to be looked up or inserted, and what the answer must be.
class pass {
 public:
  static constexpr std::size_t size = 128 * batch;
  static constexpr std::uint32_t first_new = 7;  // the code of a new key less its place in the batch

  /// Of keys below `held`.
  void draw_present(std::uint64_t held) {
    draw([&](std::size_t k, std::uint64_t word) { set(k, index_below(word, held), 1); });
  }
  void draw_absent(std::uint64_t held) {
    draw([&](std::size_t k, std::uint64_t word) {
      keys_[k] = key_of(never + index_below(word, held));
      codes_[k] = 0;
    });
  }
  /// The same with 5 % of keys that are absent until they are inserted; how many.
  std::uint64_t draw_growing(std::uint64_t held) {
    const std::uint64_t before = added_;
    draw([&](std::size_t k, std::uint64_t word) {
      if ((word & 0xffff) >= 0x10000 / 20) return set(k, index_below(word, held), 1);
      keys_[k] = key_of(later + added_++);
      codes_[k] = first_new + static_cast<std::uint32_t>(k % batch);
    });
    return added_ - before;
  }

  template <class Side>
  void find(const Side& side) {
    for (std::size_t k = 0; k < size; k += batch) side.find(&keys_[k], batch, &answer_[k]);
  }
  template <class Side>
  void insert(Side& side) {
    for (std::size_t k = 0; k < size; k += batch) side.insert(&keys_[k], batch, first_new, &answer_[k]);
  }
  /// Whether the last answer was right; forgets it.
  [[nodiscard]] bool was_right() {
    const bool right = answer_ == codes_;
    std::fill(answer_.begin(), answer_.end(), ~std::uint32_t{0});
    return right;
  }
  [[nodiscard]] const std::vector<std::uint64_t>& keys() const { return keys_; }

 private:
  static constexpr std::uint64_t never = std::uint64_t{1} << 40, later = std::uint64_t{1} << 42;

  static std::uint64_t index_below(std::uint64_t word, std::uint64_t n) {
    return static_cast<std::uint64_t>(hash_bucket(word, static_cast<index_t>(n)));
  }
  void set(std::size_t k, std::uint64_t i, std::uint32_t more) {
    keys_[k] = key_of(i);
    codes_[k] = static_cast<std::uint32_t>(i) + more;
  }
  template <class Set>
  void draw(Set&& set) {
    for (std::size_t k = 0; k < size; ++k) set(k, mix64(++draws_ * 0xd1342543de82ef95U));
  }

  std::vector<std::uint64_t> keys_ = std::vector<std::uint64_t>(size);
  std::vector<std::uint32_t> codes_ = std::vector<std::uint32_t>(size), answer_ = codes_;
  std::uint64_t draws_ = 0, added_ = 0;
};

/// Our index, under a pin for each batch, as a table uses it.
class ours {
 public:
  static constexpr std::size_t bytes_per_key = 24;

  explicit ours(std::pmr::memory_resource* memory = huge_page_resource::shared())
      : index_(readers_, memory) {}

  [[nodiscard]] const key_index& index() const { return index_; }
  void find(const std::uint64_t* keys, std::size_t n, std::uint32_t* codes) const {
    const reclaimer::pin held = readers_.enter();
    index_.find(context_.instruction_set, keys, static_cast<index_t>(n), codes);
  }
  void insert(const std::uint64_t* keys, std::size_t n, std::uint32_t first, std::uint32_t* codes) {
    find(keys, n, codes);
    index_t absent = 0;
    for (std::size_t k = 0; k < n; ++k) {
      if (codes[k] != key_index::none) continue;
      codes[k] = first + static_cast<std::uint32_t>(k);
      absent_keys_[absent] = keys[k];
      absent_codes_[absent++] = codes[k];
    }
    const auto places = index_.reserve(context_, absent_keys_, no_codes_, absent);
    if (!places) std::abort();
    index_.put(context_, places.value(), absent_codes_);
  }

 private:
  mutable reclaimer readers_;
  key_index index_;
  inline_executor here_;
  context<inline_executor> context_{here_};
  std::uint64_t absent_keys_[batch];
  std::uint32_t absent_codes_[batch];
  std::uint32_t no_codes_[batch] = {};
};

struct peer_build {
  std::string peer, name;
  peer_map map;
};
constexpr const char* peer_names[] = {"absl", "boost", "libcuckoo", "phmap", "tbb"};

/// Both builds of the peers that are here.
inline const std::vector<peer_build>& peer_builds() {
  static const std::vector<peer_build> all = {
#if defined(HAVE_ABSL)
      {"absl", "absl_o2", o2::absl_map()},
      {"absl", "absl_native", native::absl_map()},
#endif
#if defined(HAVE_BOOST)
      {"boost", "boost_o2", o2::boost_map()},
      {"boost", "boost_native", native::boost_map()},
#endif
#if defined(HAVE_LIBCUCKOO)
      {"libcuckoo", "libcuckoo_o2", o2::libcuckoo_map()},
      {"libcuckoo", "libcuckoo_native", native::libcuckoo_map()},
#endif
#if defined(HAVE_PHMAP)
      {"phmap", "phmap_o2", o2::phmap_map()},
      {"phmap", "phmap_native", native::phmap_map()},
#endif
#if defined(HAVE_TBB)
      {"tbb", "tbb_o2", o2::tbb_map()},
      {"tbb", "tbb_native", native::tbb_map()},
#endif
  };
  return all;
}
/// Those of one peer.
inline std::vector<peer_build> builds_of(const std::string& peer) {
  std::vector<peer_build> some;
  for (const peer_build& one : peer_builds()) {
    if (one.peer == peer) some.push_back(one);
  }
  return some;
}

class peer {
 public:
  peer(const peer_build& build, std::pmr::memory_resource* memory, std::size_t keys = 0)
      : build_(&build), map_(build.map.make(memory, keys)) {}
  peer(const peer&) = delete;
  peer& operator=(const peer&) = delete;
  ~peer() { build_->map.end(map_); }

  void find(const std::uint64_t* keys, std::size_t n, std::uint32_t* codes) const {
    build_->map.find(map_, keys, n, codes);
  }
  void insert(const std::uint64_t* keys, std::size_t n, std::uint32_t first, std::uint32_t* codes) {
    build_->map.insert(map_, keys, n, first, codes);
  }
  [[nodiscard]] const std::string& name() const { return build_->name; }

 private:
  const peer_build* build_;
  void* map_;
};

}  // namespace growing_bench
