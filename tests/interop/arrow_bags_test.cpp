// Arrays of Arrow's C data interface as batches, with structs that have its documented fields.
#include <deeprec/interop/arrow_bags.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

using namespace deeprec;

namespace {

struct schema_like {
  const char* format;
  schema_like** children;
};
struct array_like {
  std::int64_t length, null_count, offset;
  const void** buffers;
  array_like** children;
};

// Lists (7 1) () (9): of any types of elements and offsets.
template <class Id, class Offset>
struct lists {
  explicit lists(const char* list, const char* element)
      : child_schema{element, nullptr}, schema{list, &children} {}
  std::vector<Offset> offsets{0, 2, 2, 3};
  std::vector<Id> ids{7, 1, 9};
  const void* id_buffers[2] = {nullptr, ids.data()};
  const void* list_buffers[2] = {nullptr, offsets.data()};
  array_like child{3, 0, 0, id_buffers, nullptr};
  array_like* child_of[1] = {&child};
  array_like array{3, 0, 0, list_buffers, child_of};
  schema_like child_schema;
  schema_like* children = &child_schema;
  schema_like schema;
};

}  // namespace

TEST_CASE("from_arrow: lists are bags in Arrow's memory, and arrays of numbers spans") {
  lists<std::int64_t, std::int32_t> small("+l", "l");
  jagged_view<std::int64_t, std::int32_t> bags;
  REQUIRE(from_arrow(small.schema, small.array, bags).ok());
  CHECK(bags.ids() == small.ids.data());
  CHECK(bags.offsets() == small.offsets.data());
  CHECK(bags.bags() == 3);
  CHECK(bags.id_count() == 3);

  lists<std::int32_t, std::int64_t> large("+L", "i");
  jagged_view<std::int32_t, std::int64_t> wide;
  REQUIRE(from_arrow(large.schema, large.array, wide).ok());
  CHECK(wide.ids() == large.ids.data());
  CHECK(wide.offsets() == large.offsets.data());

  std::span<const std::int64_t> numbers;
  REQUIRE(from_arrow(small.child_schema, small.child, numbers).ok());
  CHECK(numbers.data() == small.ids.data());
  CHECK(numbers.size() == 3);
}

TEST_CASE("from_arrow: a slice begins at its offset; an array without elements is empty") {
  lists<std::int64_t, std::int32_t> of("+l", "l");
  of.array.offset = 1;
  of.array.length = 2;
  jagged_view<std::int64_t, std::int32_t> bags;
  REQUIRE(from_arrow(of.schema, of.array, bags).ok());
  CHECK(bags.bags() == 2);
  CHECK(bags.offsets() == of.offsets.data() + 1);
  of.child.offset = 1;
  of.child.length = 2;
  std::span<const std::int64_t> numbers;
  REQUIRE(from_arrow(of.child_schema, of.child, numbers).ok());
  CHECK(numbers.data() == of.ids.data() + 1);
  CHECK(numbers.size() == 2);
  of.array.length = 0;
  of.list_buffers[1] = nullptr;
  REQUIRE(from_arrow(of.schema, of.array, bags).ok());
  CHECK(bags.bags() == 0);
}

TEST_CASE("from_arrow: another type, and nulls, are refused, and the view is as before") {
  lists<std::int64_t, std::int32_t> of("+l", "l");
  const std::uint8_t bits[1] = {5};
  jagged_view<std::int64_t, std::int32_t> bags;
  const auto refused = [&](const char* part) {
    const status s = from_arrow(of.schema, of.array, bags);
    CHECK(s.code() == errc::unsupported);
    CHECK(s.message().find(part) != std::string::npos);
    CHECK(bags.bags() == 0);
  };
  of.schema.format = "+L";
  refused("must be a list, for offsets of 32 bits");
  of.schema.format = "+l";
  of.child_schema.format = "i";
  refused("must have the numbers of the view");
  of.child_schema.format = "l";
  of.array.null_count = 1;
  of.list_buffers[0] = bits;
  refused("no null");
  of.array.null_count = -1;  // not computed, and there is a bitmap
  refused("no null");
  of.list_buffers[0] = nullptr;  // without one there is none
  of.child.null_count = 1;
  of.id_buffers[0] = bits;
  refused("no null");
  of.id_buffers[0] = nullptr;
  CHECK(from_arrow(of.schema, of.array, bags).ok());
}
