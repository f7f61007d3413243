// What functions return that make a value, parse text or do I/O: the value, or a fault.
//
//   result<index_t> rows = reader.next(batch);
//   if (!rows) std::puts(rows.fault().message().c_str());  // "day_0.tsv:812:44: malformed text: ..."
//   use(rows.or_throw());                                   // where exceptions are on
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// A failed status with text that no literal can hold: the name of a file, or a reason made at run time. As a
/// status it loses these texts, and keeps code, place and literal.
class [[nodiscard]] fault : public status {
 public:
  /// @pre !why.ok()
  fault(const status& why) : status(why) { DEEPREC_EXPECTS(!why.ok()); }
  /// @pre !why.ok()
  fault(const status& why, std::string file) : status(why), file_(std::move(file)) {
    DEEPREC_EXPECTS(!why.ok());
  }
  /// @pre !why.ok()
  fault(const status& why, std::string file, std::string reason)
      : status(why), file_(std::move(file)), reason_(std::move(reason)) {
    DEEPREC_EXPECTS(!why.ok());
  }
  /// @pre code is not errc::ok
  fault(errc code, std::string reason, std::string file = {})
      : status(code, nullptr), file_(std::move(file)), reason_(std::move(reason)) {
    DEEPREC_EXPECTS(code != errc::ok);
  }

  /// The file; empty where there is none.
  [[nodiscard]] const std::string& file() const noexcept { return file_; }
  /// The reason: the text, or else detail().
  [[nodiscard]] std::string_view reason() const noexcept {
    if (!reason_.empty()) return reason_;
    return detail() == nullptr ? std::string_view() : detail();
  }
  /// The same fault, in a file.
  [[nodiscard]] fault in_file(std::string file) && {
    file_ = std::move(file);
    return std::move(*this);
  }

  /// The same fault, found by `operation`: as status::in_operation().
  [[nodiscard]] fault in_operation(const char* operation) && {
    static_cast<status&>(*this) = status::in_operation(operation);
    return std::move(*this);
  }

  /// As status::message(), after the file, line and column.
  [[nodiscard]] std::string message() const { return detail::fault_text(code(), file_, reason(), place()); }

  /// Throws deeprec::error. Without exceptions: prints the message and aborts.
  [[noreturn]] void or_throw() const { detail::raise(code(), message()); }

 private:
  std::string file_;
  std::string reason_;
};

/// A T, or the fault that prevented it.
template <class T>
class [[nodiscard]] result {
 public:
  result(T value) : content_(std::in_place_index<0>, std::move(value)) {}
  /// What converts to the value: std::nullopt, or a value, where T is an optional.
  template <class U>
    requires(std::is_convertible_v<U, T> && !std::is_same_v<std::remove_cvref_t<U>, T> &&
             !std::is_convertible_v<U, const status&> && !std::is_convertible_v<U, const deeprec::fault&> &&
             !std::is_same_v<std::remove_cvref_t<U>, result>)
  result(U&& value) : content_(std::in_place_index<0>, std::forward<U>(value)) {}
  result(deeprec::fault why) : content_(std::in_place_index<1>, std::move(why)) {}
  /// @pre !why.ok()
  result(const status& why) : content_(std::in_place_index<1>, why) {}

  [[nodiscard]] bool ok() const noexcept { return content_.index() == 0; }
  explicit operator bool() const noexcept { return ok(); }
  [[nodiscard]] errc code() const noexcept { return ok() ? errc::ok : fault().code(); }
  /// The text of the fault; "ok" where there is none.
  [[nodiscard]] std::string message() const { return ok() ? status().message() : fault().message(); }

  /// @pre ok()
  [[nodiscard]] T& value() & { return *std::get_if<0>(&content_); }
  [[nodiscard]] const T& value() const& { return *std::get_if<0>(&content_); }
  [[nodiscard]] T&& value() && { return std::move(*std::get_if<0>(&content_)); }

  /// @pre !ok()
  [[nodiscard]] const deeprec::fault& fault() const { return *std::get_if<1>(&content_); }

  /// The value; throws deeprec::error on a fault. Without exceptions: prints and aborts.
  T& or_throw() & {
    if (!ok()) fault().or_throw();
    return value();
  }
  T or_throw() && {
    if (!ok()) fault().or_throw();
    return std::move(*this).value();
  }

 private:
  std::variant<T, deeprec::fault> content_;
};

/// Success, or a fault with text: for functions without a value whose reasons are made at run time.
template <>
class [[nodiscard]] result<void> {
 public:
  result() noexcept = default;
  result(deeprec::fault why) : fault_(std::move(why)) {}
  /// Success or a fault, as `s` is.
  result(const status& s) {
    if (!s.ok()) fault_.emplace(s);
  }

  [[nodiscard]] bool ok() const noexcept { return !fault_.has_value(); }
  explicit operator bool() const noexcept { return ok(); }
  [[nodiscard]] errc code() const noexcept { return ok() ? errc::ok : fault_->code(); }
  /// The text of the fault; "ok" where there is none.
  [[nodiscard]] std::string message() const { return ok() ? status().message() : fault_->message(); }
  /// @pre !ok()
  [[nodiscard]] const deeprec::fault& fault() const { return *fault_; }
  /// Throws deeprec::error on a fault. Without exceptions: prints and aborts.
  void or_throw() const {
    if (!ok()) fault_->or_throw();
  }

 private:
  std::optional<deeprec::fault> fault_;
};

}}  // namespace deeprec::DEEPREC_ABI
