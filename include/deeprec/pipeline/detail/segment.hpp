// One thread's part of a pipeline: takes an item, calls the stages of its segment, puts what they return.
//
//   serial     take ── f ── g ── put                         f and g one after the other, no queue between
//   parallel   (take, number, place) ── f ── put there       in brackets: one thread at a time, so that the
//                                                            outputs have the order of the inputs
//
// It ends by the end of its input, a failure, or a cancel from either side. Then nothing comes from above any
// more, and below the end follows the items that came before it. Never throws.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/trace.hpp>
#include <deeprec/pipeline/detail/edge.hpp>
#include <deeprec/pipeline/detail/item_clock.hpp>
#include <deeprec/pipeline/detail/segment_run.hpp>
#include <deeprec/pipeline/pipeline_options.hpp>
#include <deeprec/pipeline/stages.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

template <class Line, std::size_t Segment, class In, class Out, class Atomics>
class segment_worker {
  using traits = line_traits<Line>;
  static constexpr std::size_t first = traits::first_of(Segment);
  static constexpr std::size_t last = traits::first_of(Segment + 1);
  static constexpr bool has_in = !std::is_same_v<In, no_edge>;
  static constexpr bool has_out = !std::is_same_v<Out, no_edge>;
  using time_point = typename Atomics::time_point;
  using tally_type = segment_tally<last - first>;

  // What became of an item. Of a source also: that there is none.
  enum class step : unsigned char { done, input_ended, failed, halted };

 public:
  segment_worker(typename traits::nodes& nodes, In* in, Out* out, run_environment& run)
      : nodes_(nodes), in_(in), out_(out), run_(run) {}

  /// The only thread of its segment.
  segment_end work() noexcept {
    const time_point begun = Atomics::now();
    const segment_end ended = guarded([&] { return loop(); });
    // First no more from above, then the end below, which may wait for space.
    if constexpr (has_in) {
      if (ended == segment_end::input) failure_ = in_->take_failure();
      in_->cancel();
    }
    if constexpr (has_out) {
      if (ended != segment_end::halted) {
        out_->note_end(number_, std::move(failure_));
        out_->put_end();
      }
    }
    tally_.elapsed_ns = item_clock<Atomics>::ns_since(begun);
    return ended;
  }

  /// One of several threads of its segment.
  void work(segment_team& team) noexcept
    requires(has_in && has_out)
  {
    const time_point begun = Atomics::now();
    guarded([&] { return team_loop(team); });  // how it ended is in the marks and in failure_
    team.over.store(true, std::memory_order_relaxed);
    // No more from above, also after the end: a thread of an ordered segment may wait to put behind it.
    in_->cancel();
    if (failure_) {
      out_->note_end(number_, std::move(failure_));
      team.ended.store(true, std::memory_order_relaxed);
    }
    constexpr bool in_order = traits::template node<first>::threads == stage_threads::ordered;
    if constexpr (in_order) {
      if (failure_) out_->put_end();  // it has no place: the move of an item that was taken threw
    } else {
      // acq_rel: the last one sees what the others did
      const bool is_last = team.working.fetch_sub(1, std::memory_order_acq_rel) == 1;
      if (is_last && team.ended.load(std::memory_order_relaxed)) out_->put_end();
    }
    tally_.elapsed_ns = item_clock<Atomics>::ns_since(begun);
  }

  [[nodiscard]] const tally_type& tally() const noexcept { return tally_; }
  [[nodiscard]] std::optional<stage_failure>& failure() noexcept { return failure_; }

 private:
  template <class Body>
  segment_end guarded(Body&& body) noexcept {
#if DEEPREC_EXCEPTIONS
    try {
      return body();
    } catch (...) {
      failure_.emplace(stage_failure{name_at(at_), number_, std::current_exception(), std::nullopt});
      return segment_end::failed;
    }
#else
    return body();
#endif
  }

  segment_end loop() {
    while (!is_halted()) {
      const step s = clock_.is_due() ? timed_item() : (clock_.pass(), one_item<false>());
      if (s == step::done) {
        ++number_;
        continue;
      }
      if (s == step::halted) break;
      return s == step::failed ? segment_end::failed : segment_end::input;
    }
    return segment_end::halted;
  }
  [[nodiscard]] bool is_halted() const noexcept {
    if constexpr (has_out) {
      return out_->is_cancelled();
    } else if constexpr (has_in) {
      return in_->is_cancelled();
    } else {
      return run_.stopped.load(std::memory_order_relaxed);  // relaxed: nothing is published with it
    }
  }

  step timed_item() {
    const time_point begun = clock_.begin();
    const step s = one_item<true>();
    clock_.end(begun);
    return s;
  }
  template <bool Timed>
  void lap(double& sum) noexcept {
    if constexpr (Timed) clock_.lap(sum);
  }

