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
#include <deeprec/sharding/detail/step_buffers.hpp>
#include <deeprec/sharding/detail/step_layout.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

template <class Bags>
class sharded_step {
 public:
  using place_type = feature_place<Bags>;
  using places = std::span<const place_type>;

  sharded_step(int rank, int ranks, std::pmr::memory_resource* memory)
      : rank_(rank), ranks_(ranks), buffers_(ranks, memory), slot_owners_(memory), outs_(memory) {}

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
    b.pooled_bags.clear();
    for (std::size_t f = 0; f < count; ++f) {
      if (features[f].is_whole()) {
        entry(b.entries, f, features[f].rank) = {bags[f].id_count(), bags[f].bags(),
                                                 bags[f].weights() != nullptr};
        continue;
      }
      if (const status s = split(ctx, features[f], bags[f], b.parts[f]); !s)
        return s.in_table(static_cast<index_t>(f));
      for (int o = 0; o < ranks_; ++o) {
        entry(b.entries, f, o).ids = b.parts[f].first[index(o) + 1] - b.parts[f].first[index(o)];
      }
    }
    const index_t total = lay_out_replies(features);
    b.replies.make(total);
    if (trains) b.gradients.make(total);
    received_ = {b.replies.data(), total};
    for (std::size_t f = 0; f < count; ++f) {
      if (!features[f].is_whole()) number_slots(features[f], bags[f], f);
    }
    for (int o = 0; o < ranks_; ++o) write_request(features, bags, o, model);
    return {};
  }

  /// Reads the requests of all ranks.
  status take_requests(places features, std::uint64_t model) {
    step_buffers<Bags>& b = buffers_;
    b.served_entries.assign(features.size() * index(ranks_), {});
    index_t served = 0, most = 0;
    for (const place_type& p : features) served += p.served >= 0 ? ranks_ : 0;
    b.served_bags.assign(index(served), {});
    bags_of_all_ = 0;
    // Counts first: the numbers of bags must not move.
    for (const bool reads : {false, true}) {
      const std::int64_t* const numbers = reads ? b.numbers(most) : nullptr;
      for (int r = 0; r < ranks_; ++r) {
        if (const status s = read_request(features, r, model, numbers, most); !s) return s;
      }
    }
    return {};
  }

  // --- message 2 ------------------------------------------------------------------------------------

  /// Where the replies come to, whatever this rank sends.
  void expect_replies() {
    for (int r = 0; r < ranks_; ++r) buffers_.from_ranks[index(r)] = block_of(buffers_.replies, r);
  }

  /// The places of the answers to all ranks, by the features that this rank serves; and the blocks.
  void begin_replies(places features, std::pmr::vector<matrix_view<float>>& outs) {
    step_buffers<Bags>& b = buffers_;
    outs.assign(b.served_bags.size(), {});
    for (int r = 0; r < ranks_; ++r) {
      const std::span<std::byte> block =
          r == rank_
              ? block_of(b.replies, r)
              : b.replies_of[index(r)].make(b.served_bytes[index(r)] - index_t{sizeof(message_header)});
      b.to[index(r)] = block;
      each_served(features, r, [&](const place_type& p, const request_entry& e) {
        outs[index(p.served + r)] = region<float>(block, p, e);
      });
    }
  }

  /// Pooled rows of whole tables, from where they came to their columns.
  void take_pooled(places features, matrix_view<float> out) {
    for (std::size_t f = 0; f < features.size(); ++f) {
      const place_type& p = features[f];
      if (!p.is_whole()) continue;
      const matrix_view<float> from =
          region<float>(block_of(buffers_.replies, p.rank), p, entry(buffers_.entries, f, p.rank));
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
      if (p.is_whole()) {
        const matrix_view<float> to =
            region<float>(block_of(b.gradients, p.rank), p, entry(b.entries, f, p.rank));
        for (index_t i = 0; i < to.extent(0); ++i) std::copy_n(mine.row(i), p.width, to.row(i));
        continue;
      }
      const slot_parts& parts = b.parts[f];
      const slot_bags<Bags> slots(bags[f].offsets(), bags[f].bags(), parts.slots.data(),
                                  static_cast<index_t>(parts.slots.size()), bags[f].weights());
      outs_.clear();
      for (int o = 0; o < ranks_; ++o)
        outs_.push_back(region<float>(block_of(b.gradients, o), p, entry(b.entries, f, o)));
      if (const status s = p.sum(ctx, parts.counts, slots, mine, outs_); !s)
        return s.in_table(static_cast<index_t>(f));
    }
    for (int r = 0; r < ranks_; ++r) {
      b.to[index(r)] = block_of(b.gradients, r);
      b.from_ranks[index(r)] =
          r == rank_
              ? b.to[index(r)]
              : b.gradients_of[index(r)].make(b.served_bytes[index(r)] - index_t{sizeof(message_header)});
    }
    return {};
  }

  /// The gradients that came, by the features that this rank serves.
  void take_gradients(places features, std::pmr::vector<matrix_view<const float>>& gradients) {
    gradients.assign(buffers_.served_bags.size(), {});
    for (int r = 0; r < ranks_; ++r) {
      each_served(features, r, [&](const place_type& p, const request_entry& e) {
        gradients[index(p.served + r)] = region<const float>(buffers_.from_ranks[index(r)], p, e);
      });
    }
  }

 private:
  template <class Number>
  static std::size_t index(Number n) noexcept {
    return static_cast<std::size_t>(n);
  }
  request_entry& entry(std::pmr::vector<request_entry>& entries, std::size_t feature,
                       int rank) const noexcept {
    return entries[feature * index(ranks_) + index(rank)];
  }
  static index_t rows_of(const place_type& p, const request_entry& e) noexcept {
    return p.is_whole() ? e.bags : e.ids;
  }
  std::span<std::byte> block_of(const growing_block& buffer, int rank) const noexcept {
    const asked_of& a = buffers_.asked[index(rank)];
    return {buffer.data() + a.at, index(a.bytes)};
  }
  template <class T>
  static matrix_view<T> region(std::span<std::byte> block, const place_type& p,
                               const request_entry& e) noexcept {
    return {reinterpret_cast<T*>(block.data() + e.at), rows_of(p, e), p.width};
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
    const std::span<const std::int64_t> ids(bags.ids(), index(bags.end_position()));
    if (p.how == placed::by_slot && bags.weights() != nullptr) {  // those of tables were checked with the ids
      for (std::size_t k = 0; k < ids.size(); ++k) {
        if (std::isnan(bags.weights()[k]))
          return {errc::weight_is_nan, "resolve", {.position = static_cast<index_t>(k)}};
      }
    }
    if (p.how == placed::by_modulo) return partition_unique(ctx, ids, owner_by_modulo(ranks_), parts);
    if (slot_owners_.empty()) {
      for (std::size_t s = 0; s < owner_by_slots::slots; ++s)
        slot_owners_.push_back(static_cast<std::uint16_t>(s * index(ranks_) / owner_by_slots::slots));
    }
    return partition_unique(ctx, ids, owner_by_slots{slot_owners_, ranks_}, parts);
  }

  // The bytes of all replies.
  index_t lay_out_replies(places features) {
    index_t at = 0;
    for (int o = 0; o < ranks_; ++o) {
      reply_layout layout(at);
      for (std::size_t f = 0; f < features.size(); ++f) {
        const place_type& p = features[f];
        if (!p.is_at(o)) continue;
        request_entry& e = entry(buffers_.entries, f, o);
        e.at = layout.place(rows_of(p, e) * p.row_bytes(),
                            p.is_whole() ? index_t{sizeof(float)} : (std::max)(p.row_bytes(), index_t{1}));
      }
      buffers_.asked[index(o)] = {at, layout.bytes()};
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
          p.row_bytes() == 0 ? 0 : (b.asked[index(o)].at + entry(b.entries, f, o).at) / p.row_bytes();
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
      bytes += index_t{sizeof(request_entry)} + array_bytes(entry(b.entries, f, o), features[f].is_whole());
    }
    b.to[index(o)] = b.requests[index(o)].make(bytes);
    request_cursor cursor(payload_of(b.to[index(o)]));
    cursor.take<request_head>(1)[0] = {model, bags.empty() ? 0 : bags[0].bags(), b.asked[index(o)].bytes};
    const std::span<request_entry> entries = cursor.take<request_entry>(number);
    std::size_t next = 0;
    for (std::size_t f = 0; f < features.size(); ++f) {
      if (!features[f].is_at(o)) continue;
      const request_entry& e = entries[next++] = entry(b.entries, f, o);
      if (!features[f].is_whole()) {
        std::copy_n(b.parts[f].ids.data() + b.parts[f].first[index(o)], e.ids,
                    cursor.take<std::int64_t>(e.ids).data());
        continue;
      }
      std::copy_n(bags[f].offsets(), e.bags + 1, cursor.take<std::int64_t>(e.bags + 1).data());
      std::copy_n(bags[f].ids(), e.ids, cursor.take<std::int64_t>(e.ids).data());
      if (e.weighted != 0) std::copy_n(bags[f].weights(), e.ids, cursor.take<float>(e.ids).data());
    }
  }

  // With numbers: the batches. Without: the largest number of bags.
  status read_request(places features, int r, std::uint64_t model, const std::int64_t* numbers,
                      index_t& most) {
    step_buffers<Bags>& b = buffers_;
    fault_place place{};
    place.rank = r;
    const status broken(errc::invalid_value, "resolve: a request must have the layout of this version",
                        place);
    const std::span<std::byte> payload = payload_of(b.from_ranks[index(r)]);
    request_cursor cursor(payload);
    if (!cursor.has(sizeof(request_head))) return broken;
    const request_head head = cursor.take<request_head>(1)[0];
    if (head.model != model)
      return {errc::invalid_value, "resolve: all ranks must have the same features, in one order", place};
    b.served_bytes[index(r)] = head.reply;
    if (numbers == nullptr) bags_of_all_ += head.bags;
    index_t number = 0;
    for (const place_type& p : features) number += p.served >= 0 ? 1 : 0;
    if (!cursor.has(number * index_t{sizeof(request_entry)})) return broken;
    const std::span<const request_entry> entries = cursor.take<request_entry>(number);
    std::size_t next = 0;
    for (std::size_t f = 0; f < features.size(); ++f) {
      const place_type& p = features[f];
      if (p.served < 0) continue;
      const request_entry& e = entry(b.served_entries, f, r) = entries[next++];
      const bool fits = e.ids >= 0 && e.bags >= 0 && e.at >= index_t{sizeof(message_header)} &&
                        e.at % index_t{sizeof(float)} == 0 && cursor.has(array_bytes(e, p.is_whole())) &&
                        e.at <= head.reply - capped_product(rows_of(p, e), p.row_bytes());
      if (!fits) return broken;
      jagged_view<>& made = b.served_bags[index(p.served + r)];
      if (!p.is_whole()) {
        const std::span<const std::int64_t> ids = cursor.take<std::int64_t>(e.ids);
        if (numbers == nullptr)
          most = (std::max)(most, e.ids);
        else
          made = jagged_view<>(numbers, e.ids, ids.data(), e.ids);
        continue;
      }
      const std::int64_t* const offsets = cursor.take<std::int64_t>(e.bags + 1).data();
      const std::int64_t* const ids = cursor.take<std::int64_t>(e.ids).data();
      const float* const weights = e.weighted != 0 ? cursor.take<float>(e.ids).data() : nullptr;
      made = jagged_view<>(offsets, e.bags, ids, e.ids, weights);
    }
    return {};
  }

  int rank_, ranks_;
  step_buffers<Bags> buffers_;
  received_bytes received_;
  std::pmr::vector<std::uint16_t> slot_owners_;
  std::pmr::vector<matrix_view<float>> outs_;  // of a feature's gradients, by ranks
  std::int64_t bags_of_all_ = 0;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
