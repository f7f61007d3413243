// One step of an optimizer on one row, compiled for scalar code (vectors of one lane) and for each region.
// No include guard: see simd/foreach_region.hpp.

/// The last n < lanes columns of a row, from c on, loaded with the vector that ends where the row does. A
/// masked load would touch memory past the row, which has not been prefetched.
template <class T>
DEEPREC_INLINE vector_f32 load_end(const T* row, index_t c, int n) {
  return c < lanes ? load_first(row + c, n) : last_to_front(load(row + c + n - lanes), n);
}

/// Reads and writes the values of a row in any row format. `exact`: they are stored as f32, and no rounding
/// policy applies. A format whose row is more than an array of Element specialises this in its own .inl, with
/// the same members.
template <class Element>
struct row_values {
  static constexpr bool exact = std::is_same_v<Element, float>;
  Element* at;

  row_values(void* row, index_t /*width*/) : at(static_cast<Element*>(row)) {}
  DEEPREC_INLINE vector_f32 get(index_t c) const { return load(at + c); }
  DEEPREC_INLINE vector_f32 get_first(index_t c, int n) const { return load_end(at, c, n); }
  DEEPREC_INLINE void set(index_t c, vector_f32 x) const { store(at + c, x); }
  DEEPREC_INLINE void set_first(index_t c, vector_f32 x, int n) const { store_first(at + c, x, n); }
  /// Rounded by random words, one for each value.
  DEEPREC_INLINE void set(index_t c, vector_f32 x, const std::uint32_t* word) const {
    store_rounded(at + c, x, word);
  }
  DEEPREC_INLINE void set_first(index_t c, vector_f32 x, const std::uint32_t* word, int n) const {
    store_rounded_first(at + c, x, word, n);
  }
};

/// The gradient of a row: an array ...
struct gradient_values {
  const float* at;
  DEEPREC_INLINE vector_f32 get(index_t c) const { return load(at + c); }
  DEEPREC_INLINE vector_f32 get_first(index_t c, int n) const { return load_end(at, c, n); }
};
/// ... or an array times a factor.
struct scaled_gradient {
  const float* at;
  vector_f32 factor;
  DEEPREC_INLINE vector_f32 get(index_t c) const { return load(at + c) * factor; }
  DEEPREC_INLINE vector_f32 get_first(index_t c, int n) const { return load_end(at, c, n) * factor; }
};

// Writes the results of a row's steps: rounded to nearest ...
template <class Values>
struct nearest_writer {
  Values values;
  DEEPREC_INLINE void write(index_t c, vector_f32 x, int n) {
    n == lanes ? values.set(c, x) : values.set_first(c, x, n);
  }
};
// ... or rounded by random words, which are drawn for 64 columns at a time.
template <class Values>
struct random_writer {
  static_assert(64 % lanes == 0);
  Values values;
  const rounding::stochastic& policy;
  index_t row;
  alignas(64) std::uint32_t word[64];

  random_writer(const Values& v, const rounding::stochastic& h, index_t r) : values(v), policy(h), row(r) {}
  DEEPREC_INLINE void write(index_t c, vector_f32 x, int n) {
    if (c % 64 == 0) {
      draw_words(word, policy, static_cast<std::uint64_t>(row), static_cast<std::uint64_t>(c / 64));
    }
    n == lanes ? values.set(c, x, word + c % 64) : values.set_first(c, x, word + c % 64, n);
  }
};

// The transforms that wrappers apply before the step, outermost first.
struct no_transform {};
template <class Before, class Transform>
struct transform_after {
  Before before;
  Transform transform;
};

DEEPREC_INLINE void pass(const no_transform&, vector_f32&, vector_f32&, int) {}
template <class Before, class Transform>
DEEPREC_INLINE void pass(const transform_after<Before, Transform>& all, vector_f32& weight,
                         vector_f32& gradient, int n) {
  pass(all.before, weight, gradient, n);
  if constexpr (requires { take_transform(all.transform, weight, gradient); }) {
    take_transform(all.transform, weight, gradient);
  } else {  // a user-defined transform, on floats
    float w[lanes], g[lanes];
    store(w, weight);
    store(g, gradient);
    for (int i = 0; i < n; ++i) all.transform(w[i], g[i]);
    weight = load(w);
    gradient = load(g);
  }
}

