// The bodies of the device's lookup kernels, on the host: same vectors, same oracle.

#include <deeprec/embedding/groups/detail/device_group.hpp>
#include <deeprec/embedding/kernels/device/device_pool.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <deeprec/embedding/tables/quantized_rows.hpp>
#include <deeprec/embedding/tables/split_bf16_rows.hpp>

#include "support/batches.hpp"
#include "support/oracle.hpp"
#include "support/seed.hpp"
#include "support/teams.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

template <class Format>
struct stored_table {
  stored_table(Format f, index_t rows, std::mt19937_64& random)
      : format(f), bytes(static_cast<std::size_t>(rows * f.stride_bytes()) + 64) {
    std::normal_distribution<float> normal(0, 1);
    std::vector<float> row(static_cast<std::size_t>(f.width()));
    for (index_t r = 0; r < rows; ++r) {
      for (float& x : row) x = normal(random);
      format.encode(row.data(), first() + r * f.stride_bytes());
      format.decode(first() + r * f.stride_bytes(), row.data());
      values.emplace_back(row.begin(), row.end());
    }
  }
  std::byte* first() {
    return bytes.data() + (64 - reinterpret_cast<std::uintptr_t>(bytes.data()) % 64) % 64;
  }
  basic_table_view<Format, device_space, const std::byte> view() {
    return {first(), static_cast<index_t>(values.size()), format};
  }
  Format format;
  std::vector<std::byte> bytes;
  std::vector<std::vector<double>> values;
};

using task_type = detail::pool_task<std::int64_t, detail::offset_ranges<std::int64_t>, float>;
template <class Pooling>
detail::chosen_rules chosen() {
  using rules = detail::rules_of<Pooling>;
  return {rules::adding(), rules::filtered(), rules::clips(), rules::checks(), rules::prunes()};
}

/// Runs a task as the kernels would: chunks first, when there are any; then body(team, panel).
template <class Element, int Vec, class Rules, class Body>
void run_task(task_type task, const Rules& rules, int lanes, bool chunked, const Body& body) {
  const int panels = static_cast<int>((task.width + lanes * Vec - 1) / (lanes * Vec));
  const index_t records = chunked ? detail::chunk_sums::records(task.id_count) : 0;
  std::vector<float> sums(static_cast<std::size_t>(records * task.width), std::nanf(""));
  std::vector<detail::chunk_count> counts(static_cast<std::size_t>(records));
  if (chunked) task.chunks = {sums.data(), counts.data()};
  on_team(lanes, [&](const auto& team) {
    for (int panel = 0; panel < panels; ++panel) {
      for (index_t r = 0; r < records; r += team.lanes())
        detail::sum_chunks_of<Element, Vec>(rules, team, task, r, team.lanes(), panel);
    }
  });
  on_team(lanes, [&](const auto& team) {  // another launch: it sees all that the first one wrote
    for (int panel = 0; panel < panels; ++panel) body(team, task, panel);
  });
}
template <class Element, int Vec>
void run_task(const task_type& task, const detail::chosen_rules& rules, int lanes, bool chunked) {
  run_task<Element, Vec>(task, rules, lanes, chunked, [&](const auto& team, const task_type& of, int panel) {
    for (index_t b = 0; b < of.bags; ++b) detail::pool_bag<Element, Vec>(rules, team, of, b, panel);
  });
}

