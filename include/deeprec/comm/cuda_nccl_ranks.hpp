// Ranks that have a device each, under NCCL: messages lie in device memory. Needs <nccl.h> (deeprec::nccl);
// not in the umbrella header.
//
//   ncclCommInitRank(&comm, n, id, rank);
//   cuda_nccl_ranks ranks = cuda_nccl_ranks::over(comm, stream).or_throw();
//   status s = complete(ranks, x, within(30s));            x.to, x.from: device memory
//
//   headers   one grouped send and receive of 64 bytes to and from each rank; then their sizes are known
//   payloads  one grouped send and receive, where a rank has any
//
// What writes x.to is enqueued on the stream before begin(). NCCL runs one group after the other, so an
// exchange sends its headers when the payloads of the one before it are on their way. Headers are read on the
// host: those in front of payloads are not written.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include <deeprec/comm/communicator.hpp>
#include <deeprec/comm/detail/exchange_checks.hpp>
#include <deeprec/comm/detail/nccl_flight.hpp>
#include <deeprec/comm/exchange.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/memory/cuda_runtime.hpp>
#include <deeprec/queue/queue_result.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The end of this process, with the device that is current at construction. Owns its NCCL communicator.
///
/// @threads one thread at a time, which does nothing else with the NCCL communicator
class cuda_nccl_ranks {
 public:
  using space = device_space;

  /// Takes a communicator; blocking ones and others (ncclConfig_t::blocking = 0) are the same here.
  ///
  /// @pre     the stream is of the current device and outlives the result
  /// @cost    1 KB of device memory and of pinned memory for each rank
  /// @threads as NCCL
  /// @error   device_error, out_of_memory: the communicator is the caller's still
  [[nodiscard]] static result<cuda_nccl_ranks> over(ncclComm_t comm, cudaStream_t on,
                                                    std::uint32_t generation = 0) {
    return detail::or_out_of_memory([&]() -> result<cuda_nccl_ranks> {
      auto made = std::make_unique<state>();
      detail::nccl_place& at = made->at;
      at.on = on;
      at.generation = generation;
      if (const status s = detail::nccl_checked(ncclCommUserRank(comm, &at.rank)); !s) return s;
      if (const status s = detail::nccl_checked(ncclCommCount(comm, &at.size)); !s) return s;
      if (const status s = made->allocate(); !s) return s;
      at.comm = comm;
      return cuda_nccl_ranks(std::move(made));
    });
  }

  [[nodiscard]] int rank() const noexcept { return state_->at.rank; }
  [[nodiscard]] int size() const noexcept { return state_->at.size; }
  [[nodiscard]] int most_in_flight() const noexcept { return depth; }

  [[nodiscard]] status begin(exchange& x) {
    if (const status s = detail::check_blocks(x, rank(), size()); !s) return s;
    detail::nccl_flight& f = flight(state_->next);
    if (f.of() != nullptr) return detail::too_many_in_flight(depth);
    if (!state_->end.ok()) return state_->end;
    detail::number_exchange(x, state_->next++);
    if (!x.rooms.empty() && x.fault.ok())
      x.from[static_cast<std::size_t>(rank())] = x.to[static_cast<std::size_t>(rank())];
    f.begin(state_->at, x);
    progress();
    return {};
  }
  [[nodiscard]] queue_result poll(exchange& x) {
    if (flight(x.number).of() == &x) progress();
    return flight(x.number).of() == &x ? queue_result::not_now : detail::result_of(x);
  }
  [[nodiscard]] queue_result wait(exchange& x, const wait_limit& limit = {}) {
    return detail::wait_by_polling([&] { return poll(x); }, limit);
  }
  /// NCCL does not report whose messages are missing: where any is, all other ranks.
  [[nodiscard]] rank_list awaited(const exchange& x) const {
    rank_list list;
    for (int r = 0; r < size() && state_->flights[x.number % depth].of() == &x; ++r) {
      if (r != rank()) list.push_back(r);
    }
    return list;
  }
  /// Ends the NCCL communicator (ncclCommAbort), and what of it runs on the stream. NCCL notifies
  /// the other ranks where it can; else their limits end them.
  void abandon(const status& why) {
    const detail::device_scope here(state_->device);
    if (state_->end.ok()) {
      state_->end = why.code() == errc::closed ? why : detail::abandoned_by(rank());
      static_cast<void>(ncclCommAbort(state_->at.comm));
      state_->at.comm = nullptr;
    }
    for (detail::nccl_flight& f : state_->flights) {
      if (f.of() != nullptr) f.fail(why);
    }
  }

