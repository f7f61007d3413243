// The latency of lookups that Python exported, without Python, each call by itself on one thread:
//
//   serve_latency OPS.so OURS.pt2 LIBRARIES THEIRS.pt ROWS TABLES BATCH IDS CALLS
//
// OURS.pt2 is a collection by AOTInductor, THEIRS.pt FBGEMM's tables as TorchScript, whose LIBRARIES are
// separated by colons. Both have the same rows and get the same batches; their results are compared first.
// Prints the 99th percentile of both and their medians, in microseconds: ours, theirs, ours, theirs.
#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/script.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

using clock_type = std::chrono::steady_clock;

static void load(const std::string& path) {
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) throw std::runtime_error(dlerror());
}

struct batch {
  at::Tensor values, offsets;
};

static std::vector<batch> batches_of(std::int64_t rows, std::int64_t bags, std::int64_t ids) {
  std::mt19937_64 draw(1);
  std::vector<batch> made(256);
  for (batch& one : made) {
    one.values = at::empty({bags * ids}, at::kLong);
    auto* const values = one.values.data_ptr<std::int64_t>();
    std::generate(values, values + bags * ids,
                  [&] { return static_cast<std::int64_t>(draw() % static_cast<std::uint64_t>(rows)); });
    one.offsets = at::arange(bags + 1, at::kLong) * ids;
  }
  return made;
}

static double percentile(std::vector<double> values, double share) {
  const auto at = static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<std::size_t>(at)];
}

int main(int argc, char** argv) try {
  if (argc != 10) return std::fputs("serve_latency: wrong arguments\n", stderr), 2;
  at::set_num_threads(1);
  load(argv[1]);
  std::istringstream libraries(argv[3]);
  for (std::string path; std::getline(libraries, path, ':');) load(path);
  const std::int64_t rows = std::atoll(argv[5]), tables = std::atoll(argv[6]), size = std::atoll(argv[7]);
  const std::int64_t ids = std::atoll(argv[8]), calls = std::atoll(argv[9]);
  const c10::InferenceMode no_gradients;
  torch::inductor::AOTIModelPackageLoader exported(argv[2]);
  torch::jit::Module scripted = torch::jit::load(argv[4]);
  const auto ours = [&](const batch& one) { return exported.run({one.values, one.offsets}).at(0); };
  const auto theirs = [&](const batch& one) {
    return scripted.forward({one.values, one.offsets}).toTensor();
  };
  const std::vector<batch> batches = batches_of(rows, tables * size, ids);
  for (const batch& one : batches)
    if (!at::allclose(ours(one), theirs(one), 1e-5, 1e-5)) throw std::runtime_error("results differ");

  std::vector<double> times[2];
  const auto run = [&](std::vector<double>& into, const auto& call, std::int64_t first) {
    for (std::int64_t k = first; k < first + 50; ++k) {
      const auto begin = clock_type::now();
      const at::Tensor out = call(batches[static_cast<std::size_t>(k) % batches.size()]);
      into.push_back(std::chrono::duration<double, std::micro>(clock_type::now() - begin).count());
    }
  };
  for (std::int64_t k = 0; k < calls; k += 50) {
    run(times[0], ours, k);
    run(times[1], theirs, k + 25);
  }
  std::printf("%g %g %g %g\n", percentile(times[0], 0.99), percentile(times[1], 0.99),
              percentile(times[0], 0.5), percentile(times[1], 0.5));
  return 0;
} catch (const std::exception& fault) {
  return std::fprintf(stderr, "%s\n", fault.what()), 1;
}
