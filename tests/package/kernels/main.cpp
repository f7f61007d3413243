// One lookup by units of different flags, some of which share the component's kernels.
#include <deeprec/core/config.hpp>

#include <cstdio>
#include <cstring>
#include <vector>

using lookups = void(const float*, const long long*, float*);
lookups plain, checked, no_exceptions, native, headers;

int main() {
  std::vector<float> table(50 * 37), first(5 * 3 * 8 * 37), out;
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<float>(i * 7 % 32) + 1;
  std::vector<long long> ids(32);
  for (std::size_t k = 0; k < ids.size(); ++k) ids[k] = static_cast<long long>(k * 17 % 50);
  plain(table.data(), ids.data(), first.data());
  if (first[0] == 0) return 1;
  for (lookups* const unit : {&checked, &no_exceptions, &native, &headers}) {
    out.assign(first.size(), 0);
    unit(table.data(), ids.data(), out.data());
    if (std::memcmp(first.data(), out.data(), out.size() * sizeof(float)) != 0) {
      std::printf("another answer\n");
      return 2;
    }
  }
  std::printf("deeprec %d\n", DEEPREC_VERSION_MAJOR);
}
