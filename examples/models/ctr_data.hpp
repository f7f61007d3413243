// What a model sees of some rows of a click log: 13 integers as numbers and as buckets, 26 tokens as rows of
// tables. All tables lie behind each other: a row has a number in its table, and one among all.
//
//   sparse_batch ── gather, the one copy ──> dense (B, 26)  [ 0.3 log(1 + integer) ... | missing? ... ]
//                   of a fingerprint         ids (39, B)    rows of each slot's table, for by_slot
//                                             or (B, 39)    rows among all, for by_row
//                                           keys (39, B)    buckets and fingerprints, for by_key
//
// Rows hold a token as its fingerprint, its hash of 64 bits; an id is that as a fraction of 2^64, times the
// ids of its column. With raw keys a fingerprint is the key of a row, and columns have no ids.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <vector>

#include <deeprec/core/batch_traits.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/data/sparse_batch.hpp>
#include <deeprec/schedule/micro_chunk.hpp>

namespace ctr {

using deeprec::index_t;
using deeprec::matrix_view;
using deeprec::sparse_batch;
using row_id = std::int32_t;

inline constexpr index_t integers = 13;
inline constexpr index_t tokens = 26;
inline constexpr index_t slots = integers + tokens;
inline constexpr index_t dense_width = 2 * integers;
inline constexpr index_t integer_buckets = 512;
inline constexpr float dense_scale = 0.3F;
inline constexpr int rare_below = 2;  ///< uses by training rows

/// The id of a token in a column of `ids` ids.
inline index_t id_of(std::int64_t fingerprint, index_t ids) {
  return deeprec::hash_bucket(static_cast<std::uint64_t>(fingerprint), ids);
}
/// The least fingerprint of an id, as an unsigned number.
inline std::int64_t fingerprint_of(index_t id, index_t ids) {
  __extension__ using wide = unsigned __int128;
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(
      ((static_cast<wide>(id) << 64) + static_cast<wide>(ids) - 1) / static_cast<wide>(ids)));
}

/// What a user can mend: one line on stderr, and exit code 1.
struct failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Of raw keys: which get rows, and for how long.
struct key_rules {
  std::uint32_t admit = 1;  ///< occurrences in training, from which on a key has a row
  std::uint64_t ttl = 0;    ///< steps without its key after which a row goes; 0: none goes
  index_t capacity = 0;     ///< rows of a column at most, the least recent go; 0: any number
};

/// The tables of the slots. A token's row in its table is 1 + its id; row 0 is that of rare tokens. With raw
/// keys these are the tables of integers only.
struct ctr_tables {
  std::optional<key_rules> raw;
  std::vector<index_t> first_row;  // of each slot's table among all; one more: the rows of all
  /// Uses of each row by the training rows, none above rare_below. Rows of tokens that are used less become
  /// row 0 of their table, which no token has: there is little to learn about each of them, but something
  /// about all.
  std::vector<std::uint8_t> uses;

  /// `token_rows`: how many ids each of the 26 token columns has.
  template <class Sizes>
  explicit ctr_tables(const Sizes& token_rows) : first_row{0} {
    for (index_t s = 0; s < integers; ++s) first_row.push_back(first_row.back() + integer_buckets);
    for (const index_t size : token_rows) first_row.push_back(first_row.back() + 1 + size);
    uses.resize(static_cast<std::size_t>(rows()));
  }
  explicit ctr_tables(const key_rules& rules) : ctr_tables(std::array<index_t, 0>{}) { raw = rules; }
  [[nodiscard]] index_t rows() const { return first_row.back(); }
  [[nodiscard]] index_t first(index_t slot) const { return first_row[static_cast<std::size_t>(slot)]; }

  /// Ids of the token column of a slot.
  [[nodiscard]] index_t ids(index_t slot) const { return first(slot + 1) - first(slot) - 1; }

