// torch.nn.EmbeddingBag on deeprec's lookup: the forward pass, the gradients, and their place in autograd.
//
//   embedding_bag                       lookup
//   embedding_bag_dense_gradient        update of zeroed rows by sgd with rate -1: row -= -1 * gradient
//   embedding_bag_row_gradients         row_gradients: the rows that a batch used, each once
//   embedding_bag_sample_gradients      weight_gradients
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <memory>
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

void check_weight(const Tensor& weight) {
  check_on_host(weight, "weight");
  TORCH_CHECK_VALUE(weight.dim() == 2, "deeprec: weight must have 2 dimensions (has ", weight.dim(), ")");
}

// --- CPU -----------------------------------------------------------------------------------------

Tensor forward(const Tensor& weight, const Tensor& ids, const OptionalTensor& offsets,
               const OptionalTensor& sample_weights, std::int64_t mode, std::int64_t padding, bool, bool,
               bool includes_last) {
  check_weight(weight);
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

/// For each bag and column the gradient goes to the first id whose row has the greatest value.
void add_max_gradient(const Tensor& gradient, const Tensor& weight, const bags_of& bags, std::int64_t padding,
                      Tensor& to) {
  const Tensor values = weight.to(at::kFloat).contiguous();
  const auto rows = values.accessor<float, 2>();
  const auto g = gradient.accessor<float, 2>();
  auto out = to.accessor<float, 2>();
  const index_t width = weight.size(1);
  bags.visit([&](const auto& batch) {
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
            if (best < 0 || rows[id][j] > rows[best][j]) best = id;
          }
          if (best >= 0) out[best][j] += g[b][j];
        }
      }
    });
  });
}

/// The gradient of `rows` rows, divided by the number of times that the batch has each where it is to be.
Tensor dense_gradient(const Tensor& gradient, const Tensor& weight, const Tensor& ids,
                      const OptionalTensor& offsets, const OptionalTensor& sample_weights, std::int64_t mode,
                      std::int64_t padding, bool by_frequency, bool includes_last) {
  const bags_of bags(ids, offsets, sample_weights, includes_last);
  const Tensor g = with_rows(gradient.to(at::kFloat));
  const bool is_max = mode == mode_max;
  // Rounded once, at the end.
  const at::ScalarType type = is_max || by_frequency ? at::kFloat : weight.scalar_type();
  Tensor out = at::zeros(weight.sizes(), at::TensorOptions(type));
  if (is_max) {
    add_max_gradient(g.contiguous(), weight, bags, padding, out);
    return out.to(weight.scalar_type());
  }
  auto executor = threads();
  const auto ctx = call_on(executor);
  visit_element(type, "weight", [&]<class T>(std::type_identity<T>) {
    bags.visit([&](const auto& batch) {
      visit_linear(mode, padding, [&](const auto& pooling) {
        raise_on_fault(deeprec::update(ctx, batch, matrix<const float>(g), pooling, deeprec::sgd{-1.0F},
                                       deeprec::as_table(matrix<T>(out))));
      });
    });
  });
  if (by_frequency) {
    const Tensor uses = at::bincount(ids.flatten(), {}, weight.size(0)).clamp_min_(1);
    out.div_(uses.unsqueeze(1));
  }
  return out.to(weight.scalar_type());
}

std::tuple<Tensor, Tensor> row_gradients(const Tensor& gradient, const Tensor& weight, const Tensor& ids,
                                         const OptionalTensor& offsets, const OptionalTensor& sample_weights,
                                         std::int64_t mode, std::int64_t padding, bool includes_last) {
  const bags_of bags(ids, offsets, sample_weights, includes_last);
  const Tensor g = with_rows(gradient.to(at::kFloat));
  auto made = std::make_shared<deeprec::sparse_gradient>();
  auto executor = threads();
  const auto ctx = call_on(executor);
  bags.visit([&](const auto& batch) {
    visit_linear(mode, padding, [&](const auto& pooling) {
      raise_on_fault(
          deeprec::row_gradients(ctx, batch, matrix<const float>(g), pooling, weight.size(0), *made));
    });
  });
  const auto count = static_cast<std::int64_t>(made->rows.size());
  const auto keep = [made](void*) {};
  const auto rows = at::from_blob(made->rows.data(), {count}, keep, at::TensorOptions(at::kLong));
  const auto values =
      at::from_blob(made->values.data(), {count, g.size(1)}, keep, at::TensorOptions(at::kFloat));
  return {rows, values.to(weight.scalar_type())};
}

