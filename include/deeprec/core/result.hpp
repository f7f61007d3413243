// What functions that parse text or do I/O return: a value, or a fault with file, line and column.
//
//   result<index_t> rows = reader.next(batch);
//   if (!rows) std::puts(rows.fault().message().c_str());  // "day_0.tsv:812:44: malformed text: ..."
//   use(rows.or_throw());                                   // where exceptions are on
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include <deeprec/core/config.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// A fault of a text or table file, and its location. Lines and columns count from 1 (columns in bytes);
/// 0 = none.
struct io_fault {
  errc code = errc::ok;
  std::string file;
  index_t line = 0;
  index_t column = 0;
  std::string reason;

  [[nodiscard]] std::string message() const {
    std::string text = file;
    if (line > 0) text += ':' + std::to_string(line);
    if (column > 0) text += ':' + std::to_string(column);
    if (!text.empty()) text += ": ";
    text += to_string(code);
    if (!reason.empty()) text += ": " + reason;
    return text;
  }
};

/// A T, or the fault that prevented it.
template <class T>
class [[nodiscard]] result {
 public:
  result(T value) : content_(std::in_place_index<0>, std::move(value)) {}
  result(io_fault fault) : content_(std::in_place_index<1>, std::move(fault)) {}

  [[nodiscard]] bool ok() const noexcept { return content_.index() == 0; }
  explicit operator bool() const noexcept { return ok(); }

  /// @pre ok()
  [[nodiscard]] T& value() & { return *std::get_if<0>(&content_); }
  [[nodiscard]] const T& value() const& { return *std::get_if<0>(&content_); }
  [[nodiscard]] T&& value() && { return std::move(*std::get_if<0>(&content_)); }

  /// @pre !ok()
  [[nodiscard]] const io_fault& fault() const { return *std::get_if<1>(&content_); }

  /// The value; throws deeprec::error on a fault. Without exceptions: prints and aborts.
  T& or_throw() & {
    if (!ok()) detail::raise(fault().code, fault().message());
    return value();
  }
  T or_throw() && {
    if (!ok()) detail::raise(fault().code, fault().message());
    return std::move(*this).value();
  }

 private:
  std::variant<T, io_fault> content_;
};

}}  // namespace deeprec::DEEPREC_ABI
