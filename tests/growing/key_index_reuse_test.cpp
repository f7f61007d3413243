// Slots of erased keys beside a pin: a slot is not used again while the pin is older than its erasure, also
// where slots of the same segment were used again before.

#include <deeprec/core/context.hpp>
#include <deeprec/embedding/growing/key_index.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/memory/reclaimer.hpp>

#include <doctest/doctest.h>
#include <cstdint>
#include <deque>

using namespace deeprec;

namespace {

// As many keys at any time; each round erases the oldest one and adds another.
struct churned_index {
  explicit churned_index(index_t keys) {
    for (index_t k = 0; k < keys; ++k) add();
  }
  void add() {
    const std::uint32_t code = 1;
    live.push_back(++last);
    faults += index.put(here, &last, &code, 1).ok() ? 0 : 1;
  }
  void replace_oldest() {
    std::uint32_t code = 0;
    index.erase(here, &live.front(), 1, &code);
    faults += code == 1 ? 0 : 1;
    live.pop_front();
    readers.unlinked();
    add();
  }
  inline_executor on;
  context<inline_executor> here{on};
  reclaimer readers;
  key_index index{readers};
  std::deque<std::uint64_t> live;
  std::uint64_t last = 0;
  int faults = 0;
};

}  // namespace

TEST_CASE("key_index: slots of erased keys are used again, but not beside a pin that is older") {
  constexpr int keys = 400, rounds = 20'000, pinned = 2'000;
  churned_index churned(keys);
  const auto written_anew = [&](int times) {
    const index_t before = churned.index.splits();
    for (int k = 0; k < times; ++k) churned.replace_oldest();
    return churned.index.splits() - before;
  };
  static_cast<void>(written_anew(rounds));  // until slots of every segment were used again
  const index_t without = written_anew(rounds);
  const auto pin = churned.readers.enter();
  const index_t beside = written_anew(pinned);
  CHECK(churned.faults == 0);
  CHECK(churned.index.size() == keys);
  CHECK_MESSAGE(without < 50, without);
  CHECK_MESSAGE(beside > 50, beside);  // a segment of 20 slots fills, for no slot is over
}
