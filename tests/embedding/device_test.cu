// Everything that has a device form, on a device: the same vectors, the same oracle.

#include <deeprec/embedding/device_stages.cuh>
#include <deeprec/embedding/fused_lookup.cuh>
#include <deeprec/embedding/gradient.cuh>
#include <deeprec/embedding/lookup.cuh>
#include <deeprec/embedding/quantized_rows.hpp>
#include <deeprec/embedding/table_group.cuh>
#include <deeprec/embedding/update.cuh>
#include <deeprec/exec/cuda_staging.hpp>
#include <deeprec/exec/cuda_stream_pool.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/memory/cuda_memory.hpp>
#include <deeprec/ops/row_select.cuh>
#include <deeprec/optim/optimizers.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "support/batches.hpp"
#include "support/entries.hpp"
#include "support/oracle.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

template <class T>
device_array<T> to_device(const std::vector<T>& values) {
  device_array<T> made(values.size() + 1);
  made.copy_from(values).or_throw();
  return made;
}
template <class T>
std::vector<T> back(const device_array<T>& array, std::size_t n) {
  std::vector<T> values(n);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  array.copy_to(values).or_throw();
  return values;
}

using bags_type = jagged_view<std::int64_t, std::int32_t, device_space>;
using made_batch = batch<std::int64_t, std::int32_t>;

struct device_batch {
  explicit device_batch(const made_batch& made)
      : offsets(to_device(made.offsets)),
        ids(to_device(made.ids)),
        weights(to_device(made.weights)),
        bags(static_cast<index_t>(made.offsets.size()) - 1),
        n(static_cast<index_t>(made.ids.size())) {}
  bags_type view(bool weighted) const {
    return {offsets.data(), bags, ids.data(), n, weighted ? weights.data() : nullptr};
  }
  device_array<std::int32_t> offsets;
  device_array<std::int64_t> ids;
  device_array<float> weights;
  index_t bags, n;
};

template <class Format>
struct device_table {
  device_table(Format f, index_t rows, std::mt19937_64& random) : format(f), count(rows) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(rows * f.stride_bytes()));
    std::normal_distribution<float> normal(0, 1);
    std::vector<float> row(static_cast<std::size_t>(f.width()));
    for (index_t r = 0; r < rows; ++r) {
      for (float& x : row) x = normal(random);
      f.encode(row.data(), bytes.data() + r * f.stride_bytes());
      f.decode(bytes.data() + r * f.stride_bytes(), row.data());
      values.emplace_back(row.begin(), row.end());
    }
    memory = to_device(bytes);
  }
  const_table_view<Format, device_space> view() const { return {memory.data(), count, format}; }
  table_view<Format, device_space> mutable_view() const { return {memory.data(), count, format}; }
  Format format;
  index_t count;
  device_array<std::byte> memory;
  std::vector<std::vector<double>> values;
};

template <class Format, class Combiner>
void check_lookup(Format format, shape_of_batch shape, bool weighted, Combiner how, index_t hotness = 7) {
  std::mt19937_64 random(seed());
  const index_t rows = 300, bags = 60, width = format.width();
  const device_table<Format> table(format, rows, random);
  const auto made = make_batch<std::int64_t, std::int32_t>(random, shape, bags, rows, hotness);
  const device_batch batch(made);
  const auto out = to_device(std::vector<float>(static_cast<std::size_t>(bags * width), std::nanf("")));
  cuda_stream stream;
  lookup(stream, table.view(), batch.view(weighted), how, out.matrix(bags, width)).or_throw();
  stream.synchronize().or_throw();
  const auto answer = back(out, static_cast<std::size_t>(bags * width));
  for (index_t b = 0; b < bags; ++b) {
    const auto expected = pool_one(table.values, made.view(weighted), b, width, kind(how));
    for (index_t j = 0; j < width; ++j) {
      const auto at = static_cast<std::size_t>(j);
      const double bound =
          (2.0 * expected.used + 8) * 0x1p-24 * (expected.magnitude[at] + 4 * expected.used) + 1e-30;
      const double got = static_cast<double>(answer[static_cast<std::size_t>(b * width + j)]);
      REQUIRE_MESSAGE(std::fabs(got - expected.value[at]) <= bound, "bag " << b << " column " << j);
    }
  }
}

}  // namespace

