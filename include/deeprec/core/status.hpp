// What verbs return: a code and the location of the first fault. The same with and without exceptions.
//
//   status s = lookup(ctx, table, bags, combiner::sum, out);
//   if (!s) log(s.message());      // "id out of range: lookup: table 3, bag 17, position 402, value -1"
//   lookup(...).or_throw();        // where exceptions are on
//
// "First" means the smallest location (table, then bag, then position), independent of thread scheduling
// (first_fault.hpp). Functions that make a value, parse or do I/O return result<T> (result.hpp).
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

enum class errc : std::uint8_t {
  ok = 0,
  shape_mismatch,      ///< the operands' sizes don't fit together; detail() names the operand
  offsets_negative,    ///< offsets[0] < 0
  offsets_decreasing,  ///< offsets[b+1] < offsets[b]
  offsets_beyond_ids,  ///< an offset points past the last id
  id_out_of_range,     ///< an id is negative or not below the number of rows
  weight_is_nan,       ///< a weight is not a number
  unsupported,         ///< this backend can't do it; detail() holds the reason
  out_of_memory,
  cancelled,        ///< the object that the call uses was cancelled
  io_error,         ///< the operating system refused
  parse_error,      ///< text that doesn't follow its format
  device_error,     ///< the device runtime reported an error
  invalid_value,    ///< a value outside its domain; detail() names it, place() locates it
  timed_out,        ///< a deadline passed; nothing was done
  closed,           ///< the other side has ended
  would_block,      ///< a call that does not wait would have to; nothing was done, try again
  producer_failed,  ///< the other side delivered a fault or an exception instead of an item
  stopped,          ///< a stop token requested a stop; of a verb: before the call began, nothing was done
};

/// A code as text.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
constexpr const char* to_string(errc code) noexcept {
  switch (code) {
    case errc::ok:
      return "ok";
    case errc::shape_mismatch:
      return "shape mismatch";
    case errc::offsets_negative:
      return "first offset is negative";
    case errc::offsets_decreasing:
      return "offsets decrease";
    case errc::offsets_beyond_ids:
      return "offset beyond the ids";
    case errc::id_out_of_range:
      return "id out of range";
    case errc::weight_is_nan:
      return "weight is not a number";
    case errc::unsupported:
      return "unsupported";
    case errc::out_of_memory:
      return "out of memory";
    case errc::cancelled:
      return "cancelled";
    case errc::io_error:
      return "input or output error";
    case errc::parse_error:
      return "malformed text";
    case errc::device_error:
      return "device error";
    case errc::invalid_value:
      return "invalid value";
    case errc::timed_out:
      return "timed out";
    case errc::closed:
      return "closed";
    case errc::would_block:
      return "would block";
    case errc::producer_failed:
      return "producer failed";
    case errc::stopped:
      return "stopped";
  }
  return "unknown error";
}

/// The location of a fault. Fields that have no meaning for a fault keep their defaults.
struct fault_place {
  const char* operation = nullptr;  ///< the function that returned it, a literal; null = not known
  index_t table = -1;               ///< a table, or a feature of a group
  index_t bag = -1;
  index_t position = -1;   ///< position in ids and weights
  std::int64_t value = 0;  ///< the offending id or offset (a 64-bit unsigned id reads as negative)
  index_t row = -1;        ///< of a matrix
  index_t line = -1;       ///< of a text file, from 1
  index_t column = -1;     ///< of a matrix, from 0; of a line of text, in bytes from 1
  index_t item = -1;       ///< index of an element of a list: a buffer of a ring, an op of a plan
  index_t is = -1;         ///< a size
  index_t must_be = -1;    ///< the size required
  index_t at_most = -1;    ///< the largest size allowed
  std::int32_t rank = -1;  ///< of the process, in a job of several

  /// The same location: every field but `operation`, which two functions that find the same fault differ in.
  friend constexpr bool operator==(const fault_place& a, const fault_place& b) noexcept {
    return a.table == b.table && a.bag == b.bag && a.position == b.position && a.value == b.value &&
           a.row == b.row && a.line == b.line && a.column == b.column && a.item == b.item && a.is == b.is &&
           a.must_be == b.must_be && a.at_most == b.at_most && a.rank == b.rank;
  }
};

class status;

#if DEEPREC_EXCEPTIONS
/// The exception of status::or_throw().
class error : public std::exception {
 public:
  explicit error(errc code, std::string message) : code_(code), message_(std::move(message)) {}
  [[nodiscard]] errc code() const noexcept { return code_; }
  [[nodiscard]] const char* what() const noexcept override { return message_.c_str(); }

 private:
  errc code_;
  std::string message_;
};
#endif

