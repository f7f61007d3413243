#include "raw_tables.hpp"

#include <algorithm>
#include <memory_resource>
#include <utility>
#include <vector>

#include <deeprec/core/hash.hpp>
#include <deeprec/embedding/files/named_rows.hpp>
#include <deeprec/embedding/growing/eviction.hpp>
#include <deeprec/embedding/pooling.hpp>

namespace ctr {

raw_tables::raw_tables(table_type& of_integers, const ctr_columns& columns, const key_rules& rules,
                       index_t width, float bound, std::uint64_t seed)
    : rules_(rules), columns_(static_cast<std::size_t>(columns.tokens)) {
  using view_type = deeprec::table_view<deeprec::f32_rows>;
  const view_type all = of_integers.view();
  const deeprec::f32_rows format = all.format();
  for (index_t n = 0; n < columns.integers; ++n) {
    features_.group.add(view_type(all.row(n * integer_buckets), integer_buckets, format),
                        deeprec::combiner::sum);
  }
  deeprec::growing_options options;
  options.granule_bytes = index_t{1} << 16;  // most columns have few tokens
  if (rules.capacity > 0) {
    options.most_rows = rules.capacity;
    options.full = deeprec::when_full::evict_least_recent;
  }
  const std::vector<float> zeros(static_cast<std::size_t>(width));
  for (std::size_t t = 0; t < columns_.size(); ++t) {
    deeprec::initial_row first = deeprec::row_init::zeros{};
    if (bound != 0) first = deeprec::row_init::uniform{.seed = deeprec::mix64(seed + t), .bound = bound};
    columns_[t] = std::make_unique<growing_type>(format, std::move(first), options);
    columns_[t]->admit_by(deeprec::filters::counter{rules.admit}).or_throw();
    columns_[t]->default_row(zeros).or_throw();
    features_.group.add(columns_[t]->rows(), deeprec::combiner::sum);
  }
}

status raw_tables::admit(const step_context& on, std::span<const key_bags> keys,
                         features_type::found_rows& rows) {
  rows.reset();  // its rows may go
  // What is requested depends on how many keys come and go: a plan of memory would hold for no step.
  step_context apart = on;
  apart.memory = std::pmr::get_default_resource();
  ++step_;
  const std::uint64_t every = std::max<std::uint64_t>(rules_.ttl / 4, 1);
  const bool sweeps = rules_.ttl > 0 && step_ % every == 0;
  for (const auto& column : columns_) {
    column->begin_step(step_);
    if (!sweeps) continue;
    const auto evicted = evict_rows(apart, *column, deeprec::evict::step_ttl{rules_.ttl});
    if (!evicted) return evicted.fault();
  }
  return features_.admit(apart, keys, rows);
}

void raw_tables::add_parts(model_parts& to, const std::string& name, const std::string& from) {
  for (std::size_t t = 0; t < columns_.size(); ++t) {
    const std::string of_column = name + " C" + std::to_string(t + 1);
    auto make = [&] {
      if (from.empty()) return deeprec::name_rows<std::uint64_t>(of_column, columns_[t]->rows());
      auto made = deeprec::name_rows<std::uint64_t>(of_column, columns_[t]->rows(), from);
      if (!made) throw failure(made.fault().message());
      return std::move(made).value();
    };
    auto rows = std::make_shared<decltype(make())>(make());
    for (const deeprec::named_table& part : rows->tables()) to.tables.push_back(part);
    to.owners.push_back(std::move(rows));
  }
}

void raw_tables::add_counts(table_counts& to) const {
  for (const auto& column : columns_) {
    const deeprec::growing_statistics now = column->statistics();
    to.keys += now.rows;
    to.candidates += now.candidates;
    to.admitted += now.rows + now.evicted;
    to.refused += now.refused;
    to.evicted += now.evicted;
    to.row_bytes += now.row_bytes;
    to.index_bytes += now.index_bytes;
    to.filter_bytes += now.filter_bytes;
  }
}

}  // namespace ctr
