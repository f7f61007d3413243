#include <deeprec/queue/packed_batch.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

using namespace deeprec;

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
