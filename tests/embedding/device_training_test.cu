// update on a device steps rows as the host does: optimizers, formats, policies, runs of every length.
#include <deeprec/embedding/tables/split_bf16_rows.hpp>
#include <deeprec/embedding/training/update.cuh>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/optim/optimizers.hpp>

#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "support/on_device.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

inline_executor here;

std::vector<float> normals(std::mt19937_64& random, std::size_t n) {
  std::normal_distribution<float> normal;
  std::vector<float> made(n);
  for (float& x : made) x = normal(random);
  return made;
}

/// How far rows and states are apart, relative to 1 + |x|, after one update of both.
template <class Format, class Optimizer, class How, class Rounding = rounding::nearest_t>
double off_by(Format format, const batch_on_both<>& bags, bool weighted, const How& how,
              const Optimizer& optimizer, std::mt19937_64& random, std::size_t shift = 0,
              const Rounding& rounding = {}, index_t rows = 60) {
  table_on_both<Format> table(format, rows, random, shift);
  const index_t width = format.width();
  const std::vector<float> gradient = normals(random, static_cast<std::size_t>(bags.bags() * width));
  const auto of_output = to_device(gradient);
  update(here, table.on_host(), bags.host.view(weighted), how,
         matrix_view<const float>(gradient.data(), bags.bags(), width), optimizer, rounding)
      .or_throw();
  cuda_stream stream;
  update(stream, table.mutable_view(), bags.view(weighted), how, of_output.matrix(bags.bags(), width),
         optimizer, rounding)
      .or_throw();
  stream.synchronize().or_throw();
  auto stepped = back(table.on_device, table.bytes.size());
  double most = 0;
  for (index_t r = 0; r < rows; ++r) {
    const auto at = static_cast<std::ptrdiff_t>(shift) + r * format.stride_bytes();
    std::byte* const theirs = stepped.data() + at;
    std::byte* const ours = table.bytes.data() + at;
    std::vector<float> a(static_cast<std::size_t>(width)), b(a.size());
    format.decode(theirs, a.data());
    format.decode(ours, b.data());
    most = (std::max)(most, apart(a, b));
    const auto floats = static_cast<std::size_t>(format.state_floats());
    std::vector<float> state_a(floats), state_b(floats);
    if (floats == 0) continue;
    std::copy_n(format.state(theirs), floats, state_a.begin());
    std::copy_n(format.state(ours), floats, state_b.begin());
    most = (std::max)(most, apart(state_a, state_b));
  }
  return most;
}

batch_on_both<> some_bags(std::mt19937_64& random, shape_of_batch shape, index_t bags, index_t rows,
                          index_t hotness) {
  auto made = make_batch<std::int64_t, std::int32_t>(random, shape, bags, rows, hotness);
  for (float& w : made.weights) w = 0.5F * static_cast<float>(random() % 7) - 1.0F;
  return batch_on_both<>(std::move(made));
}

template <class Optimizer>
void check_optimizer(const Optimizer& optimizer) {
  std::mt19937_64 random(seed());
  const auto bags = some_bags(random, shape_of_batch::uniform, 70, 60, 3);
  for (const index_t width : {16, 21}) {
    CAPTURE(width);
    const index_t state = Optimizer::row_state + Optimizer::element_state * width;
    CHECK(off_by(f32_rows(width, {.state_floats = state}), bags, true, combiner::mean, optimizer, random) <=
          2e-3);
    CHECK(off_by(bf16_rows(width, {.state_floats = state}), bags, false, combiner::sum, optimizer, random) <=
          0x1p-6);
  }
}

}  // namespace

TEST_CASE("device training: every optimizer") {
  check_optimizer(sgd{.learning_rate = 0.1F});
  check_optimizer(momentum{.learning_rate = 0.1F});
  check_optimizer(adagrad{.learning_rate = 0.1F, .epsilon = 1e-2F});
  check_optimizer(rowwise_adagrad{.learning_rate = 0.1F, .epsilon = 1e-2F});
  check_optimizer(adagrad_decay{.learning_rate = 0.1F});
  check_optimizer(rmsprop{.learning_rate = 0.1F, .epsilon = 1e-2F});
  check_optimizer(centered_rmsprop{.learning_rate = 0.1F, .epsilon = 1e-1F});
  check_optimizer(adam{.learning_rate = 0.1F, .epsilon = 1e-2F});
  check_optimizer(rowwise_adam{.learning_rate = 0.1F, .epsilon = 1e-2F});
  check_optimizer(adam_async{.learning_rate = 0.1F, .epsilon = 1e-2F});
  check_optimizer(adam_async_rmsprop{.learning_rate = 0.1F, .epsilon = 1e-2F});
  check_optimizer(ftrl{.learning_rate = 0.1F});
  check_optimizer(clipped_by_norm{with_weight_decay{sgd{.learning_rate = 0.1F}, 0.01F}, 1.0F});
  check_optimizer(with_decoupled_decay{adam{.learning_rate = 0.1F, .epsilon = 1e-2F}, 0.01F});
}

