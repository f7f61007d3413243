// Cuts the steps of a graph by samples: ops that are sample-wise run for a part of the batch on one thread,
// several parts at once.
//
//   step_program program = step_program::compile(g, {.samples = by_lanes()}).or_throw();
//   program.run(pool, state).or_throw();
//
//   struct relu_op {                                        each row of its output depends on that row of its
//     static constexpr bool sample_wise = true;             input only, and it changes nothing else
//     using output = matrix;
//     void operator()(const matrix& in, matrix& out) const;
//   };
//   auto pass = g.local("tower pass", [&] { return tower.make_pass(); });     what a part needs for itself
//
// Values pass between the parts and the whole batch as batch_traits<T> has it:
//   refer(whole, first, count, part)     a part refers to samples of a value (or split(), where it returns T)
//   make_room(whole, samples, part)      the value of the batch takes the shape of its parts
//   join(part, first, whole)             and their samples; or
//   gradient(v)                          a matrix_view<float>, which is summed over the parts
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/graph/detail/lane_plan.hpp>
#include <deeprec/graph/detail/lane_run.hpp>
#include <deeprec/graph/step_program.hpp>
#include <deeprec/pipeline/micro_chunk.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// For step_options and staged_options: sample-wise ops run by parts, as the stages of micro_batch by lanes
/// do. Other ops run for the whole batch: one between sample-wise ops, such as a layer with statistics over
/// the batch, is a barrier, and each part keeps its values until the step ends.
///
/// @pre     the resources of the context and of the state are thread-safe; so is the trace sink
/// @post    a value that only sample-wise ops take is not in the state, unless step_graph::keep
/// @numerics the parts depend on the number of samples alone, and gradients are summed in a tree: the same
///          bits for any number of threads. They are not those of the whole batch, but for one part
/// @cost    a parallel_for for each run of sample-wise levels; values of the parts are made in the first run
/// @threads reentrant
/// @error   none here; compile() returns invalid_value or unsupported, with the op's name: members of `lanes`
///          below 1; a sample-wise op that is external, changes a variable that is no local, takes no value
///          of samples or one that can't be cut, or makes one for others that can't be joined or summed; a
///          local that ops of both kinds access. run() returns shape_mismatch for values of different numbers
///          of samples
/// @example @snippet tests/graph/lane_steps_test.cpp by_lanes
[[nodiscard]] inline sample_cut by_lanes(const micro_lanes& lanes = {}) {
  return {lanes,
          [](const detail::step_core& g, std::shared_ptr<const detail::step_layout> layout,
             const std::vector<bool>& here, task_order order,
             const micro_lanes& by) -> result<std::unique_ptr<detail::step_cutter>> {
            for (const index_t of : {by.most, by.fewest, by.samples}) {
              if (of < 1) {
                return status(errc::invalid_value, "by_lanes: members of micro_lanes must be at least 1",
                              {.is = of});
              }
            }
            result<std::vector<detail::lane_level>> levels = detail::lane_plan(g, layout, here).make(order);
            if (!levels) return levels.fault();
            std::unique_ptr<detail::step_cutter> cutter;
            if (!levels.value().empty()) {
              std::vector<std::string> names;
              for (index_t v = 0; v < g.size(); ++v) names.push_back(detail::named(g, v));
              cutter = std::make_unique<detail::lane_cutter>(
                  detail::lane_levels{std::move(layout), std::move(levels).value(), std::move(names), by});
            }
            return result<std::unique_ptr<detail::step_cutter>>(std::move(cutter));
          }};
}

}}  // namespace deeprec::DEEPREC_ABI
