// Bodies whose time is what they say they spend. OTHER: 0 for ours, 1 for theirs.
#include <algorithm>
#include <stdexcept>

#include "support/bodies.hpp"

namespace {

using namespace deeprec_bodies_of;

constexpr double millisecond = 1e-3;

enum class kind { equal, faster, slower, noisy, ladder, turns, answer, input, breaks, no_state, unfit };

template <kind Kind>
struct made_up {
  static constexpr double items = 10;

  explicit made_up(const host& h)
      : memory(h),
        values(h.memory<std::uint64_t>("values", 1000,
                                       [](std::uint64_t* to, std::int64_t n) {
                                         for (std::int64_t i = 0; i < n; ++i)
                                           to[i] = draw(Kind == kind::input ? OTHER : 7,
                                                        static_cast<std::uint64_t>(i));
                                         ++fills;
                                       })),
        last(h.memory<int>("who ran last", 1)) {
    if (Kind == kind::no_state && OTHER) throw std::runtime_error("no room for a state");
    if (Kind == kind::unfit) throw absent("this machine has no abacus");
    // Written while fresh, once in each object, and seen by both at one address.
    auto* const where = h.memory<const void*>("where", 1, [](const void** to, std::int64_t) { *to = to; });
    if (*where != where || fills > 1) throw std::runtime_error("the memory is not shared");
  }
  void run() {
    ++runs;
    double spent = millisecond;
    if (Kind == kind::equal)
      spent *= 1 + 0.1 * static_cast<double>(draw_float(OTHER + 2 * memory.seed(), runs));
    if (Kind == kind::faster && OTHER) spent *= 1.25;
    if (Kind == kind::slower && OTHER) spent *= 0.8;
    if (Kind == kind::noisy) spent *= 1 + 0.9 * static_cast<double>(draw_float(OTHER, memory.seed()));
    if (Kind == kind::ladder && OTHER) spent *= 1 + static_cast<double>(memory.seed()) / 100;
    if (Kind == kind::turns && *last != OTHER) spent *= 3;  // after the other one, caches are cold
    *last = OTHER;
    if (Kind == kind::breaks && OTHER && runs > 3) throw std::runtime_error("it broke");
    memory.spend(spent);
  }
  std::uint64_t checksum() {
    run();
    return checksum_of(values, 1000) + (Kind == kind::answer ? OTHER : 0);
  }

  host memory;
  std::uint64_t* values;
  int* last;
  std::uint64_t runs = 0;
  static inline int fills = 0;
};

}  // namespace

#ifdef OF_ANOTHER_VERSION
extern "C" const deeprec_bodies_table* deeprec_bodies(void) {
  static constexpr deeprec_bodies_table table = {DEEPREC_BODIES_VERSION + 1, 0, nullptr};
  return &table;
}
#else
DEEPREC_BODIES(body<made_up<kind::equal>>("made_up/equal", "step"),
               body<made_up<kind::faster>>("made_up/faster", "step"),
               body<made_up<kind::slower>>("made_up/slower", "step"),
               body<made_up<kind::noisy>>("made_up/noisy", "step"),
               body<made_up<kind::ladder>>("made_up/ladder", "step"),
               body<made_up<kind::turns>>("made_up/turns", "step"),
               body<made_up<kind::answer>>("made_up/answer", "step"),
               body<made_up<kind::input>>("made_up/input", "step"),
               body<made_up<kind::breaks>>("made_up/breaks", "step"),
               body<made_up<kind::no_state>>("made_up/no_state", "step"),
               body<made_up<kind::unfit>>("made_up/unfit", "step"),
               body<made_up<kind::equal>>(OTHER ? "made_up/only_theirs" : "made_up/only_ours", "step"))
#endif
