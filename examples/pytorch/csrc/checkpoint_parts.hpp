// What checkpoints have of a collection: its tables, dense tensors beside them, and numbers.
//
//   growing tables     by their names
//   dense tables       NAME, and NAME/state
//   dense tensors      by the names that the caller has for them: rows (first dimension) of the rest
//   numbers            "collection, step" (of the next step), "collection, learning rate", "NAME, seed"
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/status.hpp>
#include <deeprec/embedding/files/named_table.hpp>

#include "call.hpp"
#include "growing.hpp"
#include "tables.hpp"
#include "tensors.hpp"

namespace deeprec_torch {

/// A dense tensor with a name, and the memory that it had when it was added.
class named_tensor {
 public:
  named_tensor(std::string name, at::Tensor tensor)
      : name_(std::move(name)), tensor_(std::move(tensor)), memory_(tensor_.storage()) {}

  /// @error ValueError, NotImplementedError: what no file has
  [[nodiscard]] static named_tensor checked(const std::string& name, const at::Tensor& tensor) {
    check_on_host(tensor, name.c_str());
    TORCH_CHECK_VALUE(format_of(tensor.scalar_type()) != nullptr, "deeprec: ", name,
                      " must be float32, float16, bfloat16, float64, int64, int32 or uint8 (is ",
                      at::toString(tensor.scalar_type()), ")");
    TORCH_CHECK_VALUE(tensor.is_contiguous() && tensor.numel() > 0, "deeprec: ", name,
                      " must be contiguous and not empty (is ", tensor.sizes(), " with strides ",
                      tensor.strides(), ")");
    return {name, tensor};
  }

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] bool is_same(const named_tensor& other) const {
    return name_ == other.name_ && tensor_.const_data_ptr() == other.tensor_.const_data_ptr() &&
           tensor_.scalar_type() == other.tensor_.scalar_type() && tensor_.sizes() == other.tensor_.sizes();
  }
  [[nodiscard]] deeprec::named_table table() const {
    const index_t rows = tensor_.dim() > 1 ? tensor_.size(0) : 1;
    const index_t width = tensor_.numel() / rows;
    const index_t bytes = width * static_cast<index_t>(tensor_.element_size());
    return {{name_, format_of(tensor_.scalar_type()), rows, width, bytes, bytes, 0},
            static_cast<std::byte*>(const_cast<void*>(tensor_.const_data_ptr())),
            0};
  }

 private:
  static const char* format_of(at::ScalarType type) {
    switch (type) {
      case at::kFloat:
        return "f32";
      case at::kHalf:
        return "f16";
      case at::kBFloat16:
        return "bf16";
      case at::kDouble:
        return "f64";
      case at::kLong:
        return "i64";
      case at::kInt:
        return "i32";
      case at::kByte:
        return "u8";
      default:
        return nullptr;
    }
  }

  std::string name_;
  at::Tensor tensor_;
  c10::Storage memory_;  // stays where the tensor gets another one
};

inline std::vector<named_tensor> named_tensors(const std::vector<std::string>& names,
                                               const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK_VALUE(names.size() == tensors.size(), "deeprec: dense tensors must have a name each (are ",
                    tensors.size(), " with ", names.size(), ")");
  std::vector<named_tensor> made;
  for (std::size_t i = 0; i < names.size(); ++i) made.push_back(named_tensor::checked(names[i], tensors[i]));
  return made;
}

/// The tables of a collection, which stay while it exists.
class collection_parts {
 public:
  static constexpr const char* step_number = "collection, step";
  static constexpr const char* rate_number = "collection, learning rate";

  explicit collection_parts(std::shared_ptr<tables> of) : all_(std::move(of)) {}

  /// Adds all tables to a checkpoint_folder or a checkpoint_reader.
  template <class Files>
  void add_to(Files& files) {
    std::vector<std::shared_ptr<const void>> uses;
    for (const auto& one : all_->list()) {
      const std::string& name = one->config().name;
      if (auto* const grows = dynamic_cast<growing*>(one.get())) {
        uses.push_back(grows->in_use());
        add(name, [&] { return grows->add_to(files); });
      } else {
        std::vector<deeprec::named_table> parts;
        static_cast<dense&>(*one).name_parts(parts);
        for (deeprec::named_table& part : parts) add(name, [&] { return files.add(std::move(part)); });
      }
    }
    uses_ = std::move(uses);
  }
  template <class Add>
  static void add(const std::string& name, const Add& add_one) {
    const deeprec::status done = raising(add_one);
    if (!done) raise(done.code(), "deeprec: table " + name + ": " + done.message());
  }

  void put_numbers(std::vector<deeprec::named_number>& numbers) const {
    numbers.push_back({step_number, static_cast<index_t>(all_->options.step)});
    numbers.push_back({rate_number, all_->options.learning_rate});
    each_growing([&](growing& one) {
      numbers.push_back({growing_file::seed_name(one.config().name), static_cast<index_t>(one.seed())});
    });
  }
  /// Takes what put_numbers put, and leaves the numbers of the caller.
  void take_numbers(deeprec::training_state& state) const {
    // Of a file that another program wrote: as many steps as it says.
    all_->options.step = state.whole(step_number).value_or(static_cast<std::int64_t>(state.step) + 1);
    all_->options.learning_rate = state.real(rate_number).value_or(all_->options.learning_rate);
    const auto drop = [&](const std::string& name) {
      std::erase_if(state.numbers, [&](const auto& number) { return number.name == name; });
    };
    each_growing([&](growing& one) {
      const std::string name = growing_file::seed_name(one.config().name);
      one.set_seed(static_cast<std::uint64_t>(state.whole(name).value_or(static_cast<index_t>(one.seed()))));
      drop(name);
    });
    drop(step_number);
    drop(rate_number);
  }

 private:
  template <class F>
  void each_growing(const F& f) const {
    for (const auto& one : all_->list()) {
      if (auto* const grows = dynamic_cast<growing*>(one.get())) f(*grows);
    }
  }

  std::shared_ptr<tables> all_;
  std::vector<std::shared_ptr<const void>> uses_;
};

}  // namespace deeprec_torch
