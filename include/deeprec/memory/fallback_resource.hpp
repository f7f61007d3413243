// Two memory resources: the second one serves what the first refuses, up to a number of bytes.
//
//   mapped_resource ...  slow                                     a file, persistent memory
//   limited_resource fast(std::size_t{16} << 30, huge_page_resource::shared());
//   fallback_resource memory(&fast, slow.get(), std::size_t{64} << 30);
//
//   allocate     fast ──refuses──> slow, within the budget ──refuses──> std::bad_alloc
//   deallocate   whichever it came from
//
// Every request asks the first resource first: what it frees it serves again. On a device:
// cuda_fallback_memory.hpp.
#pragma once

#include <cstddef>
#include <memory_resource>
#include <new>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/memory/detail/fallback_ledger.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// What the second resource of a fallback holds.
struct fallback_report {
  std::size_t budget = 0;  ///< bytes
  std::size_t bytes = 0;   ///< of the budget, in use now
  index_t blocks = 0;      ///< in use now
  index_t fallbacks = 0;   ///< requests within the budget, since the beginning
  index_t refusals = 0;    ///< requests that the budget did not cover
};

/// The addresses of the second resource's blocks are kept, and no others: blocks of the first cost nothing.
///
/// @cost    allocate: that of the resource that serves it, and an exception where that is the second.
///          deallocate: a lock and O(log blocks of the second), or one load while it has none
/// @threads as both resources together
/// @error   std::bad_alloc where the first refuses, and the second does or its budget is too small; any other
///          exception of a resource passes. Without exceptions a resource can't refuse
class fallback_resource final : public std::pmr::memory_resource {
 public:
  /// @param budget  bytes of the second resource, as they were asked for
  /// @param kept_in for the addresses of its blocks; thread-safe
  fallback_resource(std::pmr::memory_resource* first, std::pmr::memory_resource* second, std::size_t budget,
                    std::pmr::memory_resource* kept_in = std::pmr::new_delete_resource())
      : first_(first), second_(second), ledger_(budget, kept_in) {}
  fallback_resource(const fallback_resource&) = delete;
  fallback_resource& operator=(const fallback_resource&) = delete;

  /// @cost    a lock
  /// @threads thread-safe
  /// @error   none
  [[nodiscard]] fallback_report report() const noexcept {
    const auto now = ledger_.now();
    return {ledger_.budget(), now.bytes, now.blocks, now.taken, now.refused};
  }

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
#if DEEPREC_EXCEPTIONS
    try {
      return first_->allocate(bytes, alignment);
    } catch (const std::bad_alloc&) {
      auto room = ledger_.take(bytes);
      if (!room) throw;
      void* const block = second_->allocate(bytes, alignment);
      ledger_.enter(std::move(room), block);
      return block;
    }
#else
    return first_->allocate(bytes, alignment);
#endif
  }
  void do_deallocate(void* block, std::size_t bytes, std::size_t alignment) override {
    const auto room = ledger_.leave(block);  // ends last
    (room ? second_ : first_)->deallocate(block, bytes, alignment);
  }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override {
    return this == &other;
  }

  std::pmr::memory_resource* first_;
  std::pmr::memory_resource* second_;
  detail::fallback_ledger ledger_;
};

}}  // namespace deeprec::DEEPREC_ABI
