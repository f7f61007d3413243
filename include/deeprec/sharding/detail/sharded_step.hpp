// A step of a sharded_group at one rank: what it asks and is asked, answers, pools, and sums for others.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <span>
#include <utility>
#include <vector>

#include <deeprec/comm/message_header.hpp>
#include <deeprec/comm/message_room.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/ops/owner_rules.hpp>
#include <deeprec/ops/partition_unique.hpp>
#include <deeprec/sharding/detail/feature_place.hpp>
#include <deeprec/sharding/detail/received_rows.hpp>
#include <deeprec/sharding/detail/request_reader.hpp>
#include <deeprec/sharding/detail/step_buffers.hpp>
#include <deeprec/sharding/detail/step_layout.hpp>
#include <deeprec/sharding/detail/use_visits.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

template <class Bags>
class sharded_step {
 public:
  using place_type = feature_place<Bags>;
  using places = std::span<const place_type>;

  sharded_step(int rank, int ranks, std::pmr::memory_resource* memory)
      : rank_(rank),
        ranks_(ranks),
        buffers_(ranks, memory),
        slot_owners_(memory),
        outs_(memory),
        visits_(ranks, memory) {}

  [[nodiscard]] const received_bytes* received() const noexcept { return &received_; }
  [[nodiscard]] step_buffers<Bags>& buffers() noexcept { return buffers_; }
  [[nodiscard]] std::int64_t bags_of_all() const noexcept { return bags_of_all_; }

  // --- message 1 ------------------------------------------------------------------------------------

  /// Writes the requests to all ranks. @pre the bags were checked
  template <class Context>
  status ask(const Context& ctx, places features, std::span<const Bags> bags, std::uint64_t model,
             bool trains) {
    step_buffers<Bags>& b = buffers_;
    const auto count = features.size();
    while (b.parts.size() < count) b.parts.emplace_back(b.memory);
    b.slots.resize((std::max)(b.slots.size(), count));
    b.entries.assign(count * index(ranks_), {});
    b.uses.assign(count * index(ranks_), {});
    b.pooled_bags.clear();
    for (std::size_t f = 0; f < count; ++f) {
      const Bags& bag = bags[index(features[f].feature)];
      if (features[f].is_whole()) {
        entry(b.entries, f, features[f].rank) = {
            .ids = bag.id_count(), .bags = bag.bags(), .weighted = bag.weights() != nullptr ? 1 : 0};
        continue;
      }
      if (const status s = split(ctx, features[f], bag, b.parts[f]); !s)
        return s.in_table(features[f].feature);
      for (int o = 0; o < ranks_; ++o) {
        const std::size_t part = features[f].part_of(o);
        entry(b.entries, f, o).ids = b.parts[f].first[part + 1] - b.parts[f].first[part];
      }
      if (features[f].in_order) count_uses(features[f], bag, f);
    }
    const index_t total =
        lay_out(features, b.reply_places, &request_entry::reply_at, &place_type::reply_rows);
    b.replies.make(total);
    const index_t of_gradients =
        lay_out(features, b.gradient_places, &request_entry::gradients_at, &place_type::gradient_rows);
    if (trains) b.gradients.make(of_gradients);
    received_ = {b.replies.data(), total};
    for (std::size_t f = 0; f < count; ++f) {
      const Bags& bag = bags[index(features[f].feature)];
      if (features[f].is_replicated())
        b.pooled_bags.push_back(bag);
      else if (!features[f].is_whole())
        number_slots(features[f], bag, f);
    }
    for (int o = 0; o < ranks_; ++o) write_request(features, bags, o, model);
    for (std::size_t f = 0; f < count; ++f) {
      if (features[f].in_order) write_uses(features[f], bags[index(features[f].feature)], f);
    }
    return {};
  }

  /// Reads the requests of all ranks.
  status take_requests(places features, std::uint64_t model) {
    request_reader<Bags> reader(features, ranks_, buffers_, model);
    const status s = reader.read();
    bags_of_all_ = reader.bags_of_all();
    return s;
  }

  // --- message 2 ------------------------------------------------------------------------------------

  /// Where the replies come to, whatever this rank sends.
  void expect_replies() {
    for (int r = 0; r < ranks_; ++r) buffers_.from_ranks[index(r)] = reply_block(r);
  }

