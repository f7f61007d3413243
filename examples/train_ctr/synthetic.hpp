// Click data with the shape of Criteo's: 26 tables of its sizes, ids as skewed as its own, and a
// planted model that decides the clicks, so that there is something to learn and a ceiling to
// reach.
//
//   logit = bias + sum of slopes * integers + sum of token weights + sum over pairs of slots <u, v>
//   label = 1 with the probability of that logit
//
// Or, to tell models that see pairs from those that don't, a product of two tokens' signs alone decides:
//
//   logit = 2 * (+1 where token 5 is its most frequent one, else -1) * (the same of token 13)
//
// Row i is a function of (seed, i): the same for any number of threads.
#pragma once

#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include <deeprec/core/hash.hpp>
#include <deeprec/core/random.hpp>
#include <deeprec/dense/losses/logistic_loss.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/exec/inline_executor.hpp>

#include "models/ctr_data.hpp"
#include "output_file.hpp"
#include "row_source.hpp"

namespace ctr {

/// The columns of Criteo's logs.
inline constexpr index_t click_integers = 13, click_tokens = 26;
/// Rows of the 26 tables, and the exponents of their skew, measured on 45.8 million rows.
inline constexpr std::array<index_t, click_tokens> true_table_rows = {
    1460, 583,   10131227, 2202608, 305,  24,   12517, 633,     3,  93145, 5683,   8351593, 3194,
    27,   14992, 5461306,  10,      5652, 2173, 4,     7046547, 18, 15,    286181, 105,     142572};
inline constexpr std::array<double, click_tokens> true_skew = {
    1.80, 1.04, 0.98, 1.04, 2.26, 1.78, 0.82, 2.02, 3.00, 1.08, 0.84, 0.98, 0.82,
    1.70, 0.94, 1.00, 1.22, 1.02, 1.56, 0.58, 1.00, 2.88, 1.52, 1.12, 1.64, 1.24};

/// Draws 0, 1, 2 ... below `rows` with probability proportional to 1 / (1 + k)^exponent.
/// Source: rejection-inversion, Hörmann and Derflinger 1996.
class zipf {
 public:
  zipf(index_t rows, double exponent)
      : rows_(static_cast<double>(rows)),
        exponent_(exponent),
        low_(area(1.5) - 1),
        high_(area(rows_ + 0.5)),
        sure_(2 - inverse(area(2.5) - std::pow(2.0, -exponent))) {}

  /// `next()` gives uniform numbers in [0, 1).
  template <class Next>
  index_t operator()(Next&& next) const {
    while (true) {
      const double u = high_ + next() * (low_ - high_);
      const double x = inverse(u);
      const double k = std::clamp(std::floor(x + 0.5), 1.0, rows_);
      if (k - x <= sure_ || u >= area(k + 0.5) - std::pow(k, -exponent_)) {
        return static_cast<index_t>(k) - 1;
      }
    }
  }

 private:
  // Integral of x^-exponent, and its inverse, which go over into the logarithm at exponent 1.
  [[nodiscard]] double area(double x) const {
    const double log = std::log(x);
    const double t = (1 - exponent_) * log;
    return std::abs(t) < 1e-9 ? log : std::expm1(t) / (1 - exponent_);
  }
  [[nodiscard]] double inverse(double a) const {
    const double t = (1 - exponent_) * a;
    return std::abs(t) < 1e-9 ? std::exp(a) : std::exp(std::log1p(t) / (1 - exponent_));
  }
  double rows_, exponent_, low_, high_, sure_;
};

/// What decides the clicks.
enum class planted_model { mixed, product };

/// The true sizes, none above `data_rows` (more tokens can't occur), times a factor of at most 1 that brings
/// the sum below `most_rows`.
inline std::array<index_t, click_tokens> scaled_table_rows(index_t data_rows, index_t most_rows) {
  std::array<index_t, click_tokens> sizes = true_table_rows;
  double sum = 0;
  for (index_t& rows : sizes) {
    rows = std::min(rows, data_rows);
    sum += static_cast<double>(rows);
  }
  const double factor = std::min(1.0, static_cast<double>(most_rows) / sum);
  for (index_t& rows : sizes) {
    rows = std::max(std::min<index_t>(rows, 3), static_cast<index_t>(static_cast<double>(rows) * factor));
  }
  return sizes;
}

/// A planted weight of token `id` in slot s: component 0 counts alone, 1 .. 4 in pairs.
inline double planted_weight(deeprec::counter_rng rng, index_t s, index_t id, int component) {
  return rng.normal(1000 + static_cast<std::uint64_t>(s),
                    static_cast<std::uint64_t>(id) * 8 + static_cast<std::uint64_t>(component));
}

/// Rows 0 to rows - 1, made when they are asked for.
class synthetic_rows final : public row_source {
 public:
  synthetic_rows(index_t rows, index_t most_table_rows, std::uint64_t seed, planted_model planted)
      : rows_(rows), sizes_(scaled_table_rows(rows, most_table_rows)), rng_(seed), planted_(planted) {
    for (std::size_t s = 0; s < click_tokens; ++s) skew_.emplace_back(sizes_[s], true_skew[s]);
  }
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] const ctr_columns& columns() const override { return columns_; }
  [[nodiscard]] deeprec::batch_shape shape() const override { return deeprec::criteo_format::shape(); }
  [[nodiscard]] std::vector<index_t> table_rows(std::optional<index_t> others) const override {
    if (others) return std::vector<index_t>(sizes_.size(), *others);
    return {sizes_.begin(), sizes_.end()};
  }
  void rewind(deeprec::executor_ref executor) override {
    executor_ = executor;
    next_ = 0;
  }
  index_t next(sparse_batch& batch, index_t most) override {
    const index_t count = std::min(most, rows_ - next_);
    batch.reshape(deeprec::criteo_format::shape());
    batch.reserve_rows(count).or_throw();
    logits_.resize(static_cast<std::size_t>(count));
    float* const labels = batch.next_label();
    float* const numbers = batch.next_dense();
    std::array<std::int64_t*, click_tokens> ids{};
    for (index_t s = 0; s < click_tokens; ++s) ids[static_cast<std::size_t>(s)] = batch.next_id(s);
    executor_.parallel_for(count, index_t{256}, [&](index_t begin, index_t end, int) {
      for (index_t i = begin; i < end; ++i) {
        std::array<std::int64_t, click_tokens> id{};
        logits_[static_cast<std::size_t>(i)] = make(next_ + i, labels[i], numbers + i * click_integers, id);
        for (std::size_t s = 0; s < click_tokens; ++s) ids[s][i] = fingerprint_of(id[s], sizes_[s]);
      }
    });
    batch.commit_rows(count);
    next_ += count;
    return count;
  }
  /// Of the rows of the last call of next().
  [[nodiscard]] const std::vector<float>& planted_logits() const { return logits_; }

