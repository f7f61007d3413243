// A matrix of float, bf16 or f16 as a value of a step graph: it keeps its memory from step to step.
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
template <class T>
class basic_matrix_value {
 public:
  explicit basic_matrix_value(std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : memory_(memory) {}
  basic_matrix_value(const basic_matrix_value&) = delete;
  basic_matrix_value& operator=(const basic_matrix_value&) = delete;

  /// Room for rows * columns elements, which the caller writes: what it held is lost where that is more than
  /// before.
  [[nodiscard]] matrix_view<T> make(index_t rows, index_t columns) {
    const auto needed = static_cast<std::size_t>(rows * columns);
    T* to = place_.data();
    if (needed > place_.size()) {
      if (needed > memory_.size()) memory_.resize(needed);
      to = memory_.data();
    }
    made_ = {to, rows, columns};
    view_ = made_;
    return made_;
  }
  /// Shows another matrix, of an input or of the caller, which lives as long as this one is read.
  void refer(matrix_view<const T> to) {
    made_ = {};
    view_ = to;
  }
  [[nodiscard]] matrix_view<const T> view() const noexcept { return view_; }
  /// What make() returned last.
  ///
  /// @pre it refers to no other matrix since
  [[nodiscard]] matrix_view<T> writable() const noexcept { return made_; }
  [[nodiscard]] index_t rows() const noexcept { return view_.extent(0); }
  [[nodiscard]] index_t columns() const noexcept { return view_.extent(1); }

 private:
  friend struct batch_traits<basic_matrix_value>;
  std::pmr::vector<T> memory_;
  std::span<T> place_;  // a plan's
  matrix_view<T> made_;
  matrix_view<const T> view_;
};
using matrix_value = basic_matrix_value<float>;

/// A row is a sample.
template <class T>
struct batch_traits<basic_matrix_value<T>> {
  using matrix = basic_matrix_value<T>;
  static index_t bytes(const matrix& v) { return size(v.view_); }
  static index_t own_bytes(const matrix& v) { return size(v.made_); }
  static std::span<const std::byte> memory(const matrix& v) {
    if (v.rows() == 0 || v.columns() == 0) return {};
    return std::as_bytes(std::span(v.view_.row(0), v.view_.row(v.rows() - 1) + v.columns()));
  }
  static void place(matrix& v, std::span<std::byte> memory) {
    v.place_ = {static_cast<T*>(static_cast<void*>(memory.data())), memory.size() / sizeof(T)};
    std::pmr::vector<T>(v.memory_.get_allocator()).swap(v.memory_);
  }
  static index_t samples(const matrix& v) { return v.rows(); }
  static void refer(const matrix& whole, index_t first, index_t count, matrix& part) {
    part.refer(whole.view_.rows(first, count));
  }
  static void make_room(matrix& whole, index_t samples, const matrix& part) {
    static_cast<void>(whole.make(samples, part.columns()));
  }
  static void join(const matrix& part, index_t first, matrix& whole) {
    for (index_t i = 0; i < part.rows(); ++i)
      std::copy_n(part.view_.row(i), part.columns(), whole.made_.row(first + i));
  }

 private:
  template <class Element>
  static index_t size(const matrix_view<Element>& m) {
    return m.extent(0) * m.extent(1) * static_cast<index_t>(sizeof(Element));
  }
};

}}  // namespace deeprec::DEEPREC_ABI