  /// The places of the answers to all ranks, by the features that this rank serves; and the blocks.
  void begin_replies(places features, std::pmr::vector<matrix_view<float>>& outs) {
    step_buffers<Bags>& b = buffers_;
    outs.assign(b.served_bags.size(), {});
    for (int r = 0; r < ranks_; ++r) {
      const std::span<std::byte> block =
          r == rank_
              ? reply_block(r)
              : b.replies_of[index(r)].make(b.served_bytes[index(r)].reply - index_t{sizeof(message_header)});
      b.to[index(r)] = block;
      each_served(features, r, [&](const place_type& p, const request_entry& e) {
        outs[index(p.served + r)] = region<float>(block, e.reply_at, p.reply_rows(e), p);
      });
    }
  }

  /// Pooled rows of whole tables, from where they came to their columns.
  void take_pooled(places features, matrix_view<float> out) {
    for (std::size_t f = 0; f < features.size(); ++f) {
      const place_type& p = features[f];
      if (!p.is_whole()) continue;
      const request_entry& e = entry(buffers_.entries, f, p.rank);
      const matrix_view<float> from = region<float>(reply_block(p.rank), e.reply_at, e.bags, p);
      for (index_t i = 0; i < from.extent(0); ++i) std::copy_n(from.row(i), p.width, out.row(i) + p.column);
    }
  }

  // --- message 3 ------------------------------------------------------------------------------------

  /// Writes the gradients of what was asked of each rank.
  template <class Context>
  status sum_gradients(const Context& ctx, places features, std::span<const Bags> bags,
                       matrix_view<const float> gradient) {
    step_buffers<Bags>& b = buffers_;
    for (std::size_t f = 0; f < features.size(); ++f) {
      const place_type& p = features[f];
      const matrix_view<const float> mine(gradient.empty() ? nullptr : gradient.data_handle() + p.column,
                                          gradient.extent(0), p.width, gradient.stride(0));
      outs_.clear();
      for (int o = 0; o < ranks_; ++o) {
        const request_entry& e = entry(b.entries, f, o);
        outs_.push_back(region<float>(gradient_block(o), e.gradients_at, p.gradient_rows(e), p));
      }
      if (p.is_whole()) {
        const matrix_view<float>& to = outs_[index(p.rank)];
        for (index_t i = 0; i < to.extent(0); ++i) std::copy_n(mine.row(i), p.width, to.row(i));
        continue;
      }
      const Bags& bag = bags[index(p.feature)];
      const slot_parts& parts = b.parts[f];
      if (p.in_order) {
        visits_.each_use(parts, bag, [&](int o, index_t used, index_t, index_t, index_t number, bool begins) {
          if (begins) std::copy_n(mine.row(used), p.width, outs_[index(o)].row(number));
        });
        if (p.is_replicated()) copy_to_all();
        continue;
      }
      const slot_bags<Bags> slots(bag.offsets(), bag.bags(), parts.slots.data(),
                                  static_cast<index_t>(parts.slots.size()), bag.weights());
      const std::span<const matrix_view<float>> outs(outs_);
      if (const status s = p.sum(ctx, parts.counts, slots, mine, outs.first(parts.first.size() - 1)); !s)
        return s.in_table(p.feature);
      if (p.is_replicated()) copy_to_all();
    }
    for (int r = 0; r < ranks_; ++r) {
      b.to[index(r)] = gradient_block(r);
      b.from_ranks[index(r)] = r == rank_ ? b.to[index(r)]
                                          : b.gradients_of[index(r)].make(b.served_bytes[index(r)].gradients -
                                                                          index_t{sizeof(message_header)});
    }
    return {};
  }

  /// The gradients that came, by the features that this rank serves.
  void take_gradients(places features, std::pmr::vector<matrix_view<const float>>& gradients) {
    gradients.assign(buffers_.served_bags.size(), {});
    for (int r = 0; r < ranks_; ++r) {
      each_served(features, r, [&](const place_type& p, const request_entry& e) {
        gradients[index(p.served + r)] =
            region<const float>(buffers_.from_ranks[index(r)], e.gradients_at, p.gradient_rows(e), p);
      });
    }
  }

