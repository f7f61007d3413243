// Steps that are recorded, planned and served. Blocks are filled with the number of their request, so that
// two which share a byte are seen.

#include <deeprec/memory/planned_resource.hpp>
#include <deeprec/memory/refusing_resource.hpp>

#include "support/sanitizers.hpp"
#include "support/seed.hpp"

#include <doctest/doctest.h>

#include <sys/resource.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory_resource>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

using namespace deeprec;

namespace {

/// A request, or the end of the block of an earlier one.
struct action {
  std::size_t request;
  std::size_t bytes = 0;  // 0: the end
  std::size_t alignment = 16;
};

/// Requests in random order, each of which ends in the step.
std::vector<action> random_actions(std::mt19937_64& random, std::size_t requests) {
  std::vector<action> actions;
  std::vector<std::size_t> live;
  std::size_t next = 0;
  while (next < requests || !live.empty()) {
    if (next < requests && (live.empty() || random() % 5 < 3)) {
      actions.push_back(
          {next, 1 + random() % (std::size_t{1} << (random() % 14)), std::size_t{1} << (random() % 9)});
      live.push_back(next++);
      continue;
    }
    const std::size_t at = random() % live.size();
    actions.push_back({live[at], 0});
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
  }
  return actions;
}

/// Runs the actions on a resource; what a block holds must still be there at its end.
class actor {
 public:
  explicit actor(std::pmr::memory_resource& on) : on_(&on) {}
  ~actor() {
    while (!live_.empty()) end(live_.begin()->first);
  }
  int faults = 0;
  void* run(const action& one) {
    if (one.bytes == 0) {
      end(one.request);
      return nullptr;
    }
    void* const p = on_->allocate(one.bytes, one.alignment);
    faults += reinterpret_cast<std::uintptr_t>(p) % one.alignment == 0 ? 0 : 1;
    std::memset(p, mark(one.request), one.bytes);
    live_[one.request] = {static_cast<unsigned char*>(p), one.bytes, one.alignment};
    return p;
  }
  void run(const std::vector<action>& actions) {
    for (const action& one : actions) run(one);
  }
  void end(std::size_t request) {
    const block b = live_.at(request);
    live_.erase(request);
    for (std::size_t i = 0; i < b.bytes; ++i) faults += b.at[i] == mark(request) ? 0 : 1;
    on_->deallocate(b.at, b.bytes, b.alignment);
  }

 private:
  struct block {
    unsigned char* at;
    std::size_t bytes, alignment;
  };
  static unsigned char mark(std::size_t request) { return static_cast<unsigned char>(request * 37 + 1); }

  std::pmr::memory_resource* on_;
  std::map<std::size_t, block> live_;
};

/// A step of the actions. Returns the faults.
int step_of(planned_resource& memory, const std::vector<action>& actions, index_t size = 0) {
  const planned_resource::step step = memory.begin(size);
  actor a(memory);
  a.run(actions);
  return a.faults;
}

std::vector<action> two_blocks() { return {{0, 1000}, {1, 3000}, {0}, {2, 900}, {2}, {1}}; }

planned_options on(std::pmr::memory_resource& upstream) {
  planned_options options;
  options.upstream = &upstream;
  options.arena = &upstream;
  options.checks = false;
  return options;
}

}  // namespace

TEST_CASE("planned_resource: after three equal steps every request is served from the arena") {
  allowance all;
  refusing_resource upstream(all);
  {
    planned_resource memory(on(upstream));
    for (int s = 0; s < 3; ++s) CHECK(step_of(memory, two_blocks()) == 0);
    CHECK(memory.report().plans == 0);
    CHECK(upstream.granted == 9);
    for (int s = 0; s < 10; ++s) CHECK(step_of(memory, two_blocks()) == 0);
    CHECK(upstream.granted == 10);  // the arena
    const planned_report report = memory.report();
    CHECK(report.plans == 1);
    CHECK(report.steps == 13);
    CHECK(report.served_steps == 10);
    CHECK(report.missed_steps == 0);
    CHECK(report.served == 30);
    CHECK(report.upstream == 9);
    CHECK(report.live_bytes == 1024 + 3008);
    CHECK(report.planned_bytes == 1024 + 3008);
    CHECK(report.requested_bytes == 1024 + 3008 + 960);
  }
  CHECK(upstream.held == 0);
}

