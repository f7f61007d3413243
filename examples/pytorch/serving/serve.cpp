// Runs a collection that Python exported, without Python: the library of ops, the exported program, a batch.
//
//   serve OPS.so PROGRAM.pt2|PROGRAM.pt VALUES OFFSETS       serve _ops.so tables.pt2 3,1,4 0,2,3
//
// PROGRAM.pt2 is of AOTInductor, PROGRAM.pt of TorchScript. Prints the pooled rows of each bag.
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/script.h>

#include <cstdio>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

static at::Tensor list_of(const char* text) {
  std::vector<int64_t> numbers;
  std::istringstream rest(text);
  for (std::string one; std::getline(rest, one, ',');) numbers.push_back(std::stoll(one));
  return at::tensor(numbers, at::kLong);
}

int main(int argc, char** argv) try {
  if (argc != 5) return std::fputs("usage: serve OPS.so PROGRAM.pt2|PROGRAM.pt VALUES OFFSETS\n", stderr), 2;
  if (dlopen(argv[1], RTLD_NOW) == nullptr) return std::fprintf(stderr, "serve: %s\n", dlerror()), 1;
  const std::string program = argv[2];
  const std::vector<at::Tensor> batch{list_of(argv[3]), list_of(argv[4])};
  const c10::InferenceMode no_gradients;
  at::Tensor out;
  if (program.ends_with(".pt2")) {
    torch::inductor::AOTIModelPackageLoader model(program);
    out = model.run(batch).at(0);
  } else {
    out = torch::jit::load(program).forward({batch[0], batch[1]}).toTensor();
  }
  const auto rows = out.accessor<float, 2>();
  for (int64_t bag = 0; bag < rows.size(0); ++bag) {
    for (int64_t d = 0; d < rows.size(1); ++d) std::printf("%s%.9g", d > 0 ? " " : "", double{rows[bag][d]});
    std::printf("\n");
  }
  return 0;
} catch (const std::exception& fault) {
  return std::fprintf(stderr, "serve: %s\n", fault.what()), 1;
}