Tensor sample_gradients(const Tensor& gradient, const Tensor& weight, const Tensor& ids,
                        const OptionalTensor& offsets, const Tensor& sample_weights, std::int64_t mode,
                        std::int64_t padding, bool includes_last) {
  const bags_of bags(ids, offsets, sample_weights, includes_last);
  const Tensor table = with_rows(weight), g = with_rows(gradient.to(at::kFloat));
  Tensor out = at::empty(ids.sizes(), at::TensorOptions(at::kFloat));
  auto executor = threads();
  const auto ctx = call_on(executor);
  visit_element(weight.scalar_type(), "weight", [&]<class T>(std::type_identity<T>) {
    bags.visit([&](const auto& batch) {
      visit_linear(mode, padding, [&](const auto& pooling) {
        const std::span<float> to(out.data_ptr<float>(), static_cast<std::size_t>(out.numel()));
        raise_on_fault(deeprec::weight_gradients(ctx, deeprec::as_table(matrix<const T>(table)), batch,
                                                 matrix<const float>(g), pooling, to));
      });
    });
  });
  return out.to(sample_weights.scalar_type());
}

Tensor empty_on_huge_pages(std::int64_t rows, std::int64_t width, at::ScalarType type) {
  TORCH_CHECK_VALUE(rows >= 0 && width >= 0, "deeprec: sizes must not be negative (are ", rows, ", ", width,
                    ")");
  std::pmr::memory_resource* const pages = deeprec::huge_page_resource::shared();
  const std::size_t bytes =
      static_cast<std::size_t>(rows) * static_cast<std::size_t>(width) * c10::elementSize(type);
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
                     const OptionalTensor&, std::int64_t, std::int64_t, bool, bool, bool includes_last) {
  c10::SymInt bags = ids.dim() == 2 ? ids.sym_size(0) : offsets->sym_size(0);
  if (includes_last && ids.dim() == 1) bags = bags - 1;
  return at::empty_symint({bags, weight.sym_size(1)}, weight.options());
}
Tensor dense_gradient_shape(const Tensor&, const Tensor& weight, const Tensor&, const OptionalTensor&,
                            const OptionalTensor&, std::int64_t, std::int64_t, bool, bool) {
  return at::empty_symint(weight.sym_sizes(), weight.options());
}
Tensor sample_gradients_shape(const Tensor&, const Tensor&, const Tensor& ids, const OptionalTensor&,
                              const Tensor& sample_weights, std::int64_t, std::int64_t, bool) {
  return at::empty_symint(ids.sym_sizes(), sample_weights.options());
}

// --- Autograd ------------------------------------------------------------------------------------

Tensor call_forward(const Tensor& weight, const Tensor& ids, const OptionalTensor& offsets,
                    const OptionalTensor& sample_weights, std::int64_t mode, std::int64_t padding,
                    bool sparse, bool by_frequency, bool includes_last) {
  static const auto called = op<decltype(forward)>("deeprec::embedding_bag");
  return called.call(weight, ids, offsets, sample_weights, mode, padding, sparse, by_frequency,
                     includes_last);
}

