// Eigen's broadcast and select. Eigen's namespace is renamed for each build, or the linker would take
// one build's templates for both.

#define DEEPREC_BASELINE_JOIN_(a, b) a##b
#define DEEPREC_BASELINE_JOIN(a, b) DEEPREC_BASELINE_JOIN_(a, b)
#define Eigen DEEPREC_BASELINE_JOIN(Eigen_, DEEPREC_BASELINE_NS)
#include <unsupported/Eigen/CXX11/Tensor>

#include "row_select/baseline.hpp"

namespace row_select_baseline::DEEPREC_BASELINE_NS {

template <class T, int Rank>
using tensor = Eigen::TensorMap<Eigen::Tensor<T, Rank, Eigen::RowMajor>>;

void eigen_select(const bool* cond, const float* then, const float* otherwise, float* out, long rows,
                  long width) {
  Eigen::IndexList<long, Eigen::type2index<1>> column;
  column.set(0, rows);
  Eigen::IndexList<Eigen::type2index<1>, long> across;
  across.set(1, width);
  const tensor<const bool, 1> c(cond, rows);
  const tensor<const float, 2> t(then, rows, width);
  const tensor<const float, 2> e(otherwise, rows, width);
  tensor<float, 2> o(out, rows, width);
  o.device(Eigen::DefaultDevice{}) = c.reshape(column).broadcast(across).select(t, e);
}

}  // namespace row_select_baseline::DEEPREC_BASELINE_NS
