// torch.nn.EmbeddingBag on deeprec's lookup: the forward pass, the gradients, and their place in autograd.
//
//   embedding_bag                       lookup
//   embedding_bag_dense_gradient        update of zeroed rows by sgd with rate -1: row -= -1 * gradient
//   embedding_bag_row_gradients         row_gradients: the rows that a batch used, each once
//   embedding_bag_sparse_gradient       the same as one sparse tensor
//   embedding_bag_sample_gradients      weight_gradients
//   embedding_bag_renorm                scales rows to a norm, after a check of the bags
//
// Derivatives of these derivatives, tangents and the transforms of torch.func are those of the same function
// in PyTorch's own ops: from_own_ops.
#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/safe_numerics.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/tables/table_view.hpp>
#include <deeprec/embedding/training/gradient.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/memory/huge_page_resource.hpp>
#include <deeprec/optim/sgd.hpp>

#include "call.hpp"
#include "dispatch.hpp"
#include "tensors.hpp"

namespace deeprec_torch {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// PyTorch's numbers.
enum : std::int64_t { mode_sum = 0, mode_mean = 1, mode_max = 2 };

template <class Combiner, class F>
decltype(auto) visit_padding(Combiner combiner, std::int64_t padding, F&& f) {
  if (padding < 0) return f(deeprec::pooling{combiner});
  return f(deeprec::pooling{combiner, deeprec::padding::id{padding}});
}

/// Calls f with sum or mean.
template <class F>
decltype(auto) visit_linear(std::int64_t mode, std::int64_t padding, F&& f) {
  if (mode == mode_sum) return visit_padding(deeprec::combiner::sum, padding, f);
  return visit_padding(deeprec::combiner::mean, padding, f);
}
template <class F>
decltype(auto) visit_pooling(std::int64_t mode, std::int64_t padding, F&& f) {
  if (mode == mode_max) return visit_padding(deeprec::combiner::max, padding, f);
  return visit_linear(mode, padding, f);
}

/// A matrix on the host.
void check_matrix(const Tensor& matrix, const char* name) {
  check_on_host(matrix, name);
  check_dimensions(matrix, name, 2);
}

/// A gradient of the bags, as the verbs take it.
Tensor gradient_rows(const Tensor& gradient) {
  check_matrix(gradient, "gradient");
  check_floats(gradient, "gradient");
  return with_rows(gradient.to(at::kFloat));
}

// --- The mark of a sparse gradient ---------------------------------------------------------------

/// Marks `weight.grad` as coalesced where it is the one gradient that came: PyTorch drops the mark when it
/// stores a gradient, and an optimizer would sort it again.
class keeps_the_mark final : public torch::autograd::FunctionPostHook {
 public:
  explicit keeps_the_mark(Tensor weight) : weight_(std::move(weight)) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& inputs) override {
    const Tensor& came = inputs[0];
    Tensor& stored = weight_.mutable_grad();
    if (came.defined() && stored.defined() && came.is_sparse() && stored.is_sparse() && came.is_coalesced() &&
        stored._nnz() == came._nnz() && stored._indices().data_ptr() == came._indices().data_ptr()) {
      stored._coalesced_(true);
    }
    return outputs;
  }

  /// On what stores the gradient of a leaf, once: where a graph has it, which keeps it and the hook.
  static void add_to(const Tensor& weight) {
    static std::mutex adding;
    const auto stores = torch::autograd::impl::try_get_grad_accumulator(weight);
    if (!stores) return;
    const std::scoped_lock lock(adding);
    const auto is_here = [](const auto& hook) {
      return dynamic_cast<keeps_the_mark*>(hook.get()) != nullptr;
    };
    if (std::ranges::none_of(stores->post_hooks(), is_here)) {
      stores->add_post_hook(std::make_unique<keeps_the_mark>(weight));
    }
  }

 private:
  Tensor weight_;
};

// --- CPU -----------------------------------------------------------------------------------------

