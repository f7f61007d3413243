// What the user of train_ctr asks for.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <deeprec/core/dtypes.hpp>

namespace ctr {

using deeprec::index_t;

struct data_schema;

struct options {
  std::string data, test;  // inputs, one a line, as items and predict
  std::vector<std::string> models;
  index_t batch_size = 128;
  int epochs = 1;
  index_t steps = 0;
  int threads = 0;
  index_t stale_window = 0;
  index_t async_embedding = 0;
  index_t micro_batch = 0;
  int prefetch = 16;  // a few milliseconds of reading, so that not every batch wakes a thread
  std::uint64_t seed = 1;
  double train_fraction = 0.8;
  std::string memory;
  index_t skip_bad = 0;                        // rows of --data that are left out at most
  std::string schema;                          // a file of the columns of --data; empty: Criteo's
  std::shared_ptr<const data_schema> columns;  // what it has, or what the model of --load has
  index_t window = 0;
  index_t rows = 500'000;
  std::string planted = "mixed";
  std::string synthesize;
  std::string keys = "hashed";  // or "raw", of the tokens of click logs
  std::uint32_t admit = 1;      // of raw keys, as key_rules
  std::uint64_t ttl = 0;
  index_t capacity = 0;
  std::string math = "f32";
  bool last_layer_f32 = false;
  index_t width = 0;                               // of the rows of tables; 0: the model's default
  std::vector<index_t> bottom, top;                // hidden layers; empty: the model's default
  float learning_rate = 0, row_learning_rate = 0;  // of stacks, of rows; 0: the model's defaults
  std::string optimizer = "adagrad";               // or "sgd", of rows and stacks
  float l2 = 0, dropout = 0;
  std::string schedule = "constant";  // or "step", "cosine", "smooth"
  index_t warm_up = 0, decay_every = 1000, decay_steps = 0;
  float decay = 0.5F, last_rate = 0;
  std::string valid;  // a file of rows that validate, or the fraction of those to train
  index_t valid_every = 0, patience = 0;
  std::string group;     // the column of tokens by which AUC is grouped
  int group_column = 0;  // its number, from 1; 0: none
  bool new_data = false;
  std::string evaluate;  // a file of rows with labels
  int repeat = 1;
  std::string log, report, tensorboard;  // a file, and two folders
  index_t log_every = 100;
  bool importance = false;
  std::string table_rows;  // of a column of hashed tokens: a number, "auto", or empty: the source's
  float initial_squares = 0;
  index_t cross_layers = 0;  // 0: the model's default
  std::string items;         // file of the items of histories
  index_t history = 50;
  std::string test_rows;  // file for the rows that test histories
  bool no_attention = false, validate = false;
  float temperature = 0;  // 0: the model's default
  std::string step;       // "graph", "direct"; empty: the former where what needs it is set
  std::string executor;   // of a graph's ops: "inline", "pool", "cost"; empty: inline
  bool smart_stage = false;
  bool fusion = false;
  bool memory_plan = false;
  bool ranks = false;
  std::string trace, graph;
  std::string load, save;
  std::string predict, output;
  std::string output_format = "lines";  // or "csv", "raw"
  std::string export_to;
  index_t save_every = 0;
  std::string json;
  int verbose = 0;

  [[nodiscard]] bool has_raw_keys() const { return keys == "raw"; }
  /// Whether predictions have the names of their rows.
  [[nodiscard]] bool writes_names() const { return output_format == "csv"; }
  /// Of --valid; 0: it is a file, or there is none.
  [[nodiscard]] double valid_fraction() const;
  [[nodiscard]] bool has_schedule() const { return schedule != "constant" || warm_up > 0; }
  [[nodiscard]] bool is_graph() const {
    return step == "graph" || smart_stage || fusion || async_embedding > 0 || !executor.empty() ||
           !trace.empty() || !graph.empty();
  }
};

/// Fills the options; the code to exit with where the program is not to run, after a line on stderr or the
/// help.
std::optional<int> parse(options& o, int argc, char** argv);

/// Sets the number of the column that --group names, by the columns of the options. Throws a failure.
void find_group(options& o);

}  // namespace ctr
