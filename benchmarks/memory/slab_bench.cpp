// Blocks of one size: slab_resource, called as a std::pmr::memory_resource, and malloc.
//
//   memory/slab/bytes:B       up to 4 M blocks, 256 MB: taken and given back in order, and at random: the
//                             time of malloc, the faster of its builds, over ours (speedup; in that time
//                             ours makes and ends the resource). Noted beside it: jemalloc and mimalloc
//                             over ours, where this machine has them, in a process of their own
//   memory/slab/pool/bytes:B  the same over std::pmr::synchronized_pool_resource
//   memory/slab/threads:2     40 bytes, two threads, each its own blocks of one resource, over malloc
//   memory/slab/fragmentation 512 MB of blocks of each size: bytes mapped over bytes asked, less 1; the most
//
// Before a side is timed, its blocks are checked: apart from each other, and whole. Memory is touched before,
// so that a first touch in a virtual machine is nobody's.
#include <benchmark/benchmark.h>

#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory_resource>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/memory/slab_resource.hpp>

#include "memory/baseline.hpp"
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

/// One side in a process whose malloc is another library's: seconds of both patterns.
struct peer_times {
  double in_order = 0, at_random = 0;
};
constexpr const char* peer_variable = "DEEPREC_BENCH_BLOCKS_OF";

/// In that process: called before main.
[[noreturn]] void run_as_peer(std::size_t bytes) {
  blocks all(bytes);
  all.prepare();
  peer_times best{1e9, 1e9};
  for (int k = 0; k < 3; ++k) {
    best.in_order = std::min(best.in_order, seconds_of([&] { native::malloc_in_order(all.all()); }));
    best.at_random = std::min(best.at_random, seconds_of([&] { native::malloc_at_random(all.all()); }));
  }
  std::printf("%.9f %.9f\n", best.in_order, best.at_random);
  std::fflush(stdout);
  std::_Exit(0);
}
std::optional<peer_times> times_of_peer(const std::string& library, std::size_t bytes) {
  std::string path;
  for (const char* const folder : {"/usr/lib/x86_64-linux-gnu/", "/usr/lib/aarch64-linux-gnu/", "/usr/lib64/",
                                   "/usr/lib/", "/usr/local/lib/"}) {
    if (path.empty() && std::filesystem::exists(folder + library)) path = folder + library;
  }
  if (path.empty()) return std::nullopt;
  const std::string command = std::string(peer_variable) + "=" + std::to_string(bytes) +
                              " LD_PRELOAD=" + path + " /proc/" + std::to_string(::getpid()) + "/exe";
  std::FILE* const out = ::popen(command.c_str(), "r");
  if (out == nullptr) return std::nullopt;
  peer_times read;
  const bool is_read = std::fscanf(out, "%lf %lf", &read.in_order, &read.at_random) == 2;
  return ::pclose(out) == 0 && is_read ? std::optional(read) : std::nullopt;
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
    f.sample([&] {
      double ours[2] = {0, 0};
      const auto one = [&](const std::string& which, const auto& on, pattern theirs, double& best) {
        const auto [mine, other] = f.pair(
            "speedup", which,
            [&] {
              slab_resource slab(static_cast<index_t>(bytes));
              run(on, slab, r);
            },
            [&] { theirs(r); }, prepare);
        best = best == 0 ? mine : std::min(best, mine);
        f.note("ns_a_block_" + which, mine / count * 1e9);
      };
      one("in_order_o2", in_order_on, o2::malloc_in_order, ours[0]);
      one("in_order_native", in_order_on, native::malloc_in_order, ours[0]);
      one("at_random_o2", at_random_on, o2::malloc_at_random, ours[1]);
      one("at_random_native", at_random_on, native::malloc_at_random, ours[1]);
      if (!f.counts() || f.rounds() % 7 != 0) return;
      for (const char* const peer : {"jemalloc", "mimalloc"}) {
        const auto times = times_of_peer(std::string("lib") + peer + ".so.2", bytes);
        if (!times) continue;
        f.note(std::string(peer) + "_in_order", times->in_order / ours[0]);
        f.note(std::string(peer) + "_at_random", times->at_random / ours[1]);
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
  if (const char* const bytes = std::getenv(peer_variable)) run_as_peer(std::strtoul(bytes, nullptr, 10));
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
