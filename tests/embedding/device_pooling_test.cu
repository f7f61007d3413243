// Lookups on a device give what the host gives: formats, policies, types of ids and of outputs, batches.
#include <deeprec/embedding/lookup/fused_lookup.hpp>
#include <deeprec/embedding/lookup/lookup.cuh>
#include <deeprec/embedding/tables/quantized_rows.hpp>
#include <deeprec/embedding/tables/split_bf16_rows.hpp>
#include <deeprec/embedding/training/gradient.cuh>
#include <deeprec/exec/inline_executor.hpp>

#include <doctest/doctest.h>

#include <limits>
#include <random>
#include <vector>

#include "support/on_device.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

constexpr index_t rows = 200;
inline_executor here;

/// Weights whose sums are 0, or not small; ids that a policy may leave out.
template <class Id = std::int64_t>
batch_on_both<Id> some_bags(std::mt19937_64& random, shape_of_batch shape, index_t bags = 40,
                            index_t hotness = 5) {
  auto made = make_batch<Id, std::int32_t>(random, shape, bags, rows, hotness);
  for (float& w : made.weights) w = 0.5F * static_cast<float>(random() % 7) - 1.0F;
  return batch_on_both<Id>(std::move(made));
}

template <class Out = float, class Format, class Bags, class How>
double off_by(const table_on_both<Format>& table, const Bags& on_host, const auto& on_device,
              const How& how) {
  const index_t width = table.format.width();
  const index_t n = std::is_same_v<typename decltype(detail::as_pooling(how))::combiner, combiner::concat_t>
                        ? on_host.id_count()
                        : on_host.bags();
  const std::vector<Out> before(static_cast<std::size_t>(n * width), static_cast<Out>(7.0F));
  std::vector<Out> expected = before;
  lookup(here, table.on_host(), on_host, how, matrix_view(expected.data(), n, width)).or_throw();
  const auto out = to_device(before);
  cuda_stream stream;
  lookup(stream, table.view(), on_device, how, out.matrix(n, width)).or_throw();
  stream.synchronize().or_throw();
  return apart(back(out, before.size()), expected);
}

template <class Element>
inline constexpr bool is_code = false;
template <int Bits, class Scale>
inline constexpr bool is_code<detail::scaled_code<Bits, Scale>> = true;

template <class Format>
void check_format(Format format, std::size_t shift = 0) {
  std::mt19937_64 random(seed());
  const table_on_both<Format> table(format, rows, random, shift);
  for (const shape_of_batch shape : {shape_of_batch::uniform, shape_of_batch::many_empty}) {
    const auto bags = some_bags(random, shape);
    CHECK(off_by(table, bags.host.view(), bags.view(false), combiner::sum) <= 1e-5);
    CHECK(off_by(table, bags.host.view(true), bags.view(true), combiner::mean) <= 1e-5);
    // scale * code + bias is one rounding here and two there.
    const double bound = is_code<typename Format::element> ? 1e-6 : 0;
    CHECK(off_by(table, bags.host.view(true), bags.view(true), combiner::concat) <= bound);
    CHECK(off_by(table, bags.host.view(), bags.view(false), combiner::max) <= bound);
  }
}

template <class Id>
void check_ids() {
  std::mt19937_64 random(seed());
  const table_on_both<f32_rows> table(f32_rows(12), rows, random);
  const auto bags = some_bags<Id>(random, shape_of_batch::skewed);
  CHECK(off_by(table, bags.host.view(true), bags.view(true), combiner::sqrtn) <= 1e-5);
  const auto n = static_cast<index_t>(bags.host.ids.size()) / 4 * 4;
  const fixed_hotness_view<Id> on_host(bags.host.ids.data(), n / 4, 4);
  const fixed_hotness_view<Id, device_space> on_device(bags.ids.data(), n / 4, 4);
  CHECK(off_by(table, on_host, on_device, combiner::mean) <= 1e-5);
}

}  // namespace

