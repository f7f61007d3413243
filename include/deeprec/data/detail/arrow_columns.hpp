// Columns of Arrow as those of a sparse batch: numbers, ids of numbers and of text, bags of lists.
#pragma once

#include <arrow/array.h>
#include <arrow/type.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/data/detail/numbers.hpp>
#include <deeprec/data/sparse_batch.hpp>
#include <deeprec/data/text_format.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// How far a column was good: its first bad row, and why.
struct column_end {
  index_t rows = 0;
  const char* reason = nullptr;
};

/// f(array of the type) for arrays of numbers; false for others.
template <class F>
bool with_numbers(const ::arrow::Array& a, const F& f) {
  switch (a.type_id()) {
    case ::arrow::Type::INT8:
      return f(static_cast<const ::arrow::Int8Array&>(a)), true;
    case ::arrow::Type::UINT8:
      return f(static_cast<const ::arrow::UInt8Array&>(a)), true;
    case ::arrow::Type::INT16:
      return f(static_cast<const ::arrow::Int16Array&>(a)), true;
    case ::arrow::Type::UINT16:
      return f(static_cast<const ::arrow::UInt16Array&>(a)), true;
    case ::arrow::Type::INT32:
      return f(static_cast<const ::arrow::Int32Array&>(a)), true;
    case ::arrow::Type::UINT32:
      return f(static_cast<const ::arrow::UInt32Array&>(a)), true;
    case ::arrow::Type::INT64:
      return f(static_cast<const ::arrow::Int64Array&>(a)), true;
    case ::arrow::Type::UINT64:
      return f(static_cast<const ::arrow::UInt64Array&>(a)), true;
    case ::arrow::Type::FLOAT:
      return f(static_cast<const ::arrow::FloatArray&>(a)), true;
    case ::arrow::Type::DOUBLE:
      return f(static_cast<const ::arrow::DoubleArray&>(a)), true;
    case ::arrow::Type::BOOL:
      return f(static_cast<const ::arrow::BooleanArray&>(a)), true;
    default:
      return false;
  }
}

/// f(array of the type) for arrays of text or bytes; false for others.
template <class F>
bool with_text(const ::arrow::Array& a, const F& f) {
  switch (a.type_id()) {
    case ::arrow::Type::STRING:
    case ::arrow::Type::BINARY:
      return f(static_cast<const ::arrow::BinaryArray&>(a)), true;
    case ::arrow::Type::LARGE_STRING:
    case ::arrow::Type::LARGE_BINARY:
      return f(static_cast<const ::arrow::LargeBinaryArray&>(a)), true;
    default:
      return false;
  }
}

inline bool is_number(const ::arrow::DataType& t) noexcept {
  const ::arrow::Type::type id = t.id();
  return id == ::arrow::Type::BOOL || id == ::arrow::Type::FLOAT || id == ::arrow::Type::DOUBLE ||
         (id >= ::arrow::Type::UINT8 && id <= ::arrow::Type::INT64);
}
inline bool is_text(const ::arrow::DataType& t) noexcept {
  const ::arrow::Type::type id = t.id();
  return id == ::arrow::Type::STRING || id == ::arrow::Type::BINARY || id == ::arrow::Type::LARGE_STRING ||
         id == ::arrow::Type::LARGE_BINARY;
}
/// What has ids: integers, text, and dictionaries of them.
inline bool has_ids(const ::arrow::DataType& t) noexcept {
  if (t.id() == ::arrow::Type::DICTIONARY)
    return has_ids(*static_cast<const ::arrow::DictionaryType&>(t).value_type());
  return is_text(t) || (is_number(t) && t.id() != ::arrow::Type::FLOAT && t.id() != ::arrow::Type::DOUBLE);
}
/// The type of the elements of lists; null for others.
inline const ::arrow::DataType* element_type(const ::arrow::DataType& t) noexcept {
  return t.id() == ::arrow::Type::LIST || t.id() == ::arrow::Type::LARGE_LIST ? t.field(0)->type().get()
                                                                              : nullptr;
}

