// Units of hidden layers that none of some rows of a test switches on: the output of a ReLU whose input is
// never above 0 is always 0, and so is its gradient.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <deeprec/exec/executor_ref.hpp>

#include "ctr_rows.hpp"
#include "models/ctr_data.hpp"
#include "models/model.hpp"
#include "report.hpp"
#include "training.hpp"

namespace ctr {

/// Counts them over the first rows_for_units of a feed, each layer by itself. All rows of a test would cost
/// several percent of a training.
///
/// @post the model is as it was
template <class Model>
std::vector<layer_units> dead_units_of(deeprec::executor_ref pool, Model& model, const ctr_tables& tables,
                                       row_feed& feed) {
  id_order order = tables.raw ? id_order::by_key : id_order::by_slot;
  if constexpr (requires { Model::ids; }) order = ids_for<Model>(tables);
  gathered_rows rows(ctr_rows::chunk_rows, order, tables.columns);
  typename Model::step step;
  typename Model::pass pass = model.make_pass();
  const step_context on(pool);
  model.settle();
  std::vector<std::string> names;
  std::vector<std::vector<char>> is_on;  // of each layer and unit
  for (index_t seen = 0; seen < rows_for_units; seen += ctr_rows::chunk_rows) {
    feed.gather(rows, ctr_rows::chunk_rows, tables);
    const ctr_batch batch = rows.view();
    if (batch.rows() == 0) break;
    model.begin(batch.rows(), step);
    model.look_up(on, batch, step).or_throw();
    model.forward(on, pass, batch, step).or_throw();
    std::size_t layer = 0;
    Model::for_each_stack_pass(pass, [&](const char* name, const deeprec::mlp_pass& of) {
      of.for_each_hidden([&](int l, const auto& x) {
        if (layer == is_on.size()) {
          names.push_back(name + (' ' + std::to_string(l + 1)));
          is_on.emplace_back(static_cast<std::size_t>(x.extent(1)));
        }
        std::vector<char>& units = is_on[layer++];
        for (index_t i = 0; i < x.extent(0); ++i) {
          for (std::size_t u = 0; u < units.size(); ++u)
            units[u] |= static_cast<float>(x(i, static_cast<index_t>(u))) > 0 ? 1 : 0;
        }
      });
    });
  }
  std::vector<layer_units> all;
  for (std::size_t l = 0; l < is_on.size(); ++l) {
    layer_units of{names[l], static_cast<index_t>(is_on[l].size())};
    for (const char on_once : is_on[l]) of.dead += on_once == 0 ? 1 : 0;
    all.push_back(of);
  }
  return all;
}

}  // namespace ctr
