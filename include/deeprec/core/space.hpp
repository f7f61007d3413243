// Which processor may dereference a view's pointer, as part of the view's type.
//
//   host_space ──✕──> device_space        conversions across spaces do not compile;
//        ▲                 ▲              unified memory (managed, or pinned and mapped)
//        └─ unified_space ─┘              converts to either
#pragma once

#include <type_traits>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

struct host_space {};
struct device_space {};
struct unified_space {};

template <class S>
concept MemorySpace =
    std::is_same_v<S, host_space> || std::is_same_v<S, device_space> || std::is_same_v<S, unified_space>;

/// True where memory of the space From may be passed as memory of the space To.
template <MemorySpace From, MemorySpace To>
inline constexpr bool reachable_as = std::is_same_v<From, To> || std::is_same_v<From, unified_space>;

}}  // namespace deeprec::DEEPREC_ABI
