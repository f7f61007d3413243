#include "training_options.hpp"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "data_schema.hpp"
#include "models/ctr_data.hpp"
#include "opened_text.hpp"
#include "options.hpp"

namespace ctr {

namespace {

/// A number between 0 and 1.
std::optional<double> fraction_in(const std::string& text) {
  double fraction = 0;
  const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), fraction);
  if (wrong != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return fraction > 0 && fraction < 1 ? std::optional(fraction) : std::nullopt;
}

/// Not NaN, which CLI::Range takes.
CLI::Validator real_in(double least, double most) {
  char words[64];
  std::snprintf(words, sizeof words, "FLOAT in [%g - %g]", least, most);
  return {[least, most, range = std::string(words)](std::string& text) {
            double value = 0;
            const bool is_number = CLI::detail::lexical_cast(text, value);
            return is_number && value >= least && value <= most ? std::string()
                                                                : text + " must be a " + range;
          },
          words};
}

constexpr index_t most_table_rows = index_t{1} << 26;  // 26 columns of them are numbers of 32 bits

std::string wrong_table_rows(const std::string& text) {
  if (text == "auto") return {};
  index_t rows = 0;
  const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), rows);
  if (wrong == std::errc() && end == text.data() + text.size() && rows >= 1 && rows <= most_table_rows) {
    return {};
  }
  return text + " must be auto, or a number from 1 to " + std::to_string(most_table_rows);
}

/// The number of a column with one token, from 1; 0: it has no such name.
int token_column(const ctr_columns& columns, const std::string& name) {
  for (index_t t = 0; t < columns.tokens; ++t) {
    const bool has_one = !columns.has_bags() || columns.bags[static_cast<std::size_t>(t)] == token_bag::one;
    if (has_one && columns.slot_name(columns.integers + t) == name) return static_cast<int>(t) + 1;
  }
  return 0;
}
std::string wrong_group(const ctr_columns& columns, const std::string& name) {
  const std::string all =
      columns.names.empty() ? "C1 to C" + std::to_string(columns.tokens) : "a column of use token";
  return "--group: " + name + " must be a column of tokens, " + all;
}

/// Empty: text is a fraction of the rows, or an input.
std::string wrong_valid(std::string& text) {
  return fraction_in(text) || wrong_input(text).empty()
             ? std::string()
             : text + " must be a file, or a fraction between 0 and 1";
}

}  // namespace

std::string wrong_input(std::string& path) {
  if (path.empty()) return "an empty path names no file";
  if (path.find('\n') != std::string::npos) return "a path must not have a line end";
  const bool is =
      path == "-" || ::access(path.c_str(), F_OK) == 0 || path.find_first_of("*?[") != std::string::npos;
  return is ? std::string() : "no such file: " + path;
}

std::string wrong_seed(std::string& text) {
  std::uint64_t seed = 0;
  const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (wrong == std::errc() && end == text.data() + text.size()) return {};
  return text + " must be a whole number from 0 to 2^64 - 1";
}

void take_inputs(CLI::Option* option, const CLI::Validator& each) {
  option->check(each)->expected(1, -1)->allow_extra_args()->multi_option_policy(CLI::MultiOptionPolicy::Join);
}

CLI::Validator output_path() {
  return {[](std::string& path) {
            return path.empty()  ? "an empty path names no file"
                   : path == "-" ? "-: the standard output is /dev/stdout here, a file of this name ./-"
                                 : "";
          },
          "FILE"};
}

void find_group(options& o) {
  if (o.group.empty()) return;
  const ctr_columns columns = o.columns != nullptr ? o.columns->columns : ctr_columns();
  o.group_column = token_column(columns, o.group);
  if (o.group_column == 0) throw failure(wrong_group(columns, o.group));
  if (o.columns == nullptr) return;
  for (const deeprec::csv_column& column : o.columns->format.columns) {
    if (column.use == deeprec::csv_use::group)
      throw failure("--group is not for a schema with a column of use group (has " + column.name + ')');
  }
}

double options::valid_fraction() const { return fraction_in(valid).value_or(0); }

