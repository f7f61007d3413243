// Arrays of what rows of a batch may have beside labels, dense values and ids.
//
//   names   text [ a17b90... ]  ends (B+1) [ 0 3 6 ... ]
#pragma once

#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <string_view>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/data/batch_shape.hpp>
#include <deeprec/data/detail/grow_array.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The fault of a batch that cannot grow.
inline constexpr status no_room_for_rows{errc::out_of_memory,
                                         "the memory resource must provide room for rows (it refused)"};

/// Arrays of the extras; those that a shape has not stay empty.
class extra_arrays {
 public:
  explicit extra_arrays(std::pmr::memory_resource* memory) noexcept
      : weights_(memory), groups_(memory), text_(memory), ends_(memory) {}

  void swap(extra_arrays& other) noexcept {
    std::swap(weights_, other.weights_);
    std::swap(groups_, other.groups_);
    std::swap(text_, other.text_);
    std::swap(ends_, other.ends_);
  }
  [[nodiscard]] float* weights() const noexcept { return weights_.data(); }
  [[nodiscard]] std::int64_t* groups() const noexcept { return groups_.data(); }
  [[nodiscard]] std::string_view name(index_t row) const noexcept {
    const std::int64_t* const ends = ends_.data();
    return {text_.data() + ends[row], static_cast<std::size_t>(ends[row + 1] - ends[row])};
  }

  /// Room for `total` rows, of which the first `rows` are kept; false: there is no memory.
  [[nodiscard]] bool reserve(const row_extras& has, index_t total, index_t rows) noexcept {
    if (has.weights && !weights_.reserve(total, rows)) return false;
    if (has.groups && !groups_.reserve(total, rows)) return false;
    if (has.names && !ends_.reserve(total + 1, rows == 0 ? 0 : rows + 1)) return false;
    if (has.names && rows == 0) ends_.data()[0] = 0;
    return true;
  }
  /// Sets the name of a row, the names of all rows before which are set; false: there is no memory.
  ///
  /// @pre reserve() made room for the row
  [[nodiscard]] bool set_name(index_t row, std::string_view name) noexcept {
    const index_t begin = ends_.data()[row], size = static_cast<index_t>(name.size());
    if (!text_.reserve(begin + size, begin)) return false;
    if (size > 0) std::memcpy(text_.data() + begin, name.data(), name.size());
    ends_.data()[row + 1] = begin + size;
    return true;
  }

  [[nodiscard]] index_t name_bytes(index_t first, index_t count) const noexcept {
    return count == 0 ? 0 : ends_.data()[first + count] - ends_.data()[first];
  }
  [[nodiscard]] bool reserve_name_bytes(index_t more, index_t rows) noexcept {
    const index_t held = ends_.data()[rows];
    return text_.reserve(held + more, held);
  }
  /// Copies `count` rows from `first` on to the rows from `row` on.
  ///
  /// @pre room was reserved, for the bytes of names too
  void copy(const row_extras& has, index_t row, const extra_arrays& from, index_t first,
            index_t count) noexcept {
    if (count == 0) return;
    const auto n = static_cast<std::size_t>(count);
    if (has.weights) std::memcpy(weights_.data() + row, from.weights_.data() + first, n * sizeof(float));
    if (has.groups) std::memcpy(groups_.data() + row, from.groups_.data() + first, n * sizeof(std::int64_t));
    if (!has.names) return;
    const std::int64_t begin = from.ends_.data()[first], to = ends_.data()[row];
    const index_t bytes = from.name_bytes(first, count);
    if (bytes > 0) std::memcpy(text_.data() + to, from.text_.data() + begin, static_cast<std::size_t>(bytes));
    for (index_t r = 1; r <= count; ++r) ends_.data()[row + r] = from.ends_.data()[first + r] - begin + to;
  }

 private:
  grow_array<float> weights_;
  grow_array<std::int64_t> groups_;
  grow_array<char> text_;
  grow_array<std::int64_t> ends_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
