// gemm() on a stream against the oracle, by the cuBLASLt of this folder: no card.
#include <deeprec/dense/gemm/cuda_cublaslt_gemm.hpp>
#include <deeprec/exec/cuda/cuda_stream.hpp>
#include <deeprec/exec/inline_executor.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "dense/gemm_oracle.hpp"
#include "dense/support.hpp"

using namespace dense_test;
using namespace deeprec;
using host_cuda::lt;
using host_cuda::lt_device;

namespace {

/// Scratch that is exactly what was asked for, full of NaN, with a guard behind it.
struct guarded_memory {
  static constexpr std::size_t guard = 512;
  bool refuses = false;
  std::byte* begin = nullptr;
  std::size_t size = 0;

  void* allocate_async(std::size_t bytes, std::size_t, cudaStream_t on) {
    void* made = nullptr;
    if (refuses || cudaMallocAsync(&made, bytes + guard, on) != cudaSuccess) return nullptr;
    begin = static_cast<std::byte*>(made);
    size = bytes;
    std::fill_n(begin, bytes + guard, std::byte{0xff});
    return made;
  }
  void deallocate_async(void* p, std::size_t, std::size_t, cudaStream_t on) { cudaFreeAsync(p, on); }
  [[nodiscard]] bool guard_intact() const {
    return begin == nullptr ||
           std::all_of(begin + size, begin + size + guard, [](std::byte b) { return b == std::byte{0xff}; });
  }
};

struct guarded_stream {
  guarded_memory memory;
  cuda_stream on{stream_priority::normal, stream_memory_ref(memory)};

  /// Waits, so that the host can look at the results.
  status done(const status& enqueued) const {
    const status ended = on.synchronize();
    return enqueued.ok() ? ended : enqueued;
  }
};

using device_desc = basic_gemm_desc<device_space>;

template <class T>
matrix_view<T, device_space> moved(matrix_view<T> v) {
  return {v.data_handle(), v.extent(0), v.extent(1), v.stride(0)};
}
template <class Word>
bit_matrix_view<Word, device_space> moved(bit_matrix_view<Word> v) {
  return {v.data_handle(), v.extent(0), v.extent(1), v.stride(0)};
}
gemm_view<device_space> moved(const gemm_view<>& v) {
  if (v.absent()) return {};
  if (v.storage() == gemm_storage::f32) {
    return moved(
        matrix_view<const float>(static_cast<const float*>(v.data()), v.extent(0), v.extent(1), v.stride(0)));
  }
  return moved(
      matrix_view<const bf16>(static_cast<const bf16*>(v.data()), v.extent(0), v.extent(1), v.stride(0)));
}
device_desc moved(const gemm_desc& d) {
  return {.a = d.a,
          .b = d.b,
          .c = d.c,
          .math = d.math,
          .bias = moved(d.bias),
          .residual = moved(d.residual),
          .activation = d.activation,
          .relu_bits = moved(d.relu_bits),
          .mask = moved(d.mask),
          .mask_bits = moved(d.mask_bits),
          .bias_gradient = moved(d.bias_gradient),
          .column_sums = moved(d.column_sums),
          .batch = d.batch};
}

constexpr auto by_gemm = [](auto&&... given) { return gemm(given...); };
constexpr auto by_tune = [](auto&&... given) { return gemm_tune(given...); };

/// The operands of a trial are of the types that it names.
template <class Verb>
status run_on(guarded_stream& stream, const gemm_desc& desc, operand& a, operand& b, operand& c,
              const Verb& verb) {
  const device_desc there = moved(desc);
  const auto with = [&](const auto& left, const auto& right) {
    if (c.storage == gemm_storage::f32)
      return stream.done(verb(stream.on, there, left, right, moved(c.f32.view())));
    return stream.done(verb(stream.on, there, left, right, moved(c.halves())));
  };
  const bool a_float = a.storage == gemm_storage::f32, b_float = b.storage == gemm_storage::f32;
  if (a_float && b_float) return with(moved(a.f32.view()), moved(b.f32.view()));
  if (a_float) return with(moved(a.f32.view()), moved(b.halves()));
  if (b_float) return with(moved(a.halves()), moved(b.f32.view()));
  return with(moved(a.halves()), moved(b.halves()));
}

/// The error over the bound. `done` is what the product answered, and what was not right if it did
/// no product.
template <class Verb = decltype(by_gemm)>
double worst_on(guarded_stream& stream, const trial& t, std::mt19937_64& random, status* done = nullptr,
                const Verb& verb = {}) {
  return worst_error_of(
      [&](const gemm_desc& desc, operand& a, operand& b, operand& c) {
        const status s = run_on(stream, desc, a, b, c, verb);
        if (done == nullptr) return s;
        *done = s;
        return status{};
      },
      t, random);
}

/// A layer, every matrix at a multiple of 256 bytes.
struct layer {
  index_t m = 8, n = 12, k = 20;
  std::vector<float> memory = std::vector<float>(16384, 1.0F);
  device_desc desc{};
  guarded_stream stream;