  /// @error those of ncclCommSplit; timed_out
  [[nodiscard]] result<cuda_nccl_ranks> duplicate() { return split(0, rank()); }
  [[nodiscard]] result<cuda_nccl_ranks> split(int color, int key, const wait_limit& limit = {}) {
    if (!state_->end.ok()) return state_->end;
    const detail::device_scope here(state_->device);
    ncclComm_t part = nullptr;
    const ncclResult_t begun =
        ncclCommSplit(state_->at.comm, color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, &part, nullptr);
    status s = detail::nccl_checked(begun);
    if (s.ok()) s = detail::nccl_settled(state_->at.comm, limit);
    if (s.ok() && part == nullptr) s = {errc::unsupported, "split: this rank has no color"};
    if (s.ok()) s = detail::nccl_settled(part, limit);
    if (s.ok()) {
      auto made = over(part, state_->at.on, state_->at.generation);
      if (made) return made;
      s = made.fault();
    }
    if (part != nullptr) static_cast<void>(ncclCommAbort(part));
    return s;
  }

 private:
  static constexpr int depth = 4;

  struct state {
    state() = default;
    state(const state&) = delete;
    state& operator=(const state&) = delete;
    ~state() {
      const detail::device_scope here(device);
      if (at.comm != nullptr) static_cast<void>(ncclCommDestroy(at.comm));
      for (detail::nccl_flight& f : flights) f.release();
      cuda_runtime::deallocate(on_device);
      cuda_runtime::pinned_deallocate(on_host);
    }
    status allocate() {
      const std::size_t bytes = detail::nccl_flight::bytes_of(at.size);
      if (const status s = cuda_runtime::get_device(device); !s) return s;
      if (const status s = cuda_runtime::allocate(on_device, depth * bytes); !s) return s;
      if (const status s = cuda_runtime::pinned_allocate(on_host, depth * bytes); !s) return s;
      for (std::size_t k = 0; k < flights.size(); ++k) {
        if (const status s = flights[k].prepare(at.size, static_cast<std::byte*>(on_host) + k * bytes,
                                                static_cast<std::byte*>(on_device) + k * bytes);
            !s)
          return s;
      }
      return {};
    }

    detail::nccl_place at;
    int device = -1;
    void *on_device = nullptr, *on_host = nullptr;
    std::array<detail::nccl_flight, depth> flights;
    std::uint64_t first = 0, next = 0;  // numbers of exchanges in flight
    status end{};
  };

  explicit cuda_nccl_ranks(std::unique_ptr<state> made) noexcept : state_(std::move(made)) {}

  [[nodiscard]] detail::nccl_flight& flight(std::uint64_t number) const noexcept {
    return state_->flights[number % depth];
  }
  // Exchanges that were begun, in their order: groups of NCCL are issued in one order by all ranks.
  void progress() {
    if (!state_->end.ok()) return;
    const detail::device_scope here(state_->device);
    bool may_issue = true;
    for (std::uint64_t k = state_->first; k < state_->next; ++k) {
      detail::nccl_flight& f = flight(k);
      if (f.of() == nullptr) {
        if (k == state_->first) ++state_->first;
        continue;
      }
      if (const status s = f.progress(state_->at, may_issue); !s) return abandon(s);
      may_issue = may_issue && f.has_issued_all();
    }
  }

  std::unique_ptr<state> state_;
};

static_assert(Communicator<cuda_nccl_ranks>);

}}  // namespace deeprec::DEEPREC_ABI
