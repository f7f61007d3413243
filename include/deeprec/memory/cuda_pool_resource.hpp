// Device memory without a call to the driver for each block: a freed block goes to the stream that used it
// last, and another stream that takes it waits for that stream first.
//
//   deallocate(p, s)      block ──> free list of s                       no event yet
//   allocate(n, s)        own list: no wait, stream order is enough
//   allocate(n, t)        from the list of s: record an event on s now, t waits for it; only then
//
// Blocks are cut from slabs, best fit, and free neighbours of one stream are merged again. Slabs are device
// memory, or page-locked host memory, which devices reach as well. Not here: managed memory, pinned memory
// without streams (cuda_memory.hpp); captures: a graph keeps using its blocks, which no event reports, so
// allocate before a capture and free when the graph has ended.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/memory/cuda_runtime.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Memory of a pool, in bytes, and its numbers of events and of searched blocks.
struct stream_pool_report {
  std::size_t reserved = 0;  ///< from the runtime
  std::size_t in_use = 0;    ///< of these, allocated now
  index_t events = 0;        ///< recorded because one stream took a block that another had used
  index_t searched = 0;      ///< free blocks that searches have examined: one for each stream at most
};

/// A pool of memory of the device that is current when the pool is made; its streams are of that device.
///
/// @threads thread-safe; blocks of one stream are allocated and freed in the order of that stream. No stream
///          that the pool knows may begin a capture while another thread is in a call; forget(stream) makes
///          it unknown
class cuda_pool_resource {
 public:
  static constexpr std::size_t alignment = 256;

  enum class slabs_in : unsigned char { device, pinned };

  /// @param slab the least number of bytes requested from the runtime at once
  explicit cuda_pool_resource(std::size_t slab = std::size_t{32} << 20, slabs_in where = slabs_in::device)
      : slab_(round_up((std::min)(slab, most_bytes))), where_(where) {}
  cuda_pool_resource(const cuda_pool_resource&) = delete;
  cuda_pool_resource& operator=(const cuda_pool_resource&) = delete;
  /// @pre the streams have finished with the memory
  ~cuda_pool_resource() {
    const scope here(device_);
    for (const auto& [event_stream, event] : events_) cuda_runtime::end_event(event);
    for (void* const slab : slabs_) end_slab(slab);
  }

  /// A block for work that is enqueued on a stream from now on.
  ///
  /// @post    aligned to 256 bytes
  /// @cost    O(log blocks), and where the stream has no free block that fits, for each stream that has free
  ///          ones; queries whether the stream is capturing; memory is requested from the runtime only when
  ///          no free block is large enough
  /// @threads thread-safe
  /// @error   unsupported in a capture, and for a handle that is a different stream in each thread
  ///          (cudaStreamPerThread; the null stream under --default-stream per-thread is one, too, but can't
  ///          be detected); out_of_memory, also where `bytes` do not fit an address space; device_error.
  ///          On an error nothing is allocated
  [[nodiscard]] status allocate(std::size_t bytes, cudaStream_t on, void*& out) {
    if (bytes > most_bytes) {
      return {errc::out_of_memory, "cuda_pool_resource: bytes must fit an address space"};
    }
    const std::lock_guard lock(mutex_);
    const scope here(device_);
    if (!here.made().ok()) return here.made();
    if (const status s = serves(on); !s) return s;
    const std::size_t size = round_up((std::max)(bytes, std::size_t{1}));
    auto found = best_fit(size, on);
    if (found == blocks_.end()) {
      status s = grow(size, on, found);
      if (s.code() == errc::out_of_memory && trim_slabs().ok()) s = grow(size, on, found);
      if (!s) return s;
    }
    if (const status s = hand_over(found->second, on); !s) return s;
    take(found, size);
    out = found->first;
    return {};
  }

  /// Gives a block back. Work enqueued on the stream so far may still use it.
  ///
  /// @pre     the block came from allocate, and all its uses precede this call in the order of stream `on`,
  ///          except uses on streams registered by also_used_on
  /// @cost    O(log blocks); no event
  /// @threads thread-safe
  /// @error   invalid_value for a pointer that is not of this pool, or free already; as allocate for the
  ///          stream: in a capture the caller keeps the block
  [[nodiscard]] status deallocate(void* memory, cudaStream_t on) {
    const std::lock_guard lock(mutex_);
    if (const status s = serves(on); !s) return s;
    const auto found = blocks_.find(static_cast<std::byte*>(memory));
    if (found == blocks_.end() || found->second.free) {
      return {errc::invalid_value, "cuda_pool_resource: the block must be one of the pool and in use"};
    }
    block& freed = found->second;
    in_use_ -= freed.size;
    freed.free = true;
    freed.users.insert(on);
    freed.owner = on;
    merge(found);
    return {};
  }