  float* at(index_t floats) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    return memory.data() + (256 - address % 256) % 256 / 4 + floats;
  }
  float* bias() { return at(12288); }
  std::uint64_t* bits() { return reinterpret_cast<std::uint64_t*>(at(13312)); }
  bit_matrix_view<std::uint64_t, device_space> bits_view(index_t stride = 128) {
    return {bits(), m, n, stride};
  }
  template <class T = float, class U = T>
  status run(index_t a_at = 0, index_t b_at = 4096, index_t c_at = 8192, index_t pad = 0) {
    return stream.done(enqueue<T, U>(a_at, b_at, c_at, pad));
  }
  status tune() { return stream.done(enqueue<float, float>(0, 4096, 8192, 0, by_tune)); }
  template <class T = float, class U = T, class Verb = decltype(by_gemm)>
  status enqueue(index_t a_at = 0, index_t b_at = 4096, index_t c_at = 8192, index_t pad = 0,
                 const Verb& verb = {}) {
    const bool a_turned = desc.a == gemm_operand::transposed, b_turned = desc.b == gemm_operand::transposed;
    const index_t ar = a_turned ? k : m, ac = a_turned ? m : k, br = b_turned ? n : k, bc = b_turned ? k : n;
    return verb(stream.on, desc,
                matrix_view<T, device_space>(reinterpret_cast<T*>(at(a_at)), ar, ac, ac + pad),
                matrix_view<T, device_space>(reinterpret_cast<T*>(at(b_at)), br, bc, bc),
                matrix_view<U, device_space>(reinterpret_cast<U*>(at(c_at)), m, n, n));
  }
};

}  // namespace

TEST_CASE("cuBLASLt: every epilogue, type, layout and alignment is within the oracle's bound") {
  std::mt19937_64 random(deeprec_test::seed());
  lt_device device;
  std::set<cublasLtEpilogue_t> seen;
  for (int i = 0; i < 900; ++i) {
    const trial t = device_trial(random);
    INFO(said(t));
    lt().workspace = i % 3 == 0 ? 0 : 1000;
    lt().ran.clear();
    guarded_stream stream;
    CHECK(worst_on(stream, t, random) <= 1);
    REQUIRE(lt().fault == "");
    CHECK(stream.memory.guard_intact());
    REQUIRE(lt().ran.size() == 1);  // one launch
    seen.insert(lt().ran.front());
  }
  CHECK(seen.size() == 11);
  CHECK(lt().heuristics > 100);
}

TEST_CASE("cuBLASLt: infinities and NaN are within the oracle's bound") {
  std::mt19937_64 random(deeprec_test::seed());
  lt_device device;
  for (int i = 0; i < 100; ++i) {
    trial t = device_trial(random);
    t.kind = values::with_infinities;
    INFO(said(t));
    guarded_stream stream;
    CHECK(worst_on(stream, t, random) <= 1);
    REQUIRE(lt().fault == "");
  }
}

TEST_CASE("cuBLASLt: an attribute that is missing is caught") {
  std::mt19937_64 random(deeprec_test::seed());
  const gemm_operand turned = gemm_operand::transposed;
  const trial with_bias{.m = 5, .n = 6, .k = 7, .bias = true};
  const trial square{.m = 5, .n = 5, .k = 5, .desc = {.a = turned, .b = turned}};
  const trial gradient{.m = 5, .n = 6, .k = 7, .bias_gradient = true};
  const trial masked{.m = 5, .n = 6, .k = 7, .mask_bits = true};
  const trial summed{.m = 5, .n = 6, .k = 7, .mask_bits = true, .column_sums = true};
  trial noted{.m = 5, .n = 6, .k = 7, .relu_bits = true};
  noted.desc.activation = gemm_activation::relu;
  const auto caught = [&](int attribute, const trial& t) {
    lt_device device;
    guarded_stream stream;
    status done;
    REQUIRE(worst_on(stream, t, random, &done) <= 1);  // all of them heard
    REQUIRE(done.ok());
    lt().deaf.insert(attribute);
    device.next();  // a plan of its own
    guarded_stream other;
    const bool wrong = worst_on(other, t, random, &done) > 1;
    return wrong || !done.ok() || lt().fault != "";
  };
  CHECK(caught(CUBLASLT_MATMUL_DESC_TRANSA, square));
  CHECK(caught(CUBLASLT_MATMUL_DESC_TRANSB, square));
  CHECK(caught(CUBLASLT_MATMUL_DESC_EPILOGUE, noted));
  CHECK(caught(CUBLASLT_MATMUL_DESC_EPILOGUE, masked));
  CHECK(caught(CUBLASLT_MATMUL_DESC_EPILOGUE, gradient));
  CHECK(caught(CUBLASLT_MATMUL_DESC_BIAS_POINTER, with_bias));
  CHECK(caught(CUBLASLT_MATMUL_DESC_BIAS_POINTER, summed));
  CHECK(caught(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, noted));
  CHECK(caught(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, masked));
  CHECK_FALSE(caught(CUBLASLT_MATMUL_DESC_FILL_MODE, with_bias));  // nobody sets it
}

