// A bounded queue for one producer thread and one consumer thread: the fastest one, without locks.
//
//   capacity <= 64   a flag in each slot          one cache line moves per item: best latency, as for staging
//   beyond           two counters, each side      many items per cache line moved: best throughput
//                    with a copy of the other
//
// The interface of mpmc_ring (try_, blocking, in place, in bulk) without close(): the only producer can push
// a last item. Not here: several threads on a side (mpmc_ring.hpp).
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <memory_resource>
#include <optional>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/queue/detail/spsc_slots.hpp>
#include <deeprec/queue/ring_handles.hpp>
#include <deeprec/queue/wait_strategies.hpp>
#include <deeprec/queue/waiting_room.hpp>
#include <deeprec/support/atomics.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

enum class spsc_layout : unsigned char { automatic, counters, flags };

/// @pre     capacity >= 1; at most one thread pushes and one pops at a time; both are of one process
///          (event_count)
/// @cost    memory: one block from the resource, at construction
/// @threads push side: one thread at a time; pop side: one thread at a time
/// @error   invalid_value: a capacity of 0, or too large for the counters or for one block of memory, thrown
///          as deeprec::error; throws what the resource throws
template <class T, class Wait = adaptive_wait, class Atomics = detail::std_atomics, class Seq = std::size_t>
class spsc_ring {
  static_assert(std::is_nothrow_destructible_v<T>,
                "deeprec::spsc_ring: the item's destructor may throw. Fix: make it noexcept");
  static constexpr auto relaxed = std::memory_order_relaxed;
  static constexpr auto acquire = std::memory_order_acquire;
  static constexpr auto release = std::memory_order_release;
  static constexpr std::size_t line = 64;
  using slots = detail::spsc_slots<T, Atomics, Seq>;
  using flagged_slot = typename slots::flagged_slot;

 public:
  using value_type = T;
  using token = T*;

  explicit spsc_ring(std::size_t capacity,
                     std::pmr::memory_resource* memory = std::pmr::get_default_resource(),
                     spsc_layout layout = spsc_layout::automatic, Seq first = 0)
      : flags_(layout == spsc_layout::automatic ? capacity <= 64 : layout == spsc_layout::flags),
        capacity_(slots::checked(capacity, flags_)),
        memory_(memory),
        pushed_(first),
        released_(first) {
    slots_ = static_cast<std::byte*>(memory_->allocate(slots::bytes(capacity_, flags_), slots::alignment));
    producer_.count = producer_.other = consumer_.count = consumer_.other = first;
    if (flags_) {
      for (std::size_t i = 0; i < capacity_; ++i) ::new (slots_ + i * slots::flag_stride) flagged_slot;
    }
  }
  ~spsc_ring() {
    while (T* item = next_item()) {
      std::destroy_at(item);
      free_item(item);
    }
    if (flags_) {
      for (std::size_t i = 0; i < capacity_; ++i) std::destroy_at(flagged(i));
    }
    memory_->deallocate(slots_, slots::bytes(capacity_, flags_), slots::alignment);
  }
  spsc_ring(const spsc_ring&) = delete;
  spsc_ring& operator=(const spsc_ring&) = delete;

  /// Moves (or copies) the item in. Returns false, with the item untouched, when the ring is full.
  ///
  /// @cost    a store; the other side's line is read once per lap, or once per item for flags
  /// @threads the producer, wait-free
  /// @error   throws what T's constructor throws: nothing was pushed
  template <class U>
  bool try_push(U&& item) {
    return try_emplace(std::forward<U>(item));
  }
  template <class... Args>
  bool try_emplace(Args&&... args) {
    T* const place = free_slot();
    if (place == nullptr) return false;
    push_at(place, std::forward<Args>(args)...);
    return true;
  }

  /// The same, waiting while the ring is full. Unless the result is ok the item is untouched.
  ///
  /// @threads the producer
  /// @error   timed_out, stopped; throws as try_push does
  template <class U>
  queue_result push(U&& item, const wait_limit& limit = {}) {
    T* place = free_slot();
    if (place == nullptr) [[unlikely]] {
      const queue_result r = wait_for_space(limit);
      if (r != queue_result::ok) return r;
      place = free_slot();
    }
    push_at(place, std::forward<U>(item));
    return queue_result::ok;
  }