Tensor forward(const Tensor& weight, const Tensor& ids, const OptionalTensor& offsets,
               const OptionalTensor& sample_weights, std::int64_t mode, std::int64_t padding, bool sparse,
               bool, bool includes_last) {
  check_matrix(weight, "weight");
  if (sparse) keeps_the_mark::add_to(weight);  // here: a compiled graph calls no autograd kernel
  const bags_of bags(ids, offsets, sample_weights, includes_last);
  const Tensor table = with_rows(weight);
  Tensor out = at::empty({bags.bags(), weight.size(1)}, weight.options().memory_format(std::nullopt));
  auto executor = threads();
  const auto ctx = call_on(executor);
  visit_element(weight.scalar_type(), "weight", [&]<class T>(std::type_identity<T>) {
    bags.visit([&](const auto& batch) {
      visit_pooling(mode, padding, [&](const auto& pooling) {
        raise_on_fault(
            deeprec::lookup(ctx, deeprec::as_table(matrix<const T>(table)), batch, pooling, matrix<T>(out)));
      });
    });
  });
  return out;
}

/// Raises what a lookup of these rows would.
void check_lookup(const Tensor& weight, const Tensor& ids, const OptionalTensor& offsets,
                  const OptionalTensor& sample_weights, std::int64_t padding, bool includes_last) {
  check_matrix(weight, "weight");
  const Tensor column = weight.slice(1, 0, 1);  // ids do not depend on the width
  static_cast<void>(
      forward(column, ids, offsets, sample_weights, mode_sum, padding, false, false, includes_last));
}

/// For each bag and column the gradient goes to the first id whose row has the greatest value, or the first
/// NaN. The bags were checked.
void add_max_gradient(const Tensor& gradient, const Tensor& weight, const bags_of& bags, std::int64_t padding,
                      Tensor& to) {
  const Tensor values = weight.to(at::kFloat).contiguous();
  const auto rows = values.accessor<float, 2>();
  const auto g = gradient.accessor<float, 2>();
  auto out = to.accessor<float, 2>();
  const index_t width = weight.size(1);
  bags.visit([&](const auto& batch) {
    TORCH_CHECK_VALUE(g.size(0) == batch.bags() && g.size(1) == width, "deeprec: gradient must be (",
                      batch.bags(), ", ", width, ") (is ", gradient.sizes(), ")");
    const auto ranges = batch.ranges();
    const auto* const ids = batch.ids();
    // Columns are independent, so threads share nothing.
    at::parallel_for(0, width, 8, [&](index_t first, index_t last) {
      for (index_t b = 0; b < batch.bags(); ++b) {
        for (index_t j = first; j < last; ++j) {
          index_t best = -1;
          for (index_t k = ranges.begin(b); k < ranges.end(b); ++k) {
            const auto id = static_cast<index_t>(ids[k]);
            if (id == padding) continue;
            if (best < 0 || rows[id][j] > rows[best][j] ||
                (std::isnan(rows[id][j]) && !std::isnan(rows[best][j]))) {
              best = id;
            }
          }
          if (best >= 0) out[best][j] += g[b][j];
        }
      }
    });
  });
}

/// The number of ids that are in bags: those behind the last offset are in none.
index_t ids_in_bags(const bags_of& bags) {
  const index_t end = bags.visit([](const auto& batch) {
    return batch.bags() == 0 ? index_t{0} : static_cast<index_t>(batch.ranges().end(batch.bags() - 1));
  });
  TORCH_CHECK_VALUE(end >= 0 && end <= bags.id_count(), "deeprec: the last offset must be one of ",
                    bags.id_count(), " ids (is ", end, ")");
  return end;
}

/// (R,1): how often bags have each row, at least 1.
Tensor uses_of(const Tensor& ids, const bags_of& bags, std::int64_t rows) {
  return at::bincount(ids.flatten().slice(0, 0, ids_in_bags(bags)), {}, rows).clamp_min_(1).unsqueeze(1);
}

