// What vectors_test.cpp calls of the words of one region. No include guard: included once for each.

inline int lane_count(region) { return lanes; }

/// n < 0: a whole vector.
template <class T>
void widen(region, const T* from, int n, float* to) {
  store(to, n < 0 ? load(from) : load_first(from, n));
}
template <class T>
void narrow(region, const float* from, int n, T* to) {
  const vector_f32 x = load(from);
  if (n < 0) {
    store(to, x);
  } else {
    store_first(to, x, n);
  }
}

/// Results of one operation after the other, a vector each.
inline void arithmetic(region, const float* a, const float* b, const float* c, float* to) {
  const vector_f32 x = load(a);
  const vector_f32 y = load(b);
  store(to, x + y);
  store(to + lanes, x - y);
  store(to + 2 * lanes, x * y);
  store(to + 3 * lanes, x / y);
  store(to + 4 * lanes, multiply_add(x, y, load(c)));
  store(to + 5 * lanes, maximum(x, y));
  store(to + 6 * lanes, sqrt(x));
  store(to + 7 * lanes, zero());
  store(to + 8 * lanes, splat(a[0]));
  store(to + 9 * lanes, vector_f32(b[0]));
}

inline float sum_of_lanes(region, const float* from) { return add_lanes(load(from)); }

inline void move_to_front(region, const float* from, int n, float* to) {
  store(to, last_to_front(load(from), n));
}
inline void keep_front(region, const float* from, int n, float* to) { store(to, keep_first(load(from), n)); }

/// A row of any width of at least one vector, the last vector overlapping the one before.
template <class T>
void copy_row(region, const T* from, index_t width, T* to) {
  for (index_t c = 0; c + lanes <= width; c += lanes) store(to + c, load(from + c));
  store(to + width - lanes, load(from + width - lanes));
}
