// The tables of a ShardedEmbeddingBagCollection: those of an EmbeddingBagCollection as the parts of this
// rank, and the group of features whose rows lie at all ranks of a process group.
//
//   sharded_of<Optimizer>    a sharded_group over c10d_ranks; one source file for each optimizer
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/matrix_view.hpp>
#include <deeprec/embedding/resolve.hpp>
#include <deeprec/interop/c10d_ranks.hpp>
#include <deeprec/optim/adagrad.hpp>
#include <deeprec/optim/adam.hpp>
#include <deeprec/optim/sgd.hpp>
#include <deeprec/sharding/placement.hpp>
#include <deeprec/sharding/sharded_group.hpp>
#include <deeprec/sharding/sharded_rows.hpp>
#include <deeprec/sharding/sharded_verbs.hpp>

#include "call.hpp"
#include "keyed_batch.hpp"
#include "table.hpp"
#include "tables.hpp"
#include "tensors.hpp"

namespace deeprec_torch {

/// Where the rows of a table are.
struct part_place {
  index_t rows = 0;  ///< of the whole table
  int rank = -1;     ///< that has all of them; -1: row r is at rank r mod n
};

/// What all ranks call in one order. A fault of one is raised by all.
class sharded {
 public:
  virtual ~sharded() = default;
  /// The batch stays where it is until the next lookup.
  virtual void lookup(const keyed_batch& batch, at::Tensor& out) = 0;
  /// A step of the rows that the last lookup used.
  virtual void update(const at::Tensor& gradient) = 0;
  /// Takes the place of a lookup that this rank can't begin: the others raise a fault of this rank.
  virtual void refuse() = 0;
};

/// For each optimizer, in a source file of its own.
std::unique_ptr<sharded> make_sharded_sgd(std::shared_ptr<tables> parts, deeprec::c10d_ranks comm,
                                          const std::vector<part_place>& places,
                                          const deeprec::sharded_options& options);
std::unique_ptr<sharded> make_sharded_rowwise_adagrad(std::shared_ptr<tables> parts, deeprec::c10d_ranks comm,
                                                      const std::vector<part_place>& places,
                                                      const deeprec::sharded_options& options);
std::unique_ptr<sharded> make_sharded_adagrad(std::shared_ptr<tables> parts, deeprec::c10d_ranks comm,
                                              const std::vector<part_place>& places,
                                              const deeprec::sharded_options& options);
std::unique_ptr<sharded> make_sharded_adam(std::shared_ptr<tables> parts, deeprec::c10d_ranks comm,
                                           const std::vector<part_place>& places,
                                           const deeprec::sharded_options& options);
std::unique_ptr<sharded> make_sharded_lookups(std::shared_ptr<tables> parts, deeprec::c10d_ranks comm,
                                              const std::vector<part_place>& places,
                                              const deeprec::sharded_options& options);

template <class Optimizer>
class sharded_of final : public sharded {
  using group_type = deeprec::sharded_group<Optimizer, deeprec::c10d_ranks>;
  static constexpr bool trains = !std::is_same_v<Optimizer, deeprec::lookups_only>;

 public:
  sharded_of(std::shared_ptr<tables> parts, deeprec::c10d_ranks comm, const std::vector<part_place>& places,
             const deeprec::sharded_options& options)
      : parts_(std::move(parts)), group_(std::move(comm), options) {
    for (std::size_t t = 0; t < places.size(); ++t) add(*parts_->list()[t], places[t]);
  }

  void lookup(const keyed_batch& batch, at::Tensor& out) override {
    rows_.reset();
    try {
      raising([&] { cut(batch); });
    } catch (...) {
      refuse();
      throw;
    }
    auto executor = threads();
    const auto ctx = call_on(executor);
    auto rows = deeprec::resolve(ctx, group_, bags_);
    raise_on_fault(rows);
    raise_on_fault(deeprec::lookup(ctx, rows.value(), matrix<float>(out)));
    rows_.emplace(std::move(rows).value());
  }
  void update(const at::Tensor& gradient) override {
    if constexpr (trains) {
      TORCH_CHECK(rows_.has_value(), "deeprec: a backward pass must follow a lookup that had no fault");
      auto executor = threads();
      const auto ctx = call_on(executor);
      raise_on_fault(deeprec::update(ctx, *rows_, matrix<const float>(gradient),
                                     optimizer_with<Optimizer>(parts_->options)));
      ++parts_->options.step;
    } else {
      TORCH_CHECK_NOT_IMPLEMENTED(false, "deeprec: a collection without an optimizer has no backward pass");
    }
  }
  void refuse() override {
    rows_.reset();
    auto executor = threads();
    const auto ctx = call_on(executor);
    // No batches: a fault of this rank, which the others are sent.
    static_cast<void>(deeprec::resolve(ctx, group_, std::vector<deeprec::jagged_view<>>()));
  }

 private:
  /// The bags of each feature, with offsets from 0 on. Offsets that are not those of the ids stay wrong, for
  /// resolve to find.
  void cut(const keyed_batch& batch) {
    const auto features = static_cast<std::size_t>(group_.features());
    const auto bags = static_cast<std::size_t>(batch.bags);
    offsets_.resize(features * (bags + 1));
    bags_.clear();
    for (std::size_t f = 0; f < features; ++f) {
      const deeprec::jagged_view<> whole = batch.feature(f);
      const std::int64_t first = std::clamp<std::int64_t>(whole.offsets()[0], 0, batch.id_count);
      std::int64_t* const own = offsets_.data() + f * (bags + 1);
      std::transform(whole.offsets(), whole.offsets() + bags + 1, own,
                     [first](std::int64_t at) { return at < 0 ? at : at - first; });
      bags_.emplace_back(own, batch.bags, batch.ids + first, batch.id_count - first,
                         batch.weights == nullptr ? nullptr : batch.weights + first);
    }
  }

  void add(table& part, const part_place& where) {
    bool added = add_as<deeprec::f32_rows>(part, where) || add_as<deeprec::f16_rows>(part, where) ||
                 add_as<deeprec::bf16_rows>(part, where);
    if constexpr (!trains)
      added = added || add_as<deeprec::int8_rows>(part, where) || add_as<deeprec::int4_rows>(part, where);
    TORCH_CHECK_NOT_IMPLEMENTED(added, "deeprec: table ", part.config().name,
                                " must be dense: tables that grow are not sharded");
  }
  template <class Format>
  bool add_as(table& part, const part_place& where) {
    auto* const rows = dynamic_cast<dense_of<Format>*>(&part);
    if (rows == nullptr) return false;
    if (where.rank < 0) {
      rows->add_to(group_, deeprec::placement::rows{where.rows});
    } else {
      rows->add_to(group_, deeprec::placement::whole{where.rank, where.rows});
    }
    return true;
  }

  std::shared_ptr<tables> parts_;
  group_type group_;
  std::vector<std::int64_t> offsets_;
  features_view bags_;
  std::optional<deeprec::sharded_rows<group_type>> rows_;
};

}  // namespace deeprec_torch
