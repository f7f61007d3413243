// row_select on a CUDA stream: a team of lanes copies four rows at a time, 16 bytes per lane where all
// addresses and strides allow it, else 4 bytes or 1. Rows are read and written once, with streaming
// (evict-first) accesses. In place: rows that are there already are not touched.
#pragma once

#ifndef __CUDACC__
#  error "deeprec/ops/row_select.cuh needs nvcc. Fix: include <deeprec/ops/row_select.hpp> in host code."
#endif

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/exec/cuda/cuda_stream.hpp>
#include <deeprec/exec/cuda/warp_team.cuh>
#include <deeprec/ops/row_select.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace [[gnu::visibility("hidden")]] DEEPREC_DEVICE {

struct device_select {
  const unsigned char* cond;
  const std::byte* then;
  const std::byte* otherwise;
  index_t then_stride;
  index_t otherwise_stride;
  std::byte* out;
  index_t out_stride;
  index_t rows;
  index_t words;  // of a row
};

template <class Word>
__global__ void __launch_bounds__(block_threads) select_rows(device_select args, int lanes) {
  constexpr int at_once = 4;
  const warp_team team(lanes);
  for (index_t first = team.number() * at_once; first < args.rows; first += team.teams() * at_once) {
    const Word* from[at_once];
    Word* to[at_once];
    DEEPREC_UNROLLED
    for (int i = 0; i < at_once; ++i) {
      const index_t row = first + i < args.rows ? first + i : args.rows - 1;
      const bool which = args.cond[row] != 0;
      const std::byte* const begin =
          which ? args.then + row * args.then_stride : args.otherwise + row * args.otherwise_stride;
      std::byte* const out = args.out + row * args.out_stride;
      const bool skip = first + i >= args.rows || begin == out;
      from[i] = skip ? nullptr : static_cast<const Word*>(static_cast<const void*>(begin));
      to[i] = static_cast<Word*>(static_cast<void*>(out));
    }
    for (index_t w = team.lane(); w < args.words; w += team.lanes()) {
      Word x[at_once];
      DEEPREC_UNROLLED
      for (int i = 0; i < at_once; ++i) {
        if (from[i] != nullptr) x[i] = __ldcs(from[i] + w);
      }
      DEEPREC_UNROLLED
      for (int i = 0; i < at_once; ++i) {
        if (from[i] != nullptr) __stcs(to[i] + w, x[i]);
      }
    }
  }
}

}  // namespace DEEPREC_DEVICE

namespace detail {

template <class Word>
status launch_select(DEEPREC_DEVICE::device_select args, index_t width, cudaStream_t on) {
  args.words = width / index_t{sizeof(Word)};
  int lanes = 1;
  while (lanes < 32 && lanes < args.words) lanes *= 2;
  return DEEPREC_DEVICE::launch_kernel(DEEPREC_DEVICE::select_rows<Word>,
                                       DEEPREC_DEVICE::grid_of((args.rows + 3) / 4, lanes), on, args, lanes);
}

}  // namespace detail

template <class Context, class Bytes, class T>
[[gnu::visibility("hidden")]] status row_select_on(cuda_backend, const Context& ctx, const Bytes& cond,
                                                   matrix_view<const T, device_space> then,
                                                   matrix_view<const T, device_space> otherwise,
                                                   matrix_view<T, device_space> out) {
  if (out.empty()) return {};
  const auto to = detail::bytes_of(out);
  const auto from_then = detail::bytes_of(then);
  const auto from_otherwise = detail::bytes_of(otherwise);
  if (const status s = detail::select_overlaps(cond.data(), from_then, from_otherwise, to); !s) return s;
  const auto a = detail::one_for_all(from_otherwise);
  const auto b = detail::one_for_all(from_then);
  const auto all = reinterpret_cast<std::uintptr_t>(a.first) | reinterpret_cast<std::uintptr_t>(b.first) |
                   reinterpret_cast<std::uintptr_t>(to.first) |
                   static_cast<std::uintptr_t>(a.stride | b.stride | to.stride | to.width);
  DEEPREC_DEVICE::device_select args{cond.data(), b.first,  a.first,
                                     b.stride,    a.stride, reinterpret_cast<std::byte*>(out.data_handle()),
                                     to.stride,   to.count, 0};
  if (all % 16 == 0) return detail::launch_select<uint4>(args, to.width, ctx.executor->get());
  if (all % 4 == 0) return detail::launch_select<unsigned int>(args, to.width, ctx.executor->get());
  return detail::launch_select<unsigned char>(args, to.width, ctx.executor->get());
}

}}  // namespace deeprec::DEEPREC_ABI
