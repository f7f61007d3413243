// The linear regression of DeepRec's GPU MultiStream document: on one stream, and its inputs on streams of
// their own; launch by launch, and as a CUDA graph. With an argument, `document`, only the document's sizes.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "linear_regression.cuh"

using namespace deeprec;

namespace {

constexpr int steps = 10;  // in one plan

/// Median milliseconds between two events around a call.
template <class Call>
float milliseconds(cuda_stream& on, const Call& call) {
  cuda_event begin(true), end(true);
  std::vector<float> times(21);
  for (float& ms : times) {
    begin.record(on).or_throw();
    call();
    end.record(on).or_throw();
    on.synchronize().or_throw();
    cuda_runtime::milliseconds(ms, begin.get(), end.get()).or_throw();
  }
  std::nth_element(times.begin(), times.begin() + 10, times.end());
  return times[10];
}

bool train(int inputs, index_t samples, index_t width) {
  std::printf("%d inputs of %lld x %lld, %d steps\n", inputs, static_cast<long long>(samples),
              static_cast<long long>(width), steps);
  linear_regression::model model(inputs, samples, width);
  for (const int streams : {1, inputs}) {
    const linear_regression::step_work step = linear_regression::make_work(inputs, steps, streams);
    const auto launch = [&](index_t op, cuda_stream& on) {
      return model.launch(step.ops[static_cast<std::size_t>(op)], on);
    };
    cuda_stream_pool pool(streams);
    stream_plan plan;
    plan_streams(step.work, streams, plan).or_throw();
    for (const bool graph : {false, true}) {
      const auto call = [&] { (graph ? pool.replay(plan, launch) : pool.run(plan, launch)).or_throw(); };
      model.reset();
      call();
      pool.synchronize().or_throw();
      const std::string fault = model.fault(steps);
      if (!fault.empty()) {
        std::printf("%s\n", fault.c_str());
        return false;
      }
      std::printf("  %d stream%s, %2lld waits, %s  %.4f ms\n", streams, streams == 1 ? " " : "s",
                  static_cast<long long>(plan.waits()), graph ? "a graph" : "eager  ",
                  static_cast<double>(milliseconds(pool.stream(0), call)));
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("SKIPPED: no CUDA device");
    return 77;
  }
  // As in the document, where all time goes into launches; and with inputs that keep a card busy.
  const bool small = argc > 1 && std::strcmp(argv[1], "document") == 0;
  return train(2, 17, 1) && (small || train(4, 4096, 1024)) ? 0 : 1;
}
