// gemm() on a card against the oracle. What its fake can't know is said, not judged: for which
// products cuBLASLt has no algorithm, in which order bits lie, and what the bit of an exact 0 is.
#include <deeprec/dense/gemm/cuda_cublaslt_gemm.hpp>
#include <deeprec/memory/cuda_runtime.hpp>

#include "dense/gemm_oracle.hpp"
#include "dense/support.hpp"

#include <doctest/doctest.h>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

using namespace deeprec;
using namespace dense_test;

namespace {

/// Host memory on the device, at addresses with the same remainder by 256.
class mirror {
 public:
  ~mirror() {
    for (auto& [host, there] : kept_) cuda_runtime::deallocate(there.block);
  }
  mirror() = default;
  mirror(const mirror&) = delete;

  template <class T>
  matrix_view<T, device_space> operator()(matrix_view<T> v) {
    if (v.data_handle() == nullptr || v.empty())
      return {v.data_handle(), v.extent(0), v.extent(1), v.stride(0)};
    const index_t last = (v.extent(0) - 1) * v.stride(0) + v.extent(1);
    return {static_cast<T*>(at(v.data_handle(), static_cast<std::size_t>(last) * sizeof(T))), v.extent(0),
            v.extent(1), v.stride(0)};
  }
  template <class Word>
  bit_matrix_view<Word, device_space> operator()(bit_matrix_view<Word> v) {
    if (v.absent()) return {};
    const std::size_t bytes = static_cast<std::size_t>(v.extent(0) * v.stride(0) / 8);
    return {static_cast<Word*>(at(v.data_handle(), bytes)), v.extent(0), v.extent(1), v.stride(0)};
  }
  gemm_view<device_space> operator()(const gemm_view<>& v) {
    if (v.absent()) return {};
    const auto typed = [&](auto zero) {
      return (*this)(matrix_view<const decltype(zero)>(static_cast<const decltype(zero)*>(v.data()),
                                                       v.extent(0), v.extent(1), v.stride(0)));
    };
    if (v.storage() == gemm_storage::f32) return typed(0.0F);
    return typed(bf16());
  }
  basic_gemm_desc<device_space> operator()(const gemm_desc& d) {
    basic_gemm_desc<device_space> made{.a = d.a, .b = d.b, .c = d.c, .math = d.math};
    made.bias = (*this)(d.bias);
    made.residual = (*this)(d.residual);
    made.activation = d.activation;
    made.relu_bits = (*this)(d.relu_bits);
    made.mask_bits = (*this)(d.mask_bits);
    made.bias_gradient = (*this)(d.bias_gradient);
    made.column_sums = (*this)(d.column_sums);
    return made;
  }
  /// Everything to where it came from.
  void back() {
    for (auto& [host, there] : kept_) {
      REQUIRE(cudaMemcpy(const_cast<void*>(host), there.data, there.bytes, cudaMemcpyDeviceToHost) ==
              cudaSuccess);
    }
  }

 private:
  struct copy {
    void* block;
    void* data;
    std::size_t bytes;
  };
  void* at(const void* host, std::size_t bytes) {
    if (const auto found = kept_.find(host); found != kept_.end()) return found->second.data;
    void* block = nullptr;
    REQUIRE(cuda_runtime::allocate(block, bytes + 256).ok());
    void* const data = static_cast<char*>(block) + reinterpret_cast<std::uintptr_t>(host) % 256;
    REQUIRE(cudaMemcpy(data, host, bytes, cudaMemcpyHostToDevice) == cudaSuccess);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);  // the streams of the tests wait for no other
    kept_[host] = {block, data, bytes};
    return data;
  }
  std::map<const void*, copy> kept_;
};

status run_on(cuda_stream& stream, const gemm_desc& desc, operand& a, operand& b, operand& c,
              bool tuned = false) {
  mirror there;
  const auto with = [&](const auto& left, const auto& right) {
    const auto to = [&](const auto& out) {
      status s = tuned ? gemm_tune(stream, there(desc), there(left), there(right), there(out))
                       : gemm(stream, there(desc), there(left), there(right), there(out));
      if (s.ok()) s = stream.synchronize();
      if (s.ok()) there.back();
      return s;
    };
    if (c.storage == gemm_storage::f32) return to(c.f32.view());
    return to(c.halves());
  };
  if (a.storage == gemm_storage::f32) return with(a.f32.view(), b.f32.view());
  return with(a.halves(), b.halves());
}

}  // namespace

