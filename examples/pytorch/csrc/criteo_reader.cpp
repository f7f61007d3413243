// torch.classes.deeprec.CriteoReader: the batches of Criteo's files as tensors, without a copy.
#include <ATen/ATen.h>
#include <ATen/DLConvertor.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <deeprec/interop/dlpack.hpp>

#include "call.hpp"
#include "criteo_ahead.hpp"

namespace deeprec_torch {
namespace {

using at::Tensor;
using std::int64_t;

/// A batch that tensors have. Its pool gets it back from the last of them.
class batch_in_use {
 public:
  batch_in_use(std::unique_ptr<criteo_batch> batch, std::shared_ptr<batch_pool> pool)
      : batch_(std::move(batch)), pool_(std::move(pool)) {}
  ~batch_in_use() { pool_->give_back(std::move(batch_)); }
  batch_in_use(const batch_in_use&) = delete;
  batch_in_use& operator=(const batch_in_use&) = delete;

  criteo_batch& operator*() const noexcept { return *batch_; }

 private:
  std::unique_ptr<criteo_batch> batch_;
  std::shared_ptr<batch_pool> pool_;
};

/// What a tensor's storage keeps: the batch, and the shape that its DLManagedTensor points to.
template <class T>
struct managed_matrix {
  managed_matrix(const deeprec::matrix_view<T>& view, std::shared_ptr<batch_in_use> of)
      : matrix(deeprec::to_dlpack<DLTensor>(view)), batch(std::move(of)) {
    managed.dl_tensor = *matrix;
    managed.manager_ctx = this;
    managed.deleter = [](DLManagedTensor* self) { delete static_cast<managed_matrix*>(self->manager_ctx); };
  }

  deeprec::dlpack_matrix<DLTensor> matrix;
  std::shared_ptr<batch_in_use> batch;
  DLManagedTensor managed{};
};

template <class T>
Tensor as_tensor(const deeprec::matrix_view<T>& view, const std::shared_ptr<batch_in_use>& batch,
                 int dimensions) {
  auto made = std::make_unique<managed_matrix<T>>(view, batch);
  DLTensor& tensor = made->managed.dl_tensor;
  const int left_out = tensor.ndim - dimensions;  // of the first ones, of size 1
  tensor.ndim = dimensions;
  tensor.shape += left_out;
  tensor.strides += left_out;
  return at::fromDLPack(&made.release()->managed);
}

deeprec::criteo_format format_of(const std::vector<int64_t>& rows, const std::string& labels,
                                 const std::string& tokens, double missing_dense) {
  using deeprec::label_column;
  using deeprec::token_use;
  deeprec::criteo_format made;
  TORCH_CHECK_VALUE(rows.size() == made.rows.size(), "CriteoReader: rows must be of ", made.rows.size(),
                    " tables (are ", rows.size(), ")");
  TORCH_CHECK_VALUE(std::ranges::all_of(rows, [](int64_t of_one) { return of_one > 0; }),
                    "CriteoReader: rows must be above 0 (are ", rows, ")");
  TORCH_CHECK_VALUE(labels == "present" || labels == "by_fields" || labels == "absent",
                    "CriteoReader: labels must be present, by_fields or absent (is ", labels, ")");
  TORCH_CHECK_VALUE(tokens == "hashed" || tokens == "as_is",
                    "CriteoReader: tokens must be hashed or as_is (is ", tokens, ")");
  std::ranges::copy(rows, made.rows.begin());
  made.labels = labels == "present"     ? label_column::present
                : labels == "by_fields" ? label_column::by_fields
                                        : label_column::absent;
  made.tokens = tokens == "hashed" ? token_use::hashed : token_use::as_is;
  made.missing_dense = static_cast<float>(missing_dense);
  return made;
}

ahead_options options_of(int64_t batch_size, int64_t threads, int64_t prefetch, int64_t max_bytes,
                         const std::string& on_malformed) {
  constexpr int64_t most = int64_t{1} << 30;
  const auto check_range = [](const char* name, int64_t value, int64_t first, int64_t last) {
    TORCH_CHECK_VALUE(first <= value && value <= last, "CriteoReader: ", name, " must be from ", first,
                      " to ", last, " (is ", value, ")");
  };
  check_range("batch_size", batch_size, 1, most);
  check_range("threads", threads, 0, 4096);
  check_range("prefetch", prefetch, 0, 65536);
  const auto one = static_cast<int64_t>(criteo_batch::bytes(batch_size));
  if (max_bytes != 0)
    check_range("max_bytes, with room for a batch,", max_bytes, one, std::numeric_limits<int64_t>::max());
  TORCH_CHECK_VALUE(on_malformed == "fault" || on_malformed == "skip",
                    "CriteoReader: on_malformed must be fault or skip (is ", on_malformed, ")");
  return {.batch_size = batch_size,
          .threads = static_cast<int>(threads),
          .prefetch = static_cast<std::size_t>(prefetch),
          .max_bytes = static_cast<std::size_t>(max_bytes),
          .on_malformed = on_malformed == "skip" ? deeprec::malformed::drop : deeprec::malformed::fault};
}

/// PyTorch calls the methods of a class without Python's lock: other threads run while next() waits.
class criteo_reader : public torch::CustomClassHolder {
 public:
  using tensors = std::tuple<Tensor, Tensor, Tensor>;

