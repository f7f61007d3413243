// torch.classes.deeprec_bench.DenseStep: the dense parameters of dense_ranks.py, stepped by all processes of
// a group. Compiled by PyTorch's own builder.
#include <ATen/ATen.h>
#include <torch/custom_class.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/interop/c10d_ranks.hpp>
#include <deeprec/optim/sgd.hpp>
#include <deeprec/sharding/dense_step.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace {

using deeprec::index_t;

class dense_parameters : public torch::CustomClassHolder {
  using step_type = deeprec::dense_step<deeprec::sgd, deeprec::c10d_ranks>;

 public:
  dense_parameters(const std::string& group, std::vector<at::Tensor> parameters,
                   std::vector<at::Tensor> gradients, double rate)
      : parameters_(std::move(parameters)),
        gradients_(std::move(gradients)),
        optimizer_{.learning_rate = static_cast<float>(rate)},
        dense_(make(group)) {}

  /// Gradients are ready in the order of a backward pass.
  void step() {
    for (auto t = static_cast<index_t>(parameters_.size()); t-- > 0;) dense_.ready(t).or_throw();
    deeprec::inline_executor here;
    dense_.step(here, optimizer_).or_throw();
  }
  [[nodiscard]] std::int64_t buckets() const { return dense_.buckets(); }

 private:
  step_type make(const std::string& group) {
    std::vector<deeprec::dense_tensor> tensors;
    for (std::size_t t = 0; t < parameters_.size(); ++t) {
      const index_t floats = parameters_[t].numel();
      tensors.push_back(
          {{parameters_[t].data_ptr<float>(), 1, floats}, {gradients_[t].data_ptr<float>(), 1, floats}});
    }
    auto link = deeprec::c10d_link::over(c10d::resolve_process_group(group)).or_throw();
    return step_type::make(deeprec::c10d_ranks(std::move(link)), tensors,
                           {.patience = std::chrono::minutes(1)})
        .or_throw();
  }

  std::vector<at::Tensor> parameters_, gradients_;
  deeprec::sgd optimizer_;
  step_type dense_;
};

}  // namespace

TORCH_LIBRARY(deeprec_bench, m) {
  m.class_<dense_parameters>("DenseStep")
      .def(torch::init<const std::string&, std::vector<at::Tensor>, std::vector<at::Tensor>, double>())
      .def("step", &dense_parameters::step)
      .def("buckets", &dense_parameters::buckets);
}
