// A micro_batch with barriers: layers that need the whole batch, between stages that run for its parts.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <vector>

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/dense/layers/dice.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/sgd.hpp>
#include <deeprec/schedule/micro_batch.hpp>

using namespace deeprec;

namespace {

std::size_t at(index_t i) { return static_cast<std::size_t>(i); }
thread_pool_options crowd(int threads) { return {.threads = threads, .oversubscribe = true}; }

constexpr micro_lanes small{.most = 4, .fewest = 2, .samples = 5};
constexpr index_t units = 3;

/// y = Dice(w x), with the gradient of w where that of y is the number of its sample, modulo 5.
struct dice_layer {
  std::vector<float> x, product, y, slope, of_product;
  std::vector<float> w{1, -2, 3}, of_w{0, 0, 0}, alpha{0.5F, 0.25F, 2}, of_alpha{0, 0, 0};
  std::vector<float> mean{0, 0, 0}, variance{0, 0, 0};
  index_t samples;

  explicit dice_layer(index_t n) : samples(n) {
    for (index_t k = 0; k < n * units; ++k) x.push_back(static_cast<float>((k * 5 + k / 3) % 7));
    product = y = slope = of_product = std::vector<float>(x.size());
  }
  matrix_view<float> all(std::vector<float>& of) const { return {of.data(), samples, units}; }
  dice_statistics<> statistics() { return {array_view<float>(mean), array_view<float>(variance)}; }

