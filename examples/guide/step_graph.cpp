// A step of training as ops. What lies before the stage runs ahead, on a thread of its own; smart_stage moves
// the hashing there too.
#include <deeprec/deeprec.hpp>

#include <cstdio>
#include <string>
#include <vector>
using namespace deeprec;

int main() {
  constexpr index_t batch = 32, width = 4;
  using text = std::vector<std::string>;
  using id_list = std::vector<std::int64_t>;
  using floats = std::vector<float>;
  using table = dense_table<f32_rows>;
  const auto bags = [](const id_list& ids) { return fixed_hotness_view(ids.data(), batch, 1); };
  const auto matrix = [](auto& v) { return matrix_view(v.data(), batch, index_t(v.size()) / batch); };

  const auto read = [n = 0](text& out) mutable {  // fills a batch; false: the end
    for (out.clear(); out.size() < batch; ++n) out.push_back("item" + std::to_string(n % 9));
    return n <= 100 * batch;
  };
  const auto hash = [](const text& items, id_list& ids, floats& labels) {
    ids.clear(), labels.clear();
    for (const std::string& item : items) {
      ids.push_back(hash_bucket(hash_bytes(item), 1000));
      labels.push_back(item.back() % 2 == 0 ? 1.F : 0.F);  // even items are clicked
    }
  };
  const auto look_up = [=](const step_call& call, const id_list& ids, const table& t, floats& out) {
    out.resize(batch * width);
    return lookup(call.on, t.view(), bags(ids), combiner::sum, matrix(out));
  };
  const auto tower = [=](const step_call& call, const floats& x, mlp<>& net) {
    return net.forward(call.on, matrix(x));
  };
  const auto loss = [=](const step_call& call, const floats& labels, const mlp<>& net, double& out) {
    return logistic_loss_forward(call.on, net.output(), matrix(labels), out);
  };
  const auto backward = [=](const step_call& call, const floats& labels, mlp<>& net) {
    floats slope(batch);
    logistic_loss_backward(call.on, net.output(), matrix(labels), matrix(slope)).or_throw();
    return net.backward(call.on, matrix(slope));
  };
  const auto train = [=](const step_call& call, const id_list& ids, table& t, mlp<>& net) {
    const adagrad optimizer{.learning_rate = 0.1F};
    update(call.on, t.view(), bags(ids), combiner::sum, net.input_gradient(), optimizer).or_throw();
    return net.step(call.on, optimizer);
  };

  thread_pool pool;
  table rows(1000, width, state_of<adagrad>);
  rows.initialize(pool, row_init::uniform{.seed = 1});
  mlp<> layers({width, 8, 1});
  step_graph g;
  const auto items = g.variable("items", rows);
  const auto net = g.variable("net", layers);
  const auto lines = g.stage("io", g.source<text>("read", read));  // the user's cut: behind the reader
  const auto hashed = g.add<id_list, floats>("hash", hash, lines).cost(20e-6);
  const auto pooled = g.add<floats>("lookup", look_up, hashed.get<0>(), g.read(items)).cost(10e-6);
  g.add("tower", tower, pooled, g.write(net)).cost(40e-6);
  const auto mean = g.add<double>("loss", loss, hashed.get<1>(), g.read(net));
  g.add("backward", backward, hashed.get<1>(), g.write(net)).role(op_role::gradient).cost(80e-6);
  g.add("update", train, hashed.get<0>(), g.write(items), g.write(net)).role(op_role::apply).target();

  const flat_graph flat = g.flat().or_throw();
  const stage_cut cut = smart_stage(flat).or_throw();
  std::fputs(explain(flat, cut).c_str(), stdout);
  staged_program program = staged_program::compile(g, cut, {.capacity = 2}).or_throw();
  const auto print = [&](step_state& state) {
    if (state.step() % 33 == 0) std::printf("step %2ld: loss %.1f\n", state.step(), state.get(mean));
  };
  program.run(pool, print).or_throw();
}