/// The gradient of `rows` rows, divided by the number of times that the batch has each where it is to be. Of
/// `weight` mode max reads the values.
Tensor dense_gradient(const Tensor& gradient, const OptionalTensor& weight, std::int64_t rows,
                      const Tensor& ids, const OptionalTensor& offsets, const OptionalTensor& sample_weights,
                      std::int64_t mode, std::int64_t padding, bool by_frequency, bool includes_last) {
  const bags_of bags(ids, offsets, sample_weights, includes_last);
  const Tensor g = gradient_rows(gradient);
  const bool is_max = mode == mode_max;
  // Rounded once, at the end.
  const at::ScalarType type = is_max || by_frequency ? at::kFloat : gradient.scalar_type();
  Tensor out = at::zeros({rows, g.size(1)}, at::TensorOptions(type));
  if (is_max) {
    TORCH_CHECK_VALUE(weight.has_value(), "deeprec: weight must be given for mode max");
    check_matrix(*weight, "weight");
    TORCH_CHECK_VALUE(weight->size(0) == rows, "deeprec: weight must have ", rows, " rows (has ",
                      weight->size(0), ")");
    // Again: the caller may have written to ids and offsets since the forward pass.
    check_lookup(*weight, ids, offsets, std::nullopt, padding, includes_last);
    add_max_gradient(g.contiguous(), *weight, bags, padding, out);
    return out.to(gradient.scalar_type());
  }
  auto executor = threads();
  const auto ctx = call_on(executor);
  visit_element(type, "gradient", [&]<class T>(std::type_identity<T>) {
    bags.visit([&](const auto& batch) {
      visit_linear(mode, padding, [&](const auto& pooling) {
        raise_on_fault(deeprec::update(ctx, deeprec::as_table(matrix<T>(out)), batch, pooling,
                                       matrix<const float>(g), deeprec::sgd{-1.0F}));
      });
    });
  });
  if (by_frequency) out.div_(uses_of(ids, bags, rows));
  return out.to(gradient.scalar_type());
}

std::tuple<Tensor, Tensor> row_gradients(const Tensor& gradient, std::int64_t rows_of_table,
                                         const Tensor& ids, const OptionalTensor& offsets,
                                         const OptionalTensor& sample_weights, std::int64_t mode,
                                         std::int64_t padding, bool includes_last) {
  const bags_of bags(ids, offsets, sample_weights, includes_last);
  const Tensor g = gradient_rows(gradient);
  auto made = std::make_shared<deeprec::sparse_gradient>();
  auto executor = threads();
  const auto ctx = call_on(executor);
  bags.visit([&](const auto& batch) {
    visit_linear(mode, padding, [&](const auto& pooling) {
      raise_on_fault(
          deeprec::row_gradients(ctx, rows_of_table, batch, pooling, matrix<const float>(g), *made));
    });
  });
  const auto count = static_cast<std::int64_t>(made->rows.size());
  const auto keep = [made](void*) {};
  const auto rows = at::from_blob(made->rows.data(), {count}, keep, at::TensorOptions(at::kLong));
  const auto values =
      at::from_blob(made->values.data(), {count, g.size(1)}, keep, at::TensorOptions(at::kFloat));
  return {rows, values.to(gradient.scalar_type())};
}

/// The same as a tensor of `rows_of_table` rows.
Tensor sparse_gradient(const Tensor& gradient, std::int64_t rows_of_table, const Tensor& ids,
                       const OptionalTensor& offsets, const OptionalTensor& sample_weights, std::int64_t mode,
                       std::int64_t padding, bool includes_last) {
  const auto [rows, values] =
      row_gradients(gradient, rows_of_table, ids, offsets, sample_weights, mode, padding, includes_last);
  return at::_sparse_coo_tensor_unsafe(rows.unsqueeze(0), values, {rows_of_table, gradient.size(1)},
                                       values.options().layout(at::kSparse), true);
}

