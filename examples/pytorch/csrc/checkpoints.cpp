// torch.classes.deeprec.Checkpoints, CheckpointCut and Follower: checkpoints of a collection while it trains.
#include <ATen/ATen.h>
#include <torch/custom_class.h>
#include <torch/library.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include <deeprec/embedding/checkpoints/checkpoint_folder.hpp>
#include <deeprec/embedding/checkpoints/checkpoint_reader.hpp>
#include <deeprec/embedding/files/table_file.hpp>

#include "call.hpp"
#include "checkpoint_parts.hpp"
#include "live_tables.hpp"

namespace deeprec_torch {
namespace {

using at::Tensor;
using whole_numbers = c10::Dict<std::string, std::int64_t>;
using real_numbers = c10::Dict<std::string, double>;
/// Step, numbers of the caller, number of the file, its chain, why others were passed over.
using file_state = std::tuple<std::int64_t, whole_numbers, real_numbers, std::int64_t, std::int64_t,
                              std::vector<std::string>>;

template <class Faults>
file_state state_of(const deeprec::training_state& state, const deeprec::checkpoint_position& at,
                    const Faults& passed_over) {
  whole_numbers whole;
  real_numbers real;
  for (const deeprec::named_number& number : state.numbers) {
    if (const auto* const value = std::get_if<index_t>(&number.value)) whole.insert(number.name, *value);
    if (const auto* const value = std::get_if<double>(&number.value)) real.insert(number.name, *value);
  }
  std::vector<std::string> why;
  for (const deeprec::fault& one : passed_over) why.push_back(one.message());
  return {static_cast<std::int64_t>(state.step), whole, real, static_cast<std::int64_t>(at.number),
          static_cast<std::int64_t>(at.chain),   why};
}

collection_parts parts_of(std::int64_t number) {
  live_tables& all = live_tables::shared();
  return {all.at(number), all.rule_of(number)};
}

/// A cut, from the moment that it is taken until its file is written.
struct cut_state {
  enum class phase : unsigned char { taken, writing, ended };

  explicit cut_state(deeprec::checkpoint_cut of) : cut(std::move(of)) {}

  void end(std::optional<deeprec::result<index_t>> with) {
    const std::lock_guard lock(mutex);
    cut.reset();
    outcome = std::move(with);
    at = phase::ended;
    changed.notify_all();
  }
  [[nodiscard]] bool has_ended() {
    const std::lock_guard lock(mutex);
    return at == phase::ended;
  }

  std::mutex mutex;
  std::condition_variable changed;
  // Under the mutex, but for the cut while a thread writes it:
  std::optional<deeprec::checkpoint_cut> cut;
  std::optional<deeprec::result<index_t>> outcome;  // none: it was dropped
  bool was_told = false;                            // to the caller
  phase at = phase::taken;
};

/// A folder of checkpoints, and the thread that writes to it. Outlives its cuts.
class saver {
 public:
  saver(collection_parts parts, std::string path, const deeprec::checkpoint_options& options,
        staged_tensors tensors)
      : parts_(std::move(parts)), path_(std::move(path)), folder_(path_, options) {
    parts_.add_to(folder_);
    set_tensors(std::move(tensors));
  }
  ~saver() { join(); }
  saver(const saver&) = delete;
  saver& operator=(const saver&) = delete;

