// A cuBLASLt that multiplies in plain loops what its descriptors say, on a device whose memory is
// the host's.
//
//   fake_cublaslt    the calls of detail::cublaslt_api
//   fake_stream      an executor with scratch, whose work is done when it is enqueued
//   lt()             what was asked, what shall fail, and the first thing that cuBLASLt would not
//   allow
//
// Column-major, with transposes, leading dimensions, batches, beta, epilogues and their bits as the
// header of cuBLASLt describes them. An algorithm serves the descriptors that it was chosen for,
// and pointers as well aligned as was said then. An order of the bits is assumed: the lowest first.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <deeprec/dense/cuda_cublaslt_gemm.hpp>
#include <deeprec/dense/tf32.hpp>

namespace deeprec_test {

struct fake_backend {};

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
};

/// What an algorithm was chosen for.
struct lt_choice {
  int device;
  lt_steps steps;
  lt_layout first, second, c, d;
  lt_wish wish;
  std::uint64_t bias_begins, aux_begins;
  std::size_t workspace;  // that it needs
};

struct fake_lt {
  std::mutex mutex;
  int device = 0;
  int handles = 0, described = 0, wishes = 0, heuristics = 0, products = 0, copies = 0, zeroed = 0;
  std::string fault;  // the first

  // On demand.
  std::map<std::string, cublasStatus_t>
      failing;  // by call: handle, steps, set, layout, wish, choose, multiply
  std::map<std::string, deeprec::status> refusing;  // device, copy, zero, scratch
  std::set<int> deaf;                               // attributes of steps that are not heard
  bool deaf_to_batches = false;
  int algorithms = 2, unusable = 0;  // found, and how many of them can't be used
  std::size_t workspace = 0;         // what an algorithm wants

  std::map<std::uint64_t, lt_choice> choices;
  std::vector<cublasLtEpilogue_t> ran;
  std::vector<const void*> biases;  // of each product

  void note(const char* what) {
    if (fault.empty()) fault = what;
  }
  cublasStatus_t answer(const char* call) const {
    const auto at = failing.find(call);
    return at == failing.end() ? CUBLAS_STATUS_SUCCESS : at->second;
  }
  deeprec::status says(const char* call) const {
    const auto at = refusing.find(call);
    return at == refusing.end() ? deeprec::status{} : at->second;
  }
};
inline fake_lt& lt() {
  static fake_lt it;
  return it;
}
/// A device that nobody has used.
inline void fresh_device() {
  fake_lt& it = lt();
  const int next = it.device + 1;
  it.handles = it.described = it.wishes = it.heuristics = it.products = it.copies = it.zeroed = 0;
  it.fault.clear();
  it.failing.clear();
  it.refusing.clear();
  it.deaf.clear();
  it.deaf_to_batches = false;
  it.algorithms = 2;
  it.unusable = 0;
  it.workspace = 0;
  it.ran.clear();
  it.biases.clear();
  it.device = next;
}

/// Runs at once. Its scratch is exactly what was asked for, full of NaN, with a guard behind it.
class fake_stream {
 public:
  using backend = fake_backend;
  static constexpr std::size_t guard = 512;

  [[nodiscard]] cudaStream_t get() noexcept { return reinterpret_cast<cudaStream_t>(this); }
  [[nodiscard]] deeprec::status scratch(std::size_t bytes, std::byte*& out) {
    const std::lock_guard lock(lt().mutex);
    if (const deeprec::status s = lt().says("scratch"); !s) return s;
    blocks_.emplace_back(bytes + guard + 256, std::byte{0xff});
    std::byte* const first = blocks_.back().data();
    out = first + (256 - reinterpret_cast<std::uintptr_t>(first) % 256) % 256;
    bytes_ = bytes;
    begin_ = out;
    return {};
  }
  [[nodiscard]] std::size_t scratch_bytes() const noexcept { return bytes_; }
  [[nodiscard]] bool holds(const void* p, std::size_t bytes) const {
    const auto* const at = static_cast<const std::byte*>(p);
    return begin_ != nullptr && at >= begin_ && at + bytes <= begin_ + bytes_;
  }
  [[nodiscard]] bool guard_intact() const {
    return begin_ == nullptr || std::all_of(begin_ + bytes_, begin_ + bytes_ + guard,
                                            [](std::byte b) { return b == std::byte{0xff}; });
  }

