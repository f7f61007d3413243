// Tables with their optimizer's state, and what else training needs, in one file. A stack is a table too:
// name_table("net", as_table(net.parameters())).
#include <deeprec/deeprec.hpp>

#include <algorithm>
#include <cstdio>
using namespace deeprec;

int main() {
  thread_pool pool;
  dense_table<f32_rows> items(1000, 16, state_of<adagrad>), users(500, 8, state_of<adagrad>);
  items.initialize(pool, row_init::uniform{.seed = 1});
  users.initialize(pool, row_init::uniform{.seed = 2});
  save_tables("model.drt", {name_table("items", items.view()), name_table("users", users.view())},
              {.step = 1000, .numbers = {{"learning rate", 0.05}}})
      .or_throw();

  dense_table<f32_rows> again(1000, 16, state_of<adagrad>), others(500, 8, state_of<adagrad>);
  const training_state at =
      load_tables("model.drt", {name_table("items", again.view()), name_table("users", others.view())})
          .or_throw();
  const bool same = std::equal(items.view().data(), items.view().data() + items.bytes(), again.view().data());
  std::printf("step %lu, rate %g, %s rows\n", at.step, *at.real("learning rate"), same ? "equal" : "other");
  std::remove("model.drt");
}