  std::shared_ptr<cut_state> take(bool full, deeprec::training_state state, staged_tensors tensors,
                                  const std::optional<Tensor>& optimizer) {
    const std::lock_guard lock(calls_);
    expect_no_cut("Checkpoints.cut");
    set_tensors(std::move(tensors));
    for (staged_tensor& one : tensors_) one.stage();
    if (optimizer) attach(*optimizer);
    parts_.put_numbers(state.numbers);
    auto cut = raising([&] { return full ? folder_.take_full(state) : folder_.take_delta(state); });
    raise_on_fault(cut);
    auto made = std::make_shared<cut_state>(std::move(cut).value());
    last_ = made;
    return made;
  }
  void write(const std::shared_ptr<cut_state>& one) {
    const std::lock_guard lock(calls_);
    {
      const std::lock_guard of_cut(one->mutex);
      TORCH_CHECK(one->at == cut_state::phase::taken,
                  "Cut.write: a cut must be written once, and not after drop()");
      one->at = cut_state::phase::writing;
    }
    join();  // that of the cut before, which has ended
    written_ = one;
    try {
      writer_ = std::thread([one] { one->end(one->cut->write()); });
    } catch (const std::system_error& refused) {
      one->end(deeprec::fault(deeprec::errc::out_of_memory,
                              std::string("Cut.write: a thread must start: ") + refused.what()));
    }
  }
  /// Why the cut before was not written, where wait() was not called.
  [[nodiscard]] std::string untold() {
    const std::lock_guard lock(calls_);
    if (written_ == nullptr) return {};
    const std::lock_guard of_cut(written_->mutex);
    if (!written_->outcome || written_->outcome->ok() || written_->was_told) return {};
    written_->was_told = true;
    return written_->outcome->message();
  }
  static void drop(cut_state& one) {
    {
      const std::lock_guard lock(one.mutex);
      TORCH_CHECK(one.at != cut_state::phase::writing, "Cut.drop: the cut must not be written (is)");
      if (one.at == cut_state::phase::ended) return;
    }
    one.end(std::nullopt);
  }

  bool restore(staged_tensors tensors) {
    const std::lock_guard lock(calls_);
    expect_no_cut("Checkpoints.restore");
    set_tensors(std::move(tensors));
    parts_.check_rule_in(path_, 0);
    auto read = raising([&] { return folder_.restore(); });
    raise_on_fault(read);
    if (!read.value()) return false;
    // Of an older file, where newer ones are not whole: then the tables have changed.
    parts_.check_rule_of(read.value()->state, read.value()->path);
    restored_ = std::move(*read.value());
    for (staged_tensor& one : tensors_) one.unstage();
    parts_.take_numbers(restored_.state);
    return true;
  }
  [[nodiscard]] file_state restored() {
    const std::lock_guard lock(calls_);
    return state_of(restored_.state, restored_.at, restored_.passed_over);
  }
  /// The optimizer of the file that was restored.
  std::optional<Tensor> restored_optimizer() {
    const std::lock_guard lock(calls_);
    const auto info = deeprec::describe_file(restored_.path);
    raise_on_fault(info);
    const auto& all = info.value().tables;
    const auto found =
        std::find_if(all.begin(), all.end(), [](const auto& one) { return one.name == optimizer_name; });
    if (found == all.end()) return std::nullopt;
    Tensor bytes = at::empty({found->width}, at::TensorOptions(at::kByte));
    const deeprec::named_table into(*found, static_cast<std::byte*>(bytes.data_ptr()), 0);
    const auto loaded = deeprec::load_tables(restored_.path, std::span(&into, 1),
                                             {.others = deeprec::load_options::unknown::ignore});
    raise_on_fault(loaded);
    return bytes;
  }
  [[nodiscard]] deeprec::checkpoint_position position() const { return folder_.position(); }
  /// Waits for a write that goes on. No thread is left to join, and so none in a process that is forked.
  void join() {
    if (writer_.joinable()) writer_.join();
  }
  void settle() {
    const std::lock_guard lock(calls_);
    join();
  }

 private:
  void expect_no_cut(const char* who) const {
    const auto before = last_.lock();
    TORCH_CHECK(before == nullptr || before->has_ended(), who,
                ": the cut before must be written or dropped first (is not)");
  }
  /// The dense tensors as they are now. Others than before end the chain.
  void set_tensors(staged_tensors now) {
    if (took_tensors(tensors_, now)) return;
    while (!tensors_.empty()) {
      const std::string& name = tensors_.back().name();
      collection_parts::add(name, [&] { return folder_.remove(name); });
      tensors_.pop_back();
    }
    for (staged_tensor& one : now) {
      collection_parts::add(one.name(), [&] { return folder_.add(one.table()); });
      tensors_.push_back(std::move(one));
    }
  }
  void attach(const Tensor& optimizer) {
    const auto* const bytes = static_cast<const std::byte*>(optimizer.const_data_ptr());
    raise_on_fault(raising(
        [&] { return folder_.attach(optimizer_name, std::vector(bytes, bytes + optimizer.numel())); }));
  }

