#include <deeprec/plan/trace_recorder.hpp>

#include <doctest/doctest.h>

#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/plan/plan_run.hpp>
#include <deeprec/support/verb.hpp>

#include "plan/task_graphs.hpp"
#include "support/seed.hpp"

using namespace deeprec_test;

namespace {

/// A value of JSON (RFC 8259); `bad` where the text is none.
struct json_value {
  char kind = '0';  // '{', '[', '"', 'n' number
  std::map<std::string, json_value> members;
  std::vector<json_value> elements;
  std::string text;
  double number = 0;
  const json_value& operator[](const std::string& name) const { return members.at(name); }
};

class json_reader {
 public:
  explicit json_reader(const std::string& text) : at_(text.data()), end_(at_ + text.size()) {}
  std::optional<json_value> all() {
    json_value made = value();
    blanks();
    if (bad_ || at_ != end_) return std::nullopt;
    return made;
  }

 private:
  void blanks() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r')) ++at_;
  }
  bool take(char c) {
    blanks();
    if (at_ == end_ || *at_ != c) return false;
    ++at_;
    return true;
  }
  json_value value() {
    json_value made;
    blanks();
    if (bad_ || at_ == end_) return bad_ = true, made;
    made.kind = *at_;
    if (*at_ == '"') {
      made.text = string();
    } else if (take('{')) {
      if (take('}')) return made;
      do {
        blanks();
        std::string name = string();
        if (!take(':')) bad_ = true;
        if (!made.members.emplace(name, value()).second) bad_ = true;
      } while (!bad_ && take(','));
      if (!take('}')) bad_ = true;
    } else if (take('[')) {
      if (take(']')) return made;
      do {
        made.elements.push_back(value());
      } while (!bad_ && take(','));
      if (!take(']')) bad_ = true;
    } else {
      made.kind = 'n';
      const char* const begin = at_;
      if (*at_ == '-') ++at_;
      const char* const whole = at_;
      if (digits() == 0 || (*whole == '0' && at_ != whole + 1)) bad_ = true;
      if (at_ != end_ && *at_ == '.') {
        ++at_;
        if (digits() == 0) bad_ = true;
      }
      made.number = std::atof(std::string(begin, at_).c_str());
    }
    return made;
  }
  std::ptrdiff_t digits() {
    const char* const begin = at_;
    while (at_ != end_ && std::isdigit(static_cast<unsigned char>(*at_)) != 0) ++at_;
    return at_ - begin;
  }
  std::string string() {
    std::string made;
    if (!take('"')) bad_ = true;
    while (!bad_) {
      if (at_ == end_ || static_cast<unsigned char>(*at_) < 0x20) return bad_ = true, made;
      if (*at_ == '"') break;
      if (*at_ != '\\') {
        made += *at_++;
        continue;
      }
      ++at_;
      if (at_ == end_) return bad_ = true, made;
      if (*at_ == '"' || *at_ == '\\') {
        made += *at_++;
      } else if (*at_ == 'u' && end_ - at_ > 4) {
        made += static_cast<char>(std::strtol(std::string(at_ + 1, at_ + 5).c_str(), nullptr, 16));
        at_ += 5;
      } else {
        bad_ = true;
      }
    }
    ++at_;
    return made;
  }

  const char* at_;
  const char* end_;
  bool bad_ = false;
};

struct span_of_json {
  std::string name;
  double begin, end;
};

/// The spans of the JSON by thread; what is wrong with it, or with their nesting.
std::string json_fault(const std::string& text, std::map<int, std::vector<span_of_json>>& threads,
                       std::map<int, std::string>& names) {
  const auto all = json_reader(text).all();
  if (!all) return "not JSON: " + text;
  if ((*all)["displayTimeUnit"].text != "ns") return "the unit is missing";
  double pid = -1;
  for (const json_value& event : (*all)["traceEvents"].elements) {
    if (pid < 0) pid = event["pid"].number;
    if (event["pid"].number != pid) return "two processes";
    const int tid = static_cast<int>(event["tid"].number);
    if (event["ph"].text == "M") {
      if (event["name"].text == "thread_name") names[tid] = event["args"]["name"].text;
      continue;
    }
    if (event["ph"].text != "X") return "an unknown event";
    threads[tid].push_back(
        {event["name"].text, event["ts"].number, event["ts"].number + event["dur"].number});
  }
  for (const auto& [tid, spans] : threads) {
    if (names.count(tid) == 0) return "a thread without a name";
    std::vector<double> open;
    double last = 0;
    for (const span_of_json& s : spans) {
      constexpr double rounding = 1e-6;
      if (s.begin < last - rounding || s.end < s.begin) return "spans are not in order";
      last = s.begin;
      while (!open.empty() && open.back() <= s.begin + rounding) open.pop_back();
      if (!open.empty() && s.end > open.back() + rounding) return s.name + " does not nest";
      open.push_back(s.end);
    }
  }
  return {};
}

}  // namespace

