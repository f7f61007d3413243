// Which ops to move before a cut, as arithmetic: a closed set of n movable ops, its costs and its bytes.
//
//   fixed before │ movable: 0 ─> 1 ─> 3 │ fixed after       S is closed: with an op it holds all before it
//                │               2 ─────│─>                 bytes(S): made in S, used outside, each once
//
// For one λ the closed set with the least bytes + λ * (cost left) is a least cut (Picard 1976). Here: that
// cut, a search over all λ, and a descent by single ops. Not here: where the ops come from
// (stage_region.hpp).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/graph/passes/detail/max_flow.hpp>
#include <deeprec/plan/digraph.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// What a set costs.
struct cut_figures {
  double stage = 0;  ///< cost before the cut
  double rest = 0;   ///< cost after it
  double bytes = 0;  ///< of the values that cross
};

/// A set of movable ops: 1 where an op is in it.
using op_set = std::vector<std::uint8_t>;

struct cut_problem {
  std::vector<double> cost;  // of the movable ops
  number_lists before;       // movable ops that an op needs
  // Values that cross unless everybody who uses them is before the cut.
  std::vector<std::int32_t> maker;   // -1: fixed before the cut
  std::vector<double> bytes;         //
  std::vector<std::uint8_t> leaves;  // somebody fixed after the cut uses it
  number_lists users;                // movable ops
  cut_figures fixed;                 // the figures of the ops and values that no choice changes
  std::size_t fixed_values = 0;      // how many values those are

  // Made by finish().
  number_lists after, uses, makes;

  [[nodiscard]] std::size_t size() const noexcept { return cost.size(); }

  void finish() {
    after = before.turned(size());
    uses = users.turned(size());
    std::vector<std::int32_t> made;  // the values of makers that move
    for (std::size_t i = 0; i < maker.size(); ++i) {
      if (maker[i] >= 0) made.push_back(static_cast<std::int32_t>(i));
    }
    makes = number_lists::counted(
        size(), made.size(), [&](std::size_t i) { return maker[static_cast<std::size_t>(made[i])]; },
        [&](std::size_t i) { return made[i]; });
  }

  [[nodiscard]] cut_figures figures(const op_set& in) const {
    cut_figures f = fixed;
    for (std::size_t v = 0; v < size(); ++v) (in[v] != 0 ? f.stage : f.rest) += cost[v];
    for (std::size_t i = 0; i < maker.size(); ++i) {
      if (maker[i] >= 0 && in[static_cast<std::size_t>(maker[i])] == 0) continue;
      bool crosses = leaves[i] != 0;
      for (const std::int32_t u : users[i]) crosses = crosses || in[static_cast<std::size_t>(u)] == 0;
      if (crosses) f.bytes += bytes[i];
    }
    return f;
  }
};

/// How a cut is judged: the slower side, and the transfer beside it.
struct cut_price {
  double per_byte = 0;
  double stage_threads = 1;

  [[nodiscard]] double operator()(const cut_figures& f) const noexcept {
    return (std::max)(f.stage / stage_threads, f.rest) + per_byte * f.bytes;
  }
};

/// The least cut for a λ, between two closed sets.
class lambda_cut {
 public:
  explicit lambda_cut(const cut_problem& problem)
      : p_(problem), node_of_(problem.size(), -1), value_of_(problem.maker.size(), -1) {}

  /// Of all closed sets S with low <= S <= low + free, the largest with the least bytes + lambda * (cost
  /// outside of S). `free` are ops outside of `low`, closed above it. Sets in[v] = 1 for the ops of S in
  /// `free`.
  void solve(double lambda, const op_set& low, const std::vector<std::int32_t>& free, op_set& in) {
    for (std::size_t i = 0; i < free.size(); ++i) node_of_[at(free[i])] = static_cast<std::int32_t>(i) + 2;
    nodes_ = static_cast<std::int32_t>(free.size()) + 2;
    values_.clear();
    double total = 0;
    for (const std::int32_t v : free) {
      total += std::fabs(lambda) * p_.cost[at(v)];
      for (const std::int32_t i : p_.makes[at(v)]) total += see(i);
      for (const std::int32_t i : p_.uses[at(v)]) total += see(i);
    }
    network_.clear(static_cast<std::size_t>(nodes_));
    // A power of two: whole numbers stay whole.
    const double scale = total > 0 ? std::exp2(std::floor(std::log2(std::exp2(58) / total))) : 1;
    const auto amount = [&](double x) { return static_cast<flow_network::amount>(std::llround(x * scale)); };
    for (const std::int32_t v : free) {
      const std::int32_t n = node_of_[at(v)];
      const double weight = lambda * p_.cost[at(v)];
      if (weight > 0) network_.add(source, n, amount(weight));
      if (weight < 0) network_.add(n, target, amount(-weight));
      for (const std::int32_t u : p_.before[at(v)]) {
        if (node_of_[at(u)] >= 0) network_.add(n, node_of_[at(u)], flow_network::unlimited);
      }
    }
    for (const std::int32_t i : values_) {
      const std::int32_t maker = p_.maker[at(i)];
      // A value that leaves whatever is chosen has no arc: its maker is before the cut, and a user after it.
      const bool made_below = maker < 0 || low[at(maker)] != 0;
      bool leaves = p_.leaves[at(i)] != 0;
      for (const std::int32_t u : p_.users[at(i)])
        leaves = leaves || (node_of_[at(u)] < 0 && low[at(u)] == 0);
      if (!(made_below && leaves)) {
        const std::int32_t from = made_below ? source : node_of_[at(maker)];
        const std::int32_t value = value_of_[at(i)];
        if (leaves) {
          network_.add(from, target, amount(p_.bytes[at(i)]));
        } else {
          network_.add(from, value, amount(p_.bytes[at(i)]));
          for (const std::int32_t u : p_.users[at(i)]) {
            if (node_of_[at(u)] >= 0) network_.add(value, node_of_[at(u)], flow_network::unlimited);
          }
        }
      }
      value_of_[at(i)] = -1;
    }
    network_.solve(source, target);
    for (const std::int32_t v : free) {
      in[at(v)] = network_.before_cut(node_of_[at(v)]) ? 1 : 0;
      node_of_[at(v)] = -1;
    }
  }

