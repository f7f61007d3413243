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
#include <deeprec/dense/gemm/detail/gemm_arithmetic.hpp>
#include <deeprec/dense/gemm/detail/gemm_borders.hpp>
#include <deeprec/dense/gemm/detail/gemm_plans.hpp>
#include <deeprec/dense/gemm/detail/gemm_tiles_kernels.hpp>
#include <deeprec/dense/gemm/gemm_backend.hpp>
#include <deeprec/ops/column_sums.hpp>
#include <deeprec/simd/dispatch.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/first_fault.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail { inline namespace DEEPREC_UNIT {

inline stored_rows<const void> moved(stored_rows<const void> rows, index_t row, index_t column) noexcept {
  if (rows.data != nullptr) rows.data = offset_by(rows.data, row * rows.stride + column, rows.storage);
  return rows;
}

/// The epilogues on rows of products; a stride of 0 repeats one row.
inline void finish_rows(isa which, const gemm_job& job, const float* product, index_t stride, gemm_piece m,
                        gemm_piece n, void* c) {
  const finish_tile tile{.product = product,
                         .product_stride = stride,
                         .rows = m.size,
                         .columns = n.size,
                         .old = {job.accumulates ? c : nullptr, job.c.stride, job.c.storage},
                         .residual = moved(job.residual, m.begin, n.begin),
                         .mask = moved(job.mask, m.begin, n.begin),
                         .bias = job.bias == nullptr ? nullptr : job.bias + n.begin,
                         .activation = job.activation,
                         .to = {c, job.c.stride, job.c.storage}};
  with_isa_up_to_avx512(which, [&](auto region) { finish(region, tile); });
}

/// Scratch memory, a slot for each thread of as many as can run at once.
class worker_scratch {
 public:
  worker_scratch(std::pmr::memory_resource* memory, index_t tiles, index_t workers, std::size_t slot_bytes)
      : slots_(static_cast<std::size_t>(slot_bytes == 0 ? 0 : (std::min)(tiles, workers))),
        slot_bytes_(slot_bytes),
        scratch_(memory, slots_ * slot_bytes),
        numbers_(memory, slots_ < 2 ? 0 : static_cast<std::size_t>(workers) * sizeof(int)) {
    if (slots_ >= 2) std::fill_n(slot_of(0), workers, -1);
  }
  [[nodiscard]] char* of(int worker) noexcept {
    if (slots_ < 2) return scratch_.data();
    int& mine = *slot_of(worker);
    if (mine < 0) mine = next_.fetch_add(1, std::memory_order_relaxed);
    return scratch_.data() + static_cast<std::size_t>(mine) * slot_bytes_;
  }

 private:
  [[nodiscard]] int* slot_of(int worker) const noexcept {
    return reinterpret_cast<int*>(numbers_.data()) + worker;
  }

  std::size_t slots_, slot_bytes_;
  line_buffer scratch_, numbers_;
  std::atomic<int> next_{0};
};

/// The body of run_bulk over the tiles of a product.
class tile_runner {
 public:
  tile_runner(isa which, const gemm_job& job, const gemm_setup& setup, std::pmr::memory_resource* memory,
              int workers)
      : isa_(which), job_(job), setup_(setup), scratch_(memory, tiles(), workers, setup.slot_bytes()) {}

  [[nodiscard]] index_t tiles() const noexcept {
    return setup_.borders.m.count() * setup_.borders.n.count() * job_.batch.count;
  }

  /// The time of all tiles, about: products, or for few rows what is read.
  [[nodiscard]] double ns(const kernel_tuning& tuning) const noexcept {
    const double products = ns_of_products(tuning, job_.m, job_.n, job_.k);
    const double reads = ns_of_bytes(tuning, capped_product(capped_product(job_.n, job_.k), 2));
    return (std::max)(products, reads) * static_cast<double>(job_.batch.count);
  }

  /// Runs tiles [begin, end), one after the other.
  void operator()(index_t begin, index_t end, int worker) {
    char* const scratch = scratch_.of(worker);
    for (index_t t = begin; t < end; ++t) {
      tile at = begin_tile(t, scratch);
      bool ok = true;
      for (index_t s = 0; ok && s < setup_.borders.k.count(); ++s) {
        const gemm_backend::plan& plan = set_operands(at, s);
        const status done = plan.run(plan, at.args);
        ok = done.ok();
        if (!ok) faults_.add(t, done);
      }
      if (ok) end_tile(at);
    }
  }

  [[nodiscard]] status first_fault() const { return faults_.first(); }

 private:
  struct tile {
    index_t product;     // of the batch
    index_t column;      // of tiles
    gemm_piece m, n;     // what is computed
    gemm_piece written;  // m without the rows that other tiles write
    void* c;
    char* a_block;
    char* b_block;
    char* c_block;
    bool unfused;  // though the plans fuse: its sums may be infinite
    bool direct;   // the plan writes c, or rows of its stride
    gemm_backend::args args;
  };

