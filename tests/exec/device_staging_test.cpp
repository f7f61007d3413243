#include <deeprec/exec/device_staging.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <deeprec/staging/packed_batch.hpp>

#include "support/fake_runtime.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

struct forgetful : fake_runtime {
  static status wait_for(event) { return {}; }  // packs over a batch that is still read
};
struct impatient : fake_runtime {
  static status wait(stream, event) { return {}; }  // the step does not wait for its copy
};

/// Ten batches through two buffers: every step behind its copy, every copy behind the step that read the
/// buffer before, and no copy behind a step that it has nothing to do with.
template <class Runtime>
std::string order_fault() {
  fake() = {};
  const int copies = fake().add_stream(), compute = fake().add_stream();
  std::map<int, std::size_t> step_of;
  std::string fault;
  {
    basic_device_staging<Runtime> staging(copies);
    for (int batch = 0; batch < 10; ++batch) {
      int slot = -1;
      REQUIRE(staging.next(1000, slot).ok());
      CHECK(slot == batch % 2);
      const std::size_t copy = fake().nodes.size();
      REQUIRE(staging.send(slot, 1000).ok());
      REQUIRE(staging.use(slot, compute).ok());
      const std::size_t step = fake().add(compute, batch);
      REQUIRE(staging.release(slot, compute).ok());
      if (!fake().ordered(copy, step)) fault = "a step before its copy";
      if (batch >= 2 && !fake().ordered(step_of[batch - 2], copy))
        fault = "a copy over a batch that is read";
      if (batch >= 1 && fake().ordered(step_of[batch - 1], copy))
        fault = "a copy that waits for the step before";
      step_of[batch] = step;
    }
  }
  CHECK(fake().allocated == 0);
  CHECK(fake().live_events == 0);
  return fault;
}

}  // namespace

TEST_CASE("device_staging: copies overlap the step before, and never a batch that is read") {
  CHECK(order_fault<fake_runtime>() == "");
  CHECK(order_fault<forgetful>() != "");  // broken
  CHECK(order_fault<impatient>() != "");  // broken
}

TEST_CASE("device_staging: buffers grow, and what does not fit is refused") {
  fake() = {};
  const int copies = fake().add_stream();
  basic_device_staging<fake_runtime> staging(copies, 1);
  int slot = -1;
  REQUIRE(staging.next(100, slot).ok());
  void* const first = staging.host(slot);
  CHECK(staging.send(slot, 126).code() == errc::shape_mismatch);
  REQUIRE(staging.next(120, slot).ok());
  CHECK(staging.host(slot) == first);
  fake().limit = fake().allocated + 100;
  CHECK(staging.next(1'000'000, slot).code() == errc::out_of_memory);
  fake().limit = SIZE_MAX;
  REQUIRE(staging.next(1'000'000, slot).ok());
  REQUIRE(staging.send(slot, 1'000'000).ok());
}

TEST_CASE("packed_layout: slices are aligned, in order, and the same in both buffers") {
  packed_layout layout;
  const auto offsets = layout.add<std::int32_t>(5);
  const auto ids = layout.add<std::int64_t>(100);
  const auto none = layout.add<float>(0);
  const auto weights = layout.add<float>(100);
  CHECK(offsets.offset == 0);
  CHECK(ids.offset == 256);
  CHECK(none.offset == 1280);
  CHECK(weights.offset == 1280);
  CHECK(layout.bytes() == 1792);
  std::vector<std::byte> host(layout.bytes()), device(layout.bytes());
  for (std::size_t i = 0; i < 100; ++i) ids.in(host.data())[i] = static_cast<std::int64_t>(i * i);
  for (std::size_t i = 0; i < 100; ++i) weights.in(host.data())[i] = static_cast<float>(i);
  device = host;  // one copy
  CHECK(ids.in(device.data())[99] == 99 * 99);
  CHECK(weights.in(static_cast<const void*>(device.data()))[7] == 7.0F);
  CHECK(layout.fits());
  layout.add<double>(SIZE_MAX / 4);
  CHECK_FALSE(layout.fits());
  layout.clear();
  CHECK(layout.bytes() == 0);
  CHECK(layout.fits());
}
