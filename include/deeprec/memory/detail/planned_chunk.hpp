// The requests of one chunk of a step: recorded, or served from the places of a plan.
//
//   plan     request 0 | request 1 | end of 0 | request 2 | end of 2 | end of 1 | (sentinel)
//                        ^ next_: what comes now must be this, or the chunk leaves its plan for this step
//
// The places hold for these events in this order. After any other event no further place is safe: requests go
// upstream until the round ends.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <new>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/memory/detail/request_record.hpp>
#include <deeprec/support/address_poison.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

inline constexpr std::size_t no_offset = static_cast<std::size_t>(-1);

/// A request of up to so many bytes, or with alignment 0 the end of the block at the offset. What is not met
/// at once, since it is optional or goes upstream, has no offset and alignment 0.
struct planned_event {
  std::size_t offset = no_offset;
  std::size_t bytes = 0;
  std::size_t alignment = 0;
};

/// What an event is where it is not met at once.
struct event_facts {
  enum class kind : unsigned char { request, upstream, free, sentinel };
  kind is = kind::sentinel;
  bool is_optional = false;
  std::uint32_t block = 0;    // number of the request
  std::size_t offset = 0;     // in the arena
  std::size_t least = 0;      // bytes of an optional request, which tell it from the next one
  std::size_t bytes = 0;      // the most, and
  std::size_t alignment = 0;  // the largest
};

/// What a chunk is served by; immutable. All lists end with a sentinel.
struct chunk_plan {
  std::vector<planned_event> events;
  std::vector<event_facts> facts;
  std::vector<std::uint32_t> requests;  // before each event: requests served at once ...
  std::vector<std::uint32_t> live;      // ... and those of them that live
  std::uint32_t blocks = 0;
};

/// What becomes of the requests of a step.
enum class chunk_use : unsigned char {
  record,  ///< upstream, and recorded
  serve,   ///< from the arena, while they are those of the plan
  pass,    ///< upstream
};

/// A step has one round of requests in a chunk, or one for each part that runs there.
///
/// @threads one thread at a time
class alignas(64) planned_chunk final : public std::pmr::memory_resource {
 public:
  struct arena_bytes {
    std::byte* first = nullptr;
    std::size_t bytes = 0;
  };
  /// Counts of a step.
  struct step_counts {
    index_t served = 0;
    index_t upstream = 0;   // requests, without those of a plan that outlive the step
    bool any = false;       // there was an event
    bool blocked = false;   // by a block of an earlier step in the arena: a round was not served
    bool complete = false;  // every event of the plan came, and no other, in each round
  };

  planned_chunk() = default;
  explicit planned_chunk(std::pmr::memory_resource* upstream) noexcept : upstream_(upstream) {}

  /// @param checks blocks are filled and watched: several times as slow
  void set_arena(arena_bytes arena, bool checks) noexcept {
    base_ = arena.first;
    arena_bytes_ = arena.bytes;
    checks_ = checks;
  }
  /// Chunks of phases that end before this one begins, whose bytes it may share: it is served while they hold
  /// no block.
  void set_before(std::vector<const planned_chunk*> chunks) { before_ = std::move(chunks); }
  /// For plans of so many blocks.
  void reserve_blocks(std::size_t blocks) {
    if (taken_.size() < blocks) taken_.resize(blocks);
  }
  /// A step begins, and unless it is one of parts its only round. `plan`: what it is served by; null: it is
  /// recorded or passed on.
  void begin(chunk_use use, const chunk_plan* plan, bool by_parts) noexcept {
    use_ = use;
    plan_of_step_ = plan;
    counts_ = {};
    counts_.complete = true;
    rounds_ = 0;
    irregular_ = false;
    too_large_ = {};
    waits_ = use == chunk_use::serve && !by_parts && !before_.empty();
    if (waits_) {
      in_round_ = true;  // the first request looks at the chunks before
    } else if (!by_parts) {
      open();
    }
  }
  /// The next part begins: the same requests once more.
  void begin_part() noexcept {
    close();
    open();
  }
  step_counts end() noexcept {
    close();
    return counts_;
  }
  /// The request by which a round left its plan, where it came at its place but larger than there is room
  /// for: its number and its bytes; else 0 bytes.
  [[nodiscard]] std::pair<std::uint32_t, std::size_t> too_large() const noexcept { return too_large_; }
  /// What the rounds of a recorded step requested.
  [[nodiscard]] const request_record& record() const noexcept { return merged_; }
  [[nodiscard]] int rounds() const noexcept { return rounds_; }
  /// Whether rounds differed, or could not be recorded.
  [[nodiscard]] bool is_irregular() const noexcept { return irregular_; }
  /// Blocks in the arena: of earlier steps, and of this one.
  [[nodiscard]] index_t live() const noexcept {
    if (plan_ == nullptr) return live_;
    const planned_event* const at = hidden_ != nullptr ? hidden_ : next_;
    return live_ + plan_->live[static_cast<std::size_t>(at - plan_->events.data())] + optional_live_;
  }