/// The sum of the squared gradient after the transforms.
template <class Transforms, class Values, class Gradient>
DEEPREC_INLINE float sum_of_squares(const Transforms& transforms, const Values& values,
                                    const Gradient& gradient, index_t width) {
  vector_f32 squares = zero();
  for (index_t c = 0; c < width; c += lanes) {
    const int n = width - c < lanes ? static_cast<int>(width - c) : lanes;
    vector_f32 g = n == lanes ? gradient.get(c) : gradient.get_first(c, n);
    if constexpr (!std::is_same_v<Transforms, no_transform>) {
      vector_f32 weight = n == lanes ? values.get(c) : values.get_first(c, n);
      pass(transforms, weight, g, n);
    }
    squares = multiply_add(g, g, squares);
  }
  return add_lanes(squares);
}

/// The mean of the squared gradient. `known`: the sum of the squares, or null. A sum that leaves the range of
/// float is added again in smaller units, which its mean may well be in range of.
template <class Transforms, class Values, class Gradient>
DEEPREC_INLINE float mean_of_squares(const Transforms& transforms, const Values& values,
                                     const Gradient& gradient, index_t width, const float* known) {
  const auto count = static_cast<float>(width > 0 ? width : 1);
  const float sum = known != nullptr ? *known : sum_of_squares(transforms, values, gradient, width);
  if (sum <= 0x1.fffffep127F) [[likely]]
    return sum / count;
  const transform_after<Transforms, steps::scale_gradient> smaller{transforms, {0x1p-80F}};
  return sum_of_squares(smaller, values, gradient, width) / count * 0x1p80F * 0x1p80F;
}

// The vector form of the step where steps.inl has one; else a user-defined operator(), on floats.
template <class Step, class... State>
DEEPREC_INLINE vector_f32 stepped(const Step& step, vector_f32 weight, vector_f32 gradient, int n,
                                  State&... state) {
  if constexpr (requires { take_step(step, weight, gradient, state...); }) {
    return take_step(step, weight, gradient, state...);
  } else {
    float w[lanes], g[lanes], s[sizeof...(State) + 1][lanes];
    store(w, weight);
    store(g, gradient);
    [[maybe_unused]] int k = 0;
    (store(s[k++], state), ...);
    for (int i = 0; i < n; ++i) {
      if constexpr (sizeof...(State) == 0) {
        w[i] = step(w[i], g[i]);
      } else if constexpr (sizeof...(State) == 1) {
        w[i] = step(w[i], g[i], s[0][i]);
      } else {
        w[i] = step(w[i], g[i], s[0][i], s[1][i]);
      }
    }
    k = 0;
    ((state = load(s[k++])), ...);
    return load(w);
  }
}

// One vector of columns: weights, gradient and the element states.
template <int States>
struct column_vector {
  static_assert(States <= 2,
                "deeprec::apply_row: an optimizer keeps at most two floats per element. "
                "Fix: element_state <= 2.");
  vector_f32 weight, gradient, first, second;

  DEEPREC_INLINE column_vector() : weight(zero()), gradient(zero()), first(zero()), second(zero()) {}

  template <class Values, class Gradient>
  DEEPREC_INLINE void read(const Values& values, const Gradient& g, const float* state, index_t width,
                           index_t c, int n) {
    const bool whole = n == lanes;
    weight = whole ? values.get(c) : values.get_first(c, n);
    gradient = whole ? g.get(c) : g.get_first(c, n);
    if constexpr (States > 0) first = whole ? load(state + c) : load_end(state, c, n);
    if constexpr (States > 1) {
      second = whole ? load(state + width + c) : load_end(state + width, c, n);
    }
  }
  template <class Step, class Transforms, class Writer>
  DEEPREC_INLINE void step(const Step& by, const Transforms& transforms, Writer& writer, float* state,
                           index_t width, index_t c, int n) {
    const bool whole = n == lanes;
    pass(transforms, weight, gradient, n);
    if constexpr (States == 0) weight = stepped(by, weight, gradient, n);
    if constexpr (States == 1) weight = stepped(by, weight, gradient, n, first);
    if constexpr (States == 2) weight = stepped(by, weight, gradient, n, first, second);
    if constexpr (States > 1) {
      whole ? store(state + width + c, second) : store_first(state + width + c, second, n);
    }
    if constexpr (States > 0) whole ? store(state + c, first) : store_first(state + c, first, n);
    writer.write(c, weight, n);
  }
};

// The vectors of a row whose steps are unrolled; 1 where a better region is available, to save compile time.
inline constexpr int most_unrolled = lanes == 1 || (DEEPREC_X86 && lanes < 8) ? 1 : 8;

