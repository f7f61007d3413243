// Whole rows of 64 floats by a condition: as many as a layer has, and more than the caches hold.
#include <deeprec/deeprec.hpp>  // in every commit; folders move

#include <span>

#include "support/bodies.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bodies_of;

template <int Rows>
struct selected {
  static constexpr index_t rows = Rows, width = 64;
  static constexpr double items = Rows;

  explicit selected(const host& h)
      : condition(h.memory<bool>("condition", rows,
                                 [](bool* to, index_t n) {
                                   for (index_t b = 0; b < n; ++b)
                                     to[b] = draw(14, static_cast<std::uint64_t>(b)) % 2 == 0;
                                 })),
        then(h.memory<float>("then", rows * width, fill)),
        otherwise(h.memory<float>("otherwise", rows * width, fill)),
        out(h.memory<float>("out", rows * width)) {}
  static void fill(float* to, index_t n) {
    fill_rows(reinterpret_cast<char*>(to), n * index_t{sizeof(float)});
  }

  void run() {
    must(row_select(here, std::span<const bool>(condition, static_cast<std::size_t>(rows)),
                    matrix_view<const float>(then, rows, width),
                    matrix_view<const float>(otherwise, rows, width), matrix_view(out, rows, width)));
  }
  std::uint64_t checksum() {
    run();
    return checksum_of(out, rows * width);
  }

  bool* condition;
  float *then, *otherwise, *out;
  inline_executor here;
};

}  // namespace

DEEPREC_BODIES(body<selected<1024>>("row_select/rows:1024", "row"),
               body<selected<16384>>("row_select/rows:16384", "row"),
               body<selected<1 << 19>>("row_select/rows:524288", "row"))