  void* serve(std::size_t bytes, std::size_t alignment) {
    const planned_event& e = *next_;
    if (bytes <= e.bytes && alignment <= e.alignment) [[likely]] {
      ++next_;
      return base_ + e.offset;
    }
    return serve_else(bytes, alignment);
  }
  void release(void* block, std::size_t bytes, std::size_t alignment) {
    const planned_event& e = *next_;
    if (offset_of(block) == e.offset && e.alignment == 0) [[likely]] {
      ++next_;
      return;
    }
    release_else(block, bytes, alignment);
  }

 private:
  struct live_block {
    std::size_t offset, bytes;
  };

  void* do_allocate(std::size_t bytes, std::size_t alignment) override { return serve(bytes, alignment); }
  void do_deallocate(void* block, std::size_t bytes, std::size_t alignment) override {
    release(block, bytes, alignment);
  }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override {
    return this == &other;
  }

  static const planned_event& sentinel() noexcept {
    static constexpr planned_event none{};
    return none;
  }
  [[nodiscard]] std::size_t offset_of(const void* block) const noexcept {
    return reinterpret_cast<std::uintptr_t>(block) - reinterpret_cast<std::uintptr_t>(base_);
  }
  void open() noexcept {
    in_round_ = true;
    if (use_ == chunk_use::record) current_.clear();
    if (use_ != chunk_use::serve) return;
    const auto holds_any = [](const planned_chunk* chunk) { return chunk->live() > 0; };
    // Of an earlier round, or of a chunk that should have ended: where it lies, another block would be put.
    if (live_ > 0 || std::any_of(before_.begin(), before_.end(), holds_any)) {
      counts_.blocked = true;
      counts_.complete = false;
      return;
    }
    plan_ = plan_of_step_;
    next_ = plan_->events.data();
    optional_served_ = optional_live_ = 0;
    std::fill(taken_.begin(), taken_.end(), false);
    if (checks_) hide();
  }
  void close() noexcept {
    if (std::exchange(waits_, false)) open();
    if (!std::exchange(in_round_, false)) return;
    if (plan_ != nullptr) {
      show();
      counts_.any = counts_.any || place() > 0;
      skip_optional([](const event_facts&) { return false; });
      const std::size_t at = place();
      counts_.complete = counts_.complete && at + 1 == plan_->events.size();
      count_served(at);
    }
    if (use_ == chunk_use::record) merge();
  }
  void merge() noexcept {
    counts_.any = counts_.any || !current_.events().empty();
    if (rounds_++ == 0) {
      std::swap(merged_, current_);
      return;
    }
#if DEEPREC_EXCEPTIONS
    try {
#endif
      irregular_ = merged_.learn(current_) == step_likeness::other || irregular_;
#if DEEPREC_EXCEPTIONS
    } catch (const std::bad_alloc&) {
      irregular_ = true;
    }
#endif
  }
  // From here on the plan does not hold.
  void count_served(std::size_t at) noexcept {
    counts_.served += plan_->requests[at] + optional_served_;
    live_ += plan_->live[at] + optional_live_;
    plan_ = nullptr;
    next_ = &sentinel();
    hidden_ = nullptr;
  }
  // With checks no event is met at once: next_ is kept apart, and the fast paths see the sentinel.
  void hide() noexcept {
    hidden_ = next_;
    next_ = &sentinel();
  }
  void show() noexcept {
    if (checks_ && hidden_ != nullptr) next_ = hidden_;
    hidden_ = nullptr;
  }

  DEEPREC_APART void* serve_else(std::size_t bytes, std::size_t alignment) {
    if (std::exchange(waits_, false)) {
      open();
      return serve(bytes, alignment);
    }
    if (plan_ != nullptr) {
      show();
      const event_facts* const found = skip_optional([&](const event_facts& e) {
        return (e.is == event_facts::kind::request || e.is == event_facts::kind::upstream) &&
               bytes <= e.bytes && alignment <= e.alignment && (!e.is_optional || bytes >= e.least / 2);
      });
      if (found != nullptr) {
        ++next_;
        if (found->is_optional) taken_[found->block] = true;
        if (checks_) hide();
        if (found->is == event_facts::kind::upstream) return upstream_->allocate(bytes, alignment);
        if (found->is_optional) {
          ++optional_served_;
          ++optional_live_;
        }
        std::byte* const block = base_ + found->offset;
        return checks_ ? checked(block, found->offset, bytes) : block;
      }
      note_too_large(bytes, alignment);
      leave(place());
    }
    const bool records = in_round_ && use_ == chunk_use::record;
    if (records) current_.reserve_request();
    void* const block = upstream_->allocate(bytes, alignment);
    if (records) current_.allocated(block, bytes, alignment);
    if (in_round_) {
      ++counts_.upstream;
      counts_.any = true;
    }
    return block;
  }

