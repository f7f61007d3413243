// torch.classes.deeprec.ShardedTables: lookups in tables of many ranks, and the steps of their rows.
#include <ATen/ATen.h>
#include <torch/custom_class.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "features.hpp"
#include "keyed_batch.hpp"
#include "live_tables.hpp"
#include "sharded.hpp"

namespace deeprec_torch {
namespace {

using at::Tensor;

struct sharded_tables : torch::CustomClassHolder {
  sharded_tables(std::int64_t number, const std::string& optimizer, const std::string& group,
                 const std::vector<std::int64_t>& rows, const std::vector<std::int64_t>& ranks,
                 double patience)
      : parts(live_tables::shared().at(number)) {
    TORCH_CHECK_VALUE(rows.size() == parts->list().size() && ranks.size() == rows.size(),
                      "deeprec: rows and ranks must be those of ", parts->list().size(), " tables (are ",
                      rows.size(), " and ", ranks.size(), ")");
    TORCH_CHECK_VALUE(patience > 0 && patience < 9e9,
                      "deeprec: patience must be positive, and below 9e9 s (is ", patience, ")");
    std::vector<part_place> places;
    for (std::size_t t = 0; t < rows.size(); ++t) places.push_back({rows[t], static_cast<int>(ranks[t])});
    auto link = deeprec::c10d_link::over(c10d::resolve_process_group(group));
    raise_on_fault(link);
    deeprec::c10d_ranks comm(std::move(link).value());
    const std::chrono::duration<double> seconds(patience);
    const deeprec::sharded_options options{.patience =
                                               std::chrono::duration_cast<std::chrono::nanoseconds>(seconds)};
    all = raising([&] { return make(optimizer, std::move(comm), places, options); });
  }
  std::unique_ptr<sharded> make(const std::string& optimizer, deeprec::c10d_ranks comm,
                                const std::vector<part_place>& places,
                                const deeprec::sharded_options& options) const {
    if (optimizer.empty()) return make_sharded_lookups(parts, std::move(comm), places, options);
    if (optimizer == "sgd") return make_sharded_sgd(parts, std::move(comm), places, options);
    if (optimizer == "rowwise_adagrad")
      return make_sharded_rowwise_adagrad(parts, std::move(comm), places, options);
    if (optimizer == "adagrad") return make_sharded_adagrad(parts, std::move(comm), places, options);
    if (optimizer == "adam") return make_sharded_adam(parts, std::move(comm), places, options);
    TORCH_CHECK_VALUE(false, "deeprec: the optimizer must be sgd, rowwise_adagrad, adagrad or adam (is ",
                      optimizer, ")");
  }

  /// The pooled rows, and the number of the lookup.
  std::tuple<Tensor, std::int64_t> lookup(const Tensor& ids, const Tensor& offsets,
                                          const std::optional<Tensor>& weights, std::int64_t bags,
                                          std::int64_t keys, const std::vector<std::int64_t>& positions) {
    const std::lock_guard lock(mutex);
    ++lookups;
    Tensor out;
    std::optional<keyed_batch> view;
    try {
      batch.emplace(ids, offsets, weights);
      view = batch->view(parts->features(), bags, keys, positions);
      out = at::empty({bags, parts->total_width()}, at::TensorOptions(at::kFloat));
    } catch (...) {
      all->refuse();
      throw;
    }
    naming_features_of(*parts, [&] { all->lookup(*view, out); });
    return {std::move(out), lookups};
  }
  void update(const Tensor& gradient, std::int64_t lookup_number) {
    const std::lock_guard lock(mutex);
    TORCH_CHECK(
        lookup_number == lookups,
        "deeprec: the backward pass of a sharded collection must come before its next lookup, and once "
        "(lookup ",
        lookup_number, ", the last one is ", lookups, ")");
    ++lookups;
    Tensor rows;
    try {
      rows = with_rows(gradient.to(at::kFloat));
    } catch (...) {
      refuse_update();
      throw;
    }
    naming_features_of(*parts, [&] { all->update(rows); });
  }
  /// Takes the place of an update: a gradient that fits no collection is a fault of this rank.
  void refuse_update() {
    try {
      all->update(at::empty({0, 0}, at::TensorOptions(at::kFloat)));
    } catch (const std::exception&) {
    }
  }
  void refuse() {
    const std::lock_guard lock(mutex);
    ++lookups;
    all->refuse();
  }

  std::mutex mutex;
  std::shared_ptr<tables> parts;
  std::unique_ptr<sharded> all;
  std::optional<batch_tensors> batch;  // of the last lookup
  std::int64_t lookups = 0;
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(deeprec, m) {
  using holder = c10::intrusive_ptr<sharded_tables>;
  m.class_<sharded_tables>("ShardedTables")
      .def(torch::init<std::int64_t, const std::string&, const std::string&, const std::vector<std::int64_t>&,
                       const std::vector<std::int64_t>&, double>())
      .def("lookup",
           [](const holder& self, const Tensor& ids, const Tensor& offsets,
              const std::optional<Tensor>& weights, std::int64_t bags, std::int64_t keys,
              const std::vector<std::int64_t>& positions) {
             return self->lookup(ids, offsets, weights, bags, keys, positions);
           })
      .def("update", [](const holder& self, const Tensor& gradient,
                        std::int64_t lookup) { self->update(gradient, lookup); })
      .def("refuse", [](const holder& self) { self->refuse(); });
}

}  // namespace deeprec_torch