  criteo_reader(std::vector<std::string> paths, const std::vector<int64_t>& rows, const std::string& labels,
                const std::string& tokens, double missing_dense, int64_t batch_size, int64_t threads,
                int64_t prefetch, int64_t max_bytes, const std::string& on_malformed) {
    try {
      ahead_ =
          std::make_unique<criteo_ahead>(std::move(paths), format_of(rows, labels, tokens, missing_dense),
                                         options_of(batch_size, threads, prefetch, max_bytes, on_malformed));
    } catch (const deeprec::error& fault) {
      raise(fault.code(), fault.what());
    }
  }
  ~criteo_reader() override {
    // In a forked process there are no threads to end.
    if (is_copy()) static_cast<void>(ahead_.release());
  }

  /// Labels (B), dense (B, 13) and ids (26, B) of the next rows; nothing at the end.
  std::optional<tensors> next() {
    check_process("next");
    auto read = ahead_->next();
    raise_on_fault(read);
    if (read.value() == nullptr) return std::nullopt;
    const auto batch = std::make_shared<batch_in_use>(std::move(read).value(), ahead_->batches());
    criteo_batch& rows = **batch;
    return tensors(as_tensor(rows.labels(), batch, 1), as_tensor(rows.dense(), batch, 2),
                   as_tensor(rows.ids(), batch, 2));
  }
  /// The number of the malformed lines that were skipped, and what is wrong with the first.
  std::tuple<int64_t, std::string> skipped() {
    check_process("skipped");
    criteo_ahead::skipped_lines lines = ahead_->skipped();
    return {lines.count, std::move(lines.first)};
  }
  void close() {
    if (!is_copy()) ahead_->close();
  }

 private:
  [[nodiscard]] bool is_copy() const { return ahead_ != nullptr && ahead_->batches()->is_copy(); }
  void check_process(const char* method) const {
    TORCH_CHECK(!is_copy(), "CriteoReader.", method, ": the process must be the one that made the reader ",
                "(is forked off it)");
  }

  std::unique_ptr<criteo_ahead> ahead_;
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(deeprec, m) {
  m.class_<criteo_reader>("CriteoReader")
      .def(torch::init<std::vector<std::string>, const std::vector<int64_t>&, const std::string&,
                       const std::string&, double, int64_t, int64_t, int64_t, int64_t, const std::string&>())
      .def("next", &criteo_reader::next)
      .def("skipped", &criteo_reader::skipped)
      .def("close", &criteo_reader::close);
}

}  // namespace deeprec_torch
