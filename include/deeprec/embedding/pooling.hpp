// Pooling of a bag into one row: the combiner, and policies for bad ids, padding, empty bags, norms, output.
//
//   lookup(ctx, table, bags, combiner::sum, out);                a combiner is a pooling
//   lookup(ctx, table, bags, pooling{combiner::mean(combiner::by_weight), bounds::skip, padding::id{0}},
//          out);
//
//   combiner::            row of bag b                                weights
//   sum                   sum_k w[k] * x[k]                           yes
//   mean, mean(by_count)  sum_k w[k] * x[k] / number of ids           yes
//   mean(by_weight)       sum_k w[k] * x[k] / sum_k w[k]              yes; zeros when they sum to 0
//   sqrtn                 sum_k w[k] * x[k] / sqrt(sum_k w[k]^2)      yes; zeros when they are all 0
//   max                   max_k x[k], element by element              no
//   concat                no pooling: out is (N,D), row k is w[k] * x[k]   yes
//
// Sums start at +0: sum, mean and sqrtn give +0 for a bag of -0; max and concat keep -0.
//
// Without weights w = 1. Policies are empty tags or small values, in any order, one of each kind:
//
//   bounds::     check (default) | skip | assume_valid      an id outside [0, rows)
//   padding::    none (default)  | id{7} | prune            ids that count as absent; neither they nor their
//                                                           weights are ever "bad"
//   empty_bag::  zeros (default) | default_row{7} | keep    a bag without ids, absent ones not counted
//   norm         any (default)   | max_norm{c}              rows longer than c are scaled down to c
//   output::     overwrite (default) | accumulate           what happens to the old values of out
#pragma once

#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// How the rows of a bag are combined into one.
namespace combiner {

struct by_count_t {};
struct by_weight_t {};
inline constexpr by_count_t by_count{};
inline constexpr by_weight_t by_weight{};

struct sum_t {};
template <class Denominator>
struct mean_t {
  /// The mean over another denominator: mean(by_weight).
  template <class Other>
  constexpr mean_t<Other> operator()(Other) const noexcept {
    static_assert(std::is_same_v<Other, by_count_t> || std::is_same_v<Other, by_weight_t>,
                  "deeprec::combiner::mean: unknown denominator. Fix: mean(combiner::by_count) or "
                  "mean(combiner::by_weight).");
    return {};
  }
};
struct sqrtn_t {};
struct max_t {};
struct concat_t {};
inline constexpr sum_t sum{};
inline constexpr mean_t<by_count_t> mean{};
inline constexpr sqrtn_t sqrtn{};
inline constexpr max_t max{};
inline constexpr concat_t concat{};

}  // namespace combiner

/// Handling of ids outside [0, rows).
namespace bounds {

/// The call fails and reports the first bad id. On the host nothing is written; on a device the bad bag
/// becomes zeros and the executor's synchronize() reports the id.
struct check_t {};
/// The id counts as absent, as if the bag did not hold it. The number of such ids in a batch is added to
/// *skipped once each time that the batch is resolved: by resolve, or by a lookup, update or row_gradients
/// that is given table and batch (on a device at synchronize()). Verbs add nothing for rows that were
/// resolved before; weight_gradients adds nothing, nor does a call that fails. The addition is atomic: calls
/// on several threads may share a counter, which is read when they have returned.
struct skip_t {
  index_t* skipped = nullptr;
  constexpr skip_t operator()(index_t& counter) const noexcept { return {&counter}; }
};
/// No check: a bad id reads memory outside the table.
struct assume_valid_t {};
inline constexpr check_t check{};
inline constexpr skip_t skip{};
inline constexpr assume_valid_t assume_valid{};

}  // namespace bounds

/// Result of a bag without ids, absent ones not counted.
namespace empty_bag {

struct zeros_t {};
/// This row of the table.
struct default_row {
  std::int64_t id;
};
/// The row of out stays as it is.
struct keep_t {};
inline constexpr zeros_t zeros{};
inline constexpr keep_t keep{};

}  // namespace empty_bag

/// Ids that count as absent.
namespace padding {

struct none_t {};
/// Ids equal to this one count as absent. May be any number, also negative.
struct id {
  std::int64_t id;
};
/// Negative ids count as absent and, for every combiner but sum, ids whose weight is not above 0: as in
/// TensorFlow's safe_embedding_lookup_sparse.
struct prune_t {};
inline constexpr prune_t prune{};

}  // namespace padding

/// Each row x is used as x * min(1, cap / ||x||), before its weight; also the default row.
struct max_norm {
  float cap;
};

/// What happens to the old values of out.
namespace output {

struct overwrite_t {};
/// out[b] += pooled row; a 16-bit out is rounded once, after the addition.
struct accumulate_t {};
inline constexpr overwrite_t overwrite{};
inline constexpr accumulate_t accumulate{};

}  // namespace output