void add_training_options(CLI::App& app, options& o) {
  const CLI::Validator rate = real_in(1e-9, 1e3);
  app.add_option("--learning-rate", o.learning_rate,
                 "of the stacks (default: the model's, 0.1 of lr, 0.03 of din, 0.05 of dssm, 0.01 of others)")
      ->check(rate);
  app.add_option("--row-learning-rate", o.row_learning_rate,
                 "of the rows of tables (default: the model's, 0.04 of lr, 0.05 of din and dssm, 0.02 of "
                 "others); those of the wide part of wdl and deepfm keep their ratio to it, a half")
      ->check(rate);
  app.add_option("--optimizer", o.optimizer,
                 "of stacks and rows: adagrad (of rows: one sum for each), or sgd")
      ->check(CLI::IsMember({"adagrad", "sgd"}))
      ->capture_default_str();
  app.add_option("--l2", o.l2,
                 "what a weight adds to its gradient, times this: of stacks, and of rows that a batch uses")
      ->check(real_in(0, 1e3))
      ->capture_default_str();
  app.add_option("--dropout", o.dropout,
                 "of dlrm, wdl, deepfm and dcn: the probability with which a training step drops the output "
                 "of a unit "
                 "of a hidden layer, drawn for each sample and unit")
      ->check(real_in(0, 0.99))
      ->capture_default_str();
  app.add_option("--schedule", o.schedule,
                 "of both rates: constant; step, times --decay after each --decay-every steps; cosine, down "
                 "to --last-rate; smooth, a smooth warm-up, then as step")
      ->check(CLI::IsMember({"constant", "step", "cosine", "smooth"}))
      ->capture_default_str();
  app.add_option("--warm-up", o.warm_up, "steps in which the rates rise to what they are (not of step)")
      ->check(CLI::Range(index_t{0}, index_t{1} << 40))
      ->capture_default_str();
  app.add_option("--decay", o.decay, "of --schedule step and smooth")
      ->check(real_in(0, 1))
      ->capture_default_str();
  app.add_option("--decay-every", o.decay_every, "of --schedule step and smooth, in steps")
      ->check(CLI::Range(index_t{1}, index_t{1} << 40))
      ->capture_default_str();
  app.add_option("--decay-steps", o.decay_steps,
                 "of --schedule cosine: the step from which on the rates are the last ones (default: the end "
                 "of --epochs)")
      ->check(CLI::Range(index_t{1}, index_t{1} << 40));
  app.add_option("--last-rate", o.last_rate,
                 "of --schedule cosine: the last rates, as a share of the full ones")
      ->check(real_in(0, 1))
      ->capture_default_str();
  app.add_option(
         "--schema", o.schema,
         "what the columns of --data are, as JSON: docs/train_ctr_schema.md (default: those of Criteo's "
         "logs). The file of --save keeps it")
      ->check(CLI::ExistingFile);
  app.add_option("--skip-bad", o.skip_bad,
                 "leave out so many rows that can't be parsed, of each of --data, --test and --valid, or of "
                 "--evaluate; the first ones are named")
      ->check(CLI::Range(index_t{0}, index_t{1} << 40))
      ->capture_default_str();
  app.add_option("--table-rows", o.table_rows,
                 "ids that a column of hashed tokens has; auto: about four for each that the training rows "
                 "use (default: 131072)")
      ->check(CLI::Validator(wrong_table_rows, "N|auto"));
  take_inputs(app.add_option("--valid", o.valid,
                             "rows that validate between steps: inputs as --data has, or a fraction of the "
                             "rows that would train"),
              CLI::Validator(wrong_valid, "FILE|FRACTION"));
  app.add_option("--valid-every", o.valid_every,
                 "validate after so many steps as well as after each epoch; 0: don't")
      ->check(CLI::Range(index_t{0}, index_t{1} << 40))
      ->capture_default_str();
  app.add_option("--patience", o.patience,
                 "with --valid (din and dssm: --validate) end when so many validations in a row were no "
                 "better than the "
                 "best one, by their AUC; "
                 "--save writes the weights of the best one, which test (0: train to the end, and test with "
                 "the last weights)")
      ->check(CLI::Range(index_t{0}, index_t{1} << 40))
      ->capture_default_str();
  app.add_option(
      "--group", o.group,
      "a column with a token, C1 to C26 or one of the schema, for instance of users: the AUC of the "
      "rows of each as well, their mean by rows");
  app.add_flag("--new-data", o.new_data,
               "of --load: train on with other rows than the file was trained with, from their first one: "
               "the next day's. The model keeps its tables, and what it knows of tokens");
  take_inputs(
      app.add_option(
          "--evaluate", o.evaluate,
          "train nothing: how good the model of --load is for the rows of these inputs, which have labels"),
      CLI::Validator(wrong_input, "FILE"));
  app.add_option("--log", o.log,
                 "write what happens to this file as it happens: a line of JSON for each --log-every steps, "
                 "and for each pass over rows that validate or test")
      ->check(output_path());
  app.add_option("--tensorboard", o.tensorboard,
                 "write the same numbers as event files for TensorBoard into a folder of this one for each "
                 "model and seed")
      ->check(CLI::Validator(
          [](std::string& path) { return path.empty() ? "an empty path names no folder" : ""; }, "FOLDER"));
  app.add_option("--report", o.report,
                 "write a page, report.html, into this folder: curves, calibration, ROC, predictions, time")
      ->check(CLI::Validator(
          [](std::string& path) { return path.empty() ? "an empty path names no folder" : ""; }, "FOLDER"));
  app.add_option("--log-every", o.log_every, "steps from one line of --log to the next")
      ->check(CLI::Range(index_t{1}, index_t{1} << 40))
      ->capture_default_str();
  app.add_flag(
      "--importance", o.importance,
      "how much the log loss of the test rises where the values of a slot change places among its "
      "rows, for each count and token: as many more passes over the rows that test as there are slots");
  app.add_option("--repeat", o.repeat,
                 "train with so many seeds, --seed and those behind it: the mean and the standard deviation")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
}

