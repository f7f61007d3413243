// Blocks of one size: slab_resource, called as a std::pmr::memory_resource, and malloc.
//
//   memory/slab/bytes:B       up to 4 M blocks, 256 MB: taken and given back in order, and at random: the
//                             time of malloc, the faster of its builds, over ours (speedup; in that time
//                             ours makes and ends the resource). Noted beside it: jemalloc, mimalloc
//                             and tcmalloc over ours, where this machine has them
//   memory/slab/pool/bytes:B  the same over std::pmr::synchronized_pool_resource
//   memory/slab/threads:2     40 bytes, two threads, each its own blocks of one resource, over malloc
//   memory/slab/fragmentation 512 MB of blocks of each size: bytes mapped over bytes asked, less 1; the most
//
// Before a side is timed, its blocks are checked: apart from each other, and whole. Memory is touched before,
// so that a first touch in a virtual machine is nobody's.
#include <benchmark/benchmark.h>

#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory_resource>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/memory/slab_resource.hpp>

#include "memory/baseline.hpp"
#include "memory/peer_malloc.hpp"
#include "support/add.hpp"
#include "support/figures.hpp"
#include "support/machine.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bench;
using memory_bench::at_random;
using memory_bench::in_order;
using memory_bench::pattern;
using memory_bench::request;

constexpr std::size_t megabyte = std::size_t{1} << 20;

/// Touches memory and gives it back.
void warm(std::size_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return;
  ::madvise(memory, bytes, MADV_HUGEPAGE);
  std::memset(memory, 1, bytes);
  ::munmap(memory, bytes);
}

/// Blocks of one size, and the order in which they are given back.
class blocks {
 public:
  explicit blocks(std::size_t bytes, std::size_t most = std::size_t{4} << 20)
      : bytes_(bytes), order_(std::min(most, 256 * megabyte / bytes)), addresses_(order_.size()) {
    std::iota(order_.begin(), order_.end(), 0U);
    std::shuffle(order_.begin(), order_.end(), std::mt19937_64(7));
    std::fill(addresses_.begin(), addresses_.end(), addresses_.data());
  }
  [[nodiscard]] request all() { return {bytes_, order_.size(), order_.data(), addresses_.data()}; }
  [[nodiscard]] std::size_t count() const { return order_.size(); }
  /// Before a side is timed.
  void prepare() const {
    ::malloc_trim(0);
    warm(std::max(std::size_t{64}, bytes_ * 3 / 2) * count());
  }

