// The options of how a model is trained: rates, optimizer, validation; and what values of options must be.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace ctr {

struct options;

void add_training_options(CLI::App& app, options& o);
/// What is wrong with those that were given; empty: nothing.
std::string wrong_training_options(const CLI::App& app, const options& o, bool of_histories);

/// What is wrong with the value of an option; empty: nothing.
std::string wrong_input(std::string& path);
std::string wrong_seed(std::string& text);
/// The values of an option that is given once or more: one a line.
void take_inputs(CLI::Option* option, const CLI::Validator& each);
/// Of options that write a file.
CLI::Validator output_path();

}  // namespace ctr
