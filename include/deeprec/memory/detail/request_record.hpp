// What one chunk of a step requests of its memory and frees, in order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// A request, or the end of the block that was requested.
struct memory_event {
  std::uint32_t request;
  bool frees;
  friend bool operator==(const memory_event&, const memory_event&) = default;
};

struct memory_request {
  std::size_t bytes;
  std::size_t alignment;
  bool outlives_step;   // not freed in it
  bool varies = false;  // it was of other sizes in other steps

  /// What a plan has room for: of a request that varies a quarter more.
  [[nodiscard]] std::size_t room() const noexcept { return varies ? bytes + bytes / 4 : bytes; }
};

/// How the requests of a step relate to those of the steps before.
enum class step_likeness : unsigned char {
  same,   ///< the same events, and no request is larger than a plan has room for
  grown,  ///< the same events, larger requests
  other,
};

/// @threads one thread at a time
class request_record {
 public:
  [[nodiscard]] const std::vector<memory_event>& events() const noexcept { return events_; }
  [[nodiscard]] const std::vector<memory_request>& requests() const noexcept { return requests_; }

  void clear() noexcept {
    events_.clear();
    requests_.clear();
    live_.clear();
  }
  /// Makes room for one request and the end of its block: allocated() and freed() allocate nothing.
  ///
  /// @error std::bad_alloc; the record is unchanged
  void reserve_request() {
    make_room(events_, 2 * (requests_.size() + 1));
    make_room(requests_, requests_.size() + 1);
    make_room(live_, live_.size() + 1);
  }
  /// @pre reserve_request() was called for it
  void allocated(const void* block, std::size_t bytes, std::size_t alignment) noexcept {
    const auto request = static_cast<std::uint32_t>(requests_.size());
    events_.push_back({request, false});
    requests_.push_back({bytes, alignment, true});
    live_.push_back({block, request});
  }
  /// Of a block of an earlier step: nothing.
  void freed(const void* block) noexcept {
    const auto at = std::find_if(live_.rbegin(), live_.rend(),
                                 [block](const live_block& live) { return live.at == block; });
    if (at == live_.rend()) return;
    events_.push_back({at->request, true});
    requests_[at->request].outlives_step = false;
    live_.erase(std::next(at).base());
  }

  /// Takes the requests of another step in: of two steps with the same events the larger ones, else those of
  /// the other step.
  step_likeness learn(const request_record& step) {
    const auto same_life = [](const memory_request& a, const memory_request& b) {
      return a.outlives_step == b.outlives_step;
    };
    if (events_ != step.events_ ||
        !std::equal(requests_.begin(), requests_.end(), step.requests_.begin(), step.requests_.end(),
                    same_life)) {
      events_ = step.events_;
      requests_ = step.requests_;
      return step_likeness::other;
    }
    step_likeness answer = step_likeness::same;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      memory_request& mine = requests_[i];
      const memory_request& its = step.requests_[i];
      mine.varies = mine.varies || its.varies || its.bytes != mine.bytes;
      if (its.bytes > mine.room() || its.alignment > mine.alignment) answer = step_likeness::grown;
      mine.bytes = (std::max)(mine.bytes, its.bytes);
      mine.alignment = (std::max)(mine.alignment, its.alignment);
    }
    return answer;
  }

 private:
  struct live_block {
    const void* at;
    std::uint32_t request;
  };

  template <class T>
  static void make_room(std::vector<T>& list, std::size_t needed) {
    if (list.capacity() < needed) list.reserve((std::max)(needed, 2 * list.capacity()));
  }

  std::vector<memory_event> events_;
  std::vector<memory_request> requests_;
  std::vector<live_block> live_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
