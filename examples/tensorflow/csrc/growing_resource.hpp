// A growing table as a resource of TensorFlow: rows of float32 for keys of int64, each with its optimizer's
// state.
//
//   growing_use table;
//   OP_REQUIRES_OK(context, table.open(context, growing_use::access::shared));
//   lookup(ctx, table->rows(), ...)
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/embedding/growing/admission.hpp>
#include <deeprec/embedding/growing/growing_options.hpp>
#include <deeprec/embedding/growing/growing_table.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/tables/row_format.hpp>
#include <deeprec/optim/adagrad.hpp>
#include <deeprec/optim/adam.hpp>
#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/optim/sgd.hpp>

#include "call.hpp"
#include "tensorflow/core/framework/resource_base.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace deeprec_tf {

/// What a table is made of.
struct growing_config {
  index_t width = 1;
  std::string optimizer;          // sgd, adagrad, rowwise_adagrad, adam
  std::vector<float> parameters;  // (rowwise_)adagrad: epsilon, initial squares; adam: beta1, beta2, epsilon
  std::int64_t seed = 0;
  float bound = 0;
  index_t most_rows = 0;
  std::string full;
  std::int64_t occurrences = 1;
  float default_value = 0;

  /// Calls f with the optimizer of step `number`, from 1 on.
  template <class F>
  auto visit_optimizer(float rate, std::int64_t number, F&& f) const {
    if (optimizer == "adagrad") return f(deeprec::adagrad{rate, parameters[0], parameters[1]});
    if (optimizer == "rowwise_adagrad")
      return f(deeprec::rowwise_adagrad{rate, parameters[0], parameters[1]});
    if (optimizer == "adam")
      return f(deeprec::adam{rate, parameters[0], parameters[1], parameters[2], number});
    return f(deeprec::sgd{rate});
  }
};

class growing_resource : public tensorflow::ResourceBase {
 public:
  using table_type = deeprec::growing_table<deeprec::f32_rows>;

  explicit growing_resource(growing_config config) : config(std::move(config)), table(make()) {}

  std::string DebugString() const override { return "growing table of deeprec"; }

  /// A table without rows. Throws deeprec::error.
  [[nodiscard]] std::unique_ptr<table_type> make() const {
    deeprec::growing_options options;
    options.most_rows = config.most_rows;
    options.full = config.full == "refuse"               ? deeprec::when_full::refuse
                   : config.full == "evict_least_recent" ? deeprec::when_full::evict_least_recent
                                                         : deeprec::when_full::evict_least_frequent;
    const auto format = config.visit_optimizer(0, 1, [&]<class Optimizer>(const Optimizer&) {
      return deeprec::f32_rows(config.width,
                               {.state_floats = deeprec::state_floats_of<Optimizer>(config.width),
                                .state_owner = deeprec::optimizer_name<Optimizer>.data()});
    });
    const deeprec::row_init::uniform first_values{.seed = static_cast<std::uint64_t>(config.seed),
                                                  .bound = config.bound};
    auto made = std::make_unique<table_type>(format, first_values, options);
    made->admit_by(deeprec::filters::counter{static_cast<std::uint32_t>(config.occurrences)}).or_throw();
    made->default_row(std::vector<float>(static_cast<std::size_t>(config.width), config.default_value))
        .or_throw();
    return made;
  }

  const growing_config config;
  std::shared_mutex mutex;
  std::unique_ptr<table_type> table;
  std::int64_t applied = 0;  // steps of the optimizer
};

/// The input "table" while an op uses it. Lookups and insertions share the table; steps, erasures and loads
/// have it for themselves.
class growing_use {
 public:
  enum class access { shared, exclusive };

  absl::Status open(tensorflow::OpKernelContext* context, access wanted) {
    const tensorflow::Tensor* handle = nullptr;
    if (absl::Status s = context->input("table", &handle); !s.ok()) return s;
    if (handle->NumElements() != 1)
      return absl::InvalidArgumentError("deeprec: table must be the handle of one growing table");
    if (absl::Status s =
            tensorflow::LookupResource(context, handle->flat<tensorflow::ResourceHandle>()(0), &resource_);
        !s.ok()) {
      return s;
    }
    if (wanted == access::shared) {
      shared_ = std::shared_lock(resource_->mutex);
    } else {
      alone_ = std::unique_lock(resource_->mutex);
    }
    return absl::OkStatus();
  }
  growing_resource::table_type* operator->() const { return resource_->table.get(); }
  growing_resource::table_type& operator*() const { return *resource_->table; }
  [[nodiscard]] growing_resource& resource() const { return *resource_; }
  [[nodiscard]] index_t width() const { return resource_->config.width; }

 private:
  tensorflow::core::RefCountPtr<growing_resource> resource_;  // outlives the locks
  std::shared_lock<std::shared_mutex> shared_;
  std::unique_lock<std::shared_mutex> alone_;
};

}  // namespace deeprec_tf
