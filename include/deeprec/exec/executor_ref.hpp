// A type-erased reference to a bulk executor, for code that can't be a template: virtual functions, plug-ins.
//
//   thread_pool pool;   executor_ref ref(pool);   lookup(ref, ...);   // the same pieces, the same bits
//
// Owns nothing; accepts const executors as well. Costs one indirect call for each parallel_for and one for
// each piece.
#pragma once

#include <concepts>
#include <memory>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/executor.hpp>
#include <deeprec/support/bulk.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// @threads as the executor that it refers to
class executor_ref {
 public:
  template <BulkExecutor E>
    requires(!std::same_as<std::remove_cv_t<E>, executor_ref>)
  explicit(false) executor_ref(E& executor) noexcept
      : executor_(const_cast<std::remove_cv_t<E>*>(std::addressof(executor))),  // used as an E below
        parallel_for_([](void* self, index_t n, index_t grain, const piece& body) {
          static_cast<E*>(self)->parallel_for(n, grain, body);
        }),
        concurrency_([](void* self) { return static_cast<int>(static_cast<E*>(self)->concurrency()); }),
        polls_([](void* self) {
          if constexpr (requires(E& e) { static_cast<bool>(e.polls()); }) {
            return static_cast<bool>(static_cast<E*>(self)->polls());
          } else {
            return static_cast<void>(self), false;
          }
        }),
        processors_([](void* self) { return detail::threads_at_once(*static_cast<E*>(self)); }),
        keep_awake_([](void* self, bool on) {
          if constexpr (requires(E& e) { e.stay_awake(), e.may_sleep(); }) {
            on ? static_cast<E*>(self)->stay_awake() : static_cast<E*>(self)->may_sleep();
          } else {
            static_cast<void>(self), static_cast<void>(on);
          }
        }),
        fork_([](void* self, forked_work& work, fork_step step, int calls) {
          if constexpr (ForkingExecutor<E>) {
            E& to = *static_cast<E*>(self);
            switch (step) {
              case fork_step::begin:
                return to.fork(work);
              case fork_step::bulk:
                return to.help_bulk(work);
              case fork_step::call:
                to.call_helpers(work, calls);
                break;
              case fork_step::join:
                to.join(work);
            }
          } else {
            static_cast<void>(self), static_cast<void>(work), static_cast<void>(step),
                static_cast<void>(calls);
          }
          return false;
        }) {}

  /// See BulkExecutor.
  template <class Body>
  void parallel_for(index_t n, index_t grain, Body&& body) const {
    parallel_for_(executor_, n, grain,
                  piece{const_cast<void*>(static_cast<const void*>(&body)),
                        [](void* to_run, index_t begin, index_t end, int worker) {
                          (*static_cast<std::remove_reference_t<Body>*>(to_run))(begin, end, worker);
                        }});
  }
  [[nodiscard]] int concurrency() const { return concurrency_(executor_); }
  [[nodiscard]] bool polls() const { return polls_(executor_); }
  [[nodiscard]] int processors() const { return processors_(executor_); }
  void stay_awake() const { keep_awake_(executor_, true); }
  void may_sleep() const { keep_awake_(executor_, false); }
  /// See ForkingExecutor; false where the executor is none.
  [[nodiscard]] bool fork(forked_work& work) const { return fork_(executor_, work, fork_step::begin, 0); }
  void call_helpers(forked_work& work, int calls) const { fork_(executor_, work, fork_step::call, calls); }
  [[nodiscard]] bool help_bulk(forked_work& work) const { return fork_(executor_, work, fork_step::bulk, 0); }
  void join(forked_work& work) const { fork_(executor_, work, fork_step::join, 0); }

 private:
  enum class fork_step : unsigned char { begin, call, bulk, join };
  struct piece {
    void* body;
    void (*run)(void* body, index_t begin, index_t end, int worker);
    void operator()(index_t begin, index_t end, int worker) const { run(body, begin, end, worker); }
  };

  void* executor_;
  void (*parallel_for_)(void* self, index_t n, index_t grain, const piece& body);
  int (*concurrency_)(void* self);
  bool (*polls_)(void* self);
  int (*processors_)(void* self);
  void (*keep_awake_)(void* self, bool on);
  bool (*fork_)(void* self, forked_work& work, fork_step step, int calls);
};

static_assert(BulkExecutor<executor_ref> && ForkingExecutor<executor_ref>);

}}  // namespace deeprec::DEEPREC_ABI
