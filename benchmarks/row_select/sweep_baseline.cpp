// The roofline of row select at 64 floats: the best of kernels x store kinds x prefetch distances and
// levels.

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#if defined(__SSE2__)
#  include <immintrin.h>
#endif

#include "row_select/baseline.hpp"

namespace row_select_baseline::DEEPREC_BASELINE_NS {
namespace {

constexpr long width = 64;

// Moves the chosen row.
struct by_memcpy {
  static constexpr const char* name = "memcpy";
  static void row(const float* from, float* to) { std::memcpy(to, from, width * sizeof(float)); }
};

#if defined(__SSE2__)
struct by_sse {
  static constexpr const char* name = "sse";
  static void row(const float* from, float* to) {
    for (long j = 0; j < width; j += 4) _mm_storeu_ps(to + j, _mm_loadu_ps(from + j));
  }
};
struct by_sse_streamed {
  static constexpr const char* name = "sse,streamed";
  static void row(const float* from, float* to) {
    for (long j = 0; j < width; j += 4) _mm_stream_ps(to + j, _mm_loadu_ps(from + j));
  }
};
#endif

#if defined(__AVX2__)
struct by_avx {
  static constexpr const char* name = "avx";
  static void row(const float* from, float* to) {
    for (long j = 0; j < width; j += 8) _mm256_storeu_ps(to + j, _mm256_loadu_ps(from + j));
  }
};
struct by_avx_streamed {
  static constexpr const char* name = "avx,streamed";
  static void row(const float* from, float* to) {
    for (long j = 0; j < width; j += 8) _mm256_stream_ps(to + j, _mm256_loadu_ps(from + j));
  }
};
#endif

#if defined(__AVX512F__)
struct by_avx512 {
  static constexpr const char* name = "avx512";
  static void row(const float* from, float* to) {
    for (long j = 0; j < width; j += 16) _mm512_storeu_ps(to + j, _mm512_loadu_ps(from + j));
  }
};
struct by_avx512_streamed {
  static constexpr const char* name = "avx512,streamed";
  static void row(const float* from, float* to) {
    for (long j = 0; j < width; j += 16) _mm512_stream_ps(to + j, _mm512_loadu_ps(from + j));
  }
};
#endif

struct task {
  const bool* cond;
  const float* from[2];  // otherwise, then
  float* out;
  long rows;
  long ahead;  // rows; 0: no prefetch
};

// The address of the chosen row by a table, or by a branch.
struct by_table {
  static constexpr const char* name = "table";
  static const float* row(const task& t, long b) {
    return t.from[static_cast<unsigned char>(t.cond[b])] + b * width;
  }
};
struct by_branch {
  static constexpr const char* name = "branch";
  static const float* row(const task& t, long b) {
    const float* from = t.from[0];
    if (t.cond[b]) {
      asm volatile("" ::: "memory");  // or the compiler makes a conditional move of it
      from = t.from[1];
    }
    return from + b * width;
  }
};

template <class Kernel, class Choice, int Locality>
void select_rows(const task& t) {
  for (long b = 0; b < t.rows; ++b) {
    if (t.ahead != 0 && b + t.ahead < t.rows) {
      const char* soon = reinterpret_cast<const char*>(by_table::row(t, b + t.ahead));
      for (int line = 0; line < 4; ++line) __builtin_prefetch(soon + 64 * line, 0, Locality);
    }
    Kernel::row(Choice::row(t, b), t.out + b * width);
  }
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

struct candidate {
  std::string name;
  void (*run)(const task&);
  long ahead;
};

template <class Kernel, class Choice>
void add(std::vector<candidate>& all) {
  const std::string name = std::string(Kernel::name) + "," + Choice::name;
  all.push_back({name, select_rows<Kernel, Choice, 3>, 0});
  for (const long ahead : {16, 32, 64}) {
    const std::string far = ",ahead=" + std::to_string(ahead);
    all.push_back({name + far + ",level=1", select_rows<Kernel, Choice, 3>, ahead});
    all.push_back({name + far + ",level=2", select_rows<Kernel, Choice, 2>, ahead});
  }
}
template <class... Kernels>
std::vector<candidate> candidates() {
  std::vector<candidate> all;
  (add<Kernels, by_table>(all), ...);
  (add<Kernels, by_branch>(all), ...);
  return all;
}

const std::vector<candidate>& all_candidates() {
  static const std::vector<candidate> all = candidates<by_memcpy
#if defined(__AVX512F__)
                                                       ,
                                                       by_avx512, by_avx512_streamed
#endif
#if defined(__AVX2__)
                                                       ,
                                                       by_avx, by_avx_streamed
#elif defined(__SSE2__)
                                                       ,
                                                       by_sse, by_sse_streamed
#endif
                                                       >();
  return all;
}

}  // namespace

int sweep_size() { return static_cast<int>(all_candidates().size()); }
const char* sweep_name(int i) { return all_candidates()[static_cast<std::size_t>(i)].name.c_str(); }
void sweep_run(int i, const bool* cond, const float* then, const float* otherwise, float* out, long rows) {
  const candidate& c = all_candidates()[static_cast<std::size_t>(i)];
  c.run({cond, {otherwise, then}, out, rows, c.ahead});
}

}  // namespace row_select_baseline::DEEPREC_BASELINE_NS
