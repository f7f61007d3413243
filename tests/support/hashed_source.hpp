// A growing table of rows with 64-bit keys, as a row source: what a user's hash table has to offer. Rows move
// when it grows.
//
//   index   | key, row | free | key, row | ...     open addressing, linear probing
//   rows    | row 0 | row 1 | ...                   dense, in the order of insertion; reallocated to grow
#pragma once

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory_resource>
#include <mutex>
#include <utility>
#include <vector>

#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/tables/row_source.hpp>

namespace deeprec_test {

template <class Format>
class hashed_table {
 public:
  using initial_row = std::function<void(std::uint64_t key, float* values)>;

  hashed_table(const Format& format, initial_row initialise, std::size_t capacity = 4,
               std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : format_(format),
        initialise_(std::move(initialise)),
        memory_(memory),
        index_(std::bit_ceil(2 * capacity), entry{}, memory),
        rows_(capacity * stride(), memory),
        values_(static_cast<std::size_t>(format.width())) {
    keys_.reserve(capacity);
  }

  [[nodiscard]] const Format& format() const { return format_; }
  [[nodiscard]] std::size_t size() const { return keys_.size(); }
  [[nodiscard]] const std::vector<std::uint64_t>& keys() const { return keys_; }
  [[nodiscard]] std::byte* row(std::size_t number) { return rows_.data() + number * stride(); }
  [[nodiscard]] std::size_t moves() const { return moves_; }

  /// Row addresses; null for keys that are not in the table.
  void find(const std::uint64_t* keys, deeprec::index_t n, const std::byte** addresses) const {
    constexpr deeprec::index_t block = 64;
    std::size_t at[block];
    for (deeprec::index_t first = 0; first < n; first += block) {
      const deeprec::index_t count = std::min(block, n - first);
      for (deeprec::index_t k = 0; k < count; ++k) {
        at[k] = place_of(keys[first + k]);
        __builtin_prefetch(&index_[at[k]]);
      }
      for (deeprec::index_t k = 0; k < count; ++k) {
        const entry* const found = probe(keys[first + k], at[k]);
        addresses[first + k] = found->row == free ? nullptr : rows_.data() + found->row * stride();
      }
    }
  }

  /// Admits keys that `admits` accepts. Waits until no guard exists where rows have to move.
  deeprec::status insert(const std::uint64_t* keys, deeprec::index_t n) {
    std::unique_lock lock(mutex_);
    unpinned_.wait(lock, [&] { return pins_ == 0; });
    for (deeprec::index_t k = 0; k < n; ++k) {
      if (admits && !admits(keys[k])) continue;
      if (fails_at != 0 && keys[k] == fails_at) {
        return {deeprec::errc::out_of_memory, "hashed_table: rows must fit in memory (they don't)"};
      }
      entry* const found = const_cast<entry*>(probe(keys[k], place_of(keys[k])));
      if (found->row != free) continue;
      if ((keys_.size() + 1) * stride() > rows_.size()) move_rows(2 * rows_.size());
      insert_new(keys[k]);
    }
    return {};
  }

  /// Moves every row, as growth does. Waits for guards; `waiting` is called before.
  template <class Waiting>
  void move_all(const Waiting& waiting) {
    std::unique_lock lock(mutex_);
    waiting();
    unpinned_.wait(lock, [&] { return pins_ == 0; });
    move_rows(rows_.size());
  }

  /// Pins the rows to their places.
  class pin {
   public:
    explicit pin(hashed_table& table) : table_(&table) {
      const std::lock_guard lock(table.mutex_);
      ++table.pins_;
    }
    pin(pin&& other) noexcept : table_(std::exchange(other.table_, nullptr)) {}
    pin& operator=(pin&& other) noexcept {
      std::swap(table_, other.table_);
      return *this;
    }
    ~pin() {
      if (table_ == nullptr) return;
      {
        const std::lock_guard lock(table_->mutex_);
        --table_->pins_;
      }
      table_->unpinned_.notify_all();
    }

   private:
    hashed_table* table_;
  };

  std::function<bool(std::uint64_t)> admits;  // empty: all keys
  std::uint64_t fails_at = 0;                 // insert fails at this key; 0: never

 private:
  static constexpr std::uint32_t free = static_cast<std::uint32_t>(-1);
  struct entry {
    std::uint64_t key = 0;
    std::uint32_t row = free;
  };

  [[nodiscard]] std::size_t stride() const { return static_cast<std::size_t>(format_.stride_bytes()); }
  [[nodiscard]] std::size_t place_of(std::uint64_t key) const {
    return static_cast<std::size_t>(deeprec::mix64(key)) & (index_.size() - 1);
  }
  [[nodiscard]] const entry* probe(std::uint64_t key, std::size_t at) const {
    while (index_[at].row != free && index_[at].key != key) at = (at + 1) & (index_.size() - 1);
    return &index_[at];
  }
  void insert_new(std::uint64_t key) {
    auto* const found = const_cast<entry*>(probe(key, place_of(key)));
    *found = {key, static_cast<std::uint32_t>(keys_.size())};
    std::byte* const place = row(keys_.size());
    std::memset(place, 0, stride());
    initialise_(key, values_.data());
    format_.encode(values_.data(), place);
    keys_.push_back(key);
  }
  // The old rows stay allocated and become NaN: an address that is used too late is seen in the result.
  void move_rows(std::size_t bytes) {
    std::pmr::vector<std::byte> moved(bytes, memory_);
    std::memcpy(moved.data(), rows_.data(), keys_.size() * stride());
    if (poisons) std::memset(rows_.data(), 0xff, rows_.size());
    rows_.swap(moved);
    if (poisons) old_.push_back(std::move(moved));
    ++moves_;
    const std::size_t rows = bytes / stride();
    if (2 * rows <= index_.size()) return;
    index_.assign(std::bit_ceil(2 * rows), entry{});
    for (std::size_t r = 0; r < keys_.size(); ++r) {
      *const_cast<entry*>(probe(keys_[r], place_of(keys_[r]))) = {keys_[r], static_cast<std::uint32_t>(r)};
    }
  }

 public:
  bool poisons = true;

 private:
  Format format_;
  initial_row initialise_;
  std::pmr::memory_resource* memory_;
  std::pmr::vector<entry> index_;
  std::vector<std::uint64_t> keys_;  // of each row
  std::pmr::vector<std::byte> rows_;
  std::vector<float> values_;  // of the row that insert() initialises
  std::vector<std::pmr::vector<std::byte>> old_;
  std::mutex mutex_;
  std::condition_variable unpinned_;
  std::size_t pins_ = 0;
  std::size_t moves_ = 0;
};

/// The source without a guard: its rows may move at any time.
template <class Format>
class unguarded_rows {
 public:
  using format_type = Format;
  using space = deeprec::host_space;
  using byte_type = std::byte;