 private:
  static constexpr std::int32_t source = 0, target = 1;
  static std::size_t at(std::int32_t i) noexcept { return static_cast<std::size_t>(i); }

  double see(std::int32_t value) {
    if (value_of_[at(value)] >= 0) return 0;
    value_of_[at(value)] = nodes_++;
    values_.push_back(value);
    return p_.bytes[at(value)];
  }

  const cut_problem& p_;
  flow_network network_;
  std::vector<std::int32_t> node_of_, value_of_, values_;
  std::int32_t nodes_ = 0;
};

/// Moves single ops over the cut while that lowers the price.
class single_moves {
 public:
  explicit single_moves(const cut_problem& problem)
      : p_(problem), missing_(problem.size()), inside_(problem.size()), outside_(problem.maker.size()) {}

  /// Adds the ops one by one in an order in which each follows its needs; the set on this way with the least
  /// price.
  op_set best_on_way(const std::vector<std::int32_t>& order, const cut_price& price) {
    op_set in(p_.size(), 0);
    count(in);
    cut_figures now = p_.figures(in);
    double least = price(now);
    std::size_t length = 0;
    for (std::size_t i = 0; i < order.size(); ++i) {
      now = moving(at(order[i]), false, now);
      move(at(order[i]), in);
      if (price(now) < least) least = price(now), length = i + 1;
    }
    in.assign(p_.size(), 0);
    for (std::size_t i = 0; i < length; ++i) in[at(order[i])] = 1;
    return in;
  }

  /// @return the figures of the set that it ends at
  cut_figures descend(op_set& in, const cut_price& price, int most_rounds) {
    count(in);
    cut_figures now = p_.figures(in);
    for (int round = 0; round < most_rounds; ++round) {
      bool moved = false;
      for (std::size_t v = 0; v < p_.size(); ++v) {
        if (in[v] != 0 ? inside_[v] != 0 : missing_[v] != 0) continue;
        const cut_figures then = moving(v, in[v] != 0, now);
        const double gain = price(now) - price(then);
        if (!(gain > 1e-12 * price(now))) continue;
        move(v, in);
        now = then;
        moved = true;
      }
      if (!moved) break;
    }
    return p_.figures(in);
  }

 private:
  static std::size_t at(std::int32_t i) noexcept { return static_cast<std::size_t>(i); }

  void count(const op_set& in) {
    for (std::size_t v = 0; v < p_.size(); ++v) {
      missing_[v] = inside_[v] = 0;
      for (const std::int32_t u : p_.before[v]) missing_[v] += in[at(u)] == 0 ? 1 : 0;
      for (const std::int32_t w : p_.after[v]) inside_[v] += in[at(w)] != 0 ? 1 : 0;
    }
    for (std::size_t i = 0; i < outside_.size(); ++i) {
      outside_[i] = p_.leaves[i];
      for (const std::int32_t u : p_.users[i]) outside_[i] += in[at(u)] == 0 ? 1 : 0;
    }
  }
  [[nodiscard]] cut_figures moving(std::size_t v, bool out, cut_figures f) const {
    const double c = out ? -p_.cost[v] : p_.cost[v];
    f.stage += c;
    f.rest -= c;
    for (const std::int32_t i : p_.uses[v]) {
      if (outside_[at(i)] == (out ? 0 : 1)) f.bytes += out ? p_.bytes[at(i)] : -p_.bytes[at(i)];
    }
    for (const std::int32_t i : p_.makes[v]) {
      if (outside_[at(i)] != 0) f.bytes += out ? -p_.bytes[at(i)] : p_.bytes[at(i)];
    }
    return f;
  }
  void move(std::size_t v, op_set& in) {
    const std::int32_t step = in[v] != 0 ? -1 : 1;
    in[v] = in[v] != 0 ? 0 : 1;
    for (const std::int32_t w : p_.after[v]) missing_[at(w)] -= step;
    for (const std::int32_t u : p_.before[v]) inside_[at(u)] += step;
    for (const std::int32_t i : p_.uses[v]) outside_[at(i)] -= step;
  }

