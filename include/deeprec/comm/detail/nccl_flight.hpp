// An exchange under NCCL, from its headers to its payloads. Needs <nccl.h>.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <thread>

#include <deeprec/comm/detail/exchange_checks.hpp>
#include <deeprec/comm/exchange.hpp>
#include <deeprec/comm/message_header.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/memory/cuda_runtime.hpp>
#include <deeprec/queue/queue_result.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// What NCCL returns; ncclInProgress is no fault.
inline status nccl_checked(ncclResult_t code) noexcept {
  if (code == ncclSuccess || code == ncclInProgress) return {};
  if (code == ncclRemoteError)
    return {errc::closed, "exchange: NCCL reports that another rank has ended, or the network to it"};
  return {errc::device_error, ncclGetErrorString(code)};
}

/// `done`: what was called last has been enqueued.
inline status nccl_progress(ncclComm_t comm, bool& done) noexcept {
  ncclResult_t now = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm, &now);
  done = now == ncclSuccess;
  return nccl_checked(asked == ncclSuccess ? now : asked);
}

/// Polls until a communicator is made.
inline status nccl_settled(ncclComm_t comm, const wait_limit& limit) {
  for (;;) {
    bool done = false;
    if (const status s = nccl_progress(comm, done); !s || done) return s;
    if (limit.stop.stop_requested()) return {errc::stopped, "split: stopped while NCCL made a communicator"};
    if (std::chrono::steady_clock::now() >= limit.deadline)
      return {errc::timed_out, "split: NCCL must make a communicator within the limit"};
    std::this_thread::yield();
  }
}

/// Where exchanges take place.
struct nccl_place {
  ncclComm_t comm = nullptr;
  cudaStream_t on = nullptr;
  int rank = 0, size = 1;
  std::uint32_t generation = 0;
};

class nccl_flight {
 public:
  /// On the host, and on the device: headers that are sent, and those that come.
  static constexpr std::size_t bytes_of(int ranks) noexcept {
    return 2 * static_cast<std::size_t>(ranks) * sizeof(message_header);
  }
  status prepare(int ranks, std::byte* on_host, std::byte* on_device) noexcept {
    const std::size_t half = bytes_of(ranks) / 2;
    own_ = on_host, theirs_ = on_host + half;
    device_own_ = on_device, device_theirs_ = on_device + half;
    return cuda_runtime::make_event(passed_, false);
  }
  void release() noexcept {
    if (passed_ != nullptr) cuda_runtime::end_event(passed_);
    passed_ = nullptr;
  }

  /// None: the exchange has ended, or not begun.
  [[nodiscard]] exchange* of() const noexcept { return of_; }
  [[nodiscard]] bool has_issued_all() const noexcept { return at_ == phase::payloads; }

  void begin(const nccl_place& at, exchange& x) noexcept {
    of_ = &x;
    at_ = phase::begun;
    agreed_by_ = -1;
    if (!x.fault.ok()) agree(x, at.rank, own_fault(x, at.rank), agreed_by_);
    for (int r = 0; r < at.size; ++r) {
      const message_header h =
          header_of(x, at.generation, x.fault.ok() ? x.to[index(r)].size() : sizeof(message_header));
      std::memcpy(own_ + header_at(r), &h, sizeof(h));
    }
  }

  /// Goes on as far as it can. @post of() is null where that was all
  status progress(const nccl_place& at, bool may_issue) {
    if (at_ == phase::begun) {
      if (!may_issue) return {};
      if (const status s = send_headers(at); !s) return s;
    }
    bool done = false;
    if (const status s = nccl_progress(at.comm, done); !s) return s;
    if (at_ == phase::issuing_headers) {
      if (!done) return {};
      if (const status s = copy(own_end(at), theirs_, device_theirs_, cudaMemcpyDeviceToHost, at.on); !s)
        return s;
      if (const status s = cuda_runtime::record(passed_, at.on); !s) return s;
      at_ = phase::headers;
    }
    if (at_ == phase::headers) {
      if (const status s = passed(done); !s || !done) return s;
      if (const status s = take_headers(at); !s) return s;
      if (const status s = send_payloads(at); !s) return s;
      at_ = phase::issuing_payloads;
      if (const status s = nccl_progress(at.comm, done); !s) return s;
    }
    if (at_ == phase::issuing_payloads) {
      if (!done) return {};
      if (const status s = cuda_runtime::record(passed_, at.on); !s) return s;
      at_ = phase::payloads;
    }
    if (at_ == phase::payloads) {
      if (const status s = passed(done); !s || !done) return s;
      finish(of_->agreed);
    }
    return {};
  }
  void fail(const status& why) noexcept { finish(why); }

