#include <deeprec/deeprec.hpp>

#include <Eigen/Core>

#include <cstdint>
#include <cstdio>

#if defined(DEEPREC_WITH_CUDA)
#  error "nobody asked for CUDA"
#endif

// Prints the version and ends with 0 when a lookup in Eigen's memory gives what Eigen computes.
int main() {
  std::printf("deeprec %d.%d.%d\n", DEEPREC_VERSION_MAJOR, DEEPREC_VERSION_MINOR, DEEPREC_VERSION_PATCH);
  using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  matrix rows(3, 4), out(2, 4);
  rows << 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12;
  const std::int64_t offsets[] = {0, 2, 3}, ids[] = {2, 0, 1};
  const deeprec::status s =
      deeprec::lookup(deeprec::inline_executor{}, deeprec::as_table(deeprec::matrix_view(rows.data(), 3, 4)),
                      deeprec::jagged_view(offsets, 2, ids, 3), deeprec::combiner::sum,
                      deeprec::matrix_view(out.data(), 2, 4));
  const bool right = s.ok() && out.row(0) == rows.row(2) + rows.row(0) && out.row(1) == rows.row(1);
  std::printf("%s, %s\n", s.message().c_str(), right ? "as Eigen" : "WRONG");
  return right ? 0 : 1;
}
