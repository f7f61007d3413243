// What the environment asks of this process is in force. tests/machines runs the suites under profiles of
// other machines, and names each to this test in DEEPREC_TEST_PROFILE: words isa=NAME, onednn=CAP,
// processors=N, address_space=BYTES.

#include <deeprec/dense/gemm/gemm.hpp>
#include <deeprec/describe.hpp>
#include <deeprec/exec/inline_executor.hpp>

#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "support/needs.hpp"

using namespace deeprec;

namespace {

std::map<std::string, std::string> profile() {
  std::map<std::string, std::string> words;
  const char* const text = std::getenv("DEEPREC_TEST_PROFILE");
  std::istringstream in(text == nullptr ? "" : text);
  for (std::string word; in >> word;) {
    const std::size_t equals = word.find('=');
    REQUIRE(equals != std::string::npos);
    words[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return words;
}

isa isa_named(const std::string& name) {
  for (const isa which : every_isa) {
    if (name == to_string(which)) return which;
  }
  FAIL("no such instruction set: " << name);
  return isa::portable;
}

#if defined(DEEPREC_WITH_ONEDNN) && DEEPREC_WITH_ONEDNN
// What oneDNN may use at most under DNNL_MAX_CPU_ISA.
isa isa_of_cap(const std::string& cap) {
  if (cap == "AVX2") return isa::avx2;
  if (cap == "AVX512_CORE") return isa::avx512;
  REQUIRE(cap == "AVX512_CORE_BF16");
  return isa::avx512_bf16;
}
#endif

}  // namespace

TEST_CASE("profile: the instruction set is the one asked for, or the best below it") {
  auto words = profile();
  if (deeprec_test::lacks(words.count("isa") != 0, "DEEPREC_TEST_PROFILE=isa=avx2 beside DEEPREC_ISA=avx2"))
    return;
  CHECK(active_isa() == (std::min)(best_isa(), isa_named(words["isa"])));
  CHECK(describe().instruction_set == active_isa());
}

#if defined(DEEPREC_WITH_ONEDNN) && DEEPREC_WITH_ONEDNN
TEST_CASE("profile: oneDNN keeps to its own cap and to DEEPREC_ISA, whichever is lower") {
  auto words = profile();
  if (deeprec_test::lacks(words.count("onednn") != 0,
                          "DEEPREC_TEST_PROFILE=onednn=AVX2 beside DNNL_MAX_CPU_ISA=AVX2"))
    return;
  const isa cap = isa_of_cap(words["onednn"]);
  CHECK(detail::onednn_isa() <= cap);
  if (active_isa() > isa::portable)
    CHECK(detail::onednn_isa() <= active_isa());  // with portable kernels it is not used
  CHECK_FALSE(detail::onednn_has_tiles());

  // And so does a product.
  std::vector<float> x(64 * 256, 1.0F), w(512 * 256, 0.5F), y(64 * 512);
  inline_executor here;
  const gemm_desc desc{.b = gemm_operand::transposed};
  const matrix_view<const float> a(x.data(), 64, 256), b(w.data(), 512, 256);
  const matrix_view<float> c(y.data(), 64, 512);
  const std::string text = explain_gemm(desc, a, b, c);
  INFO(text);
  CHECK((text.find("oneDNN") == 0) == (active_isa() == best_isa() || active_isa() >= detail::onednn_isa()));
  if (cap < isa::avx512) CHECK(text.find("avx512") == std::string::npos);
  if (cap < isa::avx512_bf16) CHECK(text.find("bf16") == std::string::npos);
  CHECK(gemm(here, desc, a, b, c).ok());
  CHECK(std::all_of(y.begin(), y.end(), [](float value) { return value == 128.0F; }));
}
#endif

TEST_CASE("profile: threads are as many as the processors that the process may use") {
  auto words = profile();
  if (deeprec_test::lacks(words.count("processors") != 0,
                          "DEEPREC_TEST_PROFILE=processors=1 beside taskset -c 0"))
    return;
  CHECK(std::to_string(usable_cpus().size()) == words["processors"]);
  CHECK(describe().threads <= static_cast<int>(usable_cpus().size()));
}

TEST_CASE("profile: the address space is limited") {
  auto words = profile();
  if (deeprec_test::lacks(words.count("address_space") != 0,
                          "DEEPREC_TEST_PROFILE=address_space=BYTES beside ulimit -v"))
    return;
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_AS, &limit) == 0);
  CHECK(std::to_string(limit.rlim_cur) == words["address_space"]);
}
