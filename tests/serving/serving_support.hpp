// Models that are counted and that know what they must hold, and atomics that stop or count on the way.
#pragma once

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/support/atomics.hpp>

namespace deeprec_test {

using deeprec::index_t;

/// The models that exist, by number, and the thread on which the last one ended.
class census {
 public:
  void begin(index_t number) {
    const std::lock_guard lock(mutex_);
    CHECK(alive_.insert(number).second);
    ++begun_;
  }
  void end(index_t number) {
    const std::lock_guard lock(mutex_);
    CHECK(alive_.erase(number) == 1);  // not twice
    last_ended_on_ = std::this_thread::get_id();
  }
  [[nodiscard]] bool has(index_t number) const {
    const std::lock_guard lock(mutex_);
    return alive_.count(number) != 0;
  }
  [[nodiscard]] std::set<index_t> alive() const {
    const std::lock_guard lock(mutex_);
    return alive_;
  }
  [[nodiscard]] index_t begun() const {
    const std::lock_guard lock(mutex_);
    return begun_;
  }
  [[nodiscard]] std::thread::id last_ended_on() const {
    const std::lock_guard lock(mutex_);
    return last_ended_on_;
  }

 private:
  mutable std::mutex mutex_;
  std::set<index_t> alive_;
  index_t begun_ = 0;
  std::thread::id last_ended_on_;
};

/// Plain memory that a number determines, so that a mix of two models, or one that was freed, is seen.
class checked_model {
 public:
  checked_model(census& all, index_t number) : all_(&all), number_(number) {
    for (std::size_t i = 0; i < words_.size(); ++i) words_[i] = word(i);
    all.begin(number);
  }
  checked_model(const checked_model&) = delete;
  checked_model& operator=(const checked_model&) = delete;
  ~checked_model() {
    words_.fill(0);
    all_->end(number_);
  }
  [[nodiscard]] index_t number() const { return number_; }
  [[nodiscard]] bool is_whole() const {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      if (words_[i] != word(i)) return false;
    }
    return true;
  }

 private:
  [[nodiscard]] std::uint64_t word(std::size_t i) const {
    return deeprec::mix64(static_cast<std::uint64_t>(number_) * 64 + i);
  }
  census* all_;
  index_t number_;
  std::array<std::uint64_t, 32> words_{};
};

/// Calls `at_access` before an access to which a name was given, and before a heavy fence.
struct interrupted_atomics : deeprec::detail::std_atomics {
  using access = deeprec::detail::access;
  inline static std::function<void(access)> at_access;  // set while nobody is in a call

  static std::memory_order at(access site, std::memory_order order) {
    if (at_access) at_access(site);
    return order;
  }
  static void heavy_fence(access site) noexcept {
    if (at_access) at_access(site);
    deeprec::detail::std_atomics::heavy_fence(site);
  }
};

/// Sets it for a time.
class interruption {
 public:
  explicit interruption(std::function<void(deeprec::detail::access)> call) {
    interrupted_atomics::at_access = std::move(call);
  }
  interruption(const interruption&) = delete;
  interruption& operator=(const interruption&) = delete;
  ~interruption() { interrupted_atomics::at_access = nullptr; }
};

/// A place where a thread stops until it may go on.
class barrier_gate {
 public:
  void pass() {
    arrived_ = true;
    while (!open_.load()) std::this_thread::yield();
  }
  void wait_for_arrival() const {
    while (!arrived_.load()) std::this_thread::yield();
  }
  void open() { open_ = true; }

 private:
  std::atomic<bool> arrived_{false}, open_{false};
};

}  // namespace deeprec_test
