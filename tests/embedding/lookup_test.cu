#include <deeprec/embedding/lookup.cuh>

#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "support/batches.hpp"
#include "support/oracle.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

/// A copy in device memory.
template <class T>
class on_device {
 public:
  explicit on_device(const std::vector<T>& values) : count_(values.size()) {
    REQUIRE(cudaMalloc(&memory_, count_ * sizeof(T) + 1) == cudaSuccess);
    REQUIRE(cudaMemcpy(memory_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice) ==
            cudaSuccess);
  }
  ~on_device() { cudaFree(memory_); }
  on_device(const on_device&) = delete;
  on_device& operator=(const on_device&) = delete;
  T* data() const { return static_cast<T*>(memory_); }
  std::vector<T> back() const {
    std::vector<T> values(count_);
    REQUIRE(cudaMemcpy(values.data(), memory_, count_ * sizeof(T), cudaMemcpyDeviceToHost) ==
            cudaSuccess);
    return values;
  }

 private:
  void* memory_ = nullptr;
  std::size_t count_;
};

template <class Element, class Id, class Offset, class Combiner>
void check_device(index_t width, shape_of_batch shape, bool weighted, Combiner how) {
  CAPTURE(width);
  std::mt19937_64 random(seed() + static_cast<std::uint64_t>(width));
  const index_t rows = 300, bags = 60;
  const auto made = make_batch<Id, Offset>(random, shape, bags, rows, 7);
  const plain_rows<Element> format(width);
  std::vector<std::byte> table(static_cast<std::size_t>(rows * format.stride_bytes()));
  std::vector<std::vector<double>> values;
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> row(static_cast<std::size_t>(width));
  for (index_t r = 0; r < rows; ++r) {
    for (float& x : row) x = normal(random);
    std::byte* stored = table.data() + r * format.stride_bytes();
    format.encode(row.data(), stored);
    format.decode(stored, row.data());
    values.emplace_back(row.begin(), row.end());
  }
  const on_device<std::byte> device_table(table);
  const on_device<Id> ids(made.ids);
  const on_device<Offset> offsets(made.offsets);
  const on_device<float> weights(made.weights);
  const on_device<float> out(std::vector<float>(static_cast<std::size_t>(bags * width), std::nanf("")));
  cuda_stream stream;
  const status enqueued = lookup(
      stream,
      const_table_view<plain_rows<Element>, device_space>(device_table.data(), rows, format),
      jagged_view<Id, Offset, device_space>(offsets.data(), bags, ids.data(),
                                            static_cast<index_t>(made.ids.size()),
                                            weighted ? weights.data() : nullptr),
      how, matrix_view<float, device_space>(out.data(), bags, width));
  REQUIRE_MESSAGE(enqueued.ok(), enqueued.message());
  const status ran = stream.synchronize();
  REQUIRE_MESSAGE(ran.ok(), ran.message());
  const std::vector<float> answer = out.back();
  for (index_t b = 0; b < bags; ++b) {
    const oracle_row expected = pool_one(values, made.view(weighted), b, width, kind(how));
    const auto n = static_cast<double>(made.offsets[static_cast<std::size_t>(b) + 1] -
                                       made.offsets[static_cast<std::size_t>(b)]);
    for (index_t j = 0; j < width; ++j) {
      const auto i = static_cast<std::size_t>(j);
      const double bound = (2 * n + 4) * 0x1p-24 * expected.magnitude[i] + 1e-7;
      CHECK(std::fabs(static_cast<double>(answer[static_cast<std::size_t>(b * width + j)]) -
                      expected.value[i]) <= bound);
    }
  }
}

}  // namespace

TEST_CASE("lookup on a CUDA stream: the oracle's rows for every shape, width and type") {
  for (const shape_of_batch shape : every_shape) {
    for (const index_t width : {1, 7, 16, 32, 33, 64, 128, 300}) {
      check_device<float, std::int64_t, std::int64_t>(width, shape, false, sum);
      check_device<f16, std::int32_t, std::int32_t>(width, shape, true, mean);
      check_device<bf16, std::int64_t, std::int32_t>(width, shape, true, mean(by_weight));
      check_device<float, std::int32_t, std::int64_t>(width, shape, true, sqrtn);
      check_device<float, std::int64_t, std::int64_t>(width, shape, false, max_);
    }
  }
}

TEST_CASE("lookup on a CUDA stream: a bad id zeroes its bag and is reported at synchronize") {
  const on_device<float> table(std::vector<float>(10 * 4, 1.0F));
  const on_device<std::int64_t> offsets({0, 2, 4, 6}), ids({1, 2, 3, 10, -1, 4});
  const on_device<float> out(std::vector<float>(12, -3.0F));
  cuda_stream stream;
  const auto run = [&] {
    return lookup(stream,
                  const_table_view<f32_rows, device_space>(
                      static_cast<const std::byte*>(static_cast<const void*>(table.data())), 10,
                      f32_rows(4)),
                  jagged_view<std::int64_t, std::int64_t, device_space>(offsets.data(), 3, ids.data(), 6),
                  sum, matrix_view<float, device_space>(out.data(), 3, 4));
  };
  REQUIRE(run().ok());
  const status s = stream.synchronize();
  CHECK(s.code() == errc::id_out_of_range);
  CHECK(s.place() == fault_place{.bag = 1, .slot = 3, .value = 10});
  CHECK(stream.synchronize().ok());  // read once
  CHECK(out.back() == std::vector<float>{2, 2, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0});
}
