// Edits a copy of a step graph: what every pass stands on.
//
//   step_editor edit(g);                                          a copy: g stays as it is
//   const auto twice = edit.graph().add("twice", scale{2}, edit.of(x));
//   edit.redirect(edit.of(y), twice);                             whoever took y takes twice
//   edit.erase(y.op()).or_throw();                                nobody uses it any more
//   edited_graph made = edit.finish().or_throw();                 checked, or refused as a whole
//   state.get(*made.moved(y));                                    the value that is in the place of y
//
// While a graph is edited an op keeps its number; finish() gives numbers from 0 to the ops that are left.
// Numbers say the order of effects, so what is added comes last, unless it is placed. A copy calls the
// objects of the first graph: a source goes on where it is in either of them, a variable is the same object.
// A local is an object of each state, and so of each program. Not here: patterns (fusion/fuse.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/graph/step/any_value.hpp>
#include <deeprec/graph/step/detail/graph_edit.hpp>
#include <deeprec/graph/step/detail/step_core.hpp>
#include <deeprec/graph/step/op_ref.hpp>
#include <deeprec/graph/step/step_graph.hpp>
#include <deeprec/graph/step/step_handles.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Where the ops and the values of a graph are in the one that was made from it.
///
/// @threads immutable once made; thread-safe
class moved_values {
 public:
  /// The number of an op; -1: it was erased, or is none of the first graph.
  [[nodiscard]] index_t op(index_t before) const noexcept {
    return before >= 0 && static_cast<std::size_t>(before) < ops_.size()
               ? ops_[static_cast<std::size_t>(before)]
               : -1;
  }
  /// The value that is in the place of one of the first graph; none: its op was erased.
  template <class T>
  [[nodiscard]] std::optional<value<T>> operator()(const value<T>& before) const noexcept {
    const detail::port_ref to = place(detail::handle_access::ref(before));
    if (to.graph == 0) return std::nullopt;
    return detail::handle_access::make<T>(to);
  }
  /// The same variable, in the graph that was made.
  template <class T>
  [[nodiscard]] std::optional<variable<T>> operator()(const variable<T>& before) const noexcept {
    if (detail::handle_access::ref(before).graph != from_ || op(before.op()) < 0) return std::nullopt;
    return detail::handle_access::moved(before, {to_, op(before.op()), 0});
  }

 private:
  friend class step_editor;
  [[nodiscard]] detail::port_ref place(const detail::port_ref& ref) const noexcept {
    if (ref.graph != from_ || ref.op < 0 || static_cast<std::size_t>(ref.op) >= values_.size()) return {};
    const std::vector<detail::port_ref>& ports = values_[static_cast<std::size_t>(ref.op)];
    return static_cast<std::size_t>(ref.port) < ports.size() ? ports[static_cast<std::size_t>(ref.port)]
                                                             : detail::port_ref();
  }

  std::uint64_t from_ = 0, to_ = 0;
  std::vector<index_t> ops_;
  std::vector<std::vector<detail::port_ref>> values_;
};

/// A graph made from another one.
struct edited_graph {
  step_graph graph;
  moved_values moved;
};

/// @threads one thread; the graph that is edited may have readers
class step_editor {
 public:
  /// A copy of a graph, faults and all. Of an editor that is finished at once, it is a clone.
  explicit step_editor(const step_graph& from)
      : from_(from.core().id()), graph_(from.core().copy()), edit_(*graph_.core_) {}
  step_editor(const step_editor&) = delete;
  step_editor& operator=(const step_editor&) = delete;

  /// The graph as it is now, erased ops included, by the numbers of the first one; added ops follow. Whatever
  /// a step_graph can do, it can: add, add variables and constants, keep, change roles.
  [[nodiscard]] step_graph& graph() noexcept { return graph_; }
  [[nodiscard]] bool is_erased(index_t op) const noexcept { return edit_.is_erased(op); }
  /// The handle, in the graph as it is now, of a value of the first graph.
  template <class T>
  [[nodiscard]] value<T> of(const value<T>& v) const noexcept {
    return detail::handle_access::make<T>(here(detail::handle_access::ref(v)));
  }
  template <class T>
  [[nodiscard]] variable<T> of(const variable<T>& v) const noexcept {
    return detail::handle_access::moved(v, here(detail::handle_access::ref(v)));
  }

