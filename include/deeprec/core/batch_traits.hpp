// What micro batching and memory planning need of a value type: how many samples a value has, a part of them
// as a view, its bytes, and how gradients are added up.
//
//   samples 0 ........ 6          split(v, 0, 3)   split(v, 3, 2)   split(v, 5, 2)
//          |     v      |   =    |   view   |     |  view  |       |  view  |         nothing is copied
//
// For views of this library; specialize batch_traits for a type of your own.
#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <type_traits>

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/coo_view.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Specializations have, for values that are split by samples,
///   samples(v)              their number
///   split(v, first, count)  samples [first, first + count), as a view
///   check(v)                whether split() can be called: O(1), or one read of the value
///   bytes(v)                of what the samples refer to
/// for gradients
///   accumulate(sum, part, weight)   sum += weight * part, element by element
/// and for values of a step_graph whose memory is planned (plan_memory.hpp)
///   own_bytes(v)      of the content that v holds itself; 0 where it refers to other memory
///   memory(v)         the bytes that v refers to, its own or others: a std::span<const std::byte>. Which
///                     input of an op an output refers to must not depend on data. May be left out: it may be
///                     any
///   place(v, bytes)   from now on v keeps its content there, where it fits; what it held is lost
template <class T>
struct batch_traits {};

/// A value that is split by samples without a copy.
template <class T>
concept SplittableBatch = requires(const T& v, index_t n) {
  { batch_traits<T>::samples(v) } -> std::convertible_to<index_t>;
  batch_traits<T>::split(v, n, n);
  { batch_traits<T>::check(v) } -> std::convertible_to<status>;
  { batch_traits<T>::bytes(v) } -> std::convertible_to<index_t>;
};

/// Bags [first, first + count) with their offsets.
template <class Id, class Offset, MemorySpace Space>
struct batch_traits<jagged_view<Id, Offset, Space>> {
  using value_type = jagged_view<Id, Offset, Space>;
  static index_t samples(const value_type& v) noexcept { return v.bags(); }
  static value_type split(const value_type& v, index_t first, index_t count) { return v.slice(first, count); }
  static status check(const value_type&) noexcept { return {}; }
  static index_t bytes(const value_type& v) noexcept
    requires(!std::is_same_v<Space, device_space>)
  {
    const index_t each = index_t{sizeof(Id)} + (v.weights() == nullptr ? 0 : index_t{sizeof(float)});
    return (v.end_position() - v.first_position()) * each + (v.bags() + 1) * index_t{sizeof(Offset)};
  }
};

template <class Id, MemorySpace Space>
struct batch_traits<fixed_hotness_view<Id, Space>> {
  using value_type = fixed_hotness_view<Id, Space>;
  static index_t samples(const value_type& v) noexcept { return v.bags(); }
  static value_type split(const value_type& v, index_t first, index_t count) {
    DEEPREC_EXPECTS(0 <= first && 0 <= count && count <= v.bags() - first);
    const index_t skipped = first * v.hotness();
    return {v.ids() + skipped, count, v.hotness(), v.weights() == nullptr ? nullptr : v.weights() + skipped};
  }
  static status check(const value_type&) noexcept { return {}; }
  static index_t bytes(const value_type& v) noexcept {
    const index_t each = index_t{sizeof(Id)} + (v.weights() == nullptr ? 0 : index_t{sizeof(float)});
    return capped_product(v.id_count(), each);
  }
};

/// Entries are split where their rows ascend.
template <class Id, class Row, MemorySpace Space>
  requires(!std::is_same_v<Space, device_space>)
struct batch_traits<coo_view<Id, Row, Space>> {
  using value_type = coo_view<Id, Row, Space>;
  static index_t samples(const value_type& v) noexcept { return v.bags(); }
  static value_type split(const value_type& v, index_t first, index_t count) { return v.slice(first, count); }
  static status check(const value_type& v) noexcept {
    if (v.rows_ascend()) return {};
    return {errc::unsupported, "batch_traits: rows of a coo_view must ascend (to_jagged orders them)"};
  }
  static index_t bytes(const value_type& v) noexcept {
    const index_t each = v.row_stride() * index_t{sizeof(Row)} + index_t{sizeof(Id)} +
                         (v.weights() == nullptr ? 0 : index_t{sizeof(float)});
    return capped_product(v.id_count(), each);
  }
};

namespace detail { inline namespace DEEPREC_UNIT {

/// sum += weight * part.
DEEPREC_APART inline void add_weighted(float* sum, const float* part, float weight, index_t n) noexcept {
  for (index_t i = 0; i < n; ++i) sum[i] += weight * part[i];
}
/// to = weight * from; the two may be the same.
DEEPREC_APART inline void scale_into(float* to, const float* from, float weight, index_t n) noexcept {
  for (index_t i = 0; i < n; ++i) to[i] = weight * from[i];
}

}}  // namespace detail::DEEPREC_UNIT

/// A row is a sample.
template <class T, MemorySpace Space>
struct batch_traits<matrix_view<T, Space>> {
  using value_type = matrix_view<T, Space>;
  static index_t samples(const value_type& v) noexcept { return v.extent(0); }
  static value_type split(const value_type& v, index_t first, index_t count) {
    DEEPREC_EXPECTS(0 <= first && 0 <= count && count <= v.extent(0) - first);
    return v.rows(first, count);
  }
  static status check(const value_type&) noexcept { return {}; }
  static index_t bytes(const value_type& v) noexcept {
    return capped_product(capped_product(v.extent(0), v.extent(1)), sizeof(T));
  }
  /// @pre the two have the same shape
  static void accumulate(const value_type& sum, const matrix_view<const float, Space>& part, float weight)
    requires(std::is_same_v<T, float> && !std::is_same_v<Space, device_space>)
  {
    DEEPREC_EXPECTS(sum.extent(0) == part.extent(0) && sum.extent(1) == part.extent(1));
    for (index_t i = 0; i < sum.extent(0); ++i) {
      detail::add_weighted(sum.row(i), part.row(i), weight, sum.extent(1));
    }
  }
};

/// An element is a sample.
template <class T, MemorySpace Space>
struct batch_traits<array_view<T, Space>> {
  using value_type = array_view<T, Space>;
  static index_t samples(const value_type& v) noexcept { return v.size(); }
  static value_type split(const value_type& v, index_t first, index_t count) {
    DEEPREC_EXPECTS(0 <= first && 0 <= count && count <= v.size() - first);
    return {v.data() + first, count};
  }
  static status check(const value_type&) noexcept { return {}; }
  static index_t bytes(const value_type& v) noexcept { return capped_product(v.size(), sizeof(T)); }
};
template <class T>
struct batch_traits<std::span<T>> {
  using value_type = std::span<T>;
  static index_t samples(const value_type& v) noexcept { return static_cast<index_t>(v.size()); }
  static value_type split(const value_type& v, index_t first, index_t count) {
    DEEPREC_EXPECTS(0 <= first && 0 <= count && count <= samples(v) - first);
    return v.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  }
  static status check(const value_type&) noexcept { return {}; }
  static index_t bytes(const value_type& v) noexcept { return capped_product(samples(v), sizeof(T)); }
};

}}  // namespace deeprec::DEEPREC_ABI