TEST_CASE("cuBLASLt: a batch is its products") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  lt_device device;
  matrix a(3 * 5, 7), b(3 * 7, 6), bias(1, 6, 0, 3), c(3 * 5, 6), expected(3 * 5, 6);
  for (matrix* m : {&a, &b, &bias}) m->fill(random);
  for (const index_t b_batch_stride : {7 * 6, 0}) {
    for (const index_t k : {7, 0}) {
      gemm_desc desc{.bias = bias.view(),
                     .activation = gemm_activation::relu,
                     .batch = {.count = 3,
                               .a_batch_stride = 5 * 7,
                               .b_batch_stride = b_batch_stride,
                               .c_batch_stride = 5 * 6}};
      const auto left = a.view().rows(0, 5).columns(0, k);
      const auto right = b.view().rows(0, k);
      const auto run = [&] {
        guarded_stream stream;
        return stream.done(
            gemm(stream.on, moved(desc), moved(left), moved(right), moved(c.view().rows(0, 5))));
      };
      REQUIRE(run().ok());
      REQUIRE(lt().fault == "");
      REQUIRE(gemm(here, desc, left, right, expected.view().rows(0, 5)).ok());
      const auto apart = [&] {
        double most = 0;
        for (index_t i = 0; i < 15; ++i) {
          for (index_t j = 0; j < 6; ++j)
            most =
                std::max(most, std::abs(static_cast<double>(c(i, j)) - static_cast<double>(expected(i, j))));
        }
        return most;
      };
      CHECK(apart() < 1e-5);
      lt().deaf_to_batches = true;  // broken: only the first is made
      device.next();
      c.fill(random);
      REQUIRE(run().ok());
      CHECK(apart() > 1e-3);
      lt().deaf_to_batches = false;
      device.next();
    }
  }
}

