// A monotonic buffer of the standard library whose calls link.
#pragma once

#include <cstddef>
#include <memory_resource>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// A std::pmr::monotonic_buffer_resource. With g++ 12 at -O2 a unit that calls that class through its base
/// may refer to its inline do_allocate without containing it (undefined reference); here it is called by
/// name.
class monotonic_memory final : public std::pmr::monotonic_buffer_resource {
 public:
  using std::pmr::monotonic_buffer_resource::monotonic_buffer_resource;

 protected:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    return std::pmr::monotonic_buffer_resource::do_allocate(bytes, alignment);
  }
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
