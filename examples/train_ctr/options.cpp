#include "options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <string_view>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/embedding/growing/admission.hpp>

#include "click_models.hpp"
#include "history_models.hpp"
#include "memory_limit.hpp"
#include "training_options.hpp"

namespace ctr {

namespace {

/// A switch as a message names it, and whether it is set.
struct switch_use {
  std::string name;
  bool is_set;
};

/// The first two switches of a step that exclude each other, and why; empty: there are none. All others go
/// with each other.
std::string excluded_pair(const CLI::App& app, const options& o, bool of_histories) {
  const switch_use direct{"--step direct", o.step == "direct"}, graph{"--step graph", o.step == "graph"};
  const switch_use stale{"--stale-window", o.stale_window > 0};
  const switch_use executor{"--executor " + o.executor, !o.executor.empty()},
      beside{executor.name, o.executor == "pool" || o.executor == "cost"};
  const switch_use async{"--async-embedding", o.async_embedding > 0},
      ahead{"--async-embedding", o.async_embedding > 1};
  const switch_use smart{"--smart-stage", o.smart_stage}, fusion{"--fusion", o.fusion};
  const switch_use plan{"--memory-plan", o.memory_plan}, raw{"--keys raw", o.has_raw_keys()};
  const switch_use parts{"--micro-batch " + std::to_string(o.micro_batch),
                         o.micro_batch != 1 && !of_histories};
  const switch_use prefetch{"--prefetch", app.count("--prefetch") > 0},
      no_thread{"--prefetch 0", o.prefetch == 0};
  const switch_use save_every{"--save-every", o.save_every > 0}, exports{"--export", !o.export_to.empty()};
  const switch_use trace{"--trace", !o.trace.empty()}, picture{"--graph", !o.graph.empty()};
  const switch_use ranks{"--ranks", o.ranks}, some_parts{parts.name, o.micro_batch > 1},
      save{"--save", !o.save.empty()}, load{"--load", !o.load.empty()},
      synthesize{"--synthesize", !o.synthesize.empty()};
  const switch_use ttl{"--ttl", o.ttl > 0}, capacity{"--capacity", o.capacity > 0};
  struct exclusion {
    const switch_use &one, &other;
    const char* why;
  };
  constexpr const char *of_graph = "it is of the graph of a step",
                       *by_async = "lookups of a graph run ahead with --async-embedding",
                       *by_timing = "what is evicted would depend on timing",
                       *by_calls = "a step over ranks is made of calls, one after the other",
                       *at_ranks = "a rank has a part of the tables";
  const exclusion all[] = {
      {executor, direct, of_graph},
      {async, direct, of_graph},
      {smart, direct, of_graph},
      {fusion, direct, of_graph},
      {trace, direct, of_graph},
      {picture, direct, of_graph},
      {ranks, executor, by_calls},
      {ranks, async, by_calls},
      {ranks, smart, by_calls},
      {ranks, fusion, by_calls},
      {ranks, trace, by_calls},
      {ranks, picture, by_calls},
      {ranks, graph, by_calls},
      {ranks, stale, by_calls},
      {ranks, some_parts, "each rank has a part of a batch"},
      {ranks, plan, "its arena is that of one process's step"},
      {ranks, raw, "the tables of ranks have a fixed size here"},
      {ranks, save, at_ranks},
      {ranks, load, at_ranks},
      {ranks, exports, at_ranks},
      {ranks, synthesize, "nothing is trained"},
      {stale, graph, by_async},
      {stale, executor, by_async},
      {stale, async, "that is its equal of a graph"},
      {stale, smart, by_async},
      {stale, fusion, by_async},
      {stale, trace, by_async},
      {stale, picture, by_async},
      {stale, prefetch, "a batch is read where its lookup begins"},
      {stale, plan, "steps that are in flight at once would share an arena"},
      {stale, save_every, "lookups are on their way"},
      {stale, ttl, by_timing},
      {stale, capacity, by_timing},
      {async, smart, "what lookups need runs ahead with them"},
      {async, raw, "keys are admitted in the order of steps, before the lookup"},
      {async, no_thread, "a thread looks up ahead"},
      {ahead, save_every, "lookups are on their way"},
      {smart, no_thread, "a thread runs what is ahead"},
      {fusion, raw, "keys have no buckets"},
      {beside, plan, "ops that run at once share no arena"},
      {beside, parts, "the parts of a batch have threads of their own; it needs --micro-batch 1"},
      {exports, raw, "what it writes are numbers of rows in tables of a fixed size"},
  };
  for (const exclusion& of : all) {
    if (of.one.is_set && of.other.is_set) return of.one.name + " is not for " + of.other.name + ": " + of.why;
  }
  return {};
}

std::string version() {
  return "train_ctr " + std::to_string(DEEPREC_VERSION_MAJOR) + '.' + std::to_string(DEEPREC_VERSION_MINOR) +
         '.' + std::to_string(DEEPREC_VERSION_PATCH);
}

/// A row of a table in Markdown for each option, in the order of --help.
std::string options_table(const CLI::App& app) {
  std::string made = "| option | value | default | what it does |\n|---|---|---|---|\n";
  const auto cell = [](std::string text) {
    for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.insert(at, "\\");
    return text;
  };
  for (const CLI::Option* option : app.get_options()) {
    std::string value = option->get_type_size() == 0 ? "" : option->get_type_name();
    std::string given = option->get_default_str();
    if (option->get_type_size() == 0) given.clear();
    made += "| `" + option->get_name(false, true) + "` | " + cell(value) + " | " + cell(given) + " | " +
            cell(option->get_description()) + " |\n";
  }
  return made;
}

}  // namespace

std::optional<int> parse(options& o, int argc, char** argv) {
  CLI::App app(
      "Trains click models: on a Criteo file, or on data of its shape; sequence models on histories of "
      "items.",
      "train_ctr");
  const auto inputs = [](CLI::Option* option) { take_inputs(option, CLI::Validator(wrong_input, "FILE")); };
  const CLI::Validator output = output_path();
  const auto bytes = CLI::Validator(
      [](std::string& text) {
        return parse_bytes(text) > 0 ? "" : text + " is no number of bytes, as 512M is";
      },
      "BYTES");
  inputs(app.add_option(
      "--data", o.data,
      "Criteo text, tab or comma, also compressed by gzip or zstd: files, folders of files, patterns as "
      "'part-*'; -: the standard input (default: synthetic data)"));
  inputs(app.add_option("--test", o.test, "test with these rows, and train with all of --data"));
  app.add_option(
         "--memory", o.memory,
         "what rows may take, for instance 1G or 512MB (of 1024 each); more rows are read again in each "
         "epoch (default: a quarter of the memory)")
      ->check(bytes);
  app.add_option("--window", o.window, "rows that are shuffled at a time; 0: as many as the memory holds")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  app.add_option(
         "--prefetch", o.prefetch,
         "batches that are read ahead, or of a graph what its stage holds; 0: without a thread for it")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--stale-window", o.stale_window,
                 "lookups on their way at once: batch t is looked up with the updates up to t - W; 1: "
                 "synchronous; 0: without threads for them")
      ->check(CLI::Range(0, 256))
      ->capture_default_str();
  app.add_option(
         "--async-embedding", o.async_embedding,
         "of a graph's step: its lookups run ahead, and batch t is looked up with the updates up to t - "
         "W; 1: synchronous; 0: in the step")
      ->check(CLI::Range(0, 256))
      ->capture_default_str();
  app.add_option(
         "--micro-batch", o.micro_batch,
         "parts of a batch, with one update: one is looked up while the one before is computed, or in a "
         "graph's step each is run by one thread; 1: the whole batch, call by call; 0: parts of at most 128 "
         "samples, each on one thread (with --stale-window: as 1)")
      ->check(CLI::Range(0, 256))
      ->capture_default_str();
  app.add_option("--step", o.step,
                 "direct: the calls of a step one after the other; graph: its ops, as --smart-stage, "
                 "--async-embedding, --trace and --graph need it (default: direct)")
      ->check(CLI::IsMember({"direct", "graph"}));
  app.add_option("--executor", o.executor,
                 "of a graph's step for whole batches (--micro-batch 1): inline, op by op; pool, beside each "
                 "other on the threads; cost, there where that pays, by costs that are learnt (default: "
                 "inline)")
      ->check(CLI::IsMember({"inline", "pool", "cost"}));
  app.add_flag("--smart-stage", o.smart_stage,
               "run all that no weight has a part in ahead of the step: decode, hash, bucket");
  app.add_flag("--fusion", o.fusion, "one op for each hash of a token and its bucket in a graph's step");
  app.add_flag("--memory-plan", o.memory_plan,
               "scratch memory of steps from an arena that is planned after some steps; values of a graph's "
               "step share memory too, where its ops run for whole batches (--micro-batch 1)");
  app.add_option("--trace", o.trace, "write when each op ran to this file, for ui.perfetto.dev")
      ->check(output);
  app.add_option("--graph", o.graph, "write the graph of a step to this file, for Graphviz")->check(output);
  app.add_flag(
      "--ranks", o.ranks,
      "under mpirun, of click logs: each process has a part of the tables and trains on its slice of each "
      "batch, of --batch-size rows; n of them train as one does with n times as many");
  std::vector<std::string> names;
  for (const click_model_runs* model : click_models) names.emplace_back(model->name);
  names.insert(names.end(), history_models.begin(), history_models.end());
  app.add_option("--model", o.models,
                 "of click logs: dlrm, wdl, deepfm, dcn or lr; of histories: din or dssm; may be repeated "
                 "(default: dlrm and lr)")
      ->check(CLI::IsMember(names));
  app.add_option(
         "--keys", o.keys,
         "of tokens: hashed, to buckets of tables of a fixed size; or raw, 64-bit hashes in tables that "
         "grow, one for each column")
      ->check(CLI::IsMember({"hashed", "raw"}))
      ->capture_default_str();
  app.add_option("--admit", o.admit,
                 "of raw keys: the occurrences in training from which on a key has a row (default: 1)")
      ->check(CLI::Range(std::uint32_t{1}, deeprec::filters::counter::most));
  app.add_option("--ttl", o.ttl,
                 "of raw keys: steps without its key after which a row is evicted; a sweep follows each "
                 "quarter of them (default: none is evicted)")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 31));
  app.add_option("--capacity", o.capacity,
                 "of raw keys: rows of a column at most, of which the least recent are evicted for new ones "
                 "(default: any number)")
      ->check(CLI::Range(index_t{1}, index_t{1} << 31));
  app.add_option("--math", o.math,
                 "of the dense layers: f32; bf16 or tf32, where that is faster; forced_bf16 or forced_tf32")
      ->check(CLI::IsMember({"f32", "bf16", "tf32", "forced_bf16", "forced_tf32"}))
      ->capture_default_str();
  app.add_flag("--last-layer-f32", o.last_layer_f32, "the last layer in f32 beside --math");
  app.add_option("--width", o.width,
                 "floats of a row of the tables, but of those of lr and of wide parts (default: 16)")
      ->check(CLI::Range(1, 4096));
  app.add_option("--bottom", o.bottom,
                 "hidden layers below dlrm's interaction, for instance 512,256,64 (default: 128)")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 16));
  app.add_option(
         "--top", o.top,
         "hidden layers above the interaction, or of the deep part (default: dlrm 64, others 256,128)")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 16));
  app.add_option("--cross-layers", o.cross_layers, "of dcn (default: 2)")->check(CLI::Range(1, 64));
  inputs(
      app.add_option("--items", o.items,
                     "of din and dssm: the categories of the items of --data, text with columns item_id and "
                     "i_category"));
  app.add_option("--history", o.history, "of din and dssm: the latest items of a user that are looked at")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_flag("--no-attention", o.no_attention, "of din: the mean of a history instead");
  app.add_option("--temperature", o.temperature, "of dssm: what cosines are divided by (default: 0.1)")
      ->check(CLI::Range(1e-3, 1e3));
  app.add_flag("--validate", o.validate,
               "of din and dssm: test with the last but one item of each user, without the last, to choose "
               "options by");
  app.add_option("--test-rows", o.test_rows,
                 "of din and dssm: write the rows that test to this file, as --predict reads them")
      ->check(output);
  app.add_option("--batch-size", o.batch_size, "rows of a training step")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  add_training_options(app, o);
  app.add_option("--initial-squares", o.initial_squares, "what Adagrad's sums of squares begin at")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_option("--epochs", o.epochs, "passes over the training rows")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--steps", o.steps, "end after so many steps, also within an epoch; 0: don't")
      ->check(CLI::Range(index_t{0}, index_t{1} << 40))
      ->capture_default_str();
  app.add_option("--threads", o.threads, "0: one for each processor")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--seed", o.seed, "of the split, the order, the first weights")
      ->check(CLI::Validator(wrong_seed, "UINT"))
      ->capture_default_str();
  app.add_option("--train-fraction", o.train_fraction, "of the rows, drawn by their numbers; the others test")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--rows", o.rows, "of synthetic data; of din and dssm: users (10000)")
      ->check(CLI::Range(10, 1 << 28))
      ->capture_default_str();
  app.add_option("--planted", o.planted,
                 "what decides the clicks of synthetic data: mixed, or product (of two tokens alone)")
      ->check(CLI::IsMember({"mixed", "product"}))
      ->capture_default_str();
  app.add_option("--synthesize", o.synthesize,
                 "write --rows of synthetic data to this file, and train nothing")
      ->check(output);
  app.add_option("--save-every", o.save_every, "also save after so many steps; 0: don't")
      ->check(CLI::Range(index_t{0}, index_t{1} << 40))
      ->capture_default_str();
  app.add_option("--save", o.save, "after every epoch, write the one model to this file")->check(output);
  app.add_option("--load", o.load, "train on from this file, for --epochs more, the begun one included")
      ->check(CLI::ExistingFile);
  inputs(app.add_option(
      "--predict", o.predict,
      "train nothing: write the probability of a click for each row of this file, by the model of "
      "--load; of click logs: the columns of --data, with or without the label; of din and dssm: "
      "text with columns history (items with commas between them, the latest last) and item_id, "
      "for which dssm writes the cosine"));
  app.add_option("--output", o.output, "the file for the probabilities (default, and -: the standard output)")
      ->check(CLI::Validator(
          [](std::string& path) { return path.empty() ? "an empty path names no file" : ""; }, "FILE"));
  app.add_option(
         "--output-format", o.output_format,
         "of --output: lines, a number each; csv, with the numbers of rows and a header; raw, floats of 32 "
         "bits")
      ->check(CLI::IsMember({"lines", "csv", "raw"}))
      ->capture_default_str();
  app.add_option(
         "--export", o.export_to,
         "write rows, first weights and, at the end, the logits of the test rows into this folder, as "
         ".npy files")
      ->check(output);
  app.add_option("--json", o.json, "also write the result to this file")->check(output);
  app.add_flag("--verbose", o.verbose, "print the checksum of the weights");
  bool as_table = false;
  app.add_flag("--help-table", as_table, "print all options as a table in Markdown, and exit");
  app.set_version_flag("--version", version(), "print the version, and exit");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& shown) {  // help, version
    return app.exit(shown);
  } catch (const CLI::ParseError& wrong) {
    std::fprintf(stderr, "train_ctr: %s\n", wrong.what());
    return 2;
  }
  if (as_table) {
    std::fputs(options_table(app).c_str(), stdout);
    return 0;
  }
  const auto wrong = [](const char* text) {
    std::fprintf(stderr, "train_ctr: %s\n", text);
    return 2;
  };
  if (!o.predict.empty() && !o.evaluate.empty()) return wrong("--predict and --evaluate are not for one run");
  if (const std::string use = !o.predict.empty()    ? "--predict"
                              : !o.evaluate.empty() ? "--evaluate"
                                                    : "";
      !use.empty()) {
    if (o.load.empty()) return wrong((use + " needs --load").c_str());
    if (!o.models.empty())
      return wrong((use + " is not for --model: the file of --load has its name").c_str());
    for (const char* const name : {"--output", "--output-format"}) {
      if (app.count(name) > 0 && use == "--evaluate")
        return wrong((name + std::string(" needs --predict")).c_str());
    }
    // What has a part in either; all else is of a training.
    std::vector<std::string> takes = {use, "--load", "--threads", "--math", "--last-layer-f32"};
    for (const char* const name : {"--output", "--output-format"}) {
      if (use == "--predict") takes.emplace_back(name);
    }
    for (const char* const name : {"--json", "--report", "--group", "--skip-bad"}) {
      if (use == "--evaluate") takes.emplace_back(name);
    }
    for (const CLI::Option* option : app.get_options()) {
      const std::string name = option->get_name();
      if (option->count() > 0 && std::find(takes.begin(), takes.end(), name) == takes.end())
        return wrong((name + (" is not for " + use)).c_str());
    }
    return std::nullopt;
  }
  if (!o.output.empty()) return wrong("--output needs --predict");
  if (app.count("--output-format") > 0) return wrong("--output-format needs --predict");
  if (o.models.size() != 1 && !(o.save.empty() && o.load.empty())) {
    return wrong("--save and --load are for one --model");
  }
  if (o.models.size() != 1 && !(o.trace.empty() && o.graph.empty())) {
    return wrong("--trace and --graph are for one --model");
  }
  for (const char* const name : {"--admit", "--ttl", "--capacity"}) {
    if (app.count(name) > 0 && !o.has_raw_keys())
      return wrong((std::string(name) + " needs --keys raw").c_str());
  }
  if (o.save_every > 0 && o.save.empty()) {
    return wrong("--save-every needs --save");
  }
  if (!o.test.empty() && o.data.empty()) {
    return wrong("--test needs --data");
  }
  if (o.models.empty())
    o.models = o.ranks ? std::vector<std::string>{"dlrm"} : std::vector<std::string>{"dlrm", "lr"};
  const auto any = [&](std::initializer_list<std::string_view> of) {
    return std::any_of(o.models.begin(), o.models.end(), [&](const std::string& model) {
      return std::find(of.begin(), of.end(), model) != of.end();
    });
  };
  const auto of_histories = std::count_if(o.models.begin(), o.models.end(), is_history_model);
  if (of_histories > 0 && of_histories < static_cast<std::ptrdiff_t>(o.models.size())) {
    return wrong("din and dssm are for histories, the other models for click logs: not both at once");
  }
  const auto refuse = [&](std::initializer_list<const char*> given, const std::string& where) {
    for (const char* name : given) {
      if (app.count(name) > 0) return wrong((name + where).c_str());
    }
    return 0;
  };
  if (of_histories > 0) {
    if (const int code = refuse({"--test", "--memory", "--window", "--stale-window", "--micro-batch",
                                 "--bottom", "--fusion", "--cross-layers", "--train-fraction", "--planted",
                                 "--synthesize", "--export", "--keys", "--ranks"},
                                " is not for din and dssm")) {
      return code;
    }
    if (o.step == "direct") return wrong("--step direct is not for din and dssm, whose step is a graph");
    if (o.data.empty() && !o.items.empty()) return wrong("--items needs --data");
    if (o.data.empty() && o.validate) return wrong("--validate needs --data");
    if (o.no_attention && !any({"din"})) return wrong("--no-attention needs --model din");
    if (o.temperature > 0 && !any({"dssm"})) return wrong("--temperature needs --model dssm");
    if (app.count("--rows") == 0) o.rows = 10'000;
  } else if (const int code = refuse(
                 {"--items", "--history", "--no-attention", "--temperature", "--validate", "--test-rows"},
                 " needs --model din or dssm")) {
    return code;
  }
  if ((o.width > 0 || !o.top.empty()) && !any({"dlrm", "wdl", "deepfm", "dcn", "din", "dssm"})) {
    return wrong("--width and --top need --model dlrm, wdl, deepfm, dcn, din or dssm");
  }
  for (const auto& [name, layers] : {std::pair("--bottom", &o.bottom), std::pair("--top", &o.top)}) {
    double needed = 0;  // of the weights between these layers, their gradients and the state of the optimizer
    for (std::size_t i = 1; i < layers->size(); ++i) {
      needed +=
          3.0 * sizeof(float) * static_cast<double>((*layers)[i - 1]) * static_cast<double>((*layers)[i]);
    }
    if (needed <= static_cast<double>(usable_memory())) continue;
    char text[160];
    std::snprintf(text, sizeof text,
                  "%s: its layers need %.1f GB of memory, of which this process may use %.1f", name,
                  needed / 1e9, static_cast<double>(usable_memory()) / 1e9);
    return wrong(text);
  }
  if (!o.bottom.empty() && !any({"dlrm"})) return wrong("--bottom needs --model dlrm");
  if (o.dropout > 0 && !any({"dlrm", "wdl", "deepfm", "dcn"}))
    return wrong("--dropout needs --model dlrm, wdl, deepfm or dcn");
  if (o.ranks && o.models.size() != 1) return wrong("--ranks is for one --model");
  if (o.cross_layers > 0 && !any({"dcn"})) return wrong("--cross-layers needs --model dcn");
  if (any({"deepfm", "dcn"})) {
    if (o.stale_window > 0)
      return wrong("--stale-window is not for deepfm and dcn, whose step is a graph: --async-embedding is");
    if (o.step == "direct") return wrong("--step direct is not for deepfm and dcn, whose step is a graph");
  }
  for (const std::string& why :
       {excluded_pair(app, o, of_histories > 0), wrong_training_options(app, o, of_histories > 0)}) {
    if (!why.empty()) return wrong(why.c_str());
  }
  if (!o.export_to.empty() && o.models.size() != 1) return wrong("--export is for one --model");
  return std::nullopt;
}

}  // namespace ctr