  /// Whether blocks of a resource are apart, and keep what is written to them.
  bool are_right(std::pmr::memory_resource& memory) {
    request r = all();
    r.count = std::min(r.count, std::size_t{100'000});
    const auto write = [&](std::size_t k) {
      r.blocks[k] = memory.allocate(r.bytes, 4);
      std::memset(r.blocks[k], static_cast<int>(k % 251), r.bytes);
    };
    for (std::size_t k = 0; k < r.count; ++k) write(k);
    for (std::size_t k = 0; k < r.count; k += 3) memory.deallocate(r.blocks[k], r.bytes, 4);
    for (std::size_t k = 0; k < r.count; k += 3) write(k);
    bool right = true;
    for (std::size_t k = 0; k < r.count; ++k) {
      const auto* const at = static_cast<const unsigned char*>(r.blocks[k]);
      right = right && std::all_of(at, at + r.bytes, [&](unsigned char b) { return b == k % 251; });
      memory.deallocate(r.blocks[k], r.bytes, 4);
    }
    return right;
  }

 private:
  std::size_t bytes_;
  std::vector<std::uint32_t> order_;
  std::vector<void*> addresses_;
};

/// A pattern on a resource that nothing is known of.
template <class Pattern>
void run(const Pattern& steps, std::pmr::memory_resource& of, const request& r) {
  std::pmr::memory_resource* memory = &of;
  benchmark::DoNotOptimize(memory);
  steps(
      r, [memory](std::size_t bytes) { return memory->allocate(bytes, 4); },
      [memory](void* block, std::size_t bytes) { memory->deallocate(block, bytes, 4); });
}
const auto in_order_on = [](const request& r, const auto& take, const auto& give) {
  in_order(r, take, give);
};
const auto at_random_on = [](const request& r, const auto& take, const auto& give) {
  at_random(r, take, give);
};

/// The malloc side of over_malloc in the process of a peer: seconds of both patterns.
[[noreturn]] void run_as_peer(std::size_t bytes) {
  blocks all(bytes);
  all.prepare();
  double best[2] = {1e9, 1e9};
  for (int k = 0; k < 3; ++k) {
    best[0] = std::min(best[0], seconds_of([&] { native::malloc_in_order(all.all()); }));
    best[1] = std::min(best[1], seconds_of([&] { native::malloc_at_random(all.all()); }));
  }
  memory_bench::end_as_peer({best[0], best[1]});
}
constexpr std::string_view peer_task = "slab:";

/// The faster of two builds, by three runs of each.
pattern faster_of(pattern one, pattern other, const blocks& of, const request& r) {
  double best[2] = {1e9, 1e9};
  for (int k = 0; k < 6; ++k) {
    of.prepare();
    best[k % 2] = std::min(best[k % 2], seconds_of([&] { (k % 2 == 0 ? one : other)(r); }));
  }
  return best[0] < best[1] ? one : other;
}

void over_malloc(benchmark::State& state, const std::string& name, std::size_t bytes) {
  if (!memory_plan::of(std::size_t{3} << 30).unfit.empty()) return state.SkipWithError("unfit: no memory");
  blocks all(bytes);
  for (auto _ : state) {
    figures f(name);
    {
      slab_resource slab(static_cast<index_t>(bytes));
      if (!all.are_right(slab)) return state.SkipWithError("wrong answer: a block was not whole");
    }
    const request r = all.all();
    const auto prepare = [&] { all.prepare(); };
    const auto count = static_cast<double>(all.count());
    const pattern theirs_in_order = faster_of(o2::malloc_in_order, native::malloc_in_order, all, r);
    const pattern theirs_at_random = faster_of(o2::malloc_at_random, native::malloc_at_random, all, r);
    f.sample([&] {
      double ours[2] = {0, 0};
      const auto one = [&](const std::string& which, const auto& on, pattern theirs, double& seconds) {
        seconds = f.pair(
                       "speedup", which,
                       [&] {
                         slab_resource slab(static_cast<index_t>(bytes));
                         run(on, slab, r);
                       },
                       [&] { theirs(r); }, prepare)
                      .first;
        f.note("ns_a_block_" + which, seconds / count * 1e9);
      };
      one("in_order", in_order_on, theirs_in_order, ours[0]);
      one("at_random", at_random_on, theirs_at_random, ours[1]);
      if (!f.counts() || f.rounds() % 7 != 0) return;
      for (const memory_bench::peer_malloc& peer : memory_bench::peer_mallocs) {
        const auto seconds =
            memory_bench::figures_of_peer(peer, std::string(peer_task) + std::to_string(bytes), 2);
        if (seconds.empty()) continue;
        f.note(std::string(peer.name) + "_in_order", seconds[0] / ours[0]);
        f.note(std::string(peer.name) + "_at_random", seconds[1] / ours[1]);
      }
    });
    f.report(state);
  }
}

void over_pool(benchmark::State& state, const std::string& name, std::size_t bytes) {
  blocks all(bytes, std::size_t{1} << 20);
  for (auto _ : state) {
    figures f(name);
    const request r = all.all();
    f.sample([&] {
      const auto one = [&](const std::string& which, const auto& on) {
        f.pair(
            "speedup", which,
            [&] {
              slab_resource slab(static_cast<index_t>(bytes));
              run(on, slab, r);
            },
            [&] {
              std::pmr::synchronized_pool_resource pool;
              run(on, pool, r);
            },
            [&] { all.prepare(); });
      };
      one("in_order", in_order_on);
      one("at_random", at_random_on);
    });
    f.report(state);
  }
}

void threads(benchmark::State& state, const std::string& name) {
  constexpr std::size_t bytes = 40;
  const std::vector<int> cpus = usable_cpus();
  blocks mine(bytes, std::size_t{1} << 20), other(bytes, std::size_t{1} << 20);
  for (auto _ : state) {
    figures f(name);
    if (cpus.size() < 2) f.unfit("one CPU");
    const auto both = [&](const auto& call) {
      std::atomic<int> ready{0};
      const auto run_one = [&](blocks& of) {
        ++ready;
        while (ready.load() < 2) {
        }
        call(of.all());
      };
      std::thread second([&] { run_one(other); });
      run_one(mine);
      second.join();
    };
    const auto prepare = [&] {
      mine.prepare();
      other.prepare();
    };
    f.sample([&] {
      for (const auto& [which, theirs] : {std::pair("o2", pattern{o2::malloc_at_random}),
                                          std::pair("native", pattern{native::malloc_at_random})}) {
        f.pair(
            "speedup", which,
            [&] {
              slab_resource slab(bytes);
              both([&](const request& r) { run(at_random_on, slab, r); });
            },
            [&] { both(theirs); }, prepare);
      }
    });
    f.report(state);
  }
}

void fragmentation(benchmark::State& state, const std::string& name) {
  if (!memory_plan::of(std::size_t{1} << 30).unfit.empty()) return state.SkipWithError("unfit: no memory");
  for (auto _ : state) {
    figures f(name);
    f.sample([&] {
      double most = 0;
      for (const std::size_t bytes : {4, 40, 80, 256}) {
        slab_resource slab(static_cast<index_t>(bytes));
        const std::size_t count = 512 * megabyte / bytes;
        for (std::size_t k = 0; k < count; ++k) benchmark::DoNotOptimize(slab.allocate(bytes, 4));
        const double share =
            static_cast<double>(slab.report().mapped) / static_cast<double>(count * bytes) - 1;
        f.note("of_" + std::to_string(bytes), share);
        most = std::max(most, share);
      }
      f.add("fragmentation", most);
    });
    f.report(state);
  }
}

const bool registered = [] {
  if (const std::string_view task = memory_bench::task_as_peer(); task.starts_with(peer_task))
    run_as_peer(std::strtoul(task.data() + peer_task.size(), nullptr, 10));
  for (const std::size_t bytes : {4, 40, 80, 256}) {
    add("memory/slab/bytes:" + std::to_string(bytes),
        [bytes](benchmark::State& s, const std::string& n) { over_malloc(s, n, bytes); });
    add("memory/slab/pool/bytes:" + std::to_string(bytes),
        [bytes](benchmark::State& s, const std::string& n) { over_pool(s, n, bytes); });
  }
  add("memory/slab/threads:2", threads);
  add("memory/slab/fragmentation", fragmentation);
  return true;
}();

}  // namespace
