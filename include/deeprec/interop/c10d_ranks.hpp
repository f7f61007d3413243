// PyTorch's process groups as communicators. Needs the headers and libraries of the PyTorch that runs
// (torch/csrc/distributed/c10d), whose C++ interface follows its version: an extension's header, as those of
// examples/pytorch; not in the umbrella header.
//
//   c10d_ranks comm(c10d_link::over(c10d::resolve_process_group(name)).or_throw());
//   status s = complete(comm, x, within(30s));
//
// Any backend that has all_to_all of host memory: gloo, MPI, UCC; not NCCL. The group must be used for
// nothing else (torch.distributed.new_group makes one): its calls meet by their order. Its own limit, that of
// every call (`timeout` of new_group), should be longer than those of exchanges.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <deeprec/comm/ordered_ranks.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/queue/queue_result.hpp>
#include <deeprec/queue/wait_strategies.hpp>
#include <deeprec/queue/waiting_room.hpp>
#include <deeprec/support/atomics.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The all-to-alls of a process group, by copies of bytes in tensors, which the group's calls hold too: what
/// a call that nobody waits for reads and writes later is nobody else's.
///
/// @cost    a call allocates what c10d does, and views of tensors, whose memory is kept
/// @threads one thread at a time
/// @error   of a call: closed for a connection that has ended, timed_out for the group's own limit,
///          out_of_memory, io_error; with the rank where there is one other
class c10d_link {
 public:
  using space = host_space;

  /// @error unsupported: no group, or none for host memory
  [[nodiscard]] static result<c10d_link> over(c10::intrusive_ptr<c10d::ProcessGroup> group) {
    const status unfit(errc::unsupported,
                       "c10d_link: a process group must have a backend for host memory (gloo, MPI, UCC)");
    if (!group) return unfit;
    try {
      static_cast<void>(group->getBackend(c10::DeviceType::CPU));
    } catch (const std::exception&) {
      return unfit;
    }
    return c10d_link(std::move(group));
  }

  /// An all-to-all.
  class round {
    friend class c10d_link;
    at::Tensor to_memory, from_memory, to, from;
    c10::intrusive_ptr<c10d::Work> work;
    c10::intrusive_ptr<c10::ivalue::Future> ended;
    status fault;
  };

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }

  void make(round& r, index_t to_bytes, index_t from_bytes) {
    const c10::InferenceMode normal(false);
    r.to = room(r.to_memory, to_bytes);
    r.from = room(r.from_memory, from_bytes);
  }
  [[nodiscard]] std::span<std::byte> to(round& r) { return bytes(r.to); }
  [[nodiscard]] std::span<std::byte> from(round& r) { return bytes(r.from); }

  [[nodiscard]] status start(round& r, std::span<const index_t> to_bytes,
                             std::span<const index_t> from_bytes) {
    r.fault = {};
    try {
      const c10::InferenceMode normal(false);
      std::vector<std::int64_t> to_sizes(to_bytes.begin(), to_bytes.end());
      std::vector<std::int64_t> from_sizes(from_bytes.begin(), from_bytes.end());
      r.work = all_to_all(*group_, r.from, r.to, from_sizes, to_sizes);
      r.ended = r.work->getFuture();
      r.ended->addCallback([room = room_](c10::ivalue::Future&) { room->notify_all(); });
    } catch (...) {
      r.ended.reset();
      r.fault = fault_of(std::current_exception());
    }
    return r.fault;
  }
  [[nodiscard]] queue_result poll(round& r) {
    if (!r.ended) return queue_result::failed;
    if (!r.ended->completed()) return queue_result::not_now;
    if (!r.ended->hasError()) return queue_result::ok;
    r.fault = fault_of(r.ended->exception_ptr());
    return queue_result::failed;
  }
  [[nodiscard]] status fault(const round& r) const noexcept { return r.fault; }

  /// Backends receive in place: gloo and MPI do.
  [[nodiscard]] std::uint32_t peek(const round& r, index_t at) const {
    auto* const word = reinterpret_cast<std::uint32_t*>(r.from.data_ptr<std::uint8_t>() + at);
    // relaxed: a guess
    return std::atomic_ref<std::uint32_t>(*word).load(std::memory_order_relaxed);
  }
  template <class Look>
  [[nodiscard]] queue_result wait(Look&& look, const wait_limit& limit) {
    return room_->wait_for(look, limit, detail::wake_nobody());
  }

 private:
  using room_type = waiting_room<adaptive_wait, detail::std_atomics, 1>;

  explicit c10d_link(c10::intrusive_ptr<c10d::ProcessGroup> group)
      : group_(std::move(group)),
        room_(std::make_shared<room_type>()),
        rank_(group_->getRank()),
        size_(group_->getSize()) {}

  static at::Tensor room(at::Tensor& memory, index_t bytes) {
    if (!memory.defined() || memory.numel() < bytes) {
      try {
        memory = at::empty({bytes}, at::TensorOptions(at::kByte));
      } catch (const std::exception&) {
        throw std::bad_alloc();
      }
    }
    return memory.narrow(0, 0, bytes);
  }
  static std::span<std::byte> bytes(at::Tensor& tensor) {
    return {reinterpret_cast<std::byte*>(tensor.data_ptr<std::uint8_t>()),
            static_cast<std::size_t>(tensor.numel())};
  }
  // PyTorch 2.15 has renamed it.
  template <class Group>
  static c10::intrusive_ptr<c10d::Work> all_to_all(Group& group, at::Tensor& from, at::Tensor& to,
                                                   std::vector<std::int64_t>& from_sizes,
                                                   std::vector<std::int64_t>& to_sizes) {
    if constexpr (requires { group.all_to_all_single(from, to, from_sizes, to_sizes); }) {
      return group.all_to_all_single(from, to, from_sizes, to_sizes);
    } else {
      return group.alltoall_base(from, to, from_sizes, to_sizes);
    }
  }
  // Backends say in words what has happened.
  [[nodiscard]] status fault_of(const std::exception_ptr& thrown) const {
    fault_place place{};
    if (size_ == 2) place.rank = 1 - rank_;
    try {
      std::rethrow_exception(thrown);
    } catch (const std::bad_alloc&) {
      return {errc::out_of_memory, "exchange: no memory in the process group"};
    } catch (const std::exception& e) {
      const std::string_view words = e.what();
      const auto says = [words](std::string_view part) { return words.find(part) != words.npos; };
      if (says("onnection closed") || says("onnection reset") || says("roken pipe"))
        return {errc::closed, "exchange: the connection to a rank has ended", place};
      if (says("imed out") || says("imeout"))
        return {errc::timed_out, "exchange: the process group's own limit has passed", place};
    } catch (...) {
    }
    return {errc::io_error, "exchange: the process group reports an error"};
  }

  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::shared_ptr<room_type> room_;  // calls that nobody waits for notify it
  int rank_, size_;
};

using c10d_ranks = ordered_ranks<c10d_link>;
static_assert(Communicator<c10d_ranks>);

}}  // namespace deeprec::DEEPREC_ABI