TEST_CASE("device pooling: formats, aligned to lanes and not") {
  for (const index_t width : {1, 16, 17, 128, 130}) {
    CAPTURE(width);
    check_format(f32_rows(width));
    check_format(f16_rows(width));
    check_format(bf16_rows(width));
    check_format(int8_rows(width));
  }
  for (const index_t width : {24, 25, 128}) {
    CAPTURE(width);
    check_format(e4m3_rows(width));
    check_format(e5m2_rows(width));
    check_format(quantized_rows<8, f16>(width, {.place = scale_bias::first}));
    check_format(quantized_rows<4, float>(width + width % 2, {.place = scale_bias::first}));
    check_format(int4_rows(width + width % 2));
    check_format(split_bf16_rows(width));
  }
  check_format(f32_rows(128), 4);
  check_format(bf16_rows(128), 2);
  check_format(int8_rows(128), 8);
  check_format(f32_rows(20, {.state_floats = 3}));  // an odd stride
}

TEST_CASE("device pooling: more columns than a warp has at once") {
  std::mt19937_64 random(seed());
  for (const index_t width : {129 * 4, 1000, 37}) {
    const table_on_both<f32_rows> table(f32_rows(width), 30, random, width == 37 ? 4 : 0);
    auto made = make_batch<std::int64_t, std::int32_t>(random, shape_of_batch::uniform, 9, 30, 3);
    const batch_on_both<> bags(std::move(made));
    CHECK(off_by(table, bags.host.view(true), bags.view(true), combiner::sum) <= 1e-5);
    CHECK(off_by(table, bags.host.view(true), bags.view(true), pooling{combiner::mean, max_norm{2.0F}}) <=
          1e-5);
  }
}

TEST_CASE("device pooling: ids of every type, fixed batches and torch's offsets") {
  check_ids<std::int32_t>();
  check_ids<std::uint32_t>();
  check_ids<std::int64_t>();
  check_ids<std::uint64_t>();
  std::mt19937_64 random(seed());
  const table_on_both<f32_rows> table(f32_rows(8), rows, random);
  const auto bags = some_bags(random, shape_of_batch::uniform);
  const auto n = static_cast<index_t>(bags.host.ids.size());
  const auto on_host = jagged_view<std::int64_t, std::int32_t>::torch(bags.host.offsets.data(), bags.bags(),
                                                                      bags.host.ids.data(), n);
  const auto on_device = jagged_view<std::int64_t, std::int32_t, device_space>::torch(
      bags.offsets.data(), bags.bags(), bags.ids.data(), n);
  CHECK(off_by(table, on_host, on_device, combiner::sum) <= 1e-5);
  // A slice: the first offset is not 0.
  CHECK(off_by(table, bags.host.view(true).slice(7, 20), bags.view(true).slice(7, 20), combiner::sum) <=
        1e-5);
}

TEST_CASE("device pooling: outputs of 16 bits, and what was in them") {
  std::mt19937_64 random(seed());
  const table_on_both<bf16_rows> table(bf16_rows(40), rows, random);
  const auto bags = some_bags(random, shape_of_batch::many_empty);
  const auto host = bags.host.view(true);
  CHECK(off_by<f16>(table, host, bags.view(true), combiner::sum) <= 0x1p-9);
  CHECK(off_by<bf16>(table, host, bags.view(true), combiner::sum) <= 0x1p-7);
  CHECK(off_by<bf16>(table, host, bags.view(true), pooling{combiner::sum, output::accumulate}) <= 0x1p-7);
  CHECK(off_by(table, host, bags.view(true), pooling{combiner::sum, output::accumulate}) <= 1e-5);
  CHECK(off_by(table, host, bags.view(true), pooling{combiner::mean, empty_bag::keep}) <= 1e-5);
}