namespace detail {

/// Rows are used unscaled.
struct any_norm_t {};

template <class T>
inline constexpr bool is_combiner =
    std::is_same_v<T, combiner::sum_t> || std::is_same_v<T, combiner::mean_t<combiner::by_count_t>> ||
    std::is_same_v<T, combiner::mean_t<combiner::by_weight_t>> || std::is_same_v<T, combiner::sqrtn_t> ||
    std::is_same_v<T, combiner::max_t> || std::is_same_v<T, combiner::concat_t>;

enum class policy_kind : unsigned char { none, bounds, padding, empty, norm, output };

template <class T>
constexpr policy_kind kind_of_policy() {
  if constexpr (std::is_same_v<T, bounds::check_t> || std::is_same_v<T, bounds::skip_t> ||
                std::is_same_v<T, bounds::assume_valid_t>) {
    return policy_kind::bounds;
  } else if constexpr (std::is_same_v<T, padding::id> || std::is_same_v<T, padding::none_t> ||
                       std::is_same_v<T, padding::prune_t>) {
    return policy_kind::padding;
  } else if constexpr (std::is_same_v<T, max_norm> || std::is_same_v<T, detail::any_norm_t>) {
    return policy_kind::norm;
  } else if constexpr (std::is_same_v<T, empty_bag::zeros_t> || std::is_same_v<T, empty_bag::default_row> ||
                       std::is_same_v<T, empty_bag::keep_t>) {
    return policy_kind::empty;
  } else if constexpr (std::is_same_v<T, output::overwrite_t> || std::is_same_v<T, output::accumulate_t>) {
    return policy_kind::output;
  } else {
    return policy_kind::none;
  }
}

/// The policy of the kind among Policies, or Default.
template <policy_kind Kind, class Default, class... Policies>
struct pick_policy {
  using type = Default;
};
template <policy_kind Kind, class Default, class First, class... Rest>
struct pick_policy<Kind, Default, First, Rest...> {
  using type = typename std::conditional_t<kind_of_policy<First>() == Kind, std::type_identity<First>,
                                           pick_policy<Kind, Default, Rest...>>::type;
};

template <policy_kind Kind, class... Policies>
inline constexpr int policies_of_kind = (0 + ... + (kind_of_policy<Policies>() == Kind ? 1 : 0));

}  // namespace detail

/// A combiner and policies.
template <class Combiner, class... Policies>
class pooling : private Policies... {
  static_assert(
      detail::is_combiner<Combiner>,
      "deeprec::pooling: the first policy is the combiner. Fix: pooling{combiner::sum, bounds::skip}.");
  static_assert(((detail::kind_of_policy<Policies>() != detail::policy_kind::none) && ...),
                "deeprec::pooling: not a policy. Fix: bounds::check, skip or assume_valid, padding::id{i} "
                "or prune, empty_bag::zeros, default_row{i} or keep, max_norm{c}, output::overwrite or "
                "accumulate.");
  static_assert(detail::policies_of_kind<detail::policy_kind::bounds, Policies...> <= 1 &&
                    detail::policies_of_kind<detail::policy_kind::padding, Policies...> <= 1 &&
                    detail::policies_of_kind<detail::policy_kind::empty, Policies...> <= 1 &&
                    detail::policies_of_kind<detail::policy_kind::norm, Policies...> <= 1 &&
                    detail::policies_of_kind<detail::policy_kind::output, Policies...> <= 1,
                "deeprec::pooling: two policies of one kind. Fix: name one of them.");
  template <detail::policy_kind Kind, class Default>
  using pick = typename detail::pick_policy<Kind, Default, Policies...>::type;

 public:
  using combiner = Combiner;
  using bounds_mode = pick<detail::policy_kind::bounds, bounds::check_t>;
  using padding_mode = pick<detail::policy_kind::padding, padding::none_t>;
  using empty_mode = pick<detail::policy_kind::empty, empty_bag::zeros_t>;
  using norm_mode = pick<detail::policy_kind::norm, detail::any_norm_t>;
  using output_mode = pick<detail::policy_kind::output, output::overwrite_t>;

  constexpr explicit pooling(Combiner, Policies... policies) noexcept : Policies(policies)... {}

  /// The policy of that type, which the pooling must hold.
  template <class Policy>
  [[nodiscard]] constexpr const Policy& get() const noexcept {
    return *this;
  }
};

template <class Combiner, class... Policies>
pooling(Combiner, Policies...) -> pooling<Combiner, Policies...>;

namespace detail {

template <class T>
inline constexpr bool is_pooling = false;

template <class Combiner, class... Policies>
inline constexpr bool is_pooling<pooling<Combiner, Policies...>> = true;

/// A combiner alone, completed by the defaults; a pooling as it is.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
template <class T>
constexpr auto as_pooling(const T& policy) noexcept {
  if constexpr (detail::is_pooling<T>) {
    return policy;
  } else {
    static_assert(detail::is_combiner<T>,
                  "deeprec::lookup: not a combiner. Fix: combiner::sum, combiner::mean, or "
                  "pooling{combiner::sum, bounds::skip}.");
    return pooling<T>(policy);
  }
}

}  // namespace detail

}}  // namespace deeprec::DEEPREC_ABI