  [[nodiscard]] tile begin_tile(index_t number, char* scratch) const {
    const gemm_borders& borders = setup_.borders;
    const index_t each = borders.m.count() * borders.n.count();
    tile at{.product = number / each,
            .column = number % borders.n.count(),
            .m = borders.m[number % each / borders.n.count()],
            .n = borders.n[number % borders.n.count()],
            .written = {},
            .c = nullptr,
            .a_block = scratch,
            .b_block = scratch + setup_.a_bytes,
            .c_block = scratch + setup_.a_bytes + setup_.b_bytes,
            .unfused = false,
            .direct = false,
            .args = {}};
    const gemm_piece& m = at.m;
    const gemm_piece& n = at.n;
    at.written = {m.begin + m.skipped, m.size - m.skipped, m.kind, m.size - m.skipped};
    const gemm_storage c_as = job_.c.storage;
    at.c =
        offset_by(job_.c.data,
                  at.product * job_.batch.c_batch_stride + at.written.begin * job_.c.stride + n.begin, c_as);
    at.unfused = setup_.guarded && !sums_are_finite(at.product, at.written, n);
    at.direct = setup_.direct && !at.unfused;
    at.args.scratch = at.c_block + setup_.c_bytes;
    at.args.instruction_set = isa_;
    at.args.c = at.direct && m.skipped == 0 ? at.c : at.c_block;
    if (setup_.fused && !at.unfused) {
      if (job_.bias != nullptr) at.args.bias = job_.bias + n.begin;
      at.args.residual = static_cast<const float*>(moved(job_.residual, m.begin, n.begin).data);
      if (job_.accumulates && m.skipped > 0) {
        for (index_t i = 0; i < m.skipped; ++i) {
          std::memset(at.c_block + i * job_.c.stride * bytes_of(c_as), 0,
                      static_cast<std::size_t>(n.size * bytes_of(c_as)));
        }
        copy_rows(at.c, at.c_block + m.skipped * job_.c.stride * bytes_of(c_as), at.written.size, n.size);
      }
    }
    return at;
  }

  // Operands of piece s of k; returns its plan.
  [[nodiscard]] const gemm_backend::plan& set_operands(tile& at, index_t s) const {
    const gemm_piece k = setup_.borders.k[s];
    const bool a_turned = job_.a_as == gemm_operand::transposed;
    const bool b_turned = job_.b_as == gemm_operand::transposed;
    at.args.a = operand(job_.a.data(), leading_dimension(job_.a), job_.a.storage(),
                        at.product * job_.batch.a_batch_stride, a_turned ? k : at.m, a_turned ? at.m : k,
                        setup_.convert_a, at.a_block);
    if (setup_.packed) {
      at.args.b = (*setup_.b_form)[static_cast<std::size_t>(at.column)].data.get();
    } else {
      const conversion kind = job_.weights != nullptr ? conversion::none : setup_.convert_b;
      at.args.b =
          operand(setup_.b.data, setup_.b.stride, setup_.b.storage, at.product * job_.batch.b_batch_stride,
                  b_turned ? at.n : k, b_turned ? k : at.n, kind, at.b_block);
    }
    return setup_.plans[setup_.plan_index(at.m.kind, at.n.kind, k.kind, s > 0 || at.unfused)];
  }

  void end_tile(const tile& at) const {
    if (!at.direct) {
      finish_rows(isa_, job_, reinterpret_cast<const float*>(at.c_block) + at.m.skipped * at.n.size,
                  at.n.size, at.written, at.n, at.c);
    } else if (at.m.skipped > 0) {
      copy_rows(at.c_block + at.m.skipped * job_.c.stride * bytes_of(job_.c.storage), at.c, at.written.size,
                at.n.size);
    }
  }

  // True when no partial sum of the tile can overflow.
  bool sums_are_finite(index_t product, const gemm_piece& m, const gemm_piece& n) const {
    const bool turned = job_.a_as == gemm_operand::transposed;
    const index_t stride = leading_dimension(job_.a);
    const void* const a =
        offset_by(job_.a.data(), product * job_.batch.a_batch_stride + (turned ? m.begin : m.begin * stride),
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
  // A block of rows x columns of an operand, in memory order, converted where needed; rows past rows.filled
  // are zeros.
  const void* operand(const void* data, index_t stride, gemm_storage storage, index_t step,
                      const gemm_piece& rows, const gemm_piece& columns, conversion kind, char* block) const {
    const void* const from = offset_by(data, step + rows.begin * stride + columns.begin, storage);
    if (kind == conversion::none && rows.filled == rows.size) return from;
    convert_with(isa_, {kind, from, stride, block, columns.size, rows.filled, columns.size, storage});
    const index_t row_bytes = columns.size * bytes_of(setup_.inputs);
    std::memset(block + rows.filled * row_bytes, 0,
                static_cast<std::size_t>((rows.size - rows.filled) * row_bytes));
    return block;
  }

  isa isa_;
  const gemm_job& job_;
  const gemm_setup& setup_;
  worker_scratch scratch_;
  fault_report faults_;
};

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
