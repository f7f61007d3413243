// From a checked product to tiles on the executor.
//
//   gemm_job ──choose a backend──> gemm_setup ──for each tile, on some thread──>
//       convert the block of a, and of b      (into scratch that stays in the cache)
//       multiply, one piece of k at a time    (the backend's plan)
//       finish the tile                       (epilogues that the plan did not fuse)
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <memory_resource>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/bulk.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/first_fault.hpp>
#include <deeprec/dense/detail/gemm_arithmetic.hpp>
#include <deeprec/dense/detail/gemm_borders.hpp>
#include <deeprec/dense/detail/gemm_tiles_kernels.hpp>
#include <deeprec/dense/gemm_backend.hpp>
#include <deeprec/dense/gemm_weights.hpp>
#include <deeprec/ops/column_sums.hpp>
#include <deeprec/simd/dispatch.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail { inline namespace DEEPREC_UNIT {

/// A product with checked arguments. set_up() needs m, n and k of at least 1.
struct gemm_job {
  index_t m, n, k;
  gemm_operand a_as, b_as;
  gemm_math math;
  gemm_view<> a, b;
  const gemm_weights* weights = nullptr;  // null unless b is a gemm_weights
  stored_rows<void> c;
  stored_rows<const void> residual, mask;
  const float* bias = nullptr;
  gemm_activation activation = gemm_activation::none;
  bool accumulates = false;
  gemm_batch batch;

  [[nodiscard]] bool has_steps() const noexcept {
    return accumulates || bias != nullptr || residual.data != nullptr || mask.data != nullptr ||
           activation != gemm_activation::none;
  }
};

/// The leading dimension as BLAS requires it; the stride of a single row is ignored.
template <class View>
constexpr index_t leading_dimension(const View& v) noexcept {
  return v.extent(0) > 1 ? v.stride(0) : std::max<index_t>(v.extent(1), 1);
}

struct gemm_setup {
  explicit gemm_setup(std::pmr::memory_resource* memory) : plans(memory) {}

  const char* backend = "";
  chosen_math math;
  gemm_borders borders;
  conversion convert_a = conversion::none, convert_b = conversion::none;
  gemm_storage inputs = gemm_storage::f32;
  bool packed = false;
  bool fused = false;    // the plans do all epilogues
  bool guarded = false;  // fused only on tiles with finite sums; other tiles use the unfused ("later") plans
  float largest_b = 0;
  bool direct = false;          // the plans write c
  stored_rows<const void> b;    // unless b_form is packed
  gemm_weights::form b_form{};  // owns the data of b, or its packed pieces
  std::pmr::vector<gemm_backend::plan> plans;
  std::size_t a_bytes = 0, b_bytes = 0, c_bytes = 0, plan_bytes = 0;

  // later: not the first piece of k
  [[nodiscard]] std::size_t plan_index(int m, int n, int k, bool later) const noexcept {
    return static_cast<std::size_t>(((m * borders.n.kinds() + n) * borders.k.kinds() + k) * 2 +
                                    (later ? 1 : 0));
  }
  [[nodiscard]] std::size_t slot_bytes() const noexcept { return a_bytes + b_bytes + c_bytes + plan_bytes; }
};

constexpr std::size_t in_lines(index_t bytes) noexcept {
  return static_cast<std::size_t>((bytes + 63) / 64 * 64);
}

/// Memory from a resource, aligned to a cache line.
class line_buffer {
 public:
  line_buffer(std::pmr::memory_resource* from, std::size_t bytes)
      : from_(from), bytes_(bytes), data_(bytes == 0 ? nullptr : from->allocate(bytes, 64)) {}
  line_buffer(const line_buffer&) = delete;
  line_buffer& operator=(const line_buffer&) = delete;
  ~line_buffer() {
    if (data_ != nullptr) from_->deallocate(data_, bytes_, 64);
  }
  [[nodiscard]] char* data() const noexcept { return static_cast<char*>(data_); }