TEST_CASE("planned_resource: blocks of random steps keep what was written to them") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(deeprec_test::seed() + seed);
    allowance all;
    refusing_resource upstream(all);
    planned_options options = on(upstream);
    options.checks = seed % 2 == 0;
    planned_resource memory(options);
    const std::vector<action> usual = random_actions(random, 1 + random() % 60);
    int faults = 0;
    for (int s = 0; s < 60; ++s) {
      // Every fourth step deviates: another order, a request more or less, larger ones.
      std::vector<action> actions = usual;
      if (s % 4 == 3) {
        switch (random() % 4) {
          case 0:
            actions = random_actions(random, 1 + random() % 60);
            break;
          case 1:
            actions.resize(random() % actions.size());
            break;
          case 2:
            actions.push_back({1000, 10});
            break;
          default:
            for (action& a : actions) a.bytes += a.bytes > 0 ? random() % 500 : 0;
        }
      }
      faults += step_of(memory, actions);
    }
    CHECK(faults == 0);
    CHECK(memory.report().served > 0);
    CHECK(memory.report().missed_steps > 0);
  }
}

TEST_CASE("planned_resource: smaller requests are served, a larger one sends the rest of its step upstream") {
  allowance all;
  refusing_resource upstream(all);
  planned_resource memory(on(upstream));
  for (int s = 0; s < 4; ++s) step_of(memory, two_blocks());
  const long before = upstream.granted;
  CHECK(step_of(memory, {{0, 10}, {1, 20}, {0}, {2, 900}, {2}, {1}}) == 0);
  CHECK(upstream.granted == before);
  CHECK(memory.report().missed_steps == 0);
  CHECK(step_of(memory, {{0, 1000}, {1, 3009}, {0}, {2, 900}, {2}, {1}}) == 0);
  CHECK(upstream.granted == before + 2);
  CHECK(memory.report().missed_steps == 1);
  CHECK(step_of(memory, {{0, 1000, 128}, {1, 3000}, {0}, {2, 900}, {2}, {1}}) == 0);  // a larger alignment
  CHECK(upstream.granted == before + 2 + 1 + 3);  // and an arena with room for the larger one
}

TEST_CASE("planned_resource: two blocks that end in another order leave the plan; none is reused early") {
  planned_resource memory(on(*std::pmr::new_delete_resource()));
  for (int s = 0; s < 4; ++s) step_of(memory, two_blocks());
  const planned_report before = memory.report();
  // Block 2 has the place of block 0, which here still lives.
  CHECK(step_of(memory, {{0, 1000}, {1, 3000}, {2, 900}, {0}, {2}, {1}}) == 0);
  CHECK(step_of(memory, {{0, 1000}, {1, 3000}, {1}, {2, 900}, {2}, {0}}) == 0);
  CHECK(memory.report().missed_steps == before.missed_steps + 2);
  CHECK(memory.report().upstream == before.upstream + 2);
}

TEST_CASE(
    "planned_resource: steps that went on otherwise are recorded again after most_misses, and planned") {
  planned_options options = on(*std::pmr::new_delete_resource());
  options.most_misses = 2;
  planned_resource memory(options);
  for (int s = 0; s < 4; ++s) step_of(memory, two_blocks());
  const std::vector<action> others = {{0, 5000}, {1, 70}, {1}, {0}};
  step_of(memory, others);
  step_of(memory, two_blocks());  // a step as planned: the misses in a row begin again
  step_of(memory, others);
  CHECK(memory.report().plans == 1);
  step_of(memory, others);
  for (int s = 0; s < 3; ++s) step_of(memory, others);
  const index_t served = memory.report().served_steps;
  CHECK(step_of(memory, others) == 0);
  CHECK(memory.report().served_steps == served + 1);
  CHECK(memory.report().plans == 2);
}

