// The ops of a run by rank: who takes one takes that of the longest way to the end. Cheap ops go as chains.
//
//   place by rank                  0 1 2 3 4 ...    costs 40 us: an op of its own
//   bits                           0 1 0 0 1 ...    costs 1 us each: a chain of as many as are worth a call
//   words that have bits           1 ...
//
// What a thread keeps for itself: of the ops that its last one made ready that of the highest rank, and a
// chain of cheap ones. The chain goes to everybody when it is worth a call, when the thread has run for as
// long as a call costs without coming to it, and before an op that takes as long. A ready set of op_runner.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/plan/detail/ready_ops.hpp>
#include <deeprec/support/atomics.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// What ranked_ops knows of the ops; changed between runs only.
struct op_ranks {
  std::span<const std::int32_t> place;  // of an op, by descending rank
  std::span<const std::int32_t> at;     // the op at a place
  std::span<const float> cost;          // of an op, ns
  std::span<const float> rank;          // of an op, ns: its cost and the longest way behind it
  float quota = 0;                      // ns: what a call of a helper costs
};

/// @threads every member but restart and first: any
template <class Atomics = std_atomics>
class ranked_ops {
 public:
  using word = typename Atomics::template atomic<std::uint64_t>;
  struct local {
    std::int32_t next = no_op;
    std::int32_t chain = no_op;  // the first; the rest in next_
    float chained = 0;           // ns of the chain
    float passed = 0;            // ns that the thread ran since the chain began
  };

  /// @param ranks  outlives this
  /// @param words  raw memory: words_for(ops)
  /// @param next   one for each op
  ranked_ops(const op_ranks& ranks, std::span<word> words, std::span<std::int32_t> next) noexcept
      : ranks_(&ranks), next_(next) {
    const std::size_t n = parts(next.size());
    words_ = words.first(n);
    filled_ = words.subspan(n);
    for (word& w : words) ::new (&w) word(0);
  }
  static constexpr std::size_t words_for(std::size_t ops) noexcept { return parts(ops) + parts(parts(ops)); }

  void restart() noexcept {
    const auto order = Atomics::at(access::looked_at, std::memory_order_relaxed);
    for (word& w : words_) w.store(0, order);
    for (word& w : filled_) w.store(0, order);
  }
  void first(std::int32_t op) noexcept {
    next_[index(op)] = no_op;
    add(op);
  }

  void enter(local&) noexcept {}
  void leave(local&) noexcept {}
  void made_ready(local& mine, std::int32_t op, int& published) noexcept {
    if (mine.next == no_op) {
      mine.next = op;
      return;
    }
    if (ranks_->place[index(op)] < ranks_->place[index(mine.next)]) std::swap(op, mine.next);
    if (ranks_->cost[index(op)] >= ranks_->quota) {
      first(op);
      ++published;
      return;
    }
    next_[index(op)] = std::exchange(mine.chain, op);
    mine.chained += ranks_->cost[index(op)];
    if (mine.chained >= ranks_->quota) publish_chain(mine, published);
  }
  void settle(local& mine, int& published) noexcept {
    if (mine.chain == no_op || mine.next == no_op) return;
    mine.passed += ranks_->cost[index(mine.next)];
    if (mine.passed >= ranks_->quota) publish_chain(mine, published);
  }
  void hand_over(local& mine) noexcept {
    int published = 0;
    if (mine.chain != no_op) publish_chain(mine, published);
    if (mine.next != no_op) first(std::exchange(mine.next, no_op));
  }

  std::int32_t take(local& mine) noexcept {
    if (mine.next != no_op) return std::exchange(mine.next, no_op);
    if (mine.chain != no_op) {
      const std::int32_t op = std::exchange(mine.chain, next_[index(mine.chain)]);
      mine.passed += ranks_->cost[index(op)];
      if (mine.chain == no_op) mine.passed = mine.chained = 0;
      return op;
    }
    const std::int32_t op = take_first();
    if (op != no_op) mine.chain = next_[index(op)];
    return op;
  }

 private:
  static constexpr std::size_t parts(std::size_t n) noexcept { return (n + 63) / 64; }
  static std::size_t index(std::int32_t op) noexcept { return static_cast<std::size_t>(op); }
  static constexpr std::uint64_t bit(std::size_t i) noexcept { return std::uint64_t{1} << i % 64; }

  void publish_chain(local& mine, int& published) noexcept {
    // Others are called only where the chain or what follows is worth it; else they take it when they come.
    const bool is_worth_it =
        mine.chained >= ranks_->quota || ranks_->rank[index(mine.chain)] >= 2 * ranks_->quota;
    if (is_worth_it) ++published;
    add(std::exchange(mine.chain, no_op));
    mine.passed = mine.chained = 0;
  }
  void add(std::int32_t op) noexcept {
    const std::size_t at = index(ranks_->place[index(op)]);
    // release: the chain, and what the op's predecessors wrote
    words_[at / 64].fetch_or(bit(at), Atomics::at(access::rank_add, std::memory_order_release));
    // release: who clears the bit after this sees the op
    filled_[at / 64 / 64].fetch_or(bit(at / 64), Atomics::at(access::rank_part, std::memory_order_release));
  }
  std::int32_t take_first() noexcept {
    const auto looked_at = Atomics::at(access::looked_at, std::memory_order_relaxed);
    for (std::size_t f = 0; f < filled_.size();) {
      const std::uint64_t filled = filled_[f].load(looked_at);
      if (filled == 0) {
        ++f;
        continue;
      }
      const std::size_t w = f * 64 + static_cast<std::size_t>(std::countr_zero(filled));
      const std::uint64_t seen = words_[w].load(looked_at);
      if (seen == 0) {
        // acquire: the ops that were added before the bit which is cleared was set
        filled_[f].fetch_and(~bit(w), Atomics::at(access::rank_clear, std::memory_order_acquire));
        if (words_[w].load(looked_at) != 0) filled_[f].fetch_or(bit(w), looked_at);
        continue;
      }
      const std::uint64_t one = seen & (~seen + 1);
      // acquire: add()
      const std::uint64_t before =
          words_[w].fetch_and(~one, Atomics::at(access::rank_take, std::memory_order_acquire));
      if ((before & one) != 0) return ranks_->at[w * 64 + static_cast<std::size_t>(std::countr_zero(one))];
    }
    return no_op;
  }

  const op_ranks* ranks_;
  std::span<std::int32_t> next_;  // of an op: the next of its chain
  std::span<word> words_, filled_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