 private:
  std::pmr::memory_resource* from_;
  std::size_t bytes_;
  void* data_;
};

/// The conversion of an operand that math, f32 or forced, needs, for a backend that reads `inputs`.
constexpr conversion conversion_for(gemm_math math, gemm_storage stored, gemm_storage inputs) noexcept {
  if (inputs == gemm_storage::bf16) {
    return stored == gemm_storage::bf16 ? conversion::none : conversion::narrow;
  }
  if (stored == gemm_storage::bf16) return conversion::widen;  // every bf16 is a TF32
  return math == gemm_math::f32           ? conversion::none
         : math == gemm_math::forced_bf16 ? conversion::round_bf16
                                          : conversion::round_tf32;
}

/// The same bits with every instruction set.
inline void convert_with(isa which, const convert_block& block) {
#if DEEPREC_X86
  if (block.how == conversion::narrow && which == isa::avx512_bf16) {
    return narrow_for_products(isa_avx512_bf16::region{}, block);
  }
#endif
  with_isa_up_to_avx512(which, [&](auto region) { convert(region, block); });
}

/// A dense copy of a block of the weights, converted.
inline gemm_backend::packed dense_form(std::pmr::memory_resource* memory, isa which, const gemm_view<>& from,
                                       conversion how, index_t row, index_t rows, index_t column,
                                       index_t columns) {
  const bool as_is = how == conversion::none || how == conversion::copy;
  const gemm_storage to = how == conversion::narrow ? gemm_storage::bf16
                          : as_is                   ? from.storage()
                                                    : gemm_storage::f32;
  const std::size_t bytes = in_lines(rows * columns * bytes_of(to)) + 64;
  const std::shared_ptr<void> data = shared_memory(memory, bytes, 64);
  const void* first = offset_by(from.data(), row * leading_dimension(from) + column, from.storage());
  convert_with(which,
               {how, first, leading_dimension(from), data.get(), columns, rows, columns, from.storage()});
  return {data, bytes};
}

/// The weights cast for a backend, and packed where it packs; null where it can't.
template <class Backend>
gemm_weights::form weights_form(isa which, const gemm_job& job, conversion how, bool packed,
                                [[maybe_unused]] gemm_storage inputs,
                                [[maybe_unused]] const gemm_pieces& columns) {
  using pieces = std::pmr::vector<gemm_backend::packed>;
  using allocator = std::pmr::polymorphic_allocator<std::byte>;
  const gemm_view<> values = job.weights->values();
  if (!packed) {
    return job.weights->get({.how = how}, [&](std::pmr::memory_resource* memory) {
      auto made = std::allocate_shared<pieces>(allocator(memory));
      made->push_back(dense_form(memory, which, values, how, 0, values.extent(0), 0, values.extent(1)));
      return gemm_weights::form(made);
    });
  }
  if constexpr (PackingGemmBackend<Backend>) {
    const bool turned = job.b_as == gemm_operand::transposed;
    return job.weights->get(
        {how, job.b_as, Backend::name, columns.largest(), inputs},
        [&](std::pmr::memory_resource* memory) -> gemm_weights::form {
          auto made = std::allocate_shared<pieces>(allocator(memory));
          for (index_t j = 0; j < columns.count(); ++j) {
            const gemm_piece p = columns[j];
            const gemm_backend::packed dense =
                turned ? dense_form(memory, which, values, how, p.begin, p.size, 0, job.k)
                       : dense_form(memory, which, values, how, 0, job.k, p.begin, p.size);
            auto piece = Backend::pack(dense.data.get(), job.k, p.size, job.b_as, inputs, memory);
            if (!piece) return nullptr;
            made->push_back(std::move(piece).value());
          }
          return made;
        });
  }
  return nullptr;
}

/// How a tile's result gets to c. fused: the plan does the epilogues and writes c; direct: there are none,
/// the plan writes c; finished: a pass over the tile reads the product from scratch and writes c.
enum class result_way : std::uint8_t { fused, direct, finished };

