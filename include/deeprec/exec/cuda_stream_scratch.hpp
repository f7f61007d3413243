// Scratch memory of a stream. Calls on the stream reuse it in order; a composite call can hold a part while
// it calls others.
//
//   one block:   | held by fused_lookup | of to_jagged, then of lookup |
//   and later:   | of any other verb ...                               |
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/memory/cuda_runtime.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

class stream_scratch {
 public:
  static constexpr std::size_t alignment = 256;

  stream_scratch() = default;
  stream_scratch(const stream_scratch&) = delete;
  stream_scratch& operator=(const stream_scratch&) = delete;
  ~stream_scratch() {
    for (void* const block : blocks_) cuda_runtime::deallocate(block);
  }

  /// Returns memory after the part that is held. Blocks that were too small live until destruction: a
  /// captured graph, or the holder of a part of one, may still use them.
  [[nodiscard]] status get(cudaStream_t on, std::size_t bytes, std::byte*& out) {
    if (bytes > most_bytes - kept_)
      return {errc::out_of_memory, "scratch: bytes must be at most half of an address space"};
    if (kept_ + bytes > size_) {
      bool capturing = false;
      if (const status s = cuda_runtime::capturing(capturing, on); !s) return s;
      if (capturing) {
        return {errc::unsupported, "scratch: must not grow during a capture; run the step once before it"};
      }
      const std::size_t wanted = (std::max)(kept_ + bytes, size_ + size_ / 2);
      blocks_.reserve(blocks_.size() + 1);  // may throw, so it comes before the allocation
      void* made = nullptr;
      if (const status s = cuda_runtime::allocate(made, wanted); !s) return s;
      blocks_.push_back(made);
      size_ = wanted;
    }
    out = blocks_.empty() ? nullptr : static_cast<std::byte*>(blocks_.back()) + kept_;
    return {};
  }

  /// Memory taken in a scope is held until its end. Scopes nest.
  class scope {
   public:
    explicit scope(stream_scratch& of) : of_(of), before_(of.kept_) {}
    scope(const scope&) = delete;
    scope& operator=(const scope&) = delete;
    ~scope() { of_.kept_ = before_; }

    [[nodiscard]] status take(cudaStream_t on, std::size_t bytes, std::byte*& out) {
      const status s = of_.get(on, bytes, out);
      if (s.ok()) of_.kept_ += (bytes + alignment - 1) / alignment * alignment;
      return s;
    }

   private:
    stream_scratch& of_;
    std::size_t before_;
  };

 private:
  // Half of an address space: sums of valid sizes don't wrap.
  static constexpr std::size_t most_bytes = (std::numeric_limits<std::size_t>::max)() / 2;

  std::vector<void*> blocks_;  // the last one is in use
  std::size_t size_ = 0;       // of the last one
  std::size_t kept_ = 0;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
