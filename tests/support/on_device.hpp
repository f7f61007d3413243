// The same rows and batches on the host and on a device, for tests that compare what both make of them.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/embedding/tables/table_view.hpp>
#include <deeprec/memory/cuda_memory.hpp>

#include "support/batches.hpp"

namespace deeprec_test {

using deeprec::device_array;
using deeprec::device_space;

template <class T>
device_array<T> to_device(const std::vector<T>& values) {
  device_array<T> made(values.size() + 1);
  made.copy_from(values).or_throw();
  return made;
}
template <class T>
deeprec::array_view<T, device_space> first_of(const device_array<T>& array, std::size_t n) {
  return array.view().subview(0, static_cast<deeprec::index_t>(n));
}
/// After whatever any stream was given.
template <class T>
std::vector<T> back(const device_array<T>& array, std::size_t n) {
  std::vector<T> values(n);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  array.copy_to(values).or_throw();
  return values;
}

template <class Id = std::int64_t, class Offset = std::int32_t>
struct batch_on_both {
  explicit batch_on_both(batch<Id, Offset> from)
      : host(std::move(from)),
        offsets(to_device(host.offsets)),
        ids(to_device(host.ids)),
        weights(to_device(host.weights)) {}
  deeprec::jagged_view<Id, Offset, device_space> view(bool weighted) const {
    return {offsets.data(), bags(), ids.data(), static_cast<index_t>(host.ids.size()),
            weighted ? weights.data() : nullptr};
  }
  deeprec::array_view<const Id, device_space> list() const {
    return {ids.data(), static_cast<index_t>(host.ids.size())};
  }
  index_t bags() const { return static_cast<index_t>(host.offsets.size()) - 1; }
  batch<Id, Offset> host;
  device_array<Offset> offsets;
  device_array<Id> ids;
  device_array<float> weights;
};

/// Normal values, encoded once. Rows begin `shift` bytes behind what the device aligns.
template <class Format>
struct table_on_both {
  table_on_both(Format f, index_t rows, std::mt19937_64& random, std::size_t shift = 0)
      : format(f),
        count(rows),
        first(shift),
        bytes(shift + static_cast<std::size_t>(rows * f.stride_bytes())) {
    std::normal_distribution<float> normal(0, 1);
    std::vector<float> row(static_cast<std::size_t>(f.width()));
    for (index_t r = 0; r < rows; ++r) {
      for (float& x : row) x = normal(random);
      f.encode(row.data(), bytes.data() + shift + r * f.stride_bytes());
      f.decode(bytes.data() + shift + r * f.stride_bytes(), row.data());
      values.emplace_back(row.begin(), row.end());
    }
    on_device = to_device(bytes);
  }
  deeprec::const_table_view<Format> on_host() const { return {bytes.data() + first, count, format}; }
  deeprec::table_view<Format> on_host() { return {bytes.data() + first, count, format}; }
  deeprec::const_table_view<Format, device_space> view() const {
    return {on_device.data() + first, count, format};
  }
  deeprec::table_view<Format, device_space> mutable_view() const {
    return {on_device.data() + first, count, format};
  }
  Format format;
  index_t count;
  std::size_t first;
  std::vector<std::byte> bytes;
  device_array<std::byte> on_device;
  std::vector<std::vector<double>> values;  ///< of the rows, as decoded
};

/// The largest |a - b| / (1 + |b|); infinite where only one is a number.
template <class T>
double apart(const std::vector<T>& a, const std::vector<T>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto x = static_cast<double>(static_cast<float>(a[i])),
               y = static_cast<double>(static_cast<float>(b[i]));
    const double off = std::isnan(x) && std::isnan(y) ? 0 : std::fabs(x - y) / (1 + std::fabs(y));
    most = std::isnan(off) ? std::numeric_limits<double>::infinity() : (std::max)(most, off);
  }
  return most;
}

}  // namespace deeprec_test
