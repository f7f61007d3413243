#include "tables.hpp"

namespace deeprec_torch {

std::unique_ptr<tables> make_decayed_sgd_tables(std::vector<table_config> configs,
                                                const step_options& options) {
  using optimizer = deeprec::with_weight_decay<deeprec::sgd>;
  return std::make_unique<tables_of<optimizer, deeprec::rounding::stochastic>>(std::move(configs), options);
}

}  // namespace deeprec_torch