 private:
  enum class phase : std::uint8_t { begun, issuing_headers, headers, issuing_payloads, payloads };

  static std::size_t index(int r) noexcept { return static_cast<std::size_t>(r); }
  static std::size_t header_at(int r) noexcept { return index(r) * sizeof(message_header); }
  static std::size_t own_end(const nccl_place& at) noexcept { return header_at(at.size); }
  static status copy(std::size_t bytes, void* to, const void* from, cudaMemcpyKind kind,
                     cudaStream_t on) noexcept {
    return cuda_status(cudaMemcpyAsync(to, from, bytes, kind, on));
  }
  void finish(const status& outcome) noexcept {
    of_->outcome = outcome;
    of_ = nullptr;
  }
  status passed(bool& done) const noexcept {
    const cudaError_t now = cudaEventQuery(passed_);
    done = now == cudaSuccess;
    if (now != cudaErrorNotReady) return cuda_status(now);
    static_cast<void>(cudaGetLastError());
    return {};
  }

  // each(rank) for the other ranks, in one group.
  template <class Each>
  static status group(const nccl_place& at, const Each& each) noexcept {
    if (const status s = nccl_checked(ncclGroupStart()); !s) return s;
    status first;
    for (int k = 1; k < at.size && first.ok(); ++k) first = each((at.rank + k) % at.size);
    const status ended = nccl_checked(ncclGroupEnd());
    return first.ok() ? ended : first;
  }
  static status send(const nccl_place& at, const std::byte* from, std::size_t bytes, int to) noexcept {
    return bytes == 0 ? status() : nccl_checked(ncclSend(from, bytes, ncclInt8, to, at.comm, at.on));
  }
  static status receive(const nccl_place& at, std::byte* to, std::size_t bytes, int from) noexcept {
    return bytes == 0 ? status() : nccl_checked(ncclRecv(to, bytes, ncclInt8, from, at.comm, at.on));
  }
  status send_headers(const nccl_place& at) noexcept {
    if (const status s = copy(own_end(at), device_own_, own_, cudaMemcpyHostToDevice, at.on); !s) return s;
    const status s = group(at, [&](int r) {
      const status sent = send(at, device_own_ + header_at(r), sizeof(message_header), r);
      return sent.ok() ? receive(at, device_theirs_ + header_at(r), sizeof(message_header), r) : sent;
    });
    at_ = phase::issuing_headers;
    return s;
  }
  message_header header_from(int r) const noexcept { return message_header_in(theirs_ + header_at(r)); }

  // Faults of the others, and places for what they send. A place that can't be had ends the communicator:
  // NCCL has no way to drop a message.
  status take_headers(const nccl_place& at) {
    exchange& x = *of_;
    for (int r = 0; r < at.size; ++r) {
      if (r == at.rank) continue;
      const message_header h = header_from(r);
      if (const status s = check_header(h, r, at.generation, x); !s) return s;
      if (h.code != 0) {
        agree(x, r, h.fault(r), agreed_by_);
      } else if (x.rooms.empty()) {
        if (const status s = check_bytes(h, r, x.from[index(r)].size()); !s) return s;
      } else if (make_block(x, r, h.bytes).empty()) {
        return no_memory_for(r);
      }
    }
    return {};
  }
  status send_payloads(const nccl_place& at) noexcept {
    const exchange& x = *of_;
    return group(at, [&](int r) {
      if (x.fault.ok()) {
        const std::span<std::byte> payload = payload_of(x.to[index(r)]);
        if (const status s = send(at, payload.data(), payload.size(), r); !s) return s;
      }
      if (header_from(r).code != 0) return status();
      const std::span<std::byte> payload = payload_of(x.from[index(r)]);
      return receive(at, payload.data(), payload.size(), r);
    });
  }

  exchange* of_ = nullptr;
  phase at_ = phase::begun;
  int agreed_by_ = -1;
  std::byte *own_ = nullptr, *theirs_ = nullptr;                // pinned
  std::byte *device_own_ = nullptr, *device_theirs_ = nullptr;  // on the device
  cudaEvent_t passed_ = nullptr;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
