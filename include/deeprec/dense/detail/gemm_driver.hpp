// From a checked product to tiles on the executor.
//
//   gemm_job ──choose a backend (gemm_plans.hpp)──> gemm_setup ──for each tile, on some thread──>
//       convert the block of a, and of b      (into scratch that stays in the cache)
//       multiply, one piece of k at a time    (the backend's plan)
//       finish the tile                       (epilogues that the plan did not fuse)
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>

#include <deeprec/core/context.hpp>
#include <deeprec/dense/detail/gemm_arithmetic.hpp>
#include <deeprec/dense/detail/gemm_borders.hpp>
#include <deeprec/dense/detail/gemm_plans.hpp>
#include <deeprec/dense/detail/gemm_tiles_kernels.hpp>
#include <deeprec/dense/gemm_backend.hpp>
#include <deeprec/ops/column_sums.hpp>
#include <deeprec/simd/dispatch.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/first_fault.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail { inline namespace DEEPREC_UNIT {

class tile_runner {
 public:
  tile_runner(isa which, const gemm_job& job, const gemm_setup& setup)
      : isa_(which), job_(job), setup_(setup) {}

  [[nodiscard]] index_t tiles() const noexcept {
    return setup_.borders.m.count() * setup_.borders.n.count() * job_.batch.count;
  }

  /// The time of all tiles, about: products, or for few rows what is read.
  [[nodiscard]] double ns(const kernel_tuning& tuning) const noexcept {
    const double products = ns_of_products(tuning, job_.m, job_.n, job_.k);
    const double reads = ns_of_bytes(tuning, capped_product(capped_product(job_.n, job_.k), 2));
    return (std::max)(products, reads) * static_cast<double>(job_.batch.count);
  }

  status run(index_t tile, char* scratch) const {
    const gemm_borders& at = setup_.borders;
    const index_t each = at.m.count() * at.n.count();
    const index_t which = tile / each;
    const gemm_piece m = at.m[tile % each / at.n.count()];
    const gemm_piece written = {m.begin + m.skipped, m.size - m.skipped, m.kind, m.size - m.skipped};
    const index_t j = tile % at.n.count();
    const gemm_piece n = at.n[j];
    char* const a_block = scratch;
    char* const b_block = a_block + setup_.a_bytes;
    char* const c_block = b_block + setup_.b_bytes;
    char* const plan_scratch = c_block + setup_.c_bytes;

    const gemm_storage c_as = job_.c.storage;
    void* const c = offset_by(
        job_.c.data, which * job_.batch.c_batch_stride + written.begin * job_.c.stride + n.begin, c_as);
    gemm_backend::args p{.scratch = plan_scratch, .instruction_set = isa_};
    const bool unfused = setup_.guarded && !sums_are_finite(which, written, n);
    const bool direct = setup_.direct && !unfused;
    p.c = direct && m.skipped == 0 ? c : c_block;
    if (setup_.fused && !unfused) {
      if (job_.bias != nullptr) p.bias = job_.bias + n.begin;
      p.residual = static_cast<const float*>(moved(job_.residual, m.begin, n.begin).data);
      if (job_.accumulates && m.skipped > 0) {
        for (index_t i = 0; i < m.skipped; ++i) {
          std::memset(c_block + i * job_.c.stride * bytes_of(c_as), 0,
                      static_cast<std::size_t>(n.size * bytes_of(c_as)));
        }
        copy_rows(c, c_block + m.skipped * job_.c.stride * bytes_of(c_as), written.size, n.size);
      }
    }
    const bool a_turned = job_.a_as == gemm_operand::transposed;
    const bool b_turned = job_.b_as == gemm_operand::transposed;
    for (index_t s = 0; s < at.k.count(); ++s) {
      const gemm_piece k = at.k[s];
      p.a = a_turned ? operand(job_.a.data(), leading_dimension(job_.a), job_.a.storage(),
                               which * job_.batch.a_batch_stride, k, m, setup_.convert_a, a_block)
                     : operand(job_.a.data(), leading_dimension(job_.a), job_.a.storage(),
                               which * job_.batch.a_batch_stride, m, k, setup_.convert_a, a_block);
      if (setup_.packed) {
        p.b = (*setup_.b_form)[static_cast<std::size_t>(j)].data.get();
      } else {
        const conversion how = job_.weights != nullptr ? conversion::none : setup_.convert_b;
        const index_t step = which * job_.batch.b_batch_stride;
        p.b = b_turned ? operand(setup_.b.data, setup_.b.stride, setup_.b.storage, step, n, k, how, b_block)
                       : operand(setup_.b.data, setup_.b.stride, setup_.b.storage, step, k, n, how, b_block);
      }
      const gemm_backend::plan& plan =
          setup_.plans[setup_.plan_index(m.kind, n.kind, k.kind, s > 0 || unfused)];
      if (const status done = plan.run(plan, p); !done) return done;
    }
    if (!direct) {
      finish_rows(reinterpret_cast<const float*>(c_block) + m.skipped * n.size, n.size, written, n, c);
    } else if (m.skipped > 0) {
      copy_rows(c_block + m.skipped * job_.c.stride * bytes_of(c_as), c, written.size, n.size);
    }
    return {};
  }

