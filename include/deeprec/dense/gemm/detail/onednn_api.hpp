// The part of oneDNN's C interface that products need, the same for 2.6 and 3.x: describe matrices, create a
// matmul or a reorder, run it on the calling thread.
//
//   onednn_layout      memory layout of a matrix
//   onednn_primitive   a primitive that many threads can run at once, each with its own onednn_run
//
// oneDNN reads OpenMP's number of threads when it describes or creates a primitive, sets the data of a memory
// or executes. Functions that do so take a one_openmp_thread, so they can't be called without one.
#pragma once

#include <oneapi/dnnl/dnnl.h>
#include <strings.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/isa.hpp>
#include <deeprec/dense/gemm/detail/blocked_signals.hpp>
#include <deeprec/dense/gemm/gemm_backend.hpp>

#if DNNL_CPU_RUNTIME == DNNL_RUNTIME_OMP
#  include <deeprec/dense/gemm/detail/one_openmp_thread.hpp>
#endif

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

#if DNNL_CPU_RUNTIME != DNNL_RUNTIME_OMP
struct one_openmp_thread {
  one_openmp_thread() {}  // not trivial, so that variables of it don't warn
  one_openmp_thread(const one_openmp_thread&) = delete;
  one_openmp_thread& operator=(const one_openmp_thread&) = delete;
};
#endif

#if DNNL_VERSION_MAJOR >= 3
using onednn_const_layout = const_dnnl_memory_desc_t;
#else
using onednn_const_layout = const dnnl_memory_desc_t*;
#endif

/// Whether oneDNN's environment variable keeps it below an instruction set: dnnl_set_max_cpu_isa would lift
/// that cap.
inline bool onednn_capped_below(isa which) noexcept {
  const char* cap = std::getenv("ONEDNN_MAX_CPU_ISA");
  if (cap == nullptr) cap = std::getenv("DNNL_MAX_CPU_ISA");
  if (cap == nullptr) return false;
  for (const char* const lower : {"SSE41", "AVX"}) {
    if (strcasecmp(cap, lower) == 0) return true;
  }
  return which > isa::avx2 && strncasecmp(cap, "AVX2", 4) == 0;
}

/// The lowest isa that covers what oneDNN may use in this process. The first call limits oneDNN to
/// active_isa(), unless oneDNN was used before or has a lower cap.
inline isa onednn_isa() noexcept {
  static const isa most = [] {
    if (active_isa() < best_isa() && !onednn_capped_below(active_isa())) {
      if (active_isa() == isa::avx2) dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx2);
      if (active_isa() == isa::avx512) dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core);
    }
    const unsigned has = dnnl_get_effective_cpu_isa();
    const auto holds = [&](dnnl_cpu_isa_t set) { return (has & set) == static_cast<unsigned>(set); };
    if (holds(dnnl_cpu_isa_avx512_core_bf16)) return isa::avx512_bf16;
    return holds(dnnl_cpu_isa_avx512_core) ? isa::avx512 : isa::avx2;
  }();
  return most;
}

/// Whether oneDNN may multiply bf16 by AMX in this process.
inline bool onednn_has_tiles() noexcept {
  static const bool tiles = [] {
    onednn_isa();  // limits oneDNN first
    const unsigned all = dnnl_cpu_isa_avx512_core_amx;
    return (dnnl_get_effective_cpu_isa() & all) == all;
  }();
  return tiles;
}

/// oneDNN's CPU engine, or null where it has none. Lives as long as the process.
inline dnnl_engine_t onednn_engine() noexcept {
  static const dnnl_engine_t engine = [] {
    onednn_isa();  // before anything is made
    dnnl_engine_t made = nullptr;
    return dnnl_engine_create(&made, dnnl_cpu, 0) == dnnl_success ? made : nullptr;
  }();
  return engine;
}

constexpr dnnl_data_type_t onednn_type(gemm_storage storage) noexcept {
  return storage == gemm_storage::f32 ? dnnl_f32 : dnnl_bf16;
}

