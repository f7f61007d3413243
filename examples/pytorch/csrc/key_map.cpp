// torch.classes.deeprec.KeyMap: keys to numbers in [0, capacity), as tensors of one shape.
#include <ATen/ATen.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include <deeprec/embedding/growing/key_map.hpp>

#include "call.hpp"
#include "tensors.hpp"

namespace deeprec_torch {
namespace {

using at::Tensor;

/// A key_map, and the key of each number that was ever given: what pickle writes.
struct key_numbers : torch::CustomClassHolder {
  explicit key_numbers(std::int64_t capacity)
      : map(raising([&] { return std::make_unique<deeprec::key_map>(capacity); })) {}

  Tensor find(const Tensor& given) const {
    const Tensor keys = as_keys(given, "keys");
    Tensor numbers = at::empty(given.sizes(), at::TensorOptions(at::kLong));
    map->find(keys_in(keys).data(), keys.numel(), numbers.data_ptr<std::int64_t>());
    return numbers;
  }
  Tensor insert(const Tensor& given) {
    const Tensor keys = as_keys(given, "keys");
    Tensor numbers = at::empty(given.sizes(), at::TensorOptions(at::kLong));
    const std::lock_guard lock(mutex);
    insert_locked(keys_in(keys), out(numbers));
    return numbers;
  }
  Tensor erase(const Tensor& given) {
    const Tensor keys = as_keys(given, "keys");
    Tensor numbers = at::empty(given.sizes(), at::TensorOptions(at::kLong));
    const std::lock_guard lock(mutex);
    erase_locked(keys_in(keys), out(numbers));
    return numbers;
  }
  /// Keys (N) and their numbers (N), in ascending order of the numbers.
  std::vector<Tensor> items() const {
    const std::lock_guard lock(mutex);
    const auto count = static_cast<index_t>(std::count(given_.begin(), given_.end(), 1));
    std::vector<Tensor> made{at::empty({count}, at::TensorOptions(at::kLong)),
                             at::empty({count}, at::TensorOptions(at::kLong))};
    auto* keys = made[0].data_ptr<std::int64_t>();
    auto* numbers = made[1].data_ptr<std::int64_t>();
    for (std::size_t n = 0; n < given_.size(); ++n) {
      if (given_[n] == 0) continue;
      *keys++ = static_cast<std::int64_t>(keys_[n]);
      *numbers++ = static_cast<std::int64_t>(n);
    }
    return made;
  }
  /// Gives keys the numbers that items() had, in a map without keys. Numbers are given in their order, so
  /// those between them are given to other keys first and then erased.
  void restore(const Tensor& given_keys, const Tensor& given_numbers) {
    const Tensor keys = as_keys(given_keys, "keys"), numbers = as_keys(given_numbers, "numbers");
    const std::span<const std::uint64_t> key = keys_in(keys), number = keys_in(numbers);
    TORCH_CHECK_VALUE(key.size() == number.size(), "deeprec: KeyMap: numbers must be as many as keys (",
                      key.size(), ") (are ", number.size(), ")");
    const std::lock_guard lock(mutex);
    TORCH_CHECK_VALUE(keys_.empty(), "deeprec: KeyMap: a map that is restored must be new");
    const std::unordered_set<std::uint64_t> known(key.begin(), key.end());
    TORCH_CHECK_VALUE(known.size() == key.size(), "deeprec: KeyMap: keys must differ (of ", key.size(),
                      " only ", known.size(), " do)");
    std::uint64_t end = 0;
    for (const std::uint64_t n : number) {
      TORCH_CHECK_VALUE(n < static_cast<std::uint64_t>(map->capacity()),
                        "deeprec: KeyMap: numbers must be below ", map->capacity(), " (one is ",
                        static_cast<std::int64_t>(n), ")");
      end = (std::max)(end, n + 1);
    }
    std::vector<std::uint64_t> all(end), between;
    std::vector<unsigned char> taken(end, 0);
    for (std::size_t k = 0; k < key.size(); ++k) {
      TORCH_CHECK_VALUE(taken[number[k]] == 0, "deeprec: KeyMap: numbers must differ (", number[k],
                        " comes twice)");
      taken[number[k]] = 1;
      all[number[k]] = key[k];
    }
    std::uint64_t other = 0;
    for (std::size_t n = 0; n < all.size(); ++n) {
      if (taken[n] != 0) continue;
      while (known.contains(other)) ++other;
      all[n] = other++;
      between.push_back(all[n]);
    }
    std::vector<std::int64_t> written(all.size());
    insert_locked(all, written);
    erase_locked(between, std::span(written).first(between.size()));
  }

  std::unique_ptr<deeprec::key_map> map;
  mutable std::mutex mutex;

 private:
  static std::span<std::int64_t> out(Tensor& numbers) {
    return {numbers.data_ptr<std::int64_t>(), static_cast<std::size_t>(numbers.numel())};
  }
  void insert_locked(std::span<const std::uint64_t> keys, std::span<std::int64_t> numbers) {
    auto executor = threads();
    raise_on_fault(map->insert(call_on(executor), keys, numbers));
    for (std::size_t k = 0; k < keys.size(); ++k) {
      if (numbers[k] < 0) continue;
      const auto n = static_cast<std::size_t>(numbers[k]);
      if (n >= keys_.size()) {
        keys_.resize(n + 1);
        given_.resize(n + 1);
      }
      keys_[n] = keys[k];
      given_[n] = 1;
    }
  }
  void erase_locked(std::span<const std::uint64_t> keys, std::span<std::int64_t> numbers) {
    auto executor = threads();
    raise_on_fault(map->erase(call_on(executor), keys, numbers));
    for (const std::int64_t n : numbers) {
      if (n >= 0) given_[static_cast<std::size_t>(n)] = 0;
    }
  }

  std::vector<std::uint64_t> keys_;   // of a number
  std::vector<unsigned char> given_;  // whether a key has it now
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(deeprec, m) {
  using holder = c10::intrusive_ptr<key_numbers>;
  m.class_<key_numbers>("KeyMap")
      .def(torch::init<std::int64_t>())
      .def("find", [](const holder& self, const Tensor& keys) { return self->find(keys); })
      .def("insert", [](const holder& self, const Tensor& keys) { return self->insert(keys); })
      .def("erase", [](const holder& self, const Tensor& keys) { return self->erase(keys); })
      .def("items", [](const holder& self) { return self->items(); })
      .def("restore", [](const holder& self, const Tensor& keys,
                         const Tensor& numbers) { self->restore(keys, numbers); })
      .def("size", [](const holder& self) { return self->map->size(); });
}

}  // namespace deeprec_torch