 private:
  std::vector<std::vector<std::byte>> blocks_;
  std::byte* begin_ = nullptr;
  std::size_t bytes_ = 0;
};
static_assert(deeprec::Executor<fake_stream>);

class fake_cublaslt {
  static constexpr std::uint32_t magic = 0x17ac0de;

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
  static bool take(T& to, const void* value, std::size_t bytes) {
    if (bytes != sizeof(T)) {
      lt().note("an attribute of another size");
      return false;
    }
    std::memcpy(&to, value, bytes);
    return true;
  }

 public:
  // --- run time ---
  static deeprec::status device(int& which) {
    which = lt().device;
    return lt().says("device");
  }
  static deeprec::status copy(void* to, const void* from, std::size_t bytes, cudaStream_t) {
    const std::lock_guard lock(lt().mutex);
    if (const deeprec::status s = lt().says("copy"); !s) return s;
    ++lt().copies;
    std::memcpy(to, from, bytes);
    return {};
  }
  static deeprec::status zero(void* to, std::size_t bytes, cudaStream_t) {
    const std::lock_guard lock(lt().mutex);
    if (const deeprec::status s = lt().says("zero"); !s) return s;
    ++lt().zeroed;
    std::memset(to, 0, bytes);
    return {};
  }

  // --- descriptors ---
  static cublasStatus_t make(cublasLtMatmulDescOpaque_t& made, cublasComputeType_t compute) {
    const std::lock_guard lock(lt().mutex);
    ++lt().described;
    write(made,
          lt_steps{magic, compute, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, nullptr, nullptr, 0});
    return lt().answer("steps");
  }
  static cublasStatus_t set(cublasLtMatmulDescOpaque_t& of, cublasLtMatmulDescAttributes_t which,
                            const void* value, std::size_t bytes) {
    const std::lock_guard lock(lt().mutex);
    auto steps = read<lt_steps>(of);
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
    write(of, steps);
    return lt().answer("set");
  }
  static cublasStatus_t make(cublasLtMatrixLayoutOpaque_t& made, cudaDataType_t type, std::uint64_t rows,
                             std::uint64_t columns, std::int64_t stride) {
    const std::lock_guard lock(lt().mutex);
    write(made, lt_layout{magic, type, rows, columns, stride, 1, 0});
    return lt().answer("layout");
  }
  static cublasStatus_t set(cublasLtMatrixLayoutOpaque_t& of, cublasLtMatrixLayoutAttribute_t which,
                            const void* value, std::size_t bytes) {
    const std::lock_guard lock(lt().mutex);
    auto layout = read<lt_layout>(of);
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
    write(of, layout);
    return lt().answer("set");
  }
  static cublasStatus_t make(cublasLtMatmulPreferenceOpaque_t& made) {
    const std::lock_guard lock(lt().mutex);
    ++lt().wishes;
    write(made, lt_wish{magic, {256, 256, 256, 256}, 0});
    return lt().answer("wish");
  }
  static cublasStatus_t set(cublasLtMatmulPreferenceOpaque_t& of, cublasLtMatmulPreferenceAttributes_t which,
                            const void* value, std::size_t bytes) {
    const std::lock_guard lock(lt().mutex);
    auto wish = read<lt_wish>(of);
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
      default:
        lt().note("an attribute that is not known here");
    }
    write(of, wish);
    return lt().answer("set");
  }

  // --- products ---
  static cublasStatus_t make(cublasLtHandle_t& made) {
    const std::lock_guard lock(lt().mutex);
    ++lt().handles;
    if (lt().answer("handle") != CUBLAS_STATUS_SUCCESS) return lt().answer("handle");
    made = reinterpret_cast<cublasLtHandle_t>(static_cast<std::uintptr_t>(1000 + lt().device));
    return CUBLAS_STATUS_SUCCESS;
  }
  static cublasStatus_t choose(cublasLtHandle_t with, deeprec::detail::cublaslt_product& p,
                               cublasLtMatmulPreferenceOpaque_t& wish, int most,
                               cublasLtMatmulHeuristicResult_t* found, int& count) {
    const std::lock_guard lock(lt().mutex);
    ++lt().heuristics;
    if (reinterpret_cast<std::uintptr_t>(with) != static_cast<std::uintptr_t>(1000 + lt().device)) {
      lt().note("a handle of another device");
    }
    if (lt().answer("choose") != CUBLAS_STATUS_SUCCESS) return lt().answer("choose");
    lt_choice made{lt().device,
                   read<lt_steps>(p.steps),
                   read<lt_layout>(p.first),
                   read<lt_layout>(p.second),
                   read<lt_layout>(p.c),
                   read<lt_layout>(p.d),
                   read<lt_wish>(wish),
                   0,
                   0,
                   lt().workspace};
    made.bias_begins = largest_power(made.steps.bias);
    made.aux_begins = largest_power(made.steps.aux);
    if (has_bias(made.steps.epilogue) && made.bias_begins < 16) lt().note("the bias begins anywhere");
    if (has_aux(made.steps.epilogue) && made.aux_begins < 16) lt().note("the bits begin anywhere");
    count = (std::min)(most, lt().algorithms);
    for (int i = 0; i < count; ++i) {
      const std::uint64_t id = 77 + lt().choices.size();
      lt().choices.emplace(id, made);
      found[i] = {};
      found[i].algo.data[0] = id;
      found[i].workspaceSize = lt().workspace;
      found[i].state = i < lt().unusable ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
      if (i < lt().unusable) lt().choices.erase(id);
    }
    return CUBLAS_STATUS_SUCCESS;
  }
  static cublasStatus_t multiply(cublasLtHandle_t with, deeprec::detail::cublaslt_product& p, float beta,
                                 const void* first, const void* second, const void* c, void* d,
                                 const cublasLtMatmulAlgo_t& algorithm, void* workspace,
                                 std::size_t workspace_bytes, cudaStream_t on) {
    const std::lock_guard lock(lt().mutex);
    ++lt().products;
    if (lt().answer("multiply") != CUBLAS_STATUS_SUCCESS) return lt().answer("multiply");
    if (reinterpret_cast<std::uintptr_t>(with) != static_cast<std::uintptr_t>(1000 + lt().device)) {
      lt().note("a handle of another device");
    }
    const auto at = lt().choices.find(algorithm.data[0]);
    if (at == lt().choices.end()) {
      lt().note("an algorithm that nobody chose");
      return CUBLAS_STATUS_INVALID_VALUE;
    }
    const product x{read<lt_steps>(p.steps),
                    read<lt_layout>(p.first),
                    read<lt_layout>(p.second),
                    read<lt_layout>(p.c),
                    read<lt_layout>(p.d),
                    beta,
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
    if (const std::size_t needed = at->second.workspace; needed > 0) {
      auto& stream = *reinterpret_cast<fake_stream*>(on);
      if (workspace_bytes < needed || workspace_bytes > at->second.wish.workspace ||
          !stream.holds(workspace, workspace_bytes)) {
        lt().note("the workspace is not the stream's");
        return CUBLAS_STATUS_INVALID_VALUE;
      }
      if (reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0) lt().note("the workspace begins anywhere");
      std::memset(workspace, 0xee, workspace_bytes);
    }
    for (std::int32_t i = 0; i < x.d_as.count; ++i) x.run(i);
    return CUBLAS_STATUS_SUCCESS;
  }

 private:
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
    void run(std::int32_t batch) const {
      const bool grad_b = steps.epilogue == CUBLASLT_EPILOGUE_BGRADB;
      const bool sums = steps.epilogue == CUBLASLT_EPILOGUE_DRELU_BGRAD;
      std::vector<double> gradient(grad_b ? d_as.columns : sums ? d_as.rows : 0, 0.0);
      for (std::uint64_t j = 0; j < d_as.columns; ++j) {
        auto* const bits =
            static_cast<unsigned char*>(steps.aux) + static_cast<std::int64_t>(j) * steps.aux_stride / 8;
        if (steps.epilogue == CUBLASLT_EPILOGUE_RELU_AUX ||
            steps.epilogue == CUBLASLT_EPILOGUE_RELU_AUX_BIAS) {
          std::memset(bits, 0xa5,
                      static_cast<std::size_t>(steps.aux_stride / 8));  // the row is the writer's
        }
        for (std::uint64_t p = 0; grad_b && p < k(); ++p) {
          gradient[j] += steps.second_as == CUBLAS_OP_N ? value(second, second_as, batch, p, j)
                                                        : value(second, second_as, batch, j, p);
        }
        for (std::uint64_t i = 0; i < d_as.rows; ++i) {
          double x = 0;
          for (std::uint64_t p = 0; p < k(); ++p) {
            const double l = steps.first_as == CUBLAS_OP_N ? value(first, first_as, batch, i, p)
                                                           : value(first, first_as, batch, p, i);
            const double r = steps.second_as == CUBLAS_OP_N ? value(second, second_as, batch, p, j)
                                                            : value(second, second_as, batch, j, p);
            x += factor(l) * factor(r);
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
      const auto with_bias = [&] {
        return x + static_cast<double>(static_cast<const float*>(steps.bias)[i]);
      };
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

  static std::uint64_t largest_power(const void* p) {
    const std::uint64_t bits = reinterpret_cast<std::uintptr_t>(p) | 4096U;
    return bits & (~bits + 1);
  }
  static bool has_bias(cublasLtEpilogue_t e) {
    return e == CUBLASLT_EPILOGUE_BIAS || e == CUBLASLT_EPILOGUE_RELU_BIAS ||
           e == CUBLASLT_EPILOGUE_RELU_AUX_BIAS || e == CUBLASLT_EPILOGUE_GELU_BIAS ||
           e == CUBLASLT_EPILOGUE_DRELU_BGRAD || e == CUBLASLT_EPILOGUE_BGRADB;
  }
  static bool has_aux(cublasLtEpilogue_t e) {
    return e == CUBLASLT_EPILOGUE_RELU_AUX || e == CUBLASLT_EPILOGUE_RELU_AUX_BIAS ||
           e == CUBLASLT_EPILOGUE_DRELU || e == CUBLASLT_EPILOGUE_DRELU_BGRAD;
  }
  static bool same(const lt_layout& a, const lt_layout& b) {
    return a.type == b.type && a.rows == b.rows && a.columns == b.columns && a.stride == b.stride &&
           a.count == b.count && a.step == b.step;
  }
  static const char* fault_of(const product& x, const lt_choice& chosen) {
    const lt_steps& s = x.steps;
    if (chosen.device != lt().device) return "an algorithm of another device";
    if (s.compute != chosen.steps.compute || s.first_as != chosen.steps.first_as ||
        s.second_as != chosen.steps.second_as || s.epilogue != chosen.steps.epilogue ||
        s.aux_stride != chosen.steps.aux_stride || !same(x.first_as, chosen.first) ||
        !same(x.second_as, chosen.second) || !same(x.c_as, chosen.c) || !same(x.d_as, chosen.d)) {
      return "an algorithm that was chosen for another product";
    }
    if (x.first_as.type != x.second_as.type || x.c_as.type != x.d_as.type)
      return "types that are not combined";
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
};

}  // namespace deeprec_test

namespace deeprec { inline namespace DEEPREC_ABI {

template <>
struct detail::gemm_space<deeprec_test::fake_backend> {
  using type = device_space;
};

}}  // namespace deeprec::DEEPREC_ABI

namespace deeprec_test {

template <class Backends, class... Args>
deeprec::status gemm_on(fake_backend, const Args&... args) {
  return deeprec::detail::cublaslt_backend<fake_cublaslt>::run<Backends>(args...);
}

}  // namespace deeprec_test