  explicit unguarded_rows(hashed_table<Format>& table) : table_(&table) {}
  [[nodiscard]] const Format& format() const { return table_->format(); }
  [[nodiscard]] deeprec::index_t size() const { return static_cast<deeprec::index_t>(table_->size()); }
  [[nodiscard]] const void* identity() const { return table_; }
  void find(const std::uint64_t* keys, deeprec::index_t n, const std::byte** addresses) const {
    table_->find(keys, n, addresses);
  }
  [[nodiscard]] deeprec::status insert(const std::uint64_t* keys, deeprec::index_t n) const {
    return table_->insert(keys, n);
  }
  template <class F>
  void for_each_row(F&& f) const {
    for (std::size_t r = 0; r < table_->size(); ++r) {
      f(table_->keys()[r], static_cast<const std::byte*>(table_->row(r)));
    }
  }

 protected:
  hashed_table<Format>* table_;
};

template <class Format>
class hashed_rows : public unguarded_rows<Format> {
 public:
  using unguarded_rows<Format>::unguarded_rows;
  [[nodiscard]] auto guard() const { return typename hashed_table<Format>::pin(*this->table_); }
};

/// Absent keys read one row of zeros.
template <class Format>
class defaulted_rows : public hashed_rows<Format> {
 public:
  defaulted_rows(hashed_table<Format>& table, const std::byte* row) : hashed_rows<Format>(table), row_(row) {}
  [[nodiscard]] const std::byte* default_row() const { return row_; }

 private:
  const std::byte* row_;
};

}  // namespace deeprec_test
