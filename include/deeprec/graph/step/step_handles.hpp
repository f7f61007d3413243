// The words in which a step is written down: handles of values and variables, and what an op is called with.
//
//   value<T>        an output of an op, which other ops take as const T&
//   variable<T>     an object of the caller, which outlives a step; g.read(v), g.write(v), ...
//   op_ref<A, B>    an op, for what else is known of it: .role(op_role::apply).target()
//   op_list<const T>   what an op gets for a std::vector<value<T>>
//
//   struct hash {                                             an op with a kind, an attribute and an output
//     static constexpr const char* kind = "hash";
//     using output = id_batch;
//     std::uint64_t buckets;
//     template <class Visit> void for_each_attribute(Visit&& visit) const { visit("buckets", buckets); }
//     status operator()(const step_call& call, const text_batch& in, id_batch& out) const;
//   };
//
// The text of an attribute reads as the same number, so different attributes have different texts. Not here:
// the graph (step_graph.hpp).
#pragma once

#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/exec/executor_ref.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

class step_graph;

/// Why an op runs. A forward op takes nothing from a gradient or an apply op, a gradient op nothing from an
/// apply op.
enum class op_role : std::uint8_t {
  forward,
  gradient,
  apply,  ///< changes a variable
};

/// How an op accesses a variable.
enum class variable_use : std::uint8_t {
  read,
  write,
  accumulate,  ///< adds to it
  stale_read,  ///< reads what it was up to W - 1 steps before; W = 1: read
};

/// What an op gets of the step that it is part of.
struct step_call {
  const context<executor_ref>& on;  ///< for the verbs that it calls
  index_t step;                     ///< the number of the step, from 0
  /// The part of the batch's samples that the op is called with: below 1 where a program cuts the step by
  /// samples (by_lanes). A gradient of a mean over the samples is multiplied by it.
  float share = 1;
  index_t first_sample = 0;  ///< the place of the part's first sample among those of the batch
};

/// The types of an op's outputs: `using outputs = op_outputs<A, B>`.
template <class... T>
struct op_outputs {};

namespace detail {

/// An output of an op of a graph.
struct port_ref {
  std::uint64_t graph = 0;  // 0: none
  index_t op = -1;
  index_t port = 0;
};
struct handle_access;
class step_core;

}  // namespace detail

/// An output of an op, or what a stage hands on.
///
/// @threads a value type
template <class T>
class value {
 public:
  using type = T;
  /// No output; add() accepts it, and check() finds it.
  value() = default;
  /// The number of the op that makes it.
  [[nodiscard]] index_t op() const noexcept { return ref_.op; }
  [[nodiscard]] index_t port() const noexcept { return ref_.port; }

 private:
  friend struct detail::handle_access;
  explicit value(const detail::port_ref& ref) noexcept : ref_(ref) {}
  detail::port_ref ref_;
};

/// An object of the caller, which outlives every run, or a local of each step in flight (step_graph::local).
///
/// @threads a value type
template <class T>
class variable {
 public:
  using type = T;
  variable() = default;
  [[nodiscard]] index_t op() const noexcept { return ref_.op; }

 private:
  friend struct detail::handle_access;
  variable(const detail::port_ref& ref, T* object) noexcept : ref_(ref), object_(object) {}
  detail::port_ref ref_;
  T* object_ = nullptr;
};

/// A variable as an op accesses it: T is const where the op must not change it. Made by step_graph::read and
/// its neighbours.
template <class T>
class variable_access {
 private:
  friend struct detail::handle_access;
  variable_access(const detail::port_ref& ref, T* object, variable_use use, index_t window) noexcept
      : ref_(ref), object_(object), use_(use), window_(window) {}
  detail::port_ref ref_;
  T* object_;
  variable_use use_;
  index_t window_;
};

/// What an op gets for a list of values: a range of const T&.
///
/// @threads a view
template <class T>
class op_list {
  static_assert(std::is_const_v<T>,
                "deeprec::op_list: an op must not change its inputs. Fix: write op_list<const T>");

