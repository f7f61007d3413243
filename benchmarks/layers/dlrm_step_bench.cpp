// A whole step of DLRM in the configuration for Criteo Kaggle, f32, on one thread: D = 16, bottom
// 13-512-256-64-16, top 367-512-256-1, 26 tables of 100,000 rows, one zipf(1.05) id for each sample and
// table,
// batches of 2048; lookup, forward, loss, backward, Adagrad of the stacks, rowwise Adagrad of the rows.
//
//   layers/dlrm_step/b:2048
//
//   over         time of a step over the sum, in the same round, of gemm_ms, gather_ms and rewrite_ms
//   gemm_ms      each product of the stacks alone, forward and the gradients of weights and input, on weights
//                that were packed before, or as they are where that is faster; none of the input of the
// bottom
//   gather_ms    the best of a sweep of gathers of the rows of the batch
//   rewrite_ms   the best of a sweep of passes that read, change and write its different rows with their
//                state
//   *_part_ms    of the step's parts
//
// Limits use the ids of another batch than the step beside them. The rows in the caches are what a
// rotation of
// 64 batches leaves there, on both sides. Loss, gradients and the first step are compared with sums in double
// before anything is timed.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/random.hpp>
#include <deeprec/dense/interactions/dot_interaction.hpp>
#include <deeprec/dense/layers/mlp.hpp>
#include <deeprec/dense/losses/logistic_loss.hpp>
#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/lookup_features.hpp>
#include <deeprec/embedding/groups/resolved_features.hpp>
#include <deeprec/embedding/groups/update_features.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/optim/adagrad.hpp>

#include "layers/layer_rows.hpp"
#include "support/add.hpp"
#include "support/gather.hpp"
#include "support/rewrite.hpp"
#include "support/zipf.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bench;
using namespace layers_bench;

constexpr index_t batch_rows = 2048, tables = 26, rows_of_table = 100'000, width = 16, dense_width = 13;
constexpr std::size_t rotation = 64;

/// What a step reads: ids of table t in row t, and the same as rows of all tables, sample by sample.
struct inputs {
  std::vector<float> dense, labels;
  std::vector<std::int64_t> by_table, by_sample, different;

  explicit inputs(std::uint64_t seed)
      : dense(normal(batch_rows * dense_width, 10 + seed)), labels(zeros(batch_rows)) {
    const counter_rng rng(900 + seed);
    for (index_t t = 0; t < tables; ++t) {
      for (index_t b = 0; b < batch_rows; ++b) {
        by_table.push_back(
            zipf_id(rng.bits(static_cast<std::uint64_t>(t), static_cast<std::uint64_t>(b)), rows_of_table));
      }
    }
    for (index_t b = 0; b < batch_rows; ++b) {
      labels[static_cast<std::size_t>(b)] = rng.bits(tables, static_cast<std::uint64_t>(b)) % 4 == 0 ? 1 : 0;
      for (index_t t = 0; t < tables; ++t) {
        by_sample.push_back(t * rows_of_table + by_table[static_cast<std::size_t>(t * batch_rows + b)]);
      }
    }
    different = by_sample;
    std::sort(different.begin(), different.end());
    different.erase(std::unique(different.begin(), different.end()), different.end());
    std::vector<std::int64_t> seen;  // in the order of the samples
    std::vector<bool> known(different.size());
    for (const std::int64_t id : by_sample) {
      const auto at = std::lower_bound(different.begin(), different.end(), id) - different.begin();
      if (known[static_cast<std::size_t>(at)]) continue;
      known[static_cast<std::size_t>(at)] = true;
      seen.push_back(id);
    }
    different = std::move(seen);
  }
  [[nodiscard]] matrix_view<const float> x() const { return in(dense, batch_rows, dense_width); }
  [[nodiscard]] matrix_view<const float> y() const { return in(labels, batch_rows, 1); }
};

using bags = fixed_hotness_view<>;
using group_type = feature_group<rowwise_adagrad, bags>;