TEST_CASE("cuBLASLt on a card: what it multiplies is within the oracle's bound") {
  std::mt19937_64 random(deeprec_test::seed());
  cuda_stream stream;
  std::map<std::string, int> refused;
  int ran = 0;
  for (int i = 0; i < 300; ++i) {
    trial t = device_trial(random);
    t.relu_bits = t.mask_bits = t.column_sums = false;  // in an order of the card's own
    t.on_card = true;
    INFO(said(t));
    status done;
    const double worst = worst_error_of(
        [&](const gemm_desc& desc, operand& a, operand& b, operand& c) {
          done = run_on(stream, desc, a, b, c, i % 2 == 1);
          return status{};
        },
        t, random);
    if (!done.ok()) {
      INFO(done.message());
      CHECK(done.code() == errc::unsupported);
      CHECK((t.bias || t.bias_gradient || t.desc.activation != gemm_activation::none ||
             t.a == gemm_storage::bf16));
      ++refused[done.message()];
      continue;
    }
    ++ran;
    // A tensor core may cut factors where the oracle rounds them.
    CHECK(worst <= (t.a == gemm_storage::f32 && t.desc.math != gemm_math::f32 ? 2.1 : 1.0));
  }
  for (const auto& [why, times] : refused) MESSAGE(times << " times: " << why);
  CHECK(ran > 100);
}

TEST_CASE("cuBLASLt on a card: ReLU's bits mask the gradient, whose columns are summed") {
  std::mt19937_64 random(deeprec_test::seed());
  struct shape {
    index_t m, n, k;
  };
  int ran = 0;
  const auto layers = [&](auto zero, gemm_math math, shape s) {
    using T = decltype(zero);
    cuda_stream stream;
    constexpr gemm_storage storage = detail::gemm_storage_of<T>;
    operand x(s.m, s.k, storage, 0), w(s.n, s.k, storage, 0), y(s.m, s.n, gemm_storage::f32, 0);
    operand dy(s.m, 64, storage, 0), v(64, s.n, storage, 0), dx(s.m, s.n, gemm_storage::f32, 0), plain = dx;
    matrix bias(1, s.n), sums(1, s.n);
    for (operand* o : {&x, &w, &dy, &v}) o->fill(random, values::normal);
    bias.fill(random);
    bits noted(s.m, s.n, bit_matrix_view<std::uint64_t>::stride_for(s.n));
    gemm_desc forward{.b = gemm_operand::transposed, .math = math, .activation = gemm_activation::relu};
    forward.bias = bias.view();
    forward.relu_bits = noted.view();
    gemm_desc back{.math = math, .mask_bits = noted.view(), .column_sums = sums.view()};
    for (const auto& done : {run_on(stream, forward, x, w, y), run_on(stream, back, dy, v, dx),
                             run_on(stream, {.math = math}, dy, v, plain)}) {
      if (done.ok()) continue;
      CHECK(done.code() == errc::unsupported);
      MESSAGE(s.m << " " << s.n << " " << s.k << ": " << done.message());
      return;
    }
    ++ran;
    int wrong = 0, ordered = 0;
    for (index_t j = 0; j < s.n; ++j) {
      double sum = 0, magnitude = 0;
      for (index_t i = 0; i < s.m; ++i) {
        const float expected = y.f32(i, j) > 0 ? plain.f32(i, j) : 0.0F;
        wrong += std::abs(dx.f32(i, j) - expected) <= 1e-3F * (1 + std::abs(expected)) ? 0 : 1;
        wrong += y.f32(i, j) > 0 || dx.f32(i, j) == 0 ? 0 : 1;
        ordered += noted.view()(i, j) == (y.f32(i, j) > 0) ? 1 : 0;
        sum += static_cast<double>(dx.f32(i, j));
        magnitude += std::abs(static_cast<double>(dx.f32(i, j)));
      }
      wrong += std::abs(static_cast<double>(sums(0, j)) - sum) <= 1e-5 * magnitude ? 0 : 1;
    }
    CHECK(wrong == 0);
    MESSAGE("bits in the host's order: " << ordered << " of " << s.m * s.n);
  };
  for (const shape s : {shape{128, 256, 64}, shape{256, 512, 128}, shape{300, 200, 72}, shape{33, 130, 17}}) {
    layers(0.0F, gemm_math::f32, s);
    layers(0.0F, gemm_math::tf32, s);
    layers(bf16(), gemm_math::f32, s);
  }
  CHECK(ran > 0);

  cuda_stream stream;
  operand x(128, 128, gemm_storage::bf16, 0), y(128, 128, gemm_storage::f32, 0);  // zeros
  std::fill(x.half.begin(), x.half.end(), bf16(0.0F));
  bits noted(128, 128, 128);
  gemm_desc forward{.activation = gemm_activation::relu, .relu_bits = noted.view()};
  if (run_on(stream, forward, x, x, y).ok()) {
    MESSAGE("the bit of an exact 0: " << (noted.view()(0, 0) ? 1 : 0));
  }
}