/// The bodies for batches whose ids are all used, without weights: the same bits and the same fault.
template <class Element, int Vec, class Rules>
void check_plain_bodies(task_type task, int lanes, bool chunked) {
  if constexpr (Vec > 1 && detail::uses_each_id<Rules>) {
    if (task.weights != nullptr) return;
    REQUIRE(task.fits_32_bits());
    const auto written = [&](const auto& body) {
      std::vector<float> out(static_cast<std::size_t>(task.bags * task.out_stride) + 4, -7.0F);
      device_fault fault{};
      task_type to = task;
      to.out = out.data();
      to.fault = &fault;
      run_task<Element, Vec>(to, Rules{}, lanes, chunked, body);
      out.push_back(static_cast<float>(fault.code));
      out.push_back(static_cast<float>(fault.position));
      return out;
    };
    const auto same = [&](const auto& body) {
      const auto expected = written([](const auto& team, const task_type& of, int panel) {
        for (index_t b = 0; b < of.bags; ++b) detail::pool_bag<Element, Vec>(Rules{}, team, of, b, panel);
      });
      const auto got = written(body);
      return std::memcmp(expected.data(), got.data(), got.size() * sizeof(float)) == 0;
    };
    CHECK(same([](const auto& team, const task_type& of, int panel) {
      for (index_t b = 0; b < of.bags; ++b) detail::pool_bag<Element, Vec, 4>(Rules{}, team, of, b, panel);
    }));
    CHECK(same([](const auto& team, const task_type& of, int panel) {
      for (index_t b = 0; b < of.bags; ++b) detail::pool_bag<Element, Vec, 8>(Rules{}, team, of, b, panel);
    }));
    CHECK(same([](const auto& team, const task_type& of, int panel) {
      for (index_t b = 0; b < of.bags; b += detail::short_bags_at_once)
        detail::pool_short_bags<Element, Vec>(Rules{}, team, of, b, panel);
    }));
  }
}

template <class Element, int Vec, class Format, class Combiner>
double worst(stored_table<Format>& table, const batch<std::int64_t, std::int64_t>& made, bool weighted,
             Combiner how, int lanes, bool chunked, bool broken = false) {
  const index_t bags = static_cast<index_t>(made.offsets.size()) - 1;
  const index_t width = table.format.width();
  const auto view = made.view(weighted);
  const auto policies = detail::as_pooling(how);
  auto task = detail::task_of<task_type>(table.view(), policies, weighted);
  detail::set_bags(task, view);
  if (broken) task.divide = detail::divide_by::one;
  std::vector<float> out(static_cast<std::size_t>(bags * width) + 4, std::nanf(""));
  device_fault fault{};
  task.out = out.data();
  task.out_stride = width;
  task.fault = &fault;
  run_task<Element, Vec>(task, chosen<std::remove_const_t<decltype(policies)>>(), lanes, chunked);
  CHECK(fault.code == 0);
  check_plain_bodies<Element, Vec, detail::rules_of<std::remove_const_t<decltype(policies)>>>(task, lanes,
                                                                                              chunked);
  double error = 0;
  for (index_t b = 0; b < bags; ++b) {
    const auto expected = pool_one(table.values, view, b, width, kind(how));
    for (index_t j = 0; j < width; ++j) {
      const auto at = static_cast<std::size_t>(j);
      const double bound =
          (2.0 * expected.used + 8) * 0x1p-24 * (expected.magnitude[at] + 4 * expected.used) + 1e-30;
      const double off =
          std::fabs(static_cast<double>(out[static_cast<std::size_t>(b * width + j)]) - expected.value[at]) /
          bound;
      error = off > error || std::isnan(off) ? off : error;
    }
  }
  return error;
}

template <class Element, int Vec, class Format>
void check_lanes(Format format, const std::byte* row, const float* expected) {
  detail::device_parts parts{detail::parts_of(format), detail::kind_of_element<typename Format::element>};
  for (index_t c = 0; c < format.width(); c += Vec) {
    float x[Vec];
    detail::read_row<Element, Vec>(row, parts, c, x);
    CHECK(std::memcmp(x, expected + c, sizeof(x)) == 0);
  }
}

template <class Format>
void check_format(Format format) {
  using element = typename Format::element;
  std::mt19937_64 random(seed());
  stored_table<Format> table(format, 3, random);
  REQUIRE(detail::rows_fit_lanes<element>(table.first(), format.stride_bytes(), detail::parts_of(format),
                                          format.width()));
  for (index_t r = 0; r < 3; ++r) {
    const std::byte* const row = table.first() + r * format.stride_bytes();
    float expected[24];
    format.decode(row, expected);
    check_lanes<element, detail::lane_columns<element>>(format, row, expected);
    check_lanes<element, 1>(format, row, expected);
    check_lanes<detail::any_element, detail::group_columns>(format, row, expected);
    check_lanes<detail::any_element, 1>(format, row, expected);
  }
}

}  // namespace