struct parts_of_step {
  double lookup = 0, stacks = 0, interaction = 0, loss = 0, backward = 0, step = 0, update = 0;
};

struct dlrm {
  dense_table<f32_rows> table{tables * rows_of_table, f32_rows(width, {.state_floats = 1})};
  group_type group;
  mlp<> bottom{{dense_width, 512, 256, 64, width}, mlp_output::relu, counter_rng(1)};
  mlp<> top{{dot_interaction_width(tables + 1, width), 512, 256, 1},
            mlp_output::linear,
            counter_rng(1),
            weight_init::he,
            100};
  std::vector<float> pooled = zeros(batch_rows * tables * width), to_pooled = pooled;
  std::vector<float> crossed = zeros(batch_rows * top.size(0)), slope = zeros(batch_rows);
  std::vector<float> to_bottom = zeros(batch_rows * width);
  adagrad dense_optimizer{.learning_rate = 1e-3F};
  rowwise_adagrad row_optimizer{.learning_rate = 1e-3F};
  double loss = 0;
  std::vector<bags> by_table;

  dlrm() {
    table.initialize(here, row_init::uniform{.seed = 1, .bound = 0.5F});
    const auto rows = table.view();
    for (index_t t = 0; t < tables; ++t) {
      group.add(table_view<f32_rows>(rows.row(t * rows_of_table), rows_of_table, rows.format()),
                combiner::sum);
    }
  }
  dlrm(const dlrm&) = delete;  // its group refers to its table
  dlrm& operator=(const dlrm&) = delete;

  void step(const inputs& of, parts_of_step& parts) {
    by_table.clear();
    for (index_t t = 0; t < tables; ++t) {
      by_table.emplace_back(of.by_table.data() + t * batch_rows, batch_rows, 1);
    }
    const auto v = out(pooled, batch_rows, tables * width);
    const auto z = out(crossed, batch_rows, top.size(0));
    const auto g = out(slope, batch_rows, 1), g0 = out(to_bottom, batch_rows, width);
    const auto gv = out(to_pooled, batch_rows, tables * width);
    std::optional<resolved_features<group_type>> found;
    parts.lookup = seconds_of([&] {
      found.emplace(resolve(here, group, by_table).value());
      lookup(here, *found, v).or_throw();
    });
    parts.stacks = seconds_of([&] { bottom.forward(here, of.x()).or_throw(); });
    parts.interaction = seconds_of([&] { dot_interaction_forward(here, bottom.output(), v, z).or_throw(); });
    parts.stacks += seconds_of([&] { top.forward(here, z).or_throw(); });
    parts.loss = seconds_of([&] {
      logistic_loss_forward(here, top.output(), of.y(), loss).or_throw();
      logistic_loss_backward(here, top.output(), of.y(), g).or_throw();
    });
    parts.backward = seconds_of([&] { top.backward(here, g).or_throw(); });
    parts.interaction += seconds_of(
        [&] { dot_interaction_backward(here, bottom.output(), v, top.input_gradient(), g0, gv).or_throw(); });
    parts.backward += seconds_of([&] { bottom.backward(here, g0, compute_input_gradient::no).or_throw(); });
    parts.step = seconds_of([&] {
      bottom.step(here, dense_optimizer).or_throw();
      top.step(here, dense_optimizer).or_throw();
    });
    parts.update = seconds_of([&] { update(here, *found, gv, row_optimizer).or_throw(); });
  }
};

using doubles = std::vector<double>;

doubles to_double(const matrix_view<const float>& from) {
  return {from.data_handle(), from.data_handle() + from.extent(0) * from.extent(1)};
}

/// A stack in double: the outputs of its layers for one sample.
doubles through(const std::vector<index_t>& sizes, const doubles& parameters, doubles x, bool rectified) {
  const double* w = parameters.data();
  for (std::size_t l = 0; l + 1 < sizes.size(); ++l) {
    doubles y(static_cast<std::size_t>(sizes[l + 1]));
    for (double& sum : y) {
      for (const double value : x) sum += *w++ * value;
    }
    for (double& sum : y) {
      sum += *w++;
      if (l + 2 < sizes.size() || rectified) sum = std::max(sum, 0.0);
    }
    x = std::move(y);
  }
  return x;
}

