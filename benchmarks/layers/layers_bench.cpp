// Layers, forward and backward, f32, on one thread, 2048 samples where it says nothing else.
//
//   layers/interaction/d:16     DLRM's dot interaction, 27 vectors
//   layers/fm/d:16              the factorization machine's pairs, column by column, 39 vectors
//   layers/dice/d:200           Dice with the statistics of the batch
//   layers/attention/d:32       DIN's features of each position and the weighted sum of each history, of 1 to
//                               50 positions, 20 in the mean, without the scores' perceptron; keys'
//                               gradients of both are added up
//   layers/cross/d:429          a cross layer of DCN-v2, weights as they are
//   layers/softmax/b:1024       in-batch softmax of (1024, 1024) scores
//   layers/normalize/d:64       rows of length one
//
//   speedup          the op-by-op Eigen formulation over ours, the faster of two builds, both directions
//   share_forward,   the limit over ours: products at the rate of a large product in the same round (the
//   share_backward   fastest of a sweep), or a memcpy of as many bytes as must move, whichever takes longer
//   share            the same of both directions
//   gflops           of the products, forward and backward
//
// Answers are compared before anything is timed.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <deeprec/dense/interactions/cross_layer.hpp>
#include <deeprec/dense/interactions/dot_interaction.hpp>
#include <deeprec/dense/interactions/fm_interaction.hpp>
#include <deeprec/dense/layers/attention_features.hpp>
#include <deeprec/dense/layers/attention_pool.hpp>
#include <deeprec/dense/layers/dice.hpp>
#include <deeprec/dense/layers/normalize_rows.hpp>
#include <deeprec/dense/losses/in_batch_softmax.hpp>

#include "layers/baseline.hpp"
#include "layers/layer_rows.hpp"
#include "support/add.hpp"

