// What verbs return: a code and the location of the first fault. The same with and without exceptions.
//
//   status s = lookup(ctx, table, bags, combiner::sum, out);
//   if (!s) log(s.message());      // "id out of range: table 3, bag 17, position 402, value -1"
//   lookup(...).or_throw();        // where exceptions are on
//
// "First" means the smallest location (table, then bag, then position), independent of thread scheduling.
// Functions that parse or do I/O return result<T> (result.hpp).
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

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
  cancelled,
  io_error,         ///< the operating system refused
  parse_error,      ///< text that doesn't follow its format
  device_error,     ///< the device runtime reported an error
  invalid_value,    ///< a value outside its domain; detail() names it, place() locates it
  timed_out,        ///< a deadline passed; nothing was done
  closed,           ///< the other side has ended
  would_block,      ///< a call that does not wait would have to; nothing was done, try again
  producer_failed,  ///< the other side delivered an exception instead of an item
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
  }
  return "unknown error";
}

/// The location of a fault. Fields that have no meaning for a fault keep their defaults.
struct fault_place {
  index_t table = -1;
  index_t bag = -1;
  index_t position = -1;   ///< position in ids and weights
  std::int64_t value = 0;  ///< the offending id or offset (a 64-bit unsigned id reads as negative)
  index_t row = -1;        ///< of a matrix
  index_t column = -1;     ///< of a matrix
  index_t item = -1;       ///< index of an element of a list: a buffer of a ring, an op of a plan
  index_t is = -1;         ///< a size
  index_t must_be = -1;    ///< the size required

  friend constexpr bool operator==(const fault_place&, const fault_place&) = default;
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

  /// One line of text, with the location.
  [[nodiscard]] std::string message() const {
    std::string text = to_string(code_);
    if (ok()) return text;
    const char* separator = ": ";
    const auto append = [&](const char* name, index_t number) {
      text += separator;
      text += name;
      text += std::to_string(number);
      separator = ", ";
    };
    if (detail_ != nullptr) {
      text += separator;
      text += detail_;
      separator = "; ";
    }
    if (place_.item >= 0) append("item ", place_.item);
    if (place_.table >= 0) append("table ", place_.table);
    if (place_.row >= 0) append("row ", place_.row);
    if (place_.column >= 0) append("column ", place_.column);
    if (place_.bag >= 0) append("bag ", place_.bag);
    if (place_.position >= 0) append("position ", place_.position);
    const bool has_value = place_.bag >= 0 || place_.value != 0;
    if (has_value && code_ != errc::weight_is_nan) append("value ", place_.value);
    if (place_.must_be >= 0) {
      text += " (is " + std::to_string(place_.is) + ", must be " + std::to_string(place_.must_be) + ')';
    }
    return text;
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