TEST_CASE("device pooling: policies") {
  std::mt19937_64 random(seed());
  const table_on_both<f32_rows> table(f32_rows(20), rows, random);
  for (const shape_of_batch shape : every_shape) {
    auto bags = some_bags(random, shape);
    const auto host = bags.host.view(true);
    const auto device = bags.view(true);
    CHECK(off_by(table, host, device, combiner::mean(combiner::by_weight)) <= 1e-4);
    CHECK(off_by(table, host, device, pooling{combiner::sum, max_norm{3.0F}}) <= 1e-5);
    CHECK(off_by(table, host, device, pooling{combiner::sqrtn, empty_bag::default_row{5}}) <= 1e-5);
    CHECK(off_by(table, host, device, pooling{combiner::mean, empty_bag::default_row{5}, max_norm{1.0F}}) <=
          1e-5);
    CHECK(off_by(table, host, device, pooling{combiner::mean(combiner::by_weight), padding::id{0}}) <= 1e-4);
    CHECK(off_by(table, host, device, pooling{combiner::sum, bounds::assume_valid}) <= 1e-5);
    auto made = bags.host;
    for (auto& id : made.ids) id = id % 5 == 0 ? -1 - id : id;
    for (std::size_t k = 0; k < made.ids.size(); ++k) {
      if (made.ids[k] < 0) made.weights[k] = std::nanf("");  // of an absent slot: nobody looks
    }
    const batch_on_both<> with_negative(std::move(made));
    CHECK(off_by(table, with_negative.host.view(true), with_negative.view(true),
                 pooling{combiner::sum, padding::prune, empty_bag::default_row{5}}) <= 1e-5);
    CHECK(off_by(table, with_negative.host.view(true), with_negative.view(true),
                 pooling{combiner::mean, padding::prune}) <= 1e-5);
    CHECK(off_by(table, with_negative.host.view(), with_negative.view(false),
                 pooling{combiner::max, padding::prune, empty_bag::default_row{1}}) == 0);
    index_t on_host = 0, on_device = 0;
    std::vector<float> expected(static_cast<std::size_t>(bags.bags() * 20));
    lookup(here, table.on_host(), with_negative.host.view(), pooling{combiner::sum, bounds::skip(on_host)},
           matrix_view(expected.data(), bags.bags(), 20))
        .or_throw();
    const auto out = to_device(expected);
    cuda_stream stream;
    lookup(stream, table.view(), with_negative.view(false), pooling{combiner::sum, bounds::skip(on_device)},
           out.matrix(bags.bags(), 20))
        .or_throw();
    stream.synchronize().or_throw();
    CHECK(on_device == on_host);
    CHECK(apart(back(out, expected.size()), expected) <= 1e-5);
    const auto fused = to_device(expected);
    fused_lookup(here, table.on_host(), with_negative.host.view(true), combiner::mean,
                 matrix_view(expected.data(), bags.bags(), 20))
        .or_throw();
    fused_lookup(stream, table.view(), with_negative.view(true), combiner::mean,
                 fused.matrix(bags.bags(), 20))
        .or_throw();
    stream.synchronize().or_throw();
    CHECK(apart(back(fused, expected.size()), expected) <= 1e-5);
  }
}

TEST_CASE("device pooling: bags in chunks, with what makes them bad or empty") {
  std::mt19937_64 random(seed());
  const table_on_both<f32_rows> table(f32_rows(24), rows, random);
  auto made = make_batch<std::int64_t, std::int32_t>(random, shape_of_batch::one_huge, 60, rows, 400);
  for (float& w : made.weights) w = 0.5F * static_cast<float>(random() % 7) - 1.0F;
  REQUIRE(made.ids.size() > 20000);
  const batch_on_both<> bags(made);
  CHECK(off_by(table, made.view(true), bags.view(true), combiner::sum) <= 1e-4);
  CHECK(off_by(table, made.view(true), bags.view(true),
               pooling{combiner::mean(combiner::by_weight), padding::id{3}, max_norm{2.0F}}) <= 1e-4);
  CHECK(off_by(table, made.view(), bags.view(false), combiner::max) == 0);
  auto padded = made;
  for (auto& id : padded.ids) id = 3;
  const batch_on_both<> nothing(padded);
  CHECK(off_by(table, padded.view(), nothing.view(false),
               pooling{combiner::mean, padding::id{3}, empty_bag::default_row{7}}) <= 1e-5);
  auto bad = made;
  bad.ids[12345] = rows;
  bad.ids[17000] = -1;
  const batch_on_both<> faulty(bad);
  const auto out = to_device(std::vector<float>(60 * 24, 7.0F));
  cuda_stream stream;
  lookup(stream, table.view(), faulty.view(true), combiner::sum, out.matrix(60, 24)).or_throw();
  const status found = stream.synchronize();
  CHECK(found.code() == errc::id_out_of_range);
  CHECK(found.place().position == 12345);
  CHECK(found.place().bag == 30);
  const auto answer = back(out, 60 * 24);
  for (std::size_t j = 0; j < 24; ++j) CHECK(answer[30 * 24 + j] == 0.0F);
}

