// What a run found: how good the models are, and where the time went.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <deeprec/pipeline/statistics.hpp>

#include "ctr_input.hpp"
#include "options.hpp"
#include "stopwatch.hpp"

namespace ctr {

struct score {
  std::string name;
  double auc = 0;
  double log_loss = 0;
  double samples_per_second = 0;
  index_t samples = 0;
  std::uint64_t checksum = 0;
  stopwatch watch;
  deeprec::pipeline_statistics stages;
  std::string graph;  ///< of the step, in words
};

/// How the rows are read and shuffled, in words.
std::string order_of(const ctr_rows& rows);
/// The table of all scores, and what the stages waited for.
void print(const std::vector<score>& scores, const options& o);
/// To the file that the options name.
void write_json(const std::vector<score>& scores, const ctr_input& input, const options& o, bool interrupted);

}  // namespace ctr
