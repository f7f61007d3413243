// Transfer of batches to the device: one packed pinned buffer and one copy for each, on a separate stream.
//
//   host      pack 0 | pack 1 | pack 2 ...
//   copies           | copy 0 | copy 1 | copy 2          the copy stream
//   compute                   | step 0 | step 1          waits only for the copy of its batch
//
//   acquire(bytes, slot)    waits until earlier steps have finished with this buffer
//   upload(slot, bytes)     one copy, followed by an event
//   use(slot, stream)       the stream waits for the copy
//   release(slot, stream)   ends the use
//
// Several streams may use one buffer; each use needs a release, also where the step between them failed.
//
//   cuda_staging staging(copy_stream.get());
//   packed_layout layout;
//   const auto ids = layout.add<std::int64_t>(n), offsets = layout.add<std::int64_t>(B + 1);
//   staging.acquire(layout.bytes(), slot);         ids.in(staging.host(slot)) ...    pack
//   staging.upload(slot, layout.bytes());          one copy
//   staging.use(slot, compute.get());
//   jagged_view<std::int64_t, std::int64_t, device_space> bags(offsets.in(staging.device(slot)), B, ...);
//   lookup(compute, ...);  staging.release(slot, compute.get());
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <limits>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/memory/cuda_runtime.hpp>
#include <deeprec/queue/packed_batch.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// A ring of buffers on the device that is current when the ring is made.
///
/// @threads one thread at a time
class cuda_staging {
  using scope = detail::device_scope;

 public:
  /// The most streams that may use one batch.
  static constexpr std::size_t most_consumers = 16;

  /// @param copies the stream of the copies @param slots batches in flight at once; 2 overlap one copy with
  ///        one step
  explicit cuda_staging(cudaStream_t copies, int slots = 2) : copies_(copies) {
    slots_.resize(static_cast<std::size_t>(slots < 1 ? 1 : slots));
  }
  cuda_staging(const cuda_staging&) = delete;
  cuda_staging& operator=(const cuda_staging&) = delete;
  /// @pre streams with a use that is not released still exist: the destructor waits for them
  ~cuda_staging() {
    const scope here(device_);
    for (slot& s : slots_) {
      for (const consumer& c : s.consumers) {
        if (c.uses > 0) static_cast<void>(cuda_runtime::synchronize(c.on));
      }
      static_cast<void>(idle(s));
      drop(s);
      for (const cudaEvent_t e : s.released) cuda_runtime::end_event(e);
      if (s.has_copied) cuda_runtime::end_event(s.copied);
    }
  }

  /// The next buffer of the ring, with at least `bytes` bytes.
  ///
  /// @post    nothing reads the buffer any more, on host or device
  /// @cost    waits for the steps that used it last; allocates when it is too small
  /// @threads one at a time
  /// @error   invalid_value when a use of that buffer was not released (place().item is its number): release
  ///          it, then call again; out_of_memory; device_error
  [[nodiscard]] status acquire(std::size_t bytes, int& number) {
    const scope here(device_);
    if (!here.made().ok()) return here.made();
    const int chosen = next_;
    slot& s = slots_[static_cast<std::size_t>(chosen)];
    for (const consumer& c : s.consumers) {
      if (c.uses > 0) {
        return {
            errc::invalid_value, "cuda_staging: the next buffer must be released first", {.item = chosen}};
      }
    }
    if (!s.has_copied) {
      if (const status made = cuda_runtime::make_event(s.copied, false); !made) return made;
      s.has_copied = true;
    }
    if (const status waited = idle(s); !waited) return waited;
    s.sent = s.marked = false;
    s.consumers.clear();
    if (s.bytes < bytes) {
      drop(s);
      const std::size_t most = (std::numeric_limits<std::size_t>::max)();
      // a quarter more, since the sizes of batches vary
      const std::size_t wanted = bytes <= most - bytes / 4 ? bytes + bytes / 4 : bytes;
      if (const status got = cuda_runtime::pinned_allocate(s.host, wanted); !got) return got;
      if (const status got = cuda_runtime::allocate(s.device, wanted); !got) {
        cuda_runtime::pinned_deallocate(s.host);
        s.host = nullptr;
        return got;
      }
      s.bytes = wanted;
    }
    next_ = (chosen + 1) % static_cast<int>(slots_.size());
    number = chosen;
    return {};
  }
  /// The host buffer to pack into and the device buffer to read from; offsets are the same in both.
  [[nodiscard]] void* host(int number) const noexcept {
    return slots_[static_cast<std::size_t>(number)].host;
  }
  [[nodiscard]] void* device(int number) const noexcept {
    return slots_[static_cast<std::size_t>(number)].device;
  }