  /// Registers another stream that uses the block: it is waited for before a different stream gets the block.
  ///
  /// @cost    O(log blocks)
  /// @threads thread-safe
  /// @error   invalid_value for a pointer that is not of this pool, or free; as allocate for the stream
  [[nodiscard]] status also_used_on(void* memory, cudaStream_t on) {
    const std::lock_guard lock(mutex_);
    if (const status s = serves(on); !s) return s;
    const auto found = blocks_.find(static_cast<std::byte*>(memory));
    if (found == blocks_.end() || found->second.free) {
      return {errc::invalid_value, "cuda_pool_resource: the block must be one of the pool and in use"};
    }
    found->second.users.insert(on);
    return {};
  }

  /// Forgets a stream that will be destroyed: waits for it, so that its blocks are free for every stream.
  ///
  /// @cost    waits for the stream
  /// @threads thread-safe
  /// @error   as allocate for the stream; device_error
  [[nodiscard]] status forget(cudaStream_t on) {
    const std::lock_guard lock(mutex_);
    const scope here(device_);
    if (!here.made().ok()) return here.made();
    if (const status s = serves(on); !s) return s;
    if (const status s = cuda_runtime::synchronize(on); !s) return s;
    for (auto& [place, held] : blocks_) held.users.erase(on);
    if (const auto event = events_.find(on); event != events_.end()) {
      cuda_runtime::end_event(event->second);
      events_.erase(event);
    }
    return {};
  }

  /// Gives slabs without used blocks back to the runtime.
  ///
  /// @cost    waits for the streams that used free blocks
  /// @threads thread-safe
  /// @error   unsupported while one of them captures; device_error
  [[nodiscard]] status trim() {
    const std::lock_guard lock(mutex_);
    const scope here(device_);
    if (!here.made().ok()) return here.made();
    return trim_slabs();
  }

  [[nodiscard]] stream_pool_report report() const {
    const std::lock_guard lock(mutex_);
    return {reserved_, in_use_, recorded_, searched_};
  }

 private:
  using scope = detail::device_scope;
  struct block {
    std::size_t size;
    bool free;
    bool begins_slab;    // the block before belongs to another slab
    cudaStream_t owner;  // the stream whose list it is in
    std::set<cudaStream_t>
        users;  // streams that may still use it; a stream that takes it waits for the others
  };
  using blocks = std::map<std::byte*, block>;
  // Free blocks by stream, size and address.
  using entry = std::tuple<cudaStream_t, std::size_t, std::byte*>;

  // The largest size that can be rounded up.
  static constexpr std::size_t most_bytes = (std::numeric_limits<std::size_t>::max)() - (alignment - 1);
  static constexpr std::size_t round_up(std::size_t bytes) {
    return (bytes + alignment - 1) / alignment * alignment;
  }
  static entry entry_of(const blocks::value_type& b) { return {b.second.owner, b.second.size, b.first}; }

  static bool captures(cudaStream_t on) {
    bool answer = true;
    return !cuda_runtime::capturing(answer, on).ok() || answer;
  }
  static status serves(cudaStream_t on) {
    if (!cuda_runtime::is_one_stream(on)) {
      return {errc::unsupported,
              "cuda_pool_resource: the stream must not be the per-thread default; make a stream"};
    }
    bool capturing = false;
    if (const status s = cuda_runtime::capturing(capturing, on); !s) return s;
    if (!capturing) return {};
    return {errc::unsupported,
            "cuda_pool_resource: must not be used in a capture; allocate before it, give back when the "
            "graph has ended"};
  }

  // The smallest block that is large enough: of the stream itself first, then one no longer in use, then of
  // any other stream. Skips blocks whose streams are capturing: they can't be waited for.
  blocks::iterator best_fit(std::size_t size, cudaStream_t on) {
    const auto held_up = [&](const block& b) {
      return std::any_of(b.users.begin(), b.users.end(),
                         [&](cudaStream_t user) { return user != on && captures(user); });
    };
    const auto own = free_.lower_bound(entry(on, size, nullptr));
    if (own != free_.end() && std::get<0>(*own) == on) {
      const auto fits = blocks_.find(std::get<2>(*own));
      ++searched_;
      if (!held_up(fits->second)) return fits;
    }
    auto best = blocks_.end();
    const auto busy = [&](const block& b) { return !b.users.empty(); };
    for (auto at = free_.begin(); at != free_.end();) {
      const cudaStream_t owner = std::get<0>(*at);
      ++searched_;
      at = free_.lower_bound(entry(owner, size, nullptr));
      if (at != free_.end() && std::get<0>(*at) == owner) {
        const auto candidate = blocks_.find(std::get<2>(*at));
        const auto rank = [&](const block& b) { return std::pair(busy(b), b.size); };
        if ((best == blocks_.end() || rank(candidate->second) < rank(best->second)) &&
            !held_up(candidate->second)) {
          best = candidate;
        }
      }
      at = free_.lower_bound(entry(owner, (std::numeric_limits<std::size_t>::max)(), nullptr));
    }
    return best;
  }