  /// @pre !raw
  void count(const sparse_batch& batch, index_t row) {
    for (index_t s = 0; s < tokens; ++s) {
      const index_t slot = integers + s, id = id_of(batch.feature(s).ids()[row], ids(slot));
      std::uint8_t& n = uses[static_cast<std::size_t>(first(slot) + 1 + id)];
      if (n < rare_below) ++n;
    }
  }
  /// A bit for each row: whether its token is known.
  [[nodiscard]] std::vector<std::uint64_t> known() const {
    std::vector<std::uint64_t> bits((uses.size() + 63) / 64);
    for (std::size_t i = 0; i < uses.size(); ++i) {
      if (uses[i] >= rare_below) bits[i / 64] |= std::uint64_t{1} << i % 64;
    }
    return bits;
  }
  /// @pre bits are known() of tables of the same sizes
  void set_known(const std::vector<std::uint64_t>& bits) {
    for (std::size_t i = 0; i < uses.size(); ++i)
      uses[i] = (bits[i / 64] >> i % 64 & 1) != 0 ? rare_below : 0;
  }
  /// The row of a token in its slot's table.
  [[nodiscard]] index_t row_of(index_t slot, std::int64_t id) const {
    return uses[static_cast<std::size_t>(first(slot) + 1 + id)] < rare_below ? 0 : 1 + id;
  }
};

/// A seeded hash of what a line holds: label, integers and the ids of its tokens. It decides which rows test.
template <class Sizes>
std::uint64_t hash_of_row(const sparse_batch& batch, index_t row, const Sizes& ids, std::uint64_t seed) {
  char content[sizeof(float) * (1 + integers) + sizeof(std::int64_t) * tokens];
  std::memcpy(content, &batch.labels()[static_cast<std::size_t>(row)], sizeof(float));
  std::memcpy(content + sizeof(float), batch.dense().row(row), sizeof(float) * integers);
  char* to = content + sizeof(float) * (1 + integers);
  for (index_t s = 0; s < tokens; ++s, to += sizeof(std::int64_t)) {
    const std::int64_t id = id_of(batch.feature(s).ids()[row], ids[static_cast<std::size_t>(s)]);
    std::memcpy(to, &id, sizeof id);
  }
  return deeprec::hash_bytes({content, sizeof content}, seed);
}

/// Missing 0, negative 1, then fine steps for small numbers and ever wider ones: log2(1 + x)^2.
inline index_t integer_bucket(float x) {
  if (std::isnan(x)) return 0;
  if (x < 0) return 1;
  const float log = std::log2(1 + x);
  return std::min<index_t>(2 + static_cast<index_t>(log * log), integer_buckets - 1);
}

using slot_bags = deeprec::fixed_hotness_view<row_id>;
using key_bags = deeprec::fixed_hotness_view<std::int64_t>;

/// How a model wants its ids; by_key: raw keys, whatever the model.
enum class id_order { by_slot, by_row, by_key };

/// The ids of each slot, B bags with one id each: rows of its table, or keys.
struct slot_ids {
  std::span<const slot_bags> rows;
  std::span<const key_bags> keys;

  slot_ids() = default;
  slot_ids(const std::vector<slot_bags>& of) : rows(of) {}
  slot_ids(const std::vector<key_bags>& of) : keys(of) {}
  [[nodiscard]] bool empty() const { return rows.empty() && keys.empty(); }
  [[nodiscard]] index_t features() const { return static_cast<index_t>(rows.size() + keys.size()); }
  [[nodiscard]] index_t bags() const { return rows.empty() ? keys[0].bags() : rows[0].bags(); }
};

/// Memory of the lists.
struct slot_lists {
  std::vector<slot_bags> rows;
  std::vector<key_bags> keys;

  void assign(const slot_ids& ids, index_t first, index_t count) {
    rows.assign(ids.rows.begin(), ids.rows.end());
    keys.assign(ids.keys.begin(), ids.keys.end());
    const auto cut = [&](auto& bags) {
      bags = deeprec::batch_traits<std::remove_reference_t<decltype(bags)>>::split(bags, first, count);
    };
    for (slot_bags& bags : rows) cut(bags);
    for (key_bags& bags : keys) cut(bags);
  }
  [[nodiscard]] slot_ids view() const { return keys.empty() ? slot_ids(rows) : slot_ids(keys); }
};

/// What a model sees of some rows.
struct ctr_batch {
  matrix_view<const float> labels;  // (B, 1)
  matrix_view<const float> dense;   // (B, 26)
  slot_ids by_slot;                 // of the 39 slots
  slot_bags by_row;                 // B bags of 39 ids each: rows among all

  [[nodiscard]] index_t rows() const { return dense.extent(0); }
  /// Some of the samples; `memory` holds their by_slot.
  [[nodiscard]] ctr_batch part(const deeprec::micro_chunk& chunk, slot_lists& memory) const {
    ctr_batch some{chunk.of(labels), chunk.of(dense), {}, {}};
    if (by_slot.empty()) {
      some.by_row = chunk.of(by_row);
      return some;
    }
    memory.assign(by_slot, chunk.first, chunk.count);
    some.by_slot = memory.view();
    return some;
  }
};

