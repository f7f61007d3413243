// Every order in which readers pin, read and leave beside an owner that unlinks and uses again, under weak
// memory; and each access that is stronger than relaxed, weakened alone, is caught.
#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include <deeprec/memory/reclaimer.hpp>

#include "queue/model/cases.hpp"

namespace {

using namespace deeprec_test::model;
using deeprec::detail::access;

template <int Places>
using model_reclaimer = deeprec::basic_reclaimer<Places, model_atomics>;

constexpr model_order relaxed{access::position, std::memory_order_relaxed};
constexpr model_order release{access::position, std::memory_order_release};
constexpr model_order acquire{access::position, std::memory_order_acquire};

enum class mistake {
  none,
  not_over,      // used again without asking
  ends_before,   // the epoch ends, and then the owner unlinks
  not_ended,     // the owner asks for the epoch before
  leaves_before  // the reader reads when its pin has ended
};

// A cell that readers reach by a link.
struct linked_cell {
  static constexpr int linked = 7, reused = 9;
  void read() {
    if (link.load(relaxed) == 0) {
      ++happened.misses;
      return;
    }
    ++happened.hits;
    if (cell.value() != linked) explorer::current().fail("a reader sees what the cell was used for again");
  }
  void unlink() { link.store(0, relaxed); }
  void use_again() {
    ++happened.reuses;
    cell = watched(reused);
  }
  watched cell{linked};
  model_atomic<std::uint32_t> link{1};
};

// The last thread is the owner.
template <int Places, int Readers, int Times = 1, mistake Wrong = mistake::none>
struct readers_beside_owner : explorer::scenario {
  int threads() const override { return Readers + 1; }
  void run(int thread) override {
    if (thread == Readers) return own();
    for (int k = 0; k < Times; ++k) {
      if constexpr (Wrong == mistake::leaves_before) {
        static_cast<void>(readers.enter());
        at.read();
      } else {
        const auto pin = readers.enter();
        at.read();
      }
    }
  }
  void own() {
    std::uint64_t ended = 0;
    if constexpr (Wrong == mistake::ends_before) ended = readers.unlinked();
    at.unlink();
    if constexpr (Wrong == mistake::not_ended) ended = readers.epoch() - 1;
    if constexpr (Wrong == mistake::none || Wrong == mistake::not_over || Wrong == mistake::leaves_before)
      ended = readers.unlinked();
    if (Wrong == mistake::not_over || readers.over(ended)) at.use_again();
  }
  linked_cell at;
  model_reclaimer<Places> readers;
};

// Two cells, each unlinked in an epoch of its own.
template <int Places, int Readers>
struct two_epochs : explorer::scenario {
  int threads() const override { return Readers + 1; }
  void run(int thread) override {
    if (thread == Readers) return own();
    const auto pin = readers.enter();
    second.read();
    first.read();
  }
  void own() {
    first.unlink();
    const std::uint64_t one = readers.unlinked();
    second.unlink();
    const std::uint64_t two = readers.unlinked();
    const bool both = readers.over(two);
    if (both || readers.over(one)) first.use_again();
    if (both) second.use_again();
  }
  linked_cell first, second;
  model_reclaimer<Places> readers;
};

// One enters, another one reads under the same pin and drops it. `Others` read under pins of their own.
template <int Places, int Others = 0>
struct pin_moves : explorer::scenario {
  int threads() const override { return Others + 3; }
  void run(int thread) override {
    if (thread == 0) {
      moved = readers.enter();
      at.read();
      handed.store(1, release);
    } else if (thread == 1) {
      if (handed.load(acquire) == 0) return;
      const auto mine = std::move(moved);
      at.read();
    } else if (thread < Others + 2) {
      const auto pin = readers.enter();
      at.read();
    } else {
      at.unlink();
      const std::uint64_t ended = readers.unlinked();
      if (readers.over(ended) || readers.over(ended)) at.use_again();
    }
  }
  linked_cell at;
  model_atomic<std::uint32_t> handed{0};
  model_reclaimer<Places> readers;
  typename model_reclaimer<Places>::pin moved;
};

// An epoch that goes on is not over, whatever its owner has unlinked.
struct epoch_goes_on : explorer::scenario {
  int threads() const override { return 2; }
  void run(int thread) override {
    if (thread == 0) {
      const auto pin = readers.enter();
      at.read();
    } else {
      at.unlink();
      if (readers.over(readers.epoch())) explorer::current().fail("an epoch that goes on is over");
    }
  }
  linked_cell at;
  model_reclaimer<1> readers;
};

const std::vector<tried_case> cases = {
    {"1 place: a reader | owner", explore_case<readers_beside_owner<1, 1>>},
    {"1 place: a reader, twice | owner", explore_case<readers_beside_owner<1, 1, 2>>},
    {"1 place: reader | reader | owner", explore_case<readers_beside_owner<1, 2>>, 1},
    {"2 places: reader | reader | owner", explore_case<readers_beside_owner<2, 2>>, 1},
    {"1 place: reader | reader | reader | owner", explore_case<readers_beside_owner<1, 3>>, 0, 0, 40'000},
    {"1 place, two epochs: a reader | owner", explore_case<two_epochs<1, 1>>},
    {"1 place, two epochs: reader | reader | owner", explore_case<two_epochs<1, 2>>, 1, 0, 40'000},
    {"1 place: enter, read | read, leave | owner", explore_case<pin_moves<1>>, 1},
    {"1 place: enter, read | read, leave | reader | owner", explore_case<pin_moves<1, 1>>, 0},
    {"1 place: a reader | an epoch that goes on", explore_case<epoch_goes_on>},
};

TEST_CASE("reclaimer: nobody reads what is used again, in every order of a few threads") {
  CHECK(each_holds(cases) > 100'000);
}

// With full fences an exchange of a place, and a read of the epoch, acquire by the fence behind them; with
// membarrier there is none. That the exchange acquires is needed where two pins held a place one after the
// other and the owner reads what the second one left: its store, unlike an exchange, does not go on with the
// release sequence of the first one's.
const std::vector<broken_site> stronger = {
    {access::pin_enter, "pin_enter", mutant::relax, false, true},
    {access::pin_leave, "pin_leave"},
    {access::pin_seen, "pin_seen"},
    {access::pin_fence, "pin_fence", mutant::omit, true, false},
    {access::crowd_fence, "crowd_fence", mutant::omit, true, false},
    {access::crowd_leave, "crowd_leave"},
    {access::crowd_seen, "crowd_seen"},
    {access::epoch_next, "epoch_next"},
    {access::epoch_seen, "epoch_seen", mutant::relax, false, true},
    {access::unlink_fence, "unlink_fence", mutant::omit},
};

TEST_CASE("reclaimer: each access stronger than relaxed is needed by some scenario") {
  each_is_caught(cases, stronger);
}

// The others keep more than they have to: a pin that does not leave, an epoch that does not end.
TEST_CASE("reclaimer: a pin that is not written is caught, in a place and in the crowd") {
  each_is_caught(cases, {{access::pin_enter, "pin_enter", mutant::omit},
                         {access::crowd_enter, "crowd_enter", mutant::omit}});
}

TEST_CASE("reclaimer: each mistake of an owner or a reader is caught") {
  using enum mistake;
  const char* const race = "data race";
  must_be_caught("used again without over()", {"", explore_case<readers_beside_owner<1, 1, 1, not_over>>},
                 race);
  must_be_caught("unlinked after unlinked()", {"", explore_case<readers_beside_owner<1, 1, 1, ends_before>>},
                 race);
  must_be_caught("without unlinked()", {"", explore_case<readers_beside_owner<1, 1, 1, not_ended>>}, race);
  must_be_caught("read after the pin", {"", explore_case<readers_beside_owner<1, 1, 1, leaves_before>>},
                 race);
}

TEST_CASE("reclaimer: no access of the source that is stronger than relaxed is left out of the list") {
  static_cast<void>(explore_case<epoch_goes_on>({}, {}));
  all_are_listed(stronger, {access::pin_leave});
}

}  // namespace
