// A bound on how old the rows of a lookup are, so that lookups of later batches run while earlier ones
// compute.
//
//   lookup t sees the updates up to t - W, and no others:        W = 3
//     updates   0    1    2    3    4             lookup 5 reads a shard after its update 2 has ended and
//     lookup 5  seen seen seen -    -             before its update 3 begins, whatever the threads do
//
//   window.read(t, shard)    at the store: waits for update t - W, excludes update t - W + 1 while it lives
//   window.apply(u, shard)   at the store: waits for update u - 1 and for lookup u + W - 1
//
// A request travels, waits at the store for its version, and travels back: W of them are on their way at
// once. W = 1 is synchronous training. Not here: threads (stale_loop.hpp), and the rows.
#pragma once

#include <cstdint>
#include <exception>
#include <limits>
#include <memory_resource>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/queue/wait_strategies.hpp>
#include <deeprec/queue/waiting_room.hpp>
#include <deeprec/schedule/detail/window_shard.hpp>
#include <deeprec/support/atomics.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace staleness {

/// Lookup t sees the updates up to t - W and no others: the same result for any timing.
struct exact_t {};
inline constexpr exact_t exact{};

/// Nothing waits for a version: a lookup sees the updates that happen to have ended, in the order in which
/// they came, so the result depends on the timing and staleness has no bound. Lookups and updates of one
/// shard still exclude each other, so there is no data race.
struct hogwild_t {};
inline constexpr hogwild_t hogwild{};

}  // namespace staleness

/// The versions of a set of tables or of their shards. A shard is what is read and updated as a whole: each
/// has its own version, and lookups and updates of different shards don't wait for each other. Every lookup
/// reads, and every update applies to, each shard exactly once, also where it needs no row of it.
///
/// @threads every member but the constructor, restart() and the destructor is thread-safe
template <class Order = staleness::exact_t, class Wait = adaptive_wait, class Atomics = detail::std_atomics>
class stale_window {
  static_assert(std::is_same_v<Order, staleness::exact_t> || std::is_same_v<Order, staleness::hogwild_t>,
                "deeprec::stale_window: unknown order. Fix: staleness::exact or staleness::hogwild.");
  enum class side : unsigned char { lookup, update };
  template <side Side>
  class access_of;

 public:
  using order_type = Order;
  using wait_type = Wait;
  using atomics_type = Atomics;
  static constexpr bool is_exact = std::is_same_v<Order, staleness::exact_t>;

  /// What read() and apply() return: while it lives, the shard may be read (written). Destroyed by an
  /// exception that passes it, it cancels the window, so that nobody reads what is half written.
  ///
  /// @threads one thread at a time; may be passed to another thread
  using reading = access_of<side::lookup>;
  using writing = access_of<side::update>;