  DEEPREC_APART void release_else(void* block, std::size_t bytes, std::size_t alignment) {
    const std::size_t offset = offset_of(block);
    if (offset >= arena_bytes_) {
      if (in_round_ && use_ == chunk_use::record) current_.freed(block);
      upstream_->deallocate(block, bytes, alignment);
      return;
    }
    if (checks_) unchecked(block, offset);
    if (plan_ != nullptr) {
      show();
      const event_facts* const found = skip_optional(
          [&](const event_facts& e) { return e.is == event_facts::kind::free && e.offset == offset; });
      if (found != nullptr) {
        ++next_;
        if (found->is_optional) {
          taken_[found->block] = false;
          --optional_live_;
        }
        if (checks_) hide();
        return;
      }
      leave(place());
    }
    --live_;
  }

  [[nodiscard]] std::size_t place() const noexcept {
    return static_cast<std::size_t>(next_ - plan_->events.data());
  }
  // Goes on to the next event that `is_it`, over optional ones that this round is without. Null: there is
  // none before one that must come.
  template <class IsIt>
  const event_facts* skip_optional(const IsIt& is_it) noexcept {
    for (std::size_t at = place();; ++at) {
      const event_facts& e = plan_->facts[at];
      const bool is_free = e.is == event_facts::kind::free;
      const bool is_absent = e.is_optional && is_free && !taken_[e.block];
      if (!is_absent && is_it(e)) {
        next_ = plan_->events.data() + at;
        return &e;
      }
      if (is_absent || (e.is_optional && !is_free)) continue;
      if (e.is == event_facts::kind::sentinel) next_ = plan_->events.data() + at;  // the rest is optional
      return nullptr;
    }
  }
  void note_too_large(std::size_t bytes, std::size_t alignment) noexcept {
    const event_facts* const e = skip_optional([&](const event_facts& facts) {
      const bool is_request =
          facts.is == event_facts::kind::request || facts.is == event_facts::kind::upstream;
      return is_request && bytes > facts.bytes && bytes / 2 <= facts.bytes && alignment <= facts.alignment;
    });
    if (e != nullptr) too_large_ = {e->block, bytes};
  }
  // The rest of the round is not served.
  void leave(std::size_t at) noexcept {
    counts_.any = true;
    counts_.complete = false;
    count_served(at);
  }

  void* checked(std::byte* block, std::size_t offset, std::size_t bytes) {
    for (const live_block& live : watched_) {
      if (offset < live.offset + live.bytes && live.offset < offset + bytes)
        contract_violated("planned_resource: blocks that live must not overlap", __FILE__, __LINE__);
    }
    watched_.push_back({offset, bytes});
    unpoison_addresses(block, bytes);
    std::memset(block, 0xff, bytes);
    return block;
  }
  void unchecked(void* block, std::size_t offset) {
    const auto live = std::find_if(watched_.rbegin(), watched_.rend(),
                                   [offset](const live_block& b) { return b.offset == offset; });
    if (live == watched_.rend()) {
      contract_violated("planned_resource: a block must be freed once, by its address", __FILE__, __LINE__);
    }
    std::memset(block, 0xff, live->bytes);
    poison_addresses(block, live->bytes);
    watched_.erase(std::next(live).base());
  }

  const planned_event* next_ = &sentinel();
  std::byte* base_ = nullptr;
  std::size_t arena_bytes_ = 0;
  const chunk_plan* plan_ = nullptr;  // null: this round is not served, or not any more
  std::pmr::memory_resource* upstream_ = nullptr;
  index_t live_ = 0;
  chunk_use use_ = chunk_use::pass;
  bool in_round_ = false;
  bool checks_ = false;
  bool irregular_ = false;
  bool waits_ = false;
  int rounds_ = 0;
  const chunk_plan* plan_of_step_ = nullptr;
  std::vector<bool> taken_;  // optional blocks that live
  std::uint32_t optional_served_ = 0, optional_live_ = 0;
  step_counts counts_;
  std::vector<const planned_chunk*> before_;
  request_record current_, merged_;
  std::pair<std::uint32_t, std::size_t> too_large_{};
  const planned_event* hidden_ = nullptr;
  std::vector<live_block> watched_;  // with checks
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
