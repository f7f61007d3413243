// Scratch memory of steps that request the same blocks each time: some steps are recorded, their blocks get
// places in one arena, and later steps are served from there without a search, a lock or a page fault.
//
//   planned_resource memory;                      // of one thread, or of one step in flight
//   context ctx{pool}; ctx.memory = &memory;      // verbs allocate their scratch there
//   for (...) {
//     const planned_resource::step step = memory.begin(samples);
//     lookup(ctx, ...); update(ctx, ...);
//   }
//
//   recorded:  event 0   1   2   3   4   5          arena:  | block 0 | block 2    |
//              block 0 ──────┘   2 ──────┘                  | block 1              |
//                    block 1 ────────┘                      lifetimes that overlap do not share bytes
//
// A step that requests anything else is served by the upstream resource from there on; after some such steps
// its requests are recorded again. Not here: how places are found (plans/block_plan.hpp).
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <memory_resource>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/memory/detail/planned_chunk.hpp>
#include <deeprec/memory/detail/planned_places.hpp>
#include <deeprec/memory/detail/request_record.hpp>
#include <deeprec/memory/huge_page_resource.hpp>
#include <deeprec/memory/plans/block_plan.hpp>
#include <deeprec/support/address_poison.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// When a chunk of a step allocates, in logical time [begin, end). Chunks whose times overlap may run at
/// once.
struct chunk_phase {
  std::int64_t begin = 0;
  std::int64_t end = 1;
};

struct planned_options {
  /// Of requests outside of plans. Used by the threads of all chunks.
  std::pmr::memory_resource* upstream = std::pmr::get_default_resource();
  /// Of the arena.
  std::pmr::memory_resource* arena = huge_page_resource::shared();
  /// The arena's pages are touched when it is made. Without it, and without checks, this resource accesses
  /// none of its memory, so that may be a device's.
  bool touch = true;
  /// One for each sequence of requests: a step's chunks allocate from chunk(0), chunk(1) ...
  std::vector<chunk_phase> chunks = {{}};
  /// Of a step whose batch is cut into parts: so many run at once, and all parts request the same.
  int lanes = 0;
  int stable_steps = 3;     ///< a plan is made after so many steps with the same requests, none larger
  int most_recorded = 100;  ///< without a plan after so many steps, their requests go upstream for good
  int most_misses = 3;      ///< after so many steps in a row that left their plan, they are recorded again
  block_plan_options plan = [] {
    block_plan_options of_step;
    of_step.search_steps = std::uint64_t{1} << 24;  // some hundredths of a second
    return of_step;
  }();
  /// Blocks are filled with 0xff bytes (NaN) when they begin and end, overlaps and blocks that are freed
  /// twice break the contract. Under the address sanitizer, bytes outside of live blocks are poisoned too.
  bool checks = DEEPREC_SANITIZED != 0;
};

/// Of one resource, since it was made; plans are those in use. Steps without a request don't count.
struct planned_report {
  index_t steps = 0;
  index_t served_steps = 0;  ///< of these, by a plan to the end
  index_t missed_steps = 0;  ///< of these, with a plan that they left
  index_t served = 0;        ///< requests, from the arena
  index_t upstream = 0;      ///< requests of steps, not from it
  index_t plans = 0;         ///< made so far
  std::size_t arena_bytes = 0;
  std::size_t planned_bytes = 0;    ///< of the largest plan
  std::size_t live_bytes = 0;       ///< of that plan: the most that live at once, which no plan can be below
  std::size_t requested_bytes = 0;  ///< of that plan: of all requests together
};

/// @cost    a served request and its end 2 to 3 ns together; plans are made by begin(), in some milliseconds
/// @threads begin() and the end of a step: one thread, while no chunk is in use. Chunks in a step: each one
///          thread at a time. Two steps in flight have a resource each
/// @error   what the upstream resource throws. Where the arena is refused, requests go upstream
class planned_resource final : public std::pmr::memory_resource {
 public:
  /// A step, from begin() to the end of this object.
  class [[nodiscard]] step {
   public:
    step(step&& other) noexcept : of_(std::exchange(other.of_, nullptr)) {}
    step& operator=(step&&) = delete;
    ~step() {
      if (of_ != nullptr) of_->end();
    }