TEST_CASE("planned_resource: requests that some steps are without are part of the plan") {
  const std::vector<action> with = {{0, 900},   {1, 5000}, {2, 40}, {2},     {1},
                                    {3, 70000}, {3},       {0},     {4, 10}, {4}};
  const std::vector<action> without = {{0, 900}, {3, 70000}, {3}, {0}};
  const std::vector<action> one = {{0, 900}, {1, 5000}, {1}, {3, 70000}, {3}, {0}};
  for (const bool checks : {false, true}) {
    planned_options options = on(*std::pmr::new_delete_resource());
    options.checks = checks;
    planned_resource memory(options);
    const std::vector<action>* const order[] = {&with, &without, &without, &one, &with};
    for (int s = 0; s < 5; ++s) CHECK(step_of(memory, *order[s]) == 0);
    const planned_report before = memory.report();
    CHECK(before.plans == 1);
    CHECK(before.missed_steps == 0);
    for (int s = 0; s < 5; ++s) CHECK(step_of(memory, *order[s]) == 0);
    const planned_report report = memory.report();
    CHECK(report.missed_steps == 0);
    CHECK(report.served_steps == before.served_steps + 5);
    CHECK(report.served == before.served + 5 + 2 + 2 + 3 + 5);
    CHECK(report.upstream == before.upstream);
    // Their end comes where it is not planned: it lives when the place of block 3 is requested.
    CHECK(step_of(memory, {{0, 900}, {1, 5000}, {3, 70000}, {3}, {1}, {0}}) == 0);
    CHECK(memory.report().missed_steps == 1);
  }
}

TEST_CASE("planned_resource: requests that never repeat go upstream for good after most_recorded steps") {
  planned_options options = on(*std::pmr::new_delete_resource());
  options.most_recorded = 5;
  planned_resource memory(options);
  for (std::size_t s = 0; s < 5; ++s) step_of(memory, {{0, 100 * (s + 1)}, {0}});
  for (int s = 0; s < 10; ++s) step_of(memory, two_blocks());
  CHECK(memory.report().plans == 0);
  CHECK(memory.report().arena_bytes == 0);
}

TEST_CASE("planned_resource: a request whose size varies is planned by the largest, and a quarter more") {
  planned_resource memory(on(*std::pmr::new_delete_resource()));
  for (const std::size_t bytes : {2600, 5000, 3000, 2700, 4000}) step_of(memory, {{0, bytes}, {0}});
  CHECK(step_of(memory, {{0, 5000}, {0}}) == 0);
  CHECK(memory.report().served == 2);
  CHECK(memory.report().planned_bytes == 6272);
  CHECK(step_of(memory, {{0, 6250}, {0}}) == 0);
  CHECK(memory.report().missed_steps == 0);
  CHECK(step_of(memory, {{0, 6273}, {0}}) == 0);
  CHECK(memory.report().missed_steps == 1);
  CHECK(memory.report().plans == 1);
  CHECK(step_of(memory, {{0, 7840}, {0}}) == 0);  // at once another plan
  CHECK(memory.report().missed_steps == 1);
  CHECK(memory.report().plans == 2);
}

TEST_CASE("planned_resource: steps of different sizes have plans of their own, near ones share one") {
  planned_resource memory(on(*std::pmr::new_delete_resource()));
  const auto actions = [](index_t samples) {
    std::vector<action> all = {{0, static_cast<std::size_t>(samples) * 64 + 1}, {0}};
    if (samples > 1000) all.insert(all.begin(), {{1, 640}, {1}});
    return all;
  };
  for (int s = 0; s < 4; ++s) {
    for (const index_t samples : {2048, 100, 1, 0}) step_of(memory, actions(samples), samples);
  }
  CHECK(memory.report().plans == 4);
  CHECK(memory.report().served_steps == 4);
  step_of(memory, actions(1990), 1990);  // the class of 2048
  CHECK(memory.report().served_steps == 5);
  step_of(memory, actions(2049), 2049);  // not
  CHECK(memory.report().served_steps == 5);
  CHECK(memory.report().missed_steps == 0);
}

