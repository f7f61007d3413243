// How learning rates change from step to step, as a scale of both: the library's schedules of a rate of 1.
//
//   constant   1, after a linear warm-up          step     factor^k after k periods
//   cosine     warm-up, half a cosine to `last`   smooth   smooth warm-up, then factor^k after k periods
#pragma once

#include <algorithm>
#include <string>
#include <variant>

#include <deeprec/core/dtypes.hpp>
#include <deeprec/optim/schedules.hpp>

#include "models/ctr_data.hpp"
#include "options.hpp"

namespace ctr {

class rate_schedule {
 public:
  rate_schedule() = default;
  /// @param steps  of the whole training, for a cosine whose length is not given
  rate_schedule(const options& o, index_t steps) {
    if (o.schedule == "cosine" && o.decay_steps == 0 && o.warm_up > 0 && o.warm_up >= steps) {
      throw failure("--warm-up must be less than the steps of the training (is " + std::to_string(o.warm_up) +
                    ", of " + std::to_string(steps) + ")");
    }
    // The first step of a warm-up has a rate, too.
    const float first = o.warm_up > 0 ? 1 / static_cast<float>(o.warm_up) : 0;
    if (o.schedule == "step") {
      of_ = deeprec::step_decay{.rate = 1, .factor = o.decay, .every = o.decay_every};
    } else if (o.schedule == "smooth") {
      of_ = deeprec::smooth_exponential_decay{
          .first = first, .rate = 1, .warmup = o.warm_up, .factor = o.decay, .every = o.decay_every};
    } else if (o.schedule == "cosine" || o.warm_up > 0) {
      const bool falls = o.schedule == "cosine";
      of_ = deeprec::cosine_decay{.first = first,
                                  .rate = 1,
                                  .last = falls ? o.last_rate : 1,
                                  .warmup = o.warm_up,
                                  .total = o.decay_steps > 0 ? o.decay_steps : std::max<index_t>(steps, 1)};
    }
  }
  /// Of the step of this number, from 0.
  [[nodiscard]] float operator()(index_t step) const {
    return std::visit([&](const auto& of) { return of(step); }, of_);
  }

 private:
  std::variant<deeprec::constant_rate, deeprec::step_decay, deeprec::cosine_decay,
               deeprec::smooth_exponential_decay>
      of_ = deeprec::constant_rate{1};
};

/// The scales of the steps of one run, which begins with the step `first`.
struct run_rates {
  const rate_schedule* schedule;
  index_t first = 0;

  [[nodiscard]] index_t number_of(index_t step) const { return first + step; }
  [[nodiscard]] float of(index_t step) const { return (*schedule)(number_of(step)); }
};

/// Tells a model which step is the next one.
template <class Model>
void begin_step(Model& model, const rate_schedule& rates, index_t number) {
  step_control& control = model.control();
  control.stack_scale = control.row_scale = rates(number);
  control.number = number;
}

}  // namespace ctr