  /// @param window  W: 1 is synchronous training
  /// @param shards  the number of tables or shards
  /// @pre     window >= 1, shards >= 1
  /// @cost    O(shards * W) from `memory`; nothing is allocated later
  /// @threads reentrant
  /// @error   throws what the resource throws
  explicit stale_window(index_t window, index_t shards = 1, Order = {},
                        std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : window_(window < 1 ? 1 : window),
        shards_(static_cast<std::size_t>(shards < 1 ? 1 : shards), memory),
        marks_(shards_.size() * static_cast<std::size_t>(window_), memory) {
    DEEPREC_EXPECTS(window >= 1 && shards >= 1);
  }
  stale_window(const stale_window&) = delete;
  stale_window& operator=(const stale_window&) = delete;

  /// W.
  [[nodiscard]] index_t window() const noexcept { return window_; }
  [[nodiscard]] index_t shards() const noexcept { return static_cast<index_t>(shards_.size()); }

  /// Called at the store by lookup t: waits until the shard has exactly the updates that it is to see.
  ///
  /// @param lookup  t, from 0
  /// @pre     each lookup reads each shard once
  /// @post    while the result lives, no update of the shard runs; the rows are those of version().
  ///          hogwild: version() is a number of updates that the rows have at least
  /// @cost    two atomic operations; blocks until update t - W of the shard has ended
  /// @threads thread-safe
  /// @error   outcome(): invalid_value for a shard or a lookup that does not exist, and for a second reading;
  ///          cancelled; stopped and timed_out of the limit. hogwild knows no second reading
  [[nodiscard]] reading read(index_t lookup, index_t shard = 0, const wait_limit& limit = {}) {
    if (lookup < 0 || shard < 0 || shard >= shards()) {
      return reading({errc::invalid_value,
                      "stale_window::read: lookup and shard must be numbers of this window",
                      {.value = lookup, .item = shard}});
    }
    shard_state& at = shards_[static_cast<std::size_t>(shard)];
    const std::uint64_t version = version_of(lookup);
    std::uint64_t seen = version;
    const queue_result found = wait_in(at.lookups, limit, [&] {
      if constexpr (is_exact) {
        // acquire: the lookup reads what the update wrote
        const std::uint64_t applied =
            at.applied.load(Atomics::at(detail::access::version_read, std::memory_order_acquire));
        if (applied < version) return queue_result::not_now;
        return applied == version && shard_state::begin_once(mark_of(lookup, shard), 2 * turn_of(lookup))
                   ? queue_result::ok
                   : queue_result::failed;
      } else {
        if (!at.enter_shared()) return queue_result::not_now;
        // relaxed: entering has acquired what the update before it wrote
        seen = at.applied.load(relaxed(detail::access::window_seen));
        return queue_result::ok;
      }
    });
    if (found == queue_result::ok) return reading(this, lookup, shard, seen);
    if (found == queue_result::failed) {
      return reading({errc::invalid_value,
                      "stale_window::read: a lookup must read each shard once",
                      {.value = lookup, .item = shard}});
    }
    return reading(to_status(found).in_operation("stale_window::read"));
  }

  /// Called at the store by update u: waits until update u - 1 has ended, and until every lookup that must
  /// not see update u has read the shard.
  ///
  /// @param update  u, from 0
  /// @pre     each update applies to each shard once
  /// @post    while the result lives, nobody else reads or writes the shard; its end is the shard's next
  ///          version
  /// @cost    four atomic operations; blocks until lookup u + W - 1 has read the shard
  /// @threads thread-safe
  /// @error   outcome(): invalid_value for a shard or an update that does not exist, and for a second
  ///          application; cancelled; stopped and timed_out of the limit. hogwild knows no second application
  [[nodiscard]] writing apply(index_t update, index_t shard = 0, const wait_limit& limit = {}) {
    if (update < 0 || shard < 0 || shard >= shards()) {
      return writing({errc::invalid_value,
                      "stale_window::apply: update and shard must be numbers of this window",
                      {.value = update, .item = shard}});
    }
    shard_state& at = shards_[static_cast<std::size_t>(shard)];
    const auto before = static_cast<std::uint64_t>(update);
    std::uint64_t seen = before;
    const queue_result found = wait_in(at.updates, limit, [&] {
      if constexpr (is_exact) {
        // acquire: at the end of the data no lookup stands between two updates
        const std::uint64_t applied =
            at.applied.load(Atomics::at(detail::access::version_applied, std::memory_order_acquire));
        if (applied > before) return queue_result::failed;
        if (applied < before) return queue_result::not_now;
        // relaxed: a number; what it lets through is ordered by `passed` and `applied`
        const std::uint64_t end = end_.load(relaxed(detail::access::window_seen));
        const std::uint64_t last = before + static_cast<std::uint64_t>(window_);
        // acquire: the lookups have read before this update writes
        const std::uint64_t passed =
            at.passed.load(Atomics::at(detail::access::passed_seen, std::memory_order_acquire));
        if (passed < (last < end ? last : end)) return queue_result::not_now;
        return shard_state::begin_once(at.begun, before) ? queue_result::ok : queue_result::failed;
      } else {
        if (!at.enter_alone()) return queue_result::not_now;
        seen = at.applied.load(relaxed(detail::access::window_seen));
        return queue_result::ok;
      }
    });
    if (found == queue_result::ok) return writing(this, update, shard, seen);
    if (found == queue_result::failed) {
      return writing({errc::invalid_value,
                      "stale_window::apply: an update must apply to each shard once",
                      {.value = update, .item = shard}});
    }
    return writing(to_status(found).in_operation("stale_window::apply"));
  }

  /// The end of the data: there are `lookups` lookups, and updates wait for no later one.
  ///
  /// @pre     no lookup of that number or a later one reads
  /// @cost    O(shards)
  /// @threads thread-safe
  /// @error   none
  void end_at(index_t lookups) noexcept {
    // relaxed: those who wait look again after the notification, which has a fence
    end_.store(static_cast<std::uint64_t>(lookups), relaxed(detail::access::window_mark));
    for (shard_state& at : shards_) at.updates.notify_all();
  }

  /// Ends all waits, now and later, as cancelled.
  ///
  /// @cost    O(shards)
  /// @threads thread-safe
  /// @error   none
  void cancel() noexcept {
    // relaxed: as in end_at
    cancelled_.store(1, relaxed(detail::access::window_mark));
    for (shard_state& at : shards_) {
      at.lookups.notify_all();
      at.updates.notify_all();
    }
  }
  [[nodiscard]] bool was_cancelled() const noexcept {
    return cancelled_.load(relaxed(detail::access::window_seen)) != 0;
  }

  /// Lookups and updates begin at 0 again, and the window is not cancelled: for the next epoch.
  ///
  /// @pre     no thread is in a call of this window, and no reading or writing exists
  /// @cost    O(shards * W)
  /// @threads one thread, alone
  /// @error   none
  void restart() noexcept {
    for (shard_state& at : shards_) {
      for (word* const w : {&at.applied, &at.begun, &at.passed, &at.inside}) {
        w->store(0, relaxed(detail::access::statistic));
      }
    }
    for (read_mark& m : marks_) m.state.store(0, relaxed(detail::access::statistic));
    end_.store(endless, relaxed(detail::access::statistic));
    cancelled_.store(0, relaxed(detail::access::statistic));
  }

  /// Whether a lookup has read all shards. Exact order only, and for a lookup whose update has not begun.
  ///
  /// @cost    O(shards)
  /// @threads thread-safe
  /// @error   none
  [[nodiscard]] bool has_read(index_t lookup) const noexcept {
    for (index_t s = 0; s < shards(); ++s) {
      if (mark_of(lookup, s).load(relaxed(detail::access::looked_at)) < 2 * turn_of(lookup) + 2) return false;
    }
    return true;
  }
  /// The number of updates of a shard that have ended.
  [[nodiscard]] index_t was_applied(index_t shard = 0) const noexcept {
    return static_cast<index_t>(
        shards_[static_cast<std::size_t>(shard)].applied.load(relaxed(detail::access::looked_at)));
  }
  /// Statistics of the waits at the shards: of lookups for their version, and of updates for lookups.
  [[nodiscard]] wait_counts lookup_waits(index_t shard = 0) const noexcept {
    return shards_[static_cast<std::size_t>(shard)].lookups.counts();
  }
  [[nodiscard]] wait_counts update_waits(index_t shard = 0) const noexcept {
    return shards_[static_cast<std::size_t>(shard)].updates.counts();
  }

 private:
  using word = typename Atomics::template atomic<std::uint64_t>;
  using shard_state = detail::window_shard<Wait, Atomics>;
  static constexpr std::uint64_t endless = (std::numeric_limits<std::uint64_t>::max)();
  // Of a shard and lookups k, k + W, k + 2W ...: 2n + 1 from when lookup k + nW begins to read, 2n + 2 when
  // it has read.
  struct read_mark {
    word state{0};
  };

  static auto relaxed(detail::access site) noexcept { return Atomics::at(site, std::memory_order_relaxed); }

  [[nodiscard]] std::uint64_t version_of(index_t lookup) const noexcept {
    return lookup < window_ ? 0 : static_cast<std::uint64_t>(lookup - window_ + 1);
  }
  [[nodiscard]] std::uint64_t turn_of(index_t lookup) const noexcept {
    return static_cast<std::uint64_t>(lookup / window_);
  }
  [[nodiscard]] word& mark_of(index_t lookup, index_t shard) noexcept {
    return marks_[static_cast<std::size_t>(shard * window_ + lookup % window_)].state;
  }
  [[nodiscard]] const word& mark_of(index_t lookup, index_t shard) const noexcept {
    return marks_[static_cast<std::size_t>(shard * window_ + lookup % window_)].state;
  }
  template <class Room, class Ready>
  queue_result wait_in(Room& room, const wait_limit& limit, const Ready& ready) {
    const auto look = [&] { return was_cancelled() ? queue_result::cancelled : ready(); };
    if (const queue_result found = look(); found != queue_result::not_now) return found;
    // Every notification wakes all waiters, each of which waits for something else.
    return room.wait_for(look, limit, detail::wake_nobody{});
  }

  template <side Side>
  void leave(index_t number, index_t shard, bool thrown) noexcept {
    if (thrown) return cancel();
    shard_state& at = shards_[static_cast<std::size_t>(shard)];
    if constexpr (Side == side::lookup) {
      if constexpr (is_exact) {
        // relaxed: the next lookup of this mark acquires a later version; has_read() is asked by the thread
        // that ran the lookup
        mark_of(number, shard).store(2 * turn_of(number) + 2, relaxed(detail::access::window_mark));
        // release: for the update that waits for this lookup
        at.passed.fetch_add(1, Atomics::at(detail::access::passed_publish, std::memory_order_release));
      } else {
        at.inside.fetch_sub(1, Atomics::at(detail::access::shard_left, std::memory_order_release));
        at.lookups.notify_all();
      }
    } else {
      const std::uint64_t applied = at.applied.load(relaxed(detail::access::window_seen)) + 1;
      if constexpr (is_exact) {
        // release: for the lookups that see this update, and for the next update
        at.applied.store(applied, Atomics::at(detail::access::version_publish, std::memory_order_release));
      } else {
        at.applied.store(applied, relaxed(detail::access::window_mark));
        at.inside.store(0, Atomics::at(detail::access::shard_given_back, std::memory_order_release));
      }
      at.lookups.notify_all();
    }
    at.updates.notify_all();
  }

  const index_t window_;
  std::pmr::vector<shard_state> shards_;
  std::pmr::vector<read_mark> marks_;  // (shards, W)
  word end_{endless};
  typename Atomics::template atomic<std::uint32_t> cancelled_{0};
};

template <class Order, class Wait, class Atomics>
template <typename stale_window<Order, Wait, Atomics>::side Side>
class stale_window<Order, Wait, Atomics>::access_of {
 public:
  access_of(access_of&& other) noexcept
      : window_(std::exchange(other.window_, nullptr)),
        number_(other.number_),
        shard_(other.shard_),
        version_(other.version_),
        exceptions_(other.exceptions_),
        outcome_(other.outcome_) {}
  access_of& operator=(access_of&&) = delete;
  ~access_of() { end(std::uncaught_exceptions() > exceptions_); }

