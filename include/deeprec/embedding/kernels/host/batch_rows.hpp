// The rows of a batch as verbs take them: resolved before (resolved_rows), or by the verb itself.
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/kernels/host/pool_rules.hpp>
#include <deeprec/embedding/kernels/host/resolution.hpp>
#include <deeprec/embedding/kernels/host/resolve_batch.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/tables/row_source.hpp>
#include <deeprec/support/scratch_block.hpp>
#include <deeprec/support/unit_flags.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// True of resolved_rows (resolve.hpp).
template <class Rows>
inline constexpr bool is_resolved = false;

/// A batch that a verb resolves itself, with the interface of resolved_rows.
template <class Source, class Bags, class Pooling, class = unit>
class unresolved_rows {
 public:
  using source_type = Source;
  using bags_type = Bags;
  using pooling_type = Pooling;

  constexpr unresolved_rows(const Source& source, const Bags& bags, const Pooling& pooling)
      : source_(source), bags_(bags), pooling_(pooling) {}
  [[nodiscard]] const Source& source() const noexcept { return source_; }
  [[nodiscard]] const Bags& bags() const noexcept { return bags_; }
  [[nodiscard]] const Pooling& pooling() const noexcept { return pooling_; }
  [[nodiscard]] auto resolution() const {
    return detail::resolution<Source, Bags, Pooling>(source_, bags_, pooling_);
  }
  /// Upper bound of the scratch that resolve_in takes.
  [[nodiscard]] index_t address_bytes() const noexcept {
    if constexpr (DirectRowSource<Source>) {
      return 0;
    } else {
      return scratch_block::bytes_of<const std::byte*>(most_positions(bags_));
    }
  }

 private:
  Source source_;
  Bags bags_;
  Pooling pooling_;
};

template <class Pooling>
using pooling_for = std::remove_cvref_t<decltype(as_pooling(std::declval<const Pooling&>()))>;

template <class Rows>
using resolution_of = std::remove_cvref_t<decltype(std::declval<const Rows&>().resolution())>;

/// Resolves a batch with scratch for its addresses.
template <class Context, class Resolution>
DEEPREC_INLINE status resolve_in(const Context& ctx, Resolution& rows, scratch_block& scratch) {
  if (const status s = rows.open(); !s) return s;
  if constexpr (!Resolution::is_direct) {
    rows.place_addresses(scratch.take<const std::byte*>(rows.addresses()).data());
  }
  return resolve_opened(ctx, rows);
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
