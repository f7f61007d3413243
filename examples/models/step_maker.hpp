// Makes the step of a model, or its prediction, as a graph. A step has 70 to 90 ops, of which one, the
// source,
// is not described.
//
//   read ─│io│─┬─ decode ───────────────────┬─> forward ops ─> loss gradient ─> backward ops ─> steps
//              ├─ bucket x I ──┬─ resolve ──┴─> lookup ─┘                            └─> row update
//              └─ hash x T ─── bucket x T                        (raw keys: key x T instead of both)
//
// The user's cut "io" stands behind the source. Up to resolve no op reads what training changes: these are
// the ops that smart_stage moves before the cut. Of raw keys resolve makes rows, so it stays behind. A
// prediction ends at the logits.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/graph/step/step_graph.hpp>

#include "step_ops.hpp"

namespace ctr {

/// The parts of a step, for the table of time shares.
enum class part { read, lookup, forward, backward, update };
inline constexpr std::array<const char*, 5> part_names = {"read", "lookup", "forward", "backward", "update"};

/// Fills the input of a step; false: there is none.
template <class Source>
using reader_of = std::function<bool(Source&)>;
using row_reader = reader_of<raw_rows>;

enum class graph_use : unsigned char { train, predict };

/// The graph of a step whose source makes values of this type.
template <class Source>
struct graph_step_of {
  deeprec::step_graph graph;
  std::vector<part> parts;        ///< of each op
  deeprec::value<Source> source;  ///< the rows of the step
  deeprec::value<matrix> logits, labels;
  std::vector<stack_type*>
      stacks;  ///< whose weights_settled() comes before a run, where weights were written
};
/// The weights of a stack, and what a pass needs besides.
struct graph_stack {
  deeprec::variable<stack_type> weights;
  deeprec::variable<deeprec::mlp_pass> pass;
};
using graph_step = graph_step_of<raw_rows>;

/// Adds ops to a graph, with the parts of a step that they belong to.
template <class Source>
class step_maker_of {
 public:
  step_maker_of() = default;
  deeprec::step_graph& graph() { return made_.graph; }
  /// The logits of the rows: what a prediction ends with.
  void set_logits(deeprec::value<matrix> logits) {
    made_.logits = logits;
    graph().keep(logits);
  }
  void set_labels(deeprec::value<matrix> labels) { made_.labels = labels; }
  graph_step_of<Source> take() { return std::move(made_); }

  graph_stack add_stack(const std::string& name, stack_type& stack) {
    made_.stacks.push_back(&stack);
    return {graph().variable(name, stack),
            graph().local(name + " pass", [&stack] { return stack.make_pass(); })};
  }
  /// Adds an op of this part and role.
  template <class Op, class... In>
  auto add(part of, const std::string& name, Op op, In&&... in) {
    auto added = graph().add(name, std::move(op), std::forward<In>(in)...);
    mark(added.op(), of);
    if (of == part::backward) added.role(deeprec::op_role::gradient);
    if (of == part::update) added.role(deeprec::op_role::apply).target();
    return added;
  }
  /// Adds the source, and the user's cut behind it.
  deeprec::value<Source> add_source(reader_of<Source> read) {
    const deeprec::value<Source> source = graph().template source<Source>(
        "read", [read = std::move(read)](Source& rows) { return read(rows); });
    made_.source = source;
    mark(source.op(), part::read);
    const deeprec::value<Source> raw = graph().stage("io", source);
    mark(raw.op(), part::read);
    return raw;
  }

 private:
  void mark(index_t op, part of) {
    const auto at = static_cast<std::size_t>(op);
    if (made_.parts.size() <= at) made_.parts.resize(at + 1, part::read);
    made_.parts[at] = of;
  }

  graph_step_of<Source> made_;
};

/// The step of a model of a click log.
class step_maker : public step_maker_of<raw_rows> {
 public:
  /// The values that no weight has a part in.
  struct inputs {
    deeprec::value<raw_rows> raw;
    bool has_weights;
    deeprec::value<matrix> dense, labels;
    std::vector<deeprec::value<slot_rows>> rows;  // of each slot
    std::vector<deeprec::value<slot_keys>> keys;  // instead of rows: raw keys
  };

  inputs add_inputs(const ctr_tables& tables, row_reader read) {
    const deeprec::value<raw_rows> raw = add_source(std::move(read));
    const auto decoded = add(part::read, "decode", decode_op{}, raw);
    set_labels(decoded.template get<1>());
    inputs made{raw, tables.columns.has_weights, decoded.template get<0>(), decoded.template get<1>(), {},
                {}};
    const index_t integers = tables.columns.integers, tokens = tables.columns.tokens;
    const auto name = [&](const char* what, index_t slot) { return what + tables.columns.slot_name(slot); };
    if (tables.raw) {
      for (index_t n = 0; n < integers; ++n) {
        made.keys.push_back(add(part::read, name("bucket ", n), bucket_integer_op<slot_keys>{n}, raw));
      }
      for (index_t s = 0; s < tokens; ++s) {
        made.keys.push_back(add(part::read, name("key ", integers + s), key_op{s}, raw));
      }
      return made;
    }
    for (index_t n = 0; n < integers; ++n) {
      made.rows.push_back(add(part::read, name("bucket ", n), bucket_integer_op<>{n}, raw));
    }
    std::vector<deeprec::value<token_ids>> ids;
    for (index_t s = 0; s < tokens; ++s) {
      const hash_op hash{s, tables.ids(integers + s)};
      ids.push_back(add(part::read, name("hash ", integers + s), hash, raw));
    }
    for (index_t s = 0; s < tokens; ++s) {
      const bucket_token_op bucket{integers + s, &tables};
      made.rows.push_back(
          add(part::read, name("bucket ", integers + s), bucket, ids[static_cast<std::size_t>(s)]));
    }
    return made;
  }
  /// Adds the gradient of the loss, of rows with weights where the columns have them.
  deeprec::value<matrix> add_loss_gradient(loss_meter& meter, deeprec::value<matrix> logits,
                                           const inputs& in) {
    if (!in.has_weights)
      return add(part::backward, "loss gradient", loss_gradient_op{&meter}, logits, in.labels);
    const deeprec::value<matrix> weights = add(part::read, "weights", row_weights_op{}, in.raw);
    return add(part::backward, "loss gradient", weighted_loss_gradient_op{&meter}, logits, in.labels,
               weights);
  }
  /// Adds the op that locates the rows of the slots in these tables, which a variable refers to.
  deeprec::value<located_rows> add_resolve(const std::string& name, const slot_tables& tables,
                                           deeprec::variable<slot_tables> variable, const inputs& in,
                                           graph_use use) {
    if (!tables.is_raw()) return add(part::lookup, name, resolve_op{&tables}, in.rows);
    if (use == graph_use::predict) return add(part::lookup, name, find_op{}, in.keys, graph().read(variable));
    return add(part::lookup, name, admit_op{}, in.keys, graph().write(variable));
  }
};

}  // namespace ctr
