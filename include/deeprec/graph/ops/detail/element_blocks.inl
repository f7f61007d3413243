// The kernel of a step of an expression, compiled once for each region. No include guard: see
// simd/foreach_region.hpp. Functions are those of ops/detail/expression.inl, so the bits are those of
// evaluate().

template <class Function>
DEEPREC_INLINE void each_element(const ::deeprec::detail::element_block& on, const Function& f) {
  const bool dense = on.a_stride == on.columns && on.b_stride == on.columns && on.out_stride == on.columns;
  const index_t rows = dense ? 1 : on.rows, columns = dense ? on.rows * on.columns : on.columns;
  for (index_t i = 0; i < rows; ++i) {
    const float* const a = on.a + i * on.a_stride;
    const float* const b = on.b + i * on.b_stride;
    float* const out = on.out + i * on.out_stride;
    const auto put = [&](auto at) { store_at(out, f(load_at(a, at), load_at(b, at)), at); };
    index_t j = 0;
    for (; j + lanes <= columns; j += lanes) put(full_place{j});
    if (j < columns) put(part_place{j, static_cast<int>(columns - j)});
  }
}

inline void apply_block(region, ::deeprec::element_function f, const ::deeprec::detail::element_block& on) {
  using function = ::deeprec::element_function;
  const auto two = [&](auto of) {
    each_element(on, [&](vector_f32 a, vector_f32 b) { return result_of(region{}, of, a, b); });
  };
  const auto one = [&](auto of) {
    each_element(on, [&](vector_f32 a, vector_f32) { return result_of(region{}, of, a); });
  };
  const vector_f32 by = splat(on.by);
  switch (f) {
    case function::add:
      return two(op::plus{});
    case function::subtract:
      return two(op::minus{});
    case function::multiply:
      return two(op::times{});
    case function::divide:
      return two(op::over{});
    case function::scale:
      return each_element(on, [&](vector_f32 a, vector_f32) { return product(a, by); });
    case function::shift:
      return each_element(on, [&](vector_f32 a, vector_f32) { return a + by; });
    case function::subtract_from:
      return each_element(on, [&](vector_f32 a, vector_f32) { return by - a; });
    case function::copy:
      return each_element(on, [&](vector_f32 a, vector_f32) { return a; });
    case function::relu:
      return one(op::relu{});
    case function::sigmoid:
      return one(op::sigmoid{});
    case function::gelu_tanh:
      return one(op::gelu{});
    case function::tanh:
      return one(op::tanh{});
    case function::exp:
      return one(op::exp{});
    case function::sqrt:
      return one(op::sqrt{});
    case function::abs:
      return one(op::abs{});
    case function::square:
      return one(op::square{});
  }
}