  /// The epilogues on rows of products; a stride of 0 repeats one row.
  void finish_rows(const float* product, index_t stride, gemm_piece m, gemm_piece n, void* c) const {
    const finish_tile tile{.product = product,
                           .product_stride = stride,
                           .rows = m.size,
                           .columns = n.size,
                           .old = {job_.accumulates ? c : nullptr, job_.c.stride, job_.c.storage},
                           .residual = moved(job_.residual, m.begin, n.begin),
                           .mask = moved(job_.mask, m.begin, n.begin),
                           .bias = job_.bias == nullptr ? nullptr : job_.bias + n.begin,
                           .activation = job_.activation,
                           .to = {c, job_.c.stride, job_.c.storage}};
    with_isa_up_to_avx512(isa_, [&](auto region) { finish(region, tile); });
  }

 private:
  // True when no partial sum of the tile can overflow.
  bool sums_are_finite(index_t which, gemm_piece m, gemm_piece n) const {
    const bool turned = job_.a_as == gemm_operand::transposed;
    const index_t stride = leading_dimension(job_.a);
    const void* const a =
        offset_by(job_.a.data(), which * job_.batch.a_batch_stride + (turned ? m.begin : m.begin * stride),
                  job_.a.storage());
    double most = 0;
    with_isa_up_to_avx512(isa_, [&](auto region) {
      most = static_cast<double>(largest_of(region, a, stride, job_.a.storage(), turned ? job_.k : m.size,
                                            turned ? m.size : job_.k)) *
             1.01 * static_cast<double>(setup_.largest_b) * 1.01 * static_cast<double>(job_.k);
      if (job_.bias != nullptr) {
        most += static_cast<double>(
            largest_of(region, job_.bias + n.begin, n.size, gemm_storage::f32, 1, n.size));
      }
    });
    return most < 0x1p127;
  }
  // Rows of the storage and the stride of c.
  void copy_rows(const void* from, void* to, index_t rows, index_t columns) const {
    convert_with(isa_,
                 {conversion::copy, from, job_.c.stride, to, job_.c.stride, rows, columns, job_.c.storage});
  }
  static stored_rows<const void> moved(stored_rows<const void> rows, index_t row, index_t column) noexcept {
    if (rows.data != nullptr) rows.data = offset_by(rows.data, row * rows.stride + column, rows.storage);
    return rows;
  }
  // A block of rows x columns of an operand, in memory order, converted where needed; rows past rows.filled
  // are zeros.
  const void* operand(const void* data, index_t stride, gemm_storage storage, index_t step, gemm_piece rows,
                      gemm_piece columns, conversion how, char* block) const {
    const void* const from = offset_by(data, step + rows.begin * stride + columns.begin, storage);
    if (how == conversion::none && rows.filled == rows.size) return from;
    convert_with(isa_, {how, from, stride, block, columns.size, rows.filled, columns.size, storage});
    const index_t row_bytes = columns.size * bytes_of(setup_.inputs);
    std::memset(block + rows.filled * row_bytes, 0,
                static_cast<std::size_t>((rows.size - rows.filled) * row_bytes));
    return block;
  }

  isa isa_;
  const gemm_job& job_;
  const gemm_setup& setup_;
};

