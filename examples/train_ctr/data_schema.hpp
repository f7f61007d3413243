// Columns of one's own: --schema, a file of JSON that tells what each column of --data is. Its keys are those
// of csv_format and csv_column: docs/train_ctr_schema.md.
//
//   {"header": true, "columns": [{"name": "click", "use": "label"}, {"name": "city", "use": "token"}, ...]}
//
// A saved model keeps its schema, so that predictions need nothing else but the files of its vocabularies.
#pragma once

#include <string>
#include <vector>

#include <deeprec/data/csv_format.hpp>

#include "models/ctr_data.hpp"

namespace ctr {

struct data_schema {
  deeprec::csv_format format;      ///< counts before the other dense values
  ctr_columns columns;             ///< with its text
  std::vector<index_t> rows;       ///< of each token column: the ids of its table; 0: not given
  std::vector<std::string> files;  ///< of its vocabularies: absolute paths
};

/// The path of a vocabulary is relative to the folder of the file, or to `folder`, an absolute path; the text
/// of the columns has its absolute path. Throws a failure that names the file, or `where`, and the place in
/// the JSON.
data_schema read_schema(const std::string& path);
data_schema schema_of(const std::string& text, const std::string& where, const std::string& folder = {});

}  // namespace ctr