/// The 26 numbers of a row: its integers, and which of them are missing.
inline void decode_integers(const float* numbers, float* dense) {
  for (index_t n = 0; n < integers; ++n) {
    const bool missing = std::isnan(numbers[n]);
    dense[n] = missing ? 0.0F : dense_scale * std::log1p(std::max(numbers[n], 0.0F));
    dense[integers + n] = missing ? 1.0F : 0.0F;
  }
}

/// Loads what a copy of this row will read: rows of a shuffled window lie anywhere, in 28 arrays.
inline void prefetch_row(const sparse_batch& from, index_t row) {
  __builtin_prefetch(from.labels().data() + row);
  __builtin_prefetch(from.dense().row(row));
  for (index_t s = 0; s < tokens; ++s) __builtin_prefetch(from.feature(s).ids() + row);
}

/// Rows gathered for a model, in memory that is used again.
class gathered_rows {
 public:
  gathered_rows(index_t largest, id_order order) : largest_(largest), order_(order) {
    labels_.resize(static_cast<std::size_t>(largest));
    dense_.resize(static_cast<std::size_t>(largest * dense_width));
    if (order == id_order::by_key) {
      keys_.resize(static_cast<std::size_t>(largest * slots));
      lists_.keys.resize(static_cast<std::size_t>(slots));
      return;
    }
    ids_.resize(static_cast<std::size_t>(largest * slots));
    lists_.rows.resize(static_cast<std::size_t>(slots));
  }
  [[nodiscard]] index_t rows() const { return rows_; }
  void clear() { rows_ = 0; }

  /// @pre rows() is less than the largest number
  void append(const sparse_batch& from, index_t row, const ctr_tables& tables) {
    const index_t i = rows_++;
    labels_[static_cast<std::size_t>(i)] = from.labels()[static_cast<std::size_t>(row)];
    const float* const numbers = from.dense().row(row);
    decode_integers(numbers, dense_.data() + i * dense_width);
    if (order_ == id_order::by_key) {
      const auto put_key = [&](index_t slot, std::int64_t key) {
        keys_[static_cast<std::size_t>(slot * largest_ + i)] = key;
      };
      for (index_t n = 0; n < integers; ++n) put_key(n, integer_bucket(numbers[n]));
      for (index_t s = 0; s < tokens; ++s) put_key(integers + s, from.feature(s).ids()[row]);
      return;
    }
    for (index_t n = 0; n < integers; ++n) put(i, n, integer_bucket(numbers[n]), tables);
    for (index_t s = 0; s < tokens; ++s) {
      const index_t slot = integers + s;
      put(i, slot, tables.row_of(slot, id_of(from.feature(s).ids()[row], tables.ids(slot))), tables);
    }
  }
  [[nodiscard]] ctr_batch view() {
    ctr_batch batch{{labels_.data(), rows_, 1}, {dense_.data(), rows_, dense_width}, {}, {}};
    if (order_ == id_order::by_row) {
      batch.by_row = slot_bags(ids_.data(), rows_, slots);
      return batch;
    }
    for (index_t s = 0; s < slots; ++s) {
      const auto at = static_cast<std::size_t>(s);
      if (order_ == id_order::by_key) {
        lists_.keys[at] = key_bags(keys_.data() + s * largest_, rows_, 1);
      } else {
        lists_.rows[at] = slot_bags(ids_.data() + s * largest_, rows_, 1);
      }
    }
    batch.by_slot = lists_.view();
    return batch;
  }

 private:
  void put(index_t i, index_t slot, index_t row, const ctr_tables& tables) {
    if (order_ == id_order::by_slot) {
      ids_[static_cast<std::size_t>(slot * largest_ + i)] = static_cast<row_id>(row);
    } else {
      ids_[static_cast<std::size_t>(i * slots + slot)] = static_cast<row_id>(tables.first(slot) + row);
    }
  }

  index_t largest_;
  id_order order_;
  index_t rows_ = 0;
  std::vector<float> labels_, dense_;
  std::vector<row_id> ids_;
  std::vector<std::int64_t> keys_;
  slot_lists lists_;
};

}  // namespace ctr