 private:
  template <class Number>
  static std::size_t index(Number n) noexcept {
    return static_cast<std::size_t>(n);
  }
  // The gradients for the first rank are those for all.
  void copy_to_all() {
    const matrix_view<float>& from = outs_.front();
    for (std::size_t o = 1; o < outs_.size(); ++o)
      std::copy_n(from.data_handle(), from.extent(0) * from.extent(1), outs_[o].data_handle());
  }
  request_entry& entry(std::pmr::vector<request_entry>& entries, std::size_t feature,
                       int rank) const noexcept {
    return entries[feature * index(ranks_) + index(rank)];
  }
  std::span<std::byte> reply_block(int rank) const noexcept {
    const block_place& a = buffers_.reply_places[index(rank)];
    return {buffers_.replies.data() + a.at, index(a.bytes)};
  }
  std::span<std::byte> gradient_block(int rank) const noexcept {
    const block_place& a = buffers_.gradient_places[index(rank)];
    return {buffers_.gradients.data() + a.at, index(a.bytes)};
  }
  template <class T>
  static matrix_view<T> region(std::span<std::byte> block, index_t at, index_t rows,
                               const place_type& p) noexcept {
    return {reinterpret_cast<T*>(block.data() + at), rows, p.width};
  }
  // each(place, what rank r asked), for the features that this rank serves.
  template <class Each>
  void each_served(places features, int r, const Each& each) {
    for (std::size_t f = 0; f < features.size(); ++f) {
      if (features[f].served >= 0) each(features[f], entry(buffers_.served_entries, f, r));
    }
  }

  template <class Context>
  status split(const Context& ctx, const place_type& p, const Bags& bags, slot_parts& parts) {
    const bool asks = !p.is_replicated() || p.sum != nullptr;  // copies that only are read need no rank
    const std::span<const std::int64_t> ids(bags.ids(), asks ? index(bags.end_position()) : 0);
    if (p.how == placed::by_slot && bags.weights() != nullptr) {  // those of tables were checked with the ids
      for (std::size_t k = 0; k < ids.size(); ++k) {
        if (std::isnan(bags.weights()[k]))
          return {errc::weight_is_nan, "resolve", {.position = static_cast<index_t>(k)}};
      }
    }
    if (p.how == placed::by_modulo) return partition_unique(ctx, ids, owner_by_modulo(ranks_), parts);
    if (p.is_replicated()) return partition_unique(ctx, ids, owner_by_modulo(1), parts);
    if (slot_owners_.empty()) {
      for (std::size_t s = 0; s < owner_by_slots::slots; ++s)
        slot_owners_.push_back(static_cast<std::uint16_t>(s * index(ranks_) / owner_by_slots::slots));
    }
    return partition_unique(ctx, ids, owner_by_slots{slot_owners_, ranks_}, parts);
  }

  // Places the regions of a message to or from each owner; the bytes of all of them.
  template <class RowsOf>
  index_t lay_out(places features, std::pmr::vector<block_place>& blocks,
                  std::int64_t request_entry::* region_at, const RowsOf& rows_of) {
    index_t at = 0;
    for (int o = 0; o < ranks_; ++o) {
      reply_layout layout(at);
      for (std::size_t f = 0; f < features.size(); ++f) {
        const place_type& p = features[f];
        if (!p.is_at(o)) continue;
        request_entry& e = entry(buffers_.entries, f, o);
        e.*region_at =
            layout.place((p.*rows_of)(e)*p.row_bytes(),
                         p.is_whole() ? index_t{sizeof(float)} : (std::max)(p.row_bytes(), index_t{1}));
      }
      blocks[index(o)] = {at, layout.bytes()};
      at = layout.end();
    }
    return at;
  }

  // The batch over the received rows.
  void number_slots(const place_type& p, const Bags& bags, std::size_t f) {
    step_buffers<Bags>& b = buffers_;
    const slot_parts& parts = b.parts[f];
    b.one_each.resize(parts.ids.size());
    for (int o = 0; o < ranks_; ++o) {
      const index_t first = parts.first[index(o)], end = parts.first[index(o) + 1];
      const index_t row =
          p.row_bytes() == 0
              ? 0
              : (b.reply_places[index(o)].at + entry(b.entries, f, o).reply_at) / p.row_bytes();
      for (index_t u = first; u < end; ++u) b.one_each[index(u)] = row + u - first;
    }
    std::pmr::vector<std::int64_t>& slots = b.slots[f];
    slots.resize(parts.slots.size());
    for (std::size_t k = 0; k < slots.size(); ++k) slots[k] = b.one_each[index(parts.slots[k])];
    b.pooled_bags.emplace_back(bags.offsets(), bags.bags(), slots.data(), static_cast<index_t>(slots.size()),
                               bags.weights());
  }