Tensor sample_gradients(const Tensor& gradient, const Tensor& weight, const Tensor& ids,
                        const OptionalTensor& offsets, const Tensor& sample_weights, std::int64_t mode,
                        std::int64_t padding, bool includes_last) {
  check_matrix(weight, "weight");
  const bags_of bags(ids, offsets, sample_weights, includes_last);
  const Tensor table = with_rows(weight), g = gradient_rows(gradient);
  const auto used = static_cast<std::size_t>(ids_in_bags(bags));
  Tensor out = at::empty(ids.sizes(), at::TensorOptions(at::kFloat));
  const std::span<float> all(out.data_ptr<float>(), static_cast<std::size_t>(out.numel()));
  std::ranges::fill(all.subspan(used), 0.0F);
  auto executor = threads();
  const auto ctx = call_on(executor);
  visit_element(weight.scalar_type(), "weight", [&]<class T>(std::type_identity<T>) {
    bags.visit([&](const auto& batch) {
      visit_linear(mode, padding, [&](const auto& pooling) {
        raise_on_fault(deeprec::weight_gradients(ctx, deeprec::as_table(matrix<const T>(table)), batch,
                                                 pooling, matrix<const float>(g), all.first(used)));
      });
    });
  });
  return out.to(sample_weights.scalar_type());
}

/// torch.embedding_renorm_ of the rows that a lookup reads. Nothing is written where the lookup would raise.
void renorm(const Tensor& weight, const Tensor& ids, const OptionalTensor& offsets,
            const OptionalTensor& sample_weights, double max_norm, double norm_type, std::int64_t padding,
            bool includes_last) {
  check_lookup(weight, ids, offsets, sample_weights, padding, includes_last);
  const std::int64_t used = ids_in_bags(bags_of(ids, offsets, std::nullopt, includes_last));
  Tensor list = ids.flatten();
  if (used < list.numel()) {  // what is behind the last offset may be out of range
    const Tensor behind = list.slice(0, used);
    const Tensor good = behind.masked_select(behind.ge(0).logical_and(behind.lt(weight.size(0))));
    list = at::cat({list.slice(0, 0, used), good});
  }
  Tensor rows = weight;
  at::embedding_renorm_(rows, list.contiguous(), max_norm, norm_type);
}

Tensor empty_on_huge_pages(std::int64_t rows, std::int64_t width, at::ScalarType type) {
  TORCH_CHECK_VALUE(rows >= 0 && width >= 0, "deeprec: sizes must not be negative (are ", rows, ", ", width,
                    ")");
  std::pmr::memory_resource* const pages = deeprec::huge_page_resource::shared();
  std::uint64_t elements = 0, bytes = 0;
  TORCH_CHECK_VALUE(
      !c10::mul_overflows(static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(width), &elements) &&
          !c10::mul_overflows(elements, std::uint64_t{c10::elementSize(type)}, &bytes),
      "deeprec: the bytes of weights must fit 64 bits (", rows, " rows of ", width, ")");
  if (bytes == 0) return at::empty({rows, width}, at::TensorOptions(type));
  constexpr std::size_t alignment = 64;
  void* data = nullptr;
  try {
    data = pages->allocate(bytes, alignment);
  } catch (const std::bad_alloc&) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "deeprec: no memory for ", bytes, " bytes of weights");
  }
  return at::from_blob(
      data, {rows, width}, [=](void* p) { pages->deallocate(p, bytes, alignment); }, at::TensorOptions(type));
}

// --- Meta: shapes only ---------------------------------------------------------------------------

