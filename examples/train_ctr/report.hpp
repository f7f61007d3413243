// What a run found: how good the models are, and where the time went.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <deeprec/dense/metrics/metrics.hpp>
#include <deeprec/pipeline/statistics.hpp>

#include "ctr_rows.hpp"
#include "evaluation.hpp"
#include "models/slot_tables.hpp"
#include "models/table_use.hpp"
#include "options.hpp"
#include "prediction_bins.hpp"
#include "run_journal.hpp"
#include "step_scratch.hpp"
#include "stopwatch.hpp"

namespace ctr {

/// How much the log loss of the test rises where the values of a slot change places among its rows.
struct slot_importance {
  std::string slot;
  double rise = 0;
};

/// Rows of the test that units are looked at with.
inline constexpr index_t rows_for_units = 8192;

/// A hidden layer, and its units that none of these rows switches on.
struct layer_units {
  std::string name;
  index_t units = 0, dead = 0;
};

struct score {
  std::string name;
  double auc = 0;                                              ///< NaN: of one class only
  const char* no_auc = "";                                     ///< which
  double user_auc = std::numeric_limits<double>::quiet_NaN();  ///< the mean of each user's; NaN: of no users
  double log_loss = 0;                                         ///< NaN: the scores are no logits
  double calibration = undefined, group_auc = undefined;       ///< as those of figures
  index_t groups = 0, groups_left_out = 0;
  std::uint64_t seed = 0;
  index_t rows = 0;                ///< tested
  std::vector<evaluation> passes;  ///< between steps
  index_t kept_step = 0;           ///< by --patience; 0: the last one
  std::vector<step_facts> steps;   ///< of --report
  prediction_bins predictions;     ///< of the test
  std::vector<slot_importance> importance;
  std::vector<layer_units> layers;  ///< of --report
  std::vector<table_use> uses;      ///< of --report
  double samples_per_second = 0;
  index_t samples = 0;
  std::uint64_t checksum = 0;
  std::optional<table_counts> tables;  ///< of models of click logs, after training
  bool has_raw_keys = false;
  stopwatch watch;
  deeprec::pipeline_statistics stages;
  std::string graph;      ///< of the step, in words
  memory_use memory{};    ///< of the training
  std::string unwritten;  ///< why a file of this model could not be written; empty: all were

  void set_auc(deeprec::auc& area) {
    figures of;
    ctr::set_auc(of, area);
    auc = of.auc;
    no_auc = of.no_auc;
  }
  void set(const figures& of) {
    auc = of.auc;
    no_auc = of.no_auc;
    log_loss = of.log_loss;
    calibration = of.calibration;
    group_auc = of.group_auc;
    groups = of.groups;
    groups_left_out = of.groups_left_out;
    rows = of.rows;
  }
  /// Calls write(), whose failure is reported after the results.
  template <class Write>
  void write(const Write& write) {
    try {
      write();
    } catch (const failure& wrong) {
      if (unwritten.empty()) unwritten = wrong.what();
    }
  }
};

/// What a run is about.
struct data_facts {
  index_t rows = 0, train_rows = 0, valid_rows = 0, test_rows = 0;
  index_t window = 0;  ///< rows that are shuffled at a time; 0: all
  bool is_kept = true;
  index_t table_rows = 0;
  skipped_rows skipped{};
};

inline void add(deeprec::pipeline_statistics& sum, const deeprec::pipeline_statistics& more) {
  if (sum.stages.empty()) {
    sum = more;
    return;
  }
  sum.elapsed += more.elapsed;
  for (std::size_t i = 0; i < sum.stages.size(); ++i) {
    deeprec::stage_statistics& s = sum.stages[i];
    s.items += more.stages[i].items;
    s.busy += more.stages[i].busy;
    s.input_wait += more.stages[i].input_wait;
    s.output_wait += more.stages[i].output_wait;
    s.occupancy = static_cast<double>(s.busy.count()) / static_cast<double>(sum.elapsed.count());
  }
}

/// What multiplies matrices, in words; of a --math that is a permission also whether it is taken, which
/// depends on the machine and on the shape: that of a layer of 256 inputs and outputs.
std::string gemm_words(const options& o);
/// How the rows are read and shuffled, in words.
std::string order_of(const ctr_rows& rows);
/// Prints the table of all scores and what the stages waited for, and writes --json. Then throws a failure
/// where a file could not be written, which may be one of before.
void report(const std::vector<score>& scores, const data_facts& data, const options& o, bool interrupted,
            const std::string& unwritten = {});

}  // namespace ctr