  status make_slab(void*& made, std::size_t bytes) const {
    return where_ == slabs_in::pinned ? cuda_runtime::pinned_allocate(made, bytes)
                                      : cuda_runtime::allocate(made, bytes);
  }
  void end_slab(void* slab) const {
    where_ == slabs_in::pinned ? cuda_runtime::pinned_deallocate(slab) : cuda_runtime::deallocate(slab);
  }
  status grow(std::size_t size, cudaStream_t on, blocks::iterator& made) {
    slabs_.reserve(slabs_.size() + 1);  // throws before there is a slab to leak
    void* slab = nullptr;
    std::size_t bytes = (std::max)(size, slab_);
    status s = make_slab(slab, bytes);
    if (s.code() == errc::out_of_memory && bytes > size) s = make_slab(slab, bytes = size);
    if (!s) return s;
    slabs_.push_back(slab);
    reserved_ += bytes;
    made = blocks_.emplace(static_cast<std::byte*>(slab), block{bytes, true, true, on, {}}).first;
    free_.insert(entry_of(*made));
    return {};
  }

  // Once the streams have finished with the free blocks, neighbours are merged whichever stream owned them.
  status trim_slabs() {
    for (const auto& [place, held] : blocks_) {
      if (held.free && std::any_of(held.users.begin(), held.users.end(), captures)) {
        return {errc::unsupported, "cuda_pool_resource: no stream that used a free block must be capturing"};
      }
    }
    for (auto& [place, held] : blocks_) {
      if (!held.free) continue;
      for (const cudaStream_t user : held.users) {
        if (const status s = cuda_runtime::synchronize(user); !s) return s;
      }
      held.users.clear();
    }
    free_.clear();
    for (auto at = blocks_.begin(); at != blocks_.end();) {
      auto next = std::next(at);
      while (at->second.free && next != blocks_.end() && next->second.free && !next->second.begins_slab) {
        at->second.size += next->second.size;
        next = blocks_.erase(next);
      }
      const bool whole = at->second.begins_slab && (next == blocks_.end() || next->second.begins_slab);
      if (at->second.free && whole) {
        slabs_.erase(std::find(slabs_.begin(), slabs_.end(), static_cast<void*>(at->first)));
        reserved_ -= at->second.size;
        end_slab(at->first);
        blocks_.erase(at);
      } else if (at->second.free) {
        free_.insert(entry_of(*at));
      }
      at = next;
    }
    return {};
  }

  // Lazy: events are recorded only here, when one stream takes a block that others may still use.
  status hand_over(block& taken, cudaStream_t to) {
    for (const cudaStream_t user : taken.users) {
      if (user == to) continue;
      const auto [event, is_new] = events_.try_emplace(user);
      if (is_new) {
        if (const status s = cuda_runtime::make_event(event->second, false); !s) {
          events_.erase(event);
          return s;
        }
      }
      if (const status s = cuda_runtime::record(event->second, user); !s) return s;
      if (const status s = cuda_runtime::wait(to, event->second); !s) return s;
      ++recorded_;
    }
    return {};
  }

  // Takes the front of a free block; the rest stays in its list.
  void take(blocks::iterator at, std::size_t size) {
    free_.erase(entry_of(*at));
    block& taken = at->second;
    if (taken.size > size) {
      block rest = taken;
      rest.size -= size;
      rest.begins_slab = false;
      free_.insert(entry_of(*blocks_.emplace(at->first + size, std::move(rest)).first));
      taken.size = size;
    }
    taken.free = false;
    taken.users.clear();
    in_use_ += size;
  }

  // Free neighbours of one stream become one block.
  void merge(blocks::iterator at) {
    const auto fits = [&](const block& a, const block& b) { return b.free && b.owner == a.owner; };
    if (const auto next = std::next(at);
        next != blocks_.end() && !next->second.begins_slab && fits(at->second, next->second)) {
      free_.erase(entry_of(*next));
      at->second.size += next->second.size;
      at->second.users.merge(next->second.users);
      blocks_.erase(next);
    }
    if (!at->second.begins_slab) {
      const auto before = std::prev(at);
      if (fits(at->second, before->second)) {
        free_.erase(entry_of(*before));
        before->second.size += at->second.size;
        before->second.users.merge(at->second.users);
        blocks_.erase(at);
        at = before;
      }
    }
    free_.insert(entry_of(*at));
  }

  int device_ = detail::current_device();
  std::size_t slab_;
  slabs_in where_;
  mutable std::mutex mutex_;
  blocks blocks_;  // free or not, by address: they cover the slabs
  std::set<entry> free_;
  std::map<cudaStream_t, cudaEvent_t> events_;
  std::vector<void*> slabs_;
  std::size_t reserved_ = 0;
  std::size_t in_use_ = 0;
  index_t recorded_ = 0;
  index_t searched_ = 0;
};

}}  // namespace deeprec::DEEPREC_ABI
