// 64-bit keys to 32-bit codes, for tables that grow: every number is a key, and finds wait for nobody.
//
//   hash of a key   | shard | place in its directory | home bucket in a segment |
//
//   shard       64 of them, of unequal sizes, so that they don't grow at the same time; each has a directory
//   directory   addresses of segments; it doubles
//   segment     buckets of a cache line (detail/key_segment.hpp), 64 KB at most; a full one splits in two
//
// Any number of threads find, each under a pin of the reclaimer. One thread at a time puts and erases; that
// work is spread over the context by shards. The seed of the hash is secret and changes no result. Not here:
// what a code means.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/isa.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/growing/detail/key_memory.hpp>
#include <deeprec/embedding/growing/detail/key_probe.hpp>
#include <deeprec/embedding/growing/detail/key_segment.hpp>
#include <deeprec/embedding/growing/detail/key_shard.hpp>
#include <deeprec/memory/huge_page_resource.hpp>
#include <deeprec/memory/reclaimer.hpp>
#include <deeprec/simd/dispatch.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/key_hash.hpp>
#include <deeprec/support/scratch_block.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {
struct key_index_access;
}  // namespace detail

/// A map from keys to codes. A code is a number in [1, most_code]; 0 stands for no key.
///
/// @threads find: thread-safe beside everything, under a pin. put and erase: one caller at a time. The rest:
///          not beside put or erase
/// @error   the constructor throws deeprec::error (out_of_memory) when the resource refuses
class key_index {
  friend detail::key_index_access;
  static constexpr std::uint32_t shards = 64;

 public:
  /// What find writes for a key that is not held.
  static constexpr std::uint32_t none = detail::code_free;
  static constexpr std::uint32_t most_code = detail::code_erased - 1;

  /// @param readers outlives the index: its pins are those of readers. Both have one owner
  explicit key_index(reclaimer& readers, std::pmr::memory_resource* memory = huge_page_resource::shared(),
                     const detail::key_seed& seed = detail::process_key_seed())
      : readers_(&readers), memory_(memory, readers), directory_{detail::key_hash(seed), {}} {
    if (!open_shards())
      detail::raise(errc::out_of_memory, "key_index: the memory resource must provide 64 KB (it refused)");
  }

  /// Writes the code of each key, or none.
  ///
  /// @shape   keys (N) · codes (N)
  /// @pre     the caller holds a pin of the reclaimer, or is the thread that puts and erases
  /// @cost    1.1 cache lines a key on average; no lock, no allocation
  /// @threads wait-free, beside put and erase
  /// @error   none
  void find(isa which, const std::uint64_t* keys, index_t n, std::uint32_t* codes) const noexcept {
#if defined(__SANITIZE_THREAD__)
    which = isa::portable;  // the sanitizer follows atomic loads, and no vectors
#endif
    with_isa_up_to_avx512(which, [&](auto region) { find_keys(region, directory_, keys, n, codes); });
  }

  /// The keys of a put, sorted by shard, and room for those that are not held. Scratch of a context.
  class places {
   public:
    places(places&&) noexcept = default;

   private:
    friend key_index;
    template <class Context>
    places(const Context& ctx, const key_index& index, const std::uint64_t* keys, index_t n)
        : block_(ctx.memory, detail::scratch_block::bytes_of<std::uint64_t>(n) +
                                 detail::scratch_block::bytes_of<std::uint32_t>(n) +
                                 detail::scratch_block::bytes_of<unsigned char>(n)),
          keys_(keys),
          hashes_(block_.take<std::uint64_t>(n)),
          order_(block_.take<std::uint32_t>(n)),
          absent_(block_.take<unsigned char>(n)) {
      for (index_t k = 0; k < n; ++k) {
        const std::uint64_t h = index.directory_.hash(keys[k]);
        hashes_[static_cast<std::size_t>(k)] = h;
        ++firsts_[index.shard_of_[detail::share_of(h)] + 1U];
      }
      for (std::uint32_t s = 0; s < shards; ++s) firsts_[s + 1] += firsts_[s];
      std::array<std::uint32_t, shards> next;
      std::copy_n(firsts_.begin(), shards, next.begin());
      for (index_t k = 0; k < n; ++k) {
        const std::uint32_t s = index.shard_of_[detail::share_of(hashes_[static_cast<std::size_t>(k)])];
        order_[next[s]++] = static_cast<std::uint32_t>(k);
      }
    }
    // Calls f(shard, positions in order) for each shard that has keys.
    template <class Context, class F>
    void each(const Context& ctx, const F& f) const {
      const double ns = 20 * static_cast<double>(order_.size());
      detail::run_bulk(ctx, {shards, 1, ns}, [&](index_t begin, index_t end, int) {
        for (auto s = static_cast<std::uint32_t>(begin); s < static_cast<std::uint32_t>(end); ++s) {
          const auto of_shard = order_.subspan(firsts_[s], firsts_[s + 1] - firsts_[s]);
          if (!of_shard.empty()) f(s, std::span<const std::uint32_t>(of_shard));
        }
      });
    }

    detail::scratch_block block_;
    const std::uint64_t* keys_;
    std::span<std::uint64_t> hashes_;
    std::span<std::uint32_t> order_;
    std::span<unsigned char> absent_;
    std::array<std::uint32_t, shards + 1> firsts_{};
  };

