// calibrate(): values that are allowed, within its time; and verbs that run with them.

#include <deeprec/calibrate.hpp>

#include <doctest/doctest.h>
#include <chrono>
#include <vector>

#include <deeprec/describe.hpp>
#include <deeprec/exec/thread_pool.hpp>

using namespace deeprec;

TEST_CASE("calibrate: allowed values, and lookups that use them") {
  //! [calibrate]
  thread_pool pool(2);
  const kernel_tuning measured = calibrate(pool);
  context ctx{pool};
  ctx.tuning = &measured;
  //! [calibrate]
  const auto text = to_string(measured);
  CAPTURE(text);
  for (const tuning_value& v : tuning_values) CHECK(measured.*v.value >= v.least);
  CHECK(measured.most_rows_ahead >= 16);
  CHECK(measured.most_rows_ahead <= 64);
  CHECK(measured.lines_ahead <= 384);
  CHECK(measured.polling_ns <= measured.parked_ns);
  CHECK(measured.flops_per_us == host_tuning().flops_per_us);

  const std::vector<float> rows{1, 2, 3, 4, 5, 6};
  const std::vector<std::int64_t> ids{2, 0, 2};
  std::vector<float> out(2);
  CHECK(lookup(ctx, as_table(matrix_view<const float>(rows.data(), 3, 2)),
               fixed_hotness_view(ids.data(), 1, 3), combiner::sum, matrix_view<float>(out.data(), 1, 2))
            .ok());
  CHECK(out == std::vector<float>{11, 14});
}

TEST_CASE("calibrate: without time nothing changes") {
  thread_pool pool(2);
  kernel_tuning wrong;
  wrong.kept_bytes = 3;
  wrong.row_ns = 99;
  context ctx{pool};
  ctx.tuning = &wrong;
  CHECK(to_string(calibrate(ctx, std::chrono::milliseconds(0))) == to_string(wrong));
}