TEST_CASE("planned_resource: a block that outlives its step is never in the arena") {
  allowance all;
  refusing_resource upstream(all);
  {
    planned_resource memory(on(upstream));
    void* kept = nullptr;
    for (int s = 0; s < 6; ++s) {
      const planned_resource::step step = memory.begin();
      void* const first = memory.allocate(100, 8);
      void* const fresh = memory.allocate(1000, 8);
      std::memset(fresh, 7, 1000);
      memory.deallocate(first, 100, 8);
      if (kept != nullptr) {
        CHECK(std::all_of(static_cast<char*>(kept), static_cast<char*>(kept) + 1000,
                          [](char c) { return c == 7; }));
        memory.deallocate(kept, 1000, 8);
      }
      kept = fresh;
    }
    CHECK(memory.report().served_steps >= 2);
    CHECK(memory.report().served >= 2);
    memory.deallocate(kept, 1000, 8);
  }
  CHECK(upstream.held == 0);
}

TEST_CASE("planned_resource: while a block of a served step lives on, no step is served") {
  planned_resource memory(on(*std::pmr::new_delete_resource()));
  for (int s = 0; s < 4; ++s) step_of(memory, two_blocks());
  actor late(memory);
  {
    const planned_resource::step step = memory.begin();
    late.run({0, 1000});
  }
  const index_t served = memory.report().served;
  for (int s = 0; s < 2; ++s) CHECK(step_of(memory, two_blocks()) == 0);
  CHECK(memory.report().served == served);
  late.end(0);
  CHECK(late.faults == 0);
  CHECK(step_of(memory, two_blocks()) == 0);
  CHECK(memory.report().served == served + 3);
}

TEST_CASE("planned_resource: requests outside of steps go upstream, and live through any number of them") {
  planned_resource memory(on(*std::pmr::new_delete_resource()));
  actor outside(memory);
  outside.run({0, 500});
  for (int s = 0; s < 6; ++s) CHECK(step_of(memory, two_blocks()) == 0);
  CHECK(memory.report().served == 9);
  {
    const planned_resource::step step = memory.begin();
    outside.end(0);  // no event of the plan
    actor a(memory);
    a.run(two_blocks());
  }
  CHECK(memory.report().served == 12);
  CHECK(memory.report().missed_steps == 0);
  CHECK(outside.faults == 0);
}

TEST_CASE("hazard H17: a block is of the arena by its address alone") {
  allowance all;
  refusing_resource upstream(all);
  planned_resource memory(on(upstream));
  for (int s = 0; s < 4; ++s) step_of(memory, two_blocks());
  const planned_resource::step step = memory.begin();
  void* const served = memory.allocate(1000, 16);
  // A block of the upstream resource that looks like one of the arena.
  void* const other = upstream.allocate(2000, 16);
  std::memset(served, 0x5a, 1000);
  std::memcpy(other, served, 1000);
  const std::size_t held = upstream.held;
  memory.deallocate(other, 2000, 16);
  CHECK(upstream.held == held - 2000);
  memory.deallocate(served, 1000, 16);
  CHECK(upstream.held == held - 2000);
}

TEST_CASE("planned_resource: chunks run on threads in any order, and each is served") {
  planned_options options = on(*std::pmr::new_delete_resource());
  options.chunks = {{0, 1}, {1, 3}, {1, 2}, {2, 3}, {3, 4}};
  std::mt19937_64 random(deeprec_test::seed());
  std::vector<std::vector<action>> actions;
  for (std::size_t c = 0; c < 5; ++c) actions.push_back(random_actions(random, 30));
  planned_resource memory(options);
  for (int s = 0; s < 20; ++s) {
    const planned_resource::step step = memory.begin();
    std::vector<int> faults(5);
    const auto run = [&](std::size_t c) {
      actor a(*memory.chunk(static_cast<index_t>(c)));
      a.run(actions[c]);
      faults[c] = a.faults;
    };
    run(0);
    std::thread beside([&] { run(1); });
    run(2);
    run(3);
    beside.join();
    run(4);
    CHECK(faults == std::vector<int>(5));
  }
  const planned_report report = memory.report();
  CHECK(report.served_steps == 17);
  CHECK(report.planned_bytes >= report.live_bytes);
  // Chunks that come after each other share bytes.
  planned_options apart = options;
  apart.chunks.assign(5, {});
  planned_resource all(apart);
  for (int s = 0; s < 4; ++s) {
    const planned_resource::step step = all.begin();
    for (std::size_t c = 0; c < 5; ++c) actor(*all.chunk(static_cast<index_t>(c))).run(actions[c]);
  }
  CHECK(report.planned_bytes < all.report().planned_bytes);
}

