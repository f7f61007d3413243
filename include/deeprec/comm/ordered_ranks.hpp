// Ranks over a link whose calls meet by their order alone: no tags, sizes that both sides must know.
//
//   ordered_ranks<my_link> comm(std::move(link));
//   status s = complete(comm, x, within(30s));
//
// An exchange is two all-to-alls: the headers, 64 bytes for each rank, and then the blocks. So a fault, a
// message of another step, and sizes are known to all ranks before anything is sent that would not fit. Calls
// of the link come in one order at all ranks whatever is polled when: the headers of an exchange follow the
// blocks of the one before it. Blocks are copied into memory of the link and out of it. Links:
// interop/c10d_ranks.hpp. Not here: a word to ranks that wait for an exchange which this rank has left; they
// end by their own limits.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <deeprec/comm/communicator.hpp>
#include <deeprec/comm/detail/exchange_checks.hpp>
#include <deeprec/comm/detail/ordered_flight.hpp>
#include <deeprec/comm/exchange.hpp>
#include <deeprec/comm/message_header.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/queue/queue_result.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// L moves the bytes of all-to-alls, one after the other.
///
///   L::round             one all-to-all, and its memory; default-constructed it has none
///   rank(), size()       which of how many ranks
///   make(r, to, from)    so many bytes in the link's own memory; throws std::bad_alloc
///   to(r), from(r)       that memory, by ranks
///   start(r, to, from)   (n), (n): bytes for each rank and from each one. It may be called while others are
///                        in flight; the n-th call of each rank is one all-to-all
///   poll(r)              ok, not_now, or failed
///   fault(r)             why: closed for a rank that has gone, io_error, timed_out of the link itself
///   peek(r, at)          four bytes of from(r) while it is in flight: 0 where they have not come
///   wait(look, limit)    until look() returns anything but not_now
template <class L>
concept OrderedLink =
    requires(L& l, const L& k, typename L::round& r, const typename L::round& c, index_t bytes,
             std::span<const index_t> sizes, queue_result (*look)(), const wait_limit& limit) {
      typename L::space;
      { k.rank() } -> std::same_as<int>;
      { k.size() } -> std::same_as<int>;
      l.make(r, bytes, bytes);
      { l.to(r) } -> std::same_as<std::span<std::byte>>;
      { l.from(r) } -> std::same_as<std::span<std::byte>>;
      { l.start(r, sizes, sizes) } -> std::same_as<status>;
      { l.poll(r) } -> std::same_as<queue_result>;
      { l.fault(r) } -> std::same_as<status>;
      { k.peek(c, bytes) } -> std::same_as<std::uint32_t>;
      { l.wait(look, limit) } -> std::same_as<queue_result>;
    };

struct ordered_options {
  std::uint32_t generation = 0;  ///< of the job: counted at each restart
};

/// The end of this rank. Movable while nothing is in flight.
///
/// @threads one thread at a time
template <class Link>
class ordered_ranks {
  static_assert(OrderedLink<Link>,
                "deeprec::ordered_ranks: not a link. Fix: a class with the members that "
                "deeprec/comm/ordered_ranks.hpp names.");

 public:
  using space = typename Link::space;

  explicit ordered_ranks(Link link, const ordered_options& options = {})
      : link_(std::move(link)), options_(options) {}

  [[nodiscard]] int rank() const noexcept { return link_.rank(); }
  [[nodiscard]] int size() const noexcept { return link_.size(); }
  [[nodiscard]] int most_in_flight() const noexcept { return depth; }

  [[nodiscard]] status begin(exchange& x) {
    if (const status s = detail::check_blocks(x, rank(), size()); !s) return s;
    detail::ordered_flight<Link>& f = flight(next_);
    if (f.of() != nullptr) return detail::too_many_in_flight(depth);
    if (!end_.ok()) return end_;
    if (const status s = detail::or_out_of_memory("exchange", [&] { return f.reserve(link_), status(); }); !s)
      return s;
    detail::number_exchange(x, next_++);
    f.begin(x);
    advance();
    return {};
  }

  [[nodiscard]] queue_result poll(exchange& x) {
    if (flight(x.number).of() == &x) advance();
    return flight(x.number).of() == &x ? queue_result::not_now : detail::result_of(x);
  }
  [[nodiscard]] queue_result wait(exchange& x, const wait_limit& limit = {}) {
    return link_.wait([&] { return poll(x); }, limit);
  }
  /// Of blocks of more than two ranks it is not known whose have not come: none.
  [[nodiscard]] rank_list awaited(const exchange& x) const {
    rank_list list;
    const detail::ordered_flight<Link>& f = flights_[x.number % depth];
    for (int r = 0; r < size() && f.of() == &x; ++r) {
      if (r != rank() && f.awaits(link_, r)) list.push_back(r);
    }
    return list;
  }

  /// Blocks are the caller's again. The other ranks are told by their next exchange, unless they wait for
  /// this rank's part of one; then they end by their own limits, or when the link does.
  void abandon(const status& why) {
    if (end_.ok()) {
      const bool told = why.code() == errc::closed;  // by another rank, which tells all
      end_ = told ? why : detail::abandoned_by(rank());
      if (!told && size() > 1) take_leave();
    }
    for (detail::ordered_flight<Link>& f : flights_) {
      if (f.of() != nullptr) f.fail(why);
    }
  }

  /// @error unsupported: it needs a link of its own
  [[nodiscard]] result<ordered_ranks> duplicate() { return one_link(); }
  /// @error unsupported: it needs a link of its own
  [[nodiscard]] result<ordered_ranks> split(int, int, const wait_limit& = {}) { return one_link(); }

 private:
  static constexpr int depth = 4;

  static status one_link() {
    return {errc::unsupported, "ordered_ranks: another communicator must have a link of its own"};
  }
  detail::ordered_flight<Link>& flight(std::uint64_t number) noexcept { return flights_[number % depth]; }

  // Those that were begun first, first.
  void advance() {
    bool turn = true;
    for (std::uint64_t k = next_ < depth ? 0 : next_ - depth; k < next_; ++k) {
      if (flight(k).of() == nullptr) continue;
      if (const status s = flight(k).progress(link_, options_.generation, turn); !s) return abandon(s);
    }
  }
  void take_leave() {
    for (const detail::ordered_flight<Link>& f : flights_) {
      if (f.owes_payload()) return;
    }
    const index_t bytes = size() * index_t{sizeof(message_header)};
    static_cast<void>(detail::or_out_of_memory("exchange", [&] {
      link_.make(farewell_, bytes, bytes);
      const std::vector<index_t> each(static_cast<std::size_t>(size()), index_t{sizeof(message_header)});
      for (std::span<std::byte> out = link_.to(farewell_); !out.empty(); out = payload_of(out))
        detail::put_message_header(out, detail::farewell_header(options_.generation));
      return link_.start(farewell_, each, each);
    }));
  }

  Link link_;
  ordered_options options_;
  std::uint64_t next_ = 0;
  std::array<detail::ordered_flight<Link>, depth> flights_;
  typename Link::round farewell_{};
  status end_{};
};

}}  // namespace deeprec::DEEPREC_ABI
