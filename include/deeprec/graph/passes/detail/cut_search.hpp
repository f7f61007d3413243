// The search for the cut of the least price.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/graph/passes/detail/cut_problem.hpp>
#include <deeprec/graph/passes/stage_cut.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The least price among closed sets: all ops, none, the least cuts of all λ, and a descent from each of the
/// best.
class cut_search {
 public:
  cut_search(const cut_problem& problem, const cut_price& price) : p_(problem), price_(price) {}

  /// The set; equal prices leave the farthest cut as it is.
  op_set run(cut_choice& choice) {
    best_ = op_set(p_.size(), 1);
    least_ = price_(p_.figures(best_));
    choice = cut_choice::farthest;
    const op_set none(p_.size(), 0);
    if (consider(none, p_.figures(none))) choice = cut_choice::user;
    if (p_.size() == 0) return best_;
    bool found = false;
    std::vector<std::pair<double, op_set>> starts;
    starts.emplace_back(least_, op_set(p_.size(), 1));
    starts.emplace_back(least_, none);
    // Few ops: every cut is a start. Many: those that may be better than the best so far, and of them the
    // best.
    const bool few = p_.size() <= 256;
    const std::size_t most = few ? 1000 : (std::max)(std::size_t{4}, std::size_t{100000} / p_.size());
    // Nested cuts put the ops into an order: those of the least cut first, and so on to those of none.
    std::vector<std::int32_t> rank(p_.size());
    single_moves moves(p_);
    std::vector<std::int32_t> in_order(p_.size());
    for (std::size_t v = 0; v < in_order.size(); ++v) in_order[v] = static_cast<std::int32_t>(v);
    std::vector<std::int32_t> in_depth = depth_first(p_);
    const auto walk = [&] {
      for (std::vector<std::int32_t>* order : {&in_order, &in_depth}) {
        std::stable_sort(order->begin(), order->end(), [&](std::int32_t a, std::int32_t b) {
          return rank[static_cast<std::size_t>(a)] < rank[static_cast<std::size_t>(b)];
        });
        starts.emplace_back(0, moves.best_on_way(*order, price_));
        found = consider(starts.back().second, p_.figures(starts.back().second)) || found;
      }
    };
    walk();  // a good cut to begin with spares the sweep much
    lambda_sweep(p_).run(price_, few ? std::numeric_limits<double>::infinity() : least_,
                         [&](const op_set& in, const cut_figures& f) {
                           found = consider(in, f) || found;
                           for (std::size_t v = 0; v < in.size(); ++v) rank[v] += in[v] == 0 ? 1 : 0;
                           starts.emplace_back(price_(f), in);
                           if (starts.size() > 2 * most + 8) cut_down(starts, most);
                           return few ? std::numeric_limits<double>::infinity() : least_;
                         });
    cut_down(starts, most);
    walk();
    for (auto& start : starts) {
      const cut_figures f = moves.descend(start.second, price_, few ? 64 : 8);
      found = consider(start.second, f) || found;
    }
    // From the best one: each op over the cut, with what it needs or with what needs it, and down again.
    bool again = few;
    for (int round = 0; again && round < 16; ++round) {
      again = false;
      for (std::size_t v = 0; v < p_.size(); ++v) {
        op_set in = best_;
        move_with_closure(v, in);
        const cut_figures f = moves.descend(in, price_, 64);
        again = consider(in, f) || again;
      }
      found = found || again;
    }
    if (found) choice = cut_choice::searched;
    return best_;
  }

 private:
  [[nodiscard]] bool has_values(const op_set& in) const {
    if (p_.fixed.bytes > 0 || p_.fixed_values > 0) return true;
    for (std::size_t i = 0; i < p_.maker.size(); ++i) {
      if (p_.maker[i] >= 0 && in[static_cast<std::size_t>(p_.maker[i])] == 0) continue;
      if (p_.leaves[i] != 0) return true;
      for (const std::int32_t u : p_.users[i]) {
        if (in[static_cast<std::size_t>(u)] == 0) return true;
      }
    }
    return false;
  }

  void move_with_closure(std::size_t v, op_set& in) const {
    const std::uint8_t to = in[v] != 0 ? 0 : 1;
    const number_lists& along = to != 0 ? p_.before : p_.after;
    std::vector<std::size_t> open{v};
    in[v] = to;
    while (!open.empty()) {
      const std::size_t u = open.back();
      open.pop_back();
      for (const std::int32_t w : along[u]) {
        if (in[static_cast<std::size_t>(w)] == to) continue;
        in[static_cast<std::size_t>(w)] = to;
        open.push_back(static_cast<std::size_t>(w));
      }
    }
  }
  bool consider(const op_set& in, const cut_figures& f) {
    const double price = price_(f);
    if (!(price < least_) || (f.bytes == 0 && !has_values(in))) return false;
    least_ = price;
    best_ = in;
    return true;
  }
  // Keeps the first two and the cheapest of the others.
  static void cut_down(std::vector<std::pair<double, op_set>>& starts, std::size_t most) {
    if (starts.size() <= most + 2) return;
    const auto first = starts.begin() + 2;
    std::nth_element(first, first + static_cast<std::ptrdiff_t>(most), starts.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    starts.resize(most + 2);
  }

  const cut_problem& p_;
  cut_price price_;
  op_set best_;
  double least_ = 0;
};

inline cut_cost priced(const cut_figures& f, const cut_price& price) {
  return {f.stage / price.stage_threads, f.rest, f.bytes, price(f)};
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