TEST_CASE("device pool: bags of one id, of none, and bad ones are taken by each body alike") {
  std::mt19937_64 random(seed());
  stored_table<f32_rows> table(f32_rows(24), 50, random);
  const auto mean = detail::as_pooling(combiner::mean);
  for (const int lanes : {1, 8}) {
    for (int bad = 0; bad < 5; ++bad) {
      CAPTURE(bad);
      batch<std::int64_t, std::int64_t> made;
      made.offsets = {0};
      for (index_t b = 0; b < 23; ++b) {
        const index_t ids = b < 12 ? 1 : b % 4;
        for (index_t k = 0; k < ids; ++k) made.ids.push_back(static_cast<std::int64_t>(random() % 50));
        made.offsets.push_back(static_cast<std::int64_t>(made.ids.size()));
      }
      if (bad == 1) made.ids[6] = 50;
      if (bad == 2) made.ids.back() = std::int64_t{1} << 32;  // its low half is a row
      if (bad == 3) made.offsets[7] = -1;
      if (bad == 4) made.offsets.back() += 5;
      auto task = detail::task_of<task_type>(table.view(), mean, false);
      const auto view = made.view(false);
      detail::set_bags(task, view);
      task.out_stride = 24;
      check_plain_bodies<float, 4, detail::rules_of<std::remove_const_t<decltype(mean)>>>(task, lanes, false);
    }
  }
}

TEST_CASE("device rows: every format is read by lanes as it decodes") {
  check_format(f32_rows(24));
  check_format(f16_rows(24));
  check_format(bf16_rows(24));
  check_format(e4m3_rows(24));
  check_format(e5m2_rows(24));
  check_format(int8_rows(24));
  check_format(quantized_rows<8, f16>(24, {.place = scale_bias::first}));
  check_format(int4_rows(24));
  check_format(quantized_rows<4, float>(24, {.place = scale_bias::first}));
  check_format(split_bf16_rows(24));
}

TEST_CASE("device rows: what does not fit 16 bytes is read column by column") {
  alignas(16) std::byte memory[64] = {};
  using detail::rows_fit_lanes;
  CHECK(rows_fit_lanes<float>(memory, 32, {}, 8));
  CHECK_FALSE(rows_fit_lanes<float>(memory + 4, 32, {}, 8));
  CHECK_FALSE(rows_fit_lanes<float>(memory, 36, {}, 8));
  CHECK_FALSE(rows_fit_lanes<float>(memory, 32, {}, 7));
  CHECK(rows_fit_lanes<detail::scaled_code<8, float>>(memory, 136, {0, 128}, 128));
  CHECK_FALSE(rows_fit_lanes<detail::scaled_code<8, float>>(memory, 134, {0, 126}, 126));
  CHECK(detail::lanes_of(128, 4).lanes == 32);
  CHECK(detail::lanes_of(129 * 4, 4).panels == 5);
  CHECK(detail::lanes_of(17, 4).lanes == 8);
  CHECK(detail::lanes_of(1, 4).lanes == 1);
  CHECK_FALSE(detail::out_fits_lanes(reinterpret_cast<float*>(memory), 6, 4, 4));
  CHECK(detail::out_fits_lanes(reinterpret_cast<bf16*>(memory), 8, 8, 8));
}

TEST_CASE("device pool: lanes in lockstep, short bags and long ones") {
  std::mt19937_64 random(seed());
  stored_table<f32_rows> table(f32_rows(20), 40, random);
  for (const shape_of_batch shape : every_shape) {
    const auto made = make_batch(random, shape, 9, 40, shape == shape_of_batch::one_huge ? 90 : 6);
    for (const int lanes : {1, 4}) {
      const bool chunked = shape == shape_of_batch::one_huge;  // a bag of 810 ids
      CHECK(worst<float, 4>(table, made, true, combiner::sum, lanes, chunked) <= 1);
      CHECK(worst<float, 4>(table, made, false, combiner::max, lanes, chunked) <= 1);
      if (lanes == 1) {
        CHECK(worst<float, 1>(table, made, true, combiner::mean(combiner::by_weight), lanes, chunked) <= 8);
        CHECK(worst<float, 1>(table, made, true, combiner::sqrtn, lanes, true) <= 1);
        if (shape == shape_of_batch::uniform)
          CHECK(worst<float, 1>(table, made, true, combiner::sqrtn, lanes, false, true) >
                1);  // broken: not divided
      }
    }
  }
}