   private:
    friend class planned_resource;
    explicit step(planned_resource* of) noexcept : of_(of) {}
    planned_resource* of_;
  };

  explicit planned_resource(planned_options options = {}) : options_(std::move(options)) {
    if (options_.chunks.empty()) options_.chunks.emplace_back();
    const std::size_t lanes = static_cast<std::size_t>((std::max)(options_.lanes, 0));
    chunks_.reserve(options_.chunks.size() + lanes);
    while (chunks_.size() < options_.chunks.size() + lanes) chunks_.emplace_back(options_.upstream);
    for (std::size_t c = 0; c < options_.chunks.size(); ++c) {
      std::vector<const detail::planned_chunk*> before;
      for (std::size_t other = 0; other < options_.chunks.size(); ++other)
        if (options_.chunks[other].end <= options_.chunks[c].begin) before.push_back(&chunks_[other]);
      chunks_[c].set_before(std::move(before));
    }
  }
  planned_resource(const planned_resource&) = delete;
  planned_resource& operator=(const planned_resource&) = delete;
  /// @pre no block of the arena lives
  ~planned_resource() override { release_arena(); }

  /// The next step. What it requests before its end is recorded or served.
  ///
  /// @param size what the requests depend on, such as the number of samples: steps whose sizes are within a
  ///             quarter share a plan
  /// @pre     no step is in flight
  /// @cost    O(chunks). When requests have been the same for some steps it makes a plan, and allocates and
  ///          touches its arena
  /// @threads one thread, while no chunk is in use
  /// @error   throws std::bad_alloc, where a size comes for the first time. A refused arena is no error
  step begin(index_t size = 0) {
    DEEPREC_EXPECTS(current_ == nullptr);
    shape& now = shape_of(size);
    if (now.state == shape_state::recorded && now.same >= options_.stable_steps) make_plan(now);
    using use = detail::chunk_use;
    blocked_ = false;  // by a block of an earlier step
    for (const detail::planned_chunk& chunk : chunks_) blocked_ = blocked_ || chunk.live() > 0;
    const use here = now.state == shape_state::recorded               ? use::record
                     : now.state == shape_state::planned && !blocked_ ? use::serve
                                                                      : use::pass;
    for (std::size_t c = 0; c < chunks_.size(); ++c) {
      chunks_[c].begin(here, here == use::serve ? &now.places.chunks[c] : nullptr,
                       c >= options_.chunks.size());
    }
    current_ = &now;
    return step(this);
  }

  /// The memory of a chunk of the step; this resource is chunk 0. The upstream resource, where there is no
  /// such chunk.
  ///
  /// @pre     0 <= chunk
  /// @cost    O(1)
  /// @threads thread-safe
  /// @error   none
  [[nodiscard]] std::pmr::memory_resource* chunk(index_t chunk) noexcept {
    const auto c = static_cast<std::size_t>(chunk);
    return c < options_.chunks.size() ? c_or_upstream(c) : options_.upstream;
  }
  /// Begins a part on a lane, and returns the memory of that lane: the upstream resource, where there is no
  /// such lane. lane() returns it again.
  ///
  /// @pre     a step is in flight; 0 <= lane, and no other part runs on it
  /// @threads a lane: one thread at a time
  std::pmr::memory_resource* begin_part(index_t lane) noexcept {
    const std::size_t c = options_.chunks.size() + static_cast<std::size_t>(lane);
    if (c < chunks_.size()) chunks_[c].begin_part();
    return this->lane(lane);
  }
  [[nodiscard]] std::pmr::memory_resource* lane(index_t lane) noexcept {
    return c_or_upstream(options_.chunks.size() + static_cast<std::size_t>(lane));
  }
  /// Counts are of the steps that have ended.
  [[nodiscard]] planned_report report() const noexcept {
    planned_report answer = counts_;
    answer.arena_bytes = arena_.bytes;
    for (const auto& s : shapes_) {
      if (s->state != shape_state::planned || s->places.bytes < answer.planned_bytes) continue;
      answer.planned_bytes = s->places.bytes;
      answer.live_bytes = s->places.live_bytes;
      answer.requested_bytes = s->places.requested_bytes;
    }
    return answer;
  }

