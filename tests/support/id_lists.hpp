// Lists of ids that are hard for whoever looks for equal ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace deeprec_test {

enum class ids_are { few, many, wide, extreme, strided, equal, distinct };
inline constexpr ids_are every_kind[] = {ids_are::few,     ids_are::many,  ids_are::wide,    ids_are::extreme,
                                         ids_are::strided, ids_are::equal, ids_are::distinct};

template <class Id>
std::vector<Id> make_ids(std::mt19937_64& random, ids_are kind, std::size_t n) {
  constexpr Id extremes[] = {std::numeric_limits<Id>::min(), std::numeric_limits<Id>::max(), Id{0},
                             static_cast<Id>(-1), static_cast<Id>(Id{1} << (sizeof(Id) * 8 - 2))};
  std::vector<Id> ids(n);
  for (std::size_t k = 0; k < n; ++k) {
    switch (kind) {
      case ids_are::few:
        ids[k] = static_cast<Id>(random() % 7);
        break;
      case ids_are::many:
        ids[k] = static_cast<Id>(random() % (4 * n));
        break;
      case ids_are::wide:
        ids[k] = static_cast<Id>(random() % 2 == 0 || k == 0 ? static_cast<Id>(random()) : ids[random() % k]);
        break;
      case ids_are::extreme:
        ids[k] = extremes[random() % 5] ^ static_cast<Id>(random() % 2);
        break;
      case ids_are::strided:
        ids[k] = static_cast<Id>((random() % n) << (sizeof(Id) * 4));
        break;
      case ids_are::equal:
        ids[k] = static_cast<Id>(-12);
        break;
      case ids_are::distinct:
        ids[k] = static_cast<Id>((k + 1) * 0x9e3779b97f4a7c15);
        break;
    }
  }
  return ids;
}

}  // namespace deeprec_test
