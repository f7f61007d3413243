// Tensor operators.
#pragma once

#include <deeprec/ops/cast.hpp>
#include <deeprec/ops/column_sums.hpp>
#include <deeprec/ops/dedup_rows.hpp>
#include <deeprec/ops/dynamic_stitch.hpp>
#include <deeprec/ops/expression.hpp>
#include <deeprec/ops/owner_rules.hpp>
#include <deeprec/ops/partition_unique.hpp>
#include <deeprec/ops/row_select.hpp>
#include <deeprec/ops/tile.hpp>
#include <deeprec/ops/transpose.hpp>
#include <deeprec/ops/unique.hpp>