std::string wrong_training_options(const CLI::App& app, const options& o, bool of_histories) {
  const auto given = [&](const char* name) { return app.count(name) > 0; };
  for (const auto& [is, name, other] :
       {std::tuple(!o.test.empty(), "--train-fraction", "--test"),
        std::tuple(!o.data.empty(), "--rows", "--data"), std::tuple(!o.data.empty(), "--planted", "--data"),
        std::tuple(!o.synthesize.empty(), "--data", "--synthesize"),
        std::tuple(!o.synthesize.empty(), "--model", "--synthesize"),
        std::tuple(o.optimizer == "sgd", "--initial-squares", "--optimizer sgd, which has none")}) {
    if (is && given(name)) return std::string(name) + " is not for " + other;
  }
  if (o.warm_up > 0 && o.schedule == "step") return "--warm-up is not for --schedule step";
  for (const char* const name : {"--decay", "--decay-every"}) {
    if (given(name) && o.schedule != "step" && o.schedule != "smooth") {
      return std::string(name) + " needs --schedule step or smooth";
    }
  }
  for (const char* const name : {"--decay-steps", "--last-rate"}) {
    if (given(name) && o.schedule != "cosine") return std::string(name) + " needs --schedule cosine";
  }
  if (o.decay_steps > 0 && o.decay_steps < o.warm_up) return "--decay-steps must be at least --warm-up";
  if (!o.table_rows.empty() && of_histories) return "--table-rows is not for din and dssm";
  if (!o.schema.empty() && of_histories) return "--schema is not for din and dssm";
  if (!o.schema.empty() && o.data.empty()) return "--schema needs --data";
  if (!o.group.empty() && o.schema.empty() && !of_histories && token_column({}, o.group) == 0)
    return wrong_group({}, o.group);
  if (given("--log-every") && o.log.empty() && o.report.empty() && o.tensorboard.empty())
    return "--log-every needs --log, --report or --tensorboard";
  if (!o.table_rows.empty() && o.has_raw_keys()) return "--table-rows is not for --keys raw, which grow";
  for (const char* const name : {"--valid-every", "--patience"}) {
    if (given(name) && of_histories && !o.validate) return std::string(name) + " needs --validate";
    if (given(name) && !of_histories && o.valid.empty()) return std::string(name) + " needs --valid";
  }
  if (o.patience > 0 && o.save.empty()) return "--patience needs --save, which has the best weights";
  if (o.patience > 0 && o.save_every > 0) {
    return "--save-every is not for --patience: --save has the best weights";
  }
  if (given("--skip-bad") && o.data.empty()) return "--skip-bad needs --data";
  if (o.new_data && o.load.empty()) return "--new-data needs --load";
  if (o.new_data && !o.table_rows.empty()) {
    return "--table-rows is not for --new-data: the file of --load has the tables";
  }
  if (of_histories) {
    for (const char* const name : {"--valid", "--group", "--new-data", "--importance", "--skip-bad"}) {
      if (given(name)) return std::string(name) + " is not for din and dssm";
    }
  }
  if (o.valid_every > 0 && o.stale_window > 0) {
    return "--valid-every is not for --stale-window: lookups and updates are on their way";
  }
  if (o.repeat > 1) {
    for (const char* const name :
         {"--save", "--load", "--trace", "--graph", "--export", "--synthesize", "--test-rows", "--ranks"}) {
      if (given(name)) return std::string(name) + " is not for --repeat";
    }
    for (const auto& [name, path] :
         {std::pair("--data", &o.data), std::pair("--test", &o.test), std::pair("--valid", &o.valid)}) {
      if (path == &o.valid && o.valid_fraction() > 0) continue;
      const std::vector<std::string> files = files_of(*path);
      const auto pipe = std::find_if(files.begin(), files.end(), is_pipe);
      if (pipe != files.end())
        return std::string(name) + ' ' + *pipe + " is not for --repeat: a pipe can be read once";
    }
  }
  if (o.ranks) {
    for (const char* const name : {"--valid", "--group", "--importance", "--skip-bad"}) {
      if (given(name)) return std::string(name) + " is not for --ranks";
    }
    if (o.optimizer != "adagrad") return "--optimizer " + o.optimizer + " is not for --ranks";
    if (o.l2 > 0) return "--l2 is not for --ranks";
    if (o.has_schedule()) return "--schedule and --warm-up are not for --ranks";
  }
  return {};
}

}  // namespace ctr