Tensor forward_shape(const Tensor& weight, const Tensor& ids, const OptionalTensor& offsets,
                     const OptionalTensor& sample_weights, std::int64_t, std::int64_t, bool, bool,
                     bool includes_last) {
  check_dimensions(weight, "weight", 2);
  check_bags(ids, offsets, sample_weights, includes_last);
  c10::SymInt bags = offsets ? offsets->sym_size(0) : ids.sym_size(0);
  if (offsets && includes_last) bags = bags - 1;
  return at::empty_symint({bags, weight.sym_size(1)}, weight.options());
}
void renorm_shape(const Tensor& weight, const Tensor& ids, const OptionalTensor& offsets,
                  const OptionalTensor& sample_weights, double, double, std::int64_t, bool includes_last) {
  check_dimensions(weight, "weight", 2);
  check_bags(ids, offsets, sample_weights, includes_last);
}
Tensor dense_gradient_shape(const Tensor& gradient, const OptionalTensor&, c10::SymInt rows,
                            const Tensor& ids, const OptionalTensor& offsets,
                            const OptionalTensor& sample_weights, std::int64_t, std::int64_t, bool,
                            bool includes_last) {
  check_dimensions(gradient, "gradient", 2);
  check_bags(ids, offsets, sample_weights, includes_last);
  return at::empty_symint({std::move(rows), gradient.sym_size(1)}, gradient.options());
}
/// As many rows as ids: the number of those that differ is not in a shape.
Tensor sparse_gradient_shape(const Tensor& gradient, c10::SymInt rows, const Tensor& ids,
                             const OptionalTensor& offsets, const OptionalTensor& sample_weights,
                             std::int64_t, std::int64_t, bool includes_last) {
  check_dimensions(gradient, "gradient", 2);
  check_bags(ids, offsets, sample_weights, includes_last);
  const c10::SymInt count = ids.sym_numel(), sizes[] = {std::move(rows), gradient.sym_size(1)};
  return at::_sparse_coo_tensor_unsafe_symint(at::empty_symint({1, count}, ids.options().dtype(at::kLong)),
                                              at::empty_symint({count, sizes[1]}, gradient.options()), sizes,
                                              gradient.options().layout(at::kSparse), true);
}
Tensor sample_gradients_shape(const Tensor& gradient, const Tensor& weight, const Tensor& ids,
                              const OptionalTensor& offsets, const Tensor& sample_weights, std::int64_t,
                              std::int64_t, bool includes_last) {
  check_dimensions(gradient, "gradient", 2);
  check_dimensions(weight, "weight", 2);
  check_bags(ids, offsets, sample_weights, includes_last);
  return at::empty_symint(ids.sym_sizes(), sample_weights.options());
}

// --- The same in PyTorch's own ops, which have derivatives of any order ----------------------------

/// For each bag and column the place of the first of the greatest values, or of the first NaN; `rows.size(0)`
/// for a bag without ids.
Tensor places_of_max(const Tensor& rows, const Tensor& bag_of, std::int64_t bags) {
  const Tensor values = rows.detach();
  const Tensor most =
      at::full({bags, rows.size(1)}, -std::numeric_limits<double>::infinity(), values.options())
          .index_reduce(0, bag_of, values, "amax");
  const Tensor found = values.eq(most.index_select(0, bag_of)).logical_or(values.isnan());
  const Tensor places = at::arange(rows.size(0), bag_of.options()).unsqueeze(1);
  const Tensor none = at::full({}, rows.size(0), bag_of.options());
  return at::full({bags, rows.size(1)}, rows.size(0), bag_of.options())
      .index_reduce(0, bag_of, at::where(found, places, none), "amin");
}