/// Whether zeros after the end of k change no bit of a backend's result.
template <class Backend>
bool same_depths() {
  if constexpr (requires { Backend::same_depths(); }) return Backend::same_depths();
  return false;
}

/// Makes a backend's plans; unsupported where the backend refuses one, or where `overlaps` would change bits.
template <class Backend>
status make_plans(isa which, const gemm_job& job, result_way way, bool overlaps, gemm_setup& setup) {
  const bool fuse = way == result_way::fused;
  const bool finished = way == result_way::finished;
  setup.fused = fuse;
  setup.direct = !finished;
  // A backend's ReLU is used where no NaN can arise, which is checked by tile for weights of many products.
  // The check reads a; a pass that composes ReLU reads the product, which is less where n is below k.
  setup.guarded = fuse && job.activation == gemm_activation::relu && job.weights != nullptr &&
                  job.weights->reuse() == weight_reuse::many && job.m > 1 && job.n > 1 && job.k <= job.n &&
                  !job.accumulates && job.residual.data == nullptr;
  setup.borders = cut(job.m, job.n, job.k,
                      {.packed = setup.packed,
                       .finished = finished,
                       .converts_b = setup.convert_b != conversion::none && job.weights == nullptr,
                       .converts_a = setup.convert_a != conversion::none,
                       .k_is_rows = job.a_as == gemm_operand::transposed &&
                                    job.b_as == gemm_operand::normal && job.weights == nullptr,
                       .few_depths = same_depths<Backend>(),
                       .overlaps = overlaps});
  const gemm_borders& at = setup.borders;
  if (fuse && at.k.count() > 1) return {errc::unsupported, "sums in several pieces are finished later"};
  setup.plans.assign(setup.plan_index(at.m.kinds(), 0, 0, false), gemm_backend::plan{});
  setup.plan_bytes = 0;
  const index_t a_columns = leading_dimension(job.a);
  for (int mk = 0; mk < at.m.kinds(); ++mk) {
    const index_t m = at.m.size_of(mk);
    if (m == 0) continue;
    for (int nk = 0; nk < at.n.kinds(); ++nk) {
      if (at.n.size_of(nk) == 0) continue;
      for (int kk = 0; kk < at.k.kinds(); ++kk) {
        if (at.k.size_of(kk) == 0) continue;
        for (const bool later : {false, true}) {
          const bool unfused = setup.guarded && later;
          if (!unfused && !(later ? at.k.is_later(kk) : at.k.is_first(kk))) continue;
          gemm_backend::problem q{
              .m = m, .n = at.n.size_of(nk), .k = at.k.size_of(kk), .a = job.a_as, .b = job.b_as};
          // Converted operands are dense in scratch.
          const bool a_turned = q.a == gemm_operand::transposed;
          const bool b_turned = q.b == gemm_operand::transposed;
          const bool filled_up = at.k.is_filled_up(kk);
          q.a_stride = setup.convert_a != conversion::none || filled_up ? (a_turned ? q.m : q.k) : a_columns;
          if ((a_turned ? q.k : q.m) == 1) q.a_stride = a_turned ? q.m : q.k;
          q.b_stride = setup.packed ? 0
                       : (setup.convert_b != conversion::none && job.weights == nullptr) || filled_up
                           ? (b_turned ? q.k : q.n)
                           : setup.b.stride;
          if (!setup.packed && (b_turned ? q.n : q.k) == 1) q.b_stride = b_turned ? q.k : q.n;
          q.c_stride = setup.direct && !unfused && q.m > 1 ? job.c.stride : q.n;
          q.inputs = setup.inputs;
          q.packed = setup.packed;
          q.instruction_set = which;
          q.output = setup.direct && !unfused ? job.c.storage : gemm_storage::f32;
          q.accumulates = (later && !unfused) || (fuse && job.accumulates);
          if (fuse && !unfused) {
            q.finite = setup.guarded;
            q.bias = job.bias != nullptr;
            q.residual = job.residual.data != nullptr;
            q.activation = job.activation;
          }
          gemm_backend::plan& plan = setup.plans[setup.plan_index(mk, nk, kk, later)];
          plan = Backend::plan(q);
          if (plan.run == nullptr) {
            const status refused = Backend::can_run(q);
            return refused.ok() ? status(errc::unsupported, "the backend made no plan") : refused;
          }
          if constexpr (SameRowsBackend<Backend>) {
            if (overlaps && m < 16 && !Backend::same_rows(plan, job.m % 16))
              return {errc::unsupported, "the last rows would have other bits"};
          }
          setup.plan_bytes = (std::max)(setup.plan_bytes, in_lines(static_cast<index_t>(plan.scratch_bytes)));
        }
      }
    }
  }
  const index_t most_m = at.m.largest(), kb = at.k.largest(), nb = at.n.largest();
  const index_t input_bytes = bytes_of(setup.inputs);
  const int last = at.k.kinds() - 1;
  const index_t copied = at.k.is_filled_up(last) ? at.k.size_of(last) : 0;  // of k, if nothing is converted
  setup.a_bytes = in_lines(most_m * (setup.convert_a != conversion::none ? kb : copied) * input_bytes);
  setup.b_bytes = job.weights != nullptr
                      ? 0
                      : in_lines(nb * (setup.convert_b != conversion::none ? kb : copied) * input_bytes);
  const index_t unfused_c = !setup.direct || setup.guarded ? most_m * nb : index_t{0};
  const index_t overlapped_c = setup.direct && overlaps ? 7 * job.c.stride + nb : index_t{0};
  setup.c_bytes = in_lines((std::max)(unfused_c, overlapped_c) * 4);
  return {};
}

