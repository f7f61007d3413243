// expect: "deeprec::lookup: not a batch of bags. Fix: give it the members that concept BagBatch"
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/exec/inline_executor.hpp>

struct my_bags {
  using id_type = std::int64_t;
  using space = deeprec::host_space;
  deeprec::index_t bags() const;
  deeprec::index_t id_count() const;
  deeprec::index_t first_position() const;
  deeprec::index_t end_position() const;
  const std::int64_t* ids() const;
  const float* weights() const;
  bool is_one_hot() const;
  deeprec::status validate() const;
#if DEEPREC_MUST_FAIL
  struct from_to {
    deeprec::index_t begin(deeprec::index_t bag) const;
    deeprec::index_t end(deeprec::index_t bag) const;
  };
  from_to ranges() const;
#else
  deeprec::detail::fixed_ranges ranges() const;
#endif
};

deeprec::status call(deeprec::const_table_view<deeprec::f32_rows> table, const my_bags& bags,
                     deeprec::matrix_view<float> out) {
  deeprec::inline_executor executor;
  return deeprec::lookup(executor, table, bags, deeprec::combiner::sum, out);
}
