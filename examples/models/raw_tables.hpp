// Growing tables for the tokens of a click log, one for each column; integers have their buckets.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <deeprec/embedding/growing/growing_table.hpp>

#include "slot_tables.hpp"

namespace ctr {

class raw_tables {
 public:
  using features_type = slot_features<key_bags>;

  /// @param of_integers  rows of the integers' buckets; outlives it
  raw_tables(table_type& of_integers, const ctr_columns& columns, const key_rules& rules, index_t width,
             float bound, std::uint64_t seed);

  [[nodiscard]] const features_type& features() const { return features_; }
  [[nodiscard]] status admit(const step_context& on, std::span<const key_bags> keys,
                             features_type::found_rows& rows);
  void add_parts(model_parts& to, const std::string& name, const std::string& from);
  void add_counts(table_counts& to) const;

 private:
  using growing_type = deeprec::growing_table<deeprec::f32_rows>;

  key_rules rules_;
  std::uint64_t step_ = 0;
  std::vector<std::unique_ptr<growing_type>> columns_;
  features_type features_;
};

}  // namespace ctr