/// As make_plans(), with few sizes of last rows where that changes no bit.
template <class Backend>
status try_plans(isa which, const gemm_job& job, result_way way, gemm_setup& setup) {
  if constexpr (SameRowsBackend<Backend>) {
    constexpr index_t widest = index_t{1} << 15;  // rows in scratch have the stride of c
    const index_t last = job.m % 16;
    if (job.a_as == gemm_operand::normal && job.m > 16 && last != 0 && last != 4 && last != 8 &&
        job.c.stride <= widest && make_plans<Backend>(which, job, way, true, setup).ok()) {
      return {};
    }
  }
  return make_plans<Backend>(which, job, way, false, setup);
}

/// Sets up a backend; the reason of its last refusal where it can't run the job.
template <class Backend>
status try_backend(isa which, const gemm_job& job, gemm_setup& setup) {
  status refused;
  setup.backend = Backend::name;
  if constexpr (requires { Backend::can_multiply(job.m, job.n, job.k); }) {
    if (const status s = Backend::can_multiply(job.m, job.n, job.k); !s) return s;
  }
  setup.packed = PackingGemmBackend<Backend> && job.weights != nullptr &&
                 job.weights->reuse() == weight_reuse::many && job.k <= 8192;
  const gemm_storage b_stored = job.b.storage();
  // bf16 products where the backend has them, else floats, rounded where that is forced.
  const gemm_storage tries[] = {gemm_storage::bf16, gemm_storage::f32};
  for (const gemm_storage inputs : tries) {
    if (inputs == gemm_storage::bf16 && setup.math.math != gemm_math::forced_bf16) continue;
    const bool permitted = job.math == gemm_math::bf16 || job.math == gemm_math::tf32;
    const gemm_math math = permitted && inputs == gemm_storage::f32 ? gemm_math::f32 : setup.math.math;
    setup.inputs = inputs;
    setup.convert_a = conversion_for(math, job.a.storage(), inputs);
    setup.convert_b = conversion_for(math, b_stored, inputs);
    setup.b = {job.b.data(), leading_dimension(job.b), b_stored};
    if (job.weights != nullptr && setup.convert_b != conversion::none) {
      setup.b.stride = job.b.extent(1);
      setup.b.storage = inputs;
    }
    // Not fused: a mask, a residual that is bf16 or c itself, and ReLU where the backend lacks it.
    const bool may_fuse = job.mask.data == nullptr &&
                          (job.residual.data == nullptr ||
                           (job.residual.storage == gemm_storage::f32 && job.residual.data != job.c.data &&
                            (job.m == 1 || job.residual.stride == job.c.stride)));
    const bool has_work = job.has_steps() || job.c.storage == gemm_storage::bf16;
    const auto find_plans = [&]() -> status {
      const auto as = [&](result_way way) { return try_plans<Backend>(which, job, way, setup); };
      if (has_work && may_fuse && as(result_way::fused).ok()) return {};
      if (!has_work && as(result_way::direct).ok()) return {};
      const status finished = as(result_way::finished);
      if (finished.ok() || inputs != gemm_storage::bf16) return finished;
      // The backend may not support the strides.
      if (setup.convert_a == conversion::none) setup.convert_a = conversion::copy;
      if (setup.convert_b == conversion::none) setup.convert_b = conversion::copy;
      if (job.weights != nullptr) setup.b.stride = job.b.extent(1);
      return as(result_way::finished);
    };
    if (const status s = find_plans(); !s) {
      refused = s;
      continue;
    }
    if (job.weights != nullptr && (setup.packed || setup.convert_b != conversion::none)) {
      setup.b_form =
          weights_form<Backend>(which, job, setup.convert_b, setup.packed, inputs, setup.borders.n);
      if (setup.b_form == nullptr) {
        refused = {errc::unsupported, "the backend can't pack b"};
        continue;
      }
      if (!setup.packed) setup.b.data = setup.b_form->front().data.get();
    }
    if (setup.guarded) setup.largest_b = job.weights->largest();
    return {};
  }
  return refused;
}

