// The first 64 bytes of each message between ranks: what it is, of which step, and the fault of its sender.
//
//   | header, 64 bytes | payload |        a block: the sender leaves room for the header, an engine writes it
//
// A message is checked against what its receiver waits for: another kind or another step is a fault that
// names both sides, and not a wait without end. Integers are those of the machine: all ranks have one byte
// order, which the mark at the beginning checks. Not here: who sends what to whom (exchange.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// What a message holds. Numbers from `user` on are free.
enum class message_kind : std::uint16_t {
  ids = 1,     ///< rows that are asked for
  rows,        ///< the rows, or pooled ones
  gradients,   ///< of rows
  slices,      ///< of dense gradients
  parameters,  ///< slices of parameters, after a step
  agreement,   ///< a header alone
  user = 64,
};

/// A kind as text; "a message" for those of users.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
[[nodiscard]] constexpr const char* to_string(message_kind kind) noexcept {
  switch (kind) {
    case message_kind::ids:
      return "ids";
    case message_kind::rows:
      return "rows";
    case message_kind::gradients:
      return "gradients";
    case message_kind::slices:
      return "slices";
    case message_kind::parameters:
      return "parameters";
    case message_kind::agreement:
      return "agreement";
    default:
      return "a message";
  }
}

/// As it lies in front of a payload.
struct message_header {
  static constexpr std::uint32_t mark = 0x4d52'4444;
  static constexpr std::uint16_t format = 1;

  std::uint32_t magic = mark;
  std::uint16_t version = format;
  message_kind kind = message_kind::user;
  std::uint32_t generation = 0;  ///< of the job: it is counted at each restart
  std::int32_t code = 0;         ///< errc of the sender's fault; then there is no payload
  std::int64_t step = 0;
  std::int64_t bytes = 0;  ///< of the payload
  std::int64_t table = -1, bag = -1, position = -1, value = 0;

  /// The sender's fault, with its place.
  [[nodiscard]] status fault(int sender) const noexcept {
    if (code == 0) return {};
    fault_place place{};
    place.table = table;
    place.bag = bag;
    place.position = position;
    place.value = value;
    place.rank = sender;
    return {static_cast<errc>(code), "exchange: fault of a rank", place};
  }
};
static_assert(sizeof(message_header) == 64);

/// What lies behind the header of a block.
///
/// @pre     a block of at least 64 bytes
/// @cost    O(1)
/// @threads reentrant
/// @error   none
[[nodiscard]] inline std::span<std::byte> payload_of(std::span<std::byte> block) noexcept {
  return block.subspan(sizeof(message_header));
}

namespace detail {

inline void put_message_header(std::span<std::byte> block, const message_header& header) noexcept {
  std::memcpy(block.data(), &header, sizeof(header));
}
inline message_header message_header_in(const std::byte* block) noexcept {
  message_header header;
  std::memcpy(&header, block, sizeof(header));
  return header;
}

}  // namespace detail

}}  // namespace deeprec::DEEPREC_ABI
