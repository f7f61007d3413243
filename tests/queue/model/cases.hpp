// Scenarios in a table: that each holds as it is, with full fences and with membarrier, and which of them
// catches each access that is made weaker, or left out.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "queue/model/explorer.hpp"

namespace deeprec_test::model {

struct tried_case {
  const char* name;
  outcome (*run)(const mutant&, const limits&);
  int stale = 2;
  int late = 0;
  std::uint64_t most = 0;  // executions; 0: all of them
};

template <class Scenario>
outcome explore_case(const mutant& broken, const limits& bounds) {
  explorer x;
  return x.explore([] { return std::make_unique<Scenario>(); }, broken, bounds);
}

// How often something took place, in all executions of one search: a scenario in which nothing happens proves
// nothing.
struct events {
  std::uint64_t hits = 0;    // a reader got what it was looking for
  std::uint64_t misses = 0;  // or not
  std::uint64_t reuses = 0;  // the owner used memory again
};
inline events happened;

constexpr std::uint64_t most_of_a_short_run = 400'000;

inline outcome run_case(const tried_case& one, bool membarrier, const mutant& broken = {}) {
  const bool is_long = std::getenv("DEEPREC_TEST_LONG") != nullptr;
  const std::uint64_t most = is_long ? 20'000'000 : one.most != 0 ? one.most : most_of_a_short_run;
  return one.run(
      broken,
      {.executions = most, .stale_reads = one.stale, .membarrier = membarrier, .late_stores = one.late});
}

// Prints a line for each; returns how many executions there were.
inline std::uint64_t each_holds(const std::vector<tried_case>& cases) {
  std::uint64_t total = 0;
  std::printf("  %-58s %5s %10s %13s %10s %10s %10s\n", "as they are", "stale", "fences", "interleavings",
              "hits", "misses", "reuses");
  for (const tried_case& one : cases) {
    for (const bool membarrier : {false, true}) {
      happened = {};
      const outcome o = run_case(one, membarrier);
      std::printf("  %-58s %5d %10s %13llu %10llu %10llu %10llu%s\n", one.name, one.stale,
                  membarrier ? "membarrier" : "full", static_cast<unsigned long long>(o.executions),
                  static_cast<unsigned long long>(happened.hits),
                  static_cast<unsigned long long>(happened.misses),
                  static_cast<unsigned long long>(happened.reuses), o.complete ? "" : "  not all");
      std::fflush(stdout);
      total += o.executions;
      CHECK_MESSAGE(!o.failed, std::string(one.name)
                                   << std::string(membarrier ? ", membarrier: " : ": ") << o.what);
      if (one.most == 0)
        CHECK_MESSAGE(o.complete, std::string(one.name) << " has more orders than a test takes");
      CHECK_MESSAGE(happened.hits > 0, std::string(one.name) << ": no reader finds anything");
    }
  }
  return total;
}

// An access that is broken on purpose, and with which fences that must be caught.
struct broken_site {
  deeprec::detail::access what;
  const char* name;
  mutant::kind_type how = mutant::relax;
  bool with_fences = true;  // or it does nothing there
  bool with_membarrier = true;
};

inline const char* word_for(mutant::kind_type how) {
  return how == mutant::omit ? "left out" : how == mutant::no_acquire ? "no acquire" : "relaxed";
}

inline void each_is_caught(const std::vector<tried_case>& cases, const std::vector<broken_site>& broken) {
  for (const broken_site& b : broken) {
    for (const bool membarrier : {false, true}) {
      const char* by = nullptr;
      outcome last;
      for (const tried_case& one : cases) {
        last = run_case(one, membarrier, {b.name, b.how, b.what});
        if (last.failed) {
          by = one.name;
          break;
        }
      }
      const bool must = membarrier ? b.with_membarrier : b.with_fences;
      std::printf("  %-16s %-10s %-10s  %s%s%s, %llu\n", b.name, word_for(b.how),
                  membarrier ? "membarrier" : "full",
                  by != nullptr ? "caught by: "
                  : must        ? "NOTHING"
                                : "nothing",
                  by != nullptr ? by : "", by != nullptr ? (": " + last.what).c_str() : "",
                  static_cast<unsigned long long>(last.executions + last.pruned));
      std::fflush(stdout);
      CHECK_MESSAGE((by != nullptr) == must, std::string(b.name)
                                                 << std::string(must ? " may be weakened: no scenario sees it"
                                                                     : " is caught where it does nothing"));
    }
  }
}

// A mistake of logic, in a scenario of its own.
inline void must_be_caught(const char* mistake, const tried_case& one, const char* expected) {
  for (const bool membarrier : {false, true}) {
    const outcome o = run_case(one, membarrier);
    std::printf("  %-46s %-10s  %s: %s, %llu\n", mistake, membarrier ? "membarrier" : "full",
                o.failed ? "caught" : "MISSED", o.what.c_str(),
                static_cast<unsigned long long>(o.executions + o.pruned));
    std::fflush(stdout);
    CHECK_MESSAGE(o.failed, std::string(mistake) << " is not caught");
    CHECK_MESSAGE(o.what.find(expected) != std::string::npos, std::string(mistake) << ": " << o.what);
  }
}

// Reads the sources, as the compiler found them, by an access that each of them has: each access for which
// they ask for more than relaxed, and each fence, is in the list, in one place, and no order is without an
// access.
inline void all_are_listed(const std::vector<broken_site>& listed,
                           const std::vector<deeprec::detail::access>& one_of_each_source) {
  std::map<std::string, int> found;
  for (const deeprec::detail::access one : one_of_each_source) {
    const site_use& where = sites[static_cast<std::size_t>(one)];
    REQUIRE(where.file != nullptr);
    std::ifstream in(where.file);
    REQUIRE_MESSAGE(in.good(), std::string(where.file));
    std::string text((std::istreambuf_iterator<char>(in)), {});
    text = std::regex_replace(text, std::regex("//[^\n]*"), "");
    const std::regex use(
        "(at|light_fence|heavy_fence)\\(\\s*(detail::)?access::(\\w+)(,\\s*std::memory_order_(\\w+))?");
    std::ptrdiff_t orders = 0;
    for (std::sregex_iterator i(text.begin(), text.end(), use), end; i != end; ++i) {
      const bool is_fence = (*i)[1].str() != "at";
      if (!is_fence && (*i)[5].str() == "relaxed") continue;
      ++found[(*i)[3].str()];
      orders += is_fence ? 0 : 1;
    }
    const std::regex order("memory_order_(acquire|release|acq_rel|seq_cst)");
    const auto all = std::distance(std::sregex_iterator(text.begin(), text.end(), order), {});
    CHECK_MESSAGE(all == orders, std::string(where.file)
                                     << ": an order stronger than relaxed without an access");
  }
  for (const broken_site& b : listed) {
    CHECK_MESSAGE(found[b.name] == 1, std::string(b.name) << " is used in " << found[b.name] << " places");
    CHECK_MESSAGE(!sites[static_cast<std::size_t>(b.what)].elsewhere, std::string(b.name)
                                                                          << " is used in two places");
    found.erase(b.name);
  }
  for (const auto& rest : found) CHECK_MESSAGE(false, rest.first << " is in no list");
}

}  // namespace deeprec_test::model