  /// Room for keys, so that put() can't fail.
  ///
  /// @param found_codes what find wrote for the keys
  /// @pre     the keys differ, and stay where they are until put(); nothing was put or erased since that find
  /// @post    no key and no code changed, whether it fails or not
  /// @cost    O(N), without a read of buckets; 64 KB are rewritten where a segment splits. Scratch of 13
  ///          bytes a key from the context's resource
  /// @threads beside finds; by one thread
  /// @error   out_of_memory, where the index's resource refuses; a resource that refuses scratch throws
  template <class Context>
  result<places> reserve(const Context& ctx, const std::uint64_t* keys, const std::uint32_t* found_codes,
                         index_t n) {
    memory_.reclaim();
    places found(ctx, *this, keys, n);
    for (std::size_t k = 0; k < found.absent_.size(); ++k) found.absent_[k] = found_codes[k] == none ? 1 : 0;
    std::atomic<bool> refused{false};
    found.each(ctx, [&](std::uint32_t s, std::span<const std::uint32_t> of_shard) {
      if (!shards_[s].make_room({of_shard, found.hashes_.data(), found.absent_.data()}))
        refused.store(true, std::memory_order_relaxed);
    });
    if (memory_.has_retired()) readers_->unlinked();
    if (refused.load(std::memory_order_relaxed))
      return status(errc::out_of_memory,
                    "key_index: the memory resource must provide the next segment (it refused)");
    return found;
  }
  /// Gives the keys of reserve() their codes; those that are not held are added. Keys with the code none are
  /// passed over.
  ///
  /// @pre     codes are in [0, most_code]; nothing was put since reserve()
  /// @cost    a cache line or two a key
  /// @threads beside finds, each of which sees the old code or the new one; by one thread
  /// @error   none; what an executor throws goes through, and then some keys have their codes
  template <class Context>
  void put(const Context& ctx, const places& reserved, const std::uint32_t* codes) {
    reserved.each(ctx, [&](std::uint32_t s, std::span<const std::uint32_t> of_shard) {
      for (const std::uint32_t k : of_shard) {
        if (codes[k] == none) continue;
        shards_[s].put(reserved.hashes_[k], reserved.keys_[k], codes[k], reserved.absent_[k] != 0);
      }
    });
  }
  /// find, reserve and put.
  ///
  /// @pre     the keys differ; codes are in [0, most_code]
  /// @post    where it fails, every key has the code that it had
  /// @cost    of the three; 4 bytes of scratch a key more
  /// @threads as reserve
  /// @error   as reserve
  template <class Context>
  status put(const Context& ctx, const std::uint64_t* keys, const std::uint32_t* codes, index_t n) {
    detail::scratch_block scratch(ctx.memory, detail::scratch_block::bytes_of<std::uint32_t>(n));
    const auto found = scratch.take<std::uint32_t>(n);
    find(ctx.instruction_set, keys, n, found.data());
    const auto reserved = reserve(ctx, keys, found.data(), n);
    if (!reserved) return reserved.fault();
    put(ctx, reserved.value(), codes);
    return {};
  }

  /// Erases keys, and writes the code that each had, or none: for keys that are not held, and where a key
  /// comes again. What its code stands for may be reused when the current epoch of the reclaimer is over; the
  /// caller ends the epoch by unlinked().
  ///
  /// @shape   keys (N) · codes (N)
  /// @cost    a cache line or two a key; scratch of 13 bytes a key from the context's resource
  /// @threads as put
  /// @error   none; a memory resource that refuses scratch throws, and nothing was erased
  template <class Context>
  void erase(const Context& ctx, const std::uint64_t* keys, index_t n, std::uint32_t* codes) {
    if (n == 0) return;
    const places sorted(ctx, *this, keys, n);
    sorted.each(ctx, [&](std::uint32_t s, std::span<const std::uint32_t> of_shard) {
      for (const std::uint32_t k : of_shard) codes[k] = shards_[s].erase(sorted.hashes_[k], keys[k]);
    });
  }

  /// Calls f(key, code) for each key, in no order.
  template <class F>
  void for_each(F&& f) const {
    for (const detail::key_shard& one : shards_) one.for_each(f);
  }

  /// The number of keys.
  [[nodiscard]] index_t size() const noexcept {
    index_t all = 0;
    for (const detail::key_shard& one : shards_) all += one.keys();
    return all;
  }
  /// The bytes that it has from its resource.
  [[nodiscard]] index_t bytes() const noexcept { return memory_.bytes(); }
  /// How often a segment was written anew, for being full.
  [[nodiscard]] index_t splits() const noexcept {
    index_t all = 0;
    for (const detail::key_shard& one : shards_) all += one.splits();
    return all;
  }

 private:
  // Shares of the hashes proportional to 2^(s / 64): shards double at different numbers of keys.
  bool open_shards() noexcept {
    constexpr auto all = static_cast<double>(detail::key_directory::shares);
    const auto size_of = [](std::uint32_t s) { return std::exp2(static_cast<double>(s) / shards); };
    double total = 0, sum = 0;
    for (std::uint32_t s = 0; s < shards; ++s) total += size_of(s);
    std::size_t first = 0;
    for (std::uint32_t s = 0; s < shards; ++s) {
      sum += size_of(s);
      const auto end = static_cast<std::size_t>(std::lround(sum / total * all));
      std::fill(shard_of_.begin() + static_cast<std::ptrdiff_t>(first),
                shard_of_.begin() + static_cast<std::ptrdiff_t>(end), static_cast<std::uint8_t>(s));
      if (!shards_[s].open(directory_, memory_, *readers_, first, end)) return false;
      first = end;
    }
    return true;
  }

  reclaimer* readers_;
  detail::key_memory memory_;
  detail::key_directory directory_;
  std::array<detail::key_shard, shards> shards_;
  std::array<std::uint8_t, detail::key_directory::shares> shard_of_{};
};

}}  // namespace deeprec::DEEPREC_ABI