TEST_CASE("planned_resource: a block that outlives its phase keeps later chunks out of its bytes") {
  planned_options options = on(*std::pmr::new_delete_resource());
  options.chunks = {{0, 1}, {1, 2}, {2, 3}};
  planned_resource memory(options);
  const auto run = [&](bool late) {
    const planned_resource::step step = memory.begin();
    actor first(*memory.chunk(0)), second(*memory.chunk(1)), third(*memory.chunk(2));
    first.run({0, 1000});
    if (!late) first.end(0);
    second.run({{1, 2000}, {2, 500}, {1}, {2}});
    if (late) first.end(0);
    third.run({{3, 700}, {3}});
    return first.faults + second.faults + third.faults;
  };
  for (int s = 0; s < 5; ++s) CHECK(run(false) == 0);
  CHECK(memory.report().planned_bytes == 2048 + 512);
  const planned_report before = memory.report();
  CHECK(run(true) == 0);
  CHECK(memory.report().served == before.served + 2);  // of the first and the third chunk
  CHECK(memory.report().served_steps == before.served_steps);
  CHECK(run(false) == 0);
  CHECK(memory.report().served == before.served + 2 + 4);
  // One that outlives the step keeps all out of the arena.
  actor late(*memory.chunk(1));
  {
    const planned_resource::step step = memory.begin();
    actor(*memory.chunk(0)).run({{0, 1000}, {0}});
    late.run({1, 2000});
  }
  const index_t served = memory.report().served;
  CHECK(run(false) == 0);
  CHECK(memory.report().served == served);
  late.end(1);
  CHECK(late.faults == 0);
  CHECK(run(false) == 0);
  CHECK(memory.report().served == served + 4);
}

TEST_CASE("planned_resource: parts of a batch are served on whichever lane they run") {
  planned_options options = on(*std::pmr::new_delete_resource());
  options.lanes = 3;
  planned_resource memory(options);
  std::mt19937_64 random(deeprec_test::seed());
  const std::vector<action> part = random_actions(random, 30), whole = random_actions(random, 20);
  int faults = 0;
  for (int s = 0; s < 30; ++s) {
    const planned_resource::step step = memory.begin();
    actor a(memory);
    a.run(std::vector<action>(whole.begin(), whole.begin() + 1));  // lives beside the parts
    std::vector<std::thread> lanes;
    std::vector<int> of_lane(3);
    for (index_t lane = 0; lane < 3; ++lane) {
      lanes.emplace_back([&, lane, parts = random() % 4] {
        for (std::uint64_t p = 0; p < parts; ++p) {
          std::pmr::memory_resource* const to = memory.begin_part(lane);
          CHECK(to == memory.lane(lane));
          actor of_part(*to);
          of_part.run(part);
          of_lane[static_cast<std::size_t>(lane)] += of_part.faults;
        }
      });
    }
    for (std::thread& lane : lanes) lane.join();
    a.run(std::vector<action>(whole.begin() + 1, whole.end()));
    faults += a.faults + of_lane[0] + of_lane[1] + of_lane[2];
  }
  CHECK(faults == 0);
  const planned_report report = memory.report();
  CHECK(report.missed_steps == 0);
  CHECK(report.served_steps >= 30 - 3 - 4);  // steps in which no lane had a part
  CHECK(memory.lane(3) == std::pmr::new_delete_resource());
  CHECK(memory.chunk(1) == std::pmr::new_delete_resource());
}

