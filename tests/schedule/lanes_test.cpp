// A micro_batch by lanes: each part of a batch on one thread, gradients of weights summed in a tree.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <latch>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/random.hpp>
#include <deeprec/dense/layers/mlp.hpp>
#include <deeprec/dense/losses/logistic_loss.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/adagrad.hpp>
#include <deeprec/optim/sgd.hpp>
#include <deeprec/schedule/micro_batch.hpp>

#include "support/seed.hpp"

using namespace deeprec;

namespace {

std::size_t at(index_t i) { return static_cast<std::size_t>(i); }
thread_pool_options crowd(int threads) { return {.threads = threads, .oversubscribe = true}; }

TEST_CASE(
    "micro_lanes: parts depend on the number of samples, are as even as can be, and lie within the bounds") {
  for (const micro_lanes by :
       {micro_lanes{}, micro_lanes{.most = 1}, micro_lanes{.most = 3, .fewest = 2, .samples = 5},
        micro_lanes{.most = 4, .fewest = 7, .samples = 3}}) {
    CHECK(chunk_count(0, by) == 0);
    CHECK(chunk_count(-1, by) == 0);
    for (index_t b = 1; b < 3000; b += 1 + b / 50) {
      const index_t chunks = chunk_count(b, by);
      REQUIRE(chunks >= 1);
      index_t next = 0;
      for (index_t m = 0; m < chunks; ++m) {
        const micro_chunk c = chunk_of(b, chunks, m);
        CHECK(c.first == next);
        CHECK(c.count >= 1);
        CHECK(c.count <= by.samples);
        next += c.count;
      }
      CHECK(next == b);
      if (b <= std::min(by.fewest, by.samples)) CHECK(chunks == 1);
    }
  }
  CHECK(chunk_count(128, micro_lanes{}) == 2);
  CHECK(chunk_count(2048, micro_lanes{}) == 16);
  CHECK(chunk_count(8192, micro_lanes{}) == 64);
}

// A table, a stack and a loss with weights of samples, trained by parts; or, without lanes, as a whole.
struct model {
  static constexpr index_t rows = 40, width = 4, hotness = 3;
  dense_table<f32_rows> table;
  mlp<> stack{{width, 9, 1}, 3};
  model() : table(rows, f32_rows(width, {.state_floats = width})) {
    table.initialize(inline_executor{}, row_init::uniform{.seed = 3, .bound = 0.5F});
  }
  [[nodiscard]] std::vector<float> values() {
    const auto* const first = reinterpret_cast<const float*>(table.view().data());
    std::vector<float> all(first, first + static_cast<std::size_t>(table.bytes()) / sizeof(float));
    const matrix_view<float> weights = stack.parameters();
    all.insert(all.end(), weights.data_handle(), weights.data_handle() + weights.extent(1));
    stack.weights_settled();
    return all;
  }
};
struct batch {
  std::vector<std::int64_t> ids;
  std::vector<float> labels, sample_weights;
  batch(index_t samples, std::uint64_t seed) {
    std::mt19937_64 random(deeprec_test::seed() + seed);
    for (index_t k = 0; k < samples * model::hotness; ++k) {
      ids.push_back(static_cast<std::int64_t>(random() % model::rows));
    }
    for (index_t b = 0; b < samples; ++b) {
      labels.push_back(static_cast<float>(random() % 2));
      sample_weights.push_back(static_cast<float>(random() % 8) / 4);
    }
  }
  [[nodiscard]] index_t samples() const { return static_cast<index_t>(labels.size()); }
  [[nodiscard]] fixed_hotness_view<> bags() const { return {ids.data(), samples(), model::hotness}; }
};

constexpr micro_lanes small{.most = 5, .fewest = 3, .samples = 6};

template <class Executor>
result<void> train(Executor& executor, model& m, const batch& data, const micro_lanes& by,
                   loss_reduction reduction) {
  struct lane {
    mlp_pass pass;
    std::vector<float> slope;
  };
  std::vector<lane> lanes;
  for (index_t k = 0; k < by.most; ++k) lanes.push_back({m.stack.make_pass(), {}});
  std::vector<float> pooled(at(data.samples() * model::width)), gradient(pooled.size());
  const auto view = [&](std::vector<float>& v) {
    return matrix_view<float>(v.data(), data.samples(), model::width);
  };
  micro_batch<> step(by, reduction);
  step.stage("pool", 0, [&](const micro_chunk& chunk) {
    const inline_executor here;
    return lookup(here, m.table.view(), chunk.of(data.bags()), combiner::mean, chunk.of(view(pooled)));
  });
  step.stage("dense", 1, [&](const micro_chunk& chunk) -> status {  // no thread of its own by lanes
    const inline_executor here;
    lane& mine = lanes[at(chunk.lane)];
    if (const status s = m.stack.forward(here, mine.pass, chunk.of(view(pooled))); !s) return s;
    mine.slope.resize(at(chunk.count));
    const matrix_view<float> slope(mine.slope.data(), chunk.count, 1);
    const matrix_view<const float> labels(data.labels.data() + chunk.first, chunk.count, 1);
    if (const status s = logistic_loss_backward(here, mine.pass.output(), labels, slope); !s) return s;
    for (index_t i = 0; i < chunk.count; ++i) {
      slope(i, 0) *= data.sample_weights[at(chunk.first + i)];
      if (reduction == loss_reduction::sum) slope(i, 0) *= static_cast<float>(chunk.count);
    }
    if (const status s = m.stack.backward(here, mine.pass, slope); !s) return s;
    const matrix_view<float> to = chunk.of(view(gradient));
    for (index_t i = 0; i < chunk.count; ++i) {
      std::copy_n(mine.pass.input_gradient().row(i), model::width, to.row(i));
    }
    return {};
  });
  step.layer("stack", m.stack);
  step.sum_gradient(
      "dense", [&](const micro_chunk& chunk) { return lanes[at(chunk.lane)].pass.gradients(); },
      [&] { return m.stack.gradients(); });
  step.sample_gradient("dense", [&] { return view(gradient); });
  int updates = 0;
  step.update("stack", adagrad{.learning_rate = 0.1F}, [&] {
    ++updates;
    return m.stack.step(executor, adagrad{.learning_rate = 0.1F});
  });
  step.update("table", adagrad{.learning_rate = 0.1F}, [&] {
    ++updates;
    return update(executor, m.table.view(), data.bags(), combiner::mean,
                  matrix_view<const float>(view(gradient)), adagrad{.learning_rate = 0.1F});
  });
  result<void> done = step.run(executor, data.samples());
  if (done.ok()) CHECK(updates == (data.samples() > 0 ? 2 : 0));
  return done;
}

TEST_CASE("micro_batch by lanes: the same bits for 1, 2, 3 and 8 threads, for every remainder") {
  thread_pool two(crowd(2)), three(crowd(3)), eight(crowd(8));
  for (index_t b = 0; b <= 70; b += b < 20 ? 1 : 5) {
    CAPTURE(b);
    for (const loss_reduction reduction : {loss_reduction::mean, loss_reduction::sum}) {
      const batch data(b, static_cast<std::uint64_t>(b));
      model alone, whole;
      const std::vector<float> before = alone.values();
      inline_executor here;
      REQUIRE(train(here, alone, data, small, reduction).ok());
      if (b == 0) CHECK(alone.values() == before);
      for (thread_pool* pool : {&two, &three, &eight}) {
        for (int again = 0; again < 3; ++again) {
          model m;
          REQUIRE(train(*pool, m, data, small, reduction).ok());
          REQUIRE(m.values() == alone.values());
        }
      }
      // The whole batch as one part: other orders of the sums, the same numbers.
      REQUIRE(train(here, whole, data, {.most = 1, .fewest = 1000, .samples = 1000}, reduction).ok());
      const std::vector<float> got = alone.values(), expected = whole.values();
      for (std::size_t i = 0; i < got.size(); ++i)
        REQUIRE(got[i] == doctest::Approx(expected[i]).epsilon(1e-3));
    }
  }
}

// Gradients that are integers: the tree loses and doubles none of them, whatever its shape.
TEST_CASE("micro_batch by lanes: the sum has every part's gradient once") {
  thread_pool pool(crowd(4));
  for (index_t chunks = 1; chunks <= 40; ++chunks) {
    const micro_lanes by{.most = 4, .fewest = 1, .samples = 1};
    std::vector<std::vector<float>> of_lane(4, std::vector<float>(3));
    std::vector<float> sum(3, -1);
    micro_batch<> step(by, loss_reduction::sum);
    std::mutex mutex;
    std::set<index_t> busy;
    int shared = 0;
    step.stage("count", 0, [&](const micro_chunk& chunk) {
      {
        const std::lock_guard lock(mutex);
        if (!busy.insert(chunk.lane).second) ++shared;
      }
      of_lane[at(chunk.lane)] = {1, static_cast<float>(chunk.number),
                                 static_cast<float>(chunk.number * chunk.number)};
      if (chunk.number % 3 == 0) std::this_thread::yield();
      const std::lock_guard lock(mutex);
      busy.erase(chunk.lane);
    });
    step.sum_gradient(
        "count",
        [&](const micro_chunk& chunk) { return matrix_view<float>(of_lane[at(chunk.lane)].data(), 1, 3); },
        [&] { return matrix_view<float>(sum.data(), 1, 3); });
    for (int again = 0; again < 5; ++again) {
      REQUIRE(step.run(pool, chunks).ok());
      float first = 0, second = 0;
      for (index_t c = 0; c < chunks; ++c)
        first += static_cast<float>(c), second += static_cast<float>(c * c);
      REQUIRE(sum == std::vector<float>{static_cast<float>(chunks), first, second});
    }
    CHECK(shared == 0);
  }
}

TEST_CASE("micro_batch by lanes: threads share a batch") {
  thread_pool pool(crowd(3));
  micro_batch<> step(micro_lanes{.most = 3, .fewest = 1, .samples = 1});
  std::latch all(3);  // passes only where three parts run at once
  step.stage("meet", 0, [&](const micro_chunk&) { all.arrive_and_wait(); });
  CHECK(step.run(pool, 3).ok());
}

TEST_CASE(
    "micro_batch by lanes: a failure in any part leaves nothing running, updates nothing, and is named") {
  for (const int threads : {1, 2, 4}) {
    thread_pool pool(crowd(threads));
    for (const int kind : {0, 1, 2}) {  // a status, an exception, a stop request
      for (index_t bad_chunk = 0; bad_chunk < 9; ++bad_chunk) {
        for (const char* const bad_stage : {"a", "b"}) {
          std::stop_source stop;
          std::atomic<int> running{0};
          int updates = 0;
          bool bad = true;
          std::vector<float> sum(1);
          std::vector<std::vector<float>> gradients(4, std::vector<float>(1, 1));
          micro_batch<> step(micro_lanes{.most = 4, .fewest = 1, .samples = 1}, loss_reduction::sum);
          for (const char* const name : {"a", "b"}) {
            step.stage(name, 0, [&, name](const micro_chunk& chunk) -> status {
              ++running;
              struct leave {
                std::atomic<int>& count;
                ~leave() { --count; }
              } const guard{running};
              gradients[at(chunk.lane)][0] = 1;
              if (!bad || std::string(name) != bad_stage || chunk.number != bad_chunk) return {};
              if (kind == 1) throw std::runtime_error("bad part");
              if (kind == 2) stop.request_stop();
              return kind == 0 ? status(errc::io_error, "gone") : status();
            });
          }
          step.sum_gradient(
              "b",
              [&](const micro_chunk& chunk) {
                return matrix_view<float>(gradients[at(chunk.lane)].data(), 1, 1);
              },
              [&] { return matrix_view<float>(sum.data(), 1, 1); });
          step.update("v", sgd{}, [&] { ++updates; });
          std::string thrown;
          errc code = errc::ok;
          try {
            code = step.run(pool, 9, stop.get_token()).code();
          } catch (const std::runtime_error& e) {
            thrown = e.what();
          }
          REQUIRE(running == 0);
          REQUIRE(updates == 0);
          if (kind == 2) {
            CHECK(code == errc::stopped);
          } else {
            CHECK(step.report().part == bad_stage);
            CHECK(step.report().chunk == bad_chunk);
            CHECK((kind == 0 ? code == errc::io_error : thrown == "bad part"));
          }
          bad = false;
          CHECK(step.run(pool, 9).ok());  // the next batch
          CHECK(updates == 1);
          CHECK(sum[0] == 9);
        }
      }
    }
  }
}

TEST_CASE("micro_batch by lanes: what can't be treated so is an error that names it") {
  inline_executor here;
  const auto text = [&](auto&& declare, const micro_lanes& by = {}) {
    micro_batch<> step(by);
    declare(step);
    const result<void> done = step.run(here, 4);
    return done.ok() ? std::string() : done.fault().message();
  };
  const auto contains = [](const std::string& all, const char* part) {
    return all.find(part) != std::string::npos;
  };
  const auto nothing = [](const micro_chunk&) {};
  const auto view = [] { return matrix_view<float>(); };
  CHECK(contains(text([](auto&) {}, {.most = 0}), "at least 1"));
  CHECK(contains(text([](auto&) {}, {.fewest = 0}), "at least 1"));
  CHECK(contains(text([](auto&) {}, {.samples = -1}), "at least 1"));
  CHECK(contains(text([&](auto& s) { s.stage("a", 0, nothing), s.sum_gradient("a", view); }), "of a lane"));
  CHECK(contains(text([&](auto& s) {
                   s.sum_gradient("b", [](const micro_chunk&) { return matrix_view<float>(); }, view);
                 }),
                 "\"b\""));
  struct batch_norm {
  } const norm;  // declares nothing, as statistics over the batch must
  CHECK(contains(text([&](auto& s) { s.layer("norm", norm); }), "\"norm\""));  // statistics over the batch
  micro_batch<> by_parts(2);
  by_parts.stage("a", 0, nothing);
  by_parts.sum_gradient("a", [](const micro_chunk&) { return matrix_view<float>(); }, view);
  CHECK(by_parts.run(here, 4).code() == errc::unsupported);
  // Bulk work is all that lanes ask of an executor; resources ask for tasks.
  executor_ref bulk(here);
  micro_batch<> lanes(micro_lanes{});
  lanes.stage("a", 5, nothing);
  CHECK(lanes.run(bulk, 4).ok());
  CHECK(lanes.run(bulk, -1).code() == errc::invalid_value);
  micro_batch<> resources(2);
  resources.stage("a", 1, nothing);
  CHECK(resources.run(bulk, 4).code() == errc::unsupported);
}

}  // namespace