/// A matrix of rows x columns; element (i, j) is at i * row_step + j * column_stride.
class onednn_layout {
 public:
  onednn_layout() = default;
  onednn_layout(index_t rows, index_t columns, dnnl_data_type_t type, index_t row_step,
                index_t column_stride) noexcept {
    const dnnl_dims_t sizes = {rows, columns};
    const dnnl_dims_t steps = {row_step, column_stride};
#if DNNL_VERSION_MAJOR >= 3
    dnnl_memory_desc_create_with_strides(&desc_, 2, sizes, type, steps);
#else
    made_ = dnnl_memory_desc_init_by_strides(&desc_, 2, sizes, type, steps) == dnnl_success;
#endif
  }
  /// In the layout that the primitive chooses.
  onednn_layout(index_t rows, index_t columns, dnnl_data_type_t type) noexcept {
    const dnnl_dims_t sizes = {rows, columns};
#if DNNL_VERSION_MAJOR >= 3
    dnnl_memory_desc_create_with_tag(&desc_, 2, sizes, type, dnnl_format_tag_any);
#else
    made_ = dnnl_memory_desc_init_by_tag(&desc_, 2, sizes, type, dnnl_format_tag_any) == dnnl_success;
#endif
  }
  /// A copy of a oneDNN descriptor.
  explicit onednn_layout(onednn_const_layout other) noexcept {
    if (other == nullptr) return;
#if DNNL_VERSION_MAJOR >= 3
    dnnl_memory_desc_clone(&desc_, other);
#else
    desc_ = *other;
    made_ = true;
#endif
  }
#if DNNL_VERSION_MAJOR >= 3
  onednn_layout(onednn_layout&& other) noexcept : desc_(std::exchange(other.desc_, nullptr)) {}
  onednn_layout& operator=(onednn_layout&& other) noexcept {
    std::swap(desc_, other.desc_);
    return *this;
  }
  ~onednn_layout() {
    if (desc_ != nullptr) dnnl_memory_desc_destroy(desc_);
  }
  [[nodiscard]] onednn_const_layout get() const noexcept { return desc_; }
  [[nodiscard]] std::size_t bytes() const noexcept {
    return desc_ == nullptr ? 0 : dnnl_memory_desc_get_size(desc_);
  }

 private:
  dnnl_memory_desc_t desc_ = nullptr;
#else
  [[nodiscard]] onednn_const_layout get() const noexcept { return made_ ? &desc_ : nullptr; }
  [[nodiscard]] std::size_t bytes() const noexcept { return made_ ? dnnl_memory_desc_get_size(&desc_) : 0; }

 private:
  dnnl_memory_desc_t desc_{};
  bool made_ = false;
#endif
};

/// oneDNN's handles for one thread that runs a primitive; they point at the caller's memory.
class onednn_run {
 public:
  static constexpr int most = 6;

  onednn_run() = default;
  onednn_run(const onednn_run&) = delete;
  onednn_run& operator=(const onednn_run&) = delete;
  ~onednn_run() {
    for (int i = 0; i < count_; ++i) dnnl_memory_destroy(arguments_[i].memory);
    if (stream_ != nullptr) dnnl_stream_destroy(stream_);
  }
  [[nodiscard]] bool open(const one_openmp_thread&) noexcept {
    return dnnl_stream_create(&stream_, onednn_engine(), dnnl_stream_in_order) == dnnl_success;
  }
  [[nodiscard]] bool add(const one_openmp_thread&, int argument, onednn_const_layout layout) noexcept {
    dnnl_memory_t memory = nullptr;
    if (layout == nullptr || count_ == most ||
        dnnl_memory_create(&memory, layout, onednn_engine(), DNNL_MEMORY_NONE) != dnnl_success) {
      return false;
    }
    arguments_[count_++] = {argument, memory};
    return true;
  }
  /// @param at  one pointer for each argument, in the order of add()
  [[nodiscard]] dnnl_status_t operator()(const one_openmp_thread&, const_dnnl_primitive_t primitive,
                                         const std::array<const void*, most>& at) noexcept {
    for (int i = 0; i < count_; ++i) {
      void* const p = const_cast<void*>(at[static_cast<std::size_t>(i)]);
      if (dnnl_memory_set_data_handle(arguments_[i].memory, p) != dnnl_success) return dnnl_runtime_error;
    }
    return dnnl_primitive_execute(primitive, stream_, count_, arguments_);
  }

 private:
  dnnl_stream_t stream_ = nullptr;
  int count_ = 0;
  dnnl_exec_arg_t arguments_[most]{};
};

/// An argument's number (DNNL_ARG_*) and layout. A run takes pointers in the order of these.
struct onednn_argument {
  int number;
  onednn_layout layout;
};

class onednn_primitive {
 public:
  onednn_primitive() = default;
  onednn_primitive(const onednn_primitive&) = delete;
  onednn_primitive& operator=(const onednn_primitive&) = delete;
  ~onednn_primitive() {
    idle_.clear();
    if (primitive_ != nullptr) dnnl_primitive_destroy(primitive_);
  }