TEST_CASE(
    "planned_resource: parts that request other blocks are part of the plan where some were recorded, else "
    "misses") {
  const std::vector<action> other = {{0, 5000}, {1, 1}, {1}, {0}};
  for (const bool from_the_start : {true, false}) {
    planned_options options = on(*std::pmr::new_delete_resource());
    options.lanes = 1;
    planned_resource memory(options);
    int faults = 0;
    const auto run = [&](bool differs) {
      const planned_resource::step step = memory.begin();
      for (int p = 0; p < 3; ++p) {
        actor a(*memory.begin_part(0));
        a.run(differs && p == 1 ? other : two_blocks());
        faults += a.faults;
      }
    };
    for (int s = 0; s < 6; ++s) run(from_the_start);
    CHECK(memory.report().plans == 1);
    run(true);
    CHECK(memory.report().missed_steps == (from_the_start ? 0 : 1));
    // The part behind the one that left its plan is served again.
    if (!from_the_start) CHECK(memory.report().served == 3 * 3 * 3 + 2 * 3);
    CHECK(faults == 0);
  }
}

TEST_CASE("planned_resource: where the upstream or the arena refuses, nothing is lost") {
  for (long allowed = 0; allowed < 10; ++allowed) {
    CAPTURE(allowed);
    allowance all;
    refusing_resource upstream(all);
    {
      planned_resource memory(on(upstream));
      all.left = allowed;
      for (int s = 0; s < 5; ++s) {
        const planned_resource::step step = memory.begin();
        actor a(memory);
        try {
          a.run(two_blocks());
        } catch (const std::bad_alloc&) {
        }
        CHECK(a.faults == 0);
      }
      CHECK(all.refused > 0);
      all.left = allowance::unlimited;
      for (int s = 0; s < 8; ++s) CHECK(step_of(memory, two_blocks()) == 0);
    }
    CHECK(upstream.held == 0);
  }
}

TEST_CASE("planned_resource: a served step has no page fault") {
  if (DEEPREC_SANITIZED != 0) return;  // shadow memory has some
  planned_options options;
  options.checks = false;
  planned_resource memory(options);
  const auto run = [&] {
    const planned_resource::step step = memory.begin();
    for (int i = 0; i < 3; ++i) {
      constexpr std::size_t bytes = std::size_t{24} << 20;
      void* const p = memory.allocate(bytes, 64);
      std::memset(p, i, bytes);
      memory.deallocate(p, bytes, 64);
    }
  };
  for (int s = 0; s < 5; ++s) run();
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  for (int s = 0; s < 3; ++s) run();
  getrusage(RUSAGE_SELF, &after);
  CHECK(memory.report().served == 5 * 3);
  // 18,432 where malloc maps each block; a few are of other memory of the process.
  CHECK(after.ru_minflt - before.ru_minflt < 50);
}

TEST_CASE(
    "planned_resource: with checks, a block that is freed twice and one that was never requested break the "
    "contract") {
  struct broken {};
  planned_options options = on(*std::pmr::new_delete_resource());
  options.checks = true;
  planned_resource memory(options);
  for (int s = 0; s < 4; ++s) CHECK(step_of(memory, two_blocks()) == 0);
  const violation_handler before = set_violation_handler([](const contract_violation&) { throw broken{}; });
  {
    const planned_resource::step step = memory.begin();
    void* const first = memory.allocate(1000, 16);
    void* const second = memory.allocate(3000, 16);
    CHECK_THROWS_AS(memory.deallocate(static_cast<std::byte*>(second) + 64, 64, 16), broken);
    memory.deallocate(first, 1000, 16);
    CHECK_THROWS_AS(memory.deallocate(first, 1000, 16), broken);
    memory.deallocate(second, 3000, 16);
  }
  set_violation_handler(before);
}

TEST_CASE("planned_resource: with checks, blocks hold NaN when they begin and after they end") {
  planned_options options = on(*std::pmr::new_delete_resource());
  options.checks = true;
  planned_resource memory(options);
  for (int s = 0; s < 6; ++s) {
    const planned_resource::step step = memory.begin();
    auto* const p = static_cast<float*>(memory.allocate(400, 16));
    if (memory.report().plans > 0) CHECK(std::all_of(p, p + 100, [](float x) { return x != x; }));
    std::fill(p, p + 100, 1.0F);
    memory.deallocate(p, 400, 16);
  }
  CHECK(memory.report().served == 3);
}
