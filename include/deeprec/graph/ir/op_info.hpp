// What the passes know of an op and of an edge, whatever graph describes them.
//
//   b.add(op_info{.name = "hash", .place = op_place::cpu, .cost = 2e-3});
//   b.add(edge_info{.source = hash, .destination = lookup, .bytes = 4096});
#pragma once

#include <cstdint>
#include <string_view>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// What the passes have to know of an op.
enum class op_kind : std::uint8_t {
  plain,
  constant,      ///< the same value in every step
  variable,      ///< the handle of a variable or a table
  placeholder,   ///< fed by the caller of a step
  control_flow,  ///< its outputs may be absent, or come more than once
  id_lookup,     ///< finds the rows of ids in a growing table, and reads no row: may run before the step
  stage_put,     ///< input i becomes value i of a record of the stage
  stage_take,    ///< output i is value i of a record of the stage
  stage,         ///< a put and a take as one op: output i is input i
};

/// Where an op runs.
enum class op_place : std::uint8_t { any, cpu, device };

/// What an op does beside computing its outputs from its inputs.
enum class op_effects : std::uint8_t {
  none = 0,
  reads = 1,     ///< reads a variable
  writes = 2,    ///< writes a variable
  external = 4,  ///< reads or writes something outside of the graph (a file, random numbers): in order
  target = 8,    ///< the caller wants it computed by the step itself
};

/// Both.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
[[nodiscard]] constexpr op_effects operator|(op_effects a, op_effects b) noexcept {
  return static_cast<op_effects>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}
/// Whether `all` contains one of `some`.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
[[nodiscard]] constexpr bool has_effect(op_effects all, op_effects some) noexcept {
  return (static_cast<unsigned>(all) & static_cast<unsigned>(some)) != 0;
}

/// An op, as a graph describes it.
struct op_info {
  std::string_view name = {};
  op_kind kind = op_kind::plain;
  op_place place = op_place::any;
  op_effects effects = op_effects::none;
  double cost = 0;              ///< of one step, in any unit: seconds, or a model's
  std::string_view stage = {};  ///< the stage of a put, take or stage op
};

/// An edge, as a graph describes it. A control edge has no ports: its destination runs after its source.
struct edge_info {
  index_t source = 0;
  index_t source_port = 0;
  index_t destination = 0;
  index_t destination_port = 0;
  std::int64_t bytes = 0;  ///< of the value
  bool control = false;
};

}}  // namespace deeprec::DEEPREC_ABI
