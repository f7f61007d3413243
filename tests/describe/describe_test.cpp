// describe(): what it says is what the other functions do.

#include <deeprec/describe.hpp>

#include <deeprec/exec/inline_executor.hpp>

#include <doctest/doctest.h>
#include <ostream>
#include <sstream>
#include <string>
#include <typeinfo>

using namespace deeprec;

TEST_CASE("describe: version, ABI name, exceptions and contracts are this unit's") {
  const description d = describe();
  CHECK(d.version == "0.2.0");
  const std::string mangled = typeid(description).name();
  CAPTURE(mangled);
  CHECK(mangled.find(std::to_string(d.abi.size()) + d.abi) != std::string::npos);
  CHECK(d.exceptions);
#if DEEPREC_CONTRACTS
  CHECK(d.contracts);
#else
  CHECK(!d.contracts);
#endif
}

TEST_CASE("describe: the ISA and why") {
  const description d = describe();
  CHECK(d.instruction_set == active_isa());
  CHECK(d.best_instruction_set == best_isa());
  CHECK(d.isa_reason != "");

  using detail::why_this_isa;
  CHECK(why_this_isa(isa::avx512, isa::avx512, nullptr) == "the best that this machine runs");
  CHECK(why_this_isa(isa::avx512, isa::avx2, "avx2") == "DEEPREC_ISA=avx2");
  CHECK(why_this_isa(isa::avx2, isa::avx2, "avx512") ==
        "DEEPREC_ISA=avx512 asks for more than this machine has");
  CHECK(why_this_isa(isa::avx2, isa::avx2, "fast") ==
        "DEEPREC_ISA=fast names no instruction set, and changes nothing");
  CHECK(why_this_isa(isa::avx2, isa::avx2, "") ==
        "DEEPREC_ISA= names no instruction set, and changes nothing");
  CHECK(why_this_isa(isa::avx512, isa::avx512, "avx2") ==
        "DEEPREC_ISA=avx2 was set after the choice was made");
  CHECK(why_this_isa(isa::avx512, isa::avx2, nullptr) == "DEEPREC_ISA was set when the choice was made");
}

TEST_CASE("describe: the tuning and what changed it") {
  const description d = describe();
  CHECK(to_string(d.tuning) == to_string(host_tuning()));
  kernel_tuning again;
  CHECK(detail::apply_tuning(again, to_string(d.tuning)).empty());
  CHECK(to_string(again) == to_string(d.tuning));
  CHECK(to_string(d).find("\ntuning       " + to_string(d.tuning) + ": ") != std::string::npos);
  using detail::why_this_tuning;
  CHECK(why_this_tuning(nullptr) == "for the caches of this machine");
  CHECK(why_this_tuning("row_ns=3") == "DEEPREC_TUNING=row_ns=3");
  CHECK(why_this_tuning("row_ns=3,ros_ns=4") ==
        "DEEPREC_TUNING=row_ns=3,ros_ns=4, of which ros_ns=4 changes nothing");
  CHECK(why_this_tuning("bytes_per_us=0") ==
        "DEEPREC_TUNING=bytes_per_us=0, of which bytes_per_us=0 changes nothing");
}

TEST_CASE("describe: threads are those of the affinity mask and of the control groups") {
  description d = describe();
  CHECK(d.cpus == usable_cpus());
  CHECK(d.cpu_quota == cpu_quota());
  CHECK(d.threads == thread_pool().concurrency());
  d.cpus = {0, 1, 2, 5};
  d.machine_cpus = 8;
  d.cpu_quota = 0;
  d.threads = 4;
  CHECK(to_string(d).find("\nthreads      4, on processors 0-2 5 of 8\n") != std::string::npos);
  d.cpu_quota = 2;
  d.threads = 2;
  CHECK(to_string(d).find(
            "\nthreads      2, on processors 0-2 5 of 8: the control groups grant time for 2\n") !=
        std::string::npos);
  CHECK(detail::ranges({0, 1, 2, 3, 8, 10, 11}) == "0-3 8 10-11");
  CHECK(detail::ranges({5}) == "5");
  CHECK(detail::ranges({}) == "");
}

TEST_CASE("describe: pages are what the shared resource's memory lies on") {
  CHECK(describe().pages == description::page_kind::nothing_mapped);
  constexpr std::size_t bytes = 8 * huge_page_size;
  void* block = huge_page_resource::shared()->allocate(bytes);
  CHECK(describe().page_bytes.mapped == bytes);
  const inline_executor executor;
  prefault(executor, block, bytes);
  const description d = describe();
  if (d.page_bytes.resident > 0) {  // /proc is there
    CHECK(d.pages != description::page_kind::nothing_touched);
    CHECK((d.pages == description::page_kind::transparent_huge) ==
          (d.page_bytes.transparent_huge * 2 >= d.page_bytes.resident));
  }
  huge_page_resource::shared()->deallocate(block, bytes);
  CHECK(describe().pages == description::page_kind::nothing_mapped);

  using detail::kind_of_pages;
  const auto report = [](std::size_t mapped, std::size_t reserved, std::size_t transparent,
                         std::size_t resident) {
    huge_page_report made;
    made.mapped = mapped, made.explicit_huge = reserved;
    made.transparent_huge = transparent, made.resident = resident;
    return made;
  };
  CHECK(kind_of_pages(report(0, 0, 0, 0)) == description::page_kind::nothing_mapped);
  CHECK(kind_of_pages(report(10, 0, 0, 0)) == description::page_kind::nothing_touched);
  CHECK(kind_of_pages(report(10, 0, 0, 4)) == description::page_kind::ordinary);
  CHECK(kind_of_pages(report(10, 0, 1, 4)) == description::page_kind::mixed);
  CHECK(kind_of_pages(report(10, 0, 2, 4)) == description::page_kind::transparent_huge);
  CHECK(kind_of_pages(report(10, 10, 0, 0)) == description::page_kind::explicit_huge);
  CHECK(kind_of_pages(report(10, 2, 0, 8)) == description::page_kind::mixed);
}

TEST_CASE("describe: a backend that is not there says why") {
  const description here = describe();
  REQUIRE(here.backends.size() == 2);
  for (const backend_description& backend : here.backends) {
    CAPTURE(backend.name);
    CHECK(backend.detail != "");
    CHECK((backend.compiled_in || !backend.usable));
  }
#if defined(DEEPREC_WITH_ONEDNN) && DEEPREC_WITH_ONEDNN
  CHECK(here.backends[0].usable);
#endif
  const description none = describe<detail::without_onednn, detail::without_cuda>();
  CHECK(none.backends[0].detail == "not compiled in: link deeprec::onednn");
  CHECK(none.backends[1].detail == "not compiled in: link deeprec::cuda");
}

TEST_CASE("describe: the text has a line for everything") {
  const description d = describe();
  std::ostringstream written;
  written << d;
  const std::string text = written.str();
  CHECK(text == to_string(d));
  for (const char* name : {"deeprec 0.2.0 (v", "\nisa ", "\nthreads ", "\ntable pages ", "\noneDNN ",
                           "\nCUDA ", "\nexceptions ", "\ncontracts "}) {
    CAPTURE(name);
    CHECK(text.find(name) != std::string::npos);
  }
  CHECK(text.back() == '\n');
}
