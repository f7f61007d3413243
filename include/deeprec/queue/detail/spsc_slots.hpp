// The memory of an spsc_ring: slots with a flag, each on cache lines of its own, or items side by side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

template <class T, class Atomics, class Seq>
struct spsc_slots {
  struct flagged_slot {
    typename Atomics::template atomic<std::uint32_t> full{0};
    alignas(T) std::byte bytes[sizeof(T)];
  };

  static constexpr std::size_t line = 64;
  static constexpr std::size_t alignment = alignof(flagged_slot) > line ? alignof(flagged_slot) : line;
  static constexpr std::size_t flag_stride = (sizeof(flagged_slot) + alignment - 1) / alignment * alignment;
  static constexpr auto most_bytes = static_cast<std::size_t>((std::numeric_limits<std::ptrdiff_t>::max)());

  static constexpr std::size_t stride_of(bool flags) noexcept { return flags ? flag_stride : sizeof(T); }
  static constexpr std::size_t bytes(std::size_t capacity, bool flags) noexcept {
    return capacity * stride_of(flags);
  }
  /// Returns the capacity; throws where it is too large, or 0.
  static std::size_t checked(std::size_t capacity, bool flags) {
    if (capacity < 1 || capacity > static_cast<Seq>(~Seq{0}) / 2 ||
        capacity > most_bytes / stride_of(flags)) {
      raise(errc::invalid_value, "spsc_ring: capacity must be at least 1 and fit positions and memory");
    }
    return capacity;
  }
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
