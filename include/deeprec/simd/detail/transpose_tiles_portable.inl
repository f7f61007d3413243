// The tiles of the transpose kernels in the portable region: plain loops.

template <int Size>
struct plain_tile {
  static constexpr index_t rows = 8;
  static constexpr index_t columns = 8;

  DEEPREC_INLINE static void run(const std::byte* from, index_t from_stride, std::byte* to,
                                 index_t to_stride) {
    for (index_t j = 0; j < columns; ++j) {
      for (index_t i = 0; i < rows; ++i) {
        __builtin_memcpy(to + j * to_stride + i * Size, from + i * from_stride + j * Size, Size);
      }
    }
  }
};

template <int Size>
using direct_tile = plain_tile<Size>;
template <int Size>
using staged_tile = plain_tile<Size>;