namespace {

using namespace deeprec;
using namespace layers_bench;
using deeprec_bench::add;
namespace baseline = layers_baseline;

constexpr index_t samples = 2048;

void ignore(const status& s) { benchmark::DoNotOptimize(s.ok()); }

/// Both directions of a baseline on a case.
template <class Case>
passes on(void (*forward)(const Case&), void (*backward)(const Case&), const Case& of) {
  return {[forward, &of] {
            forward(of);
            benchmark::ClobberMemory();
          },
          [backward, &of] {
            backward(of);
            benchmark::ClobberMemory();
          }};
}

void interaction(benchmark::State& state, const std::string& name, index_t width) {
  constexpr index_t tables = 26, count = tables + 1;
  const index_t wide = dot_interaction_width(count, width);
  const std::vector<float> dense = normal(samples * width, 1), pooled = normal(samples * tables * width, 2);
  const std::vector<float> gradient = normal(samples * wide, 3);
  std::vector<float> vectors = zeros(samples * count * width), crossed = zeros(samples * wide);
  std::vector<float> to_dense = zeros(samples * width), to_pooled = zeros(samples * tables * width);
  std::vector<float> their_crossed = crossed, their_gradients = vectors;
  for (index_t b = 0; b < samples; ++b) {
    float* const to = vectors.data() + b * count * width;
    std::copy_n(pooled.data() + b * tables * width, tables * width,
                std::copy_n(dense.data() + b * width, width, to));
  }
  const auto v0 = in(dense, samples, width), v = in(pooled, samples, tables * width);
  const passes ours{[&] { ignore(dot_interaction_forward(here, v0, v, out(crossed, samples, wide))); },
                    [&] {
                      ignore(dot_interaction_backward(here, v0, v, in(gradient, samples, wide),
                                                      out(to_dense, samples, width),
                                                      out(to_pooled, samples, tables * width)));
                    }};
  const baseline::interaction_case theirs{
      {samples, count, width}, vectors.data(), gradient.data(), their_crossed.data(), their_gradients.data()};
  const auto same = [&] {
    bool right = close(crossed, their_crossed, 1e-4);
    for (index_t b = 0; b < samples; ++b) {
      const float* const at = their_gradients.data() + b * count * width;
      right = right && close(to_dense.data() + b * width, at, static_cast<std::size_t>(width), 1e-4) &&
              close(to_pooled.data() + b * tables * width, at + width,
                    static_cast<std::size_t>(tables * width), 1e-4);
    }
    return right;
  };
  const double flops = 2.0 * static_cast<double>(samples * count * count * width);
  const index_t inputs = samples * count * width;
  measure(state, name,
          {ours,
           on(baseline::o2::interaction_forward, baseline::o2::interaction_backward, theirs),
           on(baseline::native::interaction_forward, baseline::native::interaction_backward, theirs),
           same,
           {flops, inputs + samples * wide},
           {flops, 2 * inputs + samples * wide}});
}

void fm(benchmark::State& state, const std::string& name, index_t width) {
  constexpr index_t count = 39;
  const index_t wide = count * width;
  const std::vector<float> vectors = normal(samples * wide, 1), gradient = normal(samples * width, 2);
  std::vector<float> pairs = zeros(samples * width), to_vectors = zeros(samples * wide);
  std::vector<float> their_pairs = pairs, their_gradients = to_vectors;
  const auto v = in(vectors, samples, wide);
  const passes ours{[&] { ignore(fm_interaction_forward(here, v, width, out(pairs, samples, width))); },
                    [&] {
                      ignore(fm_interaction_backward(here, v, width, in(gradient, samples, width),
                                                     out(to_vectors, samples, wide)));
                    }};
  const baseline::fm_case theirs{
      {samples, count, width}, vectors.data(), gradient.data(), their_pairs.data(), their_gradients.data()};
  const auto same = [&] {  // the difference of squares loses some digits
    return close(pairs, their_pairs, 1e-3) && close(to_vectors, their_gradients, 1e-4);
  };
  measure(state, name,
          {ours,
           on(baseline::o2::fm_forward, baseline::o2::fm_backward, theirs),
           on(baseline::native::fm_forward, baseline::native::fm_backward, theirs),
           same,
           {0, samples * (wide + width)},
           {0, samples * (2 * wide + width)}});
}

void dice(benchmark::State& state, const std::string& name, index_t width) {
  const std::vector<float> x = normal(samples * width, 1), gradient = normal(samples * width, 2);
  const std::vector<float> alpha = normal(width, 3);
  std::vector<float> y = zeros(samples * width), to_x = y, mean = zeros(width), variance = mean;
  std::vector<float> to_alpha = mean, their_y = y, their_to_x = y, their_to_alpha = mean;
  const dice_statistics<> statistics{array_view<float>(mean.data(), width),
                                     array_view<float>(variance.data(), width)};
  const array_view<const float> slopes(alpha.data(), width);
  const auto values = in(x, samples, width);
  const passes ours{
      [&] { ignore(dice_forward(here, values, slopes, statistics, out(y, samples, width))); },
      [&] {
        ignore(dice_backward(here, values, slopes, statistics, in(gradient, samples, width),
                             out(to_x, samples, width), array_view<float>(to_alpha.data(), width)));
      }};
  const baseline::dice_case theirs{samples,         width,          x.data(),          alpha.data(),
                                   gradient.data(), their_y.data(), their_to_x.data(), their_to_alpha.data()};
  const auto same = [&] {
    return close(y, their_y, 1e-4) && close(to_x, their_to_x, 1e-4) && close(to_alpha, their_to_alpha, 1e-3);
  };
  measure(state, name,
          {ours,
           on(baseline::o2::dice_forward, baseline::o2::dice_backward, theirs),
           on(baseline::native::dice_forward, baseline::native::dice_backward, theirs),
           same,
           {0, 2 * samples * width},
           {0, 3 * samples * width}});
}

/// Offsets of histories of 1 to 50 positions, 20 in the mean: 1 + the sum of 49 flips.
std::vector<std::int64_t> histories() {
  std::mt19937_64 random(7);
  std::binomial_distribution<std::int64_t> more(49, 19.0 / 49);
  std::vector<std::int64_t> offsets{0};
  for (index_t b = 0; b < samples; ++b) offsets.push_back(offsets.back() + 1 + more(random));
  return offsets;
}

void attention(benchmark::State& state, const std::string& name, index_t width) {
  const std::vector<std::int64_t> offsets = histories();
  const auto positions = static_cast<index_t>(offsets.back());
  const index_t wide = 4 * width;
  const std::vector<float> queries = normal(samples * width, 1), keys = normal(positions * width, 2);
  const std::vector<float> scores = normal(positions, 3), to_features = normal(positions * wide, 4);
  const std::vector<float> to_pooled = normal(samples * width, 5);
  std::vector<float> features = zeros(positions * wide), pooled = zeros(samples * width);
  std::vector<float> to_queries = pooled, to_keys = zeros(positions * width), to_scores = zeros(positions);
  std::vector<float> their_features = features, their_pooled = pooled, their_to_queries = to_queries;
  std::vector<float> their_to_keys = to_keys, their_to_scores = to_scores;
  const auto q = in(queries, samples, width), k = in(keys, positions, width), s = in(scores, positions, 1);
  const array_view<const std::int64_t> ranges(offsets.data(), samples + 1);
  const passes ours{[&] {
                      ignore(attention_features_forward(here, q, k, ranges, out(features, positions, wide)));
                      ignore(attention_pool_forward(here, s, k, ranges, out(pooled, samples, width)));
                    },
                    [&] {
                      ignore(attention_features_backward(here, q, k, ranges, in(to_features, positions, wide),
                                                         {.queries = out(to_queries, samples, width),
                                                          .keys = out(to_keys, positions, width)}));
                      ignore(attention_pool_backward(
                          here, s, k, ranges, in(to_pooled, samples, width),
                          {.scores = out(to_scores, positions, 1), .keys = out(to_keys, positions, width)},
                          {.key_gradient = gradient_write::add}));
                    }};
  const baseline::attention_case theirs{samples,
                                        positions,
                                        width,
                                        queries.data(),
                                        keys.data(),
                                        offsets.data(),
                                        scores.data(),
                                        to_features.data(),
                                        to_pooled.data(),
                                        their_features.data(),
                                        their_pooled.data(),
                                        their_to_queries.data(),
                                        their_to_keys.data(),
                                        their_to_scores.data()};
  const auto same = [&] {
    return close(features, their_features, 0) && close(pooled, their_pooled, 1e-4) &&
           close(to_queries, their_to_queries, 1e-4) && close(to_keys, their_to_keys, 1e-4) &&
           close(to_scores, their_to_scores, 1e-4);
  };
  const index_t n = positions * width, b = samples * width;  // the perceptron is between the two verbs
  measure(state, name,
          {ours,
           on(baseline::o2::attention_forward, baseline::o2::attention_backward, theirs),
           on(baseline::native::attention_forward, baseline::native::attention_backward, theirs),
           same,
           {0, (b + n + 4 * n) + (positions + n + b)},
           {0, (b + n + 4 * n + b + n) + (positions + n + b + positions + 2 * n)}});
}

void cross(benchmark::State& state, const std::string& name, index_t width) {
  const std::vector<float> x0 = normal(samples * width, 1), x = normal(samples * width, 2);
  std::vector<float> weights = normal(width * width, 3);
  for (float& w : weights) w /= std::sqrt(static_cast<float>(width));
  const std::vector<float> bias = normal(width, 4), gradient = normal(samples * width, 5);
  std::vector<float> product = zeros(samples * width), crossed = product, to_product = product;
  std::vector<float> to_weights = zeros(width * width), to_bias = zeros(width), to_x0 = product,
                     to_x = product;
  std::vector<float> their_product = product, their_crossed = product, their_to_weights = to_weights;
  std::vector<float> their_to_bias = to_bias, their_to_x0 = product, their_to_x = product;
  const auto of_batch = [&](std::vector<float>& m) { return out(m, samples, width); };
  const auto w = in(weights, width, width);
  const auto first = in(x0, samples, width), last = in(x, samples, width);
  const passes ours{
      [&] {
        ignore(cross_layer_forward(here, first, last, w, in(bias, 1, width), of_batch(product),
                                   of_batch(crossed)));
      },
      [&] {
        ignore(cross_layer_backward(here, first, last, of_batch(product), in(gradient, samples, width), w,
                                    {.product = of_batch(to_product),
                                     .weights = out(to_weights, width, width),
                                     .bias = out(to_bias, 1, width),
                                     .x0 = of_batch(to_x0),
                                     .x = of_batch(to_x)}));
      }};
  const baseline::cross_case theirs{samples,
                                    width,
                                    x0.data(),
                                    x.data(),
                                    weights.data(),
                                    bias.data(),
                                    gradient.data(),
                                    their_product.data(),
                                    their_crossed.data(),
                                    their_to_weights.data(),
                                    their_to_bias.data(),
                                    their_to_x0.data(),
                                    their_to_x.data()};
  const auto same = [&] {
    const bool right = close(product, their_product, 1e-4) && close(crossed, their_crossed, 1e-4) &&
                       close(to_weights, their_to_weights, 1e-3) && close(to_bias, their_to_bias, 1e-3) &&
                       close(to_x0, their_to_x0, 1e-4) && close(to_x, their_to_x, 1e-4);
    std::fill(their_to_x0.begin(), their_to_x0.end(), 0.0F);  // added to by the next build
    return right;
  };
  const double flops = 2.0 * static_cast<double>(samples * width * width);
  const index_t b = samples * width, parameters = width * width + width;
  measure(state, name,
          {ours,
           on(baseline::o2::cross_forward, baseline::o2::cross_backward, theirs),
           on(baseline::native::cross_forward, baseline::native::cross_backward, theirs),
           same,
           {flops, 4 * b + parameters},
           {2 * flops, 8 * b + 2 * parameters}});
}

void softmax(benchmark::State& state, const std::string& name, index_t batch) {
  constexpr float scale = 20;
  std::vector<float> scores = normal(batch * batch, 1);
  for (float& s : scores) s *= 2;
  double loss = 0;
  float their_loss = 0;
  std::vector<float> gradient = zeros(batch * batch), their_gradient = gradient;
  const auto s = in(scores, batch, batch);
  const passes ours{
      [&] { ignore(in_batch_softmax_forward(here, s, {}, {}, loss)); },
      [&] { ignore(in_batch_softmax_backward(here, s, {}, {}, scale, out(gradient, batch, batch))); }};
  const baseline::softmax_case theirs{batch, scale, scores.data(), &their_loss, their_gradient.data()};
  const auto same = [&] {
    return std::abs(loss - static_cast<double>(their_loss)) < 1e-4 && close(gradient, their_gradient, 1e-6);
  };
  measure(state, name,
          {ours,
           on(baseline::o2::softmax_forward, baseline::o2::softmax_backward, theirs),
           on(baseline::native::softmax_forward, baseline::native::softmax_backward, theirs),
           same,
           {0, batch * batch},
           {0, 2 * batch * batch}});
}

void normalize(benchmark::State& state, const std::string& name, index_t width) {
  const std::vector<float> x = normal(samples * width, 1), gradient = normal(samples * width, 2);
  std::vector<float> y = zeros(samples * width), to_x = y, inverse = zeros(samples);
  std::vector<float> their_y = y, their_to_x = y, their_inverse = inverse;
  const array_view<float> norms(inverse.data(), samples);
  const passes ours{
      [&] { ignore(normalize_rows_forward(here, in(x, samples, width), out(y, samples, width), norms)); },
      [&] {
        ignore(normalize_rows_backward(here, in(y, samples, width), norms, in(gradient, samples, width),
                                       out(to_x, samples, width)));
      }};
  const baseline::normalize_case theirs{
      samples, width, x.data(), gradient.data(), their_y.data(), their_inverse.data(), their_to_x.data()};
  const auto same = [&] { return close(y, their_y, 1e-5) && close(to_x, their_to_x, 1e-5); };
  measure(state, name,
          {ours,
           on(baseline::o2::normalize_forward, baseline::o2::normalize_backward, theirs),
           on(baseline::native::normalize_forward, baseline::native::normalize_backward, theirs),
           same,
           {0, 2 * samples * width},
           {0, 3 * samples * width}});
}

const bool registered = [] {
  using state = benchmark::State;
  using string = std::string;
  const auto row = [](const string& name, auto run, const char* letter, index_t size) {
    add("layers/" + name + "/" + letter + ":" + std::to_string(size),
        [run, size](state& s, const string& whole) { run(s, whole, size); });
  };
  for (const index_t width : {16, 64}) row("interaction", interaction, "d", width);
  for (const index_t width : {16, 64}) row("fm", fm, "d", width);
  row("dice", dice, "d", 200);
  row("attention", attention, "d", 32);
  row("cross", cross, "d", 429);
  row("softmax", softmax, "b", 1024);
  row("normalize", normalize, "d", 64);
  return true;
}();

}  // namespace