  /// An op that was added comes right behind `behind` in the order of effects, instead of last.
  ///
  /// @pre both are ops of graph()
  void place(index_t op, index_t behind) {
    edit_.follow();
    edit_.set_order(op, {edit_.order(behind).place, op});
  }
  /// Whatever takes `from` takes `to` from now on, as does whoever keeps it or asks moved_values for it; but
  /// the op that makes `to` may go on taking `from`.
  ///
  /// @cost    O(the uses of from's op and their inputs), amortized
  /// @threads one thread
  /// @error   invalid_value: a value of another graph or of an erased op, or of another type
  [[nodiscard]] result<void> redirect(const any_value& from, const any_value& to) {
    edit_.follow();
    if (result<void> fine = usable(from, to); !fine) return fine;
    const detail::port_ref a = here(detail::handle_access::ref(from));
    const detail::port_ref b = here(detail::handle_access::ref(to));
    if (a.op != b.op || a.port != b.port) edit_.redirect(a, b);
    return {};
  }
  /// One input of an op takes `to`. An op is called with as many values as it was added with.
  ///
  /// @pre     0 <= op < graph().size(), 0 <= input < graph().inputs(op)
  /// @cost    O(1), amortized
  /// @threads one thread
  /// @error   as above; invalid_value: the input is a variable
  [[nodiscard]] result<void> redirect(index_t op, index_t input, const any_value& to) {
    edit_.follow();
    if (result<void> fine = usable(graph_.input(op, input), to); !fine) return fine;
    edit_.redirect(op, input, here(detail::handle_access::ref(to)));
    return {};
  }
  /// Removes an op that nobody uses.
  ///
  /// @pre     0 <= op < graph().size()
  /// @cost    O(the uses of it before), amortized
  /// @threads one thread
  /// @error   invalid_value, with the ops' names: another op takes what it makes or comes after it, or the
  ///          caller keeps a value of it
  [[nodiscard]] result<void> erase(index_t op) {
    edit_.follow();
    for (index_t port = 0; port <= graph_.outputs(op); ++port) {
      index_t used = -1;
      edit_.for_each_use({graph_.core().id(), op, port}, [&](index_t user, index_t) {
        used = user;
        return false;
      });
      if (used >= 0 && used != op)
        return refuse("step_editor::erase: what is erased must not be used", op, used);
    }
    if (!graph_.core().op(op).kept.empty())
      return refuse("step_editor::erase: what is erased must not be kept", op, -1);
    edit_.erase(op);
    return {};
  }
  /// Puts an op in the place of another one, which is erased: in the order of effects, for those who use its
  /// values or come after it, with its name, role, place and what it comes after, and as a target and
  /// external where that is.
  ///
  /// @pre     0 <= op < graph().size(); `by` was added last and nothing uses it
  /// @cost    as redirect()
  /// @threads one thread
  /// @error   invalid_value: the outputs have other types
  [[nodiscard]] result<void> replace(index_t op, index_t by) {
    edit_.follow();
    if (is_erased(op) || op == by || graph_.kind(op) == op_kind::variable)
      return refuse("step_editor::replace: what is replaced must be another op, and no variable", op, by);
    bool same = graph_.outputs(op) == graph_.outputs(by);
    for (index_t port = 0; same && port < graph_.outputs(op); ++port)
      same = graph_.output(op, port).type() == graph_.output(by, port).type();
    if (!same) return refuse("step_editor::replace: the ops must have outputs of the same types", op, by);
    edit_.set_order(by, edit_.order(op));
    edit_.change(by, [&](detail::step_op& made) {
      const detail::step_op& was = graph_.core().op(op);
      made.name = was.name;
      made.role = was.role;
      made.place = was.place;
      made.target = made.target || was.target;
      made.external = made.external || was.external;
      made.bytes = was.bytes;
    });
    edit_.come_after(by, op);
    for (index_t port = 0; port < graph_.outputs(op); ++port)
      edit_.redirect({graph_.core().id(), op, port}, {graph_.core().id(), by, port});
    edit_.redirect_order(op, by);
    edit_.erase(op);
    return {};
  }
  /// Adds an op that calls the same object with the same inputs, right behind it in the order of effects;
  /// nothing uses it yet, and the caller keeps none of it. Returns its number.
  ///
  /// @pre 0 <= op < graph().size(), and it is neither a variable nor the source
  [[nodiscard]] index_t clone(index_t op) {
    detail::step_op made = graph_.core().op(op);
    made.kept.clear();
    const index_t added = graph_.core_->add(std::move(made));
    place(added, op);
    return added;
  }

