// An operand b that stays the same from product to product: its cast and packed forms are made once for
// each version of its values.
//
//   gemm_weights w(view);                 gemm(pool, {.math = gemm_math::bf16}, x, w, y);   // casts, packs
//   step(view);  w.changed();             gemm(pool, {.math = gemm_math::bf16}, x, w, y);   // casts again
//
// Without changed() a product uses the old weights; where contracts are checked, values that differ from
// those that a form was made of violate the contract. Not here: the values themselves.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/dense/gemm/detail/gemm_tiles_args.hpp>
#include <deeprec/dense/gemm/gemm_backend.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// How many products each version of the weights has. few: one cast is kept for both orientations. many: b is
/// also packed for the backend, once for each orientation.
enum class weight_reuse : std::uint8_t { few, many };

/// @threads products from many threads at once; changed() and writes to the values while no product runs
class gemm_weights {
 public:
  /// @param memory of the forms: used by one product at a time, under a lock
  /// @pre  the values outlive this and are not moved
  explicit gemm_weights(gemm_view<> values, weight_reuse reuse = weight_reuse::many,
                        std::pmr::memory_resource* memory = std::pmr::get_default_resource()) noexcept
      : values_(values), reuse_(reuse), kept_(memory) {}
  gemm_weights(const gemm_weights&) = delete;
  gemm_weights& operator=(const gemm_weights&) = delete;

  /// Declares that the values were written.
  ///
  /// @cost    O(1); the next product casts and packs again
  /// @threads no product may run at the same time
  /// @error   none
  void changed() noexcept { version_.fetch_add(1, std::memory_order_release); }

  /// Begins at 1, and grows with every changed().
  [[nodiscard]] std::uint64_t version() const noexcept { return version_.load(std::memory_order_acquire); }
  [[nodiscard]] const gemm_view<>& values() const noexcept { return values_; }
  [[nodiscard]] weight_reuse reuse() const noexcept { return reuse_; }

  /// Number of forms made so far.
  [[nodiscard]] std::uint64_t forms_made() const {
    const std::lock_guard lock(mutex_);
    return forms_made_;
  }

  /// The largest magnitude among the values; infinity where one is infinite or NaN.
  ///
  /// @cost    O(values) once for each version
  /// @threads as products
  /// @error   none
  DEEPREC_PER_UNIT [[nodiscard]] float largest() const {
    const std::lock_guard lock(mutex_);
    const std::uint64_t now = version();
    if (largest_version_ != now) {
      float most = 0;
      for (index_t i = 0; i < values_.extent(0); ++i) {
        const void* row = detail::offset_by(values_.data(), i * values_.stride(0), values_.storage());
        most = (std::max)(most, detail::largest_magnitude(row, values_.extent(1), values_.storage()));
      }
      largest_ = most;
      largest_version_ = now;
    }
    return largest_;
  }

  /// What a form depends on.
  struct form_key {
    detail::conversion kind = detail::conversion::none;
    gemm_operand orientation = gemm_operand::normal;  ///< of packed forms
    const char* packed_by = nullptr;                  ///< a backend's name
    index_t packed_columns = 0;                       ///< of each piece of a packed form
    gemm_storage packed_as = gemm_storage::f32;       ///< storage of a packed form

    friend constexpr bool operator==(const form_key&, const form_key&) = default;
  };
  using form = std::shared_ptr<const std::pmr::vector<gemm_backend::packed>>;

  /// The form of the current version, made once by make(memory), in this memory; a null form is not kept.
  /// The form of an earlier version is released before.
  template <class Make>
  [[nodiscard]] form get(const form_key& key, Make&& make) const {
    const std::lock_guard lock(mutex_);
    const std::uint64_t now = version();  // before the values are read
    const auto known = std::find_if(kept_.begin(), kept_.end(), [&](const kept& k) { return k.key == key; });
    if (known != kept_.end() && known->version == now) {
      DEEPREC_EXPECTS(known->checksum == checksum());  // changed() was forgotten
      return known->value;
    }
    if (known != kept_.end()) known->value.reset();
    form fresh = make(kept_.get_allocator().resource());
    if (fresh == nullptr) return nullptr;
    ++forms_made_;
    kept& place = known != kept_.end() ? *known : kept_.emplace_back();
    place = {key, now, checked_sum(), fresh};
    return fresh;
  }

 private:
  struct kept {
    form_key key;
    std::uint64_t version = 0;
    std::uint64_t checksum = 0;
    form value{};
  };

  [[nodiscard]] std::uint64_t checksum() const {
    std::uint64_t sum = 0;
    const index_t width = values_.extent(1) * detail::bytes_of(values_.storage());
    for (index_t i = 0; i < values_.extent(0); ++i) {
      const void* row = detail::offset_by(values_.data(), i * values_.stride(0), values_.storage());
      sum = hash_bytes({static_cast<const char*>(row), static_cast<std::size_t>(width)}, sum);
    }
    return sum;
  }
  [[nodiscard]] std::uint64_t checked_sum() const { return DEEPREC_CONTRACTS != 0 ? checksum() : 0; }

  gemm_view<> values_;
  weight_reuse reuse_;
  std::atomic<std::uint64_t> version_{1};
  mutable std::mutex mutex_;
  mutable std::pmr::vector<kept> kept_;
  mutable std::uint64_t forms_made_ = 0;
  mutable std::uint64_t largest_version_ = 0;
  mutable float largest_ = 0;
};

/// The operand b of a product: a view, or weights that stay the same from product to product.
template <MemorySpace Space = host_space>
class gemm_factor {
 public:
  constexpr explicit(false) gemm_factor(const gemm_view<Space>& values) noexcept : values_(values) {}
  template <class T, MemorySpace From>
  constexpr explicit(false) gemm_factor(const matrix_view<T, From>& values) noexcept : values_(values) {}
  explicit(false) gemm_factor(const gemm_weights& weights) noexcept : weights_(&weights) {
    static_assert(std::is_same_v<Space, host_space>,
                  "deeprec::gemm: gemm_weights are the host's. Fix: pass a device view for b; a tensor core "
                  "needs no packing.");
    values_ = weights.values();
  }

  [[nodiscard]] constexpr const gemm_view<Space>& values() const noexcept { return values_; }
  /// Null for a view.
  [[nodiscard]] constexpr const gemm_weights* weights() const noexcept { return weights_; }

 private:
  gemm_view<Space> values_;
  const gemm_weights* weights_ = nullptr;
};

}}  // namespace deeprec::DEEPREC_ABI
