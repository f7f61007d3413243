// A stop token and a trace sink reach every verb, and nothing else does when there is none.
#include "context/heap_counts.hpp"  // before Eigen

#include <doctest/doctest.h>

#include <functional>
#include <memory_resource>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/data/batch_reader.hpp>
#include <deeprec/data/libsvm_format.hpp>
#include <deeprec/dense/layers/mlp.hpp>
#include <deeprec/exec/inline_executor.hpp>

#include "context/every_verb.hpp"

using namespace deeprec_test;

namespace {

/// The begins and ends of verbs, as a line of brackets: "gemm(" ... ")".
struct writing_sink final : trace_sink {
  std::string text;
  void begin(const char* verb) noexcept override { text += std::string(verb) + '('; }
  void end(const char*) noexcept override { text += ')'; }
};

/// Runs a verb with and without a request to stop; a verb that was stopped gets no memory.
class stopper final : public verb_check {
 public:
  explicit stopper(executor_ref on) : verb_check(on) {
    ctx.trace = &sink_;
    ctx.stop = &token_;
  }
  void run(const char* name, const std::function<status(const verb_context&)>& verb) override {
    CAPTURE(std::string(name));
    sink_.text.clear();
    CHECK(verb(ctx).ok());
    const std::string begin = std::string(name).substr(0, std::string(name).find(',')) + '(';
    CHECK(sink_.text.find(begin) != std::string::npos);
    CHECK(sink_.text.back() == ')');

    std::stop_source source;
    token_ = source.get_token();
    sink_.text.clear();
    CHECK(verb(ctx).ok());
    source.request_stop();
    sink_.text.clear();
    std::pmr::memory_resource* const memory = std::exchange(ctx.memory, std::pmr::null_memory_resource());
    const status s = verb(ctx);  // allocates nothing before it looks
    ctx.memory = memory;
    CHECK(s.code() == errc::stopped);
    CHECK(s.message() == "stopped: " + sink_.text.substr(0, sink_.text.find('(')));
    CHECK(sink_.text.find('(') == sink_.text.rfind('('));  // no other verb began
    CHECK(sink_.text.back() == ')');
    token_ = {};
  }

 private:
  writing_sink sink_;
  std::stop_token token_;
};

}  // namespace

TEST_CASE("context: a verb stops before it begins, and is traced from begin to end") {
  inline_executor executor;
  stopper check(executor);
  for_each_verb(check);
}

TEST_CASE("context: a verb that has begun completes, with all verbs that it calls") {
  // Stops when the second product begins.
  struct stopping_sink final : trace_sink {
    std::stop_source source;
    int products = 0;
    void begin(const char* verb) noexcept override {
      if (std::string(verb) == "gemm" && ++products == 2) source.request_stop();
    }
    void end(const char*) noexcept override {}
  } sink;
  const std::stop_token token = sink.source.get_token();
  const std::vector<float> values(3 * 4, 1.0F);
  const matrix_view<const float> input(values.data(), 3, 4);
  inline_executor executor;
  context ctx(executor);
  mlp<> tower({4, 5, 6, 2}, mlp_output::linear, counter_rng(1)),
      same({4, 5, 6, 2}, mlp_output::linear, counter_rng(1));
  REQUIRE(same.forward(ctx, input).ok());
  ctx.stop = &token;
  ctx.trace = &sink;
  CHECK(tower.forward(ctx, input).ok());
  CHECK(sink.products == 3);
  for (index_t i = 0; i < 3; ++i) CHECK(*tower.output().row(i) == *same.output().row(i));
  CHECK(tower.forward(ctx, input).code() == errc::stopped);
  CHECK(sink.products == 3);
}

TEST_CASE("context: a reader that was stopped goes on with the same row") {
  const std::string text = "1 1:1\n1 2:1\n1 3:1\n";
  inline_executor executor;
  std::stop_source source;
  const std::stop_token stop = source.get_token(), none;
  std::stop_token now = none;
  context ctx(executor);
  ctx.stop = &now;
  auto reader = read_text(ctx, libsvm_format{}, text).or_throw();
  sparse_batch batch;
  REQUIRE(reader.next(batch, 1).or_throw() == 1);
  source.request_stop();
  now = stop;
  const auto refused = reader.next(batch, 1);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.fault().code() == errc::stopped);
  CHECK(batch.rows() == 0);
  now = none;
  CHECK(reader.next(batch, 5).or_throw() == 2);
}
