// Segments of the key index: buckets of one cache line, open addressing inside a segment.
//
//   bucket    | key 0 | ... | key 4 | code 0 | ... | code 4 | passed |      5 * 8 + 5 * 4 + 4 = 64 bytes
//   segment   2^k buckets; the hash names a home. Where that is full the next bucket takes the key, and
//             the home counts it (passed: 8 counters of 4 bits, by 3 bits of the hash)
//
// A find reads the home bucket alone, unless the counter of its hash is above 0. Readers write nothing and
// wait for nobody. One thread at a time writes to a segment:
//
//   put     key (relaxed), then code (release)
//   find    key (relaxed), code (acquire), then the key again: the slot was not reused in between
//   erase   code = erased; the slot is free when the epoch of the erasure is over
//
// Here is the protocol for one key, for any atomics policy; batches are in key_probe.hpp.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/support/atomics.hpp>
#include <deeprec/support/key_hash.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Codes of slots that hold no key.
inline constexpr std::uint32_t code_free = 0;
inline constexpr std::uint32_t code_erased = 0xffff'ffffU;

/// Whether a slot with this code holds its key.
constexpr bool is_held(std::uint32_t code) noexcept { return code - 1 < code_erased - 1; }

template <class Atomics>
struct alignas(64) basic_key_bucket {
  static constexpr int slots = 5;
  std::array<typename Atomics::template atomic<std::uint64_t>, slots> keys;
  std::array<typename Atomics::template atomic<std::uint32_t>, slots> codes;
  typename Atomics::template atomic<std::uint32_t> passed;
};
using key_bucket = basic_key_bucket<std_atomics>;
static_assert(sizeof(key_bucket) == 64);

/// Hash of a key. A multiplication is 64 bits wide only, so that vectors compute it too.
///
///   bits 63..54   one of 1024 shares of the hashes, each in a shard
///   bits 53..32   the place in the directory of its shard, from the upper bits on
///   bits 31..22   the home bucket in its segment, from the upper bits on
///   bits  2..0    the counter of keys that went on
struct key_hash {
  std::uint64_t start;
  std::uint64_t first;   // odd
  std::uint64_t second;  // odd