TEST_CASE("cuBLASLt: the heuristic is asked once, and again for everything that its answer depends on") {
  lt_device device;
  layer l;
  REQUIRE(l.run().ok());
  CHECK(lt().heuristics == 1);
  const int described = lt().described, wishes = lt().wishes;
  for (int i = 0; i < 3; ++i) REQUIRE(l.run(64, 4096 + 64, 8192 + 64).ok());  // elsewhere, as well aligned
  l.desc.c = gemm_output::accumulate;                                         // which it isn't told
  REQUIRE(l.run().ok());
  l.desc.c = gemm_output::overwrite;
  CHECK(lt().heuristics == 1);
  CHECK(lt().described == described);
  CHECK(lt().wishes == wishes);
  CHECK(lt().handles == 1);

  int expected = 1;
  const auto asks = [&](const status& s) {
    REQUIRE_MESSAGE(s.ok(), s.message());
    REQUIRE(lt().fault == "");
    return lt().heuristics == ++expected;
  };
  const auto with = [&](const auto& change) {
    layer other;
    change(other);
    const bool asked = asks(other.run());
    REQUIRE(other.run().ok());  // and is kept
    return asked && lt().heuristics == expected;
  };
  CHECK(with([](layer& o) { o.m = 9; }));
  CHECK(with([](layer& o) { o.n = 13; }));
  CHECK(with([](layer& o) { o.k = 21; }));
  CHECK(with([](layer& o) { o.k = 0; }));
  CHECK(with([](layer& o) { o.desc.a = gemm_operand::transposed; }));
  CHECK(with([](layer& o) { o.desc.b = gemm_operand::transposed; }));
  CHECK(with([](layer& o) { o.desc.math = gemm_math::tf32; }));
  CHECK(with([](layer& o) { o.desc.math = gemm_math::bf16; }));
  CHECK(with([](layer& o) { o.desc.activation = gemm_activation::relu; }));
  CHECK(with([](layer& o) { o.desc.activation = gemm_activation::gelu_tanh; }));
  const auto biased = [](layer& o, index_t from) {
    o.desc.bias = matrix_view<const float, device_space>(o.bias() + from, 1, o.n);
  };
  CHECK(with([&](layer& o) { biased(o, 0); }));
  CHECK(with([&](layer& o) { biased(o, 4); }));  // 16 bytes
  CHECK(with([&](layer& o) { biased(o, 8); }));  // 32
  const auto masked = [](layer& o, index_t words, index_t stride) {
    o.desc.mask_bits = bit_matrix_view<const std::uint64_t, device_space>(o.bits() + words, o.m, o.n, stride);
  };
  CHECK(with([&](layer& o) { masked(o, 0, 128); }));
  CHECK(with([&](layer& o) { masked(o, 0, 256); }));
  CHECK(with([&](layer& o) { masked(o, 2, 128); }));
  CHECK(with([&](layer& o) {
    masked(o, 0, 128);
    o.desc.column_sums = matrix_view<float, device_space>(o.bias(), 1, o.n);
  }));
  const auto added = [](layer& o, index_t from, index_t stride) {
    o.desc.residual = matrix_view<const float, device_space>(o.at(9216) + from, o.m, o.n, stride);
  };
  CHECK(with([&](layer& o) { added(o, 0, 16); }));
  CHECK(with([&](layer& o) { added(o, 2, 12); }));
  CHECK(with([](layer& o) {
    o.desc.batch = {.count = 2, .a_batch_stride = 160, .b_batch_stride = 240, .c_batch_stride = 96};
  }));
  CHECK(with([](layer& o) {
    o.desc.batch = {.count = 3, .a_batch_stride = 160, .b_batch_stride = 240, .c_batch_stride = 96};
  }));
  CHECK(with([](layer& o) {
    o.desc.batch = {.count = 2, .a_batch_stride = 0, .b_batch_stride = 240, .c_batch_stride = 96};
  }));
  CHECK(with([](layer& o) {
    o.desc.batch = {.count = 2, .a_batch_stride = 160, .b_batch_stride = 0, .c_batch_stride = 96};
  }));
  CHECK(with([](layer& o) {
    o.desc.batch = {.count = 2, .a_batch_stride = 160, .b_batch_stride = 240, .c_batch_stride = 192};
  }));
  CHECK(asks(l.run(1)));
  CHECK(asks(l.run(2)));
  CHECK(asks(l.run(0, 4097)));
  CHECK(asks(l.run(0, 4096, 8196)));
  CHECK(asks(l.run(0, 4096, 8192, 4)));
  CHECK(asks(l.run<bf16, bf16>()));
  CHECK(asks(l.run<bf16, float>()));
  l.desc.math = gemm_math::bf16;  // as bf16 operands are multiplied anyway
  REQUIRE(l.run<bf16, float>().ok());
  CHECK(lt().heuristics == expected);
  l.desc.math = gemm_math::f32;
  int before = 0;
  REQUIRE(cudaGetDevice(&before) == cudaSuccess);
  device.next();
  CHECK(asks(layer().run()));
  REQUIRE(cudaSetDevice(before) == cudaSuccess);
  REQUIRE(l.run().ok());
  CHECK(lt().heuristics == expected);
}

TEST_CASE("cuBLASLt: the plans that are kept are bounded") {
  lt_device device;
  layer l;
  l.n = l.k = 1;
  const auto& plans = detail::cublaslt_plans();
  for (l.m = 1; l.m <= 1200; ++l.m) REQUIRE(l.run().ok());
  CHECK(lt().heuristics == 1200);
  CHECK(plans.report().kept <= plans.report().capacity);
  l.m = 1200;
  REQUIRE(l.run().ok());
  CHECK(lt().heuristics == 1200);
  l.m = 1;  // dropped, and asked for anew
  REQUIRE(l.run().ok());
  CHECK(lt().heuristics == 1201);
  REQUIRE(lt().fault == "");
}

TEST_CASE("cuBLASLt: no algorithm is said with types and steps, and remembered") {
  lt_device device;
  lt().algorithms = 0;
  layer l;
  const auto says = [&](const status& s, const char* what) {
    INFO(s.message());
    return s.code() == errc::unsupported && s.message().find("no algorithm") != std::string::npos &&
           s.message().find(what) != std::string::npos;
  };
  CHECK(says(l.run(), "in f32"));
  CHECK(says(l.run(), "in f32"));
  CHECK(lt().heuristics == 1);
  CHECK(lt().products == 0);
  l.desc.math = gemm_math::tf32;
  l.desc.activation = gemm_activation::relu;
  l.desc.relu_bits = l.bits_view();
  l.desc.bias = matrix_view<const float, device_space>(l.bias(), 1, l.n);
  CHECK(says(l.run(), "in f32 by TF32 with bias, ReLU and its bits"));
  l.desc = {};
  l.desc.mask_bits = l.bits_view();
  l.desc.column_sums = matrix_view<float, device_space>(l.bias(), 1, l.n);
  CHECK(says(l.run<bf16, float>(), "in bf16 to f32 with a mask of bits and column sums"));
  l.desc = {.math = gemm_math::bf16};
  l.desc.bias_gradient = matrix_view<float, device_space>(l.bias(), 1, l.m);
  CHECK(says(l.run(), "in f32 by bf16 with a bias gradient"));
  l.desc = {.activation = gemm_activation::gelu_tanh};
  CHECK(says(l.run<bf16, bf16>(), "in bf16 with GELU"));
  CHECK(lt().heuristics == 5);

  lt().algorithms = 3;  // of which the first two say themselves that they can't
  lt().unusable = 2;
  ++l.m;
  CHECK(l.run<bf16, bf16>().ok());
  lt().unusable = 3;
  ++l.m;
  CHECK(says(l.run<bf16, bf16>(), "in bf16"));
  lt().unusable = 0;
  lt().workspace = std::size_t{33} << 20;  // more than was allowed
  ++l.m;
  CHECK(says(l.run<bf16, bf16>(), "in bf16"));
  lt().workspace = 0;
  lt().failing["choose"] = CUBLAS_STATUS_NOT_SUPPORTED;
  ++l.m;
  const int asked = lt().heuristics;
  CHECK(says(l.run<bf16, bf16>(), "in bf16"));
  lt().failing.clear();
  CHECK(says(l.run<bf16, bf16>(), "in bf16"));
  CHECK(lt().heuristics == asked + 1);
}

