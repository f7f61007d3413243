// Dense parameters of many ranks against one process that adds the ranks' gradients in their order, bit for
// bit.
#include <deeprec/comm/thread_ranks.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/memory/counting_resource.hpp>
#include <deeprec/memory/refusing_resource.hpp>
#include <deeprec/optim/optimizers.hpp>
#include <deeprec/sharding/dense_step.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <numeric>
#include <stop_token>
#include <string>
#include <vector>

#include "comm/rank_threads.hpp"
#include "sharding/dense_trial.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

constexpr std::chrono::seconds minute(60);

template <class Sums = sums::in_order_t, class Trial>
bool same(Trial trial, index_t bucket_bytes, readiness how) {
  trial.expect();
  std::atomic<bool> fine{true};
  on_ranks(trial.ranks, {.sent = sent_blocks::poisoned}, [&](thread_rank<> comm) {
    if (!trial.template same_at<Sums>(comm, {.patience = minute, .bucket_bytes = bucket_bytes}, how))
      fine = false;
  });
  return fine;
}

using small_step = dense_step<adagrad, thread_rank<>>;

template <class Result>
status outcome_of(const Result& r) {
  if (r.ok()) return {};
  return r.fault();
}

// Runs body(rank, memory of the rank, its step).
template <class Body>
void on_small_ranks(int n, const Body& body,
                    const dense_options& options = {.patience = minute, .bucket_bytes = 256}) {
  on_ranks(n, {.sent = sent_blocks::poisoned}, [&](thread_rank<> comm) {
    dense_memory mine(dense_sizes);
    mine.draw(comm.rank(), 0);
    auto dense = small_step::make(comm, mine.tensors(), options).or_throw();
    body(comm.rank(), mine, dense);
  });
}

}  // namespace

TEST_CASE("dense_step: the bits of one process that adds the ranks' gradients in their order") {
  for (int n = 1; n <= 8; ++n) {
    CAPTURE(n);
    for (const index_t bytes : {index_t{0}, index_t{1}, index_t{500}, index_t{1} << 20}) {
      CAPTURE(bytes);
      CHECK(same(dense_trial<adagrad>{n, {.learning_rate = 0.1F}}, bytes, readiness::reversed));
    }
    CHECK(same(dense_trial<sgd>{n, {.learning_rate = 0.1F}}, 300, readiness::forward));
    CHECK(same(dense_trial<adam>{n, {}}, 300, readiness::some));
    CHECK(same(dense_trial<momentum>{n, {}}, 300, readiness::never));
  }
}
TEST_CASE("dense_step: rows stay whole for an optimizer that needs them") {
  for (int n = 1; n <= 8; ++n) {
    CAPTURE(n);
    CHECK(same(dense_trial<rowwise_adagrad>{n, {.learning_rate = 0.1F}}, 300, readiness::reversed));
    CHECK(same(dense_trial<clipped_by_norm<adagrad>>{n, {{.learning_rate = 0.1F}, 0.5F}}, 300,
               readiness::reversed));
    CHECK(
        same(dense_trial<with_weight_decay<clipped_by_norm<sgd>>>{n, {{{.learning_rate = 0.1F}, 0.5F}, 0.1F}},
             300, readiness::reversed));
  }
}
TEST_CASE("dense_step: sums of the engine, which threads make in the order of the ranks") {
  for (int n = 1; n <= 8; ++n) {
    CAPTURE(n);
    for (const index_t bytes : {index_t{0}, index_t{500}, index_t{1} << 20})
      CHECK(same<sums::by_engine_t>(dense_trial<adagrad>{n, {.learning_rate = 0.1F}}, bytes,
                                    readiness::reversed));
    CHECK(same<sums::by_engine_t>(dense_trial<rowwise_adagrad>{n, {.learning_rate = 0.1F}}, 300,
                                  readiness::some));
  }
}
TEST_CASE("dense_step: a rank's gradient that is lost, an element of it, and another order are seen") {
  for (const auto wrong :
       {dense_mistake::rank_lost, dense_mistake::element_lost, dense_mistake::other_order}) {
    CHECK(!same(dense_trial<adagrad>{3, {.learning_rate = 0.1F}, wrong}, 300, readiness::reversed));
    CHECK(!same<sums::by_engine_t>(dense_trial<adagrad>{3, {.learning_rate = 0.1F}, wrong}, 300,
                                   readiness::reversed));
  }
}

