#include "slot_tables.hpp"

#include <cstring>
#include <utility>

#include <deeprec/embedding/batches/partition_strategy.hpp>
#include <deeprec/embedding/groups/lookup_features.hpp>
#include <deeprec/embedding/groups/update_features.hpp>
#include <deeprec/embedding/lookup/fused_lookup.hpp>
#include <deeprec/embedding/training/update.hpp>

#include "raw_tables.hpp"

namespace ctr {

namespace {

table_type make_table(const step_context& on, index_t rows, index_t width, float bound, std::uint64_t seed) {
  table_type made(rows, width, deeprec::state_of<row_rule>);
  if (bound == 0) {
    made.initialize(on, deeprec::row_init::zeros{});
  } else {
    made.initialize(on, deeprec::row_init::uniform{.seed = seed, .bound = bound});
  }
  return made;
}

template <class Mode, class Group, class Bags, class Found>
status resolve_as(Mode mode, const step_context& on, const Group& group, std::span<const Bags> by_slot,
                  Found& rows) {
  rows.reset();
  auto found = deeprec::resolve(on, group, by_slot, mode);
  if (!found) return found.fault();
  rows.emplace(std::move(found).value());
  return {};
}

}  // namespace

template <class Bags>
status slot_features<Bags>::resolve(const step_context& on, std::span<const Bags> by_slot,
                                    found_rows& rows) const {
  return resolve_as(deeprec::keys::find, on, group, by_slot, rows);
}
template <class Bags>
status slot_features<Bags>::admit(const step_context& on, std::span<const Bags> by_slot,
                                  found_rows& rows) const {
  return resolve_as(deeprec::keys::find_or_insert, on, group, by_slot, rows);
}
template <class Bags>
status slot_features<Bags>::look_up(const step_context& on, const found_rows& rows,
                                    matrix_view<float> out) const {
  return lookup(on, *rows, out);
}
template <class Bags>
status slot_features<Bags>::look_up(const step_context& on, std::span<const Bags> by_slot,
                                    matrix_view<float> out) const {
  return lookup(on, group, by_slot, out);
}
template <class Bags>
status slot_features<Bags>::update(const step_context& on, std::span<const Bags> by_slot,
                                   const found_rows& rows, matrix_view<const float> gradient,
                                   const row_optimizer& optimizer) const {
  if (rows) return deeprec::update(on, *rows, gradient, optimizer);
  return deeprec::update(on, group, by_slot, gradient, optimizer);
}
template struct slot_features<slot_bags>;
template struct slot_features<key_bags>;
template struct slot_features<many_bags>;

slot_tables::slot_tables(const step_context& on, const ctr_tables& tables, index_t width, float bound,
                         std::uint64_t seed)
    : slot_tables(on, tables.first_row, width, bound, seed, {}) {
  if (tables.columns.has_bags()) {
    many_.emplace();
    const deeprec::table_view<deeprec::f32_rows> all = table_.view();
    for (index_t s = 0; s < tables.columns.slots(); ++s) {
      const deeprec::table_view<deeprec::f32_rows> of_slot(
          all.row(tables.first(s)), tables.first(s + 1) - tables.first(s), all.format());
      const index_t t = s - tables.columns.integers;
      if (t >= 0 && tables.columns.bags[static_cast<std::size_t>(t)] == token_bag::mean) {
        many_->group.add(of_slot, deeprec::combiner::mean);
      } else {
        many_->group.add(of_slot, deeprec::combiner::sum);
      }
    }
  }
  if (tables.raw)
    raw_ = std::make_unique<raw_tables>(table_, tables.columns, *tables.raw, width, bound, seed);
}
slot_tables::slot_tables(const step_context& on, const std::vector<index_t>& first_row, index_t width,
                         float bound, std::uint64_t seed, std::optional<row_id> absent)
    : first_row_(first_row), table_(make_table(on, first_row.back(), width, bound, seed)) {
  const deeprec::table_view<deeprec::f32_rows> all = table_.view();
  for (std::size_t s = 0; s + 1 < first_row.size(); ++s) {
    const deeprec::table_view<deeprec::f32_rows> of_slot(all.row(first_row[s]),
                                                         first_row[s + 1] - first_row[s], all.format());
    if (absent) {
      features_.group.add(of_slot, deeprec::pooling(deeprec::combiner::sum, deeprec::padding::id{*absent}));
    } else {
      features_.group.add(of_slot, deeprec::combiner::sum);
    }
  }
}
slot_tables::~slot_tables() = default;

void slot_tables::share(const step_context& on, int rank, int ranks, const rank_tables_maker& make) {
  index_t rows = 0;
  const auto count = [&](std::size_t s) { return first_row_[s + 1] - first_row_[s]; };
  for (std::size_t s = 0; s + 1 < first_row_.size(); ++s) rows += deeprec::part_rows(rank, count(s), ranks);
  const deeprec::table_view<deeprec::f32_rows> all = table_.view();
  table_type mine = make_table(on, rows, all.format().width(), 0, 0);
  const deeprec::table_view<deeprec::f32_rows> own = mine.view();
  std::vector<rank_part> parts;
  index_t next = 0;
  for (std::size_t s = 0; s + 1 < first_row_.size(); ++s) {
    const index_t has = deeprec::part_rows(rank, count(s), ranks);
    for (index_t k = 0; k < has; ++k)
      std::memcpy(own.row(next + k), all.row(first_row_[s] + k * ranks + rank),
                  static_cast<std::size_t>(all.format().stride_bytes()));
    parts.push_back({{own.row(next), has, own.format()}, count(s)});
    next += has;
  }
  features_ = {};
  table_ = std::move(mine);
  at_ranks_ = make(parts);
}

status slot_tables::admit(const step_context& on, const slot_ids& ids, found_rows& rows) {
  return raw_ ? raw_->admit(on, ids.keys, rows.raw) : status{};
}
status slot_tables::resolve(const step_context& on, const slot_ids& ids, found_rows& rows) const {
  if (raw_) return raw_->features().resolve(on, ids.keys, rows.raw);
  if (at_ranks_) {
    rows.at_ranks = true;
    return at_ranks_->resolve(on, ids.rows);
  }
  if (many_) return many_->resolve(on, ids.many, rows.many);
  return features_.resolve(on, ids.rows, rows.hashed);
}
status slot_tables::look_up(const step_context& on, const found_rows& rows, matrix_view<float> out) const {
  if (raw_) return raw_->features().look_up(on, rows.raw, out);
  if (at_ranks_) return at_ranks_->look_up(on, out);
  if (many_) return many_->look_up(on, rows.many, out);
  return features_.look_up(on, rows.hashed, out);
}
status slot_tables::look_up(const step_context& on, const slot_ids& ids, matrix_view<float> out) const {
  if (raw_) return raw_->features().look_up(on, ids.keys, out);
  if (many_) return many_->look_up(on, ids.many, out);
  return features_.look_up(on, ids.rows, out);
}
status slot_tables::update(const step_context& on, const slot_ids& ids, const found_rows& rows,
                           matrix_view<const float> gradient, const row_optimizer& optimizer) {
  if (raw_) return raw_->features().update(on, ids.keys, rows.raw, gradient, optimizer);
  if (at_ranks_) return at_ranks_->update(on, gradient, optimizer.optimizer.adagrad());
  if (many_) return many_->update(on, ids.many, rows.many, gradient, optimizer);
  return features_.update(on, ids.rows, rows.hashed, gradient, optimizer);
}

status slot_tables::look_up_sums(const step_context& on, const slot_bags& bags,
                                 matrix_view<float> out) const {
  return fused_lookup(on, table_.view(), bags, deeprec::combiner::sum, out);
}
status slot_tables::update_sums(const step_context& on, const slot_bags& bags,
                                matrix_view<const float> gradient, const row_optimizer& optimizer) {
  return deeprec::update(on, table_.view(), bags, deeprec::combiner::sum, gradient, optimizer);
}

void slot_tables::add_parts(model_parts& to, const std::string& name, const std::string& from) {
  to.tables.push_back(name_table(raw_ ? name + " of integers" : name, table_.view()));
  if (raw_) raw_->add_parts(to, name, from);
}
table_counts slot_tables::counts() const {
  table_counts now;
  const auto rows = table_.view();
  now.row_bytes = rows.rows() * rows.format().stride_bytes();
  if (raw_) raw_->add_counts(now);
  return now;
}
table_counts counts_of_twins(const slot_tables& one, const slot_tables& other) {
  table_counts both = one.counts();
  const table_counts more = other.counts();
  both.row_bytes += more.row_bytes;
  both.index_bytes += more.index_bytes;
  both.filter_bytes += more.filter_bytes;
  return both;
}

}  // namespace ctr