  /// Moves the next item out; returns nullopt (false) when the ring is empty.
  ///
  /// @cost    a store; as for try_push
  /// @threads the consumer, wait-free
  /// @error   throws what T's move throws: the item stays in the ring
  std::optional<T> try_pop() {
    std::optional<T> item;
    if (T* front = next_item()) {
      item.emplace(std::move(*front));
      end_item(front);
    }
    return item;
  }
  bool try_pop(T& item) {
    T* const front = next_item();
    if (front == nullptr) return false;
    item = std::move(*front);
    end_item(front);
    return true;
  }

  /// The same, waiting while the ring is empty.
  ///
  /// @threads the consumer
  /// @error   timed_out, stopped; throws as try_pop does
  queue_result pop(T& item, const wait_limit& limit = {}) {
    T* front = next_item();
    if (front == nullptr) [[unlikely]] {
      const queue_result r = wait_for_item(limit);
      if (r != queue_result::ok) return r;
      front = next_item();
    }
    item = std::move(*front);
    end_item(front);
    return queue_result::ok;
  }

  /// A free slot to fill in place; one at a time.
  ///
  /// @threads the producer, wait-free
  /// @error   an empty claim: full
  ring_claim<spsc_ring> try_claim() noexcept {
    T* const place = free_slot();
    return place != nullptr ? ring_claim<spsc_ring>(this, place) : ring_claim<spsc_ring>();
  }
  /// The next item in place; one at a time.
  ///
  /// @threads the consumer, wait-free
  /// @error   an empty view: the ring is empty
  ring_view<spsc_ring> try_peek() noexcept {
    T* const item = next_item();
    return item != nullptr ? ring_view<spsc_ring>(this, item) : ring_view<spsc_ring>();
  }

  /// Moves in up to n items from `first` on; returns their number. The counter layout publishes them with one
  /// store, the flag layout one by one, as try_push does.
  ///
  /// @threads the producer, wait-free
  /// @error   throws as try_push does; the items before that one are published
  template <class It>
  std::size_t try_push_n(It first, std::size_t n) {
    if (flags_) {
      std::size_t done = 0;
      while (done < n && try_emplace(std::move(*first))) ++first, ++done;
      return done;
    }
    const std::size_t room = capacity_ - static_cast<Seq>(producer_.count - producer_.other);
    // acquire: as in free_slot()
    if (room < n) producer_.other = released_.load(Atomics::at(detail::access::taken_seen_n, acquire));
    batch_end<&spsc_ring::publish_count> done{this, &producer_, 0};
    const std::size_t free = capacity_ - static_cast<Seq>(producer_.count - producer_.other);
    const std::size_t count = n < free ? n : free;
    std::size_t index = producer_.index;
    for (; done.items < count; ++first) {
      ::new (static_cast<void*>(item_at(index))) T(std::move(*first));
      index = index + 1 == capacity_ ? 0 : index + 1;
      ++done.items;
    }
    return count;
  }
  /// Moves out up to n items to `out`; returns their number. The counter layout releases them with one store,
  /// the flag layout one by one, as try_pop does.
  ///
  /// @threads the consumer, wait-free
  /// @error   throws as try_pop does; the items before that one are at `out`
  template <class It>
  std::size_t try_pop_n(It out, std::size_t n) {
    if (flags_) {
      std::size_t done = 0;
      for (; done < n; ++done, ++out) {
        T* const front = next_item();
        if (front == nullptr) break;
        *out = std::move(*front);
        end_item(front);
      }
      return done;
    }
    const std::size_t there = static_cast<Seq>(consumer_.other - consumer_.count);
    // acquire: as in next_item()
    if (there < n) consumer_.other = pushed_.load(Atomics::at(detail::access::count_seen_n, acquire));
    batch_end<&spsc_ring::release_count> done{this, &consumer_, 0};
    const std::size_t full = static_cast<Seq>(consumer_.other - consumer_.count);
    const std::size_t count = n < full ? n : full;
    std::size_t index = consumer_.index;
    for (; done.items < count; ++out) {
      T* const front = item_at(index);
      *out = std::move(*front);
      std::destroy_at(front);
      index = index + 1 == capacity_ ? 0 : index + 1;
      ++done.items;
    }
    return count;
  }

  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
  /// @post    between 0 and capacity; a snapshot
  [[nodiscard]] std::size_t was_size() const noexcept {
    if (flags_) {
      std::size_t n = 0;
      for (std::size_t i = 0; i < capacity_; ++i) {
        n += flagged(i)->full.load(Atomics::at(detail::access::statistic, relaxed));
      }
      return n;
    }
    // acquire, with the consumer's release store: the consumer had seen at least that many pushed.
    const Seq released = released_.load(Atomics::at(detail::access::taken_seen_size, acquire));
    const std::size_t n =
        static_cast<Seq>(pushed_.load(Atomics::at(detail::access::looked_at, relaxed)) - released);
    return n < capacity_ ? n : capacity_;
  }
  [[nodiscard]] wait_counts push_waits() const noexcept { return space_.counts(); }
  [[nodiscard]] wait_counts pop_waits() const noexcept { return items_.counts(); }

