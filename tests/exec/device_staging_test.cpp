#include <deeprec/exec/device_staging.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
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
    detail::basic_device_staging<Runtime> staging(copies);
    for (int batch = 0; batch < 10; ++batch) {
      int slot = -1;
      REQUIRE(staging.acquire(1000, slot).ok());
      CHECK(slot == batch % 2);
      const std::size_t copy = fake().nodes.size();
      REQUIRE(staging.upload(slot, 1000).ok());
      REQUIRE(staging.use(slot, compute).ok());
      const std::size_t step = fake().add(compute, batch);
      fake().use(step, staging.device(slot));
      REQUIRE(staging.release(slot, compute).ok());
      if (!fake().ordered(copy, step)) fault = "a step before its copy";
      if (batch >= 2 && !fake().ordered(step_of[batch - 2], copy)) fault = "a copy over a batch that is read";
      if (batch >= 1 && fake().ordered(step_of[batch - 1], copy))
        fault = "a copy that waits for the step before";
      step_of[batch] = step;
    }
  }
  CHECK(fake().allocated == 0);
  CHECK(fake().live_events == 0);
  return fault != "" ? fault : fake().fault;
}

struct merciful : fake_runtime {
  static status synchronize(stream) { return {}; }
};

/// A slot that two streams use, in this order: A uses, B uses, a (b) releases; what comes next must be behind
/// all that was used. Ends with the ring, or with the next batch.
template <class Runtime>
std::string consumer_fault(const std::string& order, bool next) {
  fake() = {};
  const int copies = fake().add_stream();
  const std::vector<int> streams = {fake().add_stream(), fake().add_stream()};
  std::string fault;
  {
    detail::basic_device_staging<Runtime> staging(copies, 1);
    int slot = -1;
    REQUIRE(staging.acquire(100, slot).ok());
    const std::size_t copy = fake().nodes.size();
    REQUIRE(staging.upload(slot, 100).ok());
    std::vector<std::size_t> steps;
    for (const char c : order) {
      const int on = streams[c == 'A' || c == 'a' ? 0 : 1];
      if (c == 'A' || c == 'B') {
        REQUIRE(staging.use(slot, on).ok());
        steps.push_back(fake().add(on, static_cast<long long>(steps.size())));
        fake().use(steps.back(), staging.device(slot));
        if (!fake().ordered(copy, steps.back())) fault = "a step before its copy";
      } else {
        REQUIRE(staging.release(slot, on).ok());
      }
    }
    if (next) {
      const status s = staging.acquire(100, slot);
      if (!s.ok()) return to_string(s.code());
      const std::size_t again = fake().nodes.size();
      REQUIRE(staging.upload(slot, 100).ok());
      for (const std::size_t step : steps) {
        if (!fake().ordered(step, again)) fault = "a copy over a batch that is read";
      }
    }
  }
  CHECK(fake().live_events == 0);
  CHECK(fake().allocated == 0);
  return fault != "" ? fault : fake().fault;
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
  detail::basic_device_staging<fake_runtime> staging(copies, 1);
  int slot = -1;
  REQUIRE(staging.acquire(100, slot).ok());
  void* const first = staging.host(slot);
  CHECK(staging.upload(slot, 126).code() == errc::shape_mismatch);
  REQUIRE(staging.acquire(120, slot).ok());
  CHECK(staging.host(slot) == first);
  fake().limit = fake().allocated + 100;
  CHECK(staging.acquire(1'000'000, slot).code() == errc::out_of_memory);
  const std::size_t wraps = (std::numeric_limits<std::size_t>::max)() / 5 * 4 + 4;  // with a quarter more
  CHECK(staging.acquire(wraps, slot).code() == errc::out_of_memory);
  fake().limit = SIZE_MAX;
  REQUIRE(staging.acquire(1'000'000, slot).ok());
  REQUIRE(staging.upload(slot, 1'000'000).ok());
  fake().limit = fake().allocated + 10'000'000;
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX - 1000, SIZE_MAX / 5 * 4 + 1000, SIZE_MAX / 2}) {
    CAPTURE(bytes);
    CHECK(staging.acquire(bytes, slot).code() == errc::out_of_memory);
  }
}

TEST_CASE("device_staging: a buffer waits for every stream that uses it") {
  const std::string unreleased = to_string(errc::invalid_value);
  for (const char* const order : {"", "Aa", "AaBb", "ABab", "ABba", "AaAa", "AAaa", "AaBbAa", "ABAaba"}) {
    CAPTURE(order);
    CHECK(consumer_fault<fake_runtime>(order, true) == "");
    CHECK(consumer_fault<fake_runtime>(order, false) == "");
  }
  for (const char* const order : {"A", "AaB", "ABa", "ABb", "AAa", "AaA"}) {  // a use is not released
    CAPTURE(order);
    CHECK(consumer_fault<fake_runtime>(order, true) == unreleased);
    CHECK(consumer_fault<fake_runtime>(order, false) == "");
  }
  CHECK(consumer_fault<forgetful>("ABab", true) != "");  // broken
  CHECK(consumer_fault<merciful>("A", false) != "");     // broken
}

TEST_CASE("device_staging: memory is not freed under a copy") {
  CHECK(consumer_fault<fake_runtime>("", false) == "");
  CHECK(consumer_fault<forgetful>("", false) != "");  // broken
}

TEST_CASE("device_staging: uses and releases that don't belong together are refused") {
  fake() = {};
  const int copies = fake().add_stream(), compute = fake().add_stream(), other = fake().add_stream();
  detail::basic_device_staging<fake_runtime> staging(copies, 1);
  int slot = -1;
  REQUIRE(staging.acquire(100, slot).ok());
  CHECK(staging.use(slot, compute).code() == errc::invalid_value);  // nothing was sent
  REQUIRE(staging.upload(slot, 100).ok());
  REQUIRE(staging.use(slot, compute).ok());
  CHECK(staging.release(slot, other).code() == errc::invalid_value);
  CHECK(staging.upload(slot, 100).code() == errc::invalid_value);
  CHECK(staging.acquire(100, slot).place() == fault_place{.item = 0});
  REQUIRE(staging.release(slot, compute).ok());
  CHECK(staging.release(slot, compute).code() == errc::invalid_value);
  for (std::size_t i = 1; i < staging.most_consumers; ++i) {
    const int more = fake().add_stream();
    REQUIRE(staging.use(slot, more).ok());
    REQUIRE(staging.release(slot, more).ok());
  }
  CHECK(staging.use(slot, other).code() == errc::unsupported);
  REQUIRE(staging.use(slot, compute).ok());
  REQUIRE(staging.release(slot, compute).ok());
  REQUIRE(staging.acquire(100, slot).ok());
  REQUIRE(staging.upload(slot, 100).ok());
  REQUIRE(staging.use(slot, other).ok());
  REQUIRE(staging.release(slot, other).ok());
}

TEST_CASE("device_staging: buffers and events lie on the device that the ring was made for") {
  fake() = {};
  fake().device = 1;
  const int copies = fake().add_stream(), compute = fake().add_stream();
  {
    detail::basic_device_staging<fake_runtime> staging(copies);
    fake().device = 0;
    int slot = -1;
    REQUIRE(staging.acquire(100, slot).ok());
    CHECK(fake().device_of_block.at(staging.device(slot)) == 1);
    CHECK(staging.upload(slot, 100).ok());
    CHECK(staging.use(slot, compute).ok());
    CHECK(staging.release(slot, compute).ok());
    CHECK(fake().device == 0);
  }
  CHECK(fake().device == 0);
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