TEST_CASE("cuBLASLt: a call that fails is a status, and nothing is kept of it") {
  const std::pair<cublasStatus_t, errc> answers[] = {{CUBLAS_STATUS_ALLOC_FAILED, errc::out_of_memory},
                                                     {CUBLAS_STATUS_INVALID_VALUE, errc::device_error},
                                                     {CUBLAS_STATUS_NOT_INITIALIZED, errc::device_error},
                                                     {CUBLAS_STATUS_ARCH_MISMATCH, errc::unsupported},
                                                     {CUBLAS_STATUS_EXECUTION_FAILED, errc::device_error},
                                                     {CUBLAS_STATUS_INTERNAL_ERROR, errc::device_error},
                                                     {CUBLAS_STATUS_NOT_SUPPORTED, errc::unsupported}};
  std::set<std::string> words;
  for (const char* const call : {"handle", "steps", "set", "layout", "wish", "choose", "multiply"}) {
    lt_device device;
    index_t m = 8;
    for (const auto& [answer, code] : answers) {
      if (answer == CUBLAS_STATUS_NOT_SUPPORTED && std::string(call) == "choose") continue;
      layer l;
      l.m = ++m;
      lt().failing[call] = answer;
      const status s = l.run();
      INFO(call);
      CHECK(s.code() == code);
      CHECK(s.message().find("cuBLASLt") != std::string::npos);
      words.insert(s.message());
      CHECK(l.run().code() == code);
      lt().failing.clear();
      CHECK(l.run().ok());
      if (std::string(call) == "handle") device.next();
    }
    REQUIRE(lt().fault == "");
  }
  CHECK(words.size() == 7);

  lt_device device;
  layer l;
  l.k = 0;  // zeros in scratch, and a bias that is copied there
  l.desc.bias = matrix_view<const float, device_space>(l.bias() + 1, 1, l.n);
  // Of the run time: the device, whether the stream captures, scratch, zeros and the copy.
  int refused = 0;
  for (;; ++refused) {
    layer other;
    other.k = l.k;
    other.desc = l.desc;
    host_cuda::refuse_after(refused);
    const status s = other.enqueue();
    if (!host_cuda::has_refused()) break;
    CHECK(!s.ok());
    CHECK(lt().products == 0);
  }
  host_cuda::refuse_after(-1);
  CHECK(refused == 5);
  CHECK(lt().products == 1);
  CHECK(l.run().ok());

  host_cuda::set_devices(65);
  REQUIRE(cudaSetDevice(64) == cudaSuccess);
  CHECK(layer().run().message().find("must be below 64") != std::string::npos);
}

TEST_CASE(
    "cuBLASLt: a bias that begins anywhere is copied, and so are sums; others are used where they "
    "are") {
  std::mt19937_64 random(deeprec_test::seed());
  lt_device device;
  trial t{.m = 9, .n = 70, .k = 5, .bias = true};
  trial summed{.m = 9, .n = 70, .k = 5, .mask_bits = true, .column_sums = true};
  trial gradient{.m = 9, .n = 70, .k = 5, .bias_gradient = true};
  for (trial* const each : {&t, &summed, &gradient}) {
    for (each->offset = 0; each->offset < 9; ++each->offset) {
      for (const std::size_t workspace : {std::size_t{0}, std::size_t{1000}}) {
        lt().workspace = workspace;
        const std::size_t copies = host_cuda::device_copies();
        guarded_stream stream;
        ++each->k;  // a plan of its own
        CHECK(worst_on(stream, *each, random) <= 1);
        REQUIRE(lt().fault == "");
        CHECK(stream.memory.guard_intact());
        CHECK(host_cuda::device_copies() - copies == (each->offset % 4 == 0 ? 0 : 1));
      }
    }
  }
  layer l;
  lt().workspace = 0;
  l.desc.bias = matrix_view<const float, device_space>(l.bias() + 4, 1, l.n);
  l.stream.memory.refuses = true;  // nobody asks for any
  CHECK(l.run().ok());
  CHECK(lt().biases.back() == l.bias() + 4);
  l.desc.bias = matrix_view<const float, device_space>(l.bias() + 5, 1, l.n);
  CHECK(l.run().code() == errc::out_of_memory);
}