/// Numbers to every stride-th float; a null is `missing`, or where there is none ends the column.
inline column_end copy_numbers(const ::arrow::Array& a, index_t first, index_t count, float* to,
                               index_t stride, const float* missing) {
  column_end end{count, nullptr};
  with_numbers(a, [&](const auto& values) {
    const bool has_nulls = values.null_count() > 0;
    for (index_t i = 0; i < count; ++i) {
      if (has_nulls && values.IsNull(first + i)) {
        if (missing == nullptr) {
          end = {i, "the value is null"};
          return;
        }
        to[i * stride] = *missing;
      } else {
        to[i * stride] = static_cast<float>(values.Value(first + i));
      }
    }
  });
  return end;
}

/// The ids of values.
class id_maker {
 public:
  id_maker(index_t feature, token_use use, index_t rows, bucket_function bucket) noexcept
      : feature_(feature), rows_(rows), use_(use), bucket_(bucket) {}

  /// Of values [first, first + count).
  column_end make(const ::arrow::Array& a, index_t first, index_t count, std::int64_t* to) const {
    if (a.type_id() == ::arrow::Type::DICTIONARY)
      return of_dictionary(static_cast<const ::arrow::DictionaryArray&>(a), first, count, to);
    column_end end{count, nullptr};
    const bool nulls = a.null_count() > 0;
    const auto each = [&](const auto& values, const auto& id_of) {
      for (index_t i = 0; i < count; ++i) {
        const bool absent = nulls && values.IsNull(first + i);
        const char* const why = absent ? of_null(to[i]) : id_of(values, first + i, to[i]);
        if (why != nullptr) {
          end = {i, why};
          return;
        }
      }
    };
    const bool made = with_text(a, [&](const auto& values) {
      each(values, [&](const auto& v, index_t i, std::int64_t& id) { return of_text(v.GetView(i), id); });
    });
    if (made) return end;
    with_numbers(a, [&](const auto& values) {
      using value_type = decltype(values.Value(0));
      if constexpr (!std::is_floating_point_v<value_type>) {
        if (use_ == token_use::as_is && rows_ == 0 && !nulls) {
          for (index_t i = 0; i < count; ++i) to[i] = static_cast<std::int64_t>(values.Value(first + i));
          return;
        }
        each(values, [&](const auto& v, index_t i, std::int64_t& id) { return of_integer(v.Value(i), id); });
      }
    });
    return end;
  }

 private:
  const char* of_text(std::string_view token, std::int64_t& id) const noexcept {
    if (bucket_ != nullptr) return bucket_reason(bucket_, token, static_cast<int>(feature_), rows_, id);
    std::uint64_t number = 0;
    if (use_ == token_use::as_is) {
      if (const char* const why = parse_unsigned(token, number)) return why;
      if (rows_ > 0 && number >= static_cast<std::uint64_t>(rows_)) return "the id is beyond its table";
    } else {
      number = hash_bytes(token, static_cast<std::uint64_t>(feature_));
      if (rows_ > 0) number = static_cast<std::uint64_t>(hash_bucket(number, rows_));
    }
    id = static_cast<std::int64_t>(number);
    return nullptr;
  }
  const char* of_null(std::int64_t& id) const noexcept {
    return use_ == token_use::as_is && bucket_ == nullptr ? "the id is null" : of_text({}, id);
  }
  template <class T>
  const char* of_integer(T value, std::int64_t& id) const noexcept {
    if (use_ == token_use::as_is && bucket_ == nullptr) {
      id = static_cast<std::int64_t>(value);
      const bool beyond = rows_ > 0 && static_cast<std::uint64_t>(id) >= static_cast<std::uint64_t>(rows_);
      return beyond ? "the id is beyond its table" : nullptr;
    }
    char digits[24];
    const auto end = std::to_chars(std::begin(digits), std::end(digits), +value).ptr;
    return of_text({digits, static_cast<std::size_t>(end - digits)}, id);
  }
  // Each value of the dictionary that is used, once.
  column_end of_dictionary(const ::arrow::DictionaryArray& a, index_t first, index_t count,
                           std::int64_t* to) const {
    const ::arrow::Array& values = *a.dictionary();
    std::vector<std::int64_t> known(static_cast<std::size_t>(values.length()));
    std::vector<char> is_known(known.size());
    for (index_t i = 0; i < count; ++i) {
      if (a.IsNull(first + i)) {
        if (const char* const why = of_null(to[i])) return {i, why};
        continue;
      }
      const auto k = static_cast<std::size_t>(a.GetValueIndex(first + i));
      if (is_known[k] == 0) {
        const column_end one = make(values, static_cast<index_t>(k), 1, &known[k]);
        if (one.reason != nullptr) return {i, one.reason};
        is_known[k] = 1;
      }
      to[i] = known[k];
    }
    return {count, nullptr};
  }

