#include "tables.hpp"

namespace deeprec_torch {

std::unique_ptr<tables> make_lookup_tables(std::vector<table_config> configs, const step_options& options) {
  return std::make_unique<tables_of<deeprec::lookups_only>>(std::move(configs), options);
}

}  // namespace deeprec_torch
