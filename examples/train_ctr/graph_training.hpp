// Runs the step of a model as a graph: on one thread, or as a pipeline that is cut where the user's stage is,
// or where smart_stage moves it.
//
//   graph_training steps([&](row_reader read) { return make_graph_step(model, tables, read); }, how);
//   steps.run(pool, feed, over, trained, watch);     once for each epoch
//   steps.write_trace();
//   predict_by_graph(pool, step, 4096, fill, each)   the logits of rows
//
// The time of an op counts for its part where it runs in the training itself; what a stage runs ahead takes
// none of it, but that the training waits for it: this is time of the part "read".
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/pipeline/statistics.hpp>

#include "ctr_rows.hpp"
#include "models/step_maker.hpp"
#include "stopwatch.hpp"

namespace ctr {

/// Makes the graph of a step that begins with this reader.
using make_step = std::function<graph_step(row_reader)>;

struct graph_options {
  bool smart_stage = false;
  index_t batch_size = 128;
  int threads = 1;      ///< of the pool
  int prefetch = 16;    ///< steps between the stage and the rest; 0: no stage
  std::string trace;    ///< file for the spans of all ops; empty: none
  std::string picture;  ///< file for the graph in Graphviz's language; empty: none
};

class graph_training {
 public:
  /// @param make  what the graph refers to outlives this
  graph_training(const make_step& make, const graph_options& how);
  ~graph_training();
  graph_training(const graph_training&) = delete;
  graph_training& operator=(const graph_training&) = delete;

  /// Trains with the rows of the feed until it ends. over() is called before rows are read, on the thread
  /// that reads; true: no further step. trained(rows) follows each step.
  deeprec::pipeline_statistics run(deeprec::thread_pool& pool, row_feed& feed,
                                   const std::function<bool()>& over,
                                   const std::function<void(index_t)>& trained, stopwatch& watch);

  /// The graph and the cut in words: how many ops of which kinds are where, and why the others are not
  /// staged.
  [[nodiscard]] std::string explain() const;
  /// To the file that the options name, where they name one.
  void write_trace() const;

 private:
  class body;
  std::unique_ptr<body> body_;
};

/// Predicts until fill(rows) returns false; each(logits, labels) follows each batch.
///
/// @param make  makes the graph of a prediction
void predict_by_graph(deeprec::executor_ref pool, const make_step& make, const row_reader& fill,
                      const std::function<void(matrix_view<const float>, matrix_view<const float>)>& each);

}  // namespace ctr