TEST_CASE("device pool: rows of codes, one kernel for every kind") {
  std::mt19937_64 random(seed());
  stored_table<int8_rows> table(int8_rows(24), 50, random);
  const auto made = make_batch(random, shape_of_batch::many_empty, 20, 50, 5);
  CHECK(worst<detail::any_element, detail::group_columns>(table, made, true, combiner::mean, 1, false) <= 1);
}

TEST_CASE("device pool: a long bag in the middle of others, at every border of a chunk") {
  std::mt19937_64 random(seed());
  stored_table<f32_rows> table(f32_rows(4), 30, random);
  for (const index_t before : {0, 1, 200, 255, 256, 257, 511, 512}) {
    for (const index_t size : {512, 513, 768, 1025, 1300}) {
      batch<std::int64_t, std::int64_t> made;
      for (const index_t n : {before, size, index_t{3}, size + 1, index_t{0}}) {
        for (index_t k = 0; k < n; ++k) {
          made.ids.push_back(static_cast<std::int64_t>(random() % 30));
          made.weights.push_back(1.5F);
        }
        made.offsets.push_back(static_cast<std::int64_t>(made.ids.size()));
      }
      CHECK(worst<float, 4>(table, made, true, combiner::mean, 1, true) <= 1);
    }
  }
}

TEST_CASE("device pool: a bad bag becomes zeros, the smallest place is kept, and strays are counted") {
  std::mt19937_64 random(seed());
  stored_table<f32_rows> table(f32_rows(8), 30, random);
  auto made = make_batch(random, shape_of_batch::uniform, 12, 30, 5);
  while (made.offsets[4] == made.offsets[3] || made.offsets[8] == made.offsets[7]) {
    made = make_batch(random, shape_of_batch::uniform, 12, 30, 5);
  }
  const auto bad_position = made.offsets[3];
  made.ids[static_cast<std::size_t>(bad_position)] = 30;
  made.ids[static_cast<std::size_t>(made.offsets[7])] = -9;
  const auto run = [&](const auto& how, bool chunked, int lanes, unsigned long long& skipped) {
    auto task = detail::task_of<task_type>(table.view(), how, false);
    detail::set_bags(task, made.view(false));
    std::vector<float> out(12 * 8, 7.0F);
    device_fault fault{};
    task.out = out.data();
    task.out_stride = 8;
    task.fault = &fault;
    task.number = 5;
    task.skipped = &skipped;
    run_task<float, 4>(task, chosen<std::remove_cvref_t<decltype(how)>>(), lanes, chunked);
    return std::pair(out, fault);
  };
  unsigned long long skipped = 0;
  for (const int lanes : {1, 2}) {
    const auto [out, fault] = run(pooling{combiner::sum}, false, lanes, skipped);
    CHECK(fault.as_status().place() ==
          fault_place{.table = 5, .bag = 3, .position = bad_position, .value = 30});
    for (std::size_t j = 0; j < 8; ++j) {
      CHECK(out[3 * 8 + j] == 0.0F);
      CHECK(out[7 * 8 + j] == 0.0F);
    }
    CHECK(skipped == 0);
  }
  CHECK(run(pooling{combiner::sum, padding::prune}, false, 2, skipped).second.value ==
        30);  // a negative one is pruned
  CHECK(run(pooling{combiner::sum, padding::id{30}}, false, 2, skipped).second.value == -9);
  CHECK(run(pooling{combiner::sum, bounds::skip}, false, 2, skipped).second.code == 0);
  CHECK(skipped == 2);
  skipped = 0;
  CHECK(run(pooling{combiner::sum, bounds::skip, padding::id{30}}, false, 1, skipped).second.code == 0);
  CHECK(skipped == 1);
  // Offsets that decrease, or leave the ids: reported, and nothing is read outside.
  made.offsets[6] = made.offsets[7] + 3;
  CHECK(run(pooling{combiner::sum, bounds::skip}, true, 1, skipped).second.code ==
        static_cast<int>(errc::offsets_decreasing));
  made.offsets[12] = 1000;
  made.offsets[0] = -1;
  CHECK(run(pooling{combiner::sum, bounds::skip}, true, 1, skipped).second.code ==
        static_cast<int>(errc::offsets_negative));
}

