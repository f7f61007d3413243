// The choice of the instruction set, in this process and in children with another environment.

#include <deeprec/core/isa.hpp>

#include <unistd.h>

#include <doctest/doctest.h>
#include <climits>
#include <cstdio>
#include <string>

using namespace deeprec;

namespace {

// What active_isa() is in a child of this executable.
std::string active_in_child(const std::string& environment) {
  char path[PATH_MAX + 1] = {};
  REQUIRE(readlink("/proc/self/exe", path, PATH_MAX) > 0);
  const std::string command =
      "env " + environment + " '" + path + "' --no-skip=true --test-case='isa: tells its choice to a parent'";
  std::FILE* child = popen(command.c_str(), "r");
  REQUIRE(child != nullptr);
  std::string answer;
  char line[256];
  while (std::fgets(line, sizeof(line), child) != nullptr) {
    const std::string text = line;
    if (text.rfind("active ", 0) == 0) answer = text.substr(7, text.size() - 8);
  }
  pclose(child);
  return answer;
}

}  // namespace

TEST_CASE("isa: tells its choice to a parent" * doctest::skip()) {
  std::printf("active %s\n", to_string(active_isa()));
}

TEST_CASE("isa: the environment lowers the choice and never raises it") {
  CHECK(active_in_child("-u DEEPREC_ISA") == to_string(best_isa()));
  for (const isa wanted : every_isa) {
    const isa expected = wanted < best_isa() ? wanted : best_isa();
    CHECK(active_in_child(std::string("DEEPREC_ISA=") + to_string(wanted)) == to_string(expected));
  }
}

TEST_CASE("isa: each set asks for everything that its regions are compiled for") {
  using features = detail::cpu_features;
  bool features::* const all[] = {&features::avx2,     &features::fma,      &features::bmi2,
                                  &features::f16c,     &features::avx512f,  &features::avx512bw,
                                  &features::avx512dq, &features::avx512vl, &features::avx512bf16};
  // Bit i of what a processor has: all[i]. The first four make avx2, the next four avx512.
  for (unsigned has = 0; has < 512; ++has) {
    features cpu;
    for (unsigned i = 0; i < 9; ++i) cpu.*all[i] = (has >> i & 1U) != 0;
    const isa expected = (has & 0x1ffU) == 0x1ffU ? isa::avx512_bf16
                         : (has & 0xffU) == 0xffU ? isa::avx512
                         : (has & 0xfU) == 0xfU   ? isa::avx2
                                                  : isa::portable;
    CHECK(detail::best_isa_of(cpu) == expected);
  }
#if DEEPREC_X86
  CHECK(best_isa() == detail::best_isa_of(detail::features_of_this_cpu()));
  if (best_isa() >= isa::avx2) CHECK(detail::features_of_this_cpu().f16c);
#endif
}

TEST_CASE("isa: a name that nobody knows changes nothing") {
  for (const char* name : {"", "sse9", "AVX2", "avx", "avx512_"}) {
    CHECK(active_in_child(std::string("DEEPREC_ISA=") + name) == to_string(best_isa()));
  }
}

TEST_CASE("isa: the choice is made once and is never better than the machine") {
  CHECK(active_isa() == active_isa());
  CHECK(active_isa() <= best_isa());
  CHECK(to_string(isa::avx512_bf16) == std::string("avx512_bf16"));
}