/// The mean loss of the samples [0, count), times count / batch_rows, in double.
double loss_of(const inputs& of, const doubles& bottom, const doubles& top, const doubles& pooled,
               index_t count) {
  double sum = 0;
  for (index_t b = 0; b < count; ++b) {
    const float* const x = of.dense.data() + b * dense_width;
    std::vector<doubles> vectors{
        through({dense_width, 512, 256, 64, width}, bottom, doubles(x, x + dense_width), true)};
    for (index_t t = 0; t < tables; ++t) {
      const auto at = pooled.begin() + (b * tables + t) * width;
      vectors.emplace_back(at, at + width);
    }
    doubles z = vectors[0];
    for (std::size_t i = 1; i < vectors.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        double dot = 0;
        for (std::size_t k = 0; k < vectors[i].size(); ++k) dot += vectors[i][k] * vectors[j][k];
        z.push_back(dot);
      }
    }
    const std::vector<index_t> sizes{static_cast<index_t>(z.size()), 512, 256, 1};
    const double logit = through(sizes, top, std::move(z), false)[0];
    const auto label = static_cast<double>(of.labels[static_cast<std::size_t>(b)]);
    sum += std::max(logit, 0.0) - logit * label + std::log1p(std::exp(-std::abs(logit)));
  }
  return sum / static_cast<double>(batch_rows);
}

/// Values moved along random signs, and how much the loss moves with them by the gradients.
struct moved {
  doubles ahead, back;
  double slope = 0, squares = 0;

  moved(const doubles& values, const matrix_view<const float>& gradient, double by, std::uint64_t seed)
      : ahead(values), back(values) {
    const counter_rng rng(seed);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double sign = rng.bits(0, i) % 2 == 0 ? 1 : -1;
      const auto g = static_cast<double>(gradient.data_handle()[i]);
      ahead[i] += by * sign;
      back[i] -= by * sign;
      slope += g * sign;
      squares += g * g;
    }
  }
};

/// Makes the first step of a model. Empty, or what of it differs from sums in double.
std::string first_step(dlrm& model, const inputs& of) {
  const auto rows = model.table.view();
  const doubles bottom = to_double(model.bottom.parameters()), top = to_double(model.top.parameters());
  model.bottom.weights_settled();
  model.top.weights_settled();
  doubles pooled, before;
  for (const std::int64_t id : of.by_sample) {
    const auto* const row = static_cast<const float*>(static_cast<const void*>(rows.row(id)));
    pooled.insert(pooled.end(), row, row + width);
  }
  for (const std::int64_t id : of.different) {
    const auto* const row = static_cast<const float*>(static_cast<const void*>(rows.row(id)));
    before.insert(before.end(), row, row + width);
  }
  parts_of_step parts;
  model.step(of, parts);
  for (std::size_t i = 0; i < pooled.size(); ++i) {
    if (static_cast<double>(model.pooled[i]) != pooled[i]) return "wrong answer: other rows were looked up";
  }
  if (!(std::abs(model.loss - loss_of(of, bottom, top, pooled, batch_rows)) <= 1e-5)) {
    return "wrong answer: the loss in double is another";
  }
  constexpr double by = 1e-8;  // so that few units of ReLU pass 0
  const moved b(bottom, model.bottom.gradients(), by, 1), t(top, model.top.gradients(), by, 2);
  const moved v(pooled, in(model.to_pooled, 1, static_cast<index_t>(pooled.size())), by, 3);
  for (const int which : {0, 1, 2}) {
    const moved& m = which == 0 ? b : which == 1 ? t : v;
    const auto at = [&](bool ahead) {
      const auto side = [ahead](const moved& of_part) { return ahead ? of_part.ahead : of_part.back; };
      return loss_of(of, which == 0 ? side(b) : bottom, which == 1 ? side(t) : top,
                     which == 2 ? side(v) : pooled, batch_rows);
    };
    const double slope = (at(true) - at(false)) / (2 * by);
    if (!(std::abs(slope - m.slope) <= 1e-2 * std::sqrt(m.squares))) {
      return "wrong answer: differences of the loss in double give another gradient";
    }
  }
  for (const auto& [old, stack] : {std::pair(&bottom, &model.bottom), std::pair(&top, &model.top)}) {
    const doubles now = to_double(stack->parameters()), g = to_double(stack->gradients());
    stack->weights_settled();
    for (std::size_t i = 0; i < now.size(); ++i) {
      const double step = 1e-3 * g[i] / (std::abs(g[i]) + 1e-8);
      if (!(std::abs(now[i] - ((*old)[i] - step)) <= 1e-6)) return "wrong answer: another step of a stack";
    }
  }
  for (std::size_t u = 0; u < of.different.size(); u += 97) {
    double sums[width] = {}, squares = 0;
    for (std::size_t k = 0; k < of.by_sample.size(); ++k) {
      if (of.by_sample[k] != of.different[u]) continue;
      for (std::size_t j = 0; j < width; ++j) sums[j] += static_cast<double>(model.to_pooled[k * width + j]);
    }
    for (const double sum : sums) squares += sum * sum / width;
    const auto* const row = static_cast<const float*>(static_cast<const void*>(rows.row(of.different[u])));
    for (std::size_t j = 0; j < width; ++j) {
      const double step = 1e-3 * sums[j] / (std::sqrt(squares) + 1e-8);
      if (!(std::abs(static_cast<double>(row[j]) - (before[u * width + j] - step)) <= 1e-6)) {
        return "wrong answer: another step of a row";
      }
    }
  }
  return {};
}