TEST_CASE("device pooling: offsets that make no sense are named, and nothing outside is touched") {
  std::mt19937_64 random(seed());
  const table_on_both<f32_rows> table(f32_rows(8), rows, random);
  struct {
    std::vector<std::int32_t> offsets;
    errc code;
    index_t bag;
  } const cases[] = {
      {{-1, 2, 4, 5}, errc::offsets_negative, 0},
      {{0, 4, 2, 5}, errc::offsets_decreasing, 1},
      {{0, 2, 4, 9}, errc::offsets_beyond_ids, 2},
      {{5, 2, 4, 5}, errc::offsets_decreasing, 0},
      {{std::numeric_limits<std::int32_t>::min(), 0, 0, std::numeric_limits<std::int32_t>::max()},
       errc::offsets_negative,
       0},
  };
  for (const auto& c : cases) {
    batch<std::int64_t, std::int32_t> made;
    made.offsets = c.offsets;
    made.ids = {1, 2, 3, 4, 5};
    made.weights = {1, 2, 3, 4, 5};
    const batch_on_both<> bags(made);
    const auto out = to_device(std::vector<float>(3 * 8, 7.0F));
    const auto dots = to_device(std::vector<float>(7, 7.0F));
    cuda_stream stream;
    lookup(stream, table.view(), bags.view(true), combiner::sum, out.matrix(3, 8)).or_throw();
    status found = stream.synchronize();
    CHECK(found.code() == c.code);
    CHECK(found.place().bag == c.bag);
    // One float before and one behind must stay.
    weight_gradients(stream, table.view(), bags.view(true), combiner::sum,
                     matrix_view<const float, device_space>(out.matrix(3, 8)), std::span(dots.data() + 1, 5))
        .or_throw();
    found = stream.synchronize();
    CHECK(found.code() == c.code);
    CHECK(found.place().bag == c.bag);
    const auto around = back(dots, 7);
    CHECK(around.front() == 7.0F);
    CHECK(around.back() == 7.0F);
    for (std::size_t k = 1; k < 6; ++k) CHECK(std::isfinite(around[k]));
  }
}

TEST_CASE("device pooling: the gradients of weights are those of the host") {
  std::mt19937_64 random(seed());
  for (const index_t width : {16, 19}) {
    const table_on_both<bf16_rows> table(bf16_rows(width), rows, random);
    const auto bags = some_bags(random, shape_of_batch::many_empty);
    const auto n = bags.host.ids.size();
    std::vector<float> gradient(static_cast<std::size_t>(bags.bags() * width));
    std::normal_distribution<float> normal;
    for (float& g : gradient) g = normal(random);
    const auto of_output = to_device(gradient);
    cuda_stream stream;
    const auto check = [&](const auto& how) {
      std::vector<float> expected(n);
      weight_gradients(here, table.on_host(), bags.host.view(true), how,
                       matrix_view<const float>(gradient.data(), bags.bags(), width), std::span(expected))
          .or_throw();
      const auto out = to_device(std::vector<float>(n, std::nanf("")));
      weight_gradients(stream, table.view(), bags.view(true), how,
                       matrix_view<const float, device_space>(of_output.matrix(bags.bags(), width)),
                       std::span(out.data(), n))
          .or_throw();
      stream.synchronize().or_throw();
      CHECK(apart(back(out, n), expected) <= 1e-4);
    };
    check(combiner::sum);
    check(combiner::mean);
    check(combiner::sqrtn);
    check(combiner::mean(combiner::by_weight));
    check(pooling{combiner::mean, padding::prune});
    check(pooling{combiner::sum, max_norm{1.0F}, padding::id{4}});
    const auto refused = [&](const auto& how, const matrix_view<const float, device_space>& of, float* out) {
      const status s = weight_gradients(stream, table.view(), bags.view(true), how, of, std::span(out, n));
      CHECK(stream.synchronize().ok());
      return s.message();
    };
    const auto dots = to_device(std::vector<float>(n));
    const matrix_view<const float, device_space> of_bags(of_output.matrix(bags.bags(), width));
    CHECK(refused(pooling{combiner::sum, max_norm{0.0F}}, of_bags, dots.data()) ==
          "invalid value: weight_gradients: pooling: max_norm must be above 0");
    CHECK(refused(pooling{combiner::sum}, {nullptr, bags.bags(), width}, dots.data()) ==
          "shape mismatch: weight_gradients: gradient must not be null");
    CHECK(refused(pooling{combiner::sum}, of_bags, nullptr) ==
          "shape mismatch: weight_gradients: out must not be null");
  }
}