  static constexpr const char* optimizer_name = "torch optimizer";
  std::mutex calls_;
  collection_parts parts_;
  std::string path_;
  staged_tensors tensors_;
  deeprec::checkpoint_folder folder_;
  std::weak_ptr<cut_state> last_;
  std::shared_ptr<cut_state> written_;
  deeprec::restored_checkpoint restored_;
  std::thread writer_;
};

struct checkpoint_cut_class : torch::CustomClassHolder {
  checkpoint_cut_class(std::shared_ptr<saver> of, std::shared_ptr<cut_state> taken)
      : owner(std::move(of)),
        state(std::move(taken)),
        number(static_cast<std::int64_t>(state->cut->number())),
        path(state->cut->path()) {}

  void write() const {
    expect_process();
    owner->write(state);
  }
  void drop() const { saver::drop(*state); }
  /// Whether it has ended.
  bool wait(std::int64_t milliseconds) const {
    expect_process();
    std::unique_lock lock(state->mutex);
    TORCH_CHECK(state->at != cut_state::phase::taken, "Cut.wait: the cut must be written (is not)");
    return state->changed.wait_for(lock, std::chrono::milliseconds(milliseconds),
                                   [&] { return state->at == cut_state::phase::ended; });
  }
  bool done() const { return state->has_ended(); }
  /// Bytes of the file.
  std::int64_t bytes() const {
    const std::lock_guard lock(state->mutex);
    TORCH_CHECK(state->outcome.has_value(), "Cut.bytes: the cut must be written (is not)");
    state->was_told = true;
    raise_on_fault(*state->outcome);
    return state->outcome->value();
  }
  void expect_process() const {
    TORCH_CHECK(process == ::getpid(), "Cut: must be used in the process that took it (is a forked one)");
  }

  std::shared_ptr<saver> owner;
  std::shared_ptr<cut_state> state;  // goes first
  std::int64_t number;
  std::string path;
  const pid_t process = ::getpid();
};

struct checkpoints_class : torch::CustomClassHolder {
  checkpoints_class(std::int64_t tables_number, const std::string& path, std::int64_t kept_chains,
                    std::int64_t copy_budget, const std::vector<std::string>& names,
                    const std::vector<Tensor>& tensors)
      : shared(raising([&] {
          deeprec::checkpoint_options options;
          options.kept_chains = kept_chains;
          options.copy_budget = copy_budget;
          return std::make_shared<saver>(parts_of(tables_number), path, options, staged(names, tensors));
        })) {}

  saver& open() const {
    TORCH_CHECK(process == ::getpid(),
                "Checkpoints: must be used in the process that made it (is a forked one)");
    TORCH_CHECK(shared != nullptr, "Checkpoints: must be open (was closed)");
    return *shared;
  }
  c10::intrusive_ptr<checkpoint_cut_class> take(bool full, std::int64_t step, const whole_numbers& whole,
                                                const real_numbers& real,
                                                const std::vector<std::string>& names,
                                                const std::vector<Tensor>& tensors,
                                                const std::optional<Tensor>& optimizer) const {
    saver& to = open();
    deeprec::training_state state{.step = static_cast<std::uint64_t>(step), .numbers = {}};
    for (const auto& one : whole) state.numbers.push_back({one.key(), index_t{one.value()}});
    for (const auto& one : real) state.numbers.push_back({one.key(), one.value()});
    return c10::make_intrusive<checkpoint_cut_class>(
        shared, to.take(full, std::move(state), staged(names, tensors), optimizer));
  }

  std::shared_ptr<saver> shared;
  const pid_t process = ::getpid();
};

struct follower_class : torch::CustomClassHolder {
  follower_class(std::int64_t tables_number, std::string folder, const std::vector<std::string>& names,
                 const std::vector<Tensor>& given)
      : path(std::move(folder)),
        parts(parts_of(tables_number)),
        tensors(staged(names, given)),
        reader(with(tensors)) {}