  void write_request(places features, std::span<const Bags> bags, int o, std::uint64_t model) {
    step_buffers<Bags>& b = buffers_;
    index_t bytes = sizeof(request_head), number = 0;
    for (std::size_t f = 0; f < features.size(); ++f) {
      if (!features[f].is_at(o)) continue;
      ++number;
      bytes += index_t{sizeof(request_entry)} + features[f].request_bytes(entry(b.entries, f, o));
    }
    b.to[index(o)] = b.requests[index(o)].make(bytes);
    request_cursor cursor(payload_of(b.to[index(o)]));
    cursor.take<request_head>(1)[0] = {model, bags.empty() ? 0 : bags[0].bags(),
                                       b.reply_places[index(o)].bytes, b.gradient_places[index(o)].bytes};
    const std::span<request_entry> entries = cursor.take<request_entry>(number);
    std::size_t next = 0;
    for (std::size_t f = 0; f < features.size(); ++f) {
      if (!features[f].is_at(o)) continue;
      const request_entry& e = entries[next++] = entry(b.entries, f, o);
      if (!features[f].is_whole()) {
        std::copy_n(b.parts[f].ids.data() + b.parts[f].first[features[f].part_of(o)], e.ids,
                    cursor.take<std::int64_t>(e.ids).data());
        if (features[f].in_order) {
          bag_uses& to = b.uses[f * index(ranks_) + index(o)];
          to.offsets = cursor.take<std::int64_t>(e.bags + 1).data();
          to.offsets[0] = 0;
          to.slots = cursor.take<std::int32_t>(e.uses).data();
          if (e.weighted != 0) to.factors = cursor.take<float>(e.uses).data();
        }
        continue;
      }
      const Bags& bag = bags[index(features[f].feature)];
      std::copy_n(bag.offsets(), e.bags + 1, cursor.take<std::int64_t>(e.bags + 1).data());
      std::copy_n(bag.ids(), e.ids, cursor.take<std::int64_t>(e.ids).data());
      if (e.weighted != 0) std::copy_n(bag.weights(), e.ids, cursor.take<float>(e.ids).data());
    }
  }

  // The bags of a feature that use each owner, and their ids.
  void count_uses(const place_type& p, const Bags& bags, std::size_t f) {
    const bool scaled = p.divide != divide_by::one || bags.weights() != nullptr;
    visits_.each_use(buffers_.parts[f], bags, [&](int o, index_t, index_t, index_t, index_t, bool begins) {
      request_entry& e = entry(buffers_.entries, f, o);
      e.bags += begins ? 1 : 0;
      ++e.uses;
    });
    for (int o = 0; o < ranks_; ++o) {
      request_entry& e = entry(buffers_.entries, f, o);
      if (p.is_replicated()) e = entry(buffers_.entries, f, 0);
      e.weighted = scaled ? 1 : 0;
    }
  }
  void write_uses(const place_type& p, const Bags& bags, std::size_t f) {
    float scale = 1.0F;
    index_t scaled = -1;
    visits_.each_use(buffers_.parts[f], bags,
                     [&](int o, index_t bag, index_t position, index_t slot, index_t, bool begins) {
                       if (p.divide != divide_by::one && scaled != bag) {
                         scale = factor_of_bag(p.divide, bags, bag);
                         scaled = bag;
                       }
                       const float weight = bags.weights() == nullptr ? 1.0F : bags.weights()[position];
                       buffers_.uses[f * index(ranks_) + index(o)].add(slot, weight * scale, begins);
                     });
    if (!p.is_replicated()) return;
    const bag_uses& from = buffers_.uses[f * index(ranks_)];
    for (int o = 1; o < ranks_; ++o) {
      const bag_uses& to = buffers_.uses[f * index(ranks_) + index(o)];
      std::copy_n(from.offsets, from.bags + 1, to.offsets);
      std::copy_n(from.slots, from.count, to.slots);
      if (to.factors != nullptr) std::copy_n(from.factors, from.count, to.factors);
    }
  }
  int rank_, ranks_;
  step_buffers<Bags> buffers_;
  received_bytes received_;
  std::pmr::vector<std::uint16_t> slot_owners_;
  std::pmr::vector<matrix_view<float>> outs_;  // of a feature's gradients, by ranks
  use_visits<Bags> visits_;
  std::int64_t bags_of_all_ = 0;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