/// The best unit for bf16 factors of these backends.
template <class... Backends>
gemm_backend::bf16_unit best_bf16_unit(gemm_backends<Backends...>, [[maybe_unused]] isa which) {
  auto best = gemm_backend::bf16_unit::none;
  const auto look = [&](auto tag) {
    using backend = typename decltype(tag)::type;
    if constexpr (requires { backend::bf16_products(which); }) {
      best = (std::max)(best, backend::bf16_products(which));
    }
  };
  (look(std::type_identity<Backends>{}), ...);
  return best;
}

template <class Backends>
chosen_math choose_math_for(isa which, const gemm_job& job) {
  if (job.math != gemm_math::bf16) return choose_math({.math = job.math});
  return choose_math({.math = job.math,
                      .unit = best_bf16_unit(Backends{}, which),
                      .m = job.m,
                      .n = job.n,
                      .k = job.k,
                      .casts_a = job.a.storage() == gemm_storage::f32,
                      .casts_b = job.weights == nullptr && job.b.storage() == gemm_storage::f32});
}

/// Sets up the first backend that can run the job; fails as the last one where none can. Refusals of those
/// before it are appended to `refused` unless that is null.
template <class... Backends>
status set_up(gemm_backends<Backends...>, isa which, const gemm_job& job, gemm_setup& setup,
              std::string* refused = nullptr) {
  status last;
  const chosen_math math = choose_math_for<gemm_backends<Backends...>>(which, job);
  const auto attempt = [&](auto tag) {
    setup = gemm_setup(setup.plans.get_allocator().resource());
    setup.math = math;
    const status s = try_backend<typename decltype(tag)::type>(which, job, setup);
    if (s.ok()) return true;
    if (refused != nullptr) {
      const char* const why = s.detail() != nullptr ? s.detail() : to_string(s.code());
      *refused += std::string("; not ") + setup.backend + ": " + why;
    }
    last = s;
    return false;
  };
  if ((attempt(std::type_identity<Backends>{}) || ...)) return {};
  return last;
}

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
  return countable(v) && v.stride(0) >= v.extent(1) && v.stride(0) % Bits::stride_unit == 0;
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