TEST_CASE("device pool: the weight of an absent slot is not looked at, that of another one is") {
  std::mt19937_64 random(seed());
  stored_table<f32_rows> table(f32_rows(8), 30, random);
  const float nan = std::nanf("");
  batch<std::int64_t, std::int64_t> made;
  made.offsets = {0, 3, 5, 6};
  made.ids = {4, -1, 9, 29, 7, 29};
  made.weights = {2, nan, 0.5F, 1, 3, nan};
  const auto run = [&](const auto& how, bool chunked, int lanes) {
    auto task = detail::task_of<task_type>(table.view(), how, true);
    detail::set_bags(task, made.view(true));
    std::vector<float> out(3 * 8, 7.0F);
    device_fault fault{};
    task.out = out.data();
    task.out_stride = 8;
    task.fault = &fault;
    run_task<float, 4>(task, chosen<std::remove_cvref_t<decltype(how)>>(), lanes, chunked);
    return std::pair(out, fault.as_status());
  };
  for (const int lanes : {1, 2}) {
    for (const bool chunked : {false, true}) {
      const auto [out, s] = run(pooling{combiner::sum, padding::prune}, chunked, lanes);
      CHECK(s.code() == errc::weight_is_nan);
      CHECK(s.place() == fault_place{.bag = 2, .position = 5, .value = 29});
      for (std::size_t j = 0; j < 8; ++j) {
        CHECK(static_cast<double>(out[j]) ==
              doctest::Approx(2 * table.values[4][j] + 0.5 * table.values[9][j]).epsilon(1e-5));
        CHECK(out[16 + j] == 0.0F);
      }
    }
    CHECK(run(pooling{combiner::sum, padding::id{29}}, false, lanes).second.code() == errc::id_out_of_range);
    made.ids[1] = 29;
    CHECK(run(pooling{combiner::sum, padding::id{29}}, false, lanes).second.ok());
    CHECK(run(pooling{combiner::mean(combiner::by_weight), padding::id{29}}, false, lanes).second.ok());
    CHECK(run(pooling{combiner::sum}, false, lanes).second.place().position == 1);
    made.ids[1] = -1;
  }
  // concat, and the gradients of weights.
  const pooling how(combiner::concat, padding::prune);
  using rules = detail::rules_of<std::remove_cvref_t<decltype(how)>>;
  auto task = detail::task_of<task_type>(table.view(), how, true);
  detail::set_bags(task, made.view(true));
  std::vector<float> out(6 * 8, 7.0F);
  device_fault fault{};
  task.out = out.data();
  task.out_stride = 8;
  task.fault = &fault;
  for (index_t k = 0; k < 5; ++k) {
    for (int panel = 0; panel < 2; ++panel)
      detail::copy_position<float, 4>(rules{}, solo_team{}, task, k, panel);
  }
  CHECK(fault.as_status().ok());
  for (std::size_t j = 8; j < 16; ++j) CHECK(out[j] == 0.0F);
  using gradient_task = detail::pool_task<std::int64_t, detail::offset_ranges<std::int64_t>, const float>;
  const std::vector<float> gradient(3 * 8, 0.25F);
  for (const int lanes : {1, 2}) {
    auto of_weights =
        detail::task_of<gradient_task>(table.view(), pooling{combiner::sum, padding::prune}, true);
    detail::set_bags(of_weights, made.view(true));
    of_weights.out = gradient.data();
    of_weights.out_stride = 8;
    of_weights.fault = &fault;
    std::vector<float> dots(6, 7.0F);
    on_team(lanes, [&](const auto& team) {
      for (index_t b = 0; b < 2; ++b)
        detail::dot_positions<float, 4>(chosen<pooling<combiner::sum_t, padding::prune_t>>(), team,
                                        of_weights, b, dots.data());
    });
    CHECK(fault.as_status().ok());
    CHECK(dots[0] != 0.0F);
    CHECK(dots[1] == 0.0F);
  }
}

