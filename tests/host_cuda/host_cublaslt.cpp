// cuBLASLt's functions on the run time of cuda_runtime.h.
#include <cublasLt.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include <deeprec/core/dtypes.hpp>
#include <deeprec/dense/gemm/tf32.hpp>

namespace host_cuda {

lt_state& lt() {
  static lt_state it;
  return it;
}

namespace {

int devices_used = 0;

}  // namespace

lt_device::lt_device() {
  lt() = {};
  share_memory(true);
  next();
}
lt_device::~lt_device() {
  share_memory(false);
  set_devices(2);
  cudaSetDevice(0);
}
void lt_device::next() {
  set_devices(++devices_used + 1);
  cudaSetDevice(devices_used);
}

namespace {

constexpr std::uint32_t magic = 0x17ac0de;

template <class Record, class Opaque>
static Record read(const Opaque& from) {
  static_assert(sizeof(Record) <= sizeof(Opaque));
  Record made;
  std::memcpy(&made, &from, sizeof(Record));
  return made;
}
template <class Opaque, class Record>
static void write(Opaque& to, const Record& from) {
  static_assert(sizeof(Record) <= sizeof(Opaque));
  std::memcpy(&to, &from, sizeof(Record));
}
template <class T>
void take(T& to, const void* value, std::size_t bytes) {
  if (bytes != sizeof(T)) {
    lt().note("an attribute of another size");
    return;
  }
  std::memcpy(&to, value, bytes);
}

int current() { return device_of(nullptr); }
void check_handle(cublasLtHandle_t with) {
  if (reinterpret_cast<std::uintptr_t>(with) != static_cast<std::uintptr_t>(1000 + current())) {
    lt().note("a handle of another device");
  }
}
// Whether the bytes lie in one allocation of the device.
bool holds(const void* p, std::size_t bytes) { return bytes_behind(p) >= bytes; }

struct product {
  lt_steps steps;
  lt_layout first_as, second_as, c_as, d_as;
  float beta;
  const void *first, *second, *c;
  void* d;

