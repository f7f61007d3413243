// What a model sees of some rows of a click log: N numbers, the first I of them counts as numbers and as
// buckets, and T tokens as rows of tables, S = I + T slots. Of Criteo's N = I = 13, T = 26. All tables lie
// behind each other: a row has a number in its table, and one among all.
//
//   sparse_batch ── gather, the one copy ──> dense (B, 2 N) [ 0.3 log(1 + count) ..., number ... | missing? ]
//                   of a fingerprint         ids (S, B)     rows of each slot's table, for by_slot
//                                             or (B, S)     rows among all, for by_row
//                                           keys (S, B)     buckets and fingerprints, for by_key
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
#include <string>
#include <type_traits>
#include <utility>
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

/// What becomes of the tokens of a field.
enum class token_bag : unsigned char { one, sum, mean };

/// The columns of rows. Those of Criteo's logs, unless a schema has others.
struct ctr_columns {
  index_t numbers = 13;              ///< the dense columns
  index_t integers = 13;             ///< the first of them, which are counts: slots as well
  index_t tokens = 26;               ///< the features
  std::vector<std::string> names{};  ///< of the numbers, then of the tokens; none: I1 ..., C1 ...
  std::vector<token_bag> bags{};     ///< of each token column; none: each has one token
  bool has_weights = false;          ///< of rows that train and test
  std::string schema{};              ///< the text that they are from, which a saved model keeps

  [[nodiscard]] index_t slots() const { return integers + tokens; }
  /// Whether fields have any number of tokens. Then ids are by slot.
  [[nodiscard]] bool has_bags() const { return !bags.empty(); }
  /// Of what a model has as numbers: one of zeros where there are none.
  [[nodiscard]] index_t dense_width() const { return std::max<index_t>(1, 2 * numbers); }
  [[nodiscard]] std::string slot_name(index_t slot) const {
    if (names.empty())
      return slot < integers ? "I" + std::to_string(slot + 1) : "C" + std::to_string(slot - integers + 1);
    return names[static_cast<std::size_t>(slot < integers ? slot : numbers + slot - integers)];
  }
  friend bool operator==(const ctr_columns&, const ctr_columns&) = default;
};
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

