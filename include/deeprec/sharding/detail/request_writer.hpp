// The requests of a step, one to each owner: how many, then the arrays.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include <deeprec/comm/message_header.hpp>
#include <deeprec/comm/message_room.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/embedding/kernels/host/pool_rules.hpp>
#include <deeprec/sharding/detail/feature_place.hpp>
#include <deeprec/sharding/detail/step_buffers.hpp>
#include <deeprec/sharding/detail/step_layout.hpp>
#include <deeprec/sharding/detail/use_visits.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

template <class Bags>
class request_writer {
 public:
  using place_type = feature_place<Bags>;

  request_writer(std::span<const place_type> features, std::span<const Bags> bags, int ranks,
                 step_buffers<Bags>& buffers, use_visits<Bags>& visits) noexcept
      : features_(features), bags_(bags), ranks_(ranks), buffers_(buffers), visits_(visits) {}

  /// The entries of a feature whose ids were split; where it has a choice, of the way of fewer bytes.
  void count(std::size_t f) {
    const place_type& p = features_[f];
    const slot_parts& parts = buffers_.parts[f];
    for (int o = 0; o < ranks_; ++o) {
      const std::size_t part = p.part_of(o);
      entry(f, o).ids = parts.first[part + 1] - parts.first[part];
    }
    if (p.in_order)
      count_uses(f);
    else if (p.cuts > 1)
      count_parts(f);
    if (!p.has_sums) return;
    const index_t bytes_of_rows = bytes(f);
    if (p.pool == pooled_at::fewer_bytes && !p.in_order && least_sums(f) >= bytes_of_rows) return;
    if (!p.in_order) count_uses(f);
    for (int o = 0; o < ranks_; ++o) entry(f, o).pooled = 1;
    if (p.pool == pooled_at::owner || bytes(f) < bytes_of_rows) return;
    for (int o = 0; o < ranks_; ++o) {
      request_entry& e = entry(f, o);
      if (p.in_order)
        e.pooled = 0;
      else
        e = {.ids = e.ids};
    }
    if (!p.in_order && p.cuts > 1) count_parts(f);
  }
  /// Writes them, once the regions have their places.
  void write(std::uint64_t model) {
    for (int o = 0; o < ranks_; ++o) write(o, model);
    for (std::size_t f = 0; f < features_.size(); ++f) {
      const place_type& p = features_[f];
      if (!p.has_uses(entry(f, 0))) continue;
      if (p.has_bag_gradients(entry(f, 0)))
        write_uses(f);
      else
        write_parts(f);
      if (p.is_replicated()) copy_to_all(f);
    }
  }

 private:
  template <class Number>
  static std::size_t index(Number n) noexcept {
    return static_cast<std::size_t>(n);
  }
  [[nodiscard]] request_entry& entry(std::size_t f, int owner) const noexcept {
    return buffers_.entries[f * index(ranks_) + index(owner)];
  }
  [[nodiscard]] const Bags& bags_of(std::size_t f) const noexcept {
    return bags_[index(features_[f].feature)];
  }
  [[nodiscard]] index_t bytes(std::size_t f) const noexcept {
    index_t all = 0;
    for (int o = 0; o < ranks_; ++o) all += features_[f].bytes(entry(f, o));
    return all;
  }

  // Of the sums of bags, if each had its ids at one owner.
  [[nodiscard]] index_t least_sums(std::size_t f) const noexcept {
    const auto ranges = bags_of(f).ranges();
    index_t sums = 0;
    for (index_t bag = 0; bag < bags_of(f).bags(); ++bag) sums += ranges.end(bag) > ranges.begin(bag) ? 1 : 0;
    return sums * (features_[f].row_bytes + features_[f].gradient_row_bytes);
  }

