// cuBLASLt without a card: products run in plain loops on the streams of cuda_runtime.h.
//
//   lt()        what was called, what shall fail, and the first thing that cuBLASLt would not allow
//   lt_device   a device that nobody has used, current while it lives
//
// Column-major, with transposes, leading dimensions, batches, beta, epilogues and their bits as the
// header of cuBLASLt describes them. An algorithm serves the descriptors that it was chosen for,
// and pointers as well aligned as was said then. An order of the bits is assumed: the lowest first.
#pragma once

#pragma push_macro("__CUDACC__")
#pragma push_macro("__CUDA_ARCH__")
#undef __CUDACC__
#undef __CUDA_ARCH__
#include_next <cublasLt.h>
#pragma pop_macro("__CUDA_ARCH__")
#pragma pop_macro("__CUDACC__")

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace host_cuda {

struct lt_steps {
  std::uint32_t magic;
  cublasComputeType_t compute;
  cublasOperation_t first_as, second_as;
  cublasLtEpilogue_t epilogue;
  const void* bias;
  void* aux;
  std::int64_t aux_stride;
};
struct lt_layout {
  std::uint32_t magic;
  cudaDataType_t type;
  std::uint64_t rows, columns;
  std::int64_t stride;
  std::int32_t count;
  std::int64_t step;
};
struct lt_wish {
  std::uint32_t magic;
  std::uint32_t begins[4];  // of a, b, c, d
  std::size_t workspace;
  std::uint32_t sums;  // how pieces of k may be summed
};

/// What an algorithm was chosen for.
struct lt_choice {
  int device;
  lt_steps steps;
  lt_layout first, second, c, d;
  lt_wish wish;
  std::uint64_t bias_begins, aux_begins;
  std::size_t workspace;  // that it needs
  int rank;               // 0: the first that was named
};

struct lt_state {
  int handles = 0, described = 0, wishes = 0, heuristics = 0, products = 0;
  std::string fault;  // the first

  // On demand.
  std::map<std::string, cublasStatus_t>
      failing;         // by call: handle, steps, set, layout, wish, choose, multiply
  std::set<int> deaf;  // attributes of steps that are not heard
  bool deaf_to_batches = false;
  int algorithms = 2, unusable = 0;  // found, and how many of them can't be used
  std::size_t workspace = 0;         // what an algorithm wants
  std::map<int, int> takes;          // by rank: how much time a product takes, 0 unless said
  std::map<int, cublasStatus_t> failing_ranks;
  std::set<int> failing_captures;  // by rank

  std::map<std::uint64_t, lt_choice> choices;
  std::vector<cublasLtEpilogue_t> ran;
  std::vector<const void*> biases;  // of each product
  std::vector<int> ranks;           // of each product

  void note(const char* what) {
    if (fault.empty()) fault = what;
  }
  cublasStatus_t answer(const char* call) const {
    const auto at = failing.find(call);
    return at == failing.end() ? CUBLAS_STATUS_SUCCESS : at->second;
  }
};
lt_state& lt();

/// Sets lt() back, and lets the device reach the host's memory.
class lt_device {
 public:
  lt_device();
  lt_device(const lt_device&) = delete;
  lt_device& operator=(const lt_device&) = delete;
  ~lt_device();
  /// Another one that nobody has used.
  void next();
};

}  // namespace host_cuda
