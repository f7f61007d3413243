// A bounded, thread-safe cache of plans that are costly to make, keyed by what they compute.
//
//   cache.get(query, make)    the cached plan, or the result of make(), called outside the lock
//   cache.put(query, plan)    replaces what get() returns
//
// A refusal is cached as well. A full cache evicts the least recently used entry; pointers that it returned
// stay valid.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/dense/gemm/gemm_backend.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

template <class Key, class Value>
class plan_cache {
 public:
  explicit plan_cache(std::size_t capacity) : capacity_(capacity) {}

  template <class Make>
  std::shared_ptr<const Value> get(const Key& key, Make&& make) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto at = entries_.find(key); at != entries_.end()) {
        at->second.used = ++clock_;
        ++found_;
        return at->second.value;
      }
    }
    std::shared_ptr<const Value> value = make();
    const std::lock_guard lock(mutex_);
    const auto [at, first] = entries_.try_emplace(key);
    if (first) {
      at->second.value = std::move(value);
      ++made_;
    }
    at->second.used = ++clock_;
    std::shared_ptr<const Value> kept = at->second.value;
    if (entries_.size() > capacity_) drop_oldest();
    return kept;
  }

  void put(const Key& key, std::shared_ptr<const Value> value) {
    const std::lock_guard lock(mutex_);
    entry& at = entries_[key];
    at.value = std::move(value);
    at.used = ++clock_;
    ++made_;
    if (entries_.size() > capacity_) drop_oldest();
  }

  /// Removes a value if it is still the key's, so that the next get() makes it again: for a plan that failed
  /// for a transient reason.
  void forget(const Key& key, const std::shared_ptr<const Value>& value) {
    const std::lock_guard lock(mutex_);
    if (const auto at = entries_.find(key); at != entries_.end() && at->second.value == value)
      entries_.erase(at);
  }

  [[nodiscard]] gemm_cache_report report() const {
    const std::lock_guard lock(mutex_);
    return {entries_.size(), made_, found_, dropped_, capacity_};
  }

 private:
  struct entry {
    std::shared_ptr<const Value> value;
    std::uint64_t used = 0;
  };
  struct hasher {
    std::size_t operator()(const Key& key) const noexcept { return static_cast<std::size_t>(hash_of(key)); }
  };

  void drop_oldest() {
    auto oldest = entries_.begin();
    for (auto at = entries_.begin(); at != entries_.end(); ++at) {
      if (at->second.used < oldest->second.used) oldest = at;
    }
    entries_.erase(oldest);
    ++dropped_;
  }

  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::unordered_map<Key, entry, hasher> entries_;
  std::uint64_t clock_ = 0;
  std::size_t made_ = 0, found_ = 0, dropped_ = 0;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