Tensor from_own_ops(const Tensor& weight, const Tensor& ids, const OptionalTensor& offsets,
                    const OptionalTensor& sample_weights, std::int64_t mode, std::int64_t padding,
                    bool includes_last) {
  check_dimensions(weight, "weight", 2);
  visit_element(weight.scalar_type(), "weight", [](auto) {});
  check_bags(ids, offsets, sample_weights, includes_last);
  Tensor list = ids.reshape({-1}).to(at::kLong), bag_of;
  if (ids.dim() == 2) {
    bag_of = at::arange(ids.size(0), list.options()).repeat_interleave(ids.size(1));
  } else {
    Tensor ends = offsets->to(at::kLong);
    if (ends.size(0) > 0) {
      const auto first = ends[0].item<std::int64_t>();
      TORCH_CHECK_VALUE(first == 0, "deeprec: offsets[0] must be 0 (is ", first, ")");
    }
    if (!includes_last) ends = at::cat({ends, at::full({1}, list.size(0), list.options())});
    bag_of = at::arange(ends.size(0) - 1, list.options()).repeat_interleave(ends.diff());
    list = list.narrow(0, 0, bag_of.size(0));
  }
  const std::int64_t bags = ids.dim() == 2 ? ids.size(0) : offsets->size(0) - (includes_last ? 1 : 0);
  Tensor factors;
  if (sample_weights) factors = sample_weights->reshape({-1}).narrow(0, 0, bag_of.size(0)).to(at::kFloat);
  if (padding >= 0) {
    const Tensor kept = list.ne(padding).nonzero().squeeze(1);
    list = list.index_select(0, kept);
    bag_of = bag_of.index_select(0, kept);
    if (sample_weights) factors = factors.index_select(0, kept);
  }
  Tensor rows = weight.index_select(0, list).to(at::kFloat);
  if (mode == mode_max) {
    const Tensor places = places_of_max(rows, bag_of, bags);
    const Tensor read = at::cat({rows, at::zeros({1, rows.size(1)}, rows.options())}).gather(0, places);
    return read.to(weight.scalar_type());
  }
  if (sample_weights) rows = rows * factors.unsqueeze(1);
  Tensor out = at::zeros({bags, weight.size(1)}, rows.options()).index_add(0, bag_of, rows);
  if (mode == mode_mean) {
    const Tensor ones = at::ones({bag_of.size(0)}, at::TensorOptions(at::kFloat));
    const Tensor counts = at::zeros({bags}, ones.options()).index_add(0, bag_of, ones).clamp_min(1);
    out = out / counts.unsqueeze(1);
  }
  return out.to(weight.scalar_type());
}

/// What torch.vmap calls.
Tensor refuse_vmap(const Tensor&, const Tensor&, const OptionalTensor&, const OptionalTensor&, std::int64_t,
                   std::int64_t, bool, bool, bool) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false,
      "embedding_bag: torch.vmap must be given no embedding_bag, which takes all bags "
      "in one call: put the batch's dimension into the bags");
}

// --- Autograd ------------------------------------------------------------------------------------

Tensor call_forward(const Tensor& weight, const Tensor& ids, const OptionalTensor& offsets,
                    const OptionalTensor& sample_weights, std::int64_t mode, std::int64_t padding,
                    bool sparse, bool by_frequency, bool includes_last) {
  static const auto called = op<decltype(forward)>("deeprec::embedding_bag");
  return called.call(weight, ids, offsets, sample_weights, mode, padding, sparse, by_frequency,
                     includes_last);
}

using dense_gradient_type = Tensor(const Tensor&, const OptionalTensor&, c10::SymInt, const Tensor&,
                                   const OptionalTensor&, const OptionalTensor&, std::int64_t, std::int64_t,
                                   bool, bool);
using sparse_gradient_type = Tensor(const Tensor&, c10::SymInt, const Tensor&, const OptionalTensor&,
                                    const OptionalTensor&, std::int64_t, std::int64_t, bool);

