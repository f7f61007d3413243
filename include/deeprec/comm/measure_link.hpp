// What an exchange of these ranks costs: latency and bandwidth of its engine, measured.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory_resource>

#include <deeprec/comm/communicator.hpp>
#include <deeprec/comm/detail/timed_exchanges.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/queue/queue_result.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Of an exchange in which a rank sends b bytes in all: latency + b / bytes_per_second. The same at all
/// ranks.
struct link_costs {
  std::chrono::nanoseconds latency{};
  double bytes_per_second = 0;

  /// What it sends in `factor` times the latency.
  [[nodiscard]] index_t bytes_in(double factor) const noexcept {
    const double bytes = factor * std::chrono::duration<double>(latency).count() * bytes_per_second;
    return bytes < 1e15 ? static_cast<index_t>(bytes) : index_t{1} << 50;
  }
};

/// Measures exchanges without payload, then of twice the bytes again and again, until one takes eight times
/// as long; all ranks call it, on a communicator without exchanges in flight.
///
/// @cost    5 exchanges of each size, of some tens of latencies together; blocks of the largest size, which
///          are given back
/// @threads as the communicator
/// @error   as complete(); the fault of the smallest rank, at all ranks. One rank has no link: unsupported
template <class Clock = std::chrono::steady_clock, class Comm>
[[nodiscard]] result<link_costs> measure_link(
    Comm& comm, const wait_limit& limit = {},
    std::pmr::memory_resource* memory = std::pmr::get_default_resource()) {
  static_assert(
      Communicator<Comm>,
      "deeprec::measure_link: not a communicator. Fix: a thread_rank, mpi_ranks, or a class with the "
      "members that deeprec/comm/communicator.hpp names.");
  if (comm.size() == 1) return status(errc::unsupported, "measure_link: there must be at least 2 ranks");
  return detail::or_out_of_memory([&]() -> result<link_costs> {
    constexpr index_t first = 1024, last = index_t{1} << 28;
    detail::timed_blocks blocks(comm.size(), memory);
    const auto empty = detail::exchange_seconds<Clock>(comm, 0, blocks, limit);
    if (!empty) return empty.fault();
    for (index_t bytes = first;; bytes *= 2) {
      const auto full = detail::exchange_seconds<Clock>(comm, bytes, blocks, limit);
      if (!full) return full.fault();
      const double longer = full.value() - empty.value();
      if (longer < 7 * empty.value() && bytes < last) continue;
      const double sent = static_cast<double>(bytes) * (comm.size() - 1);
      return link_costs{std::chrono::nanoseconds(static_cast<std::int64_t>(empty.value() * 1e9)),
                        sent / (std::max)(longer, 1e-9)};
    }
  });
}

}}  // namespace deeprec::DEEPREC_ABI