  [[nodiscard]] std::uint64_t k() const {
    return steps.first_as == CUBLAS_OP_N ? first_as.columns : first_as.rows;
  }
  static double value(const void* at, const lt_layout& as, std::int32_t batch, std::uint64_t row,
                      std::uint64_t column) {
    const std::int64_t i =
        batch * as.step + static_cast<std::int64_t>(column) * as.stride + static_cast<std::int64_t>(row);
    if (as.type == CUDA_R_32F) return static_cast<double>(static_cast<const float*>(at)[i]);
    return static_cast<double>(static_cast<float>(static_cast<const deeprec::bf16*>(at)[i]));
  }
  [[nodiscard]] double factor(double x) const {
    const auto narrow = static_cast<float>(x);
    if (steps.compute == CUBLAS_COMPUTE_32F_FAST_TF32) return deeprec::tf32_round(narrow);
    if (steps.compute == CUBLAS_COMPUTE_32F_FAST_16BF) return static_cast<float>(deeprec::bf16(narrow));
    return x;
  }
  /// In pieces of 8 terms, each rounded to the type of d, where cuBLASLt may sum so.
  void run(std::int32_t batch, bool in_pieces) const {
    const bool grad_b = steps.epilogue == CUBLASLT_EPILOGUE_BGRADB;
    const bool sums = steps.epilogue == CUBLASLT_EPILOGUE_DRELU_BGRAD;
    std::vector<double> gradient(grad_b ? d_as.columns : sums ? d_as.rows : 0, 0.0);
    for (std::uint64_t j = 0; j < d_as.columns; ++j) {
      auto* const bits =
          static_cast<unsigned char*>(steps.aux) + static_cast<std::int64_t>(j) * steps.aux_stride / 8;
      if (steps.epilogue == CUBLASLT_EPILOGUE_RELU_AUX || steps.epilogue == CUBLASLT_EPILOGUE_RELU_AUX_BIAS) {
        std::memset(bits, 0xa5,
                    static_cast<std::size_t>(steps.aux_stride / 8));  // the row is the writer's
      }
      for (std::uint64_t p = 0; grad_b && p < k(); ++p) {
        gradient[j] += steps.second_as == CUBLAS_OP_N ? value(second, second_as, batch, p, j)
                                                      : value(second, second_as, batch, j, p);
      }
      for (std::uint64_t i = 0; i < d_as.rows; ++i) {
        double x = 0, piece = 0;
        for (std::uint64_t p = 0; p < k(); ++p) {
          const double l = steps.first_as == CUBLAS_OP_N ? value(first, first_as, batch, i, p)
                                                         : value(first, first_as, batch, p, i);
          const double r = steps.second_as == CUBLAS_OP_N ? value(second, second_as, batch, p, j)
                                                          : value(second, second_as, batch, j, p);
          piece += factor(l) * factor(r);
          if (in_pieces && p % 8 != 7 && p + 1 < k()) continue;
          const bool rounded = in_pieces && d_as.type == CUDA_R_16BF;
          x += rounded ? static_cast<float>(deeprec::bf16(static_cast<float>(piece))) : piece;
          piece = 0;
        }
        if (beta != 0) x += static_cast<double>(beta) * value(c, c_as, batch, i, j);
        x = stepped(x, i, bits);
        if (sums) gradient[i] += x;
        const std::int64_t to =
            batch * d_as.step + static_cast<std::int64_t>(j) * d_as.stride + static_cast<std::int64_t>(i);
        if (d_as.type == CUDA_R_32F) {
          static_cast<float*>(d)[to] = static_cast<float>(x);
        } else {
          static_cast<deeprec::bf16*>(d)[to] = deeprec::bf16(static_cast<float>(x));
        }
      }
    }
    auto* const out = static_cast<float*>(const_cast<void*>(steps.bias));
    for (std::size_t i = 0; i < gradient.size(); ++i) out[i] = static_cast<float>(gradient[i]);
  }
  double stepped(double x, std::uint64_t i, unsigned char* bits) const {
    const auto at = static_cast<unsigned char>(1U << (i % 8));
    const auto with_bias = [&] { return x + static_cast<double>(static_cast<const float*>(steps.bias)[i]); };
    const auto relu = [](double y) { return y < 0 ? 0 : y; };
    const auto noted = [&](double y) {
      bits[i / 8] = static_cast<unsigned char>(y > 0 ? bits[i / 8] | at : bits[i / 8] & ~at);
      return y;
    };
    const auto gelu = [](double y) {
      return 0.5 * y * (1 + std::tanh(0.7978845608028654 * (y + 0.044715 * y * y * y)));
    };
    switch (steps.epilogue) {
      case CUBLASLT_EPILOGUE_BIAS:
        return with_bias();
      case CUBLASLT_EPILOGUE_RELU:
        return relu(x);
      case CUBLASLT_EPILOGUE_RELU_BIAS:
        return relu(with_bias());
      case CUBLASLT_EPILOGUE_RELU_AUX:
        return noted(relu(x));
      case CUBLASLT_EPILOGUE_RELU_AUX_BIAS:
        return noted(relu(with_bias()));
      case CUBLASLT_EPILOGUE_GELU:
        return gelu(x);
      case CUBLASLT_EPILOGUE_GELU_BIAS:
        return gelu(with_bias());
      case CUBLASLT_EPILOGUE_DRELU:
      case CUBLASLT_EPILOGUE_DRELU_BGRAD:
        return (bits[i / 8] & at) != 0 ? x : 0;
      default:
        return x;
    }
  }
};

std::uint64_t largest_power(const void* p) {
  const std::uint64_t bits = reinterpret_cast<std::uintptr_t>(p) | 4096U;
  return bits & (~bits + 1);
}
bool has_bias(cublasLtEpilogue_t e) {
  return e == CUBLASLT_EPILOGUE_BIAS || e == CUBLASLT_EPILOGUE_RELU_BIAS ||
         e == CUBLASLT_EPILOGUE_RELU_AUX_BIAS || e == CUBLASLT_EPILOGUE_GELU_BIAS ||
         e == CUBLASLT_EPILOGUE_DRELU_BGRAD || e == CUBLASLT_EPILOGUE_BGRADB;
}
bool has_aux(cublasLtEpilogue_t e) {
  return e == CUBLASLT_EPILOGUE_RELU_AUX || e == CUBLASLT_EPILOGUE_RELU_AUX_BIAS ||
         e == CUBLASLT_EPILOGUE_DRELU || e == CUBLASLT_EPILOGUE_DRELU_BGRAD;
}
bool same(const lt_layout& a, const lt_layout& b) {
  return a.type == b.type && a.rows == b.rows && a.columns == b.columns && a.stride == b.stride &&
         a.count == b.count && a.step == b.step;
}
const char* fault_of(const product& x, const lt_choice& chosen) {
  const lt_steps& s = x.steps;
  if (chosen.device != current()) return "an algorithm of another device";
  if (s.compute != chosen.steps.compute || s.first_as != chosen.steps.first_as ||
      s.second_as != chosen.steps.second_as || s.epilogue != chosen.steps.epilogue ||
      s.aux_stride != chosen.steps.aux_stride || !same(x.first_as, chosen.first) ||
      !same(x.second_as, chosen.second) || !same(x.c_as, chosen.c) || !same(x.d_as, chosen.d)) {
    return "an algorithm that was chosen for another product";
  }
  if (x.first_as.type != x.second_as.type || x.c_as.type != x.d_as.type) return "types that are not combined";
  const bool first_n = s.first_as == CUBLAS_OP_N, second_n = s.second_as == CUBLAS_OP_N;
  if ((first_n ? x.first_as.rows : x.first_as.columns) != x.d_as.rows ||
      (second_n ? x.second_as.columns : x.second_as.rows) != x.d_as.columns ||
      (second_n ? x.second_as.rows : x.second_as.columns) != x.k() || x.c_as.rows != x.d_as.rows ||
      x.c_as.columns != x.d_as.columns) {
    return "shapes that don't fit";
  }
  const lt_layout* const layouts[] = {&x.first_as, &x.second_as, &x.c_as, &x.d_as};
  const void* const pointers[] = {x.first, x.second, x.c, x.d};
  for (int i = 0; i < 4; ++i) {
    const lt_layout& l = *layouts[i];
    if (l.rows == 0 || l.columns == 0) return "a matrix of nothing";
    if (l.stride < static_cast<std::int64_t>(l.rows)) return "a leading dimension below the rows";
    if (l.count != x.d_as.count) return "batches of different counts";
    const std::size_t size = l.type == CUDA_R_32F ? 4 : 2;
    for (std::int32_t b = 0; b < l.count; ++b) {
      const std::uintptr_t begin =
          reinterpret_cast<std::uintptr_t>(pointers[i]) + static_cast<std::uintptr_t>(b * l.step) * size;
      if (begin % chosen.wish.begins[i] != 0) return "a matrix that begins elsewhere than was said";
    }
  }
  if (x.beta != 0 && x.beta != 1) return "a beta that is not 0 or 1";
  if (has_bias(s.epilogue) != (s.bias != nullptr)) return "a bias too many, or none";
  if (has_bias(s.epilogue)) {
    if (x.d_as.type != CUDA_R_32F) return "a bias of floats beside another type";
    const std::uint64_t begins = largest_power(s.bias);
    if (begins < 16 || begins < (std::min)(chosen.bias_begins, std::uint64_t{256})) {
      return "a bias that begins elsewhere than was said";
    }
  }
  if (has_aux(s.epilogue) != (s.aux != nullptr)) return "bits too many, or none";
  if (has_aux(s.epilogue)) {
    if (s.aux_stride % 128 != 0 || s.aux_stride < static_cast<std::int64_t>(x.d_as.rows)) {
      return "bits with a bad leading dimension";
    }
    const std::uint64_t begins = largest_power(s.aux);
    if (begins < 16 || begins < (std::min)(chosen.aux_begins, std::uint64_t{256})) {
      return "bits that begin elsewhere than was said";
    }
    if (x.d_as.count != 1) return "bits of a batch without a step";
  }
  return nullptr;
}

}  // namespace
}  // namespace host_cuda

