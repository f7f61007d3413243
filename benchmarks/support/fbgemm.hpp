// FBGEMM's embedding kernels out of the shared library that its Python package brings, when the environment
// says where it is: DEEPREC_FBGEMM=<site-packages>/fbgemm_gpu/fbgemm.so, of the PyPI package fbgemm-gpu-cpu.
// LD_LIBRARY_PATH has to find PyTorch's libraries, of which only libc10.so is called: empty ones will do for
// libtorch.so and libtorch_cpu.so. No header of deeprec here.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <system_error>

namespace deeprec_bench::fbgemm {

/// bool(bags, ids, rows, table, ids, offsets, weights, out); Row: float, std::uint8_t (codes, then scale and
/// bias in f32), or std::uint16_t for f16.
template <class Row>
using pooled_lookup = std::function<bool(std::int64_t, std::int64_t, std::int64_t, const Row*,
                                         const std::int64_t*, const std::int64_t*, const float*, float*)>;

/// bool(bags, ids, rows, table, gradient of the bags, one float of state for each row, ids, offsets, epsilon,
/// rate). A row is stepped once for each of its ids, by the rate times the gradient, so the rate is below 0.
using rowwise_adagrad = std::function<bool(std::int64_t, std::int64_t, std::int64_t, float*, const float*,
                                           float*, const std::int64_t*, const std::int64_t*, float, float)>;

/// Null without the library.
inline void* library() {
  static void* const opened = [] {
    const char* path = std::getenv("DEEPREC_FBGEMM");
    return path == nullptr || *path == '\0' ? nullptr : ::dlopen(path, RTLD_LAZY | RTLD_LOCAL);
  }();
  return opened;
}

/// The version that the package's folder beside it names; empty without the library.
inline std::string version() {
  namespace fs = std::filesystem;
  if (library() == nullptr) return {};
  std::error_code none;
  const fs::path packages = fs::path(std::getenv("DEEPREC_FBGEMM")).parent_path().parent_path();
  for (const fs::directory_entry& entry : fs::directory_iterator(packages, none)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("fbgemm_gpu", 0) == 0 && entry.path().extension() == ".dist-info") {
      return name.substr(0, name.size() - std::string(".dist-info").size());
    }
  }
  return "unknown";
}

template <class Function>
Function* symbol(const std::string& mangled) {
  void* const found = library() == nullptr ? nullptr : ::dlsym(library(), mangled.c_str());
  return reinterpret_cast<Function*>(found);
}

/// GenerateEmbeddingSpMDM<Row, int64, int64, float>: a sum without weights, offsets with the last one. Empty
/// without the library.
template <class Row>
pooled_lookup<Row> generate_lookup(std::int64_t width, int prefetch) {
  constexpr const char* row = sizeof(Row) == 4 ? "f" : sizeof(Row) == 2 ? "NS_7float16E" : "h";
  using generator = pooled_lookup<Row>(std::int64_t, bool, bool, int, bool, bool, bool, bool);
  auto* const generate =
      symbol<generator>(std::string("_ZN6fbgemm22GenerateEmbeddingSpMDMI") + row +
                        "llfLb1EEENS_29EmbeddingSpMDMKernelSignatureIT_T0_T1_T2_E4TypeElbbibbbb");
  return generate == nullptr ? pooled_lookup<Row>{}
                             : generate(width, false, false, prefetch, false, true, false, false);
}

/// GenerateEmbeddingSpMDMNBit<int64, int64, float>: the same over rows of codes of so many bits, then scale
/// and bias in f16. Empty without the library.
inline pooled_lookup<std::uint8_t> generate_nbit_lookup(int bits, std::int64_t width, int prefetch) {
  using generator = pooled_lookup<std::uint8_t>(int, std::int64_t, bool, bool, int, bool, bool);
  auto* const generate = symbol<generator>(
      "_ZN6fbgemm26GenerateEmbeddingSpMDMNBitIllfEENS_29EmbeddingSpMDMKernelSignatureIhT_T0_T1_"
      "E4TypeEilbbibb");
  return generate == nullptr ? pooled_lookup<std::uint8_t>{}
                             : generate(bits, width, false, false, prefetch, false, true);
}

/// GenerateRowWiseSparseAdaGradFused<int64, int64, float>. Empty without the library.
inline rowwise_adagrad generate_rowwise_adagrad(int width, int prefetch) {
  using generator = rowwise_adagrad(int, int, bool, bool, int);
  auto* const generate = symbol<generator>(
      "_ZN6fbgemm33GenerateRowWiseSparseAdaGradFusedIllfEENS_34RowWiseSparseAdaGradFusedSignatureIT_T0_T1_"
      "E4TypeE"
      "iibbi");
  return generate == nullptr ? rowwise_adagrad{} : generate(width, prefetch, true, false, width);
}

}  // namespace deeprec_bench::fbgemm
