// Numbers that were given back: of rows that were erased. They wait until no reader can hold them, and are
// used again from the smallest on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory_resource>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/memory/reclaimer.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// @threads exclusive
class free_numbers {
 public:
  explicit free_numbers(std::pmr::memory_resource* memory) : free_(memory), waiting_(memory), runs_(memory) {}

  /// Room for n more numbers that are retired in one epoch; throws where memory is refused, and changes
  /// nothing.
  void reserve(index_t n) {
    const std::size_t all = waiting_.size() + static_cast<std::size_t>(n);
    grow(waiting_, all);
    grow(free_, free_.size() + all);
    grow(runs_, runs_.size() + 1);
  }
  /// @pre reserved; epochs don't decrease
  void retire(std::uint32_t number, std::uint64_t epoch) noexcept {
    waiting_.push_back(number);
    if (!runs_.empty() && runs_.back().epoch == epoch) {
      ++runs_.back().count;
    } else {
      runs_.push_back({epoch, 1});
    }
  }
  /// Frees the numbers whose epoch is over; calls f(number) for each.
  template <class F>
  void reclaim(const reclaimer& readers, const F& f) noexcept {
    std::size_t runs = 0, count = 0;
    for (; runs < runs_.size() && readers.over(runs_[runs].epoch); ++runs) count += runs_[runs].count;
    if (count == 0) return;
    const auto end = waiting_.begin() + static_cast<std::ptrdiff_t>(count);
    std::for_each(waiting_.begin(), end, f);
    std::sort(waiting_.begin(), end, std::greater<>());
    // Merged from the smallest on: there may be many more free ones.
    std::size_t old = free_.size(), fresh = count;
    free_.resize(old + count);
    for (std::size_t to = free_.size(); fresh > 0; --to) {
      const bool is_old = old > 0 && free_[old - 1] < waiting_[fresh - 1];
      free_[to - 1] = is_old ? free_[--old] : waiting_[--fresh];
    }
    waiting_.erase(waiting_.begin(), end);
    runs_.erase(runs_.begin(), runs_.begin() + static_cast<std::ptrdiff_t>(runs));
  }
  [[nodiscard]] bool empty() const noexcept { return free_.empty(); }
  [[nodiscard]] index_t size() const noexcept { return static_cast<index_t>(free_.size()); }
  [[nodiscard]] index_t waiting() const noexcept { return static_cast<index_t>(waiting_.size()); }
  /// The smallest.
  std::uint32_t take() noexcept {
    const std::uint32_t number = free_.back();
    free_.pop_back();
    return number;
  }
  [[nodiscard]] index_t bytes() const noexcept {
    return static_cast<index_t>((free_.capacity() + waiting_.capacity()) * sizeof(std::uint32_t) +
                                runs_.capacity() * sizeof(run));
  }

 private:
  struct run {
    std::uint64_t epoch;
    std::size_t count;
  };
  template <class List>
  static void grow(List& list, std::size_t size) {
    if (list.capacity() < size) list.reserve((std::max)(size, 2 * list.capacity()));
  }

  std::pmr::vector<std::uint32_t> free_;     // descending
  std::pmr::vector<std::uint32_t> waiting_;  // in the order in which they were retired
  std::pmr::vector<run> runs_;               // of waiting_
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