TEST_CASE("device training: formats of 16 bits, roundings, rows that begin anywhere") {
  std::mt19937_64 random(seed());
  const auto bags = some_bags(random, shape_of_batch::skewed, 70, 60, 3);
  const rowwise_adagrad optimizer{.learning_rate = 0.1F, .epsilon = 1e-2F};
  CHECK(off_by(f16_rows(24, {.state_floats = 1}), bags, true, combiner::sum, optimizer, random) <= 0x1p-9);
  CHECK(off_by(split_bf16_rows(24, {.state_floats = 1}), bags, true, combiner::sum, optimizer, random) <=
        1e-3);
  CHECK(off_by(f32_rows(24, {.state_floats = 1}), bags, true, combiner::sum, optimizer, random, 4) <= 1e-3);
  CHECK(off_by(bf16_rows(24, {.state_floats = 1}), bags, true, combiner::sum, optimizer, random, 4) <=
        0x1p-6);
  CHECK(off_by(bf16_rows(24, {.state_floats = 1}), bags, true, combiner::sum, optimizer, random, 0,
               rounding::stochastic{.seed = 5}) <= 0x1p-6);
}

TEST_CASE("device training: combiners and policies") {
  std::mt19937_64 random(seed());
  const sgd optimizer{.learning_rate = 0.1F};
  const f32_rows format(20);
  for (const shape_of_batch shape : every_shape) {
    const auto bags = some_bags(random, shape, 50, 60, 5);
    CHECK(off_by(format, bags, true, combiner::mean(combiner::by_weight), optimizer, random) <= 1e-3);
    CHECK(off_by(format, bags, true, combiner::sqrtn, optimizer, random) <= 1e-4);
    CHECK(off_by(format, bags, false, pooling{combiner::mean, empty_bag::default_row{5}}, optimizer,
                 random) <= 1e-4);
    CHECK(off_by(format, bags, true, pooling{combiner::mean(combiner::by_weight), empty_bag::default_row{5}},
                 optimizer, random) <= 1e-3);
    CHECK(off_by(format, bags, true, pooling{combiner::sum, max_norm{2.0F}}, optimizer, random) <= 1e-4);
    CHECK(off_by(format, bags, false, pooling{combiner::sum, padding::id{0}}, optimizer, random) <= 1e-4);
    CHECK(off_by(format, bags, true, pooling{combiner::mean, padding::prune}, optimizer, random) <= 1e-4);
    auto made = bags.host;
    for (std::size_t k = 0; k < made.ids.size(); k += 3) {
      made.ids[k] = -1;
      made.weights[k] = std::nanf("");  // of an absent slot: nobody looks
    }
    const batch_on_both<> with_negative(std::move(made));
    CHECK(off_by(format, with_negative, true, pooling{combiner::sum, padding::prune}, optimizer, random) <=
          1e-4);
    CHECK(off_by(format, with_negative, true, pooling{combiner::mean(combiner::by_weight), padding::id{-1}},
                 optimizer, random) <= 1e-3);
  }
}

TEST_CASE("device training: a norm that is no norm and a gradient that is null are refused") {
  std::mt19937_64 random(seed());
  table_on_both<f32_rows> table(f32_rows(8), 10, random);
  const auto bags = some_bags(random, shape_of_batch::uniform, 3, 10, 2);
  const auto gradient = to_device(std::vector<float>(3 * 8, 1.0F));
  cuda_stream stream;
  const auto refused = [&](const auto& how, const matrix_view<float, device_space>& of) {
    return update(stream, table.mutable_view(), bags.view(false), how, of, sgd{.learning_rate = 1.0F})
        .message();
  };
  CHECK(refused(pooling{combiner::sum, max_norm{-1.0F}}, gradient.matrix(3, 8)) ==
        "invalid value: update: pooling: max_norm must be above 0");
  CHECK(refused(combiner::sum, {nullptr, 3, 8}) == "shape mismatch: update: gradient must not be null");
  CHECK(stream.synchronize().ok());
  CHECK(back(table.on_device, table.bytes.size()) == table.bytes);
}

TEST_CASE("device training: one bag whose weights sum to less than 0") {
  std::mt19937_64 random(seed());
  batch<std::int64_t, std::int32_t> made;
  made.offsets = {0, 2};
  made.ids = {1, 2};
  made.weights = {-1.0F, 0.5F};
  CHECK(off_by(f32_rows(4), batch_on_both<>(made), true, combiner::mean(combiner::by_weight),
               sgd{.learning_rate = 1.0F}, random) <= 1e-5);
}