/// One product of a stack on memory of its own.
class raw_product {
 public:
  enum class kind { forward, to_weights, to_input };
  raw_product(kind of, index_t inputs, index_t outputs)
      : kind_(of),
        in_(inputs),
        out_(outputs),
        x_(normal(batch_rows * inputs, 1)),
        w_(normal(outputs * inputs, 2)),
        y_(normal(batch_rows * outputs, 3)),
        weights_(layers_bench::in(w_, outputs, inputs)) {}
  void run() { run(packed_); }
  /// Keeps the faster form of the weights.
  void choose() {
    double seconds[2];
    for (const bool packed : {false, true}) {
      run(packed);
      double& least = seconds[packed ? 1 : 0];
      least = seconds_of([&] { run(packed); });
      for (int i = 0; i < 4; ++i) least = std::min(least, seconds_of([&] { run(packed); }));
    }
    packed_ = seconds[1] < seconds[0];
  }

 private:
  void run(bool packed) {
    const auto x = out(x_, batch_rows, in_), y = out(y_, batch_rows, out_), w = out(w_, out_, in_);
    const auto with_weights = [&](gemm_operand b, const auto& a, const auto& c) {
      return packed ? gemm(here, gemm_desc{.b = b}, a, weights_, c) : gemm(here, gemm_desc{.b = b}, a, w, c);
    };
    if (kind_ == kind::forward) {
      with_weights(gemm_operand::transposed, x, y).or_throw();
    } else if (kind_ == kind::to_weights) {
      gemm(here, gemm_desc{.a = gemm_operand::transposed}, y, x, w).or_throw();
    } else {
      with_weights(gemm_operand::normal, y, x).or_throw();
    }
  }

  kind kind_;
  index_t in_, out_;
  std::vector<float> x_, w_, y_;
  gemm_weights weights_;
  bool packed_ = true;
};

std::vector<std::unique_ptr<raw_product>> products_of(const dlrm& model) {
  using kind = raw_product::kind;
  std::vector<std::unique_ptr<raw_product>> all;
  for (const mlp<>* stack : {&model.bottom, &model.top}) {
    for (int l = 0; l < stack->layers(); ++l) {
      for (const kind k : {kind::forward, kind::to_weights, kind::to_input}) {
        if (k == kind::to_input && stack == &model.bottom && l == 0) continue;
        all.push_back(std::make_unique<raw_product>(k, stack->size(l), stack->size(l + 1)));
        all.back()->choose();
      }
    }
  }
  return all;
}