/// Runs every tile once, each on one thread, with scratch for as many threads as can run at once.
template <class E>
status run_tiles(context<E> ctx, const tile_runner& runner, std::size_t slot_bytes) {
  const index_t tiles = runner.tiles();
  const auto workers = static_cast<index_t>((std::max)(1, static_cast<int>(ctx.executor->concurrency())));
  const auto slots = static_cast<std::size_t>(slot_bytes == 0 ? 0 : (std::min)(tiles, workers));
  const line_buffer scratch(ctx.memory, slots * slot_bytes);
  const line_buffer slot_numbers(ctx.memory, slots < 2 ? 0 : static_cast<std::size_t>(workers) * sizeof(int));
  int* const slot_of = reinterpret_cast<int*>(slot_numbers.data());
  if (slot_of != nullptr) std::fill_n(slot_of, workers, -1);
  std::atomic<int> next_slot{0};
  fault_report report;
  run_bulk(ctx, {tiles, 1, runner.ns(*ctx.tuning)}, [&](index_t begin, index_t end, int worker) {
    std::size_t slot = 0;
    if (slot_of != nullptr) {
      int& mine = slot_of[worker];
      if (mine < 0) mine = next_slot.fetch_add(1, std::memory_order_relaxed);
      slot = static_cast<std::size_t>(mine);
    }
    for (index_t t = begin; t < end; ++t) {
      if (const status s = runner.run(t, scratch.data() + slot * slot_bytes); !s) report.add(t, s);
    }
  });
  return report.first().in_operation("gemm");
}

/// True when the row stride holds a row and is a multiple of stride_unit.
template <class Bits>
constexpr bool rows_of_bits(const Bits& v) noexcept {
  return well_formed(v) && v.stride(0) >= v.extent(1) && v.stride(0) % Bits::stride_unit == 0;
}

/// True when bits or column sums need a pass over the whole result.
template <class Desc>
constexpr bool has_result_steps(const Desc& desc) noexcept {
  return !desc.relu_bits.absent() || !desc.mask_bits.absent() || desc.column_sums.data_handle() != nullptr;
}

/// Bits and sums of a result, in one pass over it. One thread sums all rows of 64 columns.
template <class E>
void finish_result(context<E> ctx, const gemm_desc& desc, index_t m, index_t n, const stored_rows<void>& c) {
  constexpr index_t width = result_block::width;
  float* const sums = desc.column_sums.data_handle();
  const index_t blocks = (n + width - 1) / width;
  const index_t height = sums != nullptr ? m : (std::min)(m, index_t{256});
  const index_t mask_stride = desc.mask_bits.stride(0) / width;
  const index_t positive_stride = desc.relu_bits.stride(0) / width;
  run_bulk(ctx,
           {blocks * ((m + height - 1) / height), std::max<index_t>(1, 16384 / (height * width)),
            ns_of_bytes(*ctx.tuning, m * n * 8)},
           [&](index_t begin, index_t end, int) {
             with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) {
               for (index_t piece = begin; piece < end; ++piece) {
                 const index_t row = piece / blocks * height;
                 const index_t block = piece % blocks;
                 result_block part{
                     .c = {offset_by(c.data, row * c.stride + block * width, c.storage), c.stride, c.storage},
                     .rows = (std::min)(height, m - row),
                     .columns = (std::min)(width, n - block * width),
                     .mask = desc.mask_bits.data_handle(),
                     .mask_stride = mask_stride,
                     .positive = desc.relu_bits.data_handle(),
                     .positive_stride = positive_stride,
                     .sums = sums == nullptr ? nullptr : sums + block * width};
                 if (part.mask != nullptr) part.mask += row * mask_stride + block;
                 if (part.positive != nullptr) part.positive += row * positive_stride + block;
                 finish_block(region, part);
               }
             });
           });
}

/// out[i] = sum of op(a)'s row i.
template <class T, class E>
void sum_rows(context<E> ctx, gemm_operand as, const gemm_view<>& a, float* out) {
  const auto* data = static_cast<const T*>(a.data());
  const index_t stride = leading_dimension(a);
  if (as == gemm_operand::transposed) {
    sum_columns_on_host(ctx, matrix_view<const T>(data, a.extent(0), a.extent(1), stride), out);
    return;
  }
  run_bulk(ctx,
           {a.extent(0), std::max<index_t>(1, 16384 / std::max<index_t>(1, a.extent(1))),
            static_cast<double>(a.extent(0)) * static_cast<double>(a.extent(1))},
           [&](index_t begin, index_t end, int) {
             for (index_t i = begin; i < end; ++i) {
               double sum = 0;
               for (index_t p = 0; p < a.extent(1); ++p) {
                 sum += static_cast<double>(static_cast<float>(data[i * stride + p]));
               }
               out[i] = static_cast<float>(sum);
             }
           });
}

}}}}  // namespace deeprec::DEEPREC_ABI::detail::DEEPREC_UNIT