TEST_CASE("dense_step: an example") {
  on_ranks(2, {}, [&](thread_rank<> comm) {
    inline_executor here;
    std::vector<float> weights{1, 2, 3, 4}, gradient(4);
    //! [dense_step]
    const std::vector<dense_tensor> tensors{{{weights.data(), 2, 2}, {gradient.data(), 2, 2}}};
    auto dense = dense_step<sgd, thread_rank<>>::make(comm, tensors).or_throw();
    gradient = {1, 1, 1, static_cast<float>(comm.rank())};  // of this rank's samples
    dense.ready(0).or_throw();
    dense.step(here, sgd{.learning_rate = 0.5F}).or_throw();
    // weights: 0, 1, 2, 3.5 at each rank
    //! [dense_step]
    CHECK(weights == std::vector<float>{0, 1, 2, 3.5F});
  });
}
TEST_CASE("dense_step: state of the optimizer exists once among the ranks, or by the engine at each") {
  for (const int n : {1, 2, 5}) {
    std::atomic<index_t> in_order{0}, whole{0};
    on_ranks(n, {}, [&](thread_rank<> comm) {
      dense_memory mine(dense_sizes);
      const dense_options options{.patience = minute, .bucket_bytes = 200};
      auto other = comm.duplicate().or_throw();
      in_order +=
          dense_step<adam, thread_rank<>>::make(comm, mine.tensors(), options).or_throw().state_floats();
      whole += dense_step<adam, thread_rank<>, sums::by_engine_t>::make(other, mine.tensors(), options)
                   .or_throw()
                   .state_floats();
    });
    index_t floats = 0;
    for (const dense_size& s : dense_sizes) floats += s.rows * s.width;
    CHECK(in_order == adam::element_state * floats);
    CHECK(whole == n * adam::element_state * floats);
  }
}

