// Rows that batches hold while they insert: they make no room for other rows.
#pragma once

#include <cstddef>
#include <mutex>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The rows of each batch of a table that inserts now.
///
/// @threads an entry locks the table's mutex where it begins, moves and ends; for_each is called under it
class held_rows {
 public:
  /// The rows of a batch, null where it has none. May end on another thread.
  class entry {
   public:
    entry() = default;
    /// @pre rows stay as they are while it exists
    entry(held_rows& of, std::mutex& mutex, const std::byte* const* rows, index_t n)
        : of_(&of), mutex_(&mutex), rows_(rows), n_(n) {
      const std::lock_guard lock(*mutex_);
      next_ = std::exchange(of_->first_, this);
    }
    entry(entry&& other) noexcept : of_(other.of_), mutex_(other.mutex_), rows_(other.rows_), n_(other.n_) {
      if (of_ == nullptr) return;
      const std::lock_guard lock(*mutex_);
      next_ = other.next_;
      of_->place_of(&other) = this;
      other.of_ = nullptr;
    }
    entry& operator=(entry&&) = delete;
    ~entry() {
      if (of_ == nullptr) return;
      const std::lock_guard lock(*mutex_);
      of_->place_of(this) = next_;
    }

   private:
    friend held_rows;
    held_rows* of_ = nullptr;
    std::mutex* mutex_ = nullptr;
    const std::byte* const* rows_ = nullptr;
    index_t n_ = 0;
    entry* next_ = nullptr;
  };

  /// Calls f(row) for each row that is held, as often as it is.
  template <class F>
  void for_each(const F& f) const {
    for (const entry* one = first_; one != nullptr; one = one->next_) {
      for (index_t i = 0; i < one->n_; ++i) {
        if (one->rows_[i] != nullptr) f(one->rows_[i]);
      }
    }
  }

 private:
  entry*& place_of(const entry* one) noexcept {
    entry** at = &first_;
    while (*at != one) at = &(*at)->next_;
    return *at;
  }
  entry* first_ = nullptr;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