  void write(int o, std::uint64_t model) {
    step_buffers<Bags>& b = buffers_;
    index_t bytes = sizeof(request_head), number = 0;
    for (std::size_t f = 0; f < features_.size(); ++f) {
      if (!features_[f].is_at(o)) continue;
      ++number;
      bytes += index_t{sizeof(request_entry)} + features_[f].request_bytes(entry(f, o));
    }
    b.to[index(o)] = b.requests[index(o)].make(bytes);
    request_cursor cursor(payload_of(b.to[index(o)]));
    cursor.take<request_head>(1)[0] = {model, bags_.empty() ? 0 : bags_[0].bags(),
                                       b.reply_places[index(o)].bytes, b.gradient_places[index(o)].bytes};
    const std::span<request_entry> entries = cursor.take<request_entry>(number);
    std::size_t next = 0;
    for (std::size_t f = 0; f < features_.size(); ++f) {
      const place_type& p = features_[f];
      if (!p.is_at(o)) continue;
      const request_entry& e = entries[next++] = entry(f, o);
      if (!p.is_whole()) {
        std::copy_n(b.parts[f].ids.data() + b.parts[f].first[p.part_of(o)], e.ids,
                    cursor.take<std::int64_t>(e.ids).data());
        if (p.has_uses(e)) {
          bag_uses& to = b.uses[f * index(ranks_) + index(o)];
          to.offsets = cursor.take<std::int64_t>(e.bags + 1).data();
          to.offsets[0] = 0;
          to.slots = cursor.take<std::int32_t>(e.uses).data();
          if (e.weighted != 0) to.factors = cursor.take<float>(e.uses).data();
        }
        continue;
      }
      const Bags& bag = bags_of(f);
      std::copy_n(bag.offsets(), e.bags + 1, cursor.take<std::int64_t>(e.bags + 1).data());
      std::copy_n(bag.ids(), e.ids, cursor.take<std::int64_t>(e.ids).data());
      if (e.weighted != 0) std::copy_n(bag.weights(), e.ids, cursor.take<float>(e.ids).data());
    }
  }

  // The ids of parts.
  void count_parts(std::size_t f) {
    const place_type& p = features_[f];
    buffers_.cuts[f].cut(bags_of(f), buffers_.parts[f], p.cuts);
    for (int o = 0; o < ranks_; ++o) {
      request_entry& e = entry(f, o);
      e.bags = 0;
      for (const batch_part& part : buffers_.cuts[f].parts()) e.bags += part.ids_of(p.part_of(o));
      e.uses = e.bags;
    }
  }
  void write_parts(std::size_t f) {
    const slot_parts& all = buffers_.parts[f];
    bag_uses* const uses = buffers_.uses.data() + f * index(ranks_);
    for (const batch_part& part : buffers_.cuts[f].parts()) {
      for (std::size_t o = 0; o + 1 < part.first.size(); ++o) {
        for (index_t u = part.first[o]; u < part.first[o + 1]; ++u)
          uses[o].add(part.of_batch[index(u)] - all.first[o], 1.0F, true);
      }
    }
  }
  // The bags of a feature that use each owner, and their ids.
  void count_uses(std::size_t f) {
    const place_type& p = features_[f];
    for (int o = 0; o < ranks_; ++o) entry(f, o) = {.ids = entry(f, o).ids};
    const bool scaled = p.divide != divide_by::one || bags_of(f).weights() != nullptr;
    visits_.each_use(buffers_.parts[f], bags_of(f),
                     [&](int o, index_t, index_t, index_t, index_t, bool begins) {
                       request_entry& e = entry(f, o);
                       e.bags += begins ? 1 : 0;
                       ++e.uses;
                     });
    for (int o = 0; o < ranks_; ++o) {
      request_entry& e = entry(f, o);
      if (p.is_replicated()) e = entry(f, 0);
      e.weighted = scaled ? 1 : 0;
    }
  }
  void write_uses(std::size_t f) {
    const place_type& p = features_[f];
    const Bags& bags = bags_of(f);
    bag_uses* const uses = buffers_.uses.data() + f * index(ranks_);
    float scale = 1.0F;
    index_t scaled = -1;
    visits_.each_use(buffers_.parts[f], bags,
                     [&](int o, index_t bag, index_t position, index_t slot, index_t, bool begins) {
                       if (p.divide != divide_by::one && scaled != bag) {
                         scale = factor_of_bag(p.divide, bags, bag);
                         scaled = bag;
                       }
                       const float weight = bags.weights() == nullptr ? 1.0F : bags.weights()[position];
                       uses[o].add(slot, weight * scale, begins);
                     });
  }
  // What the first rank is asked of a replicated table, which is asked of all.
  void copy_to_all(std::size_t f) {
    const bag_uses* const uses = buffers_.uses.data() + f * index(ranks_);
    const bag_uses& from = uses[0];
    for (int o = 1; o < ranks_; ++o) {
      const bag_uses& to = uses[o];
      std::copy_n(from.offsets, from.bags + 1, to.offsets);
      std::copy_n(from.slots, from.count, to.slots);
      if (to.factors != nullptr) std::copy_n(from.factors, from.count, to.factors);
    }
  }

  std::span<const place_type> features_;
  std::span<const Bags> bags_;
  int ranks_;
  step_buffers<Bags>& buffers_;
  use_visits<Bags>& visits_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