  [[nodiscard]] bool ok() const noexcept { return outcome_.ok(); }
  explicit operator bool() const noexcept { return ok(); }
  [[nodiscard]] const status& outcome() const noexcept { return outcome_; }
  /// The number of updates of the shard before this access.
  [[nodiscard]] index_t version() const noexcept { return static_cast<index_t>(version_); }
  /// Ends the access before its destructor does.
  void end() noexcept { end(false); }

 private:
  friend class stale_window;
  explicit access_of(const status& why) noexcept : outcome_(why) {}
  access_of(stale_window* window, index_t number, index_t shard, std::uint64_t version) noexcept
      : window_(window), number_(number), shard_(shard), version_(version) {}
  void end(bool thrown) noexcept {
    if (stale_window* const window = std::exchange(window_, nullptr); window != nullptr) {
      window->template leave<Side>(number_, shard_, thrown);
    }
  }

  stale_window* window_ = nullptr;
  index_t number_ = 0;
  index_t shard_ = 0;
  std::uint64_t version_ = 0;
  int exceptions_ = std::uncaught_exceptions();
  status outcome_;
};

stale_window(index_t) -> stale_window<>;
stale_window(index_t, index_t) -> stale_window<>;
template <class Order>
stale_window(index_t, index_t, Order) -> stale_window<Order>;

}}  // namespace deeprec::DEEPREC_ABI
