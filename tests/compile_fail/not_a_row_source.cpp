// expect: "deeprec::lookup: not a row source. Fix: give it data\(\), or resolve"
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/exec/inline_executor.hpp>

struct my_table {
  using format_type = deeprec::f32_rows;
  using space = deeprec::host_space;
  const format_type& format() const;
  deeprec::index_t rows() const;
#if !DEEPREC_MUST_FAIL
  void resolve(const std::int64_t* ids, deeprec::index_t n, const std::byte** addresses) const;
#endif
};

deeprec::status call(const my_table& table, deeprec::jagged_view<> bags, deeprec::matrix_view<float> out) {
  deeprec::inline_executor executor;
  return deeprec::lookup(executor, table, bags, deeprec::combiner::sum, out);
}