struct bag_function : torch::autograd::Function<bag_function> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& weight, const Tensor& ids,
                        const OptionalTensor& offsets, const OptionalTensor& sample_weights,
                        std::int64_t mode, std::int64_t padding, bool sparse, bool by_frequency,
                        bool includes_last) {
    const at::AutoDispatchBelowADInplaceOrView below;
    // Rows that no gradient reads may change before the backward pass, as max_norm changes them.
    const bool reads_rows = mode == mode_max || (sample_weights && sample_weights->requires_grad());
    ctx->save_for_backward(
        {reads_rows ? weight : Tensor(), ids, offsets.value_or(Tensor()), sample_weights.value_or(Tensor())});
    ctx->saved_data["rows"] = weight.sym_size(0);
    ctx->saved_data["mode"] = mode;
    ctx->saved_data["padding"] = padding;
    ctx->saved_data["flags"] = (sparse ? 1 : 0) | (by_frequency ? 2 : 0) | (includes_last ? 4 : 0);
    return call_forward(weight, ids, offsets, sample_weights, mode, padding, sparse, by_frequency,
                        includes_last);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &ids = saved[1], &gradient = gradients[0];
    const auto given = [](const Tensor& t) { return t.defined() ? OptionalTensor(t) : std::nullopt; };
    const OptionalTensor weight = given(saved[0]), offsets = given(saved[2]);
    const OptionalTensor sample_weights = given(saved[3]);
    const c10::SymInt rows_of_table = ctx->saved_data["rows"].toSymInt();
    const std::int64_t mode = ctx->saved_data["mode"].toInt(), padding = ctx->saved_data["padding"].toInt();
    const std::int64_t flags = ctx->saved_data["flags"].toInt();
    const bool sparse = (flags & 1) != 0, by_frequency = (flags & 2) != 0, includes_last = (flags & 4) != 0;

    const bool wants_weight = ctx->needs_input_grad(0);
    // An input that is absent has no number.
    const bool wants_samples = sample_weights && ctx->needs_input_grad(offsets ? 3 : 2);

    // Nothing below needs a derivative then, and the kernels are called without a check for one.
    std::optional<at::AutoDispatchBelowADInplaceOrView> below;
    if (!at::GradMode::is_enabled()) below.emplace();
    Tensor of_weight, of_samples;
    if (at::GradMode::is_enabled() && !sparse) {  // create_graph=True
      // Where the rows are not read, the gradient is the same for any of them.
      const Tensor table = weight
                               ? *weight
                               : at::zeros({rows_of_table.expect_int(), gradient.size(1)}, gradient.options())
                                     .requires_grad_(true);
      torch::autograd::variable_list of;
      if (wants_weight) of.push_back(table);
      if (wants_samples) of.push_back(*sample_weights);
      const Tensor out = from_own_ops(table, ids, offsets, sample_weights, mode, padding, includes_last);
      auto made = torch::autograd::grad({out}, of, {gradient}, true, true, true);
      if (wants_samples) of_samples = made.back();
      if (wants_weight)
        of_weight =
            by_frequency
                ? made[0] / uses_of(ids, bags_of(ids, offsets, sample_weights, includes_last), table.size(0))
                : made[0];
      return {of_weight, Tensor(), Tensor(), of_samples, Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
    }
    if (wants_weight) {
      if (sparse) {
        static const auto called = op<sparse_gradient_type>("deeprec::embedding_bag_sparse_gradient");
        of_weight =
            called.call(gradient, rows_of_table, ids, offsets, sample_weights, mode, padding, includes_last);
      } else {
        static const auto called = op<dense_gradient_type>("deeprec::embedding_bag_dense_gradient");
        of_weight = called.call(gradient, weight, rows_of_table, ids, offsets, sample_weights, mode, padding,
                                by_frequency, includes_last);
      }
    }
    if (wants_samples) {
      static const auto called = op<decltype(sample_gradients)>("deeprec::embedding_bag_sample_gradients");
      of_samples =
          called.call(gradient, *weight, ids, offsets, *sample_weights, mode, padding, includes_last);
    }
    return {of_weight, Tensor(), Tensor(), of_samples, Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

Tensor differentiable_forward(const Tensor& weight, const Tensor& ids, const OptionalTensor& offsets,
                              const OptionalTensor& sample_weights, std::int64_t mode, std::int64_t padding,
                              bool sparse, bool by_frequency, bool includes_last) {
  const bool has_tangent =
      weight._fw_grad(0).defined() || (sample_weights && sample_weights->_fw_grad(0).defined());
  const bool transformed =
      c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerBackMode);
  const bool wanted = at::GradMode::is_enabled() &&
                      (weight.requires_grad() || (sample_weights && sample_weights->requires_grad()));
  if (has_tangent || transformed) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !wanted || (!sparse && !by_frequency),
        "embedding_bag: gradients under torch.func and beside tangents must be without "
        "sparse and scale_grad_by_freq");
    return from_own_ops(weight, ids, offsets, sample_weights, mode, padding, includes_last);
  }
  if (!wanted) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return call_forward(weight, ids, offsets, sample_weights, mode, padding, sparse, by_frequency,
                        includes_last);
  }
  return bag_function::apply(weight, ids, offsets, sample_weights, mode, padding, sparse, by_frequency,
                             includes_last);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(deeprec, m) {
  m.def(
      "embedding_bag(Tensor weight, Tensor ids, Tensor? offsets, Tensor? per_sample_weights, int mode, "
      "int padding_idx, bool sparse, bool scale_grad_by_freq, bool include_last_offset) -> Tensor");
  m.def(
      "embedding_bag_dense_gradient(Tensor gradient, Tensor? weight, SymInt rows, Tensor ids, "
      "Tensor? offsets, Tensor? per_sample_weights, int mode, int padding_idx, bool scale_grad_by_freq, "
      "bool include_last_offset) -> Tensor");
  m.def(
      "embedding_bag_row_gradients(Tensor gradient, SymInt rows, Tensor ids, Tensor? offsets, "
      "Tensor? per_sample_weights, int mode, int padding_idx, bool include_last_offset) -> (Tensor, Tensor)");
  m.def(
      "embedding_bag_sparse_gradient(Tensor gradient, SymInt rows, Tensor ids, Tensor? offsets, "
      "Tensor? per_sample_weights, int mode, int padding_idx, bool include_last_offset) -> Tensor");
  m.def(
      "embedding_bag_sample_gradients(Tensor gradient, Tensor weight, Tensor ids, Tensor? offsets, "
      "Tensor per_sample_weights, int mode, int padding_idx, bool include_last_offset) -> Tensor");
  m.def(
      "embedding_bag_renorm(Tensor(a!) weight, Tensor ids, Tensor? offsets, Tensor? per_sample_weights, "
      "float max_norm, float norm_type, int padding_idx, bool include_last_offset) -> ()");
  m.def("empty_on_huge_pages(int rows, int width, ScalarType dtype) -> Tensor", empty_on_huge_pages);
}

