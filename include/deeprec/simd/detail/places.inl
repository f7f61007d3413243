// Places of a row: all lanes from a column on, or the first n of them.
// No include guard: see simd/foreach_region.hpp.

struct full_place {
  index_t j;
};
struct part_place {
  index_t j;
  int n;
};

template <class T>
DEEPREC_INLINE vector_f32 load_at(const T* row, full_place at) {
  return load(row + at.j);
}
/// Lanes from n on are 0.
template <class T>
DEEPREC_INLINE vector_f32 load_at(const T* row, part_place at) {
  return load_first(row + at.j, at.n);
}
template <class T>
DEEPREC_INLINE void store_at(T* row, vector_f32 x, full_place at) {
  store(row + at.j, x);
}
template <class T>
DEEPREC_INLINE void store_at(T* row, vector_f32 x, part_place at) {
  store_first(row + at.j, x, at.n);
}
DEEPREC_INLINE mask_f32 load_mask_at(const unsigned char* row, full_place at) {
  return load_mask(row + at.j);
}
DEEPREC_INLINE mask_f32 load_mask_at(const unsigned char* row, part_place at) {
  return load_mask_first(row + at.j, at.n);
}
