// The formulas of the optimizer steps, written once over vector_f32 and compiled for scalar code, for
// device code and for each region. No include guard: see steps.hpp.

DEEPREC_HD DEEPREC_INLINE vector_f32 take_step(const scaled_step& step, vector_f32 weight,
                                               vector_f32 gradient) {
  return weight - splat(step.rate) * gradient;
}

DEEPREC_HD DEEPREC_INLINE vector_f32 take_step(const adagrad_step& step, vector_f32 weight,
                                               vector_f32 gradient, vector_f32& squares) {
  squares = squares + gradient * gradient;
  return weight - splat(step.rate) * gradient / (sqrt(squares) + splat(step.epsilon));
}
