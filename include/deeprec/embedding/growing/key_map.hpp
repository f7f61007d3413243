// 64-bit keys to numbers in [0, capacity), for tables that live elsewhere: on a device, or in a framework's
// tensors.
//
//   key_map map(1'000'000);
//   map.insert(pool, keys, numbers);      a number for each key, -1 for those for which there is none
//   lookup(stream, device_table, bags over numbers, combiner::sum, out);
//   map.erase(pool, gone, erased);        the numbers whose rows start anew
//
// A number that was erased is used again, the smallest first, when no pin is as old as its erasure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <mutex>
#include <span>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/isa.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/growing/detail/distinct_keys.hpp>
#include <deeprec/embedding/growing/detail/free_numbers.hpp>
#include <deeprec/embedding/growing/key_index.hpp>
#include <deeprec/memory/huge_page_resource.hpp>
#include <deeprec/memory/reclaimer.hpp>
#include <deeprec/support/key_hash.hpp>
#include <deeprec/support/number_keys.hpp>
#include <deeprec/support/scratch_block.hpp>
#include <deeprec/support/unit_flags.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Numbers of keys. They depend on the calls in their order only: the first key gets 0.
///
/// @threads find is thread-safe beside everything; insert and erase take turns
/// @error   the constructor throws deeprec::error: invalid_value for a capacity below 1 or above 2^32 - 2^24
///          - 1; out_of_memory
class key_map {
 public:
  static constexpr index_t most_capacity = 0xfeff'ffff;

  explicit key_map(index_t capacity, std::pmr::memory_resource* memory = huge_page_resource::shared(),
                   const detail::key_seed& seed = detail::process_key_seed())
      : capacity_(checked(capacity)), index_(readers_, memory, seed), free_(memory) {}

  /// Numbers of keys; -1 for those that it does not hold.
  ///
  /// @shape   keys (N) · numbers (N)
  /// @cost    a cache line of the index a key
  /// @threads beside everything. A number may be erased, and given to another key, once it was returned: who
  ///          needs it longer holds guard()
  /// @error   none
  void find(const std::uint64_t* keys, index_t n, std::int64_t* numbers) const noexcept {
    constexpr index_t at_once = 512;
    std::uint32_t codes[at_once];  // nvcc 13 misprints the size of a std::array here
    const reclaimer::pin pinned = readers_.enter();
    for (index_t from = 0; from < n; from += at_once) {
      const index_t count = (std::min)(at_once, n - from);
      index_.find(active_isa(), keys + from, count, codes);
      for (index_t k = 0; k < count; ++k) numbers[from + k] = std::int64_t{codes[k]} - 1;
    }
  }
  /// While it exists, numbers that are erased are not given to other keys.
  [[nodiscard]] reclaimer::pin guard() const noexcept { return readers_.enter(); }

  /// Numbers of keys, with new ones for those that it does not hold, in the order of their first position; -1
  /// where all are taken. Keys may repeat.
  ///
  /// @shape   keys (N) · numbers (N)
  /// @cost    a cache line or two a key; scratch of about 45 bytes a key from the context's resource
  /// @threads beside find; by one thread
  /// @error   out_of_memory, stopped: nothing changed
  template <class Context>
  DEEPREC_PER_UNIT status insert(Context&& context_or_executor, std::span<const std::uint64_t> keys,
                                 std::span<std::int64_t> numbers) {
    const auto ctx = detail::as_context(context_or_executor);
    const detail::host_call call(ctx, "key_map::insert");
    if (!call) return call.stopped();
    const auto n = static_cast<index_t>(keys.size());
    if (const status s = detail::expect_size(static_cast<index_t>(numbers.size()), n,
                                             "key_map::insert: numbers must be as many as keys");
        !s) {
      return s;
    }
    return detail::or_out_of_memory("key_map::insert", [&]() -> status {
      const std::lock_guard lock(mutex_);
      free_.reclaim(readers_, [](std::uint32_t) {});
      return insert_locked(ctx, keys, numbers);
    });
  }