TEST_CASE("device training: a row that many slots name, summed in chunks, with the same bits every time") {
  std::mt19937_64 random(seed());
  const auto bags = some_bags(random, shape_of_batch::ends, 900, 60, 20);  // two rows, 9000 slots each
  REQUIRE(bags.host.ids.size() > 16384);
  const adagrad optimizer{.learning_rate = 0.1F, .epsilon = 1e-2F};
  const f32_rows format(12, {.state_floats = 12});
  CHECK(off_by(format, bags, true, combiner::mean, optimizer, random) <= 1e-3);
  const table_on_both<f32_rows> table(format, 60, random);
  const auto gradient = to_device(normals(random, 900 * 12));
  std::vector<std::byte> first;
  for (int again = 0; again < 3; ++again) {
    const auto copy = to_device(table.bytes);
    cuda_stream stream;
    update(stream, table_view<f32_rows, device_space>(copy.data(), 60, format), bags.view(true),
           combiner::sqrtn, gradient.matrix(900, 12), optimizer)
        .or_throw();
    stream.synchronize().or_throw();
    const auto after = back(copy, table.bytes.size());
    if (again == 0) first = after;
    CHECK(first == after);
    CHECK(first != table.bytes);
  }
}

TEST_CASE("device training: a bad bag changes nothing, the others are done, and the place is named") {
  std::mt19937_64 random(seed());
  table_on_both<f32_rows> table(f32_rows(8), 10, random);
  batch<std::int64_t, std::int32_t> made;
  made.offsets = {0, 2, 4, 5};
  made.ids = {1, 2, 10, 3, 4};
  made.weights.assign(5, 1.0F);
  const batch_on_both<> bags(made);
  const auto gradient = to_device(std::vector<float>(3 * 8, 1.0F));
  cuda_stream stream;
  update(stream, table.mutable_view(), bags.view(false), combiner::sum, gradient.matrix(3, 8),
         sgd{.learning_rate = 1.0F})
      .or_throw();
  const status found = stream.synchronize();
  CHECK(found.code() == errc::id_out_of_range);
  CHECK(found.place() == fault_place{.bag = 1, .position = 2, .value = 10});
  const auto after = back(table.on_device, table.bytes.size());
  for (index_t r = 0; r < 10; ++r) {
    std::vector<float> row(8);
    table.format.decode(after.data() + r * table.format.stride_bytes(), row.data());
    const float step = r == 1 || r == 2 || r == 4 ? 1.0F : 0.0F;
    CHECK(row[3] == static_cast<float>(table.values[static_cast<std::size_t>(r)][3]) - step);
  }
}

TEST_CASE(
    "device training: a captured step needs its scratch beforehand, and steps each time it is launched") {
  std::mt19937_64 random(seed());
  table_on_both<f32_rows> table(f32_rows(8), 60, random);
  const auto bags = some_bags(random, shape_of_batch::skewed, 2000, 60, 12);
  REQUIRE(bags.host.ids.size() > 16384);  // chunks as well
  const auto gradient = to_device(normals(random, 2000 * 8));
  cuda_stream stream;
  const auto step = [&] {
    return update(stream, table.mutable_view(), bags.view(true), combiner::mean, gradient.matrix(2000, 8),
                  sgd{.learning_rate = 0.5F});
  };
  cudaGraph_t graph = nullptr;
  cuda_runtime::begin_capture(stream.get()).or_throw();
  CHECK(step().code() == errc::unsupported);
  cuda_runtime::end_capture(stream.get(), graph).or_throw();
  cuda_runtime::end_graph(graph);

  std::vector<std::vector<std::byte>> eager{table.bytes};
  for (int again = 0; again < 2; ++again) {
    step().or_throw();
    stream.synchronize().or_throw();
    eager.push_back(back(table.on_device, table.bytes.size()));
    CHECK(eager[eager.size() - 2] != eager.back());
  }
  table.on_device.copy_from(table.bytes).or_throw();
  cuda_runtime::begin_capture(stream.get()).or_throw();
  step().or_throw();
  cuda_runtime::end_capture(stream.get(), graph).or_throw();
  cudaGraphExec_t exec = nullptr;
  cuda_runtime::instantiate(exec, graph).or_throw();
  for (int again = 0; again < 2; ++again) {
    cuda_runtime::launch(exec, stream.get()).or_throw();
    stream.synchronize().or_throw();
    CHECK(back(table.on_device, table.bytes.size()) == eager[static_cast<std::size_t>(again) + 1]);
  }
  cuda_runtime::end_exec(exec);
  cuda_runtime::end_graph(graph);
}
