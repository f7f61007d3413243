// What another framework needs to train the same model on the same batches, as files of a folder:
//
//   train_dense.npy (R, 2 N), train_labels.npy (R, 1), train_rows.npy (R, S)   rows among those of all
// tables, in
//   test_dense.npy, ...                                                     the order of the first epoch
//   train_weights.npy (R, 1), test_weights.npy   where rows have weights
//   first_row.npy (S + 1, 1)      where each slot's table begins; the last: rows of all
//   <part>.npy                the first weights: rows of a table, or a stack's parameters as one row
//   sizes.json                sizes of the model and how it is trained
//   test_logits.npy (T,1)     after training
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/optim/adagrad.hpp>

#include "ctr_rows.hpp"
#include "models/model.hpp"
#include "npy.hpp"
#include "options.hpp"
#include "output_file.hpp"

namespace ctr {

inline void export_rows(const std::filesystem::path& folder, const std::string& name, const ctr_rows& rows,
                        row_use use, const ctr_tables& tables, deeprec::executor_ref reading) {
  const index_t slots = tables.columns.slots();
  npy_file<float> dense(folder / (name + "_dense.npy"), tables.columns.dense_width()),
      labels(folder / (name + "_labels.npy"), 1);
  npy_file<row_id> ids(folder / (name + "_rows.npy"), slots);
  std::optional<npy_file<float>> weights;
  if (tables.columns.has_weights) weights.emplace(folder / (name + "_weights.npy"), 1);
  row_feed feed(rows, use);
  feed.begin(reading, 0, 0);
  gathered_rows batch(ctr_rows::chunk_rows, id_order::by_row, tables.columns);
  for (;;) {
    feed.gather(batch, ctr_rows::chunk_rows, tables);
    if (batch.rows() == 0) break;
    const ctr_batch view = batch.view();
    for (index_t i = 0; i < view.rows(); ++i) {
      dense.add(view.dense.row(i));
      labels.add(view.labels.row(i));
      ids.add(view.by_row.ids() + i * slots);
      if (weights) weights->add(view.weights.row(i));
    }
  }
  dense.close();
  labels.close();
  ids.close();
  if (weights) weights->close();
}

/// The weights as they are, without the state of optimizers.
template <class Model>
void export_weights(const std::filesystem::path& folder, Model& model) {
  const model_parts parts = model.parts();
  for (const deeprec::named_table& part : parts.tables) {
    if (part.name.ends_with("state of the optimizer")) continue;
    npy_file<float> file(folder / (part.name + ".npy"), part.width);
    for (index_t r = 0; r < part.rows; ++r) {
      file.add(reinterpret_cast<const float*>(part.data + r * part.stride_bytes));
    }
    file.close();
  }
}

template <class Options>
void export_sizes(const std::filesystem::path& folder, std::string_view model, Options how,
                  const options& o) {
  nlohmann::json all = {{"model", model},
                        {"batch_size", o.batch_size},
                        {"epochs", o.epochs},
                        {"steps", o.steps},
                        {"seed", o.seed},
                        {"threads", o.threads},
                        {"dense_rate", how.dense_rate},
                        {"row_rate", how.row_rate},
                        {"initial_squares", how.initial_squares}};
  how.for_each_size([&](std::string_view name, const auto& size) { all[std::string(name)] = size; });
  all["dense_epsilon"] = deeprec::adagrad{}.epsilon;
  all["row_epsilon"] = deeprec::rowwise_adagrad{}.epsilon;
  if constexpr (requires { how.row_epsilon; }) all["row_epsilon"] = how.row_epsilon;
  if constexpr (requires { how.wide_rate; }) {
    all["wide_rate"] = how.wide_rate;
    all["wide_epsilon"] = how.wide_epsilon;
  }
  write_file(folder / "sizes.json", all.dump(2) + '\n');
}

template <class Model>
void export_before(const options& o, Model& model, const typename Model::options& how, const ctr_rows& train,
                   const ctr_rows& test, const ctr_tables& tables, deeprec::executor_ref reading) {
  const std::filesystem::path folder = o.export_to;
  std::error_code wrong;
  std::filesystem::create_directories(folder, wrong);
  if (wrong) throw failure("cannot write " + folder.string());
  export_rows(folder, "train", train, row_use::train, tables, reading);
  export_rows(folder, "test", test, row_use::test, tables, reading);
  npy_file<index_t> first_row(folder / "first_row.npy", 1);
  for (const index_t& first : tables.first_row) first_row.add(&first);
  first_row.close();
  export_weights(folder, model);
  export_sizes(folder, Model::name, how, o);
}

}  // namespace ctr