 private:
  enum class shape_state : unsigned char { recorded, planned, given_up };
  /// Steps of one class of sizes.
  struct shape {
    index_t size = 0;
    shape_state state = shape_state::recorded;
    int steps = 0, same = 0, misses = 0;
    std::vector<detail::request_record> learnt;  // of each chunk; the last one of a part
    detail::planned_places places{};
  };

  std::pmr::memory_resource* c_or_upstream(std::size_t c) noexcept {
    return c < chunks_.size() ? &chunks_[c] : options_.upstream;
  }
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    return chunks_.front().serve(bytes, alignment);
  }
  void do_deallocate(void* block, std::size_t bytes, std::size_t alignment) override {
    chunks_.front().release(block, bytes, alignment);
  }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override {
    return this == &other;
  }

  /// Rounded up to a multiple of a quarter of the power of two below.
  static index_t class_of(index_t size) noexcept {
    if (size <= 4) return size;
    const auto n = static_cast<std::uint64_t>(size);
    const std::uint64_t quarter = std::bit_floor(n) / 4;
    return static_cast<index_t>((n + quarter - 1) / quarter * quarter);
  }
  shape& shape_of(index_t size) {
    const index_t rounded = class_of(size);
    for (const auto& s : shapes_)
      if (s->size == rounded) return *s;
    auto fresh = std::make_unique<shape>();
    fresh->size = rounded;
    fresh->learnt.resize(options_.chunks.size() + 1);
    shapes_.push_back(std::move(fresh));
    return *shapes_.back();
  }

  void end() noexcept {
    shape& now = *current_;
    current_ = nullptr;
    const bool planned = now.state == shape_state::planned;
    bool complete = planned && !blocked_, any = false, blocked = blocked_;
    for (detail::planned_chunk& chunk : chunks_) {
      const auto counts = chunk.end();
      counts_.served += counts.served;
      counts_.upstream += counts.upstream;
      complete = complete && counts.complete;
      any = any || counts.any;
      blocked = blocked || counts.blocked;
    }
    if (!any) return;
    ++counts_.steps;
    if (planned) {
      counts_.served_steps += complete ? 1 : 0;
      counts_.missed_steps += complete ? 0 : 1;
      if (blocked) return;  // no fault of this plan
      now.misses = complete ? 0 : now.misses + 1;
      if (!complete && widen(now)) return;
      if (now.misses < options_.most_misses) return;
      now.state = shape_state::recorded;
      now.places = {};
      now.steps = now.same = now.misses = 0;
    } else if (now.state == shape_state::recorded) {
      learn(now);
    }
  }
  // Requests that were too large for their places: the next step begins with another plan.
  bool widen(shape& now) noexcept {
    bool any = false;
    for (std::size_t c = 0; c < chunks_.size(); ++c) {
      const auto [request, bytes] = chunks_[c].too_large();
      if (bytes == 0) continue;
      now.learnt[(std::min)(c, options_.chunks.size())].widen(request, bytes);
      any = true;
    }
    if (any) {
      now.state = shape_state::recorded;
      now.same = options_.stable_steps;
    }
    return any;
  }
  void learn(shape& now) noexcept {
#if DEEPREC_EXCEPTIONS
    try {
#endif
      bool same = true, regular = true;
      detail::request_record part;
      bool parts = false;
      for (std::size_t c = 0; c < chunks_.size(); ++c) {
        const detail::planned_chunk& chunk = chunks_[c];
        if (c < options_.chunks.size()) {
          same = now.learnt[c].learn(chunk.record()) == detail::step_likeness::same && same;
        } else if (chunk.rounds() > 0) {
          regular = regular && !chunk.is_irregular();
          if (std::exchange(parts, true)) {
            regular = part.learn(chunk.record()) != detail::step_likeness::other && regular;
          } else {
            part = chunk.record();
          }
        }
      }
      if (parts) same = now.learnt.back().learn(part) == detail::step_likeness::same && same;
      now.same = !regular ? 0 : same ? now.same + 1 : 1;
#if DEEPREC_EXCEPTIONS
    } catch (const std::bad_alloc&) {
      for (detail::request_record& record : now.learnt) record.clear();
      now.same = 0;
    }
#endif
    if (++now.steps >= options_.most_recorded && now.same < options_.stable_steps)
      now.state = shape_state::given_up;
  }

  void make_plan(shape& now) {
    for (const detail::planned_chunk& chunk : chunks_)
      if (chunk.live() > 0) return;  // the arena may have to move: later
#if DEEPREC_EXCEPTIONS
    try {
#endif
      std::vector<block_lifetime> phases;
      std::vector<const detail::request_record*> records;
      chunk_phase all = options_.chunks.front();
      for (std::size_t c = 0; c < chunks_.size(); ++c) {
        const bool is_lane = c >= options_.chunks.size();
        const chunk_phase phase = is_lane ? all : options_.chunks[c];
        all = {(std::min)(all.begin, phase.begin), (std::max)(all.end, phase.end)};
        phases.push_back({phase.begin, phase.end, 0, 1});
        records.push_back(&now.learnt[is_lane ? options_.chunks.size() : c]);
      }
      result<detail::planned_places> places = detail::plan_places(records, std::move(phases), options_.plan);
      if (!places) {
        now.state = shape_state::given_up;
        return;
      }
      now.places = std::move(places).value();
      for (std::size_t c = 0; c < chunks_.size(); ++c) chunks_[c].reserve_blocks(now.places.chunks[c].blocks);
      if (now.places.bytes > arena_.bytes) grow_arena(now.places.bytes, now.places.alignment);
      now.state = shape_state::planned;
      ++counts_.plans;
#if DEEPREC_EXCEPTIONS
    } catch (const std::bad_alloc&) {
      now.state = shape_state::given_up;
      now.places = {};
    }
#endif
  }
  void grow_arena(std::size_t bytes, std::size_t alignment) {
    constexpr std::size_t page = 4096;
    const std::size_t whole = (bytes + page - 1) / page * page;
    alignment = (std::max)(alignment, page);
    auto* const first = static_cast<std::byte*>(options_.arena->allocate(whole, alignment));
    if (options_.touch) std::memset(first, 0, whole);  // the page faults happen here
    release_arena();
    arena_ = {first, whole};
    arena_alignment_ = alignment;
    if (options_.checks) detail::poison_addresses(arena_.first, whole);
    for (detail::planned_chunk& chunk : chunks_) chunk.set_arena(arena_, options_.checks);
  }
  void release_arena() noexcept {
    if (arena_.first == nullptr) return;
    if (options_.checks) detail::unpoison_addresses(arena_.first, arena_.bytes);
    options_.arena->deallocate(arena_.first, arena_.bytes, arena_alignment_);
    arena_ = {};
    for (detail::planned_chunk& chunk : chunks_) chunk.set_arena({}, options_.checks);
  }

  planned_options options_;
  std::vector<detail::planned_chunk> chunks_;  // and lanes
  std::vector<std::unique_ptr<shape>> shapes_;
  shape* current_ = nullptr;
  bool blocked_ = false;
  detail::planned_chunk::arena_bytes arena_{};
  std::size_t arena_alignment_ = 1;
  planned_report counts_{};
};

}}  // namespace deeprec::DEEPREC_ABI