using namespace host_cuda;

extern "C" {

// --- descriptors ---
cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t made, std::size_t,
                                               cublasComputeType_t compute, cudaDataType_t) {
  const auto lock = hold();
  ++lt().described;
  write(*made,
        lt_steps{magic, compute, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, nullptr, nullptr, 0});
  return lt().answer("steps");
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t of, cublasLtMatmulDescAttributes_t which,
                                              const void* value, std::size_t bytes) {
  const auto lock = hold();
  auto steps = read<lt_steps>(*of);
  if (steps.magic != magic) lt().note("an attribute of what was not made");
  if (lt().deaf.count(which) != 0) return CUBLAS_STATUS_SUCCESS;
  switch (which) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      take(steps.first_as, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
      take(steps.second_as, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      take(steps.epilogue, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      if (steps.bias != nullptr) lt().note("a descriptor that another call has written");
      take(steps.bias, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      take(steps.aux, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      take(steps.aux_stride, value, bytes);
      break;
    default:
      lt().note("an attribute that is not known here");
  }
  write(*of, steps);
  return lt().answer("set");
}
cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t made, std::size_t, cudaDataType type,
                                                 std::uint64_t rows, std::uint64_t columns,
                                                 std::int64_t stride) {
  const auto lock = hold();
  write(*made, lt_layout{magic, type, rows, columns, stride, 1, 0});
  return lt().answer("layout");
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t of,
                                                cublasLtMatrixLayoutAttribute_t which, const void* value,
                                                std::size_t bytes) {
  const auto lock = hold();
  auto layout = read<lt_layout>(*of);
  if (layout.magic != magic) lt().note("an attribute of what was not made");
  if (lt().deaf_to_batches) return CUBLAS_STATUS_SUCCESS;
  switch (which) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      take(layout.count, value, bytes);
      break;
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      take(layout.step, value, bytes);
      break;
    default:
      lt().note("an attribute that is not known here");
  }
  write(*of, layout);
  return lt().answer("set");
}
cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t made, std::size_t) {
  const auto lock = hold();
  ++lt().wishes;
  write(*made, lt_wish{magic, {256, 256, 256, 256}, 0, CUBLASLT_REDUCTION_SCHEME_MASK});
  return lt().answer("wish");
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t of,
                                                    cublasLtMatmulPreferenceAttributes_t which,
                                                    const void* value, std::size_t bytes) {
  const auto lock = hold();
  auto wish = read<lt_wish>(*of);
  if (wish.magic != magic) lt().note("an attribute of what was not made");
  switch (which) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      take(wish.workspace, value, bytes);
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      take(wish.begins[0], value, bytes);
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      take(wish.begins[1], value, bytes);
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      take(wish.begins[2], value, bytes);
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      take(wish.begins[3], value, bytes);
      break;
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      take(wish.sums, value, bytes);
      break;
    default:
      lt().note("an attribute that is not known here");
  }
  write(*of, wish);
  return lt().answer("set");
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* made) {
  const auto lock = hold();
  ++lt().handles;
  if (lt().answer("handle") != CUBLAS_STATUS_SUCCESS) return lt().answer("handle");
  *made = reinterpret_cast<cublasLtHandle_t>(static_cast<std::uintptr_t>(1000 + current()));
  return CUBLAS_STATUS_SUCCESS;
}
// --- products ---
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t with, cublasLtMatmulDesc_t steps,
                                              cublasLtMatrixLayout_t first, cublasLtMatrixLayout_t second,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t wish, int most,
                                              cublasLtMatmulHeuristicResult_t found[], int* count) {
  const auto lock = hold();
  ++lt().heuristics;
  check_handle(with);
  if (lt().answer("choose") != CUBLAS_STATUS_SUCCESS) return lt().answer("choose");
  lt_choice made{current(),
                 read<lt_steps>(*steps),
                 read<lt_layout>(*first),
                 read<lt_layout>(*second),
                 read<lt_layout>(*c),
                 read<lt_layout>(*d),
                 read<lt_wish>(*wish),
                 0,
                 0,
                 lt().workspace,
                 0};
  made.bias_begins = largest_power(made.steps.bias);
  made.aux_begins = largest_power(made.steps.aux);
  if (has_bias(made.steps.epilogue) && made.bias_begins < 16) lt().note("the bias begins anywhere");
  if (has_aux(made.steps.epilogue) && made.aux_begins < 16) lt().note("the bits begin anywhere");
  *count = (std::min)(most, lt().algorithms);
  for (int i = 0; i < *count; ++i) {
    const std::uint64_t id = 77 + lt().choices.size();
    made.rank = i;
    lt().choices.emplace(id, made);
    found[i] = {};
    found[i].algo.data[0] = id;
    found[i].workspaceSize = lt().workspace;
    found[i].state = i < lt().unusable ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
    if (i < lt().unusable) lt().choices.erase(id);
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t with, cublasLtMatmulDesc_t steps, const void* alpha,
                              const void* first, cublasLtMatrixLayout_t first_as, const void* second,
                              cublasLtMatrixLayout_t second_as, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_as, void* d, cublasLtMatrixLayout_t d_as,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t on) {
  const auto lock = hold();
  ++lt().products;
  if (lt().answer("multiply") != CUBLAS_STATUS_SUCCESS) return lt().answer("multiply");
  check_handle(with);
  if (device_of(on) != current()) lt().note("a stream of another device");
  if (*static_cast<const float*>(alpha) != 1) lt().note("an alpha that is not 1");
  const auto at = lt().choices.find(algorithm->data[0]);
  if (at == lt().choices.end()) {
    lt().note("an algorithm that nobody chose");
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const int rank = at->second.rank;
  lt().ranks.push_back(rank);
  if (const auto failing = lt().failing_ranks.find(rank); failing != lt().failing_ranks.end()) {
    return failing->second;
  }
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  if (lt().failing_captures.count(rank) != 0 && cudaStreamIsCapturing(on, &capture) == cudaSuccess &&
      capture != cudaStreamCaptureStatusNone) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const product x{read<lt_steps>(*steps),
                  read<lt_layout>(*first_as),
                  read<lt_layout>(*second_as),
                  read<lt_layout>(*c_as),
                  read<lt_layout>(*d_as),
                  *static_cast<const float*>(beta),
                  first,
                  second,
                  c,
                  d};
  lt().ran.push_back(x.steps.epilogue);
  lt().biases.push_back(x.steps.bias);
  if (const char* const fault = fault_of(x, at->second); fault != nullptr) {
    lt().note(fault);
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const std::size_t needed = at->second.workspace;
  if (needed > 0) {
    if (workspace_bytes < needed || workspace_bytes > at->second.wish.workspace ||
        !holds(workspace, workspace_bytes)) {
      lt().note("the workspace is not the device's");
      return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0) lt().note("the workspace begins anywhere");
  }
  const auto takes = lt().takes.find(rank);
  const int time = takes == lt().takes.end() ? 0 : takes->second;
  const bool in_pieces = (at->second.wish.sums & CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE) != 0;
  const cudaError_t done =
      enqueue(on, [x, in_pieces, time, workspace, used = needed > 0 ? workspace_bytes : 0] {
        if (used > 0) std::memset(workspace, 0xee, used);
        for (std::int32_t i = 0; i < x.d_as.count; ++i) x.run(i, in_pieces);
        pass_time(static_cast<std::uint64_t>(time));
      });
  return done == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
