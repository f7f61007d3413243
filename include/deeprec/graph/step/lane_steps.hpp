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

#include <deeprec/core/config.hpp>
#include <deeprec/graph/step/detail/lane_run.hpp>
#include <deeprec/graph/step/step_program.hpp>
#include <deeprec/schedule/micro_chunk.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// For step_options and staged_options: sample-wise ops run by parts, as the stages of micro_batch by lanes
/// do. Other ops run for the whole batch: one between sample-wise ops, such as a layer with statistics over
/// the batch, is a barrier, and each part keeps its values until the step ends.
///
/// @param scratch  memory of the parts, which allocate from its lanes; the caller begins its step before a
///        run
/// @pre     the resource of the context is thread-safe, unless there is scratch; so are that of the state and
///          the trace sink
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
[[nodiscard]] inline sample_cut by_lanes(const micro_lanes& lanes = {}, planned_resource* scratch = nullptr) {
  return {.lanes = lanes, .scratch = scratch, .make = &detail::lane_cutter::make};
}
/// The same with batches in so many parts: DeepRec's auto micro batch. Gradients are summed, and what changes
/// a variable runs once for the batch.
///
/// @param parts  a smaller batch has as many as samples
/// @numerics those of by_lanes(); for one part the bits of the whole batch
/// @cost    as by_lanes(); with fewer parts than threads some have no work
/// @threads reentrant
/// @error   as by_lanes(); compile() returns invalid_value for parts below 1, and unsupported where no op is
///          sample-wise
[[nodiscard]] inline sample_cut by_parts(index_t parts, planned_resource* scratch = nullptr) {
  return {
      .lanes = {.parts = parts}, .must_cut = true, .scratch = scratch, .make = &detail::lane_cutter::make};
}

}}  // namespace deeprec::DEEPREC_ABI
