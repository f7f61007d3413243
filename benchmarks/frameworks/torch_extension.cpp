// A lookup as a user of PyTorch would add it, on a tensor that PyTorch made: the op of docs/pytorch.md, bound
// to Python. torch_suite.py compiles it.
#include <ATen/Parallel.h>
#include <torch/extension.h>

#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/interop/at_parallel_for.hpp>

namespace {

at::Tensor bag_sums(const at::Tensor& weight, const at::Tensor& ids, const at::Tensor& offsets) {
  const deeprec::torch_executor threads{[](std::int64_t begin, std::int64_t end, std::int64_t grain,
                                           const auto& f) { at::parallel_for(begin, end, grain, f); },
                                        at::get_num_threads()};
  const deeprec::matrix_view table(weight.const_data_ptr<float>(), weight.size(0), weight.size(1));
  const auto bags = deeprec::jagged_view<>::torch(offsets.const_data_ptr<std::int64_t>(), offsets.size(0),
                                                  ids.const_data_ptr<std::int64_t>(), ids.numel());
  at::Tensor out = at::empty({offsets.size(0), weight.size(1)}, weight.options());
  const deeprec::matrix_view sums(out.data_ptr<float>(), out.size(0), out.size(1));
  const deeprec::status s =
      deeprec::lookup(threads, deeprec::as_table(table), bags, deeprec::combiner::sum, sums);
  TORCH_CHECK_INDEX(s, s.message());
  return out;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) { module.def("bag_sums", &bag_sums); }
