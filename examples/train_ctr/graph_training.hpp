// Runs the step of a model as a graph: on one thread, or as a pipeline that is cut where the user's stage is,
// or where smart_stage moves it.
//
//   graph_training<raw_rows> steps([&](row_reader read) { return make_graph_step(model, tables, read); },
//                                  how);
//   steps.run(pool, read, trained, watch);       once for each epoch
//   steps.write_trace();
//   predict_by_graph(pool, make, fill, each)     the logits of rows
//
// The source of a step makes rows of a click log (raw_rows) or histories (history_batch).
//
// The time of an op counts for its part where it runs in the training itself; what a stage runs ahead takes
// none of it, but that the training waits for it: this is time of the part "read".
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/graph/step/fusion/step_pattern.hpp>
#include <deeprec/graph/step/op_schedule.hpp>
#include <deeprec/pipeline/statistics.hpp>

#include "models/history_data.hpp"
#include "models/step_maker.hpp"
#include "options.hpp"
#include "step_scratch.hpp"
#include "stopwatch.hpp"

namespace ctr {

/// Makes the graph of a step that begins with this reader.
template <class Source>
using make_step = std::function<graph_step_of<Source>(reader_of<Source>)>;

struct graph_options {
  bool smart_stage = false;
  std::vector<deeprec::step_pattern> fusions{};  ///< of ops that are replaced by one
  index_t async_window = 0;                      ///< of lookups that run ahead; 0: they are in the step
  /// Parts of a batch for which sample-wise ops run; 1: the whole batch, 0: by the number of samples.
  index_t parts = 1;
  deeprec::op_schedule schedule = deeprec::op_schedule::in_turn;  ///< for whole batches
  bool memory_plan = false;
  int threads = 1;      ///< of the pool
  int prefetch = 16;    ///< steps between the stage and the rest; 0: no stage
  std::string trace;    ///< file for the spans of all ops; empty: none
  std::string picture;  ///< file for the graph in Graphviz's language; empty: none
};

/// Those of the command line, for whole batches and without fusions.
graph_options graph_options_of(const options& o);

template <class Source>
class graph_training {
 public:
  /// @param make  what the graph refers to outlives this
  graph_training(const make_step<Source>& make, const graph_options& how);
  ~graph_training();
  graph_training(const graph_training&) = delete;
  graph_training& operator=(const graph_training&) = delete;

  /// Trains with what read(rows) makes until it returns false; it is called on the thread that reads.
  /// trained(rows) follows each step.
  deeprec::pipeline_statistics run(deeprec::thread_pool& pool, const reader_of<Source>& read,
                                   const std::function<void(index_t)>& trained, stopwatch& watch);

  /// The graph and the cut in words: how many ops of which kinds are where, and why the others are not
  /// staged.
  [[nodiscard]] std::string explain() const;
  [[nodiscard]] memory_use memory() const;
  /// To the file that the options name, where they name one.
  void write_trace() const;

 private:
  class body;
  std::unique_ptr<body> body_;
};

/// Predicts until fill(rows) returns false; each(logits, labels) follows each batch.
///
/// @param make  makes the graph of a prediction
template <class Source>
void predict_by_graph(deeprec::executor_ref pool, const std::type_identity_t<make_step<Source>>& make,
                      const reader_of<Source>& fill,
                      const std::function<void(matrix_view<const float>, matrix_view<const float>)>& each);

}  // namespace ctr
