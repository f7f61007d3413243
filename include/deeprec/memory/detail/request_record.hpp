// What one chunk of a step requests of its memory and frees, in order; and what several steps have in common.
//
//   step 1   + a   + b   - b   - a   + c   - c
//   step 2   + a               - a   + c   - c
//   learnt   + a  (+ b) (- b)  - a   + c   - c        b is optional; each is as large as the largest
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// A request, or the end of the block that was requested.
struct memory_event {
  std::uint32_t request;
  bool frees;
};

struct memory_request {
  std::size_t bytes;  // the most
  std::size_t alignment;
  std::size_t least;          // bytes
  bool outlives_step = true;  // not freed in it
  bool is_optional = false;   // some steps were without it

  /// What a plan has room for: of a request that varies a quarter more.
  [[nodiscard]] std::size_t room() const noexcept { return least < bytes ? bytes + bytes / 4 : bytes; }
};

/// How the requests of a step relate to those of the steps before.
enum class step_likeness : unsigned char {
  same,   ///< a plan of the steps before has room for them
  wider,  ///< larger ones, or others between them
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
    requests_.push_back({bytes, alignment, bytes});
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

  /// A request was seen that is larger than a plan had room for.
  void widen(std::uint32_t request, std::size_t bytes) noexcept {
    requests_[request].bytes = (std::max)(requests_[request].bytes, bytes);
  }
  /// Takes the requests of another step in. `other`: this becomes the record of that step.
  step_likeness learn(const request_record& step);

 private:
  struct live_block {
    const void* at;
    std::uint32_t request;
  };

  template <class T>
  static void make_room(std::vector<T>& list, std::size_t needed) {
    if (list.capacity() < needed) list.reserve((std::max)(needed, 2 * list.capacity()));
  }

  friend class record_merge;
  std::vector<memory_event> events_;
  std::vector<memory_request> requests_;
  std::vector<live_block> live_;
};

/// Merges a step into what was learnt: one order of events of which both are a part.
class record_merge {
 public:
  record_merge(const request_record& learnt, const request_record& step)
      : a_(learnt), b_(step), of_b_(step.requests().size(), none), in_b_(learnt.requests().size(), false) {}

  step_likeness run(request_record& merged) {
    if (a_.events().empty() && !b_.events().empty()) return step_likeness::other;
    merged.requests_ = a_.requests();
    while (i_ < a_.events().size() || j_ < b_.events().size()) {
      if (!step_once(merged) || merged.requests_.size() > 2 * a_.requests().size() + 4)
        return step_likeness::other;
    }
    for (std::size_t r = 0; r < in_b_.size(); ++r) {
      memory_request& request = merged.requests_[r];
      if (in_b_[r] || request.is_optional) continue;
      request.is_optional = true;
      likeness_ = step_likeness::wider;
    }
    return likeness_;
  }

 private:
  static constexpr std::uint32_t none = static_cast<std::uint32_t>(-1);
  static constexpr std::size_t ahead = 32;

  [[nodiscard]] const memory_request& of_a(std::size_t i) const {
    return a_.requests()[a_.events()[i].request];
  }
  [[nodiscard]] const memory_request& of_b(std::size_t j) const {
    return b_.requests()[b_.events()[j].request];
  }
  [[nodiscard]] bool is_of_a(std::size_t j) const {
    return of_b_[b_.events()[j].request] < a_.requests().size();
  }
  static bool are_alike(const memory_request& x, const memory_request& y) noexcept {
    const std::size_t least = 256;
    return x.outlives_step == y.outlives_step && y.bytes <= (std::max)(2 * x.bytes, least) &&
           x.least <= (std::max)(2 * y.bytes, least);
  }

  bool step_once(request_record& merged) {
    const bool has_a = i_ < a_.events().size(), has_b = j_ < b_.events().size();
    if (!has_b) return a_.events()[i_].frees && in_b_[a_.events()[i_].request] ? false : skip_a(merged);
    if (!has_a) return b_.events()[j_].frees && is_of_a(j_) ? false : insert_b(merged);
    const memory_event a = a_.events()[i_], b = b_.events()[j_];
    if (a.frees && !in_b_[a.request]) return skip_a(merged);
    if (a.frees && b.frees) {
      if (of_b_[b.request] == a.request) return match(merged);
      return is_of_a(j_) ? false : insert_b(merged);
    }
    if (a.frees) return insert_b(merged);
    if (b.frees) return is_of_a(j_) ? skip_a(merged) : insert_b(merged);
    if (are_alike(of_a(i_), of_b(j_))) return match(merged);
    for (std::size_t k = i_ + 1; k < a_.events().size() && k < i_ + ahead; ++k) {
      const memory_event later = a_.events()[k];
      if (later.frees && in_b_[later.request]) break;  // the step has not come to that
      if (!later.frees && are_alike(of_a(k), of_b(j_))) return skip_a(merged);
    }
    return insert_b(merged);
  }
  bool match(request_record& merged) {
    const memory_event a = a_.events()[i_++], b = b_.events()[j_++];
    merged.events_.push_back(a);
    if (a.frees) return true;
    of_b_[b.request] = a.request;
    in_b_[a.request] = true;
    memory_request& mine = merged.requests_[a.request];
    const memory_request& its = b_.requests()[b.request];
    mine.least = (std::min)(mine.least, its.least);
    if (its.bytes > mine.room() || its.alignment > mine.alignment) likeness_ = step_likeness::wider;
    mine.bytes = (std::max)(mine.bytes, its.bytes);
    mine.alignment = (std::max)(mine.alignment, its.alignment);
    return true;
  }
  // The step is without it.
  bool skip_a(request_record& merged) {
    const memory_event a = a_.events()[i_++];
    merged.events_.push_back(a);
    return true;
  }
  // It was not there before.
  bool insert_b(request_record& merged) {
    const memory_event b = b_.events()[j_++];
    if (b.frees) {
      merged.events_.push_back({of_b_[b.request], true});
      return true;
    }
    of_b_[b.request] = static_cast<std::uint32_t>(merged.requests_.size());
    merged.events_.push_back({of_b_[b.request], false});
    merged.requests_.push_back(b_.requests()[b.request]);
    merged.requests_.back().is_optional = true;
    likeness_ = step_likeness::wider;
    return true;
  }

  const request_record &a_, &b_;
  std::vector<std::uint32_t> of_b_;  // requests of the step, by those of the merged record
  std::vector<bool> in_b_;           // learnt requests that the step has
  std::size_t i_ = 0, j_ = 0;
  step_likeness likeness_ = step_likeness::same;
};

inline step_likeness request_record::learn(const request_record& step) {
  request_record merged;
  const step_likeness likeness = record_merge(*this, step).run(merged);
  if (likeness == step_likeness::other) {
    events_ = step.events_;
    requests_ = step.requests_;
  } else {
    events_ = std::move(merged.events_);
    requests_ = std::move(merged.requests_);
  }
  return likeness;
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
