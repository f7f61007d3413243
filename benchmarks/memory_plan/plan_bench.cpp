// What plans of memory need, and how long they take to make.
//
//   memory_plan/minimalloc           the public instances A to F of MiniMalloc, each known to fit in
//                                    1,048,576 bytes: `reached`, how many plans take no more; `worst`, the
//                                    largest plan over that; each plan, and the best of the orders. Default
//                                    options, and 10 seconds for each at most
//   memory_plan/orders/minimalloc    those instances one after the other, again and again, up to 10^4 blocks:
//                                    `milliseconds` of the six orders together
//   memory_plan/orders/nested        the same for 10^4 blocks of which half are released in the opposite
//                                    order, as activations are by a backward pass: each overlaps thousands
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include <deeprec/memory/plans/block_plan.hpp>
#include <deeprec/memory/plans/check_block_plan.hpp>

#include "support/add.hpp"
#include "support/figures.hpp"

namespace {

using namespace deeprec;
using deeprec_bench::add;
using deeprec_bench::figures;
using deeprec_bench::seconds_of;

using lifetimes = std::vector<block_lifetime>;

constexpr double known_height = 1'048'576;
constexpr const char* no_instances = "no instances: set DEEPREC_DATA_DIR";
constexpr const char* wrong_plan = "wrong answer: a plan that check_block_plan refuses";

/// The instances, with their names; empty where they aren't here. Lines of id, first time, last time, bytes.
std::vector<std::pair<std::string, lifetimes>> instances() {
  std::vector<std::pair<std::string, lifetimes>> read;
  const char* const folder = std::getenv("DEEPREC_DATA_DIR");
  if (folder == nullptr) return read;
  for (char name = 'A'; name <= 'F'; ++name) {
    std::ifstream in(std::string(folder) + "/minimalloc/" + name + ".csv");
    lifetimes blocks;
    std::string line;
    std::getline(in, line);
    while (std::getline(in, line)) {
      std::replace(line.begin(), line.end(), ',', ' ');
      std::istringstream numbers(line);
      std::int64_t id = 0;
      block_lifetime b{.alignment = 1};
      numbers >> id >> b.begin >> b.end >> b.bytes;
      blocks.push_back(b);
    }
    if (!blocks.empty()) read.emplace_back(std::string(1, name), blocks);
  }
  return read;
}

bool is_right(const lifetimes& blocks, const block_plan& plan) {
  return check_block_plan(blocks, plan.offsets, plan.bytes).ok();
}

block_plan_options only_orders() {
  block_plan_options options;
  options.policies = options.policies.without(block_policy::search);
  return options;
}

void minimalloc(benchmark::State& state, const std::string& name) {
  const auto all = instances();
  if (all.empty()) return state.SkipWithError(no_instances);
  for (auto _ : state) {
    figures f(name);
    bool right = true;
    f.sample([&] {
      double reached = 0, worst = 0;
      for (const auto& [which, blocks] : all) {
        block_plan_options options;
        options.time_limit = std::chrono::seconds(10);
        block_plan plan;
        f.note("milliseconds_" + which,
               1e3 * seconds_of([&] { plan = plan_blocks(blocks, options).or_throw(); }));
        right = is_right(blocks, plan) && right;
        const double height = static_cast<double>(plan.bytes) / known_height;
        const std::size_t of_orders = plan_blocks(blocks, only_orders()).or_throw().bytes;
        f.note("height_" + which, height);
        f.note("orders_" + which, static_cast<double>(of_orders) / known_height);
        reached += height <= 1 ? 1 : 0;
        worst = std::max(worst, height);
      }
      f.add("reached", reached);
      f.add("worst", worst);
    });
    if (!right) return state.SkipWithError(wrong_plan);
    f.report(state);
  }
}

void orders(benchmark::State& state, const std::string& name, const lifetimes& blocks) {
  const block_plan plan = plan_blocks(blocks, only_orders()).or_throw();
  if (!is_right(blocks, plan)) return state.SkipWithError(wrong_plan);
  for (auto _ : state) {
    figures f(name);
    f.sample([&] {
      const double seconds =
          seconds_of([&] { benchmark::DoNotOptimize(plan_blocks(blocks, only_orders()).or_throw().bytes); });
      f.add("milliseconds", 1e3 * seconds);
    });
    f.note("blocks", static_cast<double>(blocks.size()));
    f.note("of_live_bytes", static_cast<double>(plan.bytes) / static_cast<double>(plan.live_bytes));
    f.report(state);
  }
}

lifetimes repeated_instances(std::size_t least) {
  const auto all = instances();
  lifetimes blocks;
  std::int64_t begin = 0;
  while (!all.empty() && blocks.size() < least) {
    for (const auto& [which, instance] : all) {
      std::int64_t end = begin;
      for (const block_lifetime& b : instance) {
        blocks.push_back({begin + b.begin, begin + b.end, b.bytes, b.alignment});
        end = std::max(end, begin + b.end);
      }
      begin = end;
    }
  }
  return blocks;
}

lifetimes nested(std::int64_t count) {
  std::mt19937_64 random(1);
  lifetimes blocks;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::size_t bytes = 64 * (1 + random() % 1000);
    const std::int64_t end =
        i % 2 == 0 ? 2 * i + 3 + static_cast<std::int64_t>(random() % 8) : 4 * count - 2 * i;
    blocks.push_back({2 * i, end, bytes, 64});
  }
  return blocks;
}

const bool registered = [] {
  using state = benchmark::State;
  using string = std::string;
  add("memory_plan/minimalloc", minimalloc);
  add("memory_plan/orders/minimalloc", [](state& s, const string& name) {
    const lifetimes blocks = repeated_instances(10'000);
    if (blocks.empty()) return s.SkipWithError(no_instances);
    orders(s, name, blocks);
  });
  add("memory_plan/orders/nested", [](state& s, const string& name) { orders(s, name, nested(10'000)); });
  return true;
}();

}  // namespace