// Calls f(first column) for the vectors of the columns [c, whole). Unrolled: one load instruction for all
// vectors of a row would be a stream of a fixed stride, of which some processors fetch more lines than the
// row has.
template <class F, int... V>
DEEPREC_INLINE void for_each_of(const F& f, index_t c, std::integer_sequence<int, V...>) {
  (f(c + V * lanes), ...);
}
template <int Vectors, class F>
DEEPREC_INLINE void for_columns(index_t c, index_t whole, const F& f) {
  if constexpr (Vectors == most_unrolled) {
    for (; whole - c >= Vectors * lanes; c += Vectors * lanes) {
      for_each_of(f, c, std::make_integer_sequence<int, Vectors>{});
    }
  } else if (whole - c >= Vectors * lanes) {
    for_each_of(f, c, std::make_integer_sequence<int, Vectors>{});
    c += Vectors * lanes;
  }
  if constexpr (Vectors > 1) for_columns<Vectors / 2>(c, whole, f);
}

// Unwraps the wrappers, one transform each, down to the optimizer, then steps all columns. `known`: the sum
// of the squared gradient after these transforms, or null.
template <class Optimizer, class Rows, class Transforms, class Writer, class Gradient>
DEEPREC_INLINE void step_after(const Rows& rows, const Transforms& transforms, Writer& writer,
                               const Gradient& gradient, float* state, index_t width, const float* known) {
  if constexpr (GradientTransform<Rows>) {
    float norm_squared = 0;
    if constexpr (Rows::needs_norm) {
      norm_squared = known != nullptr ? *known : sum_of_squares(transforms, writer.values, gradient, width);
    }
    const auto transform = rows.begin_transform(norm_squared);
    const transform_after<Transforms, std::remove_const_t<decltype(transform)>> all{transforms, transform};
    // Already prepared in the library's own wrappers; a user-defined one may leave it to this call.
    step_after<Optimizer>(::deeprec::detail::prepare(rows.optimizer), all, writer, gradient, state, width,
                          nullptr);
  } else {
    float mean_square = 0;
    if constexpr (Optimizer::needs_mean_square) {
      mean_square = mean_of_squares(transforms, writer.values, gradient, width, known);
    }
    // The load of the last columns overlaps the columns before them and the row's own state, so it comes
    // before they are written.
    constexpr int own = Optimizer::row_state;
    float of_row[own + 1];
    for (int i = 0; i < own; ++i) of_row[i] = state[i];
    const auto step = rows.begin_row(own == 0 ? state : of_row, mean_square);
    using columns = column_vector<Optimizer::element_state>;
    float* const elements = Optimizer::element_state == 0 ? nullptr : state + own;
    const index_t whole = width & -index_t{lanes};
    const auto rest = static_cast<int>(width - whole);
    columns last;
    if (rest > 0) last.read(writer.values, gradient, elements, width, whole, rest);
    for_columns<most_unrolled>(0, whole, [&](index_t c) __attribute__((always_inline)) {
      columns here;
      here.read(writer.values, gradient, elements, width, c, lanes);
      here.step(step, transforms, writer, elements, width, c, lanes);
    });
    if (rest > 0) last.step(step, transforms, writer, elements, width, whole, rest);
    for (int i = 0; i < own; ++i) state[i] = of_row[i];
  }
}

/// Whether a step reads the sum of the squared gradient before any transform.
template <class Optimizer, class Rows>
constexpr bool reads_squares() {
  if constexpr (GradientTransform<Rows>) {
    return Rows::needs_norm;
  } else {
    return Optimizer::needs_mean_square;
  }
}

/// Steps one row. `rows` is the prepared Optimizer; `row` is the row's number, for the rounding; `squares` is
/// the sum of the squared gradient where the caller has it, else null.
template <class Optimizer, class Rows, class Values, class Gradient, class Rounding>
DEEPREC_INLINE void step_row(const Rows& rows, Values values, const Gradient& gradient, float* state,
                             index_t width, [[maybe_unused]] const Rounding& rounding,
                             [[maybe_unused]] index_t row, const float* squares = nullptr) {
  if constexpr (Values::exact || std::is_same_v<Rounding, rounding::nearest_t>) {
    nearest_writer<Values> writer{values};
    step_after<Optimizer>(rows, no_transform{}, writer, gradient, state, width, squares);
  } else {
    random_writer<Values> writer(values, rounding, row);
    step_after<Optimizer>(rows, no_transform{}, writer, gradient, state, width, squares);
  }
}
