// Reports what this process actually uses, for a log or a bug report.
//
//   std::cout << deeprec::describe();
//
//   deeprec 0.2.0 (v0_2_ex_c0)
//   isa          avx512 (the machine has avx512_bf16): DEEPREC_ISA=avx512
//   threads      4, on processors 0-3 8-11: the control groups grant time for 4
//   tuning       lines_ahead=256,least_rows_ahead=8, ...: DEEPREC_TUNING=parked_ns=20000
//   table pages  2 MB, transparent: 1024 MB mapped, 1022 MB resident, 1022 MB on 2 MB pages
//   oneDNN       2.6.3; products are split by the executor, OpenMP held to one thread
//   CUDA         not compiled in: link deeprec::cuda
//   exceptions   on
//   contracts    off
//
// It allocates no tables: the pages are those of the tables that exist at the call.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <iosfwd>
#include <string>
#include <thread>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/isa.hpp>
#include <deeprec/core/kernel_tuning.hpp>
#include <deeprec/detail/description_texts.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/memory/huge_page_resource.hpp>

#if defined(DEEPREC_WITH_ONEDNN) && DEEPREC_WITH_ONEDNN
#  include <oneapi/dnnl/dnnl.h>
#endif
#if defined(DEEPREC_WITH_CUDA) && DEEPREC_WITH_CUDA
#  include <cuda_runtime_api.h>
#endif

namespace deeprec { inline namespace DEEPREC_ABI {

/// A backend that needs an optional component.
struct backend_description {
  const char* name = "";
  bool compiled_in = false;  ///< in the translation unit that called describe()
  bool usable = false;       ///< compiled in, and its runtime works
  std::string detail;        ///< the version, or why it can't be used
};

struct description {
  /// The pages that hold the memory of huge_page_resource::shared().
  enum class page_kind : unsigned char {
    nothing_mapped,    ///< no block of 1 MB or more exists
    nothing_touched,   ///< blocks exist, and none of their pages was touched
    ordinary,          ///< touched, and no huge page was granted
    transparent_huge,  ///< at least half of what was touched is on transparent huge pages
    explicit_huge,     ///< at least half of what was mapped is from the reserved pool
    mixed,             ///< some huge pages, less than half
  };

  std::string version;  ///< 0.2.0
  std::string abi;      ///< the name of the ABI namespace: v0_2_ex_c0

  isa instruction_set = isa::portable;       ///< the default of contexts
  isa best_instruction_set = isa::portable;  ///< the best that the machine supports
  std::string isa_reason;                    ///< why instruction_set was chosen

  kernel_tuning tuning;       ///< host_tuning(), the default of contexts
  std::string tuning_reason;  ///< what changed it, and the first part that was refused

  std::vector<int> cpus;  ///< the affinity mask
  int cpu_quota = 0;      ///< processors' worth of time that control groups grant; 0: no limit
  int threads = 0;        ///< concurrency of a thread_pool() made now: the smaller of the two
  int machine_cpus = 0;   ///< processors of the machine, 0 where unknown

  page_kind pages = page_kind::nothing_mapped;
  huge_page_report page_bytes;
  std::string transparent_huge_pages;  ///< the system's setting: always, madvise, never, unknown

  std::vector<backend_description> backends;

