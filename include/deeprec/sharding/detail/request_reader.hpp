// The requests that came from all ranks, as batches for the features that this rank serves.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include <deeprec/comm/message_header.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/sharding/detail/feature_place.hpp>
#include <deeprec/sharding/detail/step_buffers.hpp>
#include <deeprec/sharding/detail/step_layout.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

template <class Bags>
class request_reader {
 public:
  using place_type = feature_place<Bags>;

  request_reader(std::span<const place_type> features, int ranks, step_buffers<Bags>& buffers,
                 std::uint64_t model) noexcept
      : features_(features), ranks_(ranks), buffers_(buffers), model_(model) {}

  /// Fills the buffers' served and stepped batches.
  status read() {
    step_buffers<Bags>& b = buffers_;
    for (const place_type& p : features_) served_ += p.served >= 0 ? 1 : 0;
    b.served_entries.assign(features_.size() * index(ranks_), {});
    b.served_bags.assign(index(served_ * ranks_), {});
    b.stepped_bags.assign(index(served_ * ranks_), {});
    // Counts first: the numbers of bags and the ids of uses must not move.
    for (int r = 0; r < ranks_; ++r) {
      if (const status s = read(r, false); !s) return s;
    }
    numbers_ = b.numbers(most_ids_);
    b.stepped_ids.resize((std::max)(b.stepped_ids.size(), index(uses_)));
    ids_of_uses_ = b.stepped_ids.data();
    for (int r = 0; r < ranks_; ++r) {
      if (const status s = read(r, true); !s) return s;
    }
    return {};
  }
  [[nodiscard]] std::int64_t bags_of_all() const noexcept { return bags_of_all_; }

 private:
  template <class Number>
  static std::size_t index(Number n) noexcept {
    return static_cast<std::size_t>(n);
  }
  static bool in_block(index_t at, index_t rows, index_t row_bytes, index_t block) noexcept {
    const index_t word = row_bytes % 4 == 0 ? 4 : 2;  // elements have 32 or 16 bits
    return at >= index_t{sizeof(message_header)} && at % word == 0 &&
           at <= block - capped_product(rows, row_bytes);
  }
  bool fits(const place_type& p, const request_entry& e, const request_head& head,
            const request_cursor& cursor) const noexcept {
    return e.ids >= 0 && e.bags >= 0 && e.uses >= 0 && (e.pooled == 0 || p.has_sums) &&
           cursor.has(p.request_bytes(e)) && in_block(e.reply_at, p.reply_rows(e), p.row_bytes, head.reply) &&
           in_block(e.gradients_at, p.gradient_rows(e), p.gradient_row_bytes, head.gradients);
  }

  // The batches of rank r; or their sizes, before there is room for them.
  status read(int r, bool makes) {
    step_buffers<Bags>& b = buffers_;
    fault_place place{};
    place.rank = r;
    const status broken(errc::invalid_value, "resolve: a request must have the layout of this version",
                        place);
    request_cursor cursor(payload_of(b.from_ranks[index(r)]));
    if (!cursor.has(sizeof(request_head))) return broken;
    const request_head head = cursor.take<request_head>(1)[0];
    if (head.model != model_)
      return {errc::invalid_value, "resolve: all ranks must have the same features, in one order", place};
    constexpr index_t least = sizeof(message_header);
    if (head.reply < least || head.gradients < least ||
        !cursor.has(served_ * index_t{sizeof(request_entry)})) {
      return broken;
    }
    b.served_bytes[index(r)] = {head.reply, head.gradients};
    if (!makes) bags_of_all_ += head.bags;
    const std::span<const request_entry> entries = cursor.take<request_entry>(served_);
    std::size_t next = 0;
    for (std::size_t f = 0; f < features_.size(); ++f) {
      const place_type& p = features_[f];
      if (p.served < 0) continue;
      const request_entry& e = b.served_entries[f * index(ranks_) + index(r)] = entries[next++];
      if (!fits(p, e, head, cursor)) return broken;
      jagged_view<>& looked_up = b.served_bags[index(p.served + r)];
      jagged_view<>& stepped = b.stepped_bags[index(p.served + r)];
      if (p.is_whole()) {
        const std::int64_t* const offsets = cursor.take<std::int64_t>(e.bags + 1).data();
        const std::int64_t* const ids = cursor.take<std::int64_t>(e.ids).data();
        const float* const weights = e.weighted != 0 ? cursor.take<float>(e.ids).data() : nullptr;
        looked_up = stepped = jagged_view<>(offsets, e.bags, ids, e.ids, weights);
        continue;
      }
      const std::span<const std::int64_t> ids = cursor.take<std::int64_t>(e.ids);
      most_ids_ = (std::max)(most_ids_, e.ids);
      if (makes) {
        stepped = jagged_view<>(numbers_, e.ids, ids.data(), e.ids);
        looked_up = p.is_replicated() ? jagged_view<>(numbers_, 0, ids.data(), 0) : stepped;
      }
      if (p.has_uses(e) && !read_uses(e, cursor, ids, makes, stepped)) return broken;
      if (e.pooled != 0) looked_up = stepped;
    }
    return {};
  }
  bool read_uses(const request_entry& e, request_cursor& cursor, std::span<const std::int64_t> ids,
                 bool makes, jagged_view<>& stepped) {
    const std::int64_t* const offsets = cursor.take<std::int64_t>(e.bags + 1).data();
    const std::span<const std::int32_t> slots = cursor.take<std::int32_t>(e.uses);
    const float* const factors = e.weighted != 0 ? cursor.take<float>(e.uses).data() : nullptr;
    if (!makes) {
      uses_ = capped_sum(uses_, e.uses);
      return true;
    }
    for (std::size_t k = 0; k < slots.size(); ++k) {
      if (slots[k] < 0 || slots[k] >= e.ids) return false;
      ids_of_uses_[k] = ids[index(slots[k])];
    }
    stepped = jagged_view<>(offsets, e.bags, ids_of_uses_, e.uses, factors);
    ids_of_uses_ += e.uses;
    return true;
  }

  std::span<const place_type> features_;
  int ranks_;
  step_buffers<Bags>& buffers_;
  std::uint64_t model_;
  index_t served_ = 0;    // features
  index_t most_ids_ = 0;  // of a rank and feature
  index_t uses_ = 0;      // of all
  std::int64_t bags_of_all_ = 0;
  const std::int64_t* numbers_ = nullptr;
  std::int64_t* ids_of_uses_ = nullptr;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