 private:
  friend ring_claim<spsc_ring>;
  friend ring_view<spsc_ring>;

  // The private state of one side.
  struct side {
    std::size_t index = 0;  // of its next slot
    Seq count = 0;          // how many it has published (released)
    Seq other = 0;          // the other side's count, as last read
  };
  // Publishes the items of a batch, also when a move throws partway.
  template <auto Publish>
  struct batch_end {
    spsc_ring* ring;
    side* mine;
    std::size_t items;
    ~batch_end() {
      if (items == 0) return;
      mine->index += items;
      if (mine->index >= ring->capacity_) mine->index -= ring->capacity_;
      mine->count = static_cast<Seq>(mine->count + items);
      (ring->*Publish)();
    }
  };

  // Re-reads the other side's counter less often while waiting: each read takes the cache line from the
  // writer, and several items at once are cheaper than one at a time.
  void hold_off() const noexcept {
    if (flags_) return;
    for (int i = 0; i < 6; ++i) Atomics::relax();
  }
  // The wait only checks for a slot: an item whose address is passed to the wait is kept in memory, not in a
  // register, by every call, also by those that need not wait.
  queue_result wait_for_space(const wait_limit& limit) {
    return space_.wait_for([this] { return hold_off(), found(free_slot()); }, limit, detail::wake_nobody{});
  }
  queue_result wait_for_item(const wait_limit& limit) {
    return items_.wait_for([this] { return hold_off(), found(next_item()); }, limit, detail::wake_nobody{});
  }
  static queue_result found(const T* slot) noexcept {
    return slot != nullptr ? queue_result::ok : queue_result::not_now;
  }

  [[nodiscard]] T* item_at(std::size_t index) const noexcept {
    return reinterpret_cast<T*>(slots_ + index * sizeof(T));
  }
  // With counters, lines that the other side has finished with are prefetched eight lines ahead.
  static constexpr std::size_t items_ahead = sizeof(T) < line ? 8 * (line / sizeof(T)) : 8;
  [[nodiscard]] const void* ahead(std::size_t index) const noexcept {
    index += items_ahead;
    return slots_ + (index < capacity_ ? index : index - capacity_) * sizeof(T);
  }
  [[nodiscard]] flagged_slot* flagged(std::size_t index) const noexcept {
    return std::launder(reinterpret_cast<flagged_slot*>(slots_ + index * slots::flag_stride));
  }
  static void* place_of(T* slot) noexcept { return slot; }
  static T* item_of(T* slot) noexcept { return std::launder(slot); }

