// What expressions consist of: leaves, operations on them, and the form that the kernels evaluate.
//
//   expression     node<op::plus, matrix_leaf<float>, row_leaf<bf16>>     sizes and strides
//   .at(i)         bound<op::plus, elements<float>, elements<bf16>>       addresses of row i; plain data
//   .list(to)      operand, operand                                      for checks
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/rounding.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace expr {

/// What an expression evaluates to: numbers, or true and false.
enum class yields : unsigned char { numbers, flags };

namespace detail {

/// How an operand is laid over the output.
enum class form : unsigned char { matrix, row, column, rate };

enum class storage : unsigned char { f32, bf16, f16, flags };

template <class T>
inline constexpr bool is_storage =
    std::is_same_v<T, float> || std::is_same_v<T, bf16> || std::is_same_v<T, f16>;

template <class T>
inline constexpr storage storage_of = std::is_same_v<T, float>  ? storage::f32
                                      : std::is_same_v<T, bf16> ? storage::bf16
                                      : std::is_same_v<T, f16>  ? storage::f16
                                                                : storage::flags;
constexpr index_t size_of(storage type) noexcept {
  return type == storage::f32 ? 4 : type == storage::flags ? 1 : 2;
}

/// A leaf or an output as the checks see it.
struct operand {
  form kind = form::matrix;
  storage type = storage::f32;
  const void* data = nullptr;
  index_t rows = 0;
  index_t columns = 0;
  index_t stride = 0;
  float rate = 0;
};

/// The facts of an expression. by_row: rows can't be joined to one. exact_start: vectors begin at multiples
/// of their size only.
template <yields Gives, int Operands, bool ByRow, bool ExactStart = false>
struct leaf {
  static constexpr yields gives = Gives;
  static constexpr int cost = 0;
  static constexpr int operands = Operands;
  static constexpr bool by_row = ByRow;
  static constexpr bool exact_start = ExactStart;
};

// One row of a leaf.
template <class T>
struct elements {
  const T* first;
};
struct number {
  float x;
};
struct flag {
  bool x;
};
struct random_flags {
  rounding::stochastic random;
  std::uint64_t row;
  std::uint64_t drop_below;
  index_t block;           // whose flags are below; -1: none
  unsigned char keep[64];  // of columns 64 block on
};

template <class... Parts>
struct parts {
  static DEEPREC_INLINE constexpr parts at(index_t) { return {}; }
  static constexpr void list(operand*&) {}
  template <class F>
  static constexpr void each(const F&) {}
};
template <class First, class... Rest>
struct parts<First, Rest...> {
  First first;
  [[no_unique_address]] parts<Rest...> rest;

  DEEPREC_INLINE constexpr auto at(index_t i) const { return join(first.at(i), rest.at(i)); }
  constexpr void list(operand*& to) const {
    first.list(to);
    rest.list(to);
  }
  template <class F>
  constexpr void each(const F& f) const {
    f(first);
    rest.each(f);
  }

 private:
  template <class A, class... B>
  static DEEPREC_INLINE constexpr parts<A, B...> join(const A& a, const parts<B...>& b) {
    return {a, b};
  }
};
constexpr parts<> parts_of() { return {}; }
template <class First, class... Rest>
constexpr parts<First, Rest...> parts_of(const First& first, const Rest&... rest) {
  return {first, parts_of(rest...)};
}

/// A node as the kernels see it.
template <class Op, class... Parts>
struct bound {
  parts<Parts...> of;
};
template <class Op, class... Parts>
DEEPREC_INLINE constexpr bound<Op, Parts...> bind(Op, const parts<Parts...>& of) {
  return {of};
}

/// The work of a kernel: rows in pieces of at most most_columns columns, numbered along the rows.
template <class... Assignments>
struct job {
  static constexpr index_t most_columns = 16384;  // a multiple of 64
  static constexpr int cost = (Assignments::cost + ...);
  static constexpr bool exact_start = (Assignments::exact_start || ...);

  job(const parts<Assignments...>& of, index_t row_count, index_t column_count, bool past_the_caches)
      : all(of),
        rows(row_count),
        columns(column_count),
        piece(column_count < most_columns ? column_count : most_columns),
        pieces_of_row((column_count - 1) / piece + 1),
        streamed(past_the_caches) {}
  [[nodiscard]] index_t pieces() const { return rows * pieces_of_row; }

  const parts<Assignments...>& all;
  index_t rows, columns;
  index_t piece, pieces_of_row;
  bool streamed;
};

/// An assignment as the kernels see it: its row of the output.
template <class Out, class Value>
struct bound_assignment {
  Out* to;
  Value value;
};

}  // namespace detail

// The leaves. They hold addresses and sizes.

struct scalar : detail::leaf<yields::numbers, 0, false> {
  constexpr explicit scalar(float value) : x(value) {}
  DEEPREC_INLINE constexpr detail::number at(index_t) const { return {x}; }
  constexpr void list(detail::operand*&) const {}
  float x;
};

template <class T, yields Gives>
struct matrix_leaf : detail::leaf<Gives, 1, false> {
  constexpr matrix_leaf(const T* first, index_t row_count, index_t column_count, index_t row_stride)
      : data(first), rows(row_count), columns(column_count), stride(row_stride) {}
  DEEPREC_INLINE constexpr detail::elements<T> at(index_t i) const { return {data + i * stride}; }
  constexpr void list(detail::operand*& to) const {
    *to++ = {detail::form::matrix, detail::storage_of<T>, data, rows, columns, stride};
  }
  const T* data;
  index_t rows, columns, stride;
};

/// Owns its elements: copies of the expression share them.
template <class T>
struct owned_leaf : matrix_leaf<T, yields::numbers> {
  owned_leaf(std::vector<T>&& values, index_t row_count, index_t column_count)
      : owned_leaf(std::make_shared<const std::vector<T>>(static_cast<std::vector<T>&&>(values)), row_count,
                   column_count) {}
  std::shared_ptr<const std::vector<T>> memory;

 private:
  // A vector of another size has no rows.
  owned_leaf(std::shared_ptr<const std::vector<T>> values, index_t row_count, index_t column_count)
      : matrix_leaf<T, yields::numbers>(
            values->data(),
            deeprec::capped_product(row_count, column_count) == static_cast<index_t>(values->size())
                ? row_count
                : -1,
            column_count, column_count),
        memory(static_cast<std::shared_ptr<const std::vector<T>>&&>(values)) {}
};

template <class T>
struct row_leaf : detail::leaf<yields::numbers, 1, true> {
  constexpr row_leaf(const T* first, index_t count) : data(first), size(count) {}
  DEEPREC_INLINE constexpr detail::elements<T> at(index_t) const { return {data}; }
  constexpr void list(detail::operand*& to) const {
    *to++ = {detail::form::row, detail::storage_of<T>, data, 1, size, size};
  }
  const T* data;
  index_t size;
};

template <class T, yields Gives>
struct column_leaf : detail::leaf<Gives, 1, true> {
  constexpr column_leaf(const T* first, index_t count) : data(first), size(count) {}
  DEEPREC_INLINE constexpr auto at(index_t i) const {
    if constexpr (Gives == yields::flags) {
      return detail::flag{data[i] != 0};
    } else {
      return detail::number{static_cast<float>(data[i])};
    }
  }
  constexpr void list(detail::operand*& to) const {
    *to++ = {detail::form::column, detail::storage_of<T>, data, size, 1, 1};
  }
  const T* data;
  index_t size;
};

/// True with the probability 1 - rate, by element position.
struct random_leaf : detail::leaf<yields::flags, 1, true, true> {
  constexpr random_leaf(rounding::stochastic words, float rate_of_false, index_t row_of_first)
      : random(words), rate(rate_of_false), first_row(row_of_first) {}
  DEEPREC_INLINE constexpr detail::random_flags at(index_t i) const {
    return {random, static_cast<std::uint64_t>(first_row + i), drop_below(), -1, {}};
  }
  constexpr void list(detail::operand*& to) const {
    *to++ = {detail::form::rate, detail::storage::flags, nullptr, 0, 0, 0, rate};
  }
  /// Words below it are dropped: rate 2^32, exact.
  DEEPREC_INLINE constexpr std::uint64_t drop_below() const {
    return static_cast<std::uint64_t>(static_cast<double>(rate) * 0x1p32);
  }
  rounding::stochastic random;
  float rate;
  index_t first_row;
};

/// The factor of what dropout keeps: 1 / (1 - rate).
struct keep_factor : detail::leaf<yields::numbers, 1, false> {
  constexpr explicit keep_factor(float rate_of_false) : rate(rate_of_false) {}
  DEEPREC_INLINE constexpr detail::number at(index_t) const { return {1.0F / (1.0F - rate)}; }
  constexpr void list(detail::operand*& to) const {
    *to++ = {detail::form::rate, detail::storage::f32, nullptr, 0, 0, 0, rate};
  }
  float rate;
};

/// An operation on expressions, stored by value.
template <class Op, class... Parts>
struct node {
  static constexpr yields gives = Op::gives;
  static constexpr int cost = (Op::cost + ... + Parts::cost);
  static constexpr int operands = (0 + ... + Parts::operands);
  static constexpr bool by_row = (false || ... || Parts::by_row);
  static constexpr bool exact_start = (false || ... || Parts::exact_start);

  DEEPREC_INLINE constexpr auto at(index_t i) const { return detail::bind(Op{}, of.at(i)); }
  constexpr void list(detail::operand*& to) const { of.list(to); }

  detail::parts<Parts...> of;
};

/// One output of evaluate and its value.
template <class Out, class Value>
struct assignment {
  static constexpr int cost = Value::cost + 1;
  static constexpr int operands = Value::operands;
  static constexpr bool by_row = Value::by_row;
  static constexpr bool exact_start = Value::exact_start;
  static constexpr index_t out_bytes = static_cast<index_t>(sizeof(Out));

  DEEPREC_INLINE constexpr auto at(index_t i) const {
    return detail::bound_assignment<Out, decltype(value.at(i))>{data + i * stride, value.at(i)};
  }
  constexpr void list(detail::operand*& to) const { value.list(to); }
  [[nodiscard]] constexpr detail::operand out() const {
    return {detail::form::matrix, detail::storage_of<Out>, data, rows, columns, stride};
  }

  Out* data;
  index_t rows, columns, stride;
  Value value;
};

template <class T>
inline constexpr bool is_assignment = false;
template <class Out, class Value>
inline constexpr bool is_assignment<assignment<Out, Value>> = true;

namespace op {

template <yields Gives, int Cost>
struct operation {
  static constexpr yields gives = Gives;
  static constexpr int cost = Cost;  // in vector instructions, roughly
};
using of_numbers = operation<yields::numbers, 1>;
using of_flags = operation<yields::flags, 1>;
using exponential = operation<yields::numbers, 16>;

struct plus : of_numbers {};
struct minus : of_numbers {};
struct times : of_numbers {};
struct over : of_numbers {};
struct negated : of_numbers {};
struct multiply_add : of_numbers {};
struct minimum : of_numbers {};
struct maximum : of_numbers {};
struct square : of_numbers {};
struct sqrt : of_numbers {};
struct abs : of_numbers {};
struct select : of_numbers {};
struct relu : of_numbers {};
struct prelu : of_numbers {};
struct exp : exponential {};
struct sigmoid : exponential {};
struct tanh : exponential {};
struct gelu : exponential {};
struct dice : exponential {};
struct less : of_flags {};
struct less_equal : of_flags {};
struct equal : of_flags {};
struct both : of_flags {};
struct either : of_flags {};
struct inverse : of_flags {};

}  // namespace op

}}}  // namespace deeprec::DEEPREC_ABI::expr
