// A link between threads whose all-to-alls meet by their order alone, as those of c10d or NCCL do.
#pragma once

#include <deeprec/comm/ordered_ranks.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/queue/queue_result.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <span>
#include <thread>
#include <vector>

namespace deeprec_test {

/// What ranks have posted. Sizes that do not meet break it: a network would hang, or write where it must not.
class ordered_board {
 public:
  struct post {
    std::vector<std::byte> to, from;
    std::vector<deeprec::index_t> to_bytes, from_bytes;
    int missing = 0;
  };

  explicit ordered_board(int ranks) : ranks_(ranks), next_(static_cast<std::size_t>(ranks)) {}

  [[nodiscard]] int ranks() const { return ranks_; }
  /// Sizes met in every call.
  [[nodiscard]] bool whole() {
    const std::lock_guard lock(mutex_);
    return whole_;
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    left_ = true;
  }
  [[nodiscard]] std::size_t calls(int rank) {
    const std::lock_guard lock(mutex_);
    return next_[static_cast<std::size_t>(rank)];
  }

  void start(int me, const std::shared_ptr<post>& mine) {
    const std::lock_guard lock(mutex_);
    const std::size_t call = next_[static_cast<std::size_t>(me)]++;
    if (posts_.size() <= call) posts_.resize(call + 1, posts_type(static_cast<std::size_t>(ranks_)));
    posts_type& posts = posts_[call];
    posts[static_cast<std::size_t>(me)] = mine;
    mine->missing = ranks_;
    for (int r = 0; r < ranks_; ++r) {
      const auto& other = posts[static_cast<std::size_t>(r)];
      if (!other) continue;
      send(*mine, me, *other, r);
      if (r != me) send(*other, r, *mine, me);
    }
  }
  [[nodiscard]] deeprec::queue_result poll(const post& p) {
    const std::lock_guard lock(mutex_);
    if (p.missing == 0) return deeprec::queue_result::ok;
    return left_ ? deeprec::queue_result::failed : deeprec::queue_result::not_now;
  }
  [[nodiscard]] std::uint32_t peek(const post& p, deeprec::index_t at) {
    const std::lock_guard lock(mutex_);
    std::uint32_t word = 0;
    std::memcpy(&word, p.from.data() + at, sizeof(word));
    return word;
  }

 private:
  using posts_type = std::vector<std::shared_ptr<post>>;

  static deeprec::index_t before(const std::vector<deeprec::index_t>& bytes, int rank) {
    return std::accumulate(bytes.begin(), bytes.begin() + rank, deeprec::index_t{0});
  }
  void send(const post& from, int sender, post& to, int receiver) {
    const deeprec::index_t bytes = from.to_bytes[static_cast<std::size_t>(receiver)];
    whole_ = whole_ && bytes == to.from_bytes[static_cast<std::size_t>(sender)];
    if (!whole_) return;
    std::copy_n(from.to.begin() + before(from.to_bytes, receiver), bytes,
                to.from.begin() + before(to.from_bytes, sender));
    --to.missing;
  }

  int ranks_;
  std::mutex mutex_;
  std::vector<std::size_t> next_;
  std::vector<posts_type> posts_;
  bool whole_ = true, left_ = false;
};

struct ordered_thread_link {
  using space = deeprec::host_space;
  struct round {
    std::shared_ptr<ordered_board::post> post{};
  };

  ordered_board* board;
  int me;
  int refuses = -1;  ///< the make() that finds no memory

  [[nodiscard]] int rank() const { return me; }
  [[nodiscard]] int size() const { return board->ranks(); }
  void make(round& r, deeprec::index_t to, deeprec::index_t from) {
    if (refuses-- == 0) throw std::bad_alloc();
    r.post = std::make_shared<ordered_board::post>();
    r.post->to.resize(static_cast<std::size_t>(to));
    r.post->from.resize(static_cast<std::size_t>(from));
  }
  [[nodiscard]] std::span<std::byte> to(round& r) { return r.post->to; }
  [[nodiscard]] std::span<std::byte> from(round& r) { return r.post->from; }
  [[nodiscard]] deeprec::status start(round& r, std::span<const deeprec::index_t> to,
                                      std::span<const deeprec::index_t> from) {
    r.post->to_bytes.assign(to.begin(), to.end());
    r.post->from_bytes.assign(from.begin(), from.end());
    board->start(me, r.post);
    return {};
  }
  [[nodiscard]] deeprec::queue_result poll(round& r) { return board->poll(*r.post); }
  [[nodiscard]] deeprec::status fault(const round&) const {
    return {deeprec::errc::closed, "exchange: the connection to a rank has ended"};
  }
  [[nodiscard]] std::uint32_t peek(const round& r, deeprec::index_t at) const {
    return board->peek(*r.post, at);
  }
  template <class Look>
  deeprec::queue_result wait(const Look& look, const deeprec::wait_limit& limit) {
    using clock = std::chrono::steady_clock;
    while (true) {
      const deeprec::queue_result r = look();
      if (r != deeprec::queue_result::not_now) return r;
      if (limit.stop.stop_requested()) return deeprec::queue_result::stopped;
      if (limit.deadline != (clock::time_point::max)() && clock::now() >= limit.deadline)
        return deeprec::queue_result::timed_out;
      std::this_thread::yield();
    }
  }
};

using ordered_thread_rank = deeprec::ordered_ranks<ordered_thread_link>;
static_assert(deeprec::Communicator<ordered_thread_rank>);

/// Runs body(comm) on a thread for each rank. Whether the sizes of all calls met.
template <class Body>
[[nodiscard]] bool on_ordered_ranks(int ranks, const Body& body) {
  ordered_board board(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] { body(ordered_thread_rank(ordered_thread_link{&board, r}), board); });
  }
  for (std::thread& t : threads) t.join();
  return board.whole();
}

}  // namespace deeprec_test
