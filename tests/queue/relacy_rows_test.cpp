// The copy of a row of a cut under Relacy: as it is, and with one access weaker or one mistake, which it has
// to notice. Built only where Relacy's header is found.
#include <deeprec/embedding/growing/detail/row_claim.hpp>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "queue/relacy_runs.hpp"  // last: it brings macros

namespace {

using namespace deeprec_test;
using deeprec::detail::access;

constexpr std::uint32_t live = 1, due = 2, copying = 4, by_sweep = 8;
constexpr deeprec::detail::cut_flags cut{live | due, live | due, copying | due, 0};

enum class mistake { none, writes_first, no_claim, erases_first, waits_first };

// A row is saved, updated, and in the suite of four threads erased and marked by a sweep.
template <mistake Wrong, unsigned Threads>
struct row_of_cut : rl::test_suite<row_of_cut<Wrong, Threads>, Threads> {
  using claim = deeprec::detail::row_claim<relacy_atomics, copying>;
  relacy_atomics::atomic<std::uint32_t> flags;
  rl::var<int> row, copied;
  int copies = 0;

  void before() {
    flags.store(live | due, rl::mo_relaxed);
    row(RL_INFO).store(5);
    copied(RL_INFO).store(0);
    copies = 0;
  }
  void thread(unsigned index) {
    switch (index) {
      case 0:
        if (Wrong == mistake::waits_first) claim::wait(flags);
        if (take()) {
          copy();
        } else if (Wrong != mistake::waits_first) {
          claim::wait(flags);
        }
        RL_ASSERT(copied(RL_INFO).load() == 5);
        return;
      case 1:
        if (Wrong == mistake::writes_first) row(RL_INFO).store(6);
        preserve();
        row(RL_INFO).store(6);
        return;
      case 2:
        if (Wrong == mistake::erases_first) flags.fetch_and(0, rl::mo_relaxed);
        preserve();
        flags.fetch_and(by_sweep, rl::mo_relaxed);
        return;
      default:
        flags.fetch_or(by_sweep, rl::mo_relaxed);
    }
  }
  void after() {
    RL_ASSERT(copies == 1);
    RL_ASSERT(copied(RL_INFO).load() == 5);
    RL_ASSERT(row(RL_INFO).load() == 6);
    const std::uint32_t end = Threads < 3 ? live : by_sweep;
    RL_ASSERT(flags.load(rl::mo_relaxed) == end);
  }
  bool take() {
    return Wrong == mistake::no_claim ? cut.has(flags.load(rl::mo_acquire)) : claim::take(flags, cut);
  }
  void preserve() {
    if (!claim::is_due(flags, cut)) return;
    if (take()) copy();
    claim::wait(flags);
  }
  void copy() {
    copied(RL_INFO).store(row(RL_INFO).load());
    ++copies;
    claim::settle(flags, cut);
  }
};

}  // namespace

int main(int count, char** arguments) {
  if (count > 1) executions = std::strtoull(arguments[1], nullptr, 10);
  using enum mistake;
  holds<row_of_cut<none, 2>>("row of a cut: save | update", rl::sched_random);
  holds<row_of_cut<none, 4>>("row of a cut: save | update | erase | sweep", rl::sched_random);
  holds<row_of_cut<none, 2>>("row of a cut: save | update", rl::sched_bound, 3);

  breaks<row_of_cut<none, 2>>("row of a cut: row_settle", access::row_settle);
  breaks<row_of_cut<none, 2>>("row of a cut: row_settled", access::row_settled);
  breaks<row_of_cut<writes_first, 2>>("row of a cut: written before it is preserved", {},
                                      rl::test_result_user_assert_failed);
  breaks<row_of_cut<no_claim, 2>>("row of a cut: without a claim", {});
  breaks<row_of_cut<erases_first, 4>>("row of a cut: erased before it is preserved", {},
                                      rl::test_result_user_assert_failed);

  breaks<row_of_cut<waits_first, 2>>("row of a cut: the saver waits, and then claims", {});

  std::printf(failures == 0 ? "all as expected\n" : "%d not as expected\n", failures);
  return failures == 0 ? 0 : 1;
}