 public:
  class iterator {
   public:
    using iterator_category = std::random_access_iterator_tag;
    using value_type = std::remove_const_t<T>;
    using difference_type = std::ptrdiff_t;
    using pointer = T*;
    using reference = T&;
    iterator() = default;
    reference operator*() const noexcept { return *static_cast<T*>(*at_); }
    pointer operator->() const noexcept { return static_cast<T*>(*at_); }
    reference operator[](difference_type n) const noexcept { return *static_cast<T*>(at_[n]); }
    iterator& operator++() noexcept { return ++at_, *this; }
    iterator& operator--() noexcept { return --at_, *this; }
    iterator operator++(int) noexcept { return iterator(at_++); }
    iterator operator--(int) noexcept { return iterator(at_--); }
    iterator& operator+=(difference_type n) noexcept { return at_ += n, *this; }
    iterator& operator-=(difference_type n) noexcept { return at_ -= n, *this; }
    friend iterator operator+(iterator a, difference_type n) noexcept { return a += n; }
    friend iterator operator+(difference_type n, iterator a) noexcept { return a += n; }
    friend iterator operator-(iterator a, difference_type n) noexcept { return a -= n; }
    friend difference_type operator-(iterator a, iterator b) noexcept { return a.at_ - b.at_; }
    friend bool operator==(iterator a, iterator b) noexcept { return a.at_ == b.at_; }
    friend std::strong_ordering operator<=>(iterator a, iterator b) noexcept { return a.at_ <=> b.at_; }

   private:
    friend class op_list;
    explicit iterator(void* const* at) noexcept : at_(at) {}
    void* const* at_ = nullptr;
  };

  op_list(void* const* first, index_t size) noexcept : first_(first), size_(size) {}
  [[nodiscard]] index_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  /// @pre 0 <= i < size()
  [[nodiscard]] T& operator[](index_t i) const noexcept { return *static_cast<T*>(first_[i]); }
  [[nodiscard]] iterator begin() const noexcept { return iterator(first_); }
  [[nodiscard]] iterator end() const noexcept { return iterator(first_ + size_); }

 private:
  void* const* first_;
  index_t size_;
};

namespace detail {

struct handle_access {
  template <class T>
  static value<T> make(const port_ref& ref) noexcept {
    return value<T>(ref);
  }
  template <class T>
  static variable<T> make(const port_ref& ref, T* object) noexcept {
    return variable<T>(ref, object);
  }
  template <class T, class U>
  static variable_access<T> access(const variable<U>& v, variable_use use, index_t window) noexcept {
    return variable_access<T>(v.ref_, v.object_, use, window);
  }
  template <class T>
  static variable<T> moved(const variable<T>& v, const port_ref& to) noexcept {
    return variable<T>(to, v.object_);
  }
  template <class H>
  static const port_ref& ref(const H& handle) noexcept {
    return handle.ref_;
  }
  template <class T>
  static void* object(const variable_access<T>& a) noexcept {
    return const_cast<std::remove_const_t<T>*>(a.object_);  // const again where the op gets it
  }
  template <class T>
  static variable_use use(const variable_access<T>& a) noexcept {
    return a.use_;
  }
  template <class T>
  static index_t window(const variable_access<T>& a) noexcept {
    return a.window_;
  }
};

/// What is known of an op by its number.
class op_handle {
 public:
  op_handle() = default;
  op_handle(step_core* core, index_t op) noexcept : core_(core), op_(op) {}
  [[nodiscard]] step_core* core() const noexcept { return core_; }
  [[nodiscard]] index_t op() const noexcept { return op_; }

 private:
  step_core* core_ = nullptr;
  index_t op_ = -1;
};

// The value of an op that has one.
template <class... Outs>
struct single_value {
  explicit single_value(const port_ref&) noexcept {}
};
template <class T>
struct single_value<T> : value<T> {
  explicit single_value(const port_ref& ref) noexcept : value<T>(handle_access::make<T>(ref)) {}
};

}  // namespace detail

}}  // namespace deeprec::DEEPREC_ABI
