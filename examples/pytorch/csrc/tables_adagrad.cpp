#include "tables.hpp"

namespace deeprec_torch {

std::unique_ptr<tables> make_adagrad_tables(std::vector<table_config> configs, const step_options& options) {
  return std::make_unique<tables_of<deeprec::adagrad>>(std::move(configs), options);
}

}  // namespace deeprec_torch
