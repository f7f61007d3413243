// Keys that are looked up: one thread and its processor time, batches of 4096 uniform keys, 2 MB pages.
//
//   growing/find/present/keys:20M/lines   key_index over reading the home lines alone, the best of a sweep
//   growing/find/present/keys:20M/absl    over a peer in the faster of two builds: absl and phmap prefetch 16
//                                         keys ahead, boost visits in bulk, libcuckoo and tbb find one by one
//   growing/find/absent/...               keys that are not there
//
// With 1, 20 and 100 million keys. Codes are compared before anything is timed.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "growing/sides.hpp"
#include "support/add.hpp"
#include "support/figures.hpp"
#include "support/roofline.hpp"

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

struct key_index_access {
  static const void* home_line(const key_index& index, std::uint64_t key) noexcept {
    const std::uint64_t h = index.directory_.hash(key);
    const auto of_key = segment_word<std_atomics>::unpack(index.directory_.segment_of(h));
    return of_key.buckets() + home_of(h, of_key.log2());
  }
};

}}}  // namespace deeprec::DEEPREC_ABI::detail

namespace {

using namespace growing_bench;
using namespace deeprec_bench;

struct shape {
  bool is_present;
  std::uint64_t keys;

  void draw(pass& of) const { is_present ? of.draw_present(keys) : of.draw_absent(keys); }
};
constexpr std::uint64_t million = 1'000'000;

double in_ns(double seconds) { return seconds / static_cast<double>(pass::size) * 1e9; }

/// Why the index is not cold; empty where it is, or should not be.
std::string not_cold(const ours& side) {
  const auto bytes = static_cast<std::size_t>(side.index().bytes());
  if (side.index().size() <= static_cast<index_t>(million) || bytes >= 2 * last_level_cache()) return {};
  return in_megabytes(bytes) + " of index are not twice the last-level cache of " +
         in_megabytes(last_level_cache());
}

/// How much memory a resource gave, and on which pages.
void note_pages(figures& f, const huge_page_resource& pages, std::uint64_t keys, const std::string& which) {
  const huge_page_report report = pages.report();
  const auto share = [](std::size_t part, double of) { return static_cast<double>(part) / of; };
  f.note("bytes_per_key" + which, share(report.mapped, static_cast<double>(keys)));
  f.note("on_huge_pages" + which, share(report.transparent_huge, static_cast<double>(report.resident)));
}

void over_lines(benchmark::State& state, const std::string& name, shape of) {
  if (!memory_plan::of(of.keys * ours::bytes_per_key).unfit.empty())
    return state.SkipWithError("unfit: no memory for so many keys");
  huge_page_resource pages;
  ours side(&pages);
  fill(side, 0, of.keys);
  pass probes;
  std::vector<const void*> lines(pass::size);
  const auto next = [&] {
    of.draw(probes);
    for (std::size_t k = 0; k < lines.size(); ++k)
      lines[k] = detail::key_index_access::home_line(side.index(), probes.keys()[k]);
  };
  next();
  probes.find(side);
  if (!probes.was_right()) return state.SkipWithError("wrong answer: other codes");

  std::vector<candidate> limits;
  for (const auto read : {&o2::read_lines, &native::read_lines}) {
    for (const std::size_t ahead : {16, 32, 64}) {
      limits.push_back(
          {(read == &o2::read_lines ? "o2, " : "native, ") + std::to_string(ahead) + " ahead",
           [&lines, read, ahead] { benchmark::DoNotOptimize(read(lines.data(), lines.size(), ahead)); }});
    }
  }
  for (auto _ : state) {
    const by_thread_time clock;
    figures f(name);
    f.unfit(not_cold(side));
    note_pages(f, pages, of.keys, "");
    const candidate limit = fastest(limits, next);
    f.say("lines: " + limit.name);
    f.sample([&] {
      const auto [found, read] = f.pair("roofline", "", [&] { probes.find(side); }, limit.run, next);
      f.note("ns_per_key", in_ns(found));
      f.note("ns_per_line", in_ns(read));
    });
    f.report(state);
  }
}

void over_peer(benchmark::State& state, const std::string& name, shape of, const std::string& peer_name) {
  const std::vector<peer_build> builds = builds_of(peer_name);
  if (builds.empty()) return state.SkipWithError(("no " + peer_name + " here").c_str());
  std::size_t bytes_per_key = ours::bytes_per_key;
  for (const peer_build& build : builds) bytes_per_key += build.map.bytes_per_key;
  if (!memory_plan::of(of.keys * bytes_per_key).unfit.empty())
    return state.SkipWithError("unfit: no memory for so many keys in both builds");

  huge_page_resource pages, peer_pages;
  ours side(&pages);
  fill(side, 0, of.keys);
  pass probes;
  const auto next = [&] { of.draw(probes); };
  std::deque<peer> peers;  // they stay where they are
  for (const peer_build& build : builds) {
    peers.emplace_back(build, &peer_pages, of.keys);
    fill(peers.back(), 0, of.keys);
  }
  next();
  probes.find(side);
  bool right = probes.was_right();
  for (const peer& one : peers) {
    probes.find(one);
    right = probes.was_right() && right;
  }
  if (!right) return state.SkipWithError("wrong answer: other codes");

  for (auto _ : state) {
    const by_thread_time clock;
    figures f(name);
    f.unfit(not_cold(side));
    note_pages(f, pages, of.keys, "");
    note_pages(f, peer_pages, of.keys * builds.size(), "_" + peer_name);
    f.sample([&] {
      for (const peer& one : peers) {
        const auto [found, theirs] =
            f.pair("speedup", one.name(), [&] { probes.find(side); }, [&] { probes.find(one); }, next);
        f.note("ns_per_key", in_ns(found));
        f.note("ns_per_key_" + one.name(), in_ns(theirs));
      }
    });
    f.report(state);
  }
}

const bool registered = [] {
  using state = benchmark::State;
  using string = std::string;
  for (const string peer : peer_names) {
    const std::vector<peer_build> builds = builds_of(peer);
    if (!builds.empty() && *builds[0].map.version != '\0')
      benchmark::AddCustomContext("peer." + peer, builds[0].map.version);
  }
  for (const std::uint64_t millions : {1, 20, 100}) {
    for (const bool is_present : {true, false}) {
      const string prefix = string("growing/find/") + (is_present ? "present" : "absent") +
                            "/keys:" + std::to_string(millions) + "M/";
      const shape of{is_present, millions * million};
      add(prefix + "lines", [of](state& s, const string& name) { over_lines(s, name, of); });
      for (const string peer : peer_names)
        add(prefix + peer, [of, peer](state& s, const string& name) { over_peer(s, name, of, peer); });
    }
  }
  return true;
}();

}  // namespace