TEST_CASE("dense_step: a fault of a rank, before or after its buckets have left, is that of all") {
  for (const bool ready_before : {false, true}) {
    for (const bool two : {false, true}) {
      std::vector<status> seen(4);
      std::vector<char> fine(4);
      on_small_ranks(4, [&](int r, dense_memory& mine, small_step& dense) {
        const auto before = mine.parameters;
        const auto i = static_cast<std::size_t>(r);
        inline_executor here;
        for (index_t t = static_cast<index_t>(dense_sizes.size()); ready_before && t-- > 0;)
          dense.ready(t).or_throw();
        status fault;
        if (r == 2 || (two && r == 1)) fault = {errc::id_out_of_range, "a test", {.bag = 7, .value = r}};
        seen[i] = dense.step(here, adagrad{}, fault);
        fine[i] = mine.parameters == before;
        // They go on.
        const status next = dense.step(here, adagrad{});
        fine[i] = fine[i] && next.ok() && mine.parameters != before;
      });
      for (std::size_t r = 0; r < 4; ++r) {
        CHECK(seen[r].code() == errc::id_out_of_range);
        CHECK(seen[r].place().rank == (two ? 1 : 2));
        CHECK(seen[r].place().bag == 7);
        CHECK(seen[r].place().value == (two ? 1 : 2));
        CHECK(fine[r] != 0);
      }
    }
  }
}
TEST_CASE("dense_step: a stop of one rank's context is that of all") {
  std::vector<status> seen(3);
  on_small_ranks(3, [&](int r, dense_memory& mine, small_step& dense) {
    const auto before = mine.parameters;
    std::stop_source stop;
    const std::stop_token token = stop.get_token();
    if (r == 1) stop.request_stop();
    inline_executor here;
    context<inline_executor> ctx(here);
    ctx.stop = &token;
    seen[static_cast<std::size_t>(r)] = dense.step(ctx, adagrad{});
    CHECK(mine.parameters == before);
  });
  for (const status& s : seen) {
    CHECK(s.code() == errc::stopped);
    CHECK(s.place().rank == 1);
  }
}
TEST_CASE("dense_step: a rank that is silent is named, and nothing is written") {
  for (const bool by_engine : {false, true}) {
    CHECK(in_patience([&](std::chrono::milliseconds patience) {
      std::vector<status> made(3), seen(3);
      std::atomic<int> over{0};
      on_ranks(3, {}, [&](thread_rank<> comm) {
        const auto i = static_cast<std::size_t>(comm.rank());
        dense_memory mine(dense_sizes);
        mine.draw(comm.rank(), 0);
        const auto before = mine.parameters;
        const auto run = [&](auto dense) {
          made[i] = outcome_of(dense);
          inline_executor here;
          if (i != 1 && made[i].ok()) {
            seen[i] = dense.value().step(here, adagrad{});
            CHECK(!dense.value().step(here, adagrad{}).ok());
          }
          // It is silent, and not gone.
          for (++over; over < 3;) std::this_thread::yield();
        };
        const dense_options options{.patience = patience, .bucket_bytes = 100};
        if (by_engine) {
          run(dense_step<adagrad, thread_rank<>, sums::by_engine_t>::make(comm, mine.tensors(), options));
        } else {
          run(small_step::make(comm, mine.tensors(), options));
        }
        CHECK(mine.parameters == before);
      });
      // One of the two waits as long; the other may hear from it before.
      const auto names_it = [](const status& s) {
        return s.code() == errc::timed_out && s.place().rank == 1;
      };
      const auto is_told = [](const status& s) { return s.code() == errc::closed; };
      return std::all_of(made.begin(), made.end(), [](const status& s) { return s.ok(); }) &&
             (names_it(seen[0]) || names_it(seen[2])) && (names_it(seen[0]) || is_told(seen[0])) &&
             (names_it(seen[2]) || is_told(seen[2]));
    }));
  }
}
TEST_CASE("dense_step: a step that is left in flight ends those of the other ranks") {
  std::vector<status> seen(2);
  on_ranks(2, {.sent = sent_blocks::poisoned}, [&](thread_rank<> comm) {
    inline_executor here;
    dense_memory mine(dense_sizes);
    auto made = small_step::make(comm, mine.tensors(), {.patience = minute, .bucket_bytes = 100});
    if (comm.rank() == 0) {
      made.value().ready(static_cast<index_t>(dense_sizes.size()) - 2).or_throw();
      made.value().ready(static_cast<index_t>(dense_sizes.size()) - 1).or_throw();
      made.value().ready(static_cast<index_t>(dense_sizes.size()) - 3).or_throw();
      made = status(errc::cancelled, "a test");
    } else {
      seen[1] = made.value().step(here, adagrad{});
    }
  });
  CHECK(seen[1].code() == errc::closed);
  CHECK(seen[1].place().rank == 0);
}

