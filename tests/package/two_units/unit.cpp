// Compiled twice, with and without -march=native; UNIT is the name of the function.
#include <deeprec/embedding/lookup.hpp>
#include <deeprec/exec/inline_executor.hpp>

using namespace deeprec;

status UNIT(isa which, matrix_view<const float> weights, jagged_view<> bags, matrix_view<float> out) {
  inline_executor executor;
  context ctx(executor);
  ctx.instruction_set = which;
  return lookup(ctx, as_table(weights), bags, mean, out);
}
