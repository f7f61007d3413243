// The choice of a backend for a checked product, and the plans that it makes for the tiles of it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/isa.hpp>
#include <deeprec/dense/gemm/detail/gemm_arithmetic.hpp>
#include <deeprec/dense/gemm/detail/gemm_borders.hpp>
#include <deeprec/dense/gemm/detail/gemm_tiles_kernels.hpp>
#include <deeprec/dense/gemm/gemm_backend.hpp>
#include <deeprec/dense/gemm/gemm_weights.hpp>
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
    const int tile = (m * borders.n.kinds() + n) * borders.k.kinds() + k;
    return 2 * static_cast<std::size_t>(tile) + (later ? 1 : 0);
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
  if (block.kind == conversion::narrow && which == isa::avx512_bf16) {
    return narrow_for_products(isa_avx512_bf16::region{}, block);
  }
#endif
  with_isa_up_to_avx512(which, [&](auto region) { convert(region, block); });
}

/// A dense copy of a block of the weights, converted.
inline gemm_backend::packed dense_form(std::pmr::memory_resource* memory, isa which, const gemm_view<>& from,
                                       conversion kind, index_t row, index_t rows, index_t column,
                                       index_t columns) {
  const bool as_is = kind == conversion::none || kind == conversion::copy;
  const gemm_storage to = kind == conversion::narrow ? gemm_storage::bf16
                          : as_is                    ? from.storage()
                                                     : gemm_storage::f32;
  const std::size_t bytes = in_lines(rows * columns * bytes_of(to)) + 64;
  const std::shared_ptr<void> data = shared_memory(memory, bytes, 64);
  const void* first = offset_by(from.data(), row * leading_dimension(from) + column, from.storage());
  convert_with(which,
               {kind, first, leading_dimension(from), data.get(), columns, rows, columns, from.storage()});
  return {data, bytes};
}

/// The weights cast for a backend, and packed where it packs; null where it can't.
template <class Backend>
gemm_weights::form weights_form(isa which, const gemm_job& job, conversion kind, bool packed,
                                [[maybe_unused]] gemm_storage inputs,
                                [[maybe_unused]] const gemm_pieces& columns) {
  using pieces = std::pmr::vector<gemm_backend::packed>;
  using allocator = std::pmr::polymorphic_allocator<std::byte>;
  const gemm_view<> values = job.weights->values();
  if (!packed) {
    return job.weights->get({.kind = kind}, [&](std::pmr::memory_resource* memory) {
      auto forms = std::allocate_shared<pieces>(allocator(memory));
      forms->push_back(dense_form(memory, which, values, kind, 0, values.extent(0), 0, values.extent(1)));
      return gemm_weights::form(forms);
    });
  }
  if constexpr (PackingGemmBackend<Backend>) {
    const bool turned = job.b_as == gemm_operand::transposed;
    return job.weights->get(
        {kind, job.b_as, Backend::name, columns.largest(), inputs},
        [&](std::pmr::memory_resource* memory) -> gemm_weights::form {
          auto forms = std::allocate_shared<pieces>(allocator(memory));
          for (index_t j = 0; j < columns.count(); ++j) {
            const gemm_piece p = columns[j];
            const gemm_backend::packed dense =
                turned ? dense_form(memory, which, values, kind, p.begin, p.size, 0, job.k)
                       : dense_form(memory, which, values, kind, 0, job.k, p.begin, p.size);
            auto piece = Backend::pack(dense.data.get(), job.k, p.size, job.b_as, inputs, memory);
            if (!piece) return nullptr;
            forms->push_back(std::move(piece).value());
          }
          return forms;
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

/// True where few sizes of last rows may serve, which overlap the rows before them.
template <class Backend>
bool may_overlap(const gemm_job& job) noexcept {
  constexpr index_t widest = index_t{1} << 15;  // rows in scratch have the stride of c
  const index_t last = job.m % 16;
  return SameRowsBackend<Backend> && job.a_as == gemm_operand::normal && job.m > 16 && last != 0 &&
         last != 4 && last != 8 && job.c.stride <= widest;
}

/// Sets up a backend; the reason of its last refusal where it can't run the job.
template <class Backend>
status set_up_backend(isa which, const gemm_job& job, const chosen_math& chosen, gemm_setup& setup) {
  setup = gemm_setup(setup.plans.get_allocator().resource());
  setup.math = chosen;
  setup.backend = Backend::name;
  status refused;
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
    const struct {
      bool applies;
      result_way way;
      bool copies;
    } attempts[] = {{has_work && may_fuse, result_way::fused, false},
                    {!has_work, result_way::direct, false},
                    {true, result_way::finished, false},
                    {inputs == gemm_storage::bf16, result_way::finished, true}};
    bool planned = false;
    for (const auto& next : attempts) {
      if (planned || !next.applies) continue;
      if (next.copies) {  // the backend may not support the strides
        if (setup.convert_a == conversion::none) setup.convert_a = conversion::copy;
        if (setup.convert_b == conversion::none) setup.convert_b = conversion::copy;
        if (job.weights != nullptr) setup.b.stride = job.b.extent(1);
      }
      if (may_overlap<Backend>(job)) planned = make_plans<Backend>(which, job, next.way, true, setup).ok();
      if (planned) continue;
      refused = make_plans<Backend>(which, job, next.way, false, setup);
      planned = refused.ok();
    }
    if (!planned) continue;
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

/// Appends why a backend refused, unless `refused` is null. Returns false.
inline bool note_refusal(const char* backend, const status& why, std::string* refused) {
  if (refused == nullptr) return false;
  *refused += std::string("; not ") + backend + ": ";
  *refused += why.detail() != nullptr ? why.detail() : to_string(why.code());
  return false;
}

/// Sets up the first backend that can run the job; fails as the last one where none can. Refusals of those
/// before it are appended to `refused` unless that is null.
template <class... Backends>
status set_up(gemm_backends<Backends...>, isa which, const gemm_job& job, gemm_setup& setup,
              std::string* refused = nullptr) {
  const chosen_math chosen = choose_math_for<gemm_backends<Backends...>>(which, job);
  status last;
  static_cast<void>((((last = set_up_backend<Backends>(which, job, chosen, setup)).ok() ||
                      note_refusal(setup.backend, last, refused)) ||
                     ...));
  return last;
}

}}}}  // namespace deeprec::DEEPREC_ABI::detail::DEEPREC_UNIT