  bool poll(const std::vector<std::string>& names, const std::vector<Tensor>& given) {
    const std::lock_guard lock(calls);
    expect_open();
    staged_tensors now = staged(names, given);
    if (!took_tensors(tensors, now)) {
      reader = with(now);  // the values of others: from a full file on
      tensors = std::move(now);
    }
    const deeprec::checkpoint_position before = reader->position();
    parts.check_rule_in(path, before.number);
    const auto done = raising([&] { return reader->poll(); });
    if (reader->position() != before) {  // also where a file after others has a fault
      for (staged_tensor& one : tensors) one.unstage();
      state = reader->state();
      parts.check_rule_of(state, path);
      parts.take_numbers(state);
    }
    raise_on_fault(done);
    return done.value();
  }
  file_state followed() {
    const std::lock_guard lock(calls);
    expect_open();
    return state_of(state, reader->position(), reader->passed_over());
  }
  void close() {
    const std::lock_guard lock(calls);
    reader.reset();
    parts = collection_parts(nullptr, -1);
  }

 private:
  std::unique_ptr<deeprec::checkpoint_reader> with(const staged_tensors& others) {
    auto files = std::make_unique<deeprec::checkpoint_reader>(path);
    parts.add_to(*files);
    for (const staged_tensor& one : others)
      collection_parts::add(one.name(), [&] { return files->add(one.table()); });
    return files;
  }
  void expect_open() const { TORCH_CHECK(reader != nullptr, "Follower: must be open (was closed)"); }

  std::mutex calls;
  std::string path;
  collection_parts parts;
  staged_tensors tensors;
  std::unique_ptr<deeprec::checkpoint_reader> reader;
  deeprec::training_state state;  // of the last file
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(deeprec, m) {
  using cut = c10::intrusive_ptr<checkpoint_cut_class>;
  m.class_<checkpoint_cut_class>("CheckpointCut")
      .def("write", [](const cut& self) { self->write(); })
      .def("drop", [](const cut& self) { self->drop(); })
      .def("wait", [](const cut& self, std::int64_t milliseconds) { return self->wait(milliseconds); })
      .def("done", [](const cut& self) { return self->done(); })
      .def("bytes", [](const cut& self) { return self->bytes(); })
      .def("number", [](const cut& self) { return self->number; })
      .def("path", [](const cut& self) { return self->path; });

  using holder = c10::intrusive_ptr<checkpoints_class>;
  m.class_<checkpoints_class>("Checkpoints")
      .def(torch::init<std::int64_t, const std::string&, std::int64_t, std::int64_t,
                       const std::vector<std::string>&, const std::vector<Tensor>&>())
      .def("take",
           [](const holder& self, bool full, std::int64_t step, const whole_numbers& whole,
              const real_numbers& real, const std::vector<std::string>& names,
              const std::vector<Tensor>& tensors, const std::optional<Tensor>& optimizer) {
             return self->take(full, step, whole, real, names, tensors, optimizer);
           })
      .def("restore",
           [](const holder& self, const std::vector<std::string>& names, const std::vector<Tensor>& tensors) {
             return self->open().restore(staged(names, tensors));
           })
      .def("restored", [](const holder& self) { return self->open().restored(); })
      .def("restored_optimizer", [](const holder& self) { return self->open().restored_optimizer(); })
      .def("untold", [](const holder& self) { return self->open().untold(); })
      .def("position",
           [](const holder& self) {
             const auto at = self->open().position();
             return std::tuple(static_cast<std::int64_t>(at.chain), static_cast<std::int64_t>(at.number));
           })
      .def("settle",
           [](const holder& self) {
             if (self->shared != nullptr) self->shared->settle();
           })
      .def("close", [](const holder& self) { self->shared.reset(); });

  using follower = c10::intrusive_ptr<follower_class>;
  m.class_<follower_class>("Follower")
      .def(torch::init<std::int64_t, std::string, const std::vector<std::string>&,
                       const std::vector<Tensor>&>())
      .def("poll", [](const follower& self, const std::vector<std::string>& names,
                      const std::vector<Tensor>& tensors) { return self->poll(names, tensors); })
      .def("state", [](const follower& self) { return self->followed(); })
      .def("close", [](const follower& self) { self->close(); });
}

}  // namespace deeprec_torch