TEST_CASE("cuBLASLt: what it has no words for is refused, and named") {
  lt_device device;
  layer l;
  const auto says = [&](const status& s, const char* what) {
    INFO(s.message());
    CHECK(s.code() == errc::unsupported);
    return s.message().find(what) != std::string::npos;
  };
  const matrix_view<const float, device_space> c(l.at(8192), l.m, l.n);
  const matrix_view<float, device_space> by_n(l.bias(), 1, l.n), by_m(l.bias(), 1, l.m);
  const auto with = [&](const device_desc& d, const char* what) {
    l.desc = d;
    return says(l.run(), what);
  };
  CHECK(with({.mask = c}, "is mask_bits"));
  CHECK(with({.activation = gemm_activation::sigmoid}, "no sigmoid"));
  CHECK(with({.activation = gemm_activation::gelu}, "gelu_tanh"));
  CHECK(with({.c = gemm_output::accumulate, .residual = c}, "not both"));
  CHECK(with({.bias = by_n, .mask_bits = l.bits_view()}, "without bias and activation"));
  CHECK(
      with({.activation = gemm_activation::relu, .mask_bits = l.bits_view()}, "without bias and activation"));
  CHECK(with({.column_sums = by_n}, "after mask_bits"));
  CHECK(with({.mask_bits = l.bits_view(), .bias_gradient = by_m}, "plain product"));
  CHECK(with({.bias = by_n, .bias_gradient = by_m}, "plain product"));
  CHECK(with({.activation = gemm_activation::relu, .bias_gradient = by_m}, "plain product"));
  CHECK(with({.bias_gradient = by_m, .column_sums = by_n}, "plain product"));
  CHECK(with({.batch = {.count = index_t{1} << 31, .c_batch_stride = 1}}, "below 2^31"));
  const bit_matrix_view<std::uint64_t, device_space> odd(l.bits() + 1, l.m, l.n);
  CHECK(with({.mask_bits = odd}, "mask_bits begin at a multiple of 16"));
  CHECK(with({.activation = gemm_activation::relu, .relu_bits = odd},
             "relu_bits must begin at a multiple of 16"));
  l.desc = {.residual = c};
  CHECK(says(l.run<bf16, bf16>(), "residual has the type"));
  l.desc = {.bias = by_n};
  CHECK(says(l.run<bf16, bf16>(), "bias has the type"));
  l.desc = {.mask_bits = l.bits_view(), .column_sums = by_n};
  CHECK(says(l.run<bf16, bf16>(), "column sums have the type"));
  l.desc = {.bias_gradient = by_m};
  CHECK(says(l.run<bf16, bf16>(), "plain product of floats"));
  l.desc = {.math = gemm_math::tf32};
  CHECK(says(l.run<bf16, bf16>(), "TF32"));
  l.desc = {};
  CHECK(says(l.run<float, bf16>(), "no bf16 result"));
  CHECK(says(gemm(l.stream.on, {}, matrix_view<const bf16, device_space>(nullptr, 0, 3),
                  matrix_view<const float, device_space>(nullptr, 3, 0), matrix_view<float, device_space>()),
             "operands of one type"));
  l.desc = {.column_sums = by_m};  // what gemm() checks comes first
  CHECK(l.run().code() == errc::shape_mismatch);
  CHECK(lt().heuristics == 0);
}

TEST_CASE("cuBLASLt: results without rows or columns") {
  lt_device device;
  layer l;
  const host_cuda::recording log;
  l.m = 0;
  l.desc.mask_bits = l.bits_view();
  l.desc.column_sums = matrix_view<float, device_space>(l.bias(), 1, l.n);
  REQUIRE(l.enqueue().ok());
  REQUIRE(cudaStreamSynchronize(l.stream.on.get()) == cudaSuccess);
  CHECK(log.size() == 1);
  for (index_t j = 0; j < l.n; ++j) CHECK(l.bias()[j] == 0);
  CHECK(l.bias()[l.n] == 1);
  l.desc = {};
  REQUIRE(l.enqueue().ok());
  l.m = 4;
  l.n = 0;
  REQUIRE(l.enqueue().ok());
  l.desc.bias_gradient = matrix_view<float, device_space>(l.bias(), 1, l.m);
  CHECK(l.enqueue().message().find("c must have columns") != std::string::npos);
  l.desc = {.batch = {.count = 0, .c_batch_stride = 1}};
  l.n = 12;
  REQUIRE(l.enqueue().ok());
  CHECK(lt().products == 0);
  CHECK(log.size() == 1);  // nothing more
}

