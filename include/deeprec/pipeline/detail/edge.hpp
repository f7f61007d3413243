// The queue between two segments: items in order, then one end marker. cancel() tells the producer to stop.
//
//   producer ── put ──> [ item | item | end ] ── take ──> consumer
//            <───────────────── cancel ──────────────────
//
// One producer and one consumer without a byte budget and a tuned depth use a spsc_ring; everything else is a
// staging_queue. The end carries the failure that ended the producer, if one did, so items before it are
// delivered. Not here: which thread does what (segment.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory_resource>
#include <mutex>
#include <optional>
#include <stop_token>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/pipeline/depth_controller.hpp>
#include <deeprec/queue/spsc_ring.hpp>
#include <deeprec/queue/staging_queue.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// What ended a run early: an exception, or a fault.
struct stage_failure {
  const char* stage = "";
  std::uint64_t item = 0;
  std::exception_ptr thrown{};
  std::optional<deeprec::fault> why{};
};

/// An item, or the end. Only moves of T are needed, no assignment.
template <class T>
struct parcel {
  std::optional<T> item{};

  parcel() = default;
  explicit parcel(T&& value) : item(std::move(value)) {}
  parcel(parcel&&) noexcept(std::is_nothrow_move_constructible_v<T>) = default;
  parcel& operator=(parcel&& other) noexcept(std::is_nothrow_move_constructible_v<T>) {
    item.reset();
    if (other.item) item.emplace(std::move(*other.item));
    return *this;
  }
};

/// Of a parcel in a queue with a byte budget.
template <class T, class Bytes>
std::size_t parcel_bytes(const parcel<T>& p) {
  return p.item ? static_cast<std::size_t>(Bytes{}(*p.item)) : 0;
}

struct edge_options {
  std::size_t capacity = 1;
  std::size_t max_capacity = 0;  ///< above capacity: tuned
  std::size_t byte_budget = 0;
  bool one_to_one = false;  ///< one producer, one consumer
  std::pmr::memory_resource* memory = std::pmr::get_default_resource();
  const char* consumer = "";  ///< the stage that takes
};

template <class T, class Bytes, class Wait, class Atomics = std_atomics>
class edge {
  using box = parcel<T>;
  using ring_type = spsc_ring<box, Wait, Atomics>;
  using queue_type = staging_queue<box, Wait, Atomics>;

 public:
  using item_type = T;
  using reservation = typename queue_type::reservation;

  explicit edge(const edge_options& o) : limit_{.stop = stop_.get_token()} {
    const bool tuned = o.max_capacity > o.capacity;
    if (o.one_to_one && !tuned && o.byte_budget == 0) {
      ring_.emplace(o.capacity, o.memory);
      return;
    }
    queue_.emplace(staging_options{tuned ? o.max_capacity : o.capacity, o.byte_budget, o.memory},
                   &parcel_bytes<T, Bytes>);
    if (!tuned) return;
    control_.emplace(o.consumer, depth_controller::bounds{o.capacity, o.max_capacity, o.byte_budget});
    measured_ = o.byte_budget != 0;
    queue_->limit_depth(o.capacity);
  }

  // --- producers -----------------------------------------------------------------------------------

  /// ok, or stopped: the consumer wants no more. Throws what T's move throws.
  queue_result put(T&& item) {
    if (ring_) return ring_->push(std::move(item), limit_);
    return queue_->put(box(std::move(item)), limit_);
  }
  /// The place of the next item, for producers in parallel. One to one edges have none.
  reservation reserve() { return queue_->reserve(limit_); }
  queue_result put(reservation& place, T&& item) { return place.put(box(std::move(item)), limit_); }

  /// The end as the consumer will find it, unless one with a smaller number is noted before it comes there.
  void note_end(std::uint64_t number, std::optional<stage_failure>&& failure) noexcept {
    const std::lock_guard lock(end_mutex_);
    if (number >= end_number_) return;
    end_number_ = number;
    end_failure_ = std::move(failure);
  }
  /// Puts the end, which was noted, behind all items; or at a place.
  void put_end() { static_cast<void>(ring_ ? ring_->push(box(), limit_) : queue_->put(box(), limit_)); }
  void put_end(reservation& place) { static_cast<void>(place.put(box(), limit_)); }

  // --- the consumer ----------------------------------------------------------------------------------

  /// ok: an item, or the end; stopped: cancelled. Throws what T's move throws.
  queue_result take(box& into) {
    if (ring_) return ring_->pop(into, limit_);
    if (control_) observe();
    taken_item<box> got = queue_->take(limit_);
    if (!got) return got.result();
    if (measured_ && got->item) {
      const std::size_t bytes = parcel_bytes<T, Bytes>(*got);
      if (bytes > window_.largest_item) window_.largest_item = bytes;
    }
    into = std::move(*got);
    return queue_result::ok;
  }
  [[nodiscard]] std::optional<stage_failure> take_failure() noexcept {
    const std::lock_guard lock(end_mutex_);
    return std::move(end_failure_);
  }

  // --- both ------------------------------------------------------------------------------------------

  /// Wakes both sides, whose calls return stopped from now on where they would wait.
  void cancel() noexcept { stop_.request_stop(); }
  [[nodiscard]] bool is_cancelled() const noexcept { return limit_.stop.stop_requested(); }
  void append_decisions(std::vector<depth_decision>& to) const {
    if (control_) control_->append_to(to);
  }

 private:
  // Before each take of a tuned edge, by the one thread that takes.
  void observe() noexcept {
    const staging_stats now = queue_->stats();
    if (now.depth > window_.deepest) window_.deepest = now.depth;
    ++taken_;
    if (++window_.items < depth_controller::window) return;
    window_.consumer_waits = now.take.waits - take_waits_;
    window_.producer_waits = now.put.waits - put_waits_;
    take_waits_ = now.take.waits;
    put_waits_ = now.put.waits;
    const std::size_t before = control_->depth();
    const std::size_t depth = control_->decide(window_, taken_);
    if (depth != before) queue_->limit_depth(depth);
    window_ = {};
  }

  std::stop_source stop_;
  wait_limit limit_;
  std::optional<ring_type> ring_;
  std::optional<queue_type> queue_;

  std::mutex end_mutex_;
  std::uint64_t end_number_ = ~std::uint64_t{0};
  std::optional<stage_failure> end_failure_;

  std::optional<depth_controller> control_;  // the consumer's, as what follows
  bool measured_ = false;
  depth_window window_;
  std::uint64_t taken_ = 0;
  std::uint64_t take_waits_ = 0;
  std::uint64_t put_waits_ = 0;
};

/// What stands before the first segment and behind the last one.
struct no_edge {
  using item_type = void;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