  /// Enqueues the copy of the first `bytes` bytes.
  ///
  /// @pre     the host has written them
  /// @cost    one copy, one event
  /// @threads one at a time
  /// @error   shape_mismatch when the buffer has fewer; invalid_value when a stream uses it already;
  ///          device_error
  [[nodiscard]] status upload(int number, std::size_t bytes) {
    slot& s = slots_[static_cast<std::size_t>(number)];
    if (!s.consumers.empty())
      return {errc::invalid_value,
              "cuda_staging: a buffer must not be uploaded to while it is used",
              {.item = number}};
    if (bytes > s.bytes) return {errc::shape_mismatch, "cuda_staging: bytes must fit the buffer"};
    const scope here(device_);
    if (!here.made().ok()) return here.made();
    if (const status copied = cuda_runtime::copy_to_device(s.device, s.host, bytes, copies_); !copied)
      return copied;
    s.sent = true;
    const status marked = cuda_runtime::record(s.copied, copies_);
    s.marked = marked.ok();
    return marked;
  }
  /// Work enqueued on the stream from now on sees the batch.
  ///
  /// @pre     the batch was uploaded
  /// @post    acquire() does not return the buffer again before release(number, on), once for each use
  /// @cost    one wait
  /// @threads one at a time
  /// @error   invalid_value for a buffer that was not uploaded; unsupported when most_consumers other streams
  ///          use the batch; device_error. On an error there is no use
  [[nodiscard]] status use(int number, cudaStream_t on) {
    slot& s = slots_[static_cast<std::size_t>(number)];
    if (!s.marked)
      return {
          errc::invalid_value, "cuda_staging: a buffer must be uploaded before it is used", {.item = number}};
    std::size_t c = find(s, on);
    if (c == most_consumers)
      return {errc::unsupported, "cuda_staging: consuming streams must be at most most_consumers"};
    const scope here(device_);
    if (!here.made().ok()) return here.made();
    if (c == s.released.size()) {
      s.released.reserve(c + 1);  // may throw, so it comes before the event is created
      cudaEvent_t made{};
      if (const status answer = cuda_runtime::make_event(made, false); !answer) return answer;
      s.released.push_back(made);
    }
    s.consumers.reserve(c + 1);
    if (const status waited = cuda_runtime::wait(on, s.copied); !waited) return waited;
    if (c == s.consumers.size()) s.consumers.push_back({on, 0, false});
    ++s.consumers[c].uses;
    return {};
  }
  /// Ends a use of the stream after the work enqueued on it so far.
  ///
  /// @cost    one event
  /// @threads one at a time
  /// @error   invalid_value when the stream has no use of the batch that is not released; device_error: the
  ///          use is not released
  [[nodiscard]] status release(int number, cudaStream_t on) {
    slot& s = slots_[static_cast<std::size_t>(number)];
    const std::size_t c = find(s, on);
    if (c == s.consumers.size() || s.consumers[c].uses == 0) {
      return {errc::invalid_value,
              "cuda_staging: only a stream that uses a buffer must release it",
              {.item = number}};
    }
    const scope here(device_);
    if (!here.made().ok()) return here.made();
    if (const status marked = cuda_runtime::record(s.released[c], on); !marked) return marked;
    --s.consumers[c].uses;
    s.consumers[c].marked = true;
    return {};
  }

 private:
  struct consumer {
    cudaStream_t on;
    int uses;     // not released yet
    bool marked;  // its event is recorded, at its last release
  };
  struct slot {
    void* host = nullptr;
    void* device = nullptr;
    std::size_t bytes = 0;
    cudaEvent_t copied{};
    bool has_copied = false;
    bool sent = false;
    bool marked = false;                // the event `copied` is recorded after the copy
    std::vector<consumer> consumers;    // of this batch
    std::vector<cudaEvent_t> released;  // of each consumer, kept for the next batch
  };
  // The index of a stream among the consumers, or their number.
  static std::size_t find(const slot& s, cudaStream_t on) {
    std::size_t c = 0;
    while (c < s.consumers.size() && s.consumers[c].on != on) ++c;
    return c;
  }
  // Waits for the copy and for the released uses.
  status idle(const slot& s) const {
    status waited;
    if (s.sent) waited = s.marked ? cuda_runtime::wait_for(s.copied) : cuda_runtime::synchronize(copies_);
    if (!waited) return waited;
    for (std::size_t c = 0; c < s.consumers.size(); ++c) {
      if (!s.consumers[c].marked) continue;
      if (waited = cuda_runtime::wait_for(s.released[c]); !waited) return waited;
    }
    return waited;
  }
  static void drop(slot& s) {
    if (s.host != nullptr) cuda_runtime::pinned_deallocate(s.host);
    if (s.device != nullptr) cuda_runtime::deallocate(s.device);
    s.host = s.device = nullptr;
    s.bytes = 0;
  }

  int device_ = detail::current_device();
  cudaStream_t copies_;
  std::vector<slot> slots_;
  int next_ = 0;
};

}}  // namespace deeprec::DEEPREC_ABI