TEST_CASE("cuBLASLt on a card: a product is captured once it has run, with a bias that is copied") {
  std::mt19937_64 random(deeprec_test::seed());
  cuda_stream stream;
  matrix x(64, 128), w(96, 128), y(64, 96), expected(64, 96), bias(1, 96, 0, 1);
  for (matrix* m : {&x, &w, &bias}) m->fill(random);
  mirror there;
  const gemm_desc desc{.b = gemm_operand::transposed, .math = gemm_math::tf32, .bias = bias.view()};
  const auto on_device = there(desc);
  const auto run = [&] { return gemm(stream, on_device, there(x.view()), there(w.view()), there(y.view())); };
  REQUIRE(run().ok());
  REQUIRE(stream.synchronize().ok());
  there.back();
  expected = y;
  const auto asked = cublaslt_gemm::cache_report();
  REQUIRE(cuda_runtime::begin_capture(stream.get()).ok());
  const status captured = run();
  cudaGraph_t graph = nullptr;
  REQUIRE(cuda_runtime::end_capture(stream.get(), graph).ok());
  REQUIRE_MESSAGE(captured.ok(), captured.message());
  cudaGraphExec_t exec = nullptr;
  REQUIRE(cuda_runtime::instantiate(exec, graph).ok());
  const auto out = there(y.view());
  REQUIRE(cudaMemset(out.data_handle(), 0xff, 64 * 96 * sizeof(float)) == cudaSuccess);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  REQUIRE(cuda_runtime::launch(exec, stream.get()).ok());
  REQUIRE(stream.synchronize().ok());
  there.back();
  CHECK(same_bits(y, expected));
  CHECK(cublaslt_gemm::cache_report().made == asked.made);
  cuda_runtime::end_exec(exec);
  cuda_runtime::end_graph(graph);
}

TEST_CASE("cuBLASLt on a card: what gemm_tune() has pinned serves from then on, with the same bits") {
  std::mt19937_64 random(deeprec_test::seed());
  cuda_stream stream;
  for (const gemm_math math : {gemm_math::f32, gemm_math::tf32, gemm_math::bf16}) {
    matrix x(256, 512), w(384, 512), y(256, 384), tuned(256, 384), bias(1, 384);
    for (matrix* m : {&x, &w, &bias}) m->fill(random);
    mirror there;
    const gemm_desc desc{.b = gemm_operand::transposed,
                         .math = math,
                         .bias = bias.view(),
                         .activation = gemm_activation::relu};
    const auto on_device = there(desc);
    const auto call = [&](const auto& verb) {
      const status s = verb(stream, on_device, there(x.view()), there(w.view()), there(y.view()));
      REQUIRE_MESSAGE(s.ok(), s.message());
      REQUIRE(stream.synchronize().ok());
      there.back();
    };
    call([](auto&&... given) { return gemm_tune(given...); });
    tuned = y;
    const auto asked = cublaslt_gemm::cache_report();
    for (int again = 0; again < 3; ++again) {
      call([](auto&&... given) { return gemm(given...); });
      CHECK(same_bits(y, tuned));
    }
    CHECK(cublaslt_gemm::cache_report().made == asked.made);
    REQUIRE(cuda_runtime::begin_capture(stream.get()).ok());
    const status refused = gemm_tune(stream, on_device, there(x.view()), there(w.view()), there(y.view()));
    cudaGraph_t graph = nullptr;
    REQUIRE(cuda_runtime::end_capture(stream.get(), graph).ok());
    cuda_runtime::end_graph(graph);
    CHECK(refused.code() == errc::unsupported);
  }
}