  // --- an item ---------------------------------------------------------------------------------------

  // What the last stage made goes behind all items of the edge.
  template <bool Timed>
  struct put_next {
    segment_worker* self;
    template <class T>
    step operator()(std::optional<T>& item) const {
      self->at_ = last - 1;
      const queue_result r = self->out_->put(std::move(*item));
      self->template lap<Timed>(self->tally_.output_ns);
      return r == queue_result::ok ? step::done : step::halted;
    }
  };

  template <bool Timed>
  step one_item() {
    const put_next<Timed> deliver{this};
    if constexpr (has_in) {
      at_ = first;
      if (in_->take(box_) != queue_result::ok) return step::halted;
      lap<Timed>(tally_.input_ns);
      if (!box_.item) return step::input_ended;
      const step s = pass<Timed, first>(box_.item, deliver);
      box_.item.reset();  // what is left of it must not wait with this thread
      return s;
    } else {
      return draw<Timed>(deliver);
    }
  }

  template <bool Timed, class Deliver>
  step draw(const Deliver& deliver) {
    using meaning = typename source_types<typename traits::template node<0>::function_type>::meaning;
    at_ = 0;
    auto drawn = call<0>();
    lap<Timed>(tally_.stages[0].busy_ns);
    if constexpr (meaning::may_fail) {
      if (!drawn) return bad<0>(drawn.fault());
      if (!drawn.value()) return step::input_ended;
      ++tally_.stages[0].items;
      return pass<Timed, 1>(drawn.value(), deliver);
    } else {
      if (!drawn) return step::input_ended;
      ++tally_.stages[0].items;
      return pass<Timed, 1>(drawn, deliver);
    }
  }

  // The stages from Which on, then deliver(item). An item is gone before what it became is waited for.
  template <bool Timed, std::size_t Which, class T, class Deliver>
  step pass(std::optional<T>& item, const Deliver& deliver) {
    if constexpr (Which == last) {
      return deliver(item);
    } else {
      using node = typename traits::template node<Which>;
      using types = stage_types<typename node::function_type, T, node::role>;
      using meaning = typename types::meaning;
      stage_tally& mine = tally_.stages[Which - first];
      at_ = Which;
      ++mine.items;
      if constexpr (std::is_void_v<typename types::result_type>) {
        call<Which>(as_taken<types>(*item));
        lap<Timed>(mine.busy_ns);
        return pass_on<Timed, Which>(item, deliver);
      } else {
        std::optional<typename types::result_type> made(std::in_place, call<Which>(as_taken<types>(*item)));
        lap<Timed>(mine.busy_ns);
        if constexpr (meaning::in_place) {  // a status, or result<void>
          if (!*made) return bad<Which>(fault_of(*made));
          return pass_on<Timed, Which>(item, deliver);
        } else {
          item.reset();
          if constexpr (meaning::may_fail) {
            if (!*made) return bad<Which>(made->fault());
            return pass_made<Timed, Which>(made->value(), deliver);
          } else if constexpr (meaning::may_be_none) {
            return pass_made<Timed, Which>(*made, deliver);
          } else {
            return pass<Timed, Which + 1>(made, deliver);
          }
        }
      }
    }
  }
  // A U, or an optional that may hold none.
  template <bool Timed, std::size_t Which, class U, class Deliver>
  step pass_made(std::optional<U>& made, const Deliver& deliver) {
    if (!made) {
      ++tally_.stages[Which - first].left_out;
      return step::done;
    }
    return pass<Timed, Which + 1>(made, deliver);
  }
  template <bool Timed, std::size_t Which, class U, class Deliver>
  step pass_made(U& made, const Deliver& deliver) {
    std::optional<U> next(std::move(made));
    return pass<Timed, Which + 1>(next, deliver);
  }
  template <bool Timed, std::size_t Which, class T, class Deliver>
  step pass_on(std::optional<T>& item, const Deliver& deliver) {
    if constexpr (Which + 1 == traits::count) {
      return step::done;
    } else {
      return pass<Timed, Which + 1>(item, deliver);
    }
  }

  template <class Types, class T>
  static decltype(auto) as_taken(T& item) noexcept {
    if constexpr (Types::as_lvalue) {
      return (item);
    } else {
      return std::move(item);
    }
  }
  static deeprec::fault fault_of(const status& s) { return s; }
  static deeprec::fault fault_of(const result<void>& s) { return s.fault(); }

  template <std::size_t Which, class... Item>
  decltype(auto) call(Item&&... item) {
    auto& node = std::get<Which>(nodes_);
    if (run_.trace == nullptr) [[likely]]
      return std::invoke(node.function, std::forward<Item>(item)...);
    const trace_range range(run_.trace, node.name);
    return std::invoke(node.function, std::forward<Item>(item)...);
  }