  const cut_problem& p_;
  std::vector<std::int32_t> missing_, inside_, outside_;
};

/// The ops depth first: each right after what it needs, so that few values wait.
inline std::vector<std::int32_t> depth_first(const cut_problem& p) {
  std::vector<std::int32_t> order, open;
  std::vector<std::uint8_t> state(p.size());  // 1: opened, 2: listed
  for (std::size_t i = p.size(); i-- > 0;) {
    open.push_back(static_cast<std::int32_t>(i));
    while (!open.empty()) {
      const auto v = static_cast<std::size_t>(open.back());
      if (state[v] == 0) {
        state[v] = 1;
        for (const std::int32_t u : p.before[v]) {
          if (state[static_cast<std::size_t>(u)] == 0) open.push_back(u);
        }
        continue;
      }
      open.pop_back();
      if (state[v] == 1) state[v] = 2, order.push_back(static_cast<std::int32_t>(v));
    }
  }
  return order;
}

/// All least cuts, over every λ from minus infinity (nothing moves) to infinity (everything does): they lie
/// inside of each other, so each is found between two others, on the ops that these differ in.
class lambda_sweep {
 public:
  explicit lambda_sweep(const cut_problem& problem) : p_(problem), cut_(problem) {}

  /// Calls `each(set, figures)`, which returns the least price so far, for the cuts in between; leaves out
  /// the ranges of λ whose cuts can't be below it.
  template <class Each>
  void run(const cut_price& price, double least, Each each) {
    struct between {
      op_set low;
      std::vector<std::int32_t> free;  // the difference to the high set
      cut_figures low_figures, high_figures;
      double bound;  // no set between the two has a lower price
    };
    std::vector<between> open(1);
    open[0].low.assign(p_.size(), 0);
    for (std::size_t v = 0; v < p_.size(); ++v) open[0].free.push_back(static_cast<std::int32_t>(v));
    open[0].low_figures = p_.figures(open[0].low);
    open[0].high_figures = p_.figures(op_set(p_.size(), 1));
    open[0].bound = 0;
    op_set in;
    while (!open.empty()) {
      between now = std::move(open.back());
      open.pop_back();
      const double less_cost = now.low_figures.rest - now.high_figures.rest;
      if (now.free.size() < 2 || !(less_cost > 0) || now.bound >= least) continue;
      const double lambda = (now.high_figures.bytes - now.low_figures.bytes) / less_cost;
      in = now.low;
      cut_.solve(lambda, now.low, now.free, in);
      std::size_t taken = 0;
      for (const std::int32_t v : now.free) taken += in[static_cast<std::size_t>(v)];
      if (taken == 0 || taken == now.free.size()) continue;
      const cut_figures found = p_.figures(in);
      least = (std::min)(least, each(in, found));
      const auto line = [&](const cut_figures& f) { return f.bytes + lambda * f.rest; };
      const double scale = std::fabs(now.low_figures.bytes) + std::fabs(lambda) * now.low_figures.rest;
      if (!(line(found) < line(now.low_figures) - 1e-12 * scale)) continue;
      // bytes(S) >= line(found) - lambda * rest(S): the least price over the costs that S may leave.
      const auto bound = [&](double least_rest, double most_rest) {
        const double all = found.stage + found.rest;
        const double even = (std::clamp)(all / (1 + price.stage_threads), least_rest, most_rest);
        const auto at_rest = [&](double rest) {
          return price({all - rest, rest, (std::max)(0.0, line(found) - lambda * rest)});
        };
        return (std::min)({at_rest(least_rest), at_rest(most_rest), at_rest(even)}) * (1 - 1e-9);
      };
      between above;
      above.low = in;
      above.low_figures = found;
      above.high_figures = now.high_figures;
      above.bound = bound(now.high_figures.rest, found.rest);
      between below;
      below.low_figures = now.low_figures;
      below.high_figures = found;
      below.bound = bound(found.rest, now.low_figures.rest);
      for (const std::int32_t v : now.free)
        (in[static_cast<std::size_t>(v)] != 0 ? below : above).free.push_back(v);
      below.low = std::move(now.low);
      // The more promising one first: it may make the other needless.
      if (above.bound < below.bound) std::swap(above, below);
      open.push_back(std::move(above));
      open.push_back(std::move(below));
    }
  }

 private:
  const cut_problem& p_;
  lambda_cut cut_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
