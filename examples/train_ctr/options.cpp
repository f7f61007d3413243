#include "options.hpp"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "memory_limit.hpp"

namespace train_ctr {

std::optional<int> parse(options& o, int argc, char** argv) {
  CLI::App app("Trains click models: on a Criteo file, or on data of its shape.", "train_ctr");
  const auto file = CLI::Validator(
      [](std::string& path) {
        return path == "-" || ::access(path.c_str(), F_OK) == 0 ? "" : "no such file: " + path;
      },
      "FILE");
  const auto bytes = CLI::Validator(
      [](std::string& text) {
        return parse_bytes(text) > 0 ? "" : text + " is no number of bytes, as 512M is";
      },
      "BYTES");
  app.add_option(
         "--data", o.data,
         "Criteo text, tab or comma, also compressed by gzip or zstd; -: the standard input (default: "
         "synthetic data)")
      ->check(file);
  app.add_option("--test", o.test, "test with these rows, and train with all of --data")->check(file);
  app.add_option(
         "--memory", o.memory,
         "what rows may take, for instance 1G; more rows are read again in each epoch (default: a quarter "
         "of the memory)")
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
  app.add_option("--micro-batch", o.micro_batch,
                 "parts of a batch: one is looked up while the one before is computed, with one update")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_option(
         "--step", o.step,
         "direct: the calls of a step one after the other; graph: its ops, as --smart-stage, --trace and "
         "--graph need it (default: direct)")
      ->check(CLI::IsMember({"direct", "graph"}));
  app.add_flag("--smart-stage", o.smart_stage,
               "run all that no weight has a part in ahead of the step: decode, hash, bucket");
  app.add_option("--trace", o.trace, "write when each op ran to this file, for ui.perfetto.dev");
  app.add_option("--graph", o.graph, "write the graph of a step to this file, for Graphviz");
  app.add_option("--model", o.models, "dlrm, wdl or lr; may be repeated (default: dlrm and lr)")
      ->check(CLI::IsMember({"dlrm", "wdl", "lr"}));
  app.add_option("--math", o.math, "of the dense layers: f32, bf16 or tf32")
      ->check(CLI::IsMember({"f32", "bf16", "tf32"}))
      ->capture_default_str();
  app.add_flag("--last-layer-f32", o.last_layer_f32, "the last layer in f32 beside --math");
  app.add_option("--width", o.width, "floats of a row of the tables of dlrm and wdl (default: 16)")
      ->check(CLI::Range(1, 4096));
  app.add_option("--bottom", o.bottom,
                 "hidden layers below dlrm's interaction, for instance 512,256,64 (default: 128)")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 16));
  app.add_option("--top", o.top,
                 "hidden layers above dlrm's interaction, or of wdl's deep part (default: 64; 256,128)")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 16));
  app.add_option("--batch-size", o.batch_size, "rows of a training step")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--epochs", o.epochs, "passes over the training rows")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--steps", o.steps, "end after so many steps, also within an epoch; 0: don't")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--threads", o.threads, "0: one for each processor")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--seed", o.seed, "of the split, the order, the first weights")->capture_default_str();
  app.add_option("--train-fraction", o.train_fraction,
                 "of the rows, by a hash of their content; the others test")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--rows", o.rows, "of synthetic data")
      ->check(CLI::Range(10, 1 << 28))
      ->capture_default_str();
  app.add_option("--planted", o.planted,
                 "what decides the clicks of synthetic data: mixed, or product (of two tokens alone)")
      ->check(CLI::IsMember({"mixed", "product"}))
      ->capture_default_str();
  app.add_option("--synthesize", o.synthesize,
                 "write --rows of synthetic data to this file, and train nothing");
  app.add_option("--save-every", o.save_every, "also save after so many steps; 0: don't")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--save", o.save, "after every epoch, write the one model to this file");
  app.add_option("--load", o.load, "train on from this file, for --epochs more, the begun one included")
      ->check(CLI::ExistingFile);
  app.add_option("--json", o.json, "also write the result to this file");
  app.add_flag("--verbose", o.verbose, "print the checksum of the weights");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& wrong) {
    std::fprintf(stderr, "train_ctr: %s\n", wrong.what());
    return 2;
  }
  if (o.models.size() != 1 && !(o.save.empty() && o.load.empty())) {
    std::fprintf(stderr, "train_ctr: --save and --load are for one --model\n");
    return 2;
  }
  if (o.models.size() != 1 && !(o.trace.empty() && o.graph.empty())) {
    std::fprintf(stderr, "train_ctr: --trace and --graph are for one --model\n");
    return 2;
  }
  if (o.step == "direct" && o.is_graph()) {
    std::fprintf(stderr, "train_ctr: --smart-stage, --trace and --graph need --step graph\n");
    return 2;
  }
  if (o.is_graph() && (o.stale_window > 0 || o.micro_batch > 1)) {
    std::fprintf(
        stderr,
        "train_ctr: --stale-window and --micro-batch are not for --step graph, nor for --smart-stage, "
        "--trace and --graph\n");
    return 2;
  }
  if (o.smart_stage && o.prefetch == 0) {
    std::fprintf(stderr, "train_ctr: --smart-stage needs a thread: --prefetch above 0\n");
    return 2;
  }
  if (o.save_every > 0 && o.save.empty()) {
    std::fprintf(stderr, "train_ctr: --save-every needs --save\n");
    return 2;
  }
  if (o.save_every > 0 && o.stale_window > 0) {
    std::fprintf(stderr, "train_ctr: --save-every is not for --stale-window: lookups are on their way\n");
    return 2;
  }
  if (!o.test.empty() && o.data.empty()) {
    std::fprintf(stderr, "train_ctr: --test needs --data\n");
    return 2;
  }
  if (o.models.empty()) o.models = {"dlrm", "lr"};
  const auto has = [&](const char* model) {
    return std::find(o.models.begin(), o.models.end(), model) != o.models.end();
  };
  if ((o.width > 0 || !o.top.empty()) && !has("dlrm") && !has("wdl")) {
    std::fprintf(stderr, "train_ctr: --width and --top need --model dlrm or wdl\n");
    return 2;
  }
  if (!o.bottom.empty() && !has("dlrm")) {
    std::fprintf(stderr, "train_ctr: --bottom needs --model dlrm\n");
    return 2;
  }
  return std::nullopt;
}

}  // namespace train_ctr
