// Exclusive access to a slot: to fill it in place (ring_claim) or to read it in place (ring_view).
#pragma once

#include <memory>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// A free slot of a ring, owned by the caller until publish(). A claim destroyed unpublished delivers
/// nothing.
///
/// @threads one thread
template <class Ring>
class ring_claim {
 public:
  using value_type = typename Ring::value_type;
  ring_claim() noexcept = default;
  ring_claim(Ring* ring, typename Ring::token slot) noexcept : ring_(ring), slot_(slot) {}
  ring_claim(ring_claim&& other) noexcept
      : ring_(std::exchange(other.ring_, nullptr)),
        slot_(other.slot_),
        item_(std::exchange(other.item_, nullptr)) {}
  ring_claim& operator=(ring_claim&& other) noexcept {
    if (this != &other) {
      abandon();
      ring_ = std::exchange(other.ring_, nullptr);
      slot_ = other.slot_;
      item_ = std::exchange(other.item_, nullptr);
    }
    return *this;
  }
  ~ring_claim() { abandon(); }

  /// True when there is a slot.
  explicit operator bool() const noexcept { return ring_ != nullptr; }

  /// Constructs the item. May throw what its constructor throws; the claim stays valid.
  /// @pre a slot, and no item in it yet
  template <class... Args>
  value_type& emplace(Args&&... args) {
    DEEPREC_EXPECTS(ring_ != nullptr && item_ == nullptr);
    item_ = ::new (Ring::place_of(slot_)) value_type(std::forward<Args>(args)...);
    return *item_;
  }

  /// Makes the item available to the consumers.
  /// @pre emplace() was called
  void publish() noexcept {
    DEEPREC_EXPECTS(ring_ != nullptr && item_ != nullptr);
    item_ = nullptr;
    std::exchange(ring_, nullptr)->finish_push(slot_);
  }

 private:
  void abandon() noexcept {
    if (ring_ == nullptr) return;
    if (item_ != nullptr) std::destroy_at(item_);
    item_ = nullptr;
    std::exchange(ring_, nullptr)->abandon_push(slot_);
  }

  Ring* ring_ = nullptr;
  typename Ring::token slot_{};
  value_type* item_ = nullptr;
};

/// The next item of a ring, read in place. Destroying the view destroys the item and frees its slot.
///
/// @threads one thread
template <class Ring>
class ring_view {
 public:
  using value_type = typename Ring::value_type;
  ring_view() noexcept = default;
  ring_view(Ring* ring, typename Ring::token slot) noexcept : ring_(ring), slot_(slot) {}
  ring_view(ring_view&& other) noexcept : ring_(std::exchange(other.ring_, nullptr)), slot_(other.slot_) {}
  ring_view& operator=(ring_view&& other) noexcept {
    if (this != &other) {
      release();
      ring_ = std::exchange(other.ring_, nullptr);
      slot_ = other.slot_;
    }
    return *this;
  }
  ~ring_view() { release(); }

  /// True when there is an item.
  explicit operator bool() const noexcept { return ring_ != nullptr; }
  [[nodiscard]] value_type& operator*() const noexcept { return *Ring::item_of(slot_); }
  [[nodiscard]] value_type* operator->() const noexcept { return Ring::item_of(slot_); }

  /// Ends the view early.
  void release() noexcept {
    if (ring_ == nullptr) return;
    std::destroy_at(Ring::item_of(slot_));
    std::exchange(ring_, nullptr)->finish_pop(slot_);
  }

 private:
  Ring* ring_ = nullptr;
  typename Ring::token slot_{};
};

}}  // namespace deeprec::DEEPREC_ABI