  bool exceptions = false;  ///< of the unit that called describe()
  bool contracts = false;   ///< debug-only checks, of the unit that called describe()
};

constexpr const char* to_string(description::page_kind kind) noexcept {
  switch (kind) {
    case description::page_kind::nothing_mapped:
      return "nothing mapped";
    case description::page_kind::nothing_touched:
      return "nothing touched";
    case description::page_kind::ordinary:
      return "4 KB, the system gave no huge page";
    case description::page_kind::transparent_huge:
      return "2 MB, transparent";
    case description::page_kind::explicit_huge:
      return "2 MB, reserved";
    case description::page_kind::mixed:
      return "mixed";
  }
  return "unknown";
}

namespace detail {

inline description::page_kind kind_of_pages(const huge_page_report& report) noexcept {
  if (report.mapped == 0) return description::page_kind::nothing_mapped;
  if (report.explicit_huge * 2 >= report.mapped) return description::page_kind::explicit_huge;
  if (report.resident == 0 && report.explicit_huge == 0) return description::page_kind::nothing_touched;
  if (report.transparent_huge * 2 >= report.resident) return description::page_kind::transparent_huge;
  return report.transparent_huge + report.explicit_huge > 0 ? description::page_kind::mixed
                                                            : description::page_kind::ordinary;
}

// The components of a translation unit are encoded in a type, so that units which differ don't share a
// function.
struct without_onednn {
  static backend_description describe() {
    return {"oneDNN", false, false, "not compiled in: link deeprec::onednn"};
  }
};
struct without_cuda {
  static backend_description describe() {
    return {"CUDA", false, false, "not compiled in: link deeprec::cuda"};
  }
};

#if defined(DEEPREC_WITH_ONEDNN) && DEEPREC_WITH_ONEDNN
struct with_onednn {
  static backend_description describe() {
    const dnnl_version_t* found = dnnl_version();
    return {"oneDNN", true, true,
            std::to_string(found->major) + '.' + std::to_string(found->minor) + '.' +
                std::to_string(found->patch) +
                (DNNL_CPU_RUNTIME == DNNL_RUNTIME_OMP
                     ? "; products are split by the executor, OpenMP held to one thread"
                     : "; products are split by the executor")};
  }
};
using onednn_here = with_onednn;
#else
using onednn_here = without_onednn;
#endif

#if defined(DEEPREC_WITH_CUDA) && DEEPREC_WITH_CUDA
struct with_cuda {
  static backend_description describe() {
    int version = 0;
    int devices = 0;
    backend_description made{"CUDA", true, false, {}};
    if (cudaRuntimeGetVersion(&version) == cudaSuccess) {
      made.detail = std::to_string(version / 1000) + '.' + std::to_string(version % 1000 / 10) + ", ";
    }
    if (const cudaError_t refused = cudaGetDeviceCount(&devices); refused != cudaSuccess) {
      static_cast<void>(cudaGetLastError());  // later calls must not report this error
      made.detail += std::string("refused: ") + cudaGetErrorString(refused);
    } else {
      made.usable = devices > 0;
      made.detail += std::to_string(devices) + (devices == 1 ? " device" : " devices");
    }
    return made;
  }
};
using cuda_here = with_cuda;
#else
using cuda_here = without_cuda;
#endif

}  // namespace detail

/// Reports what this process actually uses.
///
/// @cost    some ms: reads /proc/self/smaps; with CUDA compiled in, the first call starts its runtime
/// @threads thread-safe
/// @error   none: what can't be determined is reported as unknown
/// @example examples/describe.cpp
template <class Onednn = detail::onednn_here, class Cuda = detail::cuda_here>
[[nodiscard]] description describe() {
  description made;
  made.version = std::to_string(DEEPREC_VERSION_MAJOR) + '.' + std::to_string(DEEPREC_VERSION_MINOR) + '.' +
                 std::to_string(DEEPREC_VERSION_PATCH);
  made.exceptions = DEEPREC_EXCEPTIONS != 0;
  made.contracts = DEEPREC_CONTRACTS != 0;
  made.abi = 'v' + std::to_string(DEEPREC_VERSION_MAJOR) + '_' + std::to_string(DEEPREC_VERSION_MINOR) +
             (made.exceptions ? "_ex" : "_nx") + (made.contracts ? "_c1" : "_c0");
#if defined(__x86_64__) && !DEEPREC_X86
  made.abi += "_p";
#endif
  made.best_instruction_set = best_isa();
  made.instruction_set = active_isa();
  made.isa_reason =
      detail::why_this_isa(made.best_instruction_set, made.instruction_set, std::getenv("DEEPREC_ISA"));
  made.tuning = host_tuning();
  made.tuning_reason = detail::why_this_tuning(std::getenv("DEEPREC_TUNING"));
  made.cpus = usable_cpus();
  made.cpu_quota = cpu_quota();
  made.threads = detail::default_concurrency(made.cpus.size(), made.cpu_quota);
  made.machine_cpus = static_cast<int>(std::thread::hardware_concurrency());
  made.page_bytes = huge_page_resource::shared()->report();
  made.pages = detail::kind_of_pages(made.page_bytes);
  made.transparent_huge_pages = detail::transparent_huge_page_setting();
  made.backends.push_back(Onednn::describe());
  made.backends.push_back(Cuda::describe());
  return made;
}

/// name=value,name=value, as DEEPREC_TUNING has them.
///
/// @cost    O(length); allocates the text
/// @threads reentrant
/// @error   none
[[nodiscard]] inline std::string to_string(const kernel_tuning& tuning) {
  std::string text;
  for (const tuning_value& v : tuning_values) {
    if (!text.empty()) text += ',';
    text += std::string(v.name) + '=' + std::to_string(tuning.*v.value);
  }
  return text;
}

/// Several lines, each ended by a newline.
///
/// @cost    O(length); allocates the text
/// @threads reentrant
/// @error   none
[[nodiscard]] inline std::string to_string(const description& d) {
  std::string text = "deeprec " + d.version + " (" + d.abi + ")\n";
  const auto line = [&text](const char* name, const std::string& value) {
    const std::size_t length = std::strlen(name);
    text += name + std::string(length < 13 ? 13 - length : 1, ' ') + value + '\n';
  };
  line("isa", std::string(to_string(d.instruction_set)) +
                  (d.instruction_set == d.best_instruction_set
                       ? std::string()
                       : std::string(" (the machine has ") + to_string(d.best_instruction_set) + ')') +
                  ": " + d.isa_reason);
  std::string threads = std::to_string(d.threads) + ", on processors " + detail::ranges(d.cpus);
  if (d.machine_cpus > static_cast<int>(d.cpus.size())) {
    threads += " of " + std::to_string(d.machine_cpus);
  }
  if (d.cpu_quota > 0) {
    threads += ": the control groups grant time for " + std::to_string(d.cpu_quota);
  }
  line("threads", threads);
  line("tuning", to_string(d.tuning) + ": " + d.tuning_reason);
  std::string pages = to_string(d.pages);
  const auto megabytes = [](std::size_t bytes) { return std::to_string(bytes >> 20) + " MB"; };
  if (d.pages != description::page_kind::nothing_mapped) {
    pages += ": " + megabytes(d.page_bytes.mapped) + " mapped, " + megabytes(d.page_bytes.resident) +
             " resident, " + megabytes(d.page_bytes.transparent_huge + d.page_bytes.explicit_huge) +
             " on 2 MB pages";
  }
  line("table pages", pages + "; transparent_hugepage is " + d.transparent_huge_pages);
  for (const backend_description& backend : d.backends) line(backend.name, backend.detail);
  line("exceptions", d.exceptions ? "on" : "off");
  line("contracts", d.contracts ? "on" : "off");
  return text;
}

/// Writes to_string(d).
///
/// @cost    as to_string(d)
/// @threads as the stream
/// @error   as the stream
template <class Traits>
std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& out, const description& d) {
  return out << to_string(d);
}

}}  // namespace deeprec::DEEPREC_ABI
