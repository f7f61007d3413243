// expect: "deeprec::lookup: not a row source. Fix: give it format_type, space"
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/exec/inline_executor.hpp>

struct my_table {
  using format_type = deeprec::f32_rows;
#if !DEEPREC_MUST_FAIL
  using space = deeprec::host_space;
#endif
  const format_type& format() const;
  deeprec::index_t rows() const;
  void resolve(const std::int64_t* ids, deeprec::index_t n, const std::byte** addresses) const;
};

deeprec::status call(const my_table& table, deeprec::jagged_view<> bags, deeprec::matrix_view<float> out) {
  deeprec::inline_executor executor;
  return deeprec::lookup(executor, table, bags, deeprec::combiner::sum, out);
}