TEST_CASE("device pool: what each combiner makes of -0, alone and as the default row") {
  std::mt19937_64 random(seed());
  stored_table<f32_rows> table(f32_rows(4), 2, random);
  const std::vector<float> zeros{-0.0F, 0.0F, -0.0F, 1.0F};
  table.format.encode(zeros.data(), table.first());
  batch<std::int64_t, std::int64_t> made;
  made.offsets = {0, 1, 1, 601};  // one id, none, many
  made.ids.assign(601, 0);
  made.weights.assign(601, 1.0F);
  device_fault fault{};
  const auto signs = [](const float* x) {
    std::string s;
    for (int j = 0; j < 4; ++j) s += x[j] != 0.0F ? 'x' : std::signbit(x[j]) ? '-' : '+';
    return s;
  };
  const auto check = [&](const auto& how, const std::string& expected) {
    for (const bool chunked : {false, true}) {
      auto task = detail::task_of<task_type>(table.view(), how, false);
      detail::set_bags(task, made.view(false));
      std::vector<float> out(3 * 4, 7.0F);
      task.out = out.data();
      task.out_stride = 4;
      task.fault = &fault;
      run_task<float, 4>(task, chosen<std::remove_cvref_t<decltype(how)>>(), 1, chunked);
      for (std::size_t b = 0; b < 3; ++b) CHECK(signs(out.data() + 4 * b) == expected);
    }
  };
  check(pooling{combiner::sum, empty_bag::default_row{0}}, "+++x");
  check(pooling{combiner::mean, empty_bag::default_row{0}}, "+++x");
  check(pooling{combiner::sqrtn, empty_bag::default_row{0}}, "+++x");
  check(pooling{combiner::sum, empty_bag::default_row{0}, max_norm{0.5F}}, "+++x");
  check(pooling{combiner::max, empty_bag::default_row{0}}, "-+-x");
  check(pooling{combiner::max, empty_bag::default_row{0}, max_norm{0.5F}}, "-+-x");
  made.offsets = {0, 2};
  made.ids = {0, -1};
  const pooling how(combiner::concat, padding::prune, empty_bag::default_row{0});
  auto task = detail::task_of<task_type>(table.view(), how, false);
  detail::set_bags(task, made.view(false));
  std::vector<float> out(2 * 4, 7.0F);
  task.out = out.data();
  task.out_stride = 4;
  task.fault = &fault;
  for (index_t k = 0; k < 2; ++k) {
    detail::copy_position<float, 4>(detail::rules_of<std::remove_cvref_t<decltype(how)>>{}, solo_team{}, task,
                                    k, 0);
    CHECK(signs(out.data() + 4 * k) == "-+-x");
  }
  CHECK(fault.as_status().ok());
}