TEST_CASE("dense_step: tensors that are none, and other ones at a rank, are refused at all ranks") {
  enum class fault { other_shape, loose_rows, more_tensors, other_bytes, negative, fewer };
  for (const fault f : {fault::other_shape, fault::loose_rows, fault::more_tensors, fault::other_bytes,
                        fault::negative, fault::fewer}) {
    std::vector<status> seen(3);
    on_ranks(3, {}, [&](thread_rank<> comm) {
      dense_memory mine(dense_sizes);
      std::vector<dense_tensor> tensors = mine.tensors();
      dense_options options{.patience = minute, .bucket_bytes = 64};
      if (comm.rank() == 1) {
        matrix_view<const float>& g = tensors[3].gradient;
        if (f == fault::other_shape) g = {g.data_handle(), 13, 17};
        if (f == fault::loose_rows) g = {g.data_handle(), 17, 13, 12};
        if (f == fault::more_tensors) tensors.push_back(tensors[1]);
        if (f == fault::other_bytes) options.bucket_bytes = 65;
        if (f == fault::negative) options.bucket_bytes = -1;
        if (f == fault::fewer) tensors.clear();
      }
      const auto made = small_step::make(comm, tensors, options);
      seen[static_cast<std::size_t>(comm.rank())] = outcome_of(made);
    });
    const bool shapes = f == fault::other_shape || f == fault::loose_rows;
    for (const status& s : seen) {
      CHECK(s.code() == (shapes ? errc::shape_mismatch : errc::invalid_value));
      CHECK(s.place().rank == 1);
      if (shapes) CHECK(s.place().value == 3);
    }
  }
}
TEST_CASE("dense_step: no tensors, and tensors without elements, are a step") {
  for (const bool none : {true, false}) {
    on_ranks(3, {}, [&](thread_rank<> comm) {
      const std::vector<dense_tensor> tensors(none ? 0 : 2);
      auto dense = small_step::make(comm, tensors).or_throw();
      inline_executor here;
      CHECK(dense.step(here, adagrad{}).ok());
      CHECK(dense.step(here, adagrad{}, {errc::invalid_value, "a test"}).code() == errc::invalid_value);
    });
  }
}
TEST_CASE("dense_step: a gradient is ready once a step") {
  on_small_ranks(2, [&](int, dense_memory&, small_step& dense) {
    inline_executor here;
    for (int step = 0; step < 2; ++step) {
      CHECK(dense.ready(3).ok());
      CHECK(dense.ready(3).code() == errc::invalid_value);
      CHECK(dense.ready(-1).code() == errc::invalid_value);
      CHECK(dense.ready(static_cast<index_t>(dense_sizes.size())).code() == errc::invalid_value);
      CHECK(dense.step(here, adagrad{}).ok());
    }
  });
}

TEST_CASE("dense_step: memory refused at one rank when it is made is the fault of all") {
  int of_all = 0;
  for (long left = 0;; ++left) {
    std::vector<status> seen(2);
    bool refused = false;
    on_ranks(2, {}, [&](thread_rank<> comm) {
      allowance granted;
      if (comm.rank() == 1) granted.left = left;
      refusing_resource memory(granted);
      dense_memory mine(dense_sizes);
      const auto made =
          small_step::make(comm, mine.tensors(), {.patience = minute, .bucket_bytes = 200}, &memory);
      const status s = outcome_of(made);
      seen[static_cast<std::size_t>(comm.rank())] = s;
      if (comm.rank() == 1) refused = granted.refused > 0;
      // Where nothing was sent yet, the other would wait.
      if (!s && s.place().rank < 0) comm.abandon(s);
    });
    CAPTURE(left);
    if (!refused) {
      for (const status& s : seen) CHECK(s.ok());
      break;
    }
    CHECK(seen[1].code() == errc::out_of_memory);
    if (seen[1].place().rank < 0) {
      CHECK(seen[0].code() == errc::closed);
    } else {
      CHECK(seen[0].code() == errc::out_of_memory);
      CHECK(seen[0].place().rank == 1);
      ++of_all;
    }
  }
  CHECK(of_all > 0);
}
TEST_CASE("dense_step: steps allocate nothing") {
  on_ranks(3, {}, [&](thread_rank<> comm) {
    const auto run = [&](auto which, thread_rank<> on) {
      counting_resource memory;
      dense_memory mine(dense_sizes);
      auto dense = dense_step<adam, thread_rank<>, decltype(which)>::make(
                       on, mine.tensors(), {.patience = minute, .bucket_bytes = 200}, &memory)
                       .or_throw();
      inline_executor here;
      context<inline_executor> ctx(here);
      ctx.memory = &memory;
      for (int step = 0; step < 4; ++step) {
        const index_t before = memory.statistics().allocations;
        CHECK(dense.ready(8).ok());
        CHECK(dense.step(ctx, adam{}).ok());
        CHECK(memory.statistics().allocations == before);
      }
    };
    auto other = comm.duplicate().or_throw();
    run(sums::in_order, comm);
    run(sums::by_engine, other);
  });
}