  void multiply(const micro_chunk& chunk) {
    const matrix_view<float> from = chunk.of(all(x)), to = chunk.of(all(product));
    for (index_t i = 0; i < chunk.count; ++i) {
      for (index_t j = 0; j < units; ++j) to(i, j) = w[at(j)] * from(i, j);
    }
  }
  template <class On>
  status forward(On& on) {
    return dice_forward(on, matrix_view<const float>(all(product)), array_view<const float>(alpha),
                        statistics(), all(y), {.mode = dice_mode::batch});
  }
  void loss(const micro_chunk& chunk) {
    const matrix_view<float> to = chunk.of(all(slope));
    for (index_t i = 0; i < chunk.count; ++i)
      std::fill_n(to.row(i), units, static_cast<float>((chunk.first + i) % 5));
  }
  template <class On>
  status backward(On& on) {
    return dice_backward(on, matrix_view<const float>(all(product)), array_view<const float>(alpha),
                         statistics(), matrix_view<const float>(all(slope)), all(of_product),
                         array_view<float>(of_alpha));
  }
  void multiply_backward(const micro_chunk& chunk, std::vector<float>& to) {
    const matrix_view<float> from = chunk.of(all(x)), of = chunk.of(all(of_product));
    to.assign(at(units), 0);
    for (index_t i = 0; i < chunk.count; ++i) {
      for (index_t j = 0; j < units; ++j) to[at(j)] += from(i, j) * of(i, j);
    }
  }
  void run_whole() {
    inline_executor here;
    const micro_chunk whole = chunk_of(samples, 1, 0);
    multiply(whole);
    REQUIRE(forward(here).ok());
    loss(whole);
    REQUIRE(backward(here).ok());
    multiply_backward(whole, of_w);
  }
};

template <class Executor>
void run_parts(Executor& on, dice_layer& layer, micro_batch<>& step, index_t lanes) {
  const bool by_lanes = lanes > 0;
  std::vector<std::vector<float>> gradients(at((std::max)(lanes, index_t{1})));
  executor_ref bulk(on);
  const auto nothing = [] {};
  step.stage("multiply", 0, [&](const micro_chunk& chunk) { layer.multiply(chunk); });
  step.barrier("dice", [&](const micro_chunk& all) {
    CHECK(all.count == layer.samples);
    return layer.forward(bulk);
  });
  step.stage("loss", by_lanes ? 0 : 1, [&](const micro_chunk& chunk) { layer.loss(chunk); });
  step.barrier("dice backward", [&](const micro_chunk&) { return layer.backward(bulk); });
  step.stage("multiply backward", 0, [&](const micro_chunk& chunk) {
    layer.multiply_backward(chunk, by_lanes ? gradients[at(chunk.lane)] : layer.of_w);
  });
  if (by_lanes) {
    step.sum_gradient(
        "multiply backward",
        [&](const micro_chunk& chunk) {
          return matrix_view<float>(gradients[at(chunk.lane)].data(), 1, units);
        },
        [&] { return matrix_view<float>(layer.of_w.data(), 1, units); });
  } else {
    step.sum_gradient("multiply backward", [&] { return matrix_view<float>(layer.of_w.data(), 1, units); });
  }
  step.update("w", sgd{}, nothing);
  for (int again = 0; again < 2; ++again) {
    layer.of_w.assign(at(units), -1);
    REQUIRE(step.run(on, layer.samples).ok());
  }
}

TEST_CASE("micro_batch::barrier: Dice between stages gets the whole batch, by lanes and by resources") {
  for (const index_t samples : {1, 2, 5, 7, 12, 23, 40}) {
    CAPTURE(samples);
    dice_layer whole(samples);
    whole.run_whole();
    std::vector<float> sum_of_lanes;
    for (const int threads : {1, 2, 3, 8}) {
      thread_pool pool(crowd(threads));
      dice_layer lanes(samples);
      micro_batch<> by_lanes(small, loss_reduction::sum);
      run_parts(pool, lanes, by_lanes, samples);  // each part is a lane of its own
      CHECK(lanes.y == whole.y);
      CHECK(lanes.mean == whole.mean);
      CHECK(lanes.of_product == whole.of_product);
      CHECK(lanes.of_alpha == whole.of_alpha);
      for (std::size_t j = 0; j < whole.of_w.size(); ++j)
        CHECK(lanes.of_w[j] == doctest::Approx(whole.of_w[j]));
      if (sum_of_lanes.empty()) sum_of_lanes = lanes.of_w;
      CHECK(lanes.of_w == sum_of_lanes);
      if (threads < 2) continue;
      dice_layer resources(samples);
      micro_batch<> by_resources(4, loss_reduction::sum);
      run_parts(pool, resources, by_resources, 0);
      CHECK(resources.y == whole.y);
      CHECK(resources.of_product == whole.of_product);
      for (std::size_t j = 0; j < whole.of_w.size(); ++j)
        CHECK(resources.of_w[j] == doctest::Approx(whole.of_w[j]));
    }
  }
}

TEST_CASE("micro_batch::barrier: no part is in work while it runs, and none begins before it has ended") {
  thread_pool pool(crowd(4));
  for (const bool by_lanes : {true, false}) {
    std::atomic<int> in_work{0}, before{0}, behind{0};
    int runs = 0;
    micro_batch<> lanes(micro_lanes{.most = 4, .fewest = 1, .samples = 1});
    micro_batch<> resources(9);
    micro_batch<>& step = by_lanes ? lanes : resources;
    const auto stage = [&](std::atomic<int>& count) {
      return [&](const micro_chunk&) {
        ++in_work;
        ++count;
        --in_work;
      };
    };
    step.stage("before", 0, stage(before));
    step.stage("before too", 1, stage(before));
    step.barrier("barrier", [&](const micro_chunk& all) {
      CHECK(in_work == 0);
      CHECK(before == 18 * (runs + 1));
      CHECK(behind == 9 * runs);
      CHECK(all.number == 0);
      CHECK(all.chunks == 1);
      CHECK(all.first == 0);
      CHECK(all.count == 9);
      ++runs;
    });
    step.stage("behind", 1, stage(behind));
    for (int again = 0; again < 20; ++again) REQUIRE(step.run(pool, 9).ok());
    CHECK(runs == 20);
    CHECK(behind == 180);
    REQUIRE(step.run(pool, 0).ok());
    CHECK(runs == 20);
  }
}

TEST_CASE("micro_batch::barrier: its failure ends the step, is named, and nothing behind it has run") {
  thread_pool pool(crowd(3));
  for (const bool by_lanes : {true, false}) {
    for (const int kind : {0, 1, 2}) {  // a status, an exception, a stop request
      std::atomic<int> behind{0};
      int updates = 0;
      bool bad = true;
      std::stop_source stop;
      micro_batch<> lanes(micro_lanes{.most = 4, .fewest = 1, .samples = 1});
      micro_batch<> resources(9);
      micro_batch<>& step = by_lanes ? lanes : resources;
      step.stage("before", 1, [](const micro_chunk&) {});
      step.barrier("barrier", [&](const micro_chunk&) -> status {
        if (!bad) return {};
        if (kind == 1) throw std::runtime_error("bad barrier");
        if (kind == 2) stop.request_stop();
        return kind == 0 ? status(errc::io_error, "gone") : status();
      });
      step.stage("behind", 1, [&](const micro_chunk&) { ++behind; });
      step.update("v", sgd{}, [&] { ++updates; });
      if (kind == 1) {
        CHECK_THROWS_WITH(static_cast<void>(step.run(pool, 9)), "bad barrier");
      } else {
        CHECK(step.run(pool, 9, stop.get_token()).code() == (kind == 0 ? errc::io_error : errc::stopped));
      }
      if (kind < 2) CHECK(step.report().part == "barrier");
      CHECK(step.report().chunk == -1);
      CHECK(behind == 0);
      CHECK(updates == 0);
      bad = false;
      CHECK(step.run(pool, 9).ok());
      CHECK(behind == 9);
      CHECK(updates == 1);
    }
  }
}

TEST_CASE("micro_batch::barrier: what is declared wrongly is an error that names it") {
  inline_executor here;
  const auto nothing = [](const micro_chunk&) {};
  const auto view = [] { return matrix_view<float>(); };
  micro_batch<> twice(2);
  twice.stage("a", 0, nothing);
  twice.barrier("a", nothing);
  CHECK(twice.run(here, 4).fault().message().find("must be of one stage (was \"a\")") != std::string::npos);
  micro_batch<> sum(2);
  sum.barrier("dice", nothing);
  sum.sum_gradient("dice", view);
  CHECK(sum.run(here, 4).fault().message().find("must run for each part (was \"dice\")") !=
        std::string::npos);
  micro_batch<> only(2);
  int runs = 0;
  only.barrier("alone", [&](const micro_chunk&) { ++runs; });
  CHECK(only.run(here, 4).ok());
  CHECK(runs == 1);
}

}  // namespace