TORCH_LIBRARY_IMPL(deeprec, CPU, m) {
  m.impl("embedding_bag", forward);
  m.impl("embedding_bag_dense_gradient", dense_gradient);
  m.impl("embedding_bag_row_gradients", row_gradients);
  m.impl("embedding_bag_sparse_gradient", sparse_gradient);
  m.impl("embedding_bag_sample_gradients", sample_gradients);
  m.impl("embedding_bag_renorm", renorm);
}
TORCH_LIBRARY_IMPL(deeprec, Meta, m) {
  m.impl("embedding_bag", forward_shape);
  m.impl("embedding_bag_dense_gradient", dense_gradient_shape);
  m.impl("embedding_bag_sparse_gradient", sparse_gradient_shape);
  m.impl("embedding_bag_sample_gradients", sample_gradients_shape);
  m.impl("embedding_bag_renorm", renorm_shape);
}
TORCH_LIBRARY_IMPL(deeprec, FuncTorchBatched, m) { m.impl("embedding_bag", refuse_vmap); }
TORCH_LIBRARY_IMPL(deeprec, Autograd, m) {
  m.impl("embedding_bag", differentiable_forward);
  // A second derivative through these kernels (sparse gradients have them alone) is an exception, not 0.
  for (const char* name : {"embedding_bag_dense_gradient", "embedding_bag_row_gradients",
                           "embedding_bag_sparse_gradient", "embedding_bag_sample_gradients"}) {
    m.impl(name, torch::autograd::autogradNotImplementedFallback());
  }
}

}  // namespace deeprec_torch
