#include "run_files.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <tuple>
#include <vector>

#include "data_schema.hpp"
#include "opened_text.hpp"
#include "output_file.hpp"

namespace ctr {

namespace {

/// A file by its place: device and inode, or those of its folder and a name while it does not exist.
struct file_place {
  dev_t device = 0;
  ino_t inode = 0;
  std::string name;

  friend bool operator==(const file_place&, const file_place&) = default;
};

struct run_file {
  std::string option, path;
  bool is_regular = false;          ///< or is not there yet
  std::optional<file_place> place;  ///< none: nothing is there, not even a folder
};

run_file file_at(const std::string& option, const std::string& path, const struct stat* known) {
  run_file file{option, path, true, {}};
  struct stat facts{};
  const std::filesystem::path target = target_of(path);
  if (known != nullptr) facts = *known;
  if (known != nullptr || ::stat(target.c_str(), &facts) == 0) {
    file.is_regular = S_ISREG(facts.st_mode);
    file.place = {facts.st_dev, facts.st_ino, {}};
    return file;
  }
  const std::filesystem::path folder = target.has_parent_path() ? target.parent_path() : ".";
  if (::stat(folder.c_str(), &facts) == 0) file.place = {facts.st_dev, facts.st_ino, target.filename()};
  return file;
}

/// The standard input or output.
run_file stream_at(const std::string& option, int descriptor) {
  struct stat facts{};
  if (::fstat(descriptor, &facts) != 0) return {option, "-", false, {}};
  return file_at(option, "-", &facts);
}

/// Whether --report writes this file.
bool is_reported(const run_file& file, const std::string& folder) {
  const run_file page =
      file_at("--report", (std::filesystem::path(folder) / "report.html").native(), nullptr);
  return page.place && page.place == file.place;
}

/// Whether --export may write a file of this place.
bool is_exported(const run_file& file, const std::string& folder) {
  struct stat facts{};
  struct stat parent{};
  const std::filesystem::path target = target_of(file.path);
  if (target.extension() != ".npy" && target.filename() != "sizes.json") return false;
  const std::filesystem::path above = target.has_parent_path() ? target.parent_path() : ".";
  return ::stat(folder.c_str(), &facts) == 0 && ::stat(above.c_str(), &parent) == 0 &&
         facts.st_dev == parent.st_dev && facts.st_ino == parent.st_ino;
}

}  // namespace

void check_files(const options& o) {
  std::vector<run_file> inputs, outputs;
  for (const auto& [option, path] :
       {std::tuple("--data", &o.data), std::tuple("--test", &o.test), std::tuple("--items", &o.items),
        std::tuple("--predict", &o.predict), std::tuple("--valid", &o.valid),
        std::tuple("--evaluate", &o.evaluate)}) {
    if (path == &o.valid && o.valid_fraction() > 0) continue;
    for (const std::string& file : files_of(*path))
      inputs.push_back(file == "-" ? stream_at(option, STDIN_FILENO) : file_at(option, file, nullptr));
  }
  if (!o.load.empty()) inputs.push_back(file_at("--load", o.load, nullptr));
  if (!o.schema.empty()) inputs.push_back(file_at("--schema", o.schema, nullptr));
  for (const std::string& path : o.columns != nullptr ? o.columns->files : std::vector<std::string>())
    inputs.push_back(file_at("a vocabulary", path, nullptr));
  outputs.push_back(stream_at("the standard output", STDOUT_FILENO));
  for (const auto& [option, path] :
       {std::tuple("--save", &o.save), std::tuple("--json", &o.json), std::tuple("--output", &o.output),
        std::tuple("--trace", &o.trace), std::tuple("--graph", &o.graph),
        std::tuple("--test-rows", &o.test_rows), std::tuple("--synthesize", &o.synthesize),
        std::tuple("--log", &o.log)}) {
    if (path->empty() || (path == &o.output && *path == "-")) continue;
    if (is_descriptor(target_of(*path))) {
      if (path == &o.save) throw failure("cannot write " + *path + ": is not a regular file");
      continue;
    }
    outputs.push_back(file_at(option, *path, nullptr));
  }
  // What a saver leaves when it is killed, and the next one removes.
  if (!o.save.empty())
    outputs.push_back(file_at("the temporary file of --save", o.save + ".saving", nullptr));

  const auto refuse = [](const run_file& a, const run_file& b) {
    const std::string& path = a.path == "-" ? b.path : a.path;
    throw failure(a.option + " and " + b.option + " must be different files (both are " + path + ')');
  };
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (!inputs[i].place || inputs[i].place != inputs[j].place) continue;
      if (inputs[i].is_regular && (inputs[i].path != "-" || inputs[j].path != "-")) continue;
      throw failure(inputs[j].option + " and " + inputs[i].option + " must not both be " + inputs[i].path +
                    ", which can be read once");
    }
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const run_file& out = outputs[i];
    if (!out.is_regular || !out.place) continue;
    for (const run_file& in : inputs) {
      if (out.option == "--save" && in.option == "--load") continue;
      if (in.place == out.place) refuse(out, in);
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (outputs[j].place == out.place) refuse(outputs[j], out);
    }
  }
  if (!o.export_to.empty()) {
    for (const std::vector<run_file>* files : {&inputs, &outputs}) {
      for (const run_file& file : *files) {
        if (file.path != "-" && is_exported(file, o.export_to))
          throw failure(file.option + " must not be a file that --export may write (is " + file.path + ')');
      }
    }
    if (std::filesystem::exists(o.export_to) && !std::filesystem::is_directory(o.export_to))
      throw failure("cannot write " + o.export_to + ": is no folder");
  }

  for (const auto& [option, folder] :
       {std::tuple("--report", &o.report), std::tuple("--tensorboard", &o.tensorboard)}) {
    if (folder->empty()) continue;
    std::error_code wrong;
    std::filesystem::create_directories(*folder, wrong);
    if (wrong || ::access(folder->c_str(), W_OK | X_OK) != 0) {
      throw failure("cannot write " + *folder + ": " +
                    (wrong ? wrong.message() : std::string(std::strerror(errno))));
    }
    for (const std::vector<run_file>* files : {&inputs, &outputs}) {
      for (const run_file& file : *files) {
        if (file.path == "-" || folder != &o.report || !is_reported(file, *folder)) continue;
        throw failure(file.option + " must not be the page of --report (is " + file.path + ')');
      }
    }
  }

  // Not after hours of training: each is made and removed. What is no regular file is not opened.
  for (const run_file& out : outputs) {
    if (out.path == "-" || out.option.starts_with("the ")) continue;
    struct stat facts{};
    const bool exists = ::stat(out.path.c_str(), &facts) == 0;
    if (exists && S_ISDIR(facts.st_mode)) throw failure("cannot write " + out.path + ": is a directory");
    if (out.is_regular) {
      output_file probe(out.path);
    } else if (out.option == "--save") {
      throw failure("cannot write " + out.path + ": is not a regular file");
    }
  }
}

}  // namespace ctr