  /// Creates a product; false where oneDNN can't.
  /// @param b  layout of b
  [[nodiscard]] bool make_matmul(const gemm_backend::problem& q, const onednn_layout& b) {
    const one_openmp_thread alone;
    const dnnl_data_type_t in = onednn_type(q.inputs);
    const bool turned = q.a == gemm_operand::transposed;
    arguments_.push_back({DNNL_ARG_SRC, {q.m, q.k, in, turned ? 1 : q.a_stride, turned ? q.a_stride : 1}});
    arguments_.push_back({DNNL_ARG_WEIGHTS, onednn_layout(b.get())});
    arguments_.push_back({DNNL_ARG_DST, {q.m, q.n, onednn_type(q.output), q.c_stride, 1}});
    onednn_layout bias, residual;
    if (q.bias) bias = {1, q.n, dnnl_f32, q.n, 1};
    if (q.residual) residual = {q.m, q.n, dnnl_f32, q.c_stride, 1};

    attributes attr;
    if (!attr.open()) return false;
    int post = 0;
    if (q.accumulates && !attr.add_sum(post)) return false;
    if (q.residual && !attr.add_residual(post, residual)) return false;
    const int residual_place = post - 1;
    if (q.activation != gemm_activation::none && !attr.add_activation(post, q.activation)) return false;
    if (!attr.close()) return false;

    dnnl_primitive_desc_t desc = nullptr;
#if DNNL_VERSION_MAJOR >= 3
    if (dnnl_matmul_primitive_desc_create(&desc, onednn_engine(), arguments_[0].layout.get(),
                                          arguments_[1].layout.get(), bias.get(), arguments_[2].layout.get(),
                                          attr.get()) != dnnl_success) {
      return false;
    }
#else
    dnnl_matmul_desc_t what;
    if (dnnl_matmul_desc_init(&what, arguments_[0].layout.get(), arguments_[1].layout.get(), bias.get(),
                              arguments_[2].layout.get()) != dnnl_success ||
        dnnl_primitive_desc_create(&desc, &what, attr.get(), onednn_engine(), nullptr) != dnnl_success) {
      return false;
    }
#endif
    // NOLINTBEGIN(performance-move-const-arg): layouts of other versions own memory
    if (q.bias) arguments_.push_back({DNNL_ARG_BIAS, std::move(bias)});
    if (q.residual) {
      arguments_.push_back(
          {DNNL_ARG_ATTR_MULTIPLE_POST_OP(residual_place) | DNNL_ARG_SRC_1, std::move(residual)});
    }
    // NOLINTEND(performance-move-const-arg)
    arguments_[1].layout = onednn_layout(dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 0));
    return finish(alone, desc);
  }

  /// Copies one layout to another.
  [[nodiscard]] bool make_reorder(const onednn_layout& from, const onednn_layout& to) {
    const one_openmp_thread alone;
    attributes attr;
    if (!attr.open() || !attr.close()) return false;
    dnnl_primitive_desc_t desc = nullptr;
    if (dnnl_reorder_primitive_desc_create(&desc, from.get(), onednn_engine(), to.get(), onednn_engine(),
                                           attr.get()) != dnnl_success) {
      return false;
    }
    arguments_.push_back({DNNL_ARG_FROM, onednn_layout(from.get())});
    arguments_.push_back({DNNL_ARG_TO, onednn_layout(to.get())});
    return finish(alone, desc);
  }

  /// Runs on pointers in the order: matmul a, b, c, [bias], [residual], scratch; reorder from, to, scratch.
  /// Thread-safe.
  [[nodiscard]] status run(std::array<const void*, onednn_run::most> at) const {
    const one_openmp_thread alone;
    std::unique_ptr<onednn_run> with = take(alone);
    if (with == nullptr) return {errc::out_of_memory, "gemm: oneDNN"};
    dnnl_status_t answer = dnnl_runtime_error;
    {
      const blocked_signals none(loses_its_stack_);
      answer = (*with)(alone, primitive_, at);
    }
    {
      const std::lock_guard lock(mutex_);
      idle_.push_back(std::move(with));
    }
    if (answer == dnnl_success) return {};
    if (answer == dnnl_out_of_memory) return {errc::out_of_memory, "gemm: oneDNN"};
    return {errc::unsupported, "gemm: oneDNN refused to run the product"};
  }

  [[nodiscard]] std::size_t scratch_bytes() const noexcept { return scratch_.bytes(); }
  [[nodiscard]] const char* implementation() const noexcept { return implementation_; }
  /// The layout that b must have.
  [[nodiscard]] const onednn_layout& b_layout() const noexcept { return arguments_[1].layout; }

 private:
  class attributes {
   public:
    attributes() = default;
    attributes(const attributes&) = delete;
    attributes& operator=(const attributes&) = delete;
    ~attributes() {
      if (post_ != nullptr) dnnl_post_ops_destroy(post_);
      if (attr_ != nullptr) dnnl_primitive_attr_destroy(attr_);
    }
    [[nodiscard]] bool open() noexcept {
      return dnnl_primitive_attr_create(&attr_) == dnnl_success &&
             dnnl_primitive_attr_set_scratchpad_mode(attr_, dnnl_scratchpad_mode_user) == dnnl_success &&
             dnnl_post_ops_create(&post_) == dnnl_success;
    }
    [[nodiscard]] bool close() noexcept {
      return dnnl_primitive_attr_set_post_ops(attr_, post_) == dnnl_success;
    }
    [[nodiscard]] bool add_sum(int& count) noexcept {
      ++count;
#if DNNL_VERSION_MAJOR >= 3
      return dnnl_post_ops_append_sum(post_, 1.0F, 0, dnnl_data_type_undef) == dnnl_success;
#else
      return dnnl_post_ops_append_sum(post_, 1.0F) == dnnl_success;
#endif
    }
    [[nodiscard]] bool add_residual(int& count, const onednn_layout& layout) noexcept {
      ++count;
      return dnnl_post_ops_append_binary(post_, dnnl_binary_add, layout.get()) == dnnl_success;
    }
    [[nodiscard]] bool add_activation(int& count, gemm_activation activation) noexcept {
      ++count;
      const dnnl_alg_kind_t kind = activation == gemm_activation::gelu        ? dnnl_eltwise_gelu_erf
                                   : activation == gemm_activation::gelu_tanh ? dnnl_eltwise_gelu_tanh
                                   : activation == gemm_activation::relu      ? dnnl_eltwise_relu
                                                                              : dnnl_eltwise_logistic;
#if DNNL_VERSION_MAJOR >= 3
      return dnnl_post_ops_append_eltwise(post_, kind, 0.0F, 0.0F) == dnnl_success;
#else
      return dnnl_post_ops_append_eltwise(post_, 1.0F, kind, 0.0F, 0.0F) == dnnl_success;
#endif
    }
    [[nodiscard]] const_dnnl_primitive_attr_t get() const noexcept { return attr_; }

   private:
    dnnl_primitive_attr_t attr_ = nullptr;
    dnnl_post_ops_t post_ = nullptr;
  };

  [[nodiscard]] bool finish(const one_openmp_thread&, dnnl_primitive_desc_t desc) {
    const char* name = nullptr;
    dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, &name);
    implementation_ = name == nullptr ? "unknown" : name;
    loses_its_stack_ = std::strstr(implementation_, "gemm:jit") != nullptr;
    scratch_ = onednn_layout(dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0));
    const bool made = dnnl_primitive_create(&primitive_, desc) == dnnl_success;
    // The name is a string literal in oneDNN, and outlives the descriptor.
    dnnl_primitive_desc_destroy(desc);
    return made;
  }

  [[nodiscard]] std::unique_ptr<onednn_run> take(const one_openmp_thread& alone) const {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        std::unique_ptr<onednn_run> found = std::move(idle_.back());
        idle_.pop_back();
        return found;
      }
    }
    auto made = std::make_unique<onednn_run>();
    bool complete = made->open(alone);
    for (const onednn_argument& a : arguments_) {
      complete = complete && made->add(alone, a.number, a.layout.get());
    }
    complete = complete && (scratch_.bytes() == 0 || made->add(alone, DNNL_ARG_SCRATCHPAD, scratch_.get()));
    return complete ? std::move(made) : nullptr;
  }

  dnnl_primitive_t primitive_ = nullptr;
  std::vector<onednn_argument> arguments_;
  onednn_layout scratch_;
  const char* implementation_ = "";
  // Up to oneDNN 3.11 these products point the stack register into the heap, where the frame of a signal
  // handler overwrites data (oneDNN issue 4845).
  bool loses_its_stack_ = false;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<onednn_run>> idle_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
