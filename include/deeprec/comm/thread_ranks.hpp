// Ranks that are threads of this process: for tests, and where a model is cut over the sockets of a machine.
//
//   thread_ranks ranks(4);
//   ... on thread r: thread_rank comm = ranks.rank(r); complete(comm, x, within(30s))
//
// A message is copied once, from the sender's block to the receiver's. In tests blocks are filled with 0xDB
// once they are sent, as a network would let go of them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <deeprec/comm/communicator.hpp>
#include <deeprec/comm/detail/thread_channel.hpp>
#include <deeprec/comm/exchange.hpp>
#include <deeprec/comm/rank_values.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/queue/queue_result.hpp>
#include <deeprec/queue/wait_strategies.hpp>
#include <deeprec/support/atomics.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// What becomes of a block when it has been sent.
enum class sent_blocks : std::uint8_t {
  kept,      ///< it is as it was
  poisoned,  ///< filled with 0xDB: who reads it again is noticed
};

struct thread_ranks_options {
  sent_blocks sent = sent_blocks::kept;
  std::uint32_t generation = 0;
};

template <class Wait = adaptive_wait, class Atomics = detail::std_atomics>
class thread_ranks;

/// The end of one rank. A value: copies are the same communicator.
///
/// @threads one thread at a time for all copies
template <class Wait = adaptive_wait, class Atomics = detail::std_atomics>
class thread_rank {
  using channel = detail::thread_channel<Wait, Atomics>;

 public:
  using space = host_space;

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return channel_->size(); }
  [[nodiscard]] int most_in_flight() const noexcept { return channel::depth; }

  [[nodiscard]] status begin(exchange& x) { return channel_->begin(rank_, x); }
  [[nodiscard]] queue_result poll(exchange& x) { return channel_->poll(rank_, x); }
  [[nodiscard]] queue_result wait(exchange& x, const wait_limit& limit = {}) {
    return channel_->wait(rank_, x, limit);
  }
  [[nodiscard]] rank_list awaited(const exchange& x) const { return channel_->awaited(rank_, x); }
  void abandon(const status& why) { channel_->abandon(rank_, why); }
  /// In the order of the ranks: see sum_in_order.
  [[nodiscard]] status sum(std::span<float> values, const wait_limit& limit = {}) {
    return channel_->summing(rank_).run(*this, values, limit);
  }

  /// @error out_of_memory: this rank has none, the others have theirs
  [[nodiscard]] result<thread_rank> duplicate() {
    const index_t number = children_++;
    return detail::or_out_of_memory([&]() -> result<thread_rank> {
      return thread_rank(*ranks_, ranks_->child(*channel_, number, 0, size()), rank_);
    });
  }
  /// @error as complete(); unsupported for a negative color; out_of_memory as duplicate(), or before anything
  ///        is sent, where the others wait
  [[nodiscard]] result<thread_rank> split(int color, int key, const wait_limit& limit = {}) {
    const index_t number = children_++;
    return detail::or_out_of_memory([&] { return split_as(number, color, key, limit); });
  }

 private:
  result<thread_rank> split_as(index_t number, int color, int key, const wait_limit& limit) {
    struct entry {
      int color, key, rank;
    };
    const entry mine{color, key, rank_};
    rank_values<entry> entries(size());
    if (const status s = entries.trade(*this, number, mine, {}, limit); !s) return s.in_operation("split");
    std::vector<entry> group;
    for (int r = 0; r < size(); ++r) {
      if (entries.of(r).color == color) group.push_back(entries.of(r));
    }
    if (color < 0) return status(errc::unsupported, "split: this rank has no color");
    std::sort(group.begin(), group.end(), [](const entry& a, const entry& b) {
      return std::tie(a.key, a.rank) < std::tie(b.key, b.rank);
    });
    const auto me = std::find_if(group.begin(), group.end(), [&](const entry& e) { return e.rank == rank_; });
    return thread_rank(*ranks_, ranks_->child(*channel_, number, color, static_cast<int>(group.size())),
                       static_cast<int>(me - group.begin()));
  }

  friend class thread_ranks<Wait, Atomics>;
  thread_rank(thread_ranks<Wait, Atomics>& ranks, channel& of, int rank) noexcept
      : ranks_(&ranks), channel_(&of), rank_(rank) {}

  thread_ranks<Wait, Atomics>* ranks_;
  channel* channel_;
  int rank_;
  index_t children_ = 0;
};

/// Owns the communicators of its ranks.
///
/// @pre     outlives its ranks; a rank is taken once, and its copies are not used to duplicate or split
/// @threads rank() from any thread
/// @error   the constructor throws deeprec::error: invalid_value for fewer than one rank; and what the
///          resource throws
template <class Wait, class Atomics>
class thread_ranks {
  using channel = detail::thread_channel<Wait, Atomics>;

 public:
  explicit thread_ranks(int size, const thread_ranks_options& options = {},
                        std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : options_(options), memory_(memory), channels_(memory) {
    if (size < 1) {
      detail::raise(errc::invalid_value,
                    "thread_ranks: there must be at least 1 rank (was " + std::to_string(size) + ")");
    }
    world_ = &child_of(nullptr, 0, 0, size);
  }
  thread_ranks(const thread_ranks&) = delete;
  thread_ranks& operator=(const thread_ranks&) = delete;

  [[nodiscard]] int size() const noexcept { return world_->size(); }
  /// @pre 0 <= rank < size()
  [[nodiscard]] thread_rank<Wait, Atomics> rank(int rank) noexcept { return {*this, *world_, rank}; }

 private:
  friend class thread_rank<Wait, Atomics>;
  using name = std::tuple<const channel*, index_t, int>;  // parent, its how many-th child, color

  channel& child(const channel& parent, index_t number, int color, int size) {
    return child_of(&parent, number, color, size);
  }
  // Made by the first rank that comes.
  channel& child_of(const channel* parent, index_t number, int color, int size) {
    const std::lock_guard lock(mutex_);
    const auto [at, fresh] =
        channels_.try_emplace(name(parent, number, color), size, options_.sent == sent_blocks::poisoned,
                              options_.generation, memory_);
    static_cast<void>(fresh);
    return at->second;
  }

  thread_ranks_options options_;
  std::pmr::memory_resource* memory_;
  std::mutex mutex_;
  std::pmr::map<name, channel> channels_;
  channel* world_ = nullptr;
};

static_assert(SummingCommunicator<thread_rank<>>);

}}  // namespace deeprec::DEEPREC_ABI
