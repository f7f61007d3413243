// The puts and takes of the user's stages as pairs, and why a pair stays where it is.
//
//   read ─> parse ─>(put "io"  take "io")─> hash       a pair; several puts or takes of a stage are none
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// A put and a take of the user.
struct stage_pair {
  index_t put = -1, take = -1;
  std::string name;
  std::string kept;  // why the pair stays; empty: it is undone
};

/// In the order in which their last ops were added.
class stage_pairs {
  using number = flat_graph::number;

 public:
  explicit stage_pairs(const flat_graph& g) : g_(g) {
    std::vector<std::pair<std::string, index_t>> ends;
    for (const auto& [op, name] : g_.stage_ops()) ends.emplace_back(name, op);
    std::stable_sort(ends.begin(), ends.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (std::size_t i = 0; i < ends.size();) {
      stage_pair pair;
      pair.name = ends[i].first;
      int puts = 0, takes = 0;
      for (; i < ends.size() && ends[i].first == pair.name; ++i) {
        const op_kind kind = g_.kind(ends[i].second);
        if (kind != op_kind::stage_take) pair.put = ends[i].second, ++puts;
        if (kind != op_kind::stage_put) pair.take = ends[i].second, ++takes;
      }
      if (puts == 0 || takes == 0) {
        pair.kept =
            puts == 0 ? "nothing is put to it in this graph" : "nothing is taken from it in this graph";
      } else if (puts > 1 || takes > 1) {
        pair.kept = puts > 1 ? "several ops put to it" : "several ops take from it";
      } else if (pair.put != pair.take &&
                 (g_.out_end(pair.put) != g_.out_begin(pair.put) || !g_.in(pair.take).empty())) {
        pair.kept = "an op waits for its put, or its take for an op";
      }
      for (const number e : g_.in(pair.put < 0 ? pair.take : pair.put)) {
        if (pair.kept.empty() && g_.kind(g_.source(e)) == op_kind::variable)
          pair.kept = "it stages a variable itself";
      }
      pairs_.push_back(std::move(pair));
    }
    keep_earlier_pairs();
    std::sort(pairs_.begin(), pairs_.end(), [](const stage_pair& a, const stage_pair& b) {
      return (std::max)(a.put, a.take) < (std::max)(b.put, b.take);
    });
    for (std::size_t i = 0; i < pairs_.size(); ++i) {
      if (pairs_[i].put >= 0) by_put_.emplace_back(pairs_[i].put, i);
      if (pairs_[i].take >= 0) by_take_.emplace_back(pairs_[i].take, i);
    }
    std::sort(by_put_.begin(), by_put_.end());
    std::sort(by_take_.begin(), by_take_.end());
  }

  [[nodiscard]] const std::vector<stage_pair>& list() const noexcept { return pairs_; }
  [[nodiscard]] std::vector<stage_pair>& list() noexcept { return pairs_; }
  [[nodiscard]] const stage_pair& of_put(index_t op) const noexcept { return find_in(by_put_, op); }
  [[nodiscard]] const stage_pair& of_take(index_t op) const noexcept { return find_in(by_take_, op); }
  /// Whether a stage needs the op: the user runs it ahead.
  [[nodiscard]] bool is_before_put(index_t op) const noexcept { return before_put_[at(op)] != 0; }

 private:
  using op_list = std::vector<std::pair<index_t, std::size_t>>;  // and its pair
  static std::size_t at(index_t i) noexcept { return static_cast<std::size_t>(i); }

  [[nodiscard]] const stage_pair& find_in(const op_list& list, index_t op) const noexcept {
    const auto found = std::lower_bound(list.begin(), list.end(), std::pair<index_t, std::size_t>(op, 0));
    return pairs_[found->second];
  }

  // A take that another stage is fed by: only the last stage of a line moves.
  void keep_earlier_pairs() {
    before_put_.assign(at(g_.size()), 0);
    std::vector<index_t> open;
    const auto visit = [&](index_t u) {
      if (before_put_[at(u)] == 0) before_put_[at(u)] = 1, open.push_back(u);
    };
    for (const auto& [op, name] : g_.stage_ops()) {
      if (g_.kind(op) == op_kind::stage_take) continue;
      for (const number e : g_.in(op)) visit(g_.source(e));
    }
    while (!open.empty()) {
      const index_t v = open.back();
      open.pop_back();
      for (const number e : g_.in(v)) visit(g_.source(e));
    }
    for (stage_pair& pair : pairs_) {
      if (pair.kept.empty() && before_put_[at(pair.take)] != 0)
        pair.kept = "another stage comes after it, and only the last one moves";
    }
  }

  const flat_graph& g_;
  std::vector<stage_pair> pairs_;
  op_list by_put_, by_take_;
  std::vector<std::uint8_t> before_put_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
