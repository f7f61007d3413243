#include <deeprec/embedding/groups/lookup_features.hpp>
#include <deeprec/embedding/groups/update_features.hpp>
#include <deeprec/embedding/lookup/fused_lookup.hpp>
#include <deeprec/embedding/training/update.hpp>

#include "kernels.hpp"

namespace ctr {

table_type make_table(const step_context& on, index_t rows, index_t width, float bound, std::uint64_t seed) {
  table_type made(rows, width, deeprec::state_of<deeprec::rowwise_adagrad>);
  if (bound == 0) {
    made.initialize(on, deeprec::row_init::zeros{});
  } else {
    made.initialize(on, deeprec::row_init::uniform{.seed = seed, .bound = bound});
  }
  return made;
}

slot_features::slot_features(row_view all, const std::vector<index_t>& first_row,
                             std::optional<row_id> absent) {
  for (std::size_t s = 0; s + 1 < first_row.size(); ++s) {
    const row_view of_position(all.row(first_row[s]), first_row[s + 1] - first_row[s], all.format());
    if (absent) {
      group.add(of_position, deeprec::pooling(deeprec::combiner::sum, deeprec::padding::id{*absent}));
    } else {
      group.add(of_position, deeprec::combiner::sum);
    }
  }
}

status slot_features::resolve(const step_context& on, std::span<const slot_bags> by_slot,
                              found_rows& rows) const {
  rows.reset();
  auto found = deeprec::resolve(on, group, by_slot);
  if (!found) return found.fault();
  rows.emplace(std::move(found).value());
  return {};
}
status slot_features::look_up(const step_context& on, const found_rows& rows, matrix_view<float> out) const {
  return lookup(on, *rows, out);
}
status slot_features::look_up(const step_context& on, std::span<const slot_bags> by_slot,
                              matrix_view<float> out) const {
  return lookup(on, group, by_slot, out);
}
status slot_features::update(const step_context& on, std::span<const slot_bags> by_slot,
                             const found_rows& rows, matrix_view<const float> gradient,
                             const deeprec::rowwise_adagrad& optimizer) const {
  if (rows) return deeprec::update(on, *rows, gradient, optimizer);
  return deeprec::update(on, group, by_slot, gradient, optimizer);
}

status look_up_sums(const step_context& on, const_row_view rows, const slot_bags& bags,
                    matrix_view<float> out) {
  return fused_lookup(on, rows, bags, deeprec::combiner::sum, out);
}
status update_sums(const step_context& on, const slot_bags& bags, matrix_view<const float> gradient,
                   const deeprec::rowwise_adagrad& optimizer, row_view rows) {
  return deeprec::update(on, rows, bags, deeprec::combiner::sum, gradient, optimizer);
}

}  // namespace ctr