TEST_CASE("device: lookup") {
  for (const shape_of_batch shape : every_shape) {
    check_lookup(f32_rows(128), shape, false, sum);
    check_lookup(f32_rows(17), shape, true, mean);
    check_lookup(bf16_rows(24), shape, true, sqrtn);
    check_lookup(int8_rows(128), shape, false, sum);
  }
  check_lookup(f32_rows(128), shape_of_batch::one_huge, true, sum, 600);  // one bag of 36000 ids, in chunks
}

TEST_CASE("device: a bad bag is zeros, skipped ids are counted, and the place comes with synchronize()") {
  std::mt19937_64 random(seed());
  const device_table<f32_rows> table(f32_rows(8), 10, random);
  made_batch made;
  made.ids = {1, 2, 10, 3, -1};
  made.weights.assign(5, 1.0F);
  made.offsets = {0, 2, 4, 5};
  const device_batch batch(made);
  const auto out = to_device(std::vector<float>(3 * 8, 7.0F));
  cuda_stream stream;
  lookup(stream, table.view(), batch.view(false), sum, out.matrix(3, 8)).or_throw();
  const status found = stream.synchronize();
  CHECK(found.code() == errc::id_out_of_range);
  CHECK(found.place() == fault_place{.bag = 1, .slot = 2, .value = 10});
  CHECK(stream.synchronize().ok());
  const auto answer = back(out, 3 * 8);
  for (std::size_t j = 8; j < 24; ++j) CHECK(answer[j] == 0.0F);
  index_t skipped = 0;
  lookup(stream, table.view(), batch.view(false), pooling{sum, skip(skipped)}, out.matrix(3, 8)).or_throw();
  CHECK(stream.synchronize().ok());
  CHECK(skipped == 2);
}

