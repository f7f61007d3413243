// The batches over what came: the bags of a step, with row numbers of the buffer of replies in the place of
// ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/sharding/detail/feature_place.hpp>
#include <deeprec/sharding/detail/step_buffers.hpp>
#include <deeprec/sharding/detail/step_layout.hpp>
#include <deeprec/sharding/detail/use_visits.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

template <class Bags>
class received_batches {
 public:
  using place_type = feature_place<Bags>;

  received_batches(int ranks, step_buffers<Bags>& buffers, use_visits<Bags>& visits) noexcept
      : ranks_(ranks), buffers_(buffers), visits_(visits) {}

  /// The batches of a feature over received rows, and over received sums: one of them has the bags.
  void append(const place_type& p, const Bags& bags, std::size_t f) {
    static constexpr typename Bags::offset_type zero{};
    const Bags none(&zero, 0, nullptr, 0);
    if (entry(f, 0).pooled != 0) {
      buffers_.pooled_bags.push_back(none);
      number_sums(p, bags, f);
      return;
    }
    number_slots(p, bags, f);
    if (p.has_sums) buffers_.pooled_bags.push_back(none);
  }

 private:
  template <class Number>
  static std::size_t index(Number n) noexcept {
    return static_cast<std::size_t>(n);
  }
  [[nodiscard]] const request_entry& entry(std::size_t f, int owner) const noexcept {
    return buffers_.entries[f * index(ranks_) + index(owner)];
  }
  // The row of the buffer where a region begins.
  [[nodiscard]] index_t first_row(const place_type& p, std::size_t f, int owner) const noexcept {
    const index_t at = buffers_.reply_places[index(owner)].at + entry(f, owner).reply_at;
    return p.row_bytes == 0 ? 0 : at / p.row_bytes;
  }
  void number_slots(const place_type& p, const Bags& bags, std::size_t f) {
    step_buffers<Bags>& b = buffers_;
    const slot_parts& parts = b.parts[f];
    b.one_each.resize(parts.ids.size());
    for (int o = 0; o < ranks_; ++o) {
      const index_t first = parts.first[index(o)], end = parts.first[index(o) + 1];
      const index_t row = first_row(p, f, o);
      for (index_t u = first; u < end; ++u) b.one_each[index(u)] = row + u - first;
    }
    std::pmr::vector<std::int64_t>& slots = b.slots[f];
    slots.resize(parts.slots.size());
    for (std::size_t k = 0; k < slots.size(); ++k) slots[k] = b.one_each[index(parts.slots[k])];
    b.pooled_bags.emplace_back(bags.offsets(), bags.bags(), slots.data(), static_cast<index_t>(slots.size()),
                               bags.weights());
  }
  // A bag has a row of each owner of its ids.
  void number_sums(const place_type& p, const Bags& bags, std::size_t f) {
    using offset_type = typename Bags::offset_type;
    step_buffers<Bags>& b = buffers_;
    std::pmr::vector<offset_type>& offsets = b.sums_of_bags[f];
    std::pmr::vector<std::int64_t>& rows = b.slots[f];
    offsets.assign(index(bags.bags()) + 1, 0);
    rows.clear();
    index_t open = 0;  // offsets behind it are not written
    visits_.each_use(b.parts[f], bags,
                     [&](int o, index_t bag, index_t, index_t, index_t number, bool begins) {
                       if (!begins) return;
                       while (open < bag) offsets[index(++open)] = static_cast<offset_type>(rows.size());
                       rows.push_back(first_row(p, f, o) + number);
                     });
    while (open < bags.bags()) offsets[index(++open)] = static_cast<offset_type>(rows.size());
    b.pooled_bags.emplace_back(offsets.data(), bags.bags(), rows.data(), static_cast<index_t>(rows.size()));
  }

  int ranks_;
  step_buffers<Bags>& buffers_;
  use_visits<Bags>& visits_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
