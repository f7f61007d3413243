// Lookups of int8 rows with f16 scale and bias: the layout of FBGEMM's table-batched kernels.
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/tables/quantized_rows.hpp>

#include <doctest/doctest.h>

#include "embedding/quantized_support.hpp"

using namespace embedding_test;

TEST_CASE("quantized_rows<8, f16>: scale and bias first, every width, combiner and ISA, inside guard pages") {
  check_lookups_of_codes<8, f16, bf16>(scale_bias::first);
}
