// The options of how a model is trained: rates, optimizer, validation.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace ctr {

struct options;

void add_training_options(CLI::App& app, options& o);
/// What is wrong with those that were given; empty: nothing.
std::string wrong_training_options(const CLI::App& app, const options& o, bool of_histories);

}  // namespace ctr