  template <std::size_t Which>
  step bad(const deeprec::fault& why) {
    const bad_item what{std::get<Which>(nodes_).name, number_, why};
    if (*run_.on_bad_item && (*run_.on_bad_item)(what) == bad_item_action::skip) {
      ++tally_.stages[Which - first].bad;
      return step::done;
    }
    failure_.emplace(stage_failure{what.stage, number_, nullptr, why});
    return step::failed;
  }
  [[nodiscard]] const char* name_at(std::size_t which) const noexcept {
    const char* name = "";
    std::apply(
        [&](const auto&... node) {
          std::size_t i = 0;
          ((name = i++ == which ? node.name : name), ...);
        },
        nodes_);
    return name;
  }

  // --- several threads ---------------------------------------------------------------------------------

  segment_end team_loop(segment_team& team) {
    while (true) {
      const bool timed = clock_.is_due();
      const time_point begun = timed ? clock_.begin() : time_point{};
      if (!timed) clock_.pass();
      step s = step::halted;
      if constexpr (traits::template node<first>::threads == stage_threads::ordered) {
        s = timed ? ordered_item<true>(team) : ordered_item<false>(team);
      } else {
        s = timed ? unordered_item<true>(team) : unordered_item<false>(team);
      }
      if (timed) clock_.end(begun);
      if (s == step::done) continue;
      return s == step::failed   ? segment_end::failed
             : s == step::halted ? segment_end::halted
                                 : segment_end::input;
    }
  }

  // The next item of the team, by the caller's turn; then(number) is still called in that turn.
  template <bool Timed, class Then>
  step take_turn(segment_team& team, Then&& then) {
    const std::lock_guard turn(team.turn);
    // relaxed: the turn orders it, or it only ends the loop sooner
    if (team.over.load(std::memory_order_relaxed)) return step::input_ended;
    struct last_turn {  // unless there is an item, also where a move of it throws
      segment_team* team;
      ~last_turn() {
        if (team != nullptr) team->over.store(true, std::memory_order_relaxed);
      }
    } unless_taken{&team};
    number_ = team.taken;
    at_ = first;
    if (out_->is_cancelled() || in_->take(box_) != queue_result::ok) return step::halted;
    lap<Timed>(tally_.input_ns);
    ++team.taken;
    if (!box_.item) {
      out_->note_end(number_, in_->take_failure());
      team.ended.store(true, std::memory_order_relaxed);
      return then() == step::done ? step::input_ended : step::halted;
    }
    if (then() != step::done) return step::halted;
    unless_taken.team = nullptr;
    return step::done;
  }

  template <bool Timed>
  step unordered_item(segment_team& team) {
    const step got = take_turn<Timed>(team, [] { return step::done; });
    if (got != step::done) return got;
    const step s = pass<Timed, first>(box_.item, put_next<Timed>{this});
    box_.item.reset();
    return s;
  }

  // The place outlives what happens to the item: a failure is put there as the end, by number.
  template <bool Timed>
  step ordered_item(segment_team& team) {
    typename Out::reservation place;
    const step got = take_turn<Timed>(team, [&] {
      place = out_->reserve();
      lap<Timed>(tally_.output_ns);
      if (!place) return step::halted;
      if (!box_.item) out_->put_end(place);
      return step::done;
    });
    if (got != step::done) return got;
    const auto deliver = [&](auto& item) {
      const queue_result r = out_->put(place, std::move(*item));
      lap<Timed>(tally_.output_ns);
      return r == queue_result::ok ? step::done : step::halted;
    };
    step s = step::failed;
#if DEEPREC_EXCEPTIONS
    try {
      s = pass<Timed, first>(box_.item, deliver);
    } catch (...) {
      failure_.emplace(stage_failure{name_at(at_), number_, std::current_exception(), std::nullopt});
    }
#else
    s = pass<Timed, first>(box_.item, deliver);
#endif
    box_.item.reset();
    if (s == step::failed) {  // the place is held, also where the move of what was made threw
      out_->note_end(number_, std::move(failure_));
      failure_.reset();
      out_->put_end(place);
    }
    return s;
  }

  typename traits::nodes& nodes_;
  In* const in_;
  Out* const out_;
  run_environment& run_;
  std::conditional_t<has_in, parcel<typename In::item_type>, no_edge> box_;
  std::optional<stage_failure> failure_;
  tally_type tally_;
  item_clock<Atomics> clock_;
  std::size_t at_ = first;    // the node that runs
  std::uint64_t number_ = 0;  // of the item
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