  T* free_slot() noexcept {
    if (flags_) {
      flagged_slot* s = flagged(producer_.index);
      // acquire, with the consumer's release store: it has finished with the previous item.
      if (s->full.load(Atomics::at(detail::access::flag_seen_free, acquire)) != 0) return nullptr;
      return reinterpret_cast<T*>(s->bytes);
    }
    if (static_cast<Seq>(producer_.count - producer_.other) == capacity_) {
      // acquire, with the consumer's release store: it has finished with the previous items.
      producer_.other = released_.load(Atomics::at(detail::access::taken_seen, acquire));
      if (static_cast<Seq>(producer_.count - producer_.other) == capacity_) return nullptr;
    }
    if (static_cast<Seq>(producer_.count - producer_.other) + items_ahead < capacity_) {
      Atomics::fetch_for_write(ahead(producer_.index));
    }
    return item_at(producer_.index);
  }
  template <class... Args>
  void push_at(T* place, Args&&... args) {
    ::new (static_cast<void*>(place)) T(std::forward<Args>(args)...);
    finish_push(place);
  }
  void finish_push(T*) noexcept {
    const std::size_t index = producer_.index;
    producer_.index = index + 1 == capacity_ ? 0 : index + 1;
    if (flags_) {
      // release: the item is complete.
      flagged(index)->full.store(1, Atomics::at(detail::access::flag_publish, release));
      items_.notify_one();
    } else {
      ++producer_.count;
      publish_count();
    }
  }
  void publish_count() noexcept {
    // release: the items are complete.
    pushed_.store(producer_.count, Atomics::at(detail::access::count_publish, release));
    items_.notify_one();
  }
  void abandon_push(T*) noexcept {}

  T* next_item() noexcept {
    if (flags_) {
      flagged_slot* s = flagged(consumer_.index);
      // acquire, with the producer's release store: the item is complete.
      if (s->full.load(Atomics::at(detail::access::flag_seen_full, acquire)) == 0) return nullptr;
      return std::launder(reinterpret_cast<T*>(s->bytes));
    }
    if (consumer_.count == consumer_.other) {
      // acquire, with the producer's release store: the items are complete.
      consumer_.other = pushed_.load(Atomics::at(detail::access::count_seen, acquire));
      if (consumer_.count == consumer_.other) return nullptr;
    }
    if (static_cast<Seq>(consumer_.other - consumer_.count) > items_ahead) {
      Atomics::fetch(ahead(consumer_.index));
    }
    return std::launder(item_at(consumer_.index));
  }
  void end_item(T* item) noexcept {
    std::destroy_at(item);
    finish_pop(item);
  }
  void finish_pop(T* item) noexcept {
    free_item(item);
    space_.notify_one();
  }
  void free_item(T*) noexcept {
    const std::size_t index = consumer_.index;
    consumer_.index = index + 1 == capacity_ ? 0 : index + 1;
    if (flags_) {
      // release: the item was read and destroyed before.
      flagged(index)->full.store(0, Atomics::at(detail::access::flag_release, release));
    } else {
      ++consumer_.count;
      // release: as above
      released_.store(consumer_.count, Atomics::at(detail::access::taken_publish, release));
    }
  }
  void release_count() noexcept {
    // release: the items were read and destroyed before.
    released_.store(consumer_.count, Atomics::at(detail::access::taken_publish_n, release));
    space_.notify_one();
  }

  // Never written after construction: the line stays shared by both cores.
  const bool flags_;
  const std::size_t capacity_;
  std::pmr::memory_resource* const memory_;
  std::byte* slots_ = nullptr;
  waiting_room<Wait, Atomics, 1> items_;  // the consumer waits here
  waiting_room<Wait, Atomics, 1> space_;  // the producer waits here
  alignas(2 * line) side producer_;
  alignas(2 * line) typename Atomics::template atomic<Seq> pushed_;
  alignas(2 * line) side consumer_;
  alignas(2 * line) typename Atomics::template atomic<Seq> released_;
  [[maybe_unused]] std::byte gap_[2 * line - sizeof(Seq)];
};

}}  // namespace deeprec::DEEPREC_ABI
