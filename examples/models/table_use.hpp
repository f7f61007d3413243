// How many rows of a model's tables its training has stepped.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "slot_tables.hpp"

namespace ctr {

struct table_use {
  std::string name;
  index_t rows = 0;
  index_t stepped = 0;  ///< whose sum of squares is above 0: of Adagrad; SGD keeps none
  index_t bytes = 0;
};

template <class Model>
std::vector<table_use> uses_of_tables(Model& model) {
  std::vector<table_use> all;
  const model_parts parts = model.parts();
  for (const deeprec::named_table& part : parts.tables) {
    if (part.state_floats == 0) continue;
    table_use of{part.name, part.rows, 0, part.rows * part.stride_bytes};
    for (index_t r = 0; r < part.rows; ++r) {
      const std::byte* const row =
          part.addresses != nullptr ? part.addresses[r] : part.data + r * part.stride_bytes;
      float squares = 0;
      std::memcpy(&squares, row + part.state_offset, sizeof squares);
      of.stepped += squares > 0 ? 1 : 0;
    }
    all.push_back(of);
  }
  return all;
}

}  // namespace ctr
