// What checkpoints have of a collection: its tables, dense tensors beside them, and numbers.
//
//   growing tables     by their names
//   dense tables       NAME, and NAME/state
//   dense tensors      by the names that the caller has for them: rows (first dimension) of the rest
//   numbers            "collection, step" (of the next step), "collection, learning rate", "NAME, seed",
//                      "collection, optimizer" (number_of_rule; older files have none)
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <ranges>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <deeprec/core/status.hpp>
#include <deeprec/embedding/checkpoints/detail/folder_files.hpp>
#include <deeprec/embedding/files/named_table.hpp>
#include <deeprec/embedding/files/table_file.hpp>

#include "call.hpp"
#include "growing.hpp"
#include "rules.hpp"
#include "tables.hpp"
#include "tensors.hpp"

namespace deeprec_torch {

/// A dense tensor, and memory for its values that stays where it is: files are written from there and read
/// into it.
class staged_tensor {
 public:
  staged_tensor(std::string name, at::Tensor tensor) : name_(std::move(name)), tensor_(std::move(tensor)) {
    check_on_host(tensor_, name_.c_str());
    TORCH_CHECK_VALUE(
        format_of(tensor_.scalar_type()) != nullptr && tensor_.numel() > 0, "deeprec: ", name_,
        " must be float32, float16, bfloat16, float64, int64, int32 or uint8, and not empty (is ",
        at::toString(tensor_.scalar_type()), " ", tensor_.sizes(), ")");
    staged_ = at::empty(tensor_.sizes(), tensor_.options().memory_format(at::MemoryFormat::Contiguous));
  }

  [[nodiscard]] const std::string& name() const { return name_; }
  /// Whether files have the same of both.
  [[nodiscard]] bool is_like(const staged_tensor& other) const {
    return name_ == other.name_ && tensor_.scalar_type() == other.tensor_.scalar_type() &&
           tensor_.sizes() == other.tensor_.sizes();
  }
  void set_tensor(const staged_tensor& of) { tensor_ = of.tensor_; }
  void stage() { staged_.copy_(tensor_); }
  void unstage() { tensor_.copy_(staged_); }
  [[nodiscard]] deeprec::named_table table() const {
    const index_t rows = staged_.dim() > 1 ? staged_.size(0) : 1;
    const index_t width = staged_.numel() / rows;
    const index_t bytes = width * static_cast<index_t>(staged_.element_size());
    return {{name_, format_of(staged_.scalar_type()), rows, width, bytes, bytes, 0},
            static_cast<std::byte*>(staged_.data_ptr()),
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
  at::Tensor staged_;
};

using staged_tensors = std::vector<staged_tensor>;

inline staged_tensors staged(const std::vector<std::string>& names, const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK_VALUE(names.size() == tensors.size(), "deeprec: dense tensors must have a name each (are ",
                    tensors.size(), " with ", names.size(), ")");
  staged_tensors made;
  for (std::size_t i = 0; i < names.size(); ++i) made.emplace_back(names[i], tensors[i]);
  return made;
}
/// Takes the tensors of others, where all are alike. A module may have got other ones.
inline bool took_tensors(staged_tensors& known, const staged_tensors& now) {
  if (!std::equal(known.begin(), known.end(), now.begin(), now.end(),
                  [](const auto& a, const auto& b) { return a.is_like(b); }))
    return false;
  for (std::size_t i = 0; i < known.size(); ++i) known[i].set_tensor(now[i]);
  return true;
}

/// The tables of a collection, which stay while it exists.
class collection_parts {
 public:
  static constexpr const char* step_number = "collection, step";
  static constexpr const char* rate_number = "collection, learning rate";
  static constexpr const char* rule_number = "collection, optimizer";

  /// @param rule number_of_rule of what steps the tables
  collection_parts(std::shared_ptr<tables> of, std::int64_t rule) : all_(std::move(of)), rule_(rule) {}

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
    if (rule_ >= 0) numbers.push_back({rule_number, index_t{rule_}});
    each_growing([&](growing& one) {
      numbers.push_back({growing_file::seed_name(one.config().name), static_cast<index_t>(one.seed())});
    });
  }
  /// State is that of one optimizer, also where another one has as much.
  void check_rule_of(const deeprec::training_state& state, const std::string& path) const {
    const std::string_view other = other_rule(rule_, state.whole(rule_number).value_or(-1));
    if (other.empty()) return;
    TORCH_CHECK_VALUE(false, "deeprec: checkpoints must have state of ",
                      rules[static_cast<std::size_t>(rule_)], " (have that of ", other, "): ", path);
  }
  /// That of the newest full file of a folder whose number is above `after`, before it is read.
  void check_rule_in(const std::string& folder, std::uint64_t after) const {
    if (rule_ < 0) return;
    const auto listed = deeprec::detail::list_folder(folder);
    if (!listed) return;  // who reads the folder finds out why
    for (const auto& file : listed.value() | std::views::reverse) {
      if (!file.is_full) continue;
      if (file.number <= after) return;
      const std::string path = folder + '/' + file.name();
      const auto info = deeprec::describe_file(path);
      if (info) return check_rule_of(info.value().state, path);
    }
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
    drop(rule_number);
  }

 private:
  template <class F>
  void each_growing(const F& f) const {
    for (const auto& one : all_->list()) {
      if (auto* const grows = dynamic_cast<growing*>(one.get())) f(*grows);
    }
  }

  std::shared_ptr<tables> all_;
  std::int64_t rule_;
  std::vector<std::shared_ptr<const void>> uses_;
};

}  // namespace deeprec_torch