/// The tokens of a field.
inline std::span<const std::int64_t> bag_of(const sparse_batch& batch, index_t s, index_t row) {
  const auto bags = batch.feature(s);
  const std::int64_t first = bags.offsets()[row];
  return {bags.ids() + first, static_cast<std::size_t>(bags.offsets()[row + 1] - first)};
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
  ctr_columns columns;
  std::optional<key_rules> raw;
  std::vector<index_t> first_row;  // of each slot's table among all; one more: the rows of all
  /// Uses of each row by the training rows, none above rare_below. Rows of tokens that are used less become
  /// row 0 of their table, which no token has: there is little to learn about each of them, but something
  /// about all.
  std::vector<std::uint8_t> uses;

  /// `token_rows`: how many ids each of the token columns has.
  template <class Sizes>
  explicit ctr_tables(const Sizes& token_rows, ctr_columns of = {}) : columns(std::move(of)), first_row{0} {
    for (index_t s = 0; s < columns.integers; ++s) first_row.push_back(first_row.back() + integer_buckets);
    for (const index_t size : token_rows) first_row.push_back(first_row.back() + 1 + size);
    uses.resize(static_cast<std::size_t>(rows()));
  }
  explicit ctr_tables(const key_rules& rules, ctr_columns of = {})
      : ctr_tables(std::array<index_t, 0>{}, std::move(of)) {
    raw = rules;
  }
  [[nodiscard]] index_t rows() const { return first_row.back(); }
  [[nodiscard]] index_t first(index_t slot) const { return first_row[static_cast<std::size_t>(slot)]; }

  /// Ids of the token column of a slot.
  [[nodiscard]] index_t ids(index_t slot) const { return first(slot + 1) - first(slot) - 1; }

  /// @pre !raw
  void count(const sparse_batch& batch, index_t row) {
    for (index_t s = 0; s < columns.tokens; ++s) {
      const index_t slot = columns.integers + s;
      for (const std::int64_t fingerprint : bag_of(batch, s, row)) {
        std::uint8_t& n = uses[static_cast<std::size_t>(first(slot) + 1 + id_of(fingerprint, ids(slot)))];
        if (n < rare_below) ++n;
      }
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
  /// Requests what row_of reads.
  void prefetch(index_t slot, std::int64_t id) const {
    __builtin_prefetch(uses.data() + first(slot) + 1 + id);
  }
  /// The row of a token in its slot's table.
  [[nodiscard]] index_t row_of(index_t slot, std::int64_t id) const {
    const bool is_known = uses[static_cast<std::size_t>(first(slot) + 1 + id)] >= rare_below;
    return static_cast<index_t>(is_known) * (1 + id);  // a branch would be mispredicted often
  }
};

/// Seeded hashes of what lines hold: label, numbers and the ids of their tokens. By them data is known again.
class row_hash {
 public:
  /// `ids`: of each token column.
  row_hash(std::vector<index_t> ids, std::uint64_t seed) : ids_(std::move(ids)), seed_(seed) {}

  std::uint64_t operator()(const sparse_batch& batch, index_t row) {
    const auto numbers = static_cast<std::size_t>(batch.dense().extent(1));
    content_.resize(sizeof(float) * (1 + numbers) + sizeof(std::int64_t) * ids_.size());
    char* to = content_.data();
    std::memcpy(to, &batch.labels()[static_cast<std::size_t>(row)], sizeof(float));
    to += sizeof(float);
    if (numbers > 0) std::memcpy(to, batch.dense().row(row), sizeof(float) * numbers);
    to += sizeof(float) * numbers;
    if (batch.shape().bags == deeprec::bag_size::any) return hash_of_bags(batch, row);
    // Stores of bytes may change anything: without this copy the pointer is loaded again for each token.
    const index_t* const sizes = ids_.data();
    const auto tokens = static_cast<index_t>(ids_.size());
    for (index_t s = 0; s < tokens; ++s, to += sizeof(std::int64_t)) {
      const std::int64_t id = id_of(batch.feature(s).ids()[row], sizes[s]);
      std::memcpy(to, &id, sizeof id);
    }
    return deeprec::hash_bytes({content_.data(), content_.size()}, seed_);
  }

 private:
  std::uint64_t hash_of_bags(const sparse_batch& batch, index_t row) {
    content_.resize(content_.size() - sizeof(std::int64_t) * ids_.size());
    const auto add = [&](std::int64_t number) {
      const char* const bytes = reinterpret_cast<const char*>(&number);
      content_.insert(content_.end(), bytes, bytes + sizeof number);
    };
    for (std::size_t s = 0; s < ids_.size(); ++s) {
      const auto bag = bag_of(batch, static_cast<index_t>(s), row);
      add(static_cast<std::int64_t>(bag.size()));
      for (const std::int64_t fingerprint : bag) add(id_of(fingerprint, ids_[s]));
    }
    return deeprec::hash_bytes({content_.data(), content_.size()}, seed_);
  }

  std::vector<index_t> ids_;
  std::uint64_t seed_;
  std::vector<char> content_;
};

/// Missing 0, negative 1, then fine steps for small numbers and ever wider ones: log2(1 + x)^2.
inline index_t integer_bucket(float x) {
  if (std::isnan(x)) return 0;
  if (x < 0) return 1;
  const float log = std::log2(1 + x);
  return std::min<index_t>(2 + static_cast<index_t>(log * log), integer_buckets - 1);
}

using slot_bags = deeprec::fixed_hotness_view<row_id>;
using key_bags = deeprec::fixed_hotness_view<std::int64_t>;
using many_bags = deeprec::jagged_view<row_id, std::int32_t>;

/// How a model wants its ids; by_key: raw keys, whatever the model.
enum class id_order { by_slot, by_row, by_key };

/// The ids of each slot, B bags with one id each: rows of its table, or keys; or with any number of rows.
struct slot_ids {
  std::span<const slot_bags> rows;
  std::span<const key_bags> keys;
  std::span<const many_bags> many;

  slot_ids() = default;
  slot_ids(const std::vector<slot_bags>& of) : rows(of) {}
  slot_ids(const std::vector<key_bags>& of) : keys(of) {}
  slot_ids(const std::vector<many_bags>& of) : many(of) {}
  [[nodiscard]] bool empty() const { return rows.empty() && keys.empty() && many.empty(); }
  [[nodiscard]] index_t features() const {
    return static_cast<index_t>(rows.size() + keys.size() + many.size());
  }
  [[nodiscard]] index_t bags() const {
    return !rows.empty() ? rows[0].bags() : !keys.empty() ? keys[0].bags() : many[0].bags();
  }
};

/// Memory of the lists.
struct slot_lists {
  std::vector<slot_bags> rows;
  std::vector<key_bags> keys;
  std::vector<many_bags> many;

  void assign(const slot_ids& ids, index_t first, index_t count) {
    rows.assign(ids.rows.begin(), ids.rows.end());
    keys.assign(ids.keys.begin(), ids.keys.end());
    many.assign(ids.many.begin(), ids.many.end());
    const auto cut = [&](auto& bags) {
      bags = deeprec::batch_traits<std::remove_reference_t<decltype(bags)>>::split(bags, first, count);
    };
    for (slot_bags& bags : rows) cut(bags);
    for (key_bags& bags : keys) cut(bags);
    for (many_bags& bags : many) cut(bags);
  }
  [[nodiscard]] slot_ids view() const {
    return !many.empty() ? slot_ids(many) : keys.empty() ? slot_ids(rows) : slot_ids(keys);
  }
};

/// What a model sees of some rows.
struct ctr_batch {
  matrix_view<const float> labels;     // (B, 1)
  matrix_view<const float> dense;      // (B, 2 N)
  slot_ids by_slot;                    // of the S slots
  slot_bags by_row;                    // B bags of S ids each: rows among all
  matrix_view<const float> weights{};  // (B, 1), or no rows: 1 each
  index_t first = 0;                   // of a part: the place of its first row

  [[nodiscard]] index_t rows() const { return dense.extent(0); }
  /// Some of the samples; `memory` holds their by_slot.
  [[nodiscard]] ctr_batch part(const deeprec::micro_chunk& chunk, slot_lists& memory) const {
    ctr_batch some{chunk.of(labels), chunk.of(dense), {}, {}};
    if (weights.extent(0) > 0) some.weights = chunk.of(weights);
    some.first = chunk.first;
    if (by_slot.empty()) {
      some.by_row = chunk.of(by_row);
      return some;
    }
    memory.assign(by_slot, chunk.first, chunk.count);
    some.by_slot = memory.view();
    return some;
  }
};

/// The dense values of a row: its numbers, and which of them are missing.
inline void decode_numbers(const ctr_columns& columns, const float* numbers, float* dense) {
  const index_t all = columns.numbers, counts = columns.integers;
  if (all == 0) dense[0] = 0;
  for (index_t n = 0; n < all; ++n) {
    const float x = numbers[n];
    const bool missing = std::isnan(x);
    dense[n] = missing ? 0.0F : n < counts ? dense_scale * std::log1p(std::max(x, 0.0F)) : x;
    dense[all + n] = missing ? 1.0F : 0.0F;
  }
}

/// Loads what a copy of this row will read: rows of a shuffled window lie anywhere, in as many arrays as it
/// has columns.
inline void prefetch_row(const sparse_batch& from, index_t row) {
  __builtin_prefetch(from.labels().data() + row);
  if (from.dense().extent(1) > 0) __builtin_prefetch(from.dense().row(row));
  if (from.shape().bags == deeprec::bag_size::any) return;
  for (index_t s = 0; s < from.feature_count(); ++s) __builtin_prefetch(from.feature(s).ids() + row);
}

/// Bags of rows of one slot.
struct bag_memory {
  std::vector<row_id> ids;
  std::vector<std::int32_t> offsets{0};

  void clear() {
    ids.clear();
    offsets.assign(1, 0);
  }
  /// Behind the last id of a bag.
  void close() { offsets.push_back(static_cast<std::int32_t>(ids.size())); }
  [[nodiscard]] many_bags view() const {
    return {offsets.data(), static_cast<index_t>(offsets.size()) - 1, ids.data(),
            static_cast<index_t>(ids.size())};
  }
};

/// Rows gathered for a model, in memory that is used again.
class gathered_rows {
 public:
  gathered_rows(index_t largest, id_order order, const ctr_columns& columns)
      : largest_(largest), order_(order), columns_(columns) {
    const index_t slots = columns.slots();
    labels_.resize(static_cast<std::size_t>(largest));
    dense_.resize(static_cast<std::size_t>(largest * columns.dense_width()));
    if (columns.has_weights) weights_.resize(static_cast<std::size_t>(largest));
    if (columns.has_bags()) {
      many_.resize(static_cast<std::size_t>(slots));
      return;
    }
    if (order == id_order::by_key) {
      keys_.resize(static_cast<std::size_t>(largest * slots));
      lists_.keys.resize(static_cast<std::size_t>(slots));
      return;
    }
    ids_.resize(static_cast<std::size_t>(largest * slots));
    lists_.rows.resize(static_cast<std::size_t>(slots));
  }
  [[nodiscard]] index_t rows() const { return rows_; }
  void clear() {
    rows_ = 0;
    for (bag_memory& of : many_) of.clear();
  }

  /// @pre rows() is less than the largest number
  void append(const sparse_batch& from, index_t row, const ctr_tables& tables) {
    const index_t i = rows_++;
    labels_[static_cast<std::size_t>(i)] = from.labels()[static_cast<std::size_t>(row)];
    if (columns_.has_weights)
      weights_[static_cast<std::size_t>(i)] = from.row_weights()[static_cast<std::size_t>(row)];
    const float* const numbers = from.dense().row(row);
    decode_numbers(columns_, numbers, dense_.data() + i * columns_.dense_width());
    const index_t integers = columns_.integers, tokens = columns_.tokens;
    if (columns_.has_bags()) return append_bags(from, row, numbers, tables);
    if (order_ == id_order::by_key) {
      const auto put_key = [&](index_t slot, std::int64_t key) {
        keys_[static_cast<std::size_t>(slot * largest_ + i)] = key;
      };
      for (index_t n = 0; n < integers; ++n) put_key(n, integer_bucket(numbers[n]));
      for (index_t s = 0; s < tokens; ++s) put_key(integers + s, from.feature(s).ids()[row]);
      return;
    }
    const bool by_slot = order_ == id_order::by_slot;
    row_id* const to = ids_.data() + (by_slot ? i : i * columns_.slots());
    const index_t step = by_slot ? largest_ : 1;
    const auto first = [&](index_t slot) { return by_slot ? 0 : tables.first(slot); };
    for (index_t n = 0; n < integers; ++n)
      to[n * step] = static_cast<row_id>(first(n) + integer_bucket(numbers[n]));
    // How often tokens are used lies anywhere: all is requested before the first is looked at.
    for (index_t slot = integers; slot < integers + tokens; ++slot) {
      const index_t id = id_of(from.feature(slot - integers).ids()[row], tables.ids(slot));
      tables.prefetch(slot, id);
      to[slot * step] = static_cast<row_id>(id);
    }
    for (index_t slot = integers; slot < integers + tokens; ++slot)
      to[slot * step] = static_cast<row_id>(first(slot) + tables.row_of(slot, to[slot * step]));
  }
  [[nodiscard]] ctr_batch view() {
    ctr_batch batch{{labels_.data(), rows_, 1}, {dense_.data(), rows_, columns_.dense_width()}, {}, {}};
    if (columns_.has_weights) batch.weights = {weights_.data(), rows_, 1};
    const index_t slots = columns_.slots();
    if (columns_.has_bags()) {
      lists_.many.clear();
      for (const bag_memory& of : many_) lists_.many.push_back(of.view());
      batch.by_slot = lists_.view();
      return batch;
    }
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
  void append_bags(const sparse_batch& from, index_t row, const float* numbers, const ctr_tables& tables) {
    const index_t integers = columns_.integers;
    for (index_t n = 0; n < integers; ++n) {
      bag_memory& of = many_[static_cast<std::size_t>(n)];
      of.ids.push_back(static_cast<row_id>(integer_bucket(numbers[n])));
      of.close();
    }
    for (index_t s = 0; s < columns_.tokens; ++s) {
      const index_t slot = integers + s;
      bag_memory& of = many_[static_cast<std::size_t>(slot)];
      for (const std::int64_t fingerprint : bag_of(from, s, row))
        of.ids.push_back(static_cast<row_id>(tables.row_of(slot, id_of(fingerprint, tables.ids(slot)))));
      of.close();
    }
  }

  index_t largest_;
  id_order order_;
  ctr_columns columns_;
  index_t rows_ = 0;
  std::vector<float> labels_, dense_, weights_;
  std::vector<row_id> ids_;
  std::vector<std::int64_t> keys_;
  std::vector<bag_memory> many_;
  slot_lists lists_;
};

}  // namespace ctr