TEST_CASE("trace_recorder: verbs in ops in a run, as JSON that is parsed back") {
  trace_recorder trace({.threads = 2, .spans = 100});
  inline_executor here;
  context ctx{here};
  ctx.trace = &trace;
  task_list list;
  const index_t first =
      list.add("a \"quoted\"\\\n\x01 name", [&] { const detail::verb_call call(ctx, "gemm"); });
  list.add("second",
           [&] {
             const detail::verb_call call(ctx, "update");
             const detail::verb_call inner(ctx, "gather");
           },
           {first});
  list.set_bytes(first, 4096);
  const task_plan plan = task_plan::compile(list).or_throw();
  trace.name_thread("the \"main\" thread, with a name that is too long for it");
  REQUIRE(run_inline(ctx, plan).ok());
  std::map<int, std::vector<span_of_json>> threads;
  std::map<int, std::string> names;
  const std::string text = trace.json("a process");
  CHECK(json_fault(text, threads, names) == "");
  REQUIRE(threads[0].size() == 5);
  CHECK(threads[0][0].name == "a \"quoted\"\\\n\x01 name");
  CHECK(threads[0][1].name == "gemm");
  CHECK(threads[0][2].name == "second");
  CHECK(names[0] == "the \"main\" thread, with a name ");
  const auto all = json_reader(text).all();
  const json_value& event = (*all)["traceEvents"].elements[2];
  CHECK(event["args"]["op"].number == 0);
  CHECK(event["args"]["bytes"].number == 4096);
  CHECK(event["cat"].text == "op");
  const auto spans = trace.spans();
  REQUIRE(spans.size() == 5);
  const int depths[] = {0, 1, 0, 1, 2};
  for (std::size_t i = 0; i < 5; ++i) {
    CHECK(spans[i].depth == depths[i]);
    CHECK(spans[i].op == (depths[i] > 0 ? -1 : i == 0 ? 0 : 1));
  }
  CHECK(trace.dropped() == 0);
  // Broken texts are told from JSON.
  CHECK_FALSE(json_reader(text.substr(0, text.size() - 3)).all());
  CHECK_FALSE(json_reader("{\"a\":\"\n\"}").all());
  CHECK_FALSE(json_reader("{\"a\":01}").all());
  for (const char* const number : {"-1.-5", "1.", ".5", "-", "1-2", "1.2.3", "--1"}) {
    CHECK_FALSE(json_reader(number).all());
  }
}

TEST_CASE("trace_recorder: spans of any time are numbers in the JSON") {
  constexpr std::int64_t least = (std::numeric_limits<std::int64_t>::min)(),
                         most = (std::numeric_limits<std::int64_t>::max)();
  const std::int64_t times[] = {least, -1'000'001, -1500, -1001, -1000, -999, -1,
                                0,     1,          999,   1000,  1500,  most};
  trace_recorder trace;
  std::vector<std::pair<std::int64_t, std::int64_t>> given;
  for (const std::int64_t begin : times) {
    for (const std::int64_t end : times) {
      if (begin > end) continue;
      trace.add({"added", 0, 0, 1}, begin, end);
      given.emplace_back(begin, end);
    }
  }
  const auto all = json_reader(trace.json()).all();
  REQUIRE(all);
  std::size_t i = 0;
  for (const json_value& event : (*all)["traceEvents"].elements) {
    if (event["ph"].text != "X") continue;
    const auto [begin, end] = given.at(i++);
    const double from = static_cast<double>(begin) / 1000;
    const double took = (static_cast<double>(end) - static_cast<double>(begin)) / 1000;
    CHECK(event["ts"].number == doctest::Approx(from).epsilon(1e-12));
    CHECK(event["dur"].number == doctest::Approx(took).epsilon(1e-12));
  }
  CHECK(i == given.size());
  const auto costs = trace.costs();
  REQUIRE(costs.size() == 1);
  CHECK(costs[0].mean_ns > 0);
}

TEST_CASE("trace_recorder: any nesting, ended by failures as well") {
  std::mt19937_64 random(seed());
  thread_pool pool(2);
  for (int round = 0; round < 100; ++round) {
    const task_graph graph = random_graph(random, 1 + random() % 20, 0.1);
    const task_plan plan = task_plan::compile(list_of(graph)).or_throw();
    plan_run run(plan);
    trace_recorder trace({.threads = 4, .spans = 64});
    context ctx{pool};
    ctx.trace = &trace;
    graph_step step(graph);
    step.fails.resize(graph.size());
    if (round % 3 == 0) step.fails[random() % graph.size()] = 1;
    const bool ok = (round % 2 == 0 ? run_on(ctx, run, &step) : run_inline(ctx, plan, &step)).ok();
    CHECK(ok == (round % 3 != 0));
    std::map<int, std::vector<span_of_json>> threads;
    std::map<int, std::string> names;
    const std::string wrong = json_fault(trace.json(), threads, names);
    CHECK_MESSAGE(wrong == "", wrong);
    std::vector<int> recorded(graph.size());
    for (const trace_span& s : trace.spans()) {
      ++recorded[static_cast<std::size_t>(s.op)];
      CHECK(std::string(s.name) == plan.name(s.op));
    }
    CHECK(recorded == step.ran);
    CHECK(trace.dropped() == 0);
  }
#if DEEPREC_EXCEPTIONS
  task_list list;
  list.add("throws", [] { throw std::runtime_error("x"); });
  const task_plan plan = task_plan::compile(list).or_throw();
  trace_recorder trace({.threads = 1, .spans = 10});
  context ctx{pool};
  ctx.trace = &trace;
  CHECK_THROWS_AS(static_cast<void>(run_inline(ctx, plan)), task_error);
  CHECK(trace.spans().size() == 1);
#endif
}