namespace detail {

[[noreturn]] inline void raise(errc code, std::string message) {
#if DEEPREC_EXCEPTIONS
  throw error(code, std::move(message));
#else
  std::fprintf(stderr, "deeprec: %s (code %d)\n", message.c_str(), static_cast<int>(code));
  std::abort();
#endif
}

/// A fault as one line: "file:line:column: code: operation: reason; place (sizes)".
inline std::string fault_text(errc code, std::string_view file, std::string_view reason,
                              const fault_place& place) {
  std::string text(file);
  if (place.line >= 0) {
    text += ':' + std::to_string(place.line);
    if (place.column >= 0) text += ':' + std::to_string(place.column);
  }
  if (!text.empty()) text += ": ";
  text += to_string(code);
  const char* separator = ": ";
  const auto append = [&](const char* name, index_t number) {
    text += separator;
    text += name;
    text += std::to_string(number);
    separator = ", ";
  };
  const std::string_view operation = place.operation == nullptr ? "" : place.operation;
  const bool reason_names_it = reason.starts_with(operation) && reason.substr(operation.size(), 1) == ":";
  if (!operation.empty() && !reason_names_it) (text += separator) += operation;
  if (!reason.empty()) {
    (text += separator) += reason;
    separator = "; ";
  }
  if (place.rank >= 0) append("rank ", place.rank);
  if (place.item >= 0) append("item ", place.item);
  if (place.table >= 0) append("table ", place.table);
  if (place.row >= 0) append("row ", place.row);
  if (place.column >= 0 && place.line < 0) append("column ", place.column);
  if (place.bag >= 0) append("bag ", place.bag);
  if (place.position >= 0) append("position ", place.position);
  const bool has_value = place.bag >= 0 || place.value != 0;
  if (has_value && code != errc::weight_is_nan) append("value ", place.value);
  if (place.must_be >= 0) {
    text += " (is " + std::to_string(place.is) + ", must be " + std::to_string(place.must_be) + ')';
  }
  if (place.at_most >= 0) text += " (must be at most " + std::to_string(place.at_most) + ')';
  return text;
}

}  // namespace detail

/// A code, the location of the first fault, and a literal that names the operand or the reason.
/// Trivially copyable; making one never allocates.
class [[nodiscard]] status {
 public:
  constexpr status() noexcept : no_place_{} {}
  /// @param detail a string literal, or null
  constexpr status(errc code, const char* detail, fault_place place = {}) noexcept
      : place_(place), detail_(detail), code_(code) {}
  constexpr status(errc code, fault_place place) noexcept : place_(place), code_(code) {}

  [[nodiscard]] constexpr bool ok() const noexcept { return code_ == errc::ok; }
  constexpr explicit operator bool() const noexcept { return ok(); }
  [[nodiscard]] constexpr errc code() const noexcept { return code_; }
  [[nodiscard]] constexpr const fault_place& place() const noexcept { return ok() ? nowhere_ : place_; }
  [[nodiscard]] constexpr const char* detail() const noexcept { return detail_; }

  /// The same fault, located in table `t`: for verbs over many tables.
  [[nodiscard]] constexpr status in_table(index_t t) const noexcept {
    status named = *this;
    if (!ok()) named.place_.table = t;
    return named;
  }

  /// The same fault, found by `operation` (a literal): for calls whose parts don't name themselves. A fault
  /// that has an operation keeps it.
  [[nodiscard]] constexpr status in_operation(const char* operation) const noexcept {
    if (ok()) [[likely]]
      return {};
    status named = *this;
    if (named.place_.operation == nullptr) named.place_.operation = operation;
    return named;
  }

  /// One line of text, with the operation and the location.
  [[nodiscard]] std::string message() const {
    if (ok()) return to_string(code_);
    return detail::fault_text(code_, {}, detail_ == nullptr ? std::string_view() : detail_, place_);
  }

  /// Throws deeprec::error on a fault. Without exceptions: prints the message and aborts.
  void or_throw() const {
    if (!ok()) detail::raise(code_, message());
  }

 private:
  static constexpr fault_place nowhere_{};

  // Success writes no place: every layer of every call returns one.
  union {
    char no_place_;
    fault_place place_;
  };
  const char* detail_ = nullptr;
  errc code_ = errc::ok;
};

namespace detail {

/// shape_mismatch unless two sizes are the same; `what` is the requirement: "lookup: out.extent(1) must be
/// the row width D".
template <class Is, class MustBe>
DEEPREC_INLINE constexpr status expect_size(Is is, MustBe must_be, const char* what) noexcept {
  const auto a = static_cast<index_t>(is), b = static_cast<index_t>(must_be);
  if (a == b) [[likely]]
    return {};
  return {errc::shape_mismatch, what, {.is = a, .must_be = b}};
}

}  // namespace detail

}}  // namespace deeprec::DEEPREC_ABI
