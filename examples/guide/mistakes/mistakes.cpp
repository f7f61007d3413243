// The mistakes that the pages of docs/guide list, made on purpose: prints the page and the message. The test
// guide_pages looks for each line in its page.
#include <deeprec/deeprec.hpp>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>
using namespace deeprec;

namespace {

thread_pool two(2);  // threads
inline_executor here;
std::vector<float> memory(64 * 64);
const std::vector<std::int64_t> offsets{0, 2, 3}, ids{7, 9, 1};
const jagged_view batch_of_two(offsets.data(), 2, ids.data(), 3);

matrix_view<float> matrix(index_t rows, index_t columns) { return {memory.data(), rows, columns}; }

void say(const char* page, const status& s) { std::printf("%s: %s\n", page, s.message().c_str()); }
template <class T>
void say(const char* page, const result<T>& r) {
  std::printf("%s: %s\n", page, r ? "ok" : r.fault().message().c_str());
}
template <class F>
void say_thrown(const char* page, F f) {
  try {
    f();
    std::printf("%s: ok\n", page);
  } catch (const error& thrown) {
    std::printf("%s: %s\n", page, thrown.what());
  }
}

void of_table() {
  say_thrown("01-table", [] { dense_table<f32_rows>(1'000'000'000'000'000, 64); });
  dense_table<f32_rows> plain(10, 4);
  say("01-table", update(here, plain.view(), batch_of_two, combiner::sum, matrix(2, 4), adagrad{}));
  const float* nowhere = nullptr;
  say("01-table",
      lookup(here, as_table(matrix_view(nowhere, 10, 4)), batch_of_two, combiner::sum, matrix(2, 4)));
}

void of_batch() {
  dense_table<f32_rows> table(10, 4);
  const auto pool = [&](auto bags) {
    say("02-batch", lookup(here, table.view(), bags, combiner::sum, matrix(2, 4)));
  };
  const std::vector<std::int64_t> lengths{2, 1, 3}, far{0, 2, 4};
  pool(jagged_view(lengths.data(), 2, ids.data(), 3));
  pool(jagged_view(far.data(), 2, ids.data(), 3));
  const std::vector<float> weights{1, 1, std::nanf("")};
  pool(jagged_view(offsets.data(), 2, ids.data(), 3, weights.data()));
  pool(fixed_hotness_view(ids.data(), 3, 1));
}

void of_lookup() {
  dense_table<f32_rows> table(10, 4);
  const std::vector<std::int64_t> bad{7, 10, 1};
  say("03-lookup",
      lookup(here, table.view(), jagged_view(offsets.data(), 2, bad.data(), 3), combiner::sum, matrix(2, 4)));
  say("03-lookup", lookup(here, table.view(), batch_of_two, combiner::sum, matrix(2, 8)));
  say("03-lookup", lookup(here, table.view(), batch_of_two, combiner::concat, matrix(2, 4)));
  const std::vector<float> weights{1, 1, 1};
  say("03-lookup", lookup(here, table.view(), jagged_view(offsets.data(), 2, ids.data(), 3, weights.data()),
                          combiner::max, matrix(2, 4)));
}

void of_update() {
  dense_table<f32_rows> plain(10, 4), other(10, 4, state_of<momentum>);
  say("04-update", update(here, plain.view(), batch_of_two, combiner::sum, matrix(2, 4), adagrad{}));
  say("04-update", update(here, other.view(), batch_of_two, combiner::sum, matrix(2, 4), adagrad{}));
  dense_table<f32_rows> table(10, 4, state_of<adagrad>);
  say("04-update", update(here, table.view(), batch_of_two, combiner::sum, matrix(3, 4), adagrad{}));
}

void of_tables() {
  dense_table<f32_rows> first(10, 4, state_of<adagrad>), second(5, 4, state_of<adagrad>);
  feature_group<adagrad> group;
  group.add(first.view(), combiner::sum);
  group.add(second.view(), combiner::sum);
  std::vector<jagged_view<>> bags(2, batch_of_two);
  say("05-tables", lookup(here, group, bags, matrix(2, 8)));
  const std::vector<std::int64_t> small{1, 2, 3};
  bags[1] = jagged_view(offsets.data(), 2, small.data(), 3);
  say("05-tables", lookup(here, group, bags, matrix(2, 4)));
  bags.pop_back();
  say("05-tables", lookup(here, group, bags, matrix(2, 8)));
  feature_group<adagrad> stateless;
  dense_table<f32_rows> plain(10, 4);
  stateless.add(plain.view(), combiner::sum);
  say("05-tables", update(here, stateless, bags, matrix(2, 4), adagrad{}));
}

void of_files() {
  dense_table<f32_rows> table(10, 4, state_of<adagrad>), narrow(10, 2, state_of<adagrad>),
      other(10, 4, state_of<momentum>);
  say("06-files", load_tables("absent.drt", {name_table("items", table.view())}));
  save_tables("mistakes.drt", {name_table("items", table.view())}).or_throw();
  say("06-files", load_tables("mistakes.drt", {name_table("items", narrow.view())}));
  say("06-files", load_tables("mistakes.drt", {name_table("items", other.view())}));
  say("06-files", load_tables("mistakes.drt", {name_table("users", table.view())}));
  std::remove("mistakes.drt");
  std::ofstream("mistakes.tsv") << "1\t2\t3\n";
  auto reader = read_files(here, criteo_format{}, {"mistakes.tsv"}).or_throw();
  sparse_batch batch;
  say("06-files", reader.next(batch, 10));
  std::remove("mistakes.tsv");
}

void of_pipeline() {
  int next = 0;
  const auto read = [&]() -> std::optional<int> { return next < 9 ? std::optional(next++) : std::nullopt; };
  const auto refuse = [](int i) -> status {
    return i < 3 ? status() : status(errc::invalid_value, "a row without labels");
  };
  pipeline refusing(two, source("read", read) | stage("parse", refuse) | sink("train", [](int) {}));
  say("07-pipeline", refusing.run());
  next = 0;
  pipeline throwing(two,
                    source("read", read) | sink("train", [](int) { throw std::runtime_error("no memory"); }));
  say_thrown("07-pipeline", [&] { say("07-pipeline", throwing.run()); });
  say_thrown("07-pipeline", [] { staging_queue<int> none(0); });
}

void of_graph() {
  const auto one = [](int& out) { return out = 1, true; };
  int counter = 0;
  {
    step_graph g;
    const auto v = g.variable("counter", counter);
    g.add("count", [](int& c) { ++c; }, g.write(v));
    say("08-step-graph", staged_program::compile(g));
  }
  {
    step_graph g;
    const auto v = g.variable("counter", counter);
    const auto before = g.add<int>(
        "peek", [](int x, int c, int& out) { out = x + c; }, g.source<int>("read", one), g.read(v));
    g.add("count", [](int x, int& c) { c += x; }, g.stage("io", before), g.write(v)).role(op_role::apply);
    say("08-step-graph", g.flat());
  }
  {
    step_graph g;
    g.add("count", [](int) {}, g.source<int>("read", one)).role(op_role::apply);
    say("08-step-graph", g.flat());
  }
  {
    step_graph g;
    const auto x = g.source<int>("read", one);
    g.add("parse", [](int) { return status(errc::invalid_value, "a row without labels"); }, g.stage("io", x));
    staged_program p = staged_program::compile(g).or_throw();
    say("08-step-graph", p.run(two, [](step_state&) {}));
  }
}

void of_models() {
  mlp<> net({8, 4, 1});
  say("09-models", net.forward(here, matrix(16, 6)));
  say("09-models", net.backward(here, matrix(16, 1)));
  net.forward(here, matrix(16, 8)).or_throw();
  double loss = 0;
  say("09-models", logistic_loss_forward(here, net.output(), matrix(1, 16), loss));
}

void of_serving() {
  const auto make = [](index_t i) { return i; };
  say_thrown("11-serving", [&] { session_group none(0, make); });
  session_group one(1, make);
  const auto held = one.acquire();
  say("11-serving", one.acquire(within(std::chrono::milliseconds(1))).outcome());
}

}  // namespace

int main() {
  of_table();
  of_batch();
  of_lookup();
  of_update();
  of_tables();
  of_files();
  of_pipeline();
  of_graph();
  of_models();
  of_serving();
}
