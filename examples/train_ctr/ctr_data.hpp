// Rows of a click log, ready to train on: 13 integers as numbers and as buckets, 26 tokens as rows
// of tables. All tables lie behind each other: a row has a number in its table, and one among all.
//
//   dense (N, 26)   [ 0.3 log(1 + integer) ... | missing? ... ]
//   ids   (N, 39)   [ buckets of the integers ... | tokens ... ]    slot s owns rows first_row[s]
//   ...
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/random.hpp>

namespace train_ctr {

using deeprec::index_t;
using deeprec::matrix_view;
using row_id = std::int32_t;

inline constexpr index_t integers = 13;
inline constexpr index_t tokens = 26;
inline constexpr index_t slots = integers + tokens;
inline constexpr index_t dense_width = 2 * integers;
inline constexpr index_t integer_buckets = 512;
inline constexpr float dense_scale = 0.3F;

struct ctr_data {
  index_t rows = 0;
  std::vector<float> labels;
  std::vector<float> dense;
  std::vector<row_id> ids;
  std::vector<index_t> first_row;  // of each slot's table; one more: the rows of all

  /// `token_rows`: how many ids each of the 26 token columns has.
  template <class Sizes>
  explicit ctr_data(const Sizes& token_rows) : first_row{0} {
    for (index_t s = 0; s < integers; ++s) first_row.push_back(first_row.back() + integer_buckets);
    for (const index_t size : token_rows) first_row.push_back(first_row.back() + 1 + size);
  }

  /// Appends a row; a missing integer is a NaN, the tokens' ids count from 0 in each table.
  template <class Ids>
  void add(float label, const float* numbers, const Ids& token_ids) {
    labels.push_back(label);
    for (index_t i = 0; i < integers; ++i) {
      dense.push_back(std::isnan(numbers[i]) ? 0.0F : dense_scale * std::log1p(std::max(numbers[i], 0.0F)));
    }
    for (index_t i = 0; i < integers; ++i) dense.push_back(std::isnan(numbers[i]) ? 1.0F : 0.0F);
    for (index_t i = 0; i < integers; ++i) add_id(i, integer_bucket(numbers[i]));
    for (index_t s = 0; s < tokens; ++s) add_id(integers + s, 1 + token_ids(s));
    ++rows;
  }

  /// Missing 0, negative 1, then fine steps for small numbers and ever wider ones: log2(1 + x)^2.
  static index_t integer_bucket(float x) {
    if (std::isnan(x)) return 0;
    if (x < 0) return 1;
    const float log = std::log2(1 + x);
    return std::min<index_t>(2 + static_cast<index_t>(log * log), integer_buckets - 1);
  }

  /// In every token table, rows that the given data rows use less than `least` times become its row
  /// 0, which no token has: there is little to learn about each of them, but something about them
  /// all.
  void share_rare_rows(const std::vector<index_t>& counted, int least) {
    std::vector<std::int32_t> uses(static_cast<std::size_t>(first_row.back()));
    for (const index_t row : counted) {
      for (index_t s = 0; s < slots; ++s) ++uses[static_cast<std::size_t>(id_at(row, s))];
    }
    for (index_t row = 0; row < rows; ++row) {
      for (index_t s = integers; s < slots; ++s) {
        row_id& id = id_at(row, s);
        if (uses[static_cast<std::size_t>(id)] < least) {
          id = static_cast<row_id>(first_row[static_cast<std::size_t>(s)]);
        }
      }
    }
  }

 private:
  row_id& id_at(index_t row, index_t slot) { return ids[static_cast<std::size_t>(row * slots + slot)]; }
  void add_id(index_t slot, index_t id) {
    ids.push_back(static_cast<row_id>(first_row[static_cast<std::size_t>(slot)] + id));
  }
};

/// The rows for training and for testing, each in a random order that the seed decides.
struct ctr_split {
  std::vector<index_t> train, test;
};

/// A random order of [first, first + count): stream `stream` of the seed.
inline void shuffle(std::vector<index_t>& order, deeprec::counter_rng rng, std::uint64_t stream) {
  for (std::size_t i = order.size(); i > 1; --i) {
    const auto j = static_cast<std::size_t>(rng.uniform(stream, i) * static_cast<double>(i));
    std::swap(order[i - 1], order[j]);
  }
}

inline ctr_split split_rows(index_t rows, double train_fraction, std::uint64_t seed) {
  std::vector<index_t> order(static_cast<std::size_t>(rows));
  for (index_t i = 0; i < rows; ++i) order[static_cast<std::size_t>(i)] = i;
  shuffle(order, deeprec::counter_rng(seed), 1);
  const auto border = order.begin() + std::llround(train_fraction * static_cast<double>(rows));
  return {{order.begin(), border}, {border, order.end()}};
}

using slot_bags = deeprec::fixed_hotness_view<row_id>;

/// What a model sees of some rows.
struct ctr_batch {
  matrix_view<const float> labels;     // (B, 1)
  matrix_view<const float> dense;      // (B, 26)
  std::span<const slot_bags> by_slot;  // 39 batches of B bags with one id each: rows of the slot's table
  slot_bags by_row;                    // B bags of 39 ids each: rows among all
};

/// Collects rows into memory that it owns and uses again.
class batch_maker {
 public:
  explicit batch_maker(index_t largest) : largest_(largest) {
    labels_.resize(static_cast<std::size_t>(largest));
    dense_.resize(static_cast<std::size_t>(largest * dense_width));
    ids_.resize(static_cast<std::size_t>(largest * slots));
    of_slot_.resize(ids_.size());
    by_slot_.resize(static_cast<std::size_t>(slots));
  }
  template <class Executor>
  ctr_batch make(Executor& executor, const ctr_data& data, const index_t* which, index_t count) {
    executor.parallel_for(count, index_t{512}, [&](index_t begin, index_t end, int) {
      for (index_t i = begin; i < end; ++i) {
        const index_t row = which[i];
        const row_id* const ids = data.ids.data() + row * slots;
        labels_[static_cast<std::size_t>(i)] = data.labels[static_cast<std::size_t>(row)];
        std::copy_n(data.dense.data() + row * dense_width, dense_width, dense_.data() + i * dense_width);
        std::copy_n(ids, slots, ids_.data() + i * slots);
        for (index_t s = 0; s < slots; ++s) {
          of_slot_[static_cast<std::size_t>(s * largest_ + i)] =
              ids[s] - static_cast<row_id>(data.first_row[static_cast<std::size_t>(s)]);
        }
      }
    });
    for (index_t s = 0; s < slots; ++s) {
      by_slot_[static_cast<std::size_t>(s)] = slot_bags(of_slot_.data() + s * largest_, count, 1);
    }
    return {{labels_.data(), count, 1},
            {dense_.data(), count, dense_width},
            by_slot_,
            slot_bags(ids_.data(), count, slots)};
  }

 private:
  index_t largest_;
  std::vector<float> labels_, dense_;
  std::vector<row_id> ids_, of_slot_;
  std::vector<slot_bags> by_slot_;
};

}  // namespace train_ctr