TEST_CASE("device pool: default rows, norms, accumulation, concat and the gradients of weights") {
  std::mt19937_64 random(seed());
  stored_table<f32_rows> table(f32_rows(8), 30, random);
  const std::vector<std::int64_t> offsets{0, 2, 2, 3}, ids{4, 9, 7};
  const std::vector<float> weights{2, 0.5F, 3}, gradient(3 * 8, 0.25F);
  const jagged_view<> bags(offsets.data(), 3, ids.data(), 3, weights.data());
  device_fault fault{};
  const pooling how(combiner::sum, empty_bag::default_row{11}, max_norm{0.5F}, output::accumulate);
  const auto clipped = [&](std::size_t r, std::size_t j) {
    double norm = 0;
    for (const double x : table.values[r]) norm += x * x;
    return table.values[r][j] * std::fmin(1.0, 0.5 / std::sqrt(norm));
  };
  for (const int lanes : {1, 2}) {
    std::vector<float> out(3 * 8, 1.0F);
    auto task = detail::task_of<task_type>(table.view(), how, true);
    detail::set_bags(task, bags);
    task.out = out.data();
    task.out_stride = 8;
    task.fault = &fault;
    run_task<float, 4>(task, chosen<std::remove_cvref_t<decltype(how)>>(), lanes, false);
    for (std::size_t j = 0; j < 8; ++j) {
      CHECK(static_cast<double>(out[j]) ==
            doctest::Approx(1 + 2 * clipped(4, j) + 0.5 * clipped(9, j)).epsilon(1e-5));
      CHECK(static_cast<double>(out[8 + j]) == doctest::Approx(1 + clipped(11, j)).epsilon(1e-5));
    }
  }
  auto task = detail::task_of<task_type>(table.view(), pooling{combiner::concat}, true);
  detail::set_bags(task, bags);
  std::vector<float> out(3 * 8);
  task.out = out.data();
  task.out_stride = 8;
  task.fault = &fault;
  for (index_t k = 0; k < 3; ++k) {
    for (int panel = 0; panel < 2; ++panel) {
      detail::copy_position<float, 4>(detail::chosen_rules{}, solo_team{}, task, k, panel);
    }
  }
  for (std::size_t j = 0; j < 8; ++j)
    CHECK(static_cast<double>(out[8 + j]) == doctest::Approx(0.5 * table.values[9][j]));
  CHECK(fault.code == 0);

  using gradient_task = detail::pool_task<std::int64_t, detail::offset_ranges<std::int64_t>, const float>;
  auto of_weights =
      detail::task_of<gradient_task>(table.view(), pooling{combiner::mean(combiner::by_weight)}, true);
  detail::set_bags(of_weights, bags);
  of_weights.out = gradient.data();
  of_weights.out_stride = 8;
  of_weights.fault = &fault;
  std::vector<float> dots(3);
  on_team(2, [&](const auto& team) {
    for (index_t b = 0; b < 3; ++b)
      detail::dot_positions<float, 4>(detail::chosen_rules{}, team, of_weights, b, dots.data());
  });
  double of[10] = {};
  for (const std::size_t r : {4U, 9U}) {
    for (const double x : table.values[r]) of[r] += 0.25 * x;
  }
  CHECK(static_cast<double>(dots[0]) ==
        doctest::Approx(of[4] / 2.5 - (2 * of[4] + 0.5 * of[9]) / 6.25).epsilon(1e-4));
  CHECK(dots[2] == doctest::Approx(0).epsilon(1e-4));
}

TEST_CASE("device groups: blocks find their table") {
  const unsigned first[] = {0, 3, 3, 10, 11};
  const int expected[] = {0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 3};
  for (unsigned b = 0; b < 11; ++b) CHECK(detail::table_of_block(first, 4, b) == expected[b]);
}

TEST_CASE("device fault: a place that is reported before another has the larger order") {
  std::mt19937_64 random(seed());
  const index_t values[] = {-1, 0, 1, 2, 255, 32766, 40000, index_t{1} << 47, index_t{1} << 50};
  const auto any = [&](std::size_t n) { return values[random() % n]; };
  for (int i = 0; i < 100'000; ++i) {
    const index_t table[] = {any(7), any(7)}, bag[] = {any(9), any(9)}, slot[] = {any(9), any(9)};
    const device_fault first{0, 1, table[0], bag[0], slot[0], 0, 0};
    const auto before = device_fault::order_of(table[0], bag[0], slot[0]);
    const auto after = device_fault::order_of(table[1], bag[1], slot[1]);
    // Nobody who is behind the first is let through less than they should: equal orders are looked at
    // closely.
    if (first.comes_after(table[1], bag[1], slot[1])) REQUIRE(after >= before);
  }
  CHECK(device_fault::order_of(-1, 3, 9) > device_fault::order_of(-1, 4, 0));
  CHECK(device_fault::order_of(-1, -1, 9) > device_fault::order_of(-1, 0, 0));
  CHECK(device_fault::order_of(2, 9, 0) > device_fault::order_of(3, 0, 0));
  CHECK(device_fault::order_of(-1, -1, 1) > device_fault::order_of(-1, -1, 2));
  CHECK(device_fault::order_of(0, 0, 0) != 0);
}