void dlrm_step(benchmark::State& state, const std::string& name) {
  std::vector<inputs> all;
  for (std::size_t k = 0; k < rotation; ++k) all.emplace_back(k);
  dlrm model;
  if (const std::string wrong = first_step(model, all[0]); !wrong.empty()) {
    return state.SkipWithError(wrong.c_str());
  }
  const auto products = products_of(model);
  const auto format = model.table.view().format();
  char* const rows = static_cast<char*>(static_cast<void*>(model.table.view().data()));
  std::vector<float> gathered = zeros(batch_rows * tables * width);
  std::vector<batch> read;
  id_sets rewritten;
  for (const inputs& one : all) {
    batch ids{{}, one.by_sample};
    for (index_t k = 0; k <= batch_rows * tables; ++k) ids.offsets.push_back(k);
    read.push_back(std::move(ids));
    rewritten.push_back(one.different);
  }
  const std::vector<row_reader> readers =
      gathers(rows, format.row_bytes(), static_cast<char*>(static_cast<void*>(gathered.data())),
              format.stride_bytes());
  const limit gather = limit::of(readers, read);
  const rewriter_search rewrite = fastest_rewriter(rows, format.stride_bytes(), rewritten);
  const memory_pace pace = memory_pace::of(rows, static_cast<std::size_t>(model.table.bytes()));
  double different = 0;
  for (const auto& ids : rewritten) different += static_cast<double>(ids.size());
  for (const std::string& fault :
       {pace.check(gather.best, ids_of(read), static_cast<double>(format.row_bytes())),
        pace.check(rewrite.best, different, static_cast<double>(format.stride_bytes()))}) {
    if (!fault.empty()) return state.SkipWithError(fault.c_str());
  }
  for (auto _ : state) {
    figures f(name);
    f.say(gather.best.name);
    f.say(rewrite.best.name);
    std::size_t turn = 0;
    f.sample([&] {
      const std::size_t now = turn++ % rotation, other = (now + rotation / 2) % rotation;
      double step = 0, gemms = 0, gather_seconds = 0, rewrite_seconds = 0;
      parts_of_step parts;
      const auto ours = [&] { step = seconds_of([&] { model.step(all[now], parts); }); };
      const auto limits = [&] {
        gather_seconds = seconds_of([&] { gather.reader.read(read[other]); });
        gemms = 0;
        for (const auto& p : products) {
          p->run();  // its operands are where they are after a product before it
          gemms += seconds_of([&] { p->run(); });
        }
        rewrite_seconds = seconds_of([&] { rewrite.found.pass(rewritten[other]); });
      };
      if (f.swapped()) {
        limits();
        ours();
      } else {
        ours();
        limits();
      }
      f.add("over", step / (gather_seconds + gemms + rewrite_seconds));
      f.note("step_ms", step * 1e3);
      f.note("gemm_ms", gemms * 1e3);
      f.note("gather_ms", gather_seconds * 1e3);
      f.note("rewrite_ms", rewrite_seconds * 1e3);
      f.note("lookup_part_ms", parts.lookup * 1e3);
      f.note("forward_part_ms", parts.stacks * 1e3);
      f.note("interaction_part_ms", parts.interaction * 1e3);
      f.note("loss_part_ms", parts.loss * 1e3);
      f.note("backward_part_ms", parts.backward * 1e3);
      f.note("dense_step_part_ms", parts.step * 1e3);
      f.note("update_part_ms", parts.update * 1e3);
      f.note("different_rows", static_cast<double>(rewritten[other].size()));
    });
    f.report(state);
  }
}

const bool registered = [] {
  add("layers/dlrm_step/b:2048", dlrm_step);
  return true;
}();

}  // namespace