TEST_CASE("trace_recorder: what finds no place is counted") {
  {
    trace_recorder trace({.threads = 1, .spans = 10});
    for (int i = 0; i < 8; ++i) {
      trace.begin("outer");
      trace.begin("inner");
      trace.end("inner");
      trace.end("outer");
    }
    CHECK(trace.spans().size() == 10);
    CHECK(trace.dropped() == 6);
    std::thread([&] {
      trace.begin("homeless");
      trace.end("homeless");
    }).join();
    CHECK(trace.dropped() == 7);
    CHECK(trace.json().find("\"dropped\":7") != std::string::npos);
    trace.clear();
    CHECK(trace.dropped() == 0);
    trace.begin("again");
    CHECK(trace.spans().empty());  // it has not ended
    trace.end("again");
    CHECK(trace.spans().size() == 1);
    trace.end("never begun");
    CHECK(trace.spans().size() == 1);
  }
  trace_recorder trace({.threads = 1, .spans = 200});
  for (int i = 0; i < 100; ++i) trace.begin("deep");
  for (int i = 0; i < 100; ++i) trace.end("deep");
  CHECK(trace.spans().size() == 62);
  CHECK(trace.dropped() == 38);
  trace.begin("next");
  trace.end("next");
  CHECK(trace.spans().back().depth == 0);
  trace_recorder none({.threads = 1, .spans = 0});
  none.begin("a");
  none.end("a");
  CHECK(none.dropped() == 1);
  CHECK(none.spans().empty());
}

TEST_CASE("trace_recorder: threads record while another one reads, and two recorders keep apart") {
  trace_recorder one({.threads = 4, .spans = 2000}), two({.threads = 4, .spans = 2000});
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      one.name_thread("worker " + std::to_string(t));
      for (index_t i = 0; i < 1000; ++i) {
        one.begin("one");
        two.begin_op({"two", i, 8, t});
        two.end_op({"two", i, 8, t});
        one.end("one");
      }
    });
  }
  std::size_t seen = 0;
  for (int i = 0; i < 20; ++i) {
    const auto spans = one.spans();
    CHECK(spans.size() >= seen);
    seen = spans.size();
    for (const trace_span& s : spans) CHECK(std::string(s.name) == "one");
  }
  for (std::thread& t : threads) t.join();
  CHECK(one.spans().size() == 2000);
  const auto spans = two.spans();
  CHECK(spans.size() == 2000);
  for (const trace_span& s : spans) {
    CHECK(std::string(s.name) == "two");
    CHECK(s.bytes == 8);
    CHECK((s.stream == 0 || s.stream == 1));
  }
  CHECK(one.json().find("worker 1") != std::string::npos);
  CHECK(two.json().find("\"stream\":1") != std::string::npos);
  // A recorder in the place of one that has gone: no thread takes it for that one.
  for (int i = 0; i < 3; ++i) {
    const auto next = std::make_unique<trace_recorder>(trace_options{.threads = 1, .spans = 4});
    next->begin("a");
    next->end("a");
    CHECK(next->spans().size() == 1);
  }
}

TEST_CASE("trace_recorder: measured costs are those of the ops") {
  const auto spin = [](int us) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(us);
    while (std::chrono::steady_clock::now() < end) {
    }
  };
  task_list list;
  list.add("short", [&] { spin(100); });
  list.add("long", [&] { spin(1000); });
  list.add("never", {}, 7);
  list.add("short", [&] { spin(200); });
  const task_plan plan = task_plan::compile(list).or_throw();
  trace_recorder trace;
  environment env;
  env.trace = &trace;
  for (int i = 0; i < 5; ++i) REQUIRE(run_inline(env, plan).ok());
  const auto costs = trace.costs();
  REQUIRE(costs.size() == 3);
  for (const trace_cost& c : costs) {
    CHECK(c.count == 5);
    CHECK(c.total_ns == doctest::Approx(5 * c.mean_ns));
  }
  CHECK(measured_costs(plan, trace)[0] >= 99e3);
  CHECK(measured_costs(plan, trace)[1] >= 990e3);
  CHECK(measured_costs(plan, trace)[2] == 7);
  CHECK(measured_costs(plan, trace)[3] >= 198e3);
}
