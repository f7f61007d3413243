// What row_optimizer_test.cpp calls of the steps of one region. No include guard: included once for each.

inline int lane_count(region) { return lanes; }

/// One vector; state is null for steps without any.
template <class Step>
void step_once(region, const Step& step, float* weights, const float* gradient, float* state) {
  if constexpr (requires(vector_f32 v) { take_step(step, v, v, v); }) {
    vector_f32 squares = load(state);
    store(weights, take_step(step, load(weights), load(gradient), squares));
    store(state, squares);
  } else {
    store(weights, take_step(step, load(weights), load(gradient)));
  }
}