  index_t feature_, rows_;
  token_use use_;
  bucket_function bucket_;
};

/// The lists of an array: elements of list i are [begin(i), end(i)) of values.
struct list_ranges {
  const ::arrow::Array* lists;
  const ::arrow::Array* values;
  bool is_large;

  explicit list_ranges(const ::arrow::Array& a)
      : lists(&a),
        values(a.type_id() == ::arrow::Type::LIST
                   ? static_cast<const ::arrow::ListArray&>(a).values().get()
                   : static_cast<const ::arrow::LargeListArray&>(a).values().get()),
        is_large(a.type_id() == ::arrow::Type::LARGE_LIST) {}
  [[nodiscard]] index_t offset(index_t i) const {
    return is_large ? static_cast<const ::arrow::LargeListArray*>(lists)->value_offset(i)
                    : index_t{static_cast<const ::arrow::ListArray*>(lists)->value_offset(i)};
  }
  [[nodiscard]] index_t begin(index_t i) const { return offset(i); }
  [[nodiscard]] index_t end(index_t i) const {
    return lists->null_count() > 0 && lists->IsNull(i) ? offset(i) : offset(i + 1);
  }
};

/// Ids of rows [first, first + count) of a column.
inline index_t ids_in(const ::arrow::Array& a, index_t first, index_t count) {
  if (element_type(*a.type()) == nullptr) return count;
  const list_ranges lists(a);
  return lists.begin(first + count) - lists.begin(first);
}

/// The bags of these rows: lists, or values, of one id each.
inline column_end make_bags(const id_maker& ids, const ::arrow::Array& a, const ::arrow::Array* weights,
                            index_t first, index_t count, const sparse_batch::bag_column& to) {
  if (element_type(*a.type()) == nullptr) {
    for (index_t i = 0; i < count; ++i) to.ends[i] = to.first + i + 1;
    if (to.weights != nullptr) std::fill_n(to.weights, count, 1.0F);
    return ids.make(a, first, count, to.ids);
  }
  const list_ranges bags(a);
  if (weights == nullptr && to.weights != nullptr) std::fill_n(to.weights, ids_in(a, first, count), 1.0F);
  column_end end{count, nullptr};
  if (a.null_count() == 0 && weights == nullptr) {  // all lists at once
    const index_t begin = bags.begin(first);
    const column_end made = ids.make(*bags.values, begin, ids_in(a, first, count), to.ids);
    for (index_t i = 0; i < count; ++i) {
      to.ends[i] = to.first + bags.end(first + i) - begin;
      if (made.reason != nullptr && end.reason == nullptr && bags.end(first + i) - begin > made.rows)
        end = {i, made.reason};
    }
    return end;
  }
  index_t at = 0;
  for (index_t i = 0; i < count; ++i) {
    const index_t list = first + i, size = bags.end(list) - bags.begin(list);
    const column_end made = ids.make(*bags.values, bags.begin(list), size, to.ids + at);
    if (made.reason != nullptr) return {i, made.reason};
    if (weights != nullptr) {
      const list_ranges factors(*weights);
      if (factors.end(list) - factors.begin(list) != size) return {i, "a row must have a weight for each id"};
      if (copy_numbers(*factors.values, factors.begin(list), size, to.weights + at, 1, nullptr).reason !=
          nullptr)
        return {i, "a weight is null"};
    }
    at += size;
    to.ends[i] = to.first + at;
  }
  return end;
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