 private:
  float make(index_t row, float& label, float* number, std::array<std::int64_t, click_tokens>& id) const {
    std::uint64_t draws = 0;
    const auto next = [&] { return rng_.uniform(10000 + static_cast<std::uint64_t>(row), draws++); };
    double logit = -1.9;
    for (index_t n = 0; n < click_integers; ++n) {
      if (next() < 0.15) {
        number[n] = std::numeric_limits<float>::quiet_NaN();
        continue;
      }
      // A long tail, as counts have.
      const double size = -std::log(1 - next());
      number[n] = static_cast<float>(std::floor(std::expm1(1.5 * size)));
      logit += 0.15 * planted_weight(rng_, click_tokens + n, 0, 0) *
               (std::log1p(static_cast<double>(number[n])) - 1.5);
    }
    for (std::size_t s = 0; s < click_tokens; ++s) {
      id[s] = skew_[s](next);
      logit += 0.2 * planted_weight(rng_, static_cast<index_t>(s), id[s], 0);
    }
    for (std::size_t s = 0; s + 1 < click_tokens; s += 2) {  // neighbours interact
      double dot = 0;
      for (int c = 1; c <= 4; ++c) {
        dot += planted_weight(rng_, static_cast<index_t>(s), id[s], c) *
               planted_weight(rng_, static_cast<index_t>(s) + 1, id[s + 1], c);
      }
      logit += 0.15 * dot;
    }
    if (planted_ == planted_model::product) logit = (id[5] == 0) == (id[13] == 0) ? 2 : -2;
    label = next() < deeprec::sigmoid(logit) ? 1.0F : 0.0F;
    return static_cast<float>(logit);
  }

  std::string name_ = "synthetic";
  ctr_columns columns_;
  index_t rows_, next_ = 0;
  std::array<index_t, click_tokens> sizes_;
  deeprec::counter_rng rng_;
  planted_model planted_;
  std::vector<zipf> skew_;
  deeprec::inline_executor here_;
  deeprec::executor_ref executor_{here_};
  std::vector<float> logits_;
};

/// Writes the rows as Criteo's text: a token is eight hexadecimal digits.
inline void write_text(deeprec::executor_ref executor, synthetic_rows& rows, const std::string& path) {
  output_file file(path);
  rows.rewind(executor);
  constexpr index_t block = 1 << 14, piece = 1 << 10;
  const auto ids = rows.table_rows({});
  std::vector<std::string> texts(static_cast<std::size_t>(block / piece));
  for (sparse_batch batch; rows.next(batch, block) > 0;) {
    for (std::string& text : texts) text.clear();
    executor.parallel_for(batch.rows(), piece, [&](index_t begin, index_t end, int) {
      for (index_t r = begin; r < end; ++r) {
        std::string& text = texts[static_cast<std::size_t>(r / piece)];
        text += batch.labels()[static_cast<std::size_t>(r)] > 0 ? '1' : '0';
        for (index_t n = 0; n < click_integers; ++n) {
          text += '\t';
          const float number = std::as_const(batch).dense()(r, n);
          if (!std::isnan(number)) text += std::to_string(static_cast<index_t>(number));
        }
        for (index_t s = 0; s < click_tokens; ++s) {
          char token[16];
          const index_t of_column = id_of(batch.feature(s).ids()[r], ids[static_cast<std::size_t>(s)]);
          const std::uint64_t id =
              static_cast<std::uint64_t>(s) << 40 | static_cast<std::uint64_t>(of_column);
          std::snprintf(token, sizeof token, "\t%08x", static_cast<unsigned>(deeprec::mix64(id) >> 32));
          text += token;
        }
        text += '\n';
      }
    });
    for (const std::string& text : texts) file.write(text);
  }
  file.close();
}

}  // namespace ctr
