// A step of a sharded_group at one rank: what it asks and is asked, answers, pools, and sums for others.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <type_traits>
#include <vector>

#include <deeprec/comm/message_header.hpp>
#include <deeprec/comm/message_room.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/ops/cast.hpp>
#include <deeprec/ops/owner_rules.hpp>
#include <deeprec/ops/partition_unique.hpp>
#include <deeprec/sharding/detail/feature_place.hpp>
#include <deeprec/sharding/detail/received_batches.hpp>
#include <deeprec/sharding/detail/received_rows.hpp>
#include <deeprec/sharding/detail/request_reader.hpp>
#include <deeprec/sharding/detail/request_writer.hpp>
#include <deeprec/sharding/detail/step_buffers.hpp>
#include <deeprec/sharding/detail/step_layout.hpp>
#include <deeprec/sharding/detail/use_visits.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

template <class Bags, class Wire>
class sharded_step {
 public:
  using place_type = feature_place<Bags>;
  using row_type = typename Wire::row_type;
  using gradient_type = typename Wire::gradient_type;
  using places = std::span<const place_type>;

  sharded_step(int rank, int ranks, std::pmr::memory_resource* memory)
      : rank_(rank),
        ranks_(ranks),
        buffers_(ranks, memory),
        slot_owners_(memory),
        outs_(memory),
        parts_of_outs_(memory),
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
    request_writer<Bags> requests(features, bags, ranks_, b, visits_);
    received_batches<Bags> received(ranks_, b, visits_);
    const auto count = features.size();
    while (b.parts.size() < count) b.parts.emplace_back(b.memory);
    b.slots.resize((std::max)(b.slots.size(), count));
    b.sums_of_bags.resize((std::max)(b.sums_of_bags.size(), count));
    while (b.cuts.size() < count) b.cuts.emplace_back(b.memory);
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
      requests.count(f);
    }
    const index_t total = lay_out(features, b.reply_places, &request_entry::reply_at, &place_type::reply_rows,
                                  &place_type::row_bytes);
    b.replies.make(total);
    const index_t of_gradients = lay_out(features, b.gradient_places, &request_entry::gradients_at,
                                         &place_type::gradient_rows, &place_type::gradient_row_bytes);
    if (trains) b.gradients.make(of_gradients);
    received_ = {b.replies.data(), total};
    for (std::size_t f = 0; f < count; ++f) {
      const Bags& bag = bags[index(features[f].feature)];
      if (features[f].is_replicated())
        b.pooled_bags.push_back(bag);
      else if (!features[f].is_whole())
        received.append(features[f], bag, f);
    }
    requests.write(model);
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
  void begin_replies(places features, std::pmr::vector<matrix_view<row_type>>& outs) {
    step_buffers<Bags>& b = buffers_;
    outs.assign(b.served_bags.size(), {});
    for (int r = 0; r < ranks_; ++r) {
      const std::span<std::byte> block =
          r == rank_
              ? reply_block(r)
              : b.replies_of[index(r)].make(b.served_bytes[index(r)].reply - index_t{sizeof(message_header)});
      b.to[index(r)] = block;
      each_served(features, r, [&](const place_type& p, const request_entry& e) {
        outs[index(p.served + r)] = region<row_type>(block, e.reply_at, p.reply_rows(e), p);
      });
    }
  }

  /// Where received rows are pooled, by the features of pooled_bags.
  void begin_pooling(places features, matrix_view<float> out, std::pmr::vector<matrix_view<float>>& outs) {
    outs.clear();
    for (std::size_t f = 0; f < features.size(); ++f) {
      const place_type& p = features[f];
      if (p.is_whole()) continue;
      const matrix_view<float> to = columns(out, p);
      const matrix_view<float> none(nullptr, 0, p.width);
      const bool has_sums = entry(buffers_.entries, f, 0).pooled != 0;
      outs.push_back(has_sums ? none : to);
      if (p.has_sums) outs.push_back(has_sums ? to : none);
    }
  }

  /// Pooled rows of whole tables, from where they came to their columns.
  template <class Context>
  status take_pooled(const Context& ctx, places features, matrix_view<float> out) {
    for (std::size_t f = 0; f < features.size(); ++f) {
      const place_type& p = features[f];
      if (!p.is_whole()) continue;
      const request_entry& e = entry(buffers_.entries, f, p.rank);
      const auto from = region<const row_type>(reply_block(p.rank), e.reply_at, e.bags, p);
      if (const status s = cast(ctx, from, columns(out, p)); !s) return s;
    }
    return {};
  }

  // --- message 3 ------------------------------------------------------------------------------------

  /// Writes the gradients of what was asked of each rank.
  template <class Context>
  status sum_gradients(const Context& ctx, places features, std::span<const Bags> bags,
                       matrix_view<const float> gradient) {
    step_buffers<Bags>& b = buffers_;
    for (std::size_t f = 0; f < features.size(); ++f) {
      const place_type& p = features[f];
      const matrix_view<const float> mine = columns(gradient, p);
      if (p.is_whole()) {
        const request_entry& e = entry(b.entries, f, p.rank);
        const auto to = region<gradient_type>(gradient_block(p.rank), e.gradients_at, e.bags, p);
        if (const status s = cast(ctx, mine, to); !s) return s;
        continue;
      }
      begin_sums(p, f);
      const Bags& bag = bags[index(p.feature)];
      const slot_parts& parts = b.parts[f];
      if (p.has_bag_gradients(entry(b.entries, f, 0))) {
        visits_.each_use(parts, bag, [&](int o, index_t used, index_t, index_t, index_t number, bool begins) {
          if (begins) std::copy_n(mine.row(used), p.width, outs_[index(o)].row(number));
        });
      } else if (p.cuts > 1) {
        if (const status s = sum_parts(ctx, p, f, bag, mine); !s) return s.in_table(p.feature);
      } else {
        const slot_bags<Bags> slots(bag.offsets(), bag.bags(), parts.slots.data(),
                                    static_cast<index_t>(parts.slots.size()), bag.weights());
        const std::span<const matrix_view<float>> outs(outs_);
        if (const status s = p.sum(ctx, parts.counts, slots, mine, outs.first(parts.first.size() - 1)); !s)
          return s.in_table(p.feature);
      }
      if (const status s = end_sums(ctx, p, f); !s) return s;
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
  template <class Context>
  status take_gradients(const Context& ctx, places features,
                        std::pmr::vector<matrix_view<const float>>& gradients) {
    gradients.assign(buffers_.served_bags.size(), {});
    index_t floats = 0;
    for (int r = 0; r < ranks_; ++r) {
      each_served(features, r, [&](const place_type& p, const request_entry& e) {
        floats += p.gradient_rows(e) * p.width;
      });
    }
    [[maybe_unused]] float* wide = wide_gradients(floats);
    status fault;
    for (int r = 0; r < ranks_; ++r) {
      each_served(features, r, [&](const place_type& p, const request_entry& e) {
        const index_t rows = p.gradient_rows(e);
        const auto came = region<const gradient_type>(buffers_.from_ranks[index(r)], e.gradients_at, rows, p);
        matrix_view<const float>& gradient = gradients[index(p.served + r)];
        if constexpr (std::is_same_v<gradient_type, float>) {
          gradient = came;
        } else {
          const matrix_view<float> to(wide, rows, p.width);
          if (fault.ok()) fault = cast(ctx, came, to);
          gradient = to;
          wide += rows * p.width;
        }
      });
    }
    return fault;
  }

 private:
  template <class Number>
  static std::size_t index(Number n) noexcept {
    return static_cast<std::size_t>(n);
  }
  // Memory for gradients beside their messages, where these are narrower.
  float* wide_gradients(index_t floats) {
    if constexpr (std::is_same_v<gradient_type, float>) return nullptr;
    return reinterpret_cast<float*>(buffers_.wide_gradients.make(floats * index_t{sizeof(float)}));
  }
  matrix_view<gradient_type> sent_gradients(const place_type& p, std::size_t f, int owner) const noexcept {
    const request_entry& e = entry(buffers_.entries, f, owner);
    return region<gradient_type>(gradient_block(owner), e.gradients_at, p.gradient_rows(e), p);
  }
  // outs_: where the gradients of a feature are summed, by owners.
  void begin_sums(const place_type& p, std::size_t f) {
    outs_.clear();
    if constexpr (std::is_same_v<gradient_type, float>) {
      for (int o = 0; o < ranks_; ++o) outs_.push_back(sent_gradients(p, f, o));
    } else {
      index_t rows = 0;
      for (int o = 0; o < ranks_; ++o) rows += sent_gradients(p, f, o).extent(0);
      float* wide = wide_gradients(rows * p.width);
      for (int o = 0; o < ranks_; ++o) {
        outs_.emplace_back(wide, sent_gradients(p, f, o).extent(0), p.width);
        wide += outs_.back().extent(0) * p.width;
      }
    }
  }
  // Each part of the batch behind the one before it.
  template <class Context>
  status sum_parts(const Context& ctx, const place_type& p, std::size_t f, const Bags& bag,
                   matrix_view<const float> gradient) {
    const batch_cuts& cuts = buffers_.cuts[f];
    const std::size_t owners = p.is_replicated() ? 1 : index(ranks_);
    parts_of_outs_ = outs_;
    for (std::size_t j = 0; j < cuts.parts().size(); ++j) {
      const batch_part& part = cuts.parts()[j];
      const index_t from = cuts.first_bag(bag.bags(), j), to = cuts.first_bag(bag.bags(), j + 1);
      const slot_bags<Bags> slots(bag.offsets() + from, to - from, cuts.slots().data(),
                                  static_cast<index_t>(cuts.slots().size()), bag.weights());
      const matrix_view<const float> mine(from == to ? nullptr : gradient.row(from), to - from, p.width,
                                          gradient.stride(0));
      for (std::size_t o = 0; o < owners; ++o) {
        parts_of_outs_[o] = {parts_of_outs_[o].data_handle(), part.ids_of(o), p.width};
      }
      const std::span<const matrix_view<float>> outs(parts_of_outs_);
      if (const status s = p.sum(ctx, part.counts, slots, mine, outs.first(owners)); !s) return s;
      for (std::size_t o = 0; o < owners; ++o)
        parts_of_outs_[o] = {parts_of_outs_[o].data_handle() + part.ids_of(o) * p.width, 0, p.width};
    }
    return {};
  }
  // To the messages. The gradients of a replicated table for the first rank are those for all.
  template <class Context>
  status end_sums(const Context& ctx, const place_type& p, std::size_t f) {
    constexpr bool in_place = std::is_same_v<gradient_type, float>;
    status fault;
    for (int o = in_place ? 1 : 0; o < ranks_ && fault.ok() && (!in_place || p.is_replicated()); ++o) {
      const matrix_view<const float> from = outs_[p.is_replicated() ? 0 : index(o)];
      fault = cast(ctx, from, sent_gradients(p, f, o));
    }
    return fault;
  }
  template <class Entries>
  auto& entry(Entries& entries, std::size_t feature, int rank) const noexcept {
    return entries[feature * index(ranks_) + index(rank)];
  }
  // The columns of a place in the joint output or gradient.
  template <class T>
  static matrix_view<T> columns(matrix_view<T> all, const place_type& p) {
    return {all.empty() ? nullptr : all.data_handle() + p.column, all.extent(0), p.width, all.stride(0)};
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
                  std::int64_t request_entry::* region_at, const RowsOf& rows_of,
                  index_t place_type::* row_bytes) {
    index_t at = 0;
    for (int o = 0; o < ranks_; ++o) {
      reply_layout layout(at);
      for (std::size_t f = 0; f < features.size(); ++f) {
        const place_type& p = features[f];
        if (!p.is_at(o)) continue;
        request_entry& e = entry(buffers_.entries, f, o);
        const index_t bytes = p.*row_bytes;
        e.*region_at = layout.place((p.*rows_of)(e)*bytes,
                                    p.is_whole() ? index_t{sizeof(float)} : (std::max)(bytes, index_t{1}));
      }
      blocks[index(o)] = {at, layout.bytes()};
      at = layout.end();
    }
    return at;
  }

  int rank_, ranks_;
  step_buffers<Bags> buffers_;
  received_bytes received_;
  std::pmr::vector<std::uint16_t> slot_owners_;
  std::pmr::vector<matrix_view<float>> outs_;           // of a feature's gradients, by ranks
  std::pmr::vector<matrix_view<float>> parts_of_outs_;  // of a part's
  use_visits<Bags> visits_;
  std::int64_t bags_of_all_ = 0;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
