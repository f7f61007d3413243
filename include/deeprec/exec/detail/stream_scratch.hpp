// Device memory that the verbs of one stream use one after the other, and what a verb that is made
// of others keeps for itself meanwhile.
//
//   one block:   | kept by fused_lookup | of to_jagged, then of lookup |
//   and later:   | of any other verb ...                               |
//
// A template over the run time (memory/cuda_runtime.hpp), so that tests run it without a device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec::inline DEEPREC_ABI::detail {

template <class Runtime>
class stream_scratch {
 public:
  using stream_type = typename Runtime::stream;
  static constexpr std::size_t alignment = 256;

  stream_scratch() = default;
  stream_scratch(const stream_scratch&) = delete;
  stream_scratch& operator=(const stream_scratch&) = delete;
  ~stream_scratch() {
    for (void* const block : blocks_) Runtime::deallocate(block);
  }

  /// Bytes behind what is kept. Blocks that were too small stay until the end: a captured graph, or
  /// who keeps a part of one, may still use them.
  [[nodiscard]] status get(stream_type on, std::size_t bytes, std::byte*& out) {
    if (kept_ + bytes > size_) {
      bool capturing = false;
      if (const status s = Runtime::capturing(capturing, on); !s) return s;
      if (capturing) {
        return {errc::unsupported,
                "a capture that needs more scratch: run the step once before capturing it"};
      }
      const std::size_t wanted = (std::max)(kept_ + bytes, size_ + size_ / 2);
      void* made = nullptr;
      if (const status s = Runtime::allocate(made, wanted); !s) return s;
      blocks_.push_back(made);
      size_ = wanted;
    }
    out = blocks_.empty() ? nullptr : static_cast<std::byte*>(blocks_.back()) + kept_;
    return {};
  }

  /// What is taken in a scope is kept until its end. Scopes nest.
  class scope {
   public:
    explicit scope(stream_scratch& of) : of_(of), before_(of.kept_) {}
    scope(const scope&) = delete;
    scope& operator=(const scope&) = delete;
    ~scope() { of_.kept_ = before_; }

    [[nodiscard]] status take(stream_type on, std::size_t bytes, std::byte*& out) {
      const status s = of_.get(on, bytes, out);
      if (s.ok()) of_.kept_ += (bytes + alignment - 1) / alignment * alignment;
      return s;
    }

   private:
    stream_scratch& of_;
    std::size_t before_;
  };

 private:
  std::vector<void*> blocks_;  // the last one is in use
  std::size_t size_ = 0;       // of the last one
  std::size_t kept_ = 0;
};

}  // namespace deeprec::inline DEEPREC_ABI::detail
