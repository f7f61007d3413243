// The value of a graph of matrices after a step, and whether two of them have the same bits.
#pragma once

#include <deeprec/core/matrix_view.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/graph/step/plan_memory.hpp>
#include <deeprec/graph/step/step_graph.hpp>
#include <deeprec/graph/step/step_program.hpp>

#include <doctest/doctest.h>

#include <cstring>
#include <type_traits>
#include <vector>

namespace deeprec_test {

/// The elements of a matrix, row by row.
template <class T>
auto elements(const deeprec::matrix_view<T>& m) {
  std::vector<std::remove_const_t<T>> all;
  for (deeprec::index_t i = 0; i < m.extent(0); ++i) all.insert(all.end(), m.row(i), m.row(i) + m.extent(1));
  return all;
}
/// Those of a value after two steps.
template <class V>
auto after_step(const deeprec::step_graph& g, const V& wanted, const deeprec::step_options& options = {}) {
  const deeprec::step_program program = deeprec::step_program::compile(g, options).or_throw();
  deeprec::step_state state = program.make_state();
  deeprec::thread_pool pool(2);
  for (int i = 0; i < 2; ++i) REQUIRE(program.run(pool, state).or_throw());
  return elements(state.get(wanted).view());
}
/// The same where the values share one block.
template <class V>
auto after_planned_step(const deeprec::step_graph& g, const V& wanted) {
  const deeprec::step_program program = deeprec::step_program::compile(g).or_throw();
  deeprec::step_state state = program.make_state();
  const deeprec::inline_executor here;
  REQUIRE(program.run(here, state).or_throw());
  deeprec::place_values(state, deeprec::plan_memory(program, state).or_throw()).or_throw();
  REQUIRE(program.run(here, state).or_throw());
  return elements(state.get(wanted).view());
}
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace deeprec_test
