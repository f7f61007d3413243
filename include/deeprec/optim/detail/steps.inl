// The formulas of the optimizer steps and of the transforms before them, written once over vector_f32 and
// compiled for scalar code, for device code and for each region. No include guard: see steps.hpp.

DEEPREC_HD DEEPREC_INLINE vector_f32 take_step(const steps::scaled_step& step, vector_f32 weight,
                                               vector_f32 gradient) {
  return weight - splat(step.rate) * gradient;
}

DEEPREC_HD DEEPREC_INLINE vector_f32 take_step(const steps::momentum_step& step, vector_f32 weight,
                                               vector_f32 gradient, vector_f32& velocity) {
  velocity = splat(step.decay) * velocity + splat(step.gain) * gradient;
  return weight -
         splat(step.rate) * (splat(step.of_velocity) * velocity + splat(step.of_gradient) * gradient);
}

DEEPREC_HD DEEPREC_INLINE vector_f32 take_step(const steps::adagrad_step& step, vector_f32 weight,
                                               vector_f32 gradient, vector_f32& squares) {
  squares = multiply_add(gradient, gradient, maximum(squares * splat(step.keep), splat(step.floor)));
  return weight - splat(step.rate) * gradient / (sqrt(squares) + splat(step.epsilon));
}

DEEPREC_HD DEEPREC_INLINE vector_f32 take_step(const steps::rmsprop_step& step, vector_f32 weight,
                                               vector_f32 gradient, vector_f32& squares) {
  squares = splat(step.decay) * squares + splat(step.gain) * (gradient * gradient);
  return weight - splat(step.rate) * gradient / (sqrt(squares) + splat(step.epsilon));
}

DEEPREC_HD DEEPREC_INLINE vector_f32 take_step(const steps::centered_rmsprop_step& step, vector_f32 weight,
                                               vector_f32 gradient, vector_f32& squares,
                                               vector_f32& average) {
  squares = splat(step.decay) * squares + splat(step.gain) * (gradient * gradient);
  average = splat(step.decay) * average + splat(step.gain) * gradient;
  // The variance of a constant gradient is 0, and rounding may make it negative.
  const vector_f32 variance = maximum(squares - average * average, splat(0.0F));
  return weight - splat(step.rate) * gradient / (sqrt(variance) + splat(step.epsilon));
}

DEEPREC_HD DEEPREC_INLINE vector_f32 take_step(const steps::adam_step& step, vector_f32 weight,
                                               vector_f32 gradient, vector_f32& moment, vector_f32& squares) {
  moment = splat(step.decay1) * moment + splat(step.gain1) * gradient;
  squares = splat(step.decay2) * squares + splat(step.gain2) * (gradient * gradient);
  const vector_f32 direction = splat(step.of_moment) * moment + splat(step.of_gradient) * gradient;
  return weight - splat(step.rate) * direction / (sqrt(squares) * splat(step.root) + splat(step.epsilon));
}

DEEPREC_HD DEEPREC_INLINE vector_f32 take_step(const steps::rmsprop_momentum_step& step, vector_f32 weight,
                                               vector_f32 gradient, vector_f32& velocity,
                                               vector_f32& squares) {
  squares = splat(step.decay2) * squares + splat(step.gain2) * (gradient * gradient);
  velocity =
      splat(step.decay1) * velocity + splat(step.rate) * gradient / sqrt(squares + splat(step.epsilon));
  return weight - velocity;
}

DEEPREC_HD DEEPREC_INLINE vector_f32 take_step(const steps::ftrl_step& step, vector_f32 weight,
                                               vector_f32 gradient, vector_f32& squares, vector_f32& linear) {
  const vector_f32 before = maximum(squares, splat(step.floor));
  squares = before + gradient * gradient;
  const vector_f32 root = raised(squares, step.power);
  linear = linear + (gradient + splat(step.shrinkage) * weight) -
           (root - raised(before, step.power)) * splat(step.inverse_rate) * weight;
  const vector_f32 inside = maximum(minimum(linear, splat(step.l1)), splat(-step.l1));
  // Without any gradient so far and without l2 this is 0 / 0, and the weight becomes 0.
  const vector_f32 curve = root * splat(step.inverse_rate) + splat(step.l2);
  return (inside - linear) / maximum(curve, splat(0x1p-126F));
}

DEEPREC_HD DEEPREC_INLINE void take_transform(const steps::scale_gradient& transform, vector_f32&,
                                              vector_f32& gradient) {
  gradient = splat(transform.factor) * gradient;
}
DEEPREC_HD DEEPREC_INLINE void take_transform(const steps::clip_gradient& transform, vector_f32&,
                                              vector_f32& gradient) {
  gradient = maximum(minimum(gradient, splat(transform.limit)), splat(-transform.limit));
}
DEEPREC_HD DEEPREC_INLINE void take_transform(const steps::decay_weight& transform, vector_f32& weight,
                                              vector_f32& gradient) {
  gradient = gradient + splat(transform.rate) * weight;
}
DEEPREC_HD DEEPREC_INLINE void take_transform(const steps::shrink_weight& transform, vector_f32& weight,
                                              vector_f32&) {
  weight = splat(transform.keep) * weight;
}
