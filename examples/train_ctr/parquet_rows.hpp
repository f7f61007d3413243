// Rows of Parquet files by the columns of a schema, the same as those of a table in text with their values.
// Arrow's headers are in parquet_rows.cpp only.
#pragma once

#include <memory>
#include <string>

#include <deeprec/data/csv_format.hpp>

#include "data_schema.hpp"

namespace ctr {

class row_source;

/// Whether one of the files of these inputs, one a line, is Parquet, by its first bytes. Pipes are not.
bool any_is_parquet(const std::string& inputs);

/// Throws a failure where train_ctr is built without Arrow, without a schema (null), and where one of the
/// files is not Parquet.
///
/// @pre any_is_parquet(inputs)
std::unique_ptr<row_source> parquet_rows_of(const std::string& inputs, deeprec::csv_format format,
                                            const data_schema* schema, index_t most_bad);

}  // namespace ctr
