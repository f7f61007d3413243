// A matrix of floats as a value of a step graph: it keeps its memory from step to step.
//
//   void operator()(const matrix_value& in, matrix_value& out) const {
//     relu(in.view(), out.make(in.rows(), in.columns()));                 memory of its own, or a plan's
//   }
//   out.refer(in.view().columns(0, 64));                                 or that of an input
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

#include <deeprec/core/batch_traits.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// @space   host; memory comes from the resource given to the constructor, which a step's state gives it
/// @threads concurrent readers are safe; a writer needs exclusive access
class matrix_value {
 public:
  explicit matrix_value(std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : memory_(memory) {}
  matrix_value(const matrix_value&) = delete;
  matrix_value& operator=(const matrix_value&) = delete;

  /// Room for rows * columns floats, which the caller writes: what it held is lost where that is more than
  /// before.
  [[nodiscard]] matrix_view<float> make(index_t rows, index_t columns) {
    const auto needed = static_cast<std::size_t>(rows * columns);
    float* to = place_.data();
    if (needed > place_.size()) {
      if (needed > memory_.size()) memory_.resize(needed);
      to = memory_.data();
    }
    made_ = {to, rows, columns};
    view_ = made_;
    return made_;
  }
  /// Shows another matrix, which outlives the step.
  void refer(matrix_view<const float> to) {
    made_ = {};
    view_ = to;
  }
  [[nodiscard]] matrix_view<const float> view() const noexcept { return view_; }
  /// What make() returned last.
  ///
  /// @pre it refers to no other matrix since
  [[nodiscard]] matrix_view<float> writable() const noexcept { return made_; }
  [[nodiscard]] index_t rows() const noexcept { return view_.extent(0); }
  [[nodiscard]] index_t columns() const noexcept { return view_.extent(1); }

 private:
  friend struct batch_traits<matrix_value>;
  std::pmr::vector<float> memory_;
  std::span<float> place_;  // a plan's
  matrix_view<float> made_;
  matrix_view<const float> view_;
};

/// A row is a sample.
template <>
struct batch_traits<matrix_value> {
  static index_t bytes(const matrix_value& v) { return size(v.view_); }
  static index_t own_bytes(const matrix_value& v) { return size(v.made_); }
  static std::span<const std::byte> memory(const matrix_value& v) {
    if (v.rows() == 0 || v.columns() == 0) return {};
    return std::as_bytes(std::span(v.view_.row(0), v.view_.row(v.rows() - 1) + v.columns()));
  }
  static void place(matrix_value& v, std::span<std::byte> memory) {
    v.place_ = {static_cast<float*>(static_cast<void*>(memory.data())), memory.size() / sizeof(float)};
    std::pmr::vector<float>(v.memory_.get_allocator()).swap(v.memory_);
  }
  static index_t samples(const matrix_value& v) { return v.rows(); }
  static void refer(const matrix_value& whole, index_t first, index_t count, matrix_value& part) {
    part.refer(whole.view_.rows(first, count));
  }
  static void make_room(matrix_value& whole, index_t samples, const matrix_value& part) {
    static_cast<void>(whole.make(samples, part.columns()));
  }
  static void join(const matrix_value& part, index_t first, matrix_value& whole) {
    for (index_t i = 0; i < part.rows(); ++i)
      std::copy_n(part.view_.row(i), part.columns(), whole.made_.row(first + i));
  }

 private:
  template <class T>
  static index_t size(const matrix_view<T>& m) {
    return m.extent(0) * m.extent(1) * static_cast<index_t>(sizeof(float));
  }
};

}}  // namespace deeprec::DEEPREC_ABI