TEST_CASE("gemm_tune: eight that the heuristic names are timed, and the fastest serves from then on") {
  lt_device device;
  lt().algorithms = 20;
  lt().takes = {{0, 60}, {1, 50}, {2, 55}, {3, 70}, {4, 40}, {5, 30}, {6, 31}, {7, 80}};
  layer l;
  REQUIRE(l.run().ok());
  CHECK(lt().ranks == std::vector<int>{0});  // what gemm() takes by itself
  REQUIRE(l.tune().ok());
  REQUIRE(lt().fault == "");
  CHECK(lt().heuristics == 2);
  CHECK(std::set<int>(lt().ranks.begin(), lt().ranks.end()) == std::set<int>{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(lt().ranks.back() == 5);
  const auto takes = [&](const status& s) {
    REQUIRE(s.ok());
    return lt().ranks.back();
  };
  CHECK(takes(l.run()) == 5);
  CHECK(takes(l.run(64, 4096 + 64, 8192 + 64)) == 5);  // elsewhere, as well aligned
  l.desc.c = gemm_output::accumulate;                  // which the heuristic isn't told
  CHECK(takes(l.run()) == 5);
  l.desc.c = gemm_output::overwrite;
  CHECK(lt().heuristics == 2);
  CHECK(takes(l.run(1)) == 0);  // another plan
  l.m = 9;
  CHECK(takes(l.run()) == 0);
  l.m = 8;
  lt().takes[2] = 5;  // once more, by other times
  CHECK(takes(l.tune()) == 2);
  CHECK(takes(l.run()) == 2);
  lt().takes = {};  // as fast as each other: the heuristic's order
  CHECK(takes(l.tune()) == 0);
  const auto& plans = detail::cublaslt_plans();
  CHECK(plans.report().kept <= plans.report().capacity);
  REQUIRE(lt().fault == "");
}

TEST_CASE("gemm_tune: what is left behind is what one product leaves") {
  std::mt19937_64 random(deeprec_test::seed());
  lt_device device;
  lt().algorithms = 3;
  for (int i = 0; i < 200; ++i) {
    const trial t = device_trial(random);
    INFO(said(t));
    lt().workspace = i % 3 == 0 ? 0 : 1000;
    lt().takes = {{i % 3, 0}, {(i + 1) % 3, 20}, {(i + 2) % 3, 40}};
    lt().ranks.clear();
    guarded_stream stream;
    CHECK(worst_on(stream, t, random, nullptr, by_tune) <= 1);
    REQUIRE(lt().fault == "");
    CHECK(stream.memory.guard_intact());
    REQUIRE(lt().ranks.size() == 3 * 7 + 1);
    CHECK(lt().ranks.back() == i % 3);
  }

  matrix a(3 * 5, 7), b(3 * 7, 6), c(3 * 5, 6), expected(3 * 5, 6);
  for (matrix* m : {&a, &b, &c}) m->fill(random);
  for (const index_t step : {5 * 6, -5 * 6}) {
    const gemm_desc desc{
        .c = gemm_output::accumulate,
        .batch = {.count = 3, .a_batch_stride = 5 * 7, .b_batch_stride = 7 * 6, .c_batch_stride = step}};
    expected = c;
    const auto run = [&](const auto& verb, matrix& into) {
      guarded_stream stream;
      const auto out = into.view().rows(step < 0 ? 10 : 0, 5);
      return stream.done(
          verb(stream.on, moved(desc), moved(a.view().rows(0, 5)), moved(b.view().rows(0, 7)), moved(out)));
    };
    REQUIRE(run(by_gemm, expected).ok());
    REQUIRE(run(by_tune, c).ok());
    REQUIRE(lt().fault == "");
    CHECK(same_bits(c, expected));
  }

  layer l;
  const host_cuda::recording log;
  l.m = 0;
  l.desc.mask_bits = l.bits_view();
  l.desc.column_sums = matrix_view<float, device_space>(l.bias(), 1, l.n);
  lt().ranks.clear();
  REQUIRE(l.tune().ok());
  for (index_t j = 0; j < l.n; ++j) CHECK(l.bias()[j] == 0);
  CHECK(lt().ranks.empty());
}

TEST_CASE("gemm_tune: a stream that is captured is refused, as is what gemm() refuses") {
  lt_device device;
  layer l;
  const cudaStream_t on = l.stream.on.get();
  REQUIRE(cuda_runtime::begin_capture(on).ok());
  const status refused = l.enqueue<float, float>(0, 4096, 8192, 0, by_tune);
  cuda_runtime::graph graph = nullptr;
  REQUIRE(cuda_runtime::end_capture(on, graph).ok());  // which the call has not ended
  cuda_runtime::end_graph(graph);
  CHECK(refused.code() == errc::unsupported);
  CHECK(refused.message() == "unsupported: gemm_tune: the stream must not be captured");
  CHECK(lt().heuristics == 0);
  l.desc.activation = gemm_activation::sigmoid;
  CHECK(l.tune().message() == l.run().message());
  l.desc = {.column_sums = matrix_view<float, device_space>(l.bias(), 1, l.m)};
  CHECK(l.tune().code() == errc::shape_mismatch);
  l.desc = {};
  lt().algorithms = 0;
  const status none = l.tune();
  CHECK(none.code() == errc::unsupported);
  CHECK(none.message() == l.run().message());
  CHECK(none.message().find("no algorithm") != std::string::npos);
  CHECK(lt().products == 0);
}

TEST_CASE("gemm_tune: algorithms that fail are passed over") {
  lt_device device;
  lt().algorithms = 4;
  lt().takes = {{1, 10}, {2, 20}, {3, 30}};
  lt().failing_ranks[0] = CUBLAS_STATUS_NOT_SUPPORTED;  // the fastest
  lt().failing_captures = {1};
  layer l;
  l.desc.c = gemm_output::accumulate;
  REQUIRE(l.tune().ok());
  CHECK(lt().ranks.back() == 2);
  CHECK(l.at(8192)[0] == 21);
  REQUIRE(l.run().ok());
  CHECK(lt().ranks.back() == 2);
  CHECK(l.at(8192)[0] == 41);

  layer none;
  none.m = 9;
  none.desc.c = gemm_output::accumulate;
  lt().failing_ranks = {
      {0, CUBLAS_STATUS_ARCH_MISMATCH}, {2, CUBLAS_STATUS_INTERNAL_ERROR}, {3, CUBLAS_STATUS_INTERNAL_ERROR}};
  const status s = none.tune();
  CHECK(s.code() == errc::unsupported);
  CHECK(s.message() == "unsupported: gemm: this device can't run cuBLASLt's product");
  CHECK(none.at(8192)[0] == 1);
  lt().failing_ranks.clear();
  const int asked = lt().heuristics;
  REQUIRE(none.run().ok());  // nothing was pinned
  CHECK(lt().heuristics == asked + 1);
  CHECK(lt().ranks.back() == 0);
}

TEST_CASE("gemm_tune: a call of the run time that fails is a status, and nothing is left of it") {
  lt_device device;
  lt().workspace = 1000;
  const std::size_t alive = host_cuda::things_alive();
  int failed = 0, passed = 0;
  for (int refused = 0;; ++refused) {
    bool came = false;
    {
      layer l;
      l.m = refused + 1;  // a plan of its own
      l.desc.c = gemm_output::accumulate;
      host_cuda::refuse_after(refused);
      const status s = l.enqueue<float, float>(0, 4096, 8192, 0, by_tune);
      came = host_cuda::has_refused();
      host_cuda::refuse_after(-1);
      REQUIRE(l.stream.on.synchronize().ok());
      CHECK(l.at(8192)[0] == (s.ok() ? 21 : 1));
      if (came) ++(s.ok() ? passed : failed);
      const int asked = lt().heuristics;
      if (!s.ok()) {
        REQUIRE(l.run().ok());
        CHECK(lt().heuristics == asked + 1);
      }
    }
    CHECK(host_cuda::things_alive() == alive);
    if (!came) break;
  }
  // Whether the stream is captured, the device, a stream, two events, scratch for c (twice); ten times two
  // launches, two records and a wait.
  CHECK(failed == 7 + 10 * 5);
  // Scratch of an algorithm, which is passed over, and the begin and the graph of two captures.
  CHECK(passed == 2 + 2 * 2);
  REQUIRE(lt().fault == "");
}

TEST_CASE("cuBLASLt: threads with streams of their own share the plans, not the pointers") {
  lt_device device;
  constexpr int crew_size = 4;
  std::atomic<int> wrong{0};
  std::vector<std::thread> crew;
  for (int w = 0; w < crew_size; ++w) {
    crew.emplace_back([&, w] {
      layer l;
      std::fill_n(l.bias(), 64,
                  static_cast<float>(w));  // ones times ones, and a bias of the thread's own
      l.desc.bias = matrix_view<const float, device_space>(l.bias(), 1, l.n);
      for (int i = 0; i < 200; ++i) {
        l.m = 1 + i % 5;
        l.at(8192)[0] = -1;
        if (!l.run().ok() || l.at(8192)[0] != static_cast<float>(20 + w)) ++wrong;
      }
    });
  }
  for (std::thread& t : crew) t.join();
  CHECK(wrong == 0);
  CHECK(lt().fault == "");
  CHECK(lt().heuristics <= 5 * crew_size);
}
