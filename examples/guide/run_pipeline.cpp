// A source, a stage of two threads and a sink: items arrive in order, and the first failure ends the run.
#include <deeprec/deeprec.hpp>

#include <cstdio>
#include <optional>
using namespace deeprec;

int main() {
  thread_pool pool;
  long next = 0, sum = 0;
  const auto read = [&]() -> std::optional<long> {  // nullopt: the end
    return next < 1000 ? std::optional(next++) : std::nullopt;
  };
  const auto square = [](long x) { return x * x; };
  const auto add = [&](long x) { sum += x; };
  pipeline squares(pool, source(read) | stage("square", square).parallel(2) | sink(add));
  squares.run().or_throw();
  std::printf("%ld\n", sum);
}