  explicit key_hash(const key_seed& seed) noexcept
      : start(seed.start), first(seed.key[1] | 1), second(seed.key[3] | 1) {}
  [[nodiscard]] DEEPREC_INLINE std::uint64_t operator()(std::uint64_t key) const noexcept {
    std::uint64_t h = key ^ start;
    h = (h ^ (h >> 32)) * first;
    h = (h ^ (h >> 29)) * second;
    return h ^ (h >> 32);
  }
};
constexpr std::uint32_t share_of(std::uint64_t hash) noexcept {
  return static_cast<std::uint32_t>(hash >> 54);
}
constexpr std::uint32_t directory_place(std::uint64_t hash, int bits) noexcept {
  return static_cast<std::uint32_t>((hash << 10 >> 1) >> (63 - bits));
}
constexpr std::uint32_t home_of(std::uint64_t hash, int log2) noexcept {
  return static_cast<std::uint32_t>((hash & 0xffff'ffffU) >> (32 - log2));
}

/// The buckets of a segment, 2^log2 of them, log2 in [0, 10].
template <class Atomics>
class key_segment {
 public:
  using bucket = basic_key_bucket<Atomics>;
  static constexpr int slots = bucket::slots;

  key_segment(bucket* buckets, int log2) noexcept : buckets_(buckets), log2_(log2) {}

  [[nodiscard]] bucket* buckets() const noexcept { return buckets_; }
  [[nodiscard]] int log2() const noexcept { return log2_; }
  [[nodiscard]] index_t size() const noexcept { return index_t{1} << log2_; }
  [[nodiscard]] index_t capacity() const noexcept { return size() * slots; }

  /// The code of a key; code_free where the segment does not hold it. Wait-free, under a pin.
  [[nodiscard]] std::uint32_t find(std::uint64_t hash, std::uint64_t key) const noexcept {
    std::uint32_t at = home_of(hash, log2_);
    for (index_t passed = 0; passed < size(); ++passed, at = after(at)) {
      const bucket& here = buckets_[at];
      for (int s = 0; s < slots; ++s) {
        const auto i = static_cast<std::size_t>(s);
        if (here.keys[i].load(Atomics::at(access::key_seen, std::memory_order_relaxed)) != key) continue;
        // acquire: the row of this code is initialised; and the key that was written before it is seen below.
        const std::uint32_t code =
            here.codes[i].load(Atomics::at(access::code_seen, std::memory_order_acquire));
        if (is_held(code) &&
            here.keys[i].load(Atomics::at(access::key_again, std::memory_order_relaxed)) == key)
          return code;
      }
      if (!went_on(here, hash)) break;
    }
    return code_free;
  }

  // --- for the one thread that writes -------------------------------------------------------------------

  /// Gives a key that the segment holds another code; false where it does not hold it.
  bool change(std::uint64_t hash, std::uint64_t key, std::uint32_t code) const noexcept {
    const slot held = slot_of(hash, key);
    if (held.line == nullptr) return false;
    publish(held, code);
    return true;
  }
  /// Adds a key that the segment does not hold.
  ///
  /// @pre a slot is free
  void put(std::uint64_t hash, std::uint64_t key, std::uint32_t code) const noexcept {
    for (std::uint32_t at = home_of(hash, log2_);; at = after(at)) {
      bucket& here = buckets_[at];
      for (int s = 0; s < slots; ++s) {
        const slot one{&here, static_cast<std::size_t>(s)};
        if (own_code(one) != code_free) continue;
        here.keys[one.place].store(key, Atomics::at(access::key_write, std::memory_order_relaxed));
        return publish(one, code);
      }
      count_passed(here, hash, 1);
    }
  }
  /// Frees the slots of erased keys.
  ///
  /// @pre the epochs of their erasures are over
  void free_erased() const noexcept {
    for (index_t b = 0; b < size(); ++b) {
      for (int s = 0; s < slots; ++s) {
        const slot one{&buckets_[b], static_cast<std::size_t>(s)};
        if (own_code(one) != code_erased) continue;
        // relaxed: to readers an erased slot and a free one are the same.
        one.line->codes[one.place].store(code_free,
                                         Atomics::at(access::code_erase, std::memory_order_relaxed));
      }
    }
  }
  /// Erases a key; false where the segment does not hold it. The slot may be freed when the epoch is over.
  bool erase(std::uint64_t hash, std::uint64_t key) const noexcept {
    const slot held = slot_of(hash, key);
    if (held.line == nullptr) return false;
    // relaxed: whoever enters after unlinked() sees it; others may find the key until they leave.
    held.line->codes[held.place].store(code_erased,
                                       Atomics::at(access::code_erase, std::memory_order_relaxed));
    take_back(hash, static_cast<std::uint32_t>(held.line - buckets_));
    return true;
  }
  /// Calls f(key, code) for every key; not beside a writer.
  template <class F>
  void for_each(const F& f) const {
    for (index_t b = 0; b < size(); ++b) {
      for (int s = 0; s < slots; ++s) {
        const slot one{&buckets_[b], static_cast<std::size_t>(s)};
        if (is_held(own_code(one))) f(own_key(one), own_code(one));
      }
    }
  }

 private:
  struct slot {
    bucket* line = nullptr;
    std::size_t place = 0;
  };

  [[nodiscard]] std::uint32_t after(std::uint32_t at) const noexcept {
    return (at + 1) & ((std::uint32_t{1} << log2_) - 1);
  }
  static int counter_of(std::uint64_t hash) noexcept { return static_cast<int>(hash & 7) * 4; }
  static bool went_on(const bucket& here, std::uint64_t hash) noexcept {
    const std::uint32_t all = here.passed.load(Atomics::at(access::passed_count, std::memory_order_relaxed));
    return (all >> counter_of(hash) & 15) != 0;
  }
  // A counter at 15 stays there: it stands for 15 keys or more.
  static void count_passed(bucket& here, std::uint64_t hash, int by) noexcept {
    const std::uint32_t all = here.passed.load(Atomics::at(access::passed_count, std::memory_order_relaxed));
    if ((all >> counter_of(hash) & 15) == 15) return;
    const std::uint32_t one = std::uint32_t{1} << counter_of(hash);
    here.passed.store(by > 0 ? all + one : all - one,
                      Atomics::at(access::passed_count, std::memory_order_relaxed));
  }
  // Uncounts a key of the bucket `end`.
  void take_back(std::uint64_t hash, std::uint32_t end) const noexcept {
    for (std::uint32_t at = home_of(hash, log2_); at != end; at = after(at))
      count_passed(buckets_[at], hash, -1);
  }
  static std::uint32_t own_code(const slot& one) noexcept {
    return one.line->codes[one.place].load(Atomics::at(access::looked_at, std::memory_order_relaxed));
  }
  static std::uint64_t own_key(const slot& one) noexcept {
    return one.line->keys[one.place].load(Atomics::at(access::looked_at, std::memory_order_relaxed));
  }
  // release: the key, the row and its facts come before the code.
  static void publish(const slot& one, std::uint32_t code) noexcept {
    one.line->codes[one.place].store(code, Atomics::at(access::code_publish, std::memory_order_release));
  }
  [[nodiscard]] slot slot_of(std::uint64_t hash, std::uint64_t key) const noexcept {
    std::uint32_t at = home_of(hash, log2_);
    for (index_t passed = 0; passed < size(); ++passed, at = after(at)) {
      for (int s = 0; s < slots; ++s) {
        const slot one{&buckets_[at], static_cast<std::size_t>(s)};
        if (own_key(one) == key && is_held(own_code(one))) return one;
      }
      if (!went_on(buckets_[at], hash)) break;
    }
    return {};
  }

  bucket* buckets_;
  int log2_;
};

/// The word of a segment in a directory: the address of its buckets, and the logarithm of their number.
template <class Atomics>
class segment_word {
 public:
  using word = typename Atomics::template atomic<std::uint64_t>;
  using segment = key_segment<Atomics>;

  /// acquire: the keys of the segment were put before.
  static segment load(const word& from) noexcept {
    return unpack(from.load(Atomics::at(access::segment_seen, std::memory_order_acquire)));
  }
  /// release: a segment is seen with its keys.
  static void store(word& to, const segment& one) noexcept {
    to.store(pack(one), Atomics::at(access::segment_publish, std::memory_order_release));
  }
  static segment unpack(std::uint64_t packed) noexcept {
    return {reinterpret_cast<basic_key_bucket<Atomics>*>(packed & ~std::uint64_t{63}),
            static_cast<int>(packed & 63)};
  }
  static std::uint64_t pack(const segment& one) noexcept {
    return reinterpret_cast<std::uintptr_t>(one.buckets()) | static_cast<std::uint64_t>(one.log2());
  }
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
