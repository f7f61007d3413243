// What growing costs: keys that are inserted, the longest wait of who inserts, and the bytes.
//
//   growing/insert/keys:20M       batches of 4096 keys of which 5 % are new, by the thread's time: find, then
//                                 put of the absent ones, over a peer's emplace (absl and phmap prefetch);
//                                 speedup over the best. Codes are compared in each round
//   growing/pause/keys:20M        the longest batch of 4096 new keys while an index grows from nothing, on
//                                 pages that were touched before; by the thread's time
//   growing/pause/keys:20M/absl   the same of a peer
//   growing/bytes                 bytes of the index a key, the most between 3 and 40 million keys
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory_resource>
#include <optional>
#include <string>
#include <vector>

#include "growing/sides.hpp"
#include "support/add.hpp"
#include "support/figures.hpp"

namespace {

using namespace growing_bench;
using namespace deeprec_bench;

constexpr std::uint64_t million = 1'000'000;

/// Ours and the peers with the same keys.
struct all_sides {
  explicit all_sides(std::uint64_t keys) {
    fill(mine, 0, keys);
    for (const peer_build& build : peer_builds()) {
      peers.emplace_back(build, huge_page_resource::shared(), keys);
      fill(peers.back(), 0, keys);
    }
  }
  ours mine;
  std::deque<peer> peers;  // they stay where they are
};

void insert(benchmark::State& state, const std::string& name, std::uint64_t keys) {
  if (peer_builds().empty()) return state.SkipWithError("no peer here");
  std::size_t bytes_per_key = ours::bytes_per_key;
  for (const peer_build& build : peer_builds()) bytes_per_key += build.map.bytes_per_key;
  if (!memory_plan::of(keys * bytes_per_key).unfit.empty())
    return state.SkipWithError("unfit: no memory for so many keys in all peers");
  for (auto _ : state) {
    const by_thread_time clock;
    figures f(name);
    for (const char* const wanted : peer_names) {
      if (builds_of(wanted).empty()) f.unfit(std::string("no ") + wanted + " here");
    }
    std::optional<all_sides> sides(keys);
    pass batches;
    std::uint64_t added = 0;
    bool right = true;
    const auto seconds_with = [&](auto& side) {
      const double seconds = seconds_of([&] { batches.insert(side); });
      right = batches.was_right() && right;
      return seconds;
    };
    std::map<std::string, std::vector<double>> ratios;
    f.sample([&] {
      if (added > keys / 4) {  // before a peer doubles, which is what growing/pause is about
        sides.reset();
        sides.emplace(keys);
        added = 0;
      }
      added += batches.draw_growing(keys);
      double mine = 0;
      if (!f.swapped()) mine = seconds_with(sides->mine);
      std::vector<double> theirs;
      for (peer& one : sides->peers) theirs.push_back(seconds_with(one));
      if (f.swapped()) mine = seconds_with(sides->mine);
      const auto in_ns = [](double seconds) { return seconds / static_cast<double>(pass::size) * 1e9; };
      f.note("ns_per_key", in_ns(mine));
      for (std::size_t i = 0; i < theirs.size(); ++i) {
        const std::string& of = sides->peers[i].name();
        f.add("speedup", theirs[i] / mine, of);
        f.note("ns_per_key_" + of, in_ns(theirs[i]));
        ratios[of].push_back(theirs[i] / mine);
      }
    });
    if (!right) return state.SkipWithError("wrong answer: other codes");
    const auto best = std::min_element(ratios.begin(), ratios.end(), [](const auto& a, const auto& b) {
      return median(a.second) < median(b.second);
    });
    f.say("best peer: " + best->first);
    f.report(state);
  }
}

struct growth {
  double longest = 0;  // seconds of a batch
  double longest_by_wall = 0;
  double all = 0;
};

template <class Side>
growth grow(Side& side, std::uint64_t keys) {
  growth g;
  std::vector<std::uint32_t> codes(batch);
  each_batch(0, keys, [&](const std::uint64_t* of, std::size_t n, std::uint64_t i) {
    const double start = thread_seconds(), wall_start = steady_seconds();
    side.insert(of, n, static_cast<std::uint32_t>(i + 1), codes.data());
    const double seconds = thread_seconds() - start;
    g.longest_by_wall = std::max(g.longest_by_wall, steady_seconds() - wall_start);
    g.longest = std::max(g.longest, seconds);
    g.all += seconds;
  });
  return g;
}

/// Of ours: an empty name.
void pause(benchmark::State& state, const std::string& name, std::uint64_t keys,
           const std::string& peer_name) {
  const std::vector<peer_build> builds = builds_of(peer_name);
  if (!peer_name.empty() && builds.empty()) return state.SkipWithError(("no " + peer_name + " here").c_str());
  // What a resource hands out until the end: of peers, all the arrays on the way to the last.
  const std::size_t bytes = keys * (peer_name.empty() ? 32 : 2 * builds[0].map.bytes_per_key);
  if (!memory_plan::of(bytes).unfit.empty()) return state.SkipWithError("unfit: no memory for so many keys");
  void* const touched = huge_page_resource::shared()->allocate(bytes, huge_page_size);
  inline_executor here;
  prefault(here, touched, bytes);
  for (auto _ : state) {
    figures f(name);
    f.note("on_huge_pages", share_on_huge_pages(touched));
    const auto one = [&](auto&& make, const std::string& which) {
      std::pmr::monotonic_buffer_resource memory(touched, bytes, huge_page_resource::shared());
      auto side = make(&memory);
      const growth g = grow(side, keys);
      f.add("milliseconds", g.longest * 1e3, which);
      f.note("milliseconds_by_the_wall", g.longest_by_wall * 1e3);
      f.note("ns_per_key", g.all / static_cast<double>(keys) * 1e9);
    };
    f.sample([&] {
      if (peer_name.empty()) one([](auto* memory) { return ours(memory); }, "");
      for (const peer_build& build : builds_of(peer_name))
        one([&](auto* memory) { return peer(build, memory); }, build.name);
    });
    f.report(state);
  }
  huge_page_resource::shared()->deallocate(touched, bytes, huge_page_size);
}

void bytes(benchmark::State& state, const std::string& name) {
  constexpr std::uint64_t least = 3 * million, most = 40 * million;
  if (!memory_plan::of(most * ours::bytes_per_key).unfit.empty())
    return state.SkipWithError("unfit: no memory for so many keys");
  std::uint64_t from = 0;
  for (auto _ : state) {
    figures f(name);
    f.sample([&] {
      ours side;
      double worst = 0;
      std::vector<std::uint32_t> codes(batch);
      each_batch(from, from + most, [&](const std::uint64_t* keys, std::size_t n, std::uint64_t) {
        side.insert(keys, n, 1, codes.data());
        const auto size = static_cast<std::uint64_t>(side.index().size());
        if (size >= least)
          worst = std::max(worst, static_cast<double>(side.index().bytes()) / static_cast<double>(size));
      });
      f.add("bytes_per_key", worst);
      from += most;
    });
    f.report(state);
  }
}

const bool registered = [] {
  using state = benchmark::State;
  using string = std::string;
  add("growing/insert/keys:20M", [](state& s, const string& name) { insert(s, name, 20 * million); });
  add("growing/pause/keys:20M", [](state& s, const string& name) { pause(s, name, 20 * million, ""); });
  for (const string peer : peer_names) {
    add("growing/pause/keys:20M/" + peer,
        [peer](state& s, const string& name) { pause(s, name, 20 * million, peer); });
  }
  add("growing/bytes", bytes);
  return true;
}();

}  // namespace
