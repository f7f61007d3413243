// The rows of all slots: hashed buckets in one dense table, or a growing table for each column of tokens.
//
//   hashed   slot s reads and steps the rows [first_row[s], first_row[s + 1]) of the table
//   raw      integers as before; the key of a token is its hash. admit(), once for each step of training,
//            gives keys rows. All else finds only: a key without a row reads zeros, and is not stepped
//
//   slot_tables tables(on, data.tables, 16, 0.001F, seed);
//   tables.admit(on, batch.by_slot, found);                 training only; nothing for hashed buckets
//   tables.look_up(on, batch.by_slot, found, pooled);
//   tables.update(on, batch.by_slot, found, gradient, optimizer);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <deeprec/embedding/files/named_table.hpp>
#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/resolved_features.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>

#include "ctr_data.hpp"
#include "kernels.hpp"
#include "optimizers.hpp"
#include "rank_tables.hpp"

namespace ctr {

using table_type = deeprec::dense_table<deeprec::f32_rows>;

/// What a saved model consists of.
struct model_parts {
  std::vector<deeprec::named_table> tables;
  std::vector<std::shared_ptr<void>> owners;  ///< of what tables refer to, but for the model
};

/// What tables hold, and what became of keys.
struct table_counts {
  index_t keys = 0;        ///< of tokens, with rows
  index_t candidates = 0;  ///< that wait for rows
  index_t admitted = 0;    ///< to rows, each time
  index_t refused = 0, evicted = 0;
  index_t row_bytes = 0, index_bytes = 0, filter_bytes = 0;
};

/// The features of all slots, with batches of this type.
template <class Bags>
struct slot_features {
  using group_type = deeprec::feature_group<row_optimizer, Bags>;
  /// The rows of a batch that was resolved, for its lookup and its update.
  using found_rows = std::optional<deeprec::resolved_features<group_type>>;
  group_type group;

  /// Checks the ids and locates their rows. Reads no row.
  [[nodiscard]] status resolve(const step_context& on, std::span<const Bags> by_slot, found_rows& rows) const;
  /// The same, with rows for keys that tables admit.
  [[nodiscard]] status admit(const step_context& on, std::span<const Bags> by_slot, found_rows& rows) const;
  [[nodiscard]] status look_up(const step_context& on, const found_rows& rows, matrix_view<float> out) const;
  /// Of a part of a batch, whose rows update() resolves with those of the other parts.
  [[nodiscard]] status look_up(const step_context& on, std::span<const Bags> by_slot,
                               matrix_view<float> out) const;
  [[nodiscard]] status update(const step_context& on, std::span<const Bags> by_slot, const found_rows& rows,
                              matrix_view<const float> gradient, const row_optimizer& optimizer) const;
};
extern template struct slot_features<slot_bags>;
extern template struct slot_features<key_bags>;
extern template struct slot_features<many_bags>;

class raw_tables;

/// Owner of rows, each with one float of optimizer state beside it.
///
/// @threads admit and update: one at a time; admit also beside look_up. The others: concurrent readers
class slot_tables {
 public:
  struct found_rows {
    slot_features<slot_bags>::found_rows hashed;
    slot_features<key_bags>::found_rows raw;
    slot_features<many_bags>::found_rows many;
    bool at_ranks = false;

    void reset() {
      hashed.reset();
      raw.reset();
      many.reset();
      at_ranks = false;
    }
    [[nodiscard]] bool empty() const { return !hashed && !raw && !many && !at_ranks; }
  };

  /// Rows begin at zero, or uniform in +- bound.
  slot_tables(const step_context& on, const ctr_tables& tables, index_t width, float bound = 0,
              std::uint64_t seed = 0);
  /// Tables of fixed sizes.
  ///
  /// @param absent  the id that has no row: one of zeros stands for it
  slot_tables(const step_context& on, const std::vector<index_t>& first_row, index_t width, float bound,
              std::uint64_t seed, std::optional<row_id> absent);
  ~slot_tables();
  slot_tables(const slot_tables&) = delete;
  slot_tables& operator=(const slot_tables&) = delete;

  /// Keeps the rows of one of `ranks` ranks, r mod ranks of each slot; the others have the others. Then all
  /// calls are those of all ranks.
  ///
  /// @pre !is_raw()
  void share(const step_context& on, int rank, int ranks, const rank_tables_maker& make);
  [[nodiscard]] bool is_raw() const { return raw_ != nullptr; }
  /// Whether rows are of one slot each: then look_up_sums and update_sums are of no use.
  [[nodiscard]] bool is_by_slot() const {
    return raw_ != nullptr || at_ranks_ != nullptr || many_.has_value();
  }

  /// Begins a step of training: evicts what is due, and resolves with rows for new keys. Hashed buckets:
  /// nothing.
  [[nodiscard]] status admit(const step_context& on, const slot_ids& ids, found_rows& rows);
  [[nodiscard]] status resolve(const step_context& on, const slot_ids& ids, found_rows& rows) const;
  [[nodiscard]] status look_up(const step_context& on, const found_rows& rows, matrix_view<float> out) const;
  /// The same, of rows that are resolved where they are not yet.
  [[nodiscard]] status look_up(const step_context& on, const slot_ids& ids, found_rows& rows,
                               matrix_view<float> out) const {
    if (rows.empty()) {
      if (const status s = resolve(on, ids, rows); !s) return s;
    }
    return look_up(on, rows, out);
  }
  /// Of a part of a batch.
  [[nodiscard]] status look_up(const step_context& on, const slot_ids& ids, matrix_view<float> out) const;
  [[nodiscard]] status update(const step_context& on, const slot_ids& ids, const found_rows& rows,
                              matrix_view<const float> gradient, const row_optimizer& optimizer);

  /// The sum of the rows of each bag, whose ids are numbers among the rows of all.
  ///
  /// @pre !is_by_slot()
  [[nodiscard]] status look_up_sums(const step_context& on, const slot_bags& bags,
                                    matrix_view<float> out) const;
  [[nodiscard]] status update_sums(const step_context& on, const slot_bags& bags,
                                   matrix_view<const float> gradient, const row_optimizer& optimizer);

  /// Adds what a saved model has of them. `from`, where not empty: a file, for whose keys rows are made.
  void add_parts(model_parts& to, const std::string& name, const std::string& from);
  [[nodiscard]] table_counts counts() const;

 private:
  std::vector<index_t> first_row_;
  table_type table_;  // of all slots; of raw keys, of integers
  slot_features<slot_bags> features_;
  std::optional<slot_features<many_bags>> many_;  // instead, where fields have any number of tokens
  std::unique_ptr<raw_tables> raw_;               // refers to table_
  std::unique_ptr<rank_tables> at_ranks_;         // likewise
};

/// Of two tables of one model, which admit and evict the same keys: those keys, and the bytes of both.
[[nodiscard]] table_counts counts_of_twins(const slot_tables& one, const slot_tables& other);

}  // namespace ctr