TEST_CASE("device: a group of tables in one launch gives the bits of one lookup each") {
  std::mt19937_64 random(seed());
  const device_table<f32_rows> floats(f32_rows(64), 100, random);
  const device_table<int8_rows> codes(int8_rows(40), 90, random);
  const device_table<bf16_rows> halves(bf16_rows(17), 80, random);
  std::vector<device_batch> batches;
  std::vector<bags_type> bags;
  for (int t = 0; t < 3; ++t)
    batches.emplace_back(make_batch<std::int64_t, std::int32_t>(random, every_shape[t], 33, 80, 5));
  for (const auto& b : batches) bags.push_back(b.view(false));
  table_group<float, bags_type> group;
  group.add(floats.view(), sum);
  group.add(codes.view(), mean);
  group.add(halves.view(), max_);
  const std::size_t width = 64 + 40 + 17;
  const auto out = to_device(std::vector<float>(33 * width)),
             alone = to_device(std::vector<float>(33 * width));
  const auto all = alone.matrix(33, static_cast<index_t>(width));
  cuda_stream stream;
  lookup(stream, group, std::span<const bags_type>(bags), out.matrix(33, static_cast<index_t>(width)))
      .or_throw();
  lookup(stream, floats.view(), bags[0], sum, all.columns(0, 64)).or_throw();
  lookup(stream, codes.view(), bags[1], mean, all.columns(64, 40)).or_throw();
  lookup(stream, halves.view(), bags[2], max_, all.columns(104, 17)).or_throw();
  stream.synchronize().or_throw();
  const auto a = back(out, 33 * width), b = back(alone, 33 * width);
  CHECK(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

TEST_CASE("device: update steps rows as on the host, with the same bits every time") {
  std::mt19937_64 random(seed());
  std::normal_distribution<float> normal;
  const index_t width = 20, rows = 50, bags = 900;
  adam optimizer{.learning_rate = 0.1F, .epsilon = 1e-2F};
  const f32_rows format(width, {.state_floats = adam::element_state * width});
  for (const shape_of_batch shape :
       {shape_of_batch::uniform, shape_of_batch::skewed, shape_of_batch::ends}) {
    const device_table<f32_rows> table(format, rows, random);
    const auto made = make_batch<std::int64_t, std::int32_t>(random, shape, bags, rows, 30);
    const device_batch batch(made);
    std::vector<float> gradient(static_cast<std::size_t>(bags * width));
    for (float& g : gradient) g = normal(random);
    const auto of_output = to_device(gradient);
    const auto start = back(table.memory, static_cast<std::size_t>(rows * format.stride_bytes()));
    std::vector<std::byte> first;
    cuda_stream stream;
    for (int again = 0; again < 2; ++again) {
      device_array<std::byte> copy(start.size());
      copy.copy_from(start).or_throw();
      update(stream, batch.view(true), of_output.matrix(bags, width), mean, optimizer,
             table_view<f32_rows, device_space>(copy.data(), rows, format))
          .or_throw();
      stream.synchronize().or_throw();
      const auto after = back(copy, start.size());
      if (again == 0) first = after;
      CHECK(std::memcmp(first.data(), after.data(), after.size()) == 0);
    }
    std::map<std::int64_t, std::vector<double>> of;
    for (std::size_t b = 0; b + 1 < made.offsets.size(); ++b) {
      const double by = made.offsets[b + 1] - made.offsets[b];
      for (auto k = static_cast<std::size_t>(made.offsets[b]);
           k < static_cast<std::size_t>(made.offsets[b + 1]); ++k) {
        auto& g = of[made.ids[k]];
        g.resize(static_cast<std::size_t>(width));
        for (std::size_t j = 0; j < g.size(); ++j) {
          g[j] +=
              static_cast<double>(made.weights[k]) / by * static_cast<double>(gradient[b * g.size() + j]);
        }
      }
    }
    for (const auto& [r, g] : of) {
      std::vector<float> row(static_cast<std::size_t>(width)), got(row.size()), state(row.size() * 2);
      const std::vector<float> as_float(g.begin(), g.end());
      format.decode(start.data() + r * format.stride_bytes(), row.data());
      format.decode(first.data() + r * format.stride_bytes(), got.data());
      apply_row(optimizer, row.data(), as_float.data(), state.data(), width);
      for (std::size_t j = 0; j < row.size(); ++j) CHECK(got[j] == doctest::Approx(row[j]).epsilon(1e-3));
    }
  }
}

TEST_CASE("device: stages of a sparse lookup, and a step of them in a graph") {
  made_batch made;
  made.ids = {7, -1, 9, 4, 4, -3};
  made.weights.assign(6, 1.0F);
  made.offsets = {0, 3, 3, 6};
  const device_batch batch(made);
  device_array<index_t> offsets(4), filled_offsets(4), size(1), permutation(6), part_offsets(4);
  device_array<std::int64_t> ids(6), filled_ids(9), different(6), local(6);
  device_array<std::uint8_t> empty(3);
  device_array<std::int32_t> inverse(6), counts(6), part(6);
  const device_bags<> pruned{offsets.data(), ids.data(), nullptr, 3, 6};
  const device_bags<> filled{filled_offsets.data(), filled_ids.data(), nullptr, 3, 9};
  cuda_stream stream;
  for (int again = 0; again < 2; ++again) {  // the second time from a graph
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    if (again == 1) cuda_runtime::begin_capture(stream.get()).or_throw();
    prune_invalid(stream, batch.view(false), by_id, pruned).or_throw();
    fill_empty_bags(stream, pruned.view(), 2, filled, std::span(empty.data(), 3)).or_throw();
    unique(stream, std::span<const std::int64_t>(batch.ids.data(), 6),
           device_unique<>{different.data(), inverse.data(), counts.data(), size.data()})
        .or_throw();
    partition(stream, std::span<const std::int64_t>(batch.ids.data(), 6), 10, 3, mod_, skip,
              device_partition<>{part.data(), permutation.data(), part_offsets.data(), local.data()})
        .or_throw();
    if (again == 1) {
      cuda_runtime::end_capture(stream.get(), graph).or_throw();
      cuda_runtime::instantiate(exec, graph).or_throw();
      cuda_runtime::launch(exec, stream.get()).or_throw();
    }
    stream.synchronize().or_throw();
    CHECK(back(filled_offsets, 4) == std::vector<index_t>{0, 2, 3, 5});
    CHECK(back(filled_ids, 5) == std::vector<std::int64_t>{7, 9, 2, 4, 4});
    CHECK(back(empty, 3) == std::vector<std::uint8_t>{0, 1, 0});
    CHECK(back(size, 1)[0] == 5);
    CHECK(back(inverse, 6) == std::vector<std::int32_t>{0, 1, 2, 3, 3, 4});
    CHECK(back(part, 6) == std::vector<std::int32_t>{1, -1, 0, 1, 1, -1});
    if (again == 1) {
      cuda_runtime::end_exec(exec);
      cuda_runtime::end_graph(graph);
    }
  }
}

namespace {

/// fused_lookup of entries on a device and on the host: eager, then as a graph.
template <class Id, class Row, class How>
void check_entries(entries_are kind, index_t n, const How& how, bool weighted) {
  std::mt19937_64 random(seed());
  const index_t width = 20, rows = 60, bags = 40;
  const device_table<f32_rows> table(f32_rows(width), rows, random);
  const auto bytes = back(table.memory, static_cast<std::size_t>(rows * width) * sizeof(float));
  const auto made = make_entries<Id, Row>(random, kind, bags, rows, n);
  std::vector<float> expected(static_cast<std::size_t>(bags * width));
  inline_executor here;
  fused_lookup(here, const_table_view<f32_rows>(bytes.data(), rows, f32_rows(width)),
               made.view(weighted), how, matrix_view(expected.data(), bags, width))
      .or_throw();
  const auto of_rows = to_device(made.rows);
  const auto ids = to_device(made.ids);
  const auto weights = to_device(made.weights);
  const auto out = to_device(std::vector<float>(expected.size(), std::nanf("")));
  const coo_view<Id, Row, device_space> entries(of_rows.data(), ids.data(), n, bags,
                                                weighted ? weights.data() : nullptr);
  cuda_stream stream;
  std::vector<float> first;
  for (int again = 0; again < 2; ++again) {  // the second time from a graph
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    if (again == 1) cuda_runtime::begin_capture(stream.get()).or_throw();
    fused_lookup(stream, table.view(), entries, how, out.matrix(bags, width)).or_throw();
    if (again == 1) {
      cuda_runtime::end_capture(stream.get(), graph).or_throw();
      REQUIRE(cudaMemset(out.data(), 0xff, expected.size() * sizeof(float)) == cudaSuccess);
      cuda_runtime::instantiate(exec, graph).or_throw();
      cuda_runtime::launch(exec, stream.get()).or_throw();
    }
    stream.synchronize().or_throw();
    const auto answer = back(out, expected.size());
    if (again == 0) first = answer;
    CHECK(std::memcmp(first.data(), answer.data(), answer.size() * sizeof(float)) == 0);
    if (again == 1) {
      cuda_runtime::end_exec(exec);
      cuda_runtime::end_graph(graph);
    }
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    REQUIRE(first[i] == doctest::Approx(expected[i]).epsilon(1e-4).scale(n > 1000 ? 1000 : 1));
  }
}

}  // namespace

TEST_CASE("device: fused_lookup of entries in any order is the host's, also from a graph") {
  for (const entries_are kind : every_entries) {
    check_entries<std::int64_t, std::int64_t>(kind, 300, sum, false);
    check_entries<std::int32_t, std::int32_t>(kind, 300, pooling(mean, default_row{7}), true);
  }
  // Chunks of long bags lie behind the bags in the stream's scratch.
  check_entries<std::int64_t, std::int64_t>(entries_are::one_huge_bag, 40000, sum, false);
  check_entries<std::int32_t, std::int32_t>(entries_are::one_bag, 40000,
                                            pooling(mean, default_row{7}), true);
}

TEST_CASE(
    "device: an entry whose row is outside is left out, and its place comes with synchronize()") {
  std::mt19937_64 random(seed());
  const device_table<f32_rows> table(f32_rows(20), 60, random);
  const auto rows = to_device(std::vector<std::int64_t>{2, 0, 5, 2, -1});
  const auto ids = to_device(std::vector<std::int64_t>{4, 9, 1, 60, 2});
  const auto out = to_device(std::vector<float>(3 * 20, 7.0F));
  cuda_stream stream;
  const coo_view<std::int64_t, std::int64_t, device_space> entries(rows.data(), ids.data(), 5, 3);
  fused_lookup(stream, table.view(), entries, sum, out.matrix(3, 20)).or_throw();
  const status found = stream.synchronize();
  CHECK(found.code() == errc::invalid_value);
  CHECK(found.place() == fault_place{.slot = 2, .value = 5});
  const auto answer = back(out, 60);
  for (std::size_t j = 0; j < 20; ++j) {
    CHECK(answer[j] == static_cast<float>(table.values[9][j]));
    CHECK(answer[20 + j] == 0.0F);
    CHECK(answer[40 + j] == 0.0F);  // id 60 is a fault of its own
  }
  CHECK(fused_lookup(stream, table.view(), entries, sum, out.matrix(2, 20)).code() ==
        errc::shape_mismatch);
  CHECK(stream.synchronize().ok());
}

TEST_CASE("device: row_select, the gradients of weights, and concat") {
  std::mt19937_64 random(seed());
  const device_table<f32_rows> table(f32_rows(20), 9, random);
  made_batch made;
  made.ids = {4, 8, 0};
  made.weights = {2, 0.5F, 3};
  made.offsets = {0, 2, 3};
  const device_batch batch(made);
  const auto gradient = to_device(std::vector<float>(2 * 20, 0.25F));
  const auto dots = to_device(std::vector<float>(3)), rows = to_device(std::vector<float>(3 * 20));
  const auto chosen = to_device(std::vector<float>(3 * 20));
  const auto cond = to_device(std::vector<std::uint8_t>{1, 0, 255});
  cuda_stream stream;
  weight_gradients(stream, table.view(), batch.view(true),
                   matrix_view<const float, device_space>(gradient.matrix(2, 20)), sum,
                   std::span(dots.data(), 3))
      .or_throw();
  lookup(stream, table.view(), batch.view(true), concat, rows.matrix(3, 20)).or_throw();
  row_select(stream, std::span<const std::uint8_t>(cond.data(), 3), rows.matrix(3, 20),
             gradient.matrix(1, 20), chosen.matrix(3, 20))
      .or_throw();
  stream.synchronize().or_throw();
  double dot = 0;
  for (const double x : table.values[8]) dot += 0.25 * x;
  CHECK(static_cast<double>(back(dots, 3)[1]) == doctest::Approx(dot).epsilon(1e-4));
  const auto answer = back(chosen, 60);
  CHECK(answer[3] == static_cast<float>(2 * table.values[4][3]));
  CHECK(answer[23] == 0.25F);
  CHECK(answer[43] == static_cast<float>(3 * table.values[0][3]));
}

TEST_CASE("device: towers on several streams, eager and as a graph, give the bits of one stream") {
  std::mt19937_64 random(seed());
  const device_table<f32_rows> table(f32_rows(32), 50, random);
  std::vector<device_batch> batches;
  for (int t = 0; t < 6; ++t)
    batches.emplace_back(make_batch<std::int64_t, std::int32_t>(random, every_shape[t % 5], 40, 50, 6));
  stream_work work;
  for (int t = 0; t < 6; ++t) work.add({});
  cuda_stream_pool pool(3);
  stream_plan plan;
  plan_streams(work, 3, plan).or_throw();
  const auto out = to_device(std::vector<float>(6 * 40 * 32));
  const auto launch = [&](index_t op, cuda_stream& on) {
    return lookup(on, table.view(), batches[static_cast<std::size_t>(op)].view(true), mean,
                  matrix_view<float, device_space>(out.data() + op * 40 * 32, 40, 32));
  };
  for (index_t t = 0; t < 6; ++t) launch(t, pool.stream(0)).or_throw();
  pool.synchronize().or_throw();
  const auto expected = back(out, 6 * 40 * 32);
  for (int how = 0; how < 3; ++how) {
    REQUIRE(cudaMemset(out.data(), 0xff, 6 * 40 * 32 * sizeof(float)) == cudaSuccess);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    (how == 0 ? pool.run_timed(plan, launch) : pool.replay(plan, launch)).or_throw();
    pool.synchronize().or_throw();
    CHECK(std::memcmp(expected.data(), back(out, expected.size()).data(),
                      expected.size() * sizeof(float)) == 0);
  }
  CHECK(pool.graphs() == 1);
  std::vector<float> times;
  pool.times(times).or_throw();
  CHECK(times.size() == 3);

  cuda_pool_resource memory;
  void* block = nullptr;
  memory.allocate(1000, pool.stream(1).get(), block).or_throw();
  memory.deallocate(block, pool.stream(1).get()).or_throw();
  cuda_staging staging(pool.stream(2).get());
  packed_layout layout;
  const auto slice = layout.add<float>(100);
  int slot = 0;
  staging.next(layout.bytes(), slot).or_throw();
  for (std::size_t i = 0; i < 100; ++i) slice.in(staging.host(slot))[i] = static_cast<float>(i);
  staging.send(slot, layout.bytes()).or_throw();
  staging.use(slot, pool.stream(0).get()).or_throw();
  REQUIRE(cudaMemcpyAsync(out.data(), slice.in(staging.device(slot)), 400, cudaMemcpyDeviceToDevice,
                          pool.stream(0).get()) == cudaSuccess);
  staging.release(slot, pool.stream(0).get()).or_throw();
  pool.synchronize().or_throw();
  CHECK(back(out, 100)[99] == 99.0F);
}