  /// The graph that was made. The editor is empty afterwards, also where it is refused.
  ///
  /// @cost    O(ops + inputs), and as step_graph::check()
  /// @threads one thread
  /// @error   invalid_value: an op uses an erased one; as step_graph::check(), and then numbers are those of
  ///          the graph that would have been made: a cycle, with the names of its ops. Throws std::bad_alloc
  /// @example @snippet tests/graph/step_editor_test.cpp step_editor
  [[nodiscard]] result<edited_graph> finish() {
    edit_.follow();
    const detail::step_core& g = graph_.core();
    const std::vector<index_t> left = edit_.left();
    edited_graph out;
    std::vector<index_t>& number = out.moved.ops_;
    number.assign(static_cast<std::size_t>(g.size()), -1);
    for (std::size_t i = 0; i < left.size(); ++i)
      number[static_cast<std::size_t>(left[i])] = static_cast<index_t>(i);
    detail::step_core made;
    const auto moved = [&](const detail::port_ref& ref) -> detail::port_ref {
      if (!g.owns(ref)) return ref;
      const index_t to = number[static_cast<std::size_t>(ref.op)];
      return to < 0 ? detail::port_ref() : detail::port_ref{made.id(), to, ref.port};
    };
    for (const index_t v : left) {
      detail::step_op op = g.op(v);
      for (detail::step_input& in : op.inputs) {
        if (g.owns(in.from) && is_erased(in.from.op))
          return refuse("step_editor::finish: an op must not take what an erased op makes", v, in.from.op);
        in.from = moved(in.from);
      }
      for (detail::port_ref& u : op.after) {
        if (g.owns(u) && is_erased(u.op))
          return refuse("step_editor::finish: an op must not come after an erased op", v, u.op);
        u = moved(u);
      }
      made.add(std::move(op));
    }
    out.moved.from_ = from_;
    out.moved.to_ = made.id();
    out.moved.values_ = edit_.places();
    for (std::vector<detail::port_ref>& ports : out.moved.values_) {
      for (detail::port_ref& to : ports) to = moved(to);
    }
    number.resize(static_cast<std::size_t>(edit_.first_size()));
    out.graph = step_graph(std::move(made));
    if (result<void> fine = out.graph.check(); !fine) return fine.fault();
    return {std::move(out)};  // nvcc would copy it
  }

  /// For passes of this library.
  [[nodiscard]] detail::graph_edit& edit() noexcept { return edit_; }

 private:
  [[nodiscard]] result<void> usable(const any_value& from, const any_value& to) const {
    for (const any_value& v : {from, to}) {
      const detail::port_ref ref = here(detail::handle_access::ref(v));
      if (!graph_.core().owns(ref) || !graph_.core().type_of(ref))
        return status(errc::invalid_value, "step_editor::redirect: both must be values of the graph",
                      {.item = v.op()});
      if (is_erased(ref.op))
        return refuse("step_editor::redirect: both must be values of ops that are not erased", ref.op, -1);
    }
    if (from.type() == to.type()) return {};
    return refuse("step_editor::redirect: both values must have one type", from.op(), to.op());
  }
  [[nodiscard]] detail::port_ref here(detail::port_ref ref) const noexcept {
    if (ref.graph == from_) ref.graph = graph_.core().id();
    return ref;
  }
  fault refuse(const char* rule, index_t op, index_t other) const {
    std::string text = std::string(rule) + " (" + detail::named(graph_.core(), op);
    if (other >= 0) text += ": " + detail::named(graph_.core(), other);
    return {status(errc::invalid_value, fault_place{.item = op}), {}, text + ')'};
  }

  std::uint64_t from_;
  step_graph graph_;
  detail::graph_edit edit_;
};

}}  // namespace deeprec::DEEPREC_ABI
