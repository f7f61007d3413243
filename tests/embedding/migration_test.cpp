// What docs/migration.md says of other frameworks' calls, with numbers worked out by hand.

#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/exec/inline_executor.hpp>

#include <doctest/doctest.h>
#include <cmath>
#include <numeric>
#include <vector>

using namespace deeprec;

namespace {

// Row i of the table is {i, 10 i}.
struct fixture {
  std::vector<float> weights;
  fixture() {
    for (int i = 0; i < 10; ++i) {
      weights.push_back(static_cast<float>(i));
      weights.push_back(static_cast<float>(10 * i));
    }
  }
  auto table() const { return as_table(matrix_view<const float>(weights.data(), 10, 2)); }
  template <class Bags, class Pooling>
  std::vector<float> first_column(const Bags& bags, const Pooling& how, index_t rows) const {
    std::vector<float> out(static_cast<std::size_t>(2 * rows), -1.0F);
    lookup(inline_executor{}, table(), bags, how, matrix_view(out.data(), rows, 2)).or_throw();
    std::vector<float> column;
    for (index_t b = 0; b < rows; ++b) column.push_back(out[static_cast<std::size_t>(2 * b)]);
    return column;
  }
};

using numbers = std::vector<float>;

}  // namespace

TEST_CASE_FIXTURE(fixture, "migration: PyTorch's offsets, padding, modes") {
  const std::vector<std::int64_t> ids{4, 0, 2, 0, 9, 9}, offsets{0, 3, 4};
  const auto bags = jagged_view<>::torch(offsets.data(), 3, ids.data(), 6);
  CHECK(first_column(bags, combiner::sum, 3) == numbers{6, 0, 18});
  CHECK(first_column(bags, combiner::mean, 3) == numbers{2, 0, 9});
  CHECK(first_column(bags, combiner::max, 3) == numbers{4, 0, 9});
  CHECK(first_column(bags, pooling{combiner::mean, padding::id{0}}, 3) == numbers{3, 0, 9});
  CHECK(first_column(bags, pooling{combiner::mean, padding::id{10 + -1}}, 3) ==
        numbers{2, 0, 0});  // padding_idx=-1
  CHECK(first_column(bags, pooling{combiner::max, padding::id{4}}, 3) == numbers{2, 0, 9});
  CHECK(first_column(fixed_hotness_view(ids.data(), 2, 3), combiner::sum, 2) == numbers{6, 18});  // 2D input
  CHECK(first_column(bags, combiner::concat, 6) == numbers{4, 0, 2, 0, 9, 9});  // nn.Embedding
  CHECK(first_column(bags, pooling{combiner::concat, padding::id{4}}, 6) == numbers{0, 0, 2, 0, 9, 9});
}

TEST_CASE_FIXTURE(fixture, "migration: FBGEMM's table-major offsets, lengths and pruned ids") {
  const std::vector<std::int32_t> lengths{1, 2, 0, 3};  // T = 2 tables, B = 2 bags
  std::vector<std::int64_t> offsets(5);
  std::inclusive_scan(lengths.begin(), lengths.end(), offsets.begin() + 1, std::plus<>{}, std::int64_t{0});
  CHECK(offsets == std::vector<std::int64_t>{0, 1, 3, 3, 6});
  std::vector<std::int64_t> ids{5, 1, 2, 3, -1, 6};
  const auto of_table = [&](index_t t) { return jagged_view(offsets.data() + t * 2, 2, ids.data(), 6); };
  CHECK(first_column(of_table(0), combiner::sum, 2) == numbers{5, 3});
  CHECK(first_column(of_table(1), pooling{combiner::sum, padding::id{-1}}, 2) == numbers{0, 9});
  CHECK(first_column(of_table(1), pooling{combiner::mean, padding::id{-1}}, 2) == numbers{0, 4.5F});
  index_t skipped = 0;
  CHECK(first_column(of_table(1), pooling{combiner::sum, bounds::skip(skipped)}, 2) == numbers{0, 9});
  CHECK(skipped == 1);

  numbers out(4, -1.0F);
  const status s =
      lookup(inline_executor{}, table(), of_table(1), combiner::sum, matrix_view(out.data(), 2, 2))
          .in_table(1);
  CHECK(s.message() == "id out of range: lookup: table 1, bag 1, position 4, value -1");
  CHECK(out == numbers(4, -1.0F));
}

TEST_CASE_FIXTURE(fixture, "migration: TensorFlow's weights, pruned ids and default row") {
  const std::vector<std::int64_t> ids{2, 4, -1, -7, 3}, offsets{0, 3, 4, 5};
  const std::vector<float> by{3, 1, 9, 1, 2};
  const jagged_view bags(offsets.data(), 3, ids.data(), 5, by.data());
  CHECK(first_column(bags, pooling{combiner::mean(combiner::by_weight), bounds::skip}, 3) ==
        numbers{2.5F, 0, 3});
  CHECK(first_column(bags,
                     pooling{combiner::mean(combiner::by_weight), bounds::skip, empty_bag::default_row{7}},
                     3) == numbers{2.5F, 7, 3});
  CHECK(first_column(bags, pooling{combiner::mean, bounds::skip}, 3) == numbers{5, 0, 6});
  CHECK(first_column(bags, pooling{combiner::sum, bounds::skip}, 3) == numbers{10, 0, 6});
  const numbers roots = first_column(bags, pooling{combiner::sqrtn, bounds::skip}, 3);
  CHECK(roots[0] == doctest::Approx(10 / std::sqrt(10.0)));
  CHECK(roots[2] == doctest::Approx(3));
}
