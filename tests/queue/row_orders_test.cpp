// Every order in which a row of a cut is copied: by the thread that saves, or by one that is going to update
// or erase it, whichever comes first. Each access that is stronger than relaxed, weakened alone, is caught,
// and so is each mistake.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <deeprec/embedding/growing/detail/row_claim.hpp>

#include "queue/model/cases.hpp"

namespace {

using namespace deeprec_test::model;
using deeprec::detail::access;

constexpr std::uint32_t live = 1, due = 2, copying = 4, marked = 8;
constexpr deeprec::detail::cut_flags cut{live | due, live | due, copying | due, 0};
constexpr model_order relaxed{access::position, std::memory_order_relaxed};

// Who would wait stops there: what it does when the row is settled, it does in the orders in which it comes
// later.
struct impatient : model_atomics {
  inline static std::array<bool, max_threads + 1> stopped{};
  static bool& mine() { return stopped[static_cast<std::size_t>(explorer::current().thread())]; }
  static void relax() { mine() = true; }

  template <class T>
  struct atomic : model_atomic<T> {
    using model_atomic<T>::model_atomic;
    T load(model_order o) const { return mine() ? T{} : model_atomic<T>::load(o); }
  };
};

// Two threads may believe that they have the claim.
struct no_claim : impatient {
  template <class T>
  struct atomic : impatient::atomic<T> {
    using base = impatient::atomic<T>;
    using base::base;
    bool compare_exchange_weak(T& expected, T wanted, model_order o, std::memory_order failure) {
      if (o.site == access::row_claim) {
        const T before = expected;
        return (expected = this->load(o)) == before;
      }
      return base::compare_exchange_weak(expected, wanted, o, failure);
    }
  };
};
// Settling overwrites what others did to the flags meanwhile.
struct settles_by_store : impatient {
  template <class T>
  struct atomic : impatient::atomic<T> {
    using base = impatient::atomic<T>;
    using base::base;
    bool compare_exchange_weak(T& expected, T wanted, model_order o, std::memory_order failure) {
      if (o.site != access::row_settle) return base::compare_exchange_weak(expected, wanted, o, failure);
      this->store(wanted, o);
      return true;
    }
  };
};

enum class mistake { none, writes_first, erases_first, does_not_wait, saver_waits_first };
enum class role { saver, update, erasure, sweep };

template <class Atomics, mistake Wrong, role... Roles>
struct row_of_cut : explorer::scenario {
  using claim = deeprec::detail::row_claim<Atomics, copying>;

  row_of_cut() { impatient::stopped.fill(false); }
  int threads() const override { return static_cast<int>(sizeof...(Roles)); }
  void run(int thread) override {
    constexpr std::array<role, sizeof...(Roles)> roles{Roles...};
    switch (roles[static_cast<std::size_t>(thread)]) {
      case role::saver:
        return save();
      case role::update:
        return update();
      case role::erasure:
        return erase();
      case role::sweep:
        flags.fetch_or(marked, relaxed);
    }
  }
  void save() {
    if (Wrong == mistake::saver_waits_first) claim::wait(flags);
    if (impatient::mine()) return;
    if (claim::take(flags, cut)) {
      copy();
    } else if (Wrong != mistake::saver_waits_first) {
      claim::wait(flags);
    }
    if (impatient::mine()) return;
    // Now it is saved, whoever copied it.
    if (copied.value() != 5) explorer::current().fail("not the row of the cut");
    ++happened.hits;
  }
  void preserve() {
    if (!claim::is_due(flags, cut)) return;
    ++happened.misses;
    if (claim::take(flags, cut)) copy();
    if (Wrong != mistake::does_not_wait) claim::wait(flags);
  }
  void update() {
    if (Wrong == mistake::writes_first) row = watched(6);
    preserve();
    if (!impatient::mine()) row = watched(6);
  }
  void erase() {
    if (Wrong == mistake::erases_first) flags.fetch_and(0, relaxed);
    preserve();
    if (!impatient::mine()) flags.fetch_and(0, relaxed);
  }
  void copy() {
    copied = watched(row.value());
    ++copies;
    claim::settle(flags, cut);
  }
  void finish() override {
    if (copies != 1 || copied.value() != 5) explorer::current().fail("not the row of the cut, once");
    const std::uint32_t end = flags.load(relaxed);
    constexpr bool sweeps = ((Roles == role::sweep) || ...), erases = ((Roles == role::erasure) || ...);
    if (sweeps && (end & marked) == 0) explorer::current().fail("a mark is lost");
    if (!erases && (end & (live | due | copying)) != live) explorer::current().fail("flags that can't be");
  }
  typename Atomics::template atomic<std::uint32_t> flags{live | due};
  watched row{5};
  watched copied{0};
  int copies = 0;
};

using enum mistake;
using enum role;
const std::vector<tried_case> cases = {
    {"save | update", explore_case<row_of_cut<impatient, none, saver, update>>},
    {"save | erase", explore_case<row_of_cut<impatient, none, saver, erasure>>},
    {"save | update | sweep", explore_case<row_of_cut<impatient, none, saver, update, sweep>>, 1},
    {"save | update | erase", explore_case<row_of_cut<impatient, none, saver, update, erasure>>, 1},
};
const std::vector<broken_site> stronger = {
    {access::row_settle, "row_settle"},
    {access::row_settled, "row_settled"},
};

TEST_CASE("rows: a row of a cut is copied once, before it changes, in every order of a few threads") {
  CHECK(each_holds(cases) > 100);
}

TEST_CASE("rows: each access stronger than relaxed is needed by some scenario") {
  each_is_caught(cases, stronger);
}

TEST_CASE("rows: each mistake is caught") {
  const char* const race = "data race";
  const char* const wrong = "not the row of the cut";
  must_be_caught("two claims", {"", explore_case<row_of_cut<no_claim, none, saver, update>>}, race);
  must_be_caught("settled by a store",
                 {"", explore_case<row_of_cut<settles_by_store, none, saver, update, sweep>>},
                 "a mark is lost");
  must_be_caught("written before it is preserved",
                 {"", explore_case<row_of_cut<impatient, writes_first, saver, update>>}, race);
  must_be_caught("erased before it is preserved",
                 {"", explore_case<row_of_cut<impatient, erases_first, saver, erasure>>}, wrong);
  must_be_caught("written while another thread copies",
                 {"", explore_case<row_of_cut<impatient, does_not_wait, saver, update>>}, race);
  must_be_caught("saver waits, and then claims",
                 {"", explore_case<row_of_cut<impatient, saver_waits_first, saver, update>>}, race);
}

TEST_CASE("rows: no access of the source that is stronger than relaxed is left out of the list") {
  static_cast<void>(explore_case<row_of_cut<impatient, none, saver, update>>({}, {}));
  all_are_listed(stronger, {access::row_settle});
}

}  // namespace
