// Batches on their way to the device: one packed pinned buffer each, one copy each, on a stream of its own.
//
//   host      pack 0 | pack 1 | pack 2 ...
//   copies           | copy 0 | copy 1 | copy 2          the copy stream
//   compute                   | step 0 | step 1          waits for the copy of its batch, and for nothing else
//
//   next(bytes, slot)    waits until the step that used this buffer before is over
//   send(slot)           one copy, and an event behind it
//   use(slot, stream)    the stream waits for the copy          release(slot, stream): the step is behind this
//
// A template over the run time, so that a test proves the order; cuda_staging.hpp is the one of a device.
#pragma once

#include <cstddef>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec::inline DEEPREC_ABI {

/// A ring of buffers. Runtime: events, waits, and pinned_allocate, copy_to_device, wait_for on the host.
///
/// @threads one thread at a time
template <class Runtime>
class basic_device_staging {
  using event = typename Runtime::event;
  using stream = typename Runtime::stream;

 public:
  /// @param copies the stream of the copies @param slots batches under way at once; 2 overlap one copy with
  ///        one step
  explicit basic_device_staging(stream copies, int slots = 2) : copies_(copies) {
    slots_.resize(static_cast<std::size_t>(slots < 1 ? 1 : slots));
  }
  basic_device_staging(const basic_device_staging&) = delete;
  basic_device_staging& operator=(const basic_device_staging&) = delete;
  ~basic_device_staging() {
    for (slot& s : slots_) {
      if (s.events) static_cast<void>(Runtime::wait_for(s.released));
      drop(s);
      if (s.events) {
        Runtime::end_event(s.copied);
        Runtime::end_event(s.released);
      }
    }
  }

  /// A buffer of at least so many bytes, the next of the ring.
  ///
  /// @post    nobody reads the buffer any more, on host or device
  /// @cost    waits for the step that used it last; allocates when it is too small
  /// @threads one at a time
  /// @error   out_of_memory; device_error
  [[nodiscard]] status next(std::size_t bytes, int& number) {
    const int chosen = next_;
    slot& s = slots_[static_cast<std::size_t>(chosen)];
    if (!s.events) {
      if (const status made = Runtime::make_event(s.copied, false); !made) return made;
      if (const status made = Runtime::make_event(s.released, false); !made) {
        Runtime::end_event(s.copied);
        return made;
      }
      s.events = true;
    }
    if (s.sent) {
      if (const status waited = Runtime::wait_for(s.copied); !waited) return waited;
    }
    if (s.in_use) {
      if (const status waited = Runtime::wait_for(s.released); !waited) return waited;
    }
    s.sent = s.in_use = false;
    if (s.bytes < bytes) {
      drop(s);
      const std::size_t wanted = bytes + bytes / 4;  // batches differ a little
      if (const status got = Runtime::pinned_allocate(s.host, wanted); !got) return got;
      if (const status got = Runtime::allocate(s.device, wanted); !got) {
        Runtime::pinned_deallocate(s.host);
        s.host = nullptr;
        return got;
      }
      s.bytes = wanted;
    }
    next_ = (chosen + 1) % static_cast<int>(slots_.size());
    number = chosen;
    return {};
  }
  /// Where the host packs, and what the device reads: the same offsets in both.
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
  /// @error   shape_mismatch when the buffer has fewer; device_error
  [[nodiscard]] status send(int number, std::size_t bytes) {
    slot& s = slots_[static_cast<std::size_t>(number)];
    if (bytes > s.bytes) return {errc::shape_mismatch, "device_staging: more bytes than the buffer has"};
    if (const status copied = Runtime::copy_to_device(s.device, s.host, bytes, copies_); !copied)
      return copied;
    s.sent = true;
    return Runtime::record(s.copied, copies_);
  }
  /// What the stream is given from now on sees the batch.
  ///
  /// @cost    one wait
  /// @threads one at a time
  /// @error   device_error
  [[nodiscard]] status use(int number, stream on) {
    slots_[static_cast<std::size_t>(number)].in_use = false;
    return Runtime::wait(on, slots_[static_cast<std::size_t>(number)].copied);
  }
  /// What the stream was given until now is all that reads the batch.
  ///
  /// @cost    one event
  /// @threads one at a time
  /// @error   device_error
  [[nodiscard]] status release(int number, stream on) {
    slot& s = slots_[static_cast<std::size_t>(number)];
    s.in_use = true;
    return Runtime::record(s.released, on);
  }

 private:
  struct slot {
    void* host = nullptr;
    void* device = nullptr;
    std::size_t bytes = 0;
    event copied{};
    event released{};
    bool events = false;
    bool sent = false;
    bool in_use = false;
  };
  static void drop(slot& s) {
    if (s.host != nullptr) Runtime::pinned_deallocate(s.host);
    if (s.device != nullptr) Runtime::deallocate(s.device);
    s.host = s.device = nullptr;
    s.bytes = 0;
  }

  stream copies_;
  std::vector<slot> slots_;
  int next_ = 0;
};

}  // namespace deeprec::inline DEEPREC_ABI
