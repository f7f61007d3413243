// Every access of the queues that is stronger than relaxed, and every fence, is needed: weakened alone, it is
// caught by some scenario. What none catches has to be relaxed. The sources are read too, so that no access
// is forgotten.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "queue/model/scenarios.hpp"

namespace {

using namespace deeprec_test::model;
using deeprec::detail::access;

// access, and how it is broken: an order becomes relaxed, a fence is left out.
struct site {
  deeprec::detail::access what;
  const char* name;
  mutant::kind_type how = mutant::relax;
};
const std::vector<site> stronger = {
    {deeprec::detail::access::slot_seen_free, "slot_seen_free"},
    {deeprec::detail::access::slot_number_free, "slot_number_free"},
    {deeprec::detail::access::slot_publish, "slot_publish"},
    {deeprec::detail::access::slot_hole, "slot_hole"},
    {deeprec::detail::access::slot_seen_full, "slot_seen_full"},
    {deeprec::detail::access::slot_release, "slot_release"},
    {deeprec::detail::access::close_mark, "close_mark"},
    {deeprec::detail::access::open_mark, "open_mark"},
    {deeprec::detail::access::closed_end, "closed_end"},
    {deeprec::detail::access::closed_put, "closed_put"},
    {deeprec::detail::access::closed_asked, "closed_asked"},
    {deeprec::detail::access::count_publish, "count_publish"},
    {deeprec::detail::access::count_seen, "count_seen"},
    {deeprec::detail::access::count_seen_n, "count_seen_n"},
    {deeprec::detail::access::taken_publish, "taken_publish"},
    {deeprec::detail::access::taken_publish_n, "taken_publish_n"},
    {deeprec::detail::access::taken_seen, "taken_seen"},
    {deeprec::detail::access::taken_seen_n, "taken_seen_n"},
    {deeprec::detail::access::taken_seen_size, "taken_seen_size"},
    {deeprec::detail::access::flag_seen_free, "flag_seen_free"},
    {deeprec::detail::access::flag_publish, "flag_publish"},
    {deeprec::detail::access::flag_seen_full, "flag_seen_full"},
    {deeprec::detail::access::flag_release, "flag_release"},
    {deeprec::detail::access::waiter_leave, "waiter_leave"},
    {deeprec::detail::access::epoch_raise, "epoch_raise"},
    {deeprec::detail::access::notify_one_fence, "notify_one_fence", mutant::omit},
    {deeprec::detail::access::notify_all_fence, "notify_all_fence", mutant::omit},
    {deeprec::detail::access::wait_fence, "wait_fence", mutant::omit},
    {deeprec::detail::access::cancel_mark, "cancel_mark"},
    {deeprec::detail::access::resume_mark, "resume_mark"},
    {deeprec::detail::access::cancel_seen, "cancel_seen"},
    {deeprec::detail::access::stack_seen, "stack_seen"},
    {deeprec::detail::access::stack_seen_again, "stack_seen_again"},
    {deeprec::detail::access::stack_push, "stack_push"},
};

struct killer {
  const char* name;
  outcome (*run)(const mutant&, const limits&);
  int stale = 1;
  bool membarrier = false;
  std::set<deeprec::detail::access> uses{};
};
template <class Face, const program& P, std::size_t Capacity>
outcome of_program(const mutant& m, const limits& l) {
  return explore<Face>(Capacity, P, m, l);
}
// Those that end soonest first.
std::vector<killer> all_killers() {
  return {
      {"told: put after close", explore_scenario<told_scenario<told::closed_put>>},
      {"told: take after close", explore_scenario<told_scenario<told::closed_take>>},
      {"told: is_closed()", explore_scenario<told_scenario<told::closed_asked>>},
      {"told: open again", explore_scenario<told_scenario<told::open_asked>>},
      {"told: cancelled", explore_scenario<told_scenario<told::cancelled>>},
      {"told: resumed", explore_scenario<told_scenario<told::resumed>>},
      {"spsc_ring, counters: was_size", explore_scenario<counted<counters_of_three>>},
      {"spsc_ring, counters: batches of 2", explore_scenario<batches<spsc_layout::counters>>},
      {"spsc_ring, flags: batches of 2", explore_scenario<batches<spsc_layout::flags>>},
      {"mpmc_ring: try x3 | try peek try, 1", of_program<ring_face, pair_try, 1>},
      {"mpmc_ring: a claim dies | take put, 1", explore_scenario<hole_scenario>},
      {"spsc_ring, flags: try x3 | try peek try, 1", of_program<flags, pair_try, 1>},
      {"spsc_ring, counters: try x3 | try peek try, 1", of_program<counters, pair_try, 1>},
      {"staging_pool: each buffer twice", explore_scenario<pool_again>},
      {"staging_pool: two wait for one buffer", explore_scenario<pool_scenario<2, 1>>},
      {"spsc_ring, flags: put put | take take, 1", of_program<flags, pair, 1>},
      {"cancel | take | take, 1", of_program<staging_face, cancelled_takers, 1>},
      {"a waiting room: a deadline beside a wait, membarrier", explore_scenario<room_deadline>, 2, true},
      {"reorder_buffer: put 1 | put 0 take take", explore_scenario<reorder_scenario>},
  };
}

constexpr std::uint64_t enough = 40'000;  // more than any of them takes to be caught

TEST_CASE("sites: each deeprec::detail::access stronger than relaxed is needed by some scenario") {
  std::vector<killer> killers = all_killers();
  std::printf("  %-52s %13s  %s\n", "as they are", "interleavings", "");
  for (killer& k : killers) {
    const auto before = sites;
    sites = {};
    const outcome o = k.run({}, {.executions = enough, .stale_reads = k.stale, .membarrier = k.membarrier});
    CHECK_MESSAGE(!o.failed, k.name << ": " << o.what);
    for (const site& s : stronger) {
      if (sites[static_cast<std::size_t>(s.what)].file != nullptr) k.uses.insert(s.what);
    }
    for (std::size_t i = 0; i < sites.size(); ++i) {
      if (before[i].file != nullptr)
        note_site(static_cast<deeprec::detail::access>(i), before[i].order, before[i].file, before[i].line);
    }
    std::printf("  %-52s %13llu  %s\n", k.name, static_cast<unsigned long long>(o.executions),
                o.complete ? "" : "not all");
    std::fflush(stdout);
  }
  std::printf("  %-18s %-32s %s\n", "weakened", "in", "caught by, after so many");
  for (const site& s : stronger) {
    std::string by;
    std::uint64_t tries = 0;
    for (const killer& k : killers) {
      if (k.uses.count(s.what) == 0) continue;
      const outcome o = k.run({s.name, s.how, s.what},
                              {.executions = enough, .stale_reads = k.stale, .membarrier = k.membarrier});
      tries = o.executions + o.pruned;
      if (o.failed) {
        by = k.name;
        break;
      }
    }
    const site_use& where = sites[static_cast<std::size_t>(s.what)];
    const std::string file = where.file != nullptr ? std::string(where.file) : "/nowhere";
    std::printf("  %-18s %-32s %s, %llu\n", s.name,
                (file.substr(file.rfind('/') + 1) + ":" + std::to_string(where.line)).c_str(),
                by.empty() ? "NOTHING" : by.c_str(), static_cast<unsigned long long>(tries));
    std::fflush(stdout);
    CHECK_MESSAGE(!by.empty(), std::string(s.name) << " may be weakened: no scenario sees it");
    CHECK_MESSAGE(!where.elsewhere, std::string(s.name) << " is used in two places");
  }
}

// The sources, as the compiler found them: each order that they ask for, by its access.
TEST_CASE("sites: no access of the sources that is stronger than relaxed is left out of the list") {
  static_cast<void>(of_program<ring_face, pair_try, 1>({}, {}));
  const site_use& one = sites[static_cast<std::size_t>(deeprec::detail::access::slot_publish)];
  REQUIRE(one.file != nullptr);
  const std::string folder = std::string(one.file).substr(0, std::string(one.file).rfind("/detail/"));
  std::map<std::string, std::vector<std::string>> found;
  std::size_t relaxed = 0;
  for (const char* name : {"/detail/slot_ring.hpp", "/detail/index_stack.hpp", "/ring_handles.hpp",
                           "/event_count.hpp", "/wait_strategies.hpp", "/mpmc_ring.hpp", "/spsc_ring.hpp",
                           "/reorder_buffer.hpp", "/staging_queue.hpp", "/detail/staging_core.hpp",
                           "/taken_item.hpp", "/staging_pool.hpp", "/packed_batch.hpp"}) {
    std::ifstream in(folder + name);
    REQUIRE_MESSAGE(in.good(), std::string(folder + name));
    const std::string text((std::istreambuf_iterator<char>(in)), {});
    const std::regex use(
        "(at|light_fence|heavy_fence)\\((?:detail::)?access::(\\w+)(,\\s*(std::memory_order_)?(\\w+))?");
    for (std::sregex_iterator i(text.begin(), text.end(), use), end; i != end; ++i) {
      const std::string order = (*i)[5].matched ? (*i)[5].str() : "fence";
      if (order == "relaxed") {
        ++relaxed;
      } else {
        found[(*i)[2].str()].push_back(std::string(name) + ": " + order);
      }
    }
    // And none is without a name. Comments and the short names of the orders aside.
    const std::regex bare("(memory_order_|, )(acquire|release|acq_rel|seq_cst)\\b");
    const std::regex named("access::\\w+,\\s*(std::)?$");
    for (std::sregex_iterator i(text.begin(), text.end(), bare), end; i != end; ++i) {
      std::string before = text.substr(0, static_cast<std::size_t>(i->position()));
      if ((*i)[1].str() == ", ") before += ", ";
      const std::string line = before.substr(before.rfind('\n') + 1);
      if (line.find("//") != std::string::npos || line.find("constexpr") != std::string::npos) continue;
      const std::string end_of_it = before.substr(before.size() < 100 ? 0 : before.size() - 100);
      CHECK_MESSAGE(std::regex_search(end_of_it, named), std::string(name) << ": " << line << (*i)[0].str());
    }
  }
  CHECK(relaxed > 30);
  for (const site& s : stronger) {
    CHECK_MESSAGE(found[s.name].size() == 1, std::string(s.name)
                                                 << " is used in " << found[s.name].size() << " places");
    found.erase(s.name);
  }
  for (const auto& rest : found)
    CHECK_MESSAGE(false, rest.first << " is in no list: " << rest.second.front());
}

}  // namespace
