// Updates of growing tables of 16-bit and of split rows leave the bits of a dense table: every optimizer.
#include <deeprec/embedding/growing/growing_table.hpp>

#include <doctest/doctest.h>

#include <deeprec/core/rounding.hpp>
#include <deeprec/embedding/tables/split_bf16_rows.hpp>

#include "growing/every_optimizer.hpp"
#include "growing/twins.hpp"

using namespace growing_test;

namespace {

constexpr index_t rows = 120, bags = 30, width = 13;

}  // namespace

TEST_CASE("growing_table: updates of bf16 rows by every optimizer have the bits of a dense table") {
  with_every_optimizer([](const auto& optimizer) {
    train_both<bf16_rows>(optimizer, width, rows, bags, combiner::sum, rounding::nearest);
  });
}

TEST_CASE("growing_table: updates of f16 rows by every optimizer have the bits of a dense table") {
  with_every_optimizer([](const auto& optimizer) {
    train_both<f16_rows>(optimizer, width, rows, bags, combiner::mean, rounding::nearest);
  });
}

TEST_CASE("growing_table: updates of split rows by every optimizer have the bits of a dense table") {
  with_every_optimizer([](const auto& optimizer) {
    train_both<split_bf16_rows>(optimizer, width, rows, bags, combiner::sum, rounding::nearest);
  });
}

TEST_CASE("growing_table: rows that are rounded at random have the bits of a dense table") {
  const rounding::stochastic at_random{.seed = 11, .step = 1};
  train_both<bf16_rows>(sgd{.learning_rate = 0.1F}, 33, rows, bags, combiner::sum, at_random);
  train_both<bf16_rows>(rowwise_adagrad{}, 33, rows, bags, combiner::mean, at_random);
  train_both<f16_rows>(adam{}, 33, rows, bags, combiner::sum, at_random);
}