struct bag_function : torch::autograd::Function<bag_function> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& weight, const Tensor& ids,
                        const OptionalTensor& offsets, const OptionalTensor& sample_weights,
                        std::int64_t mode, std::int64_t padding, bool sparse, bool by_frequency,
                        bool includes_last) {
    const at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({weight, ids, offsets.value_or(Tensor()), sample_weights.value_or(Tensor())});
    ctx->saved_data["mode"] = mode;
    ctx->saved_data["padding"] = padding;
    ctx->saved_data["flags"] = (sparse ? 1 : 0) | (by_frequency ? 2 : 0) | (includes_last ? 4 : 0);
    return call_forward(weight, ids, offsets, sample_weights, mode, padding, sparse, by_frequency,
                        includes_last);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &weight = saved[0], &ids = saved[1], &gradient = gradients[0];
    const auto given = [](const Tensor& t) { return t.defined() ? OptionalTensor(t) : std::nullopt; };
    const OptionalTensor offsets = given(saved[2]), sample_weights = given(saved[3]);
    const std::int64_t mode = ctx->saved_data["mode"].toInt(), padding = ctx->saved_data["padding"].toInt();
    const std::int64_t flags = ctx->saved_data["flags"].toInt();
    const bool sparse = (flags & 1) != 0, by_frequency = (flags & 2) != 0, includes_last = (flags & 4) != 0;

    Tensor of_weight, of_samples;
    if (ctx->needs_input_grad(0)) {
      if (sparse) {
        static const auto called = op<decltype(row_gradients)>("deeprec::embedding_bag_row_gradients");
        const auto [rows, values] =
            called.call(gradient, weight, ids, offsets, sample_weights, mode, padding, includes_last);
        of_weight = at::_sparse_coo_tensor_unsafe_symint(rows.unsqueeze(0), values, weight.sym_sizes(),
                                                         values.options().layout(at::kSparse))
                        ._coalesced_(true);
      } else {
        static const auto called = op<decltype(dense_gradient)>("deeprec::embedding_bag_dense_gradient");
        of_weight = called.call(gradient, weight, ids, offsets, sample_weights, mode, padding, by_frequency,
                                includes_last);
      }
    }
    // An input that is absent has no number.
    if (sample_weights && ctx->needs_input_grad(offsets ? 3 : 2)) {
      static const auto called = op<decltype(sample_gradients)>("deeprec::embedding_bag_sample_gradients");
      of_samples = called.call(gradient, weight, ids, offsets, *sample_weights, mode, padding, includes_last);
    }
    return {of_weight, Tensor(), Tensor(), of_samples, Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

Tensor differentiable_forward(const Tensor& weight, const Tensor& ids, const OptionalTensor& offsets,
                              const OptionalTensor& sample_weights, std::int64_t mode, std::int64_t padding,
                              bool sparse, bool by_frequency, bool includes_last) {
  const bool wanted = at::GradMode::is_enabled() &&
                      (weight.requires_grad() || (sample_weights && sample_weights->requires_grad()));
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
      "embedding_bag_dense_gradient(Tensor gradient, Tensor weight, Tensor ids, Tensor? offsets, "
      "Tensor? per_sample_weights, int mode, int padding_idx, bool scale_grad_by_freq, "
      "bool include_last_offset) -> Tensor");
  m.def(
      "embedding_bag_row_gradients(Tensor gradient, Tensor weight, Tensor ids, Tensor? offsets, "
      "Tensor? per_sample_weights, int mode, int padding_idx, bool include_last_offset) -> (Tensor, Tensor)");
  m.def(
      "embedding_bag_sample_gradients(Tensor gradient, Tensor weight, Tensor ids, Tensor? offsets, "
      "Tensor per_sample_weights, int mode, int padding_idx, bool include_last_offset) -> Tensor");
  m.def("empty_on_huge_pages(int rows, int width, ScalarType dtype) -> Tensor", empty_on_huge_pages);
}

TORCH_LIBRARY_IMPL(deeprec, CPU, m) {
  m.impl("embedding_bag", forward);
  m.impl("embedding_bag_dense_gradient", dense_gradient);
  m.impl("embedding_bag_row_gradients", row_gradients);
  m.impl("embedding_bag_sample_gradients", sample_gradients);
}
TORCH_LIBRARY_IMPL(deeprec, Meta, m) {
  m.impl("embedding_bag", forward_shape);
  m.impl("embedding_bag_dense_gradient", dense_gradient_shape);
  m.impl("embedding_bag_sample_gradients", sample_gradients_shape);
}
TORCH_LIBRARY_IMPL(deeprec, Autograd, m) { m.impl("embedding_bag", differentiable_forward); }

}  // namespace deeprec_torch
