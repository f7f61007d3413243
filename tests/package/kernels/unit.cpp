// Compiled under several flags; UNIT is the name of the function.
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/exec/inline_executor.hpp>

using namespace deeprec;

/// Sums of bags of 4 ids of a table (50,37), weighted means and copies of rows, on every instruction set:
/// out (3,8,37) for each.
void UNIT(const float* table, const long long* ids, float* out) {
  constexpr index_t rows = 50, width = 37, bags = 8;
  inline_executor executor;
  context ctx(executor);
  const auto from = as_table(matrix_view<const float>(table, rows, width));
  const fixed_hotness_view<long long> batch(ids, bags, 4), weighted(ids, bags, 4, table),
      single(ids, bags, 1);
  for (const isa which : every_isa) {
    if (which > best_isa()) continue;
    ctx.instruction_set = which;
    const auto block = [&](index_t k) { return matrix_view<float>(out + k * bags * width, bags, width); };
    if (!lookup(ctx, from, batch, combiner::sum, block(0)).ok()) return;
    if (!lookup(ctx, from, weighted, combiner::sqrtn, block(1)).ok()) return;
    if (!lookup(ctx, from, single, combiner::sum, block(2)).ok()) return;
    out += 3 * bags * width;
  }
}