  /// Erases keys, and writes the number that each had, or -1.
  ///
  /// @shape   keys (N) · numbers (N)
  /// @threads beside find; by one thread
  /// @error   shape_mismatch, out_of_memory, stopped: nothing changed
  template <class Context>
  DEEPREC_PER_UNIT status erase(Context&& context_or_executor, std::span<const std::uint64_t> keys,
                                std::span<std::int64_t> numbers) {
    const auto ctx = detail::as_context(context_or_executor);
    const detail::host_call call(ctx, "key_map::erase");
    if (!call) return call.stopped();
    const auto n = static_cast<index_t>(keys.size());
    if (const status s = detail::expect_size(static_cast<index_t>(numbers.size()), n,
                                             "key_map::erase: numbers must be as many as keys");
        !s) {
      return s;
    }
    return detail::or_out_of_memory("key_map::erase", [&]() -> status {
      const std::lock_guard lock(mutex_);
      detail::scratch_block scratch(ctx.memory, detail::scratch_block::bytes_of<std::uint32_t>(n));
      const auto codes = scratch.take<std::uint32_t>(n);
      free_.reserve(n);
      index_.erase(ctx, keys.data(), n, codes.data());
      const std::uint64_t epoch = readers_.unlinked();
      for (std::size_t k = 0; k < codes.size(); ++k) {
        numbers[k] = std::int64_t{codes[k]} - 1;
        if (codes[k] != key_index::none) free_.retire(codes[k] - 1, epoch);
      }
      return {};
    });
  }

  [[nodiscard]] index_t capacity() const noexcept { return capacity_; }
  /// The number of keys.
  [[nodiscard]] index_t size() const noexcept {
    const std::lock_guard lock(mutex_);
    return index_.size();
  }
  /// The bytes that it has from its resource.
  [[nodiscard]] index_t bytes() const noexcept {
    const std::lock_guard lock(mutex_);
    return index_.bytes() + free_.bytes();
  }

 private:
  static index_t checked(index_t capacity) {
    if (capacity < 1 || capacity > most_capacity)
      status(errc::invalid_value, "key_map: capacity must be from 1 to 2^32 - 2^24 - 1", {.value = capacity})
          .or_throw();
    return capacity;
  }
  template <class Context>
  status insert_locked(const Context& ctx, std::span<const std::uint64_t> keys,
                       std::span<std::int64_t> numbers) {
    const auto n = static_cast<index_t>(keys.size());
    if (n == 0) return {};
    if (n > detail::most_keys) detail::refuse_memory();
    using block = detail::scratch_block;
    const auto entries = static_cast<index_t>(detail::key_entries(n));
    block scratch(ctx.memory, block::bytes_of<std::uint64_t>(n) + 3 * block::bytes_of<std::uint32_t>(n) +
                                  block::bytes_of<std::uint32_t>(entries));
    const auto distinct = scratch.take<std::uint64_t>(n);
    const auto occurrences = scratch.take<std::uint32_t>(n);
    const auto codes = scratch.take<std::uint32_t>(n);
    const auto number_of = scratch.take<std::uint32_t>(n);
    const auto table = scratch.take<std::uint32_t>(entries);
    std::fill(table.begin(), table.end(), 0U);
    detail::distinct_keys each{detail::process_key_seed(), keys.data(), distinct.data(), occurrences.data()};
    detail::number_keys(table, n, each, number_of.data());
    const auto count = static_cast<index_t>(each.known);
    index_.find(ctx.instruction_set, distinct.data(), count, codes.data());
    const auto places = index_.reserve(ctx, distinct.data(), codes.data(), count);
    if (!places) return places.fault();
    for (index_t k = 0; k < count; ++k) {
      std::uint32_t& code = codes[static_cast<std::size_t>(k)];
      if (code != key_index::none) continue;
      if (!free_.empty()) {
        code = free_.take() + 1;
      } else if (fresh_ < capacity_) {
        code = static_cast<std::uint32_t>(++fresh_);
      }
    }
    index_.put(ctx, places.value(), codes.data());
    for (std::size_t k = 0; k < keys.size(); ++k) numbers[k] = std::int64_t{codes[number_of[k]]} - 1;
    return {};
  }

  index_t capacity_;
  mutable reclaimer readers_;
  key_index index_;
  detail::free_numbers free_;
  index_t fresh_ = 0;  // numbers that were ever given
  mutable std::mutex mutex_;
};

}}  // namespace deeprec::DEEPREC_ABI
