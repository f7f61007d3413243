// torch.classes.deeprec.EmbeddingTables, and the ops that look up and step its rows. The ops name the tables
// by a number, so that a graph that torch.compile traced can hold them.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/embedding/files/table_file.hpp>

#include "dispatch.hpp"
#include "features.hpp"
#include "growing.hpp"
#include "keyed_batch.hpp"
#include "live_tables.hpp"
#include "rules.hpp"
#include "table.hpp"
#include "tables.hpp"

namespace deeprec_torch {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

/// How a table grows, as configs.py gives it: nothing for a dense table, or {capacity (0: none),
/// when_full, filter, occurrences, keys, seed} and {share, the default row}.
std::optional<growth> growth_of(const std::string& name, const std::vector<std::int64_t>& whole,
                                const std::vector<double>& real) {
  if (whole.empty()) return std::nullopt;
  TORCH_CHECK_VALUE(whole.size() == 6 && !real.empty(), "deeprec: how table ", name,
                    " grows must be 6 integers and floats (are ", whole.size(), " and ", real.size(), ")");
  growth made;
  if (whole[0] > 0) made.capacity = whole[0];
  made.full = static_cast<deeprec::when_full>(whole[1]);
  made.filter = static_cast<growth::filter_kind>(whole[2]);
  made.occurrences = whole[3];
  made.keys = whole[4];
  made.filter_seed = static_cast<std::uint64_t>(whole[5]);
  made.share = real[0];
  made.default_row.assign(real.begin() + 1, real.end());
  return made;
}

struct embedding_tables : torch::CustomClassHolder {
  embedding_tables(const std::string& optimizer, const std::vector<std::string>& names,
                   const std::vector<std::int64_t>& rows, const std::vector<std::int64_t>& widths,
                   const std::vector<std::string>& formats,
                   const std::vector<std::vector<std::int64_t>>& poolings,
                   const std::vector<std::vector<std::int64_t>>& growth_integers,
                   const std::vector<std::vector<double>>& growth_floats, bool decayed)
      : rule(optimizer) {
    std::vector<table_config> configs;
    for (std::size_t t = 0; t < names.size(); ++t) {
      auto grows = growth_of(names[t], growth_integers[t], growth_floats[t]);
      TORCH_CHECK_VALUE((grows || rows[t] >= 0) && widths[t] > 0, "deeprec: table ", names[t],
                        " must have rows and columns (has ", rows[t], ", ", widths[t], ")");
      configs.push_back({names[t], rows[t], widths[t], formats[t], poolings[t], std::move(grows)});
    }
    all = raising([&] {
      return decayed ? make_decayed(optimizer, std::move(configs)) : make(optimizer, std::move(configs));
    });
    number = live_tables::shared().add(all, number_of_rule(rule));
  }
  ~embedding_tables() override { live_tables::shared().remove(number); }

  static std::shared_ptr<tables> make(const std::string& optimizer, std::vector<table_config> configs) {
    const step_options options;
    if (optimizer.empty()) return make_lookup_tables(std::move(configs), options);
    if (optimizer == "sgd") return make_sgd_tables(std::move(configs), options);
    if (optimizer == "rowwise_adagrad") return make_rowwise_adagrad_tables(std::move(configs), options);
    if (optimizer == "adagrad") return make_adagrad_tables(std::move(configs), options);
    if (optimizer == "adam") return make_adam_tables(std::move(configs), options);
    refuse(optimizer);
  }
  /// With weight decay, and rows of 16 bits rounded at random.
  static std::shared_ptr<tables> make_decayed(const std::string& optimizer,
                                              std::vector<table_config> configs) {
    const step_options options;
    if (optimizer == "sgd") return make_decayed_sgd_tables(std::move(configs), options);
    if (optimizer == "rowwise_adagrad")
      return make_decayed_rowwise_adagrad_tables(std::move(configs), options);
    if (optimizer == "adagrad") return make_decayed_adagrad_tables(std::move(configs), options);
    if (optimizer == "adam") return make_decayed_adam_tables(std::move(configs), options);
    refuse(optimizer);
  }
  [[noreturn]] static void refuse(const std::string& optimizer) {
    TORCH_CHECK_VALUE(false, "deeprec: the optimizer must be sgd, rowwise_adagrad, adagrad or adam (is ",
                      optimizer, ")");
  }

  table& at(std::int64_t t) const {
    TORCH_CHECK_INDEX(t >= 0 && t < static_cast<std::int64_t>(all->list().size()), "deeprec: table ", t,
                      " must be one of ", all->list().size());
    return *all->list()[static_cast<std::size_t>(t)];
  }
  dense& dense_at(std::int64_t t) const {
    auto* const found = dynamic_cast<dense*>(&at(t));
    TORCH_CHECK_VALUE(found != nullptr, "deeprec: table ", t, " must be dense (grows)");
    return *found;
  }
  growing& growing_at(std::int64_t t) const {
    auto* const found = dynamic_cast<growing*>(&at(t));
    TORCH_CHECK_VALUE(found != nullptr, "deeprec: table ", t, " must be one that grows (is dense)");
    return *found;
  }
  /// The same, in the step that goes on.
  growing& changed_at(std::int64_t t) const {
    growing& found = growing_at(t);
    found.begin_step(all->options.step);
    return found;
  }

  /// The files of the tables that grow.
  using growing_files = std::vector<std::pair<growing*, std::unique_ptr<growing_file>>>;
  template <class Open>
  growing_files open_files(const Open& open) const {
    growing_files made;
    for (const auto& one : all->list()) {
      if (auto* const grows = dynamic_cast<growing*>(one.get()))
        made.emplace_back(grows, raising([&] { return open(*grows); }));
    }
    return made;
  }
  /// The parts of all tables.
  std::vector<deeprec::named_table> parts(const growing_files& files) const {
    std::vector<deeprec::named_table> made;
    for (const auto& one : all->list()) {
      if (auto* const rows = dynamic_cast<dense*>(one.get())) rows->name_parts(made);
    }
    for (const auto& [grows, file] : files) file->name_parts(made);
    return made;
  }
  void save(const std::string& path) const {
    const growing_files files = open_files([](const growing& grows) { return grows.file_to_save(); });
    const auto writable = parts(files);
    const std::vector<deeprec::const_named_table> read_only(writable.begin(), writable.end());
    deeprec::training_state at{.step = static_cast<std::uint64_t>(all->options.step),
                               .numbers = {{rate_in_files, all->options.learning_rate}}};
    if (const index_t here = number_of_rule(rule); here >= 0) at.numbers.push_back({rule_in_files, here});
    for (const auto& [grows, file] : files)
      at.numbers.push_back(
          {growing_file::seed_name(grows->config().name), static_cast<index_t>(grows->seed())});
    const auto saved = deeprec::save_tables(path, read_only, at);
    raise_on_fault(saved);
  }
  void load(const std::string& path) {
    check_rule_of(path);
    const growing_files files = files_to_load(path);
    const auto into = parts(files);
    const auto loaded = deeprec::load_tables(path, into);
    raise_on_fault(loaded);
    for (const auto& [grows, file] : files) grows->adopt(*file);
    if (!files.empty()) all->regroup();
    all->options.step = static_cast<std::int64_t>(loaded.value().step);
    all->options.learning_rate = loaded.value().real(rate_in_files).value_or(all->options.learning_rate);
  }
  /// State is that of one optimizer, also where another one has as much.
  void check_rule_of(const std::string& path) const {
    const auto info = deeprec::describe_file(path);
    raise_on_fault(info);
    const auto other = other_rule(number_of_rule(rule), info.value().state.whole(rule_in_files).value_or(-1));
    TORCH_CHECK_VALUE(other.empty(), "EmbeddingBagCollection.load: the file must have state of ", rule,
                      " (has that of ", other, "): ", path);
  }
  /// Tables with the rows that a file has, which load_tables fills.
  growing_files files_to_load(const std::string& path) const {
    const bool grows = std::any_of(all->list().begin(), all->list().end(),
                                   [](const auto& one) { return one->config().grows.has_value(); });
    if (!grows) return {};
    const auto info = deeprec::describe_file(path);
    raise_on_fault(info);
    growing_files files = open_files([&](const growing& one) { return one.file_to_load(info.value()); });
    std::vector<deeprec::named_table> keys;
    for (const auto& [one, file] : files) file->name_keys(keys);
    const auto read = deeprec::load_tables(path, keys, {.others = deeprec::load_options::unknown::ignore});
    raise_on_fault(read);
    for (const auto& [one, file] : files) raising([&] { one->make_rows(*file); });
    return files;
  }

  std::vector<Tensor> contents(std::int64_t t) const {
    growing_contents now = raising([&] { return growing_at(t).contents(); });
    return {now.keys, now.rows, now.state, now.steps, now.frequencies, now.filter};
  }
  void restore(std::int64_t t, const std::vector<Tensor>& from, std::int64_t seed, double bound) const {
    TORCH_CHECK_VALUE(from.size() == 6, "deeprec: the contents of table ", t, " must be 6 tensors (are ",
                      from.size(), ")");
    growing_at(t).restore({from[0], from[1], from[2], from[3], from[4], from[5]},
                          static_cast<std::uint64_t>(seed), static_cast<float>(bound));
    all->regroup();
  }
  c10::Dict<std::string, std::int64_t> statistics(std::int64_t t) const {
    const deeprec::growing_statistics now = growing_at(t).statistics();
    c10::Dict<std::string, std::int64_t> made;
    made.insert("rows", now.rows);
    made.insert("candidates", now.candidates);
    made.insert("index_bytes", now.index_bytes);
    made.insert("row_bytes", now.row_bytes);
    made.insert("filter_bytes", now.filter_bytes);
    made.insert("waiting_rows", now.waiting_rows);
    made.insert("refused", now.refused);
    made.insert("evicted", now.evicted);
    return made;
  }

  static constexpr const char* rate_in_files = "learning rate";
  static constexpr const char* rule_in_files = "optimizer";  // its number
  std::string rule;
  std::shared_ptr<tables> all;
  std::int64_t number = 0;
};

// --- CPU -----------------------------------------------------------------------------------------

template <bool inserts>
Tensor lookup(const Tensor&, const Tensor&, std::int64_t number, std::int64_t, const Tensor& ids,
              const Tensor& offsets, const OptionalTensor& weights, std::int64_t bags, std::int64_t keys,
              at::IntArrayRef positions) {
  const auto all = live_tables::shared().at(number);
  const batch_tensors batch(ids, offsets, weights);
  const keyed_batch view = batch.view(all->features(), bags, keys, positions);
  Tensor out = at::empty({bags, all->total_width()}, at::TensorOptions(at::kFloat));
  naming_features_of(*all, [&] {
    if constexpr (inserts) {
      all->lookup_or_insert(view, out);
    } else {
      all->lookup(view, out);
    }
  });
  return out;
}
void update(const Tensor&, const Tensor& gradient, std::int64_t number, const Tensor& ids,
            const Tensor& offsets, const OptionalTensor& weights, std::int64_t bags, std::int64_t keys,
            at::IntArrayRef positions) {
  const auto all = live_tables::shared().at(number);
  const batch_tensors batch(ids, offsets, weights);
  check_on_host(gradient, "gradient");
  check_dimensions(gradient, "gradient", 2);
  check_floats(gradient, "gradient");
  const keyed_batch view = batch.view(all->features(), bags, keys, positions);
  naming_features_of(*all, [&] { all->update(view, with_rows(gradient.to(at::kFloat))); });
}

/// Lists of ids, one for each feature, and rows for them. Holds what it had to convert.
struct given_rows {
  given_rows(const tables& all, at::TensorList lists) {
    TORCH_CHECK_VALUE(static_cast<index_t>(lists.size()) == all.features(),
                      "deeprec: ids must be given for each of ", all.features(), " features (are for ",
                      lists.size(), ")");
    for (const Tensor& list : lists) {
      check_dimensions(list, "ids", 1);
      kept.push_back(as_keys(list, "ids"));
      ids.emplace_back(kept.back().const_data_ptr<std::int64_t>(), static_cast<std::size_t>(list.numel()));
    }
  }
  std::vector<Tensor> kept;
  std::vector<std::span<const std::int64_t>> ids;
};

std::vector<Tensor> lookup_each(const Tensor&, std::int64_t number, at::TensorList lists, bool inserts) {
  const auto all = live_tables::shared().at(number);
  const given_rows given(*all, lists);
  std::vector<Tensor> outs;
  listed_rows<float> each{given.ids, {}};
  for (const index_t width : all->widths()) {
    outs.push_back(at::empty({lists[outs.size()].numel(), width}, at::TensorOptions(at::kFloat)));
    each.rows.push_back(matrix<float>(outs.back()));
  }
  naming_features_of(*all, [&] { all->lookup_each(each, inserts); });
  return outs;
}
void step(const Tensor&, std::int64_t number, at::TensorList lists, at::TensorList gradients) {
  const auto all = live_tables::shared().at(number);
  given_rows given(*all, lists);
  TORCH_CHECK_VALUE(gradients.size() == lists.size(), "deeprec: gradients must be as many as lists of ids (",
                    gradients.size(), " for ", lists.size(), ")");
  listed_rows<const float> each{given.ids, {}};
  for (const Tensor& gradient : gradients) {
    check_on_host(gradient, "gradients");
    check_dimensions(gradient, "gradients", 2);
    check_floats(gradient, "gradients");
    given.kept.push_back(with_rows(gradient.to(at::kFloat)));
    each.rows.push_back(matrix<const float>(given.kept.back()));
  }
  naming_features_of(*all, [&] { all->step(each); });
}

// --- Meta: shapes only ---------------------------------------------------------------------------

Tensor lookup_shape(const Tensor& hook, const Tensor&, std::int64_t, std::int64_t width, const Tensor& ids,
                    const Tensor& offsets, const OptionalTensor& weights, c10::SymInt bags, std::int64_t,
                    at::IntArrayRef) {
  check_batch(ids, offsets, weights);
  return at::empty_symint({std::move(bags), width}, hook.options().dtype(at::kFloat));
}
void update_shape(const Tensor&, const Tensor& gradient, std::int64_t, const Tensor& ids,
                  const Tensor& offsets, const OptionalTensor& weights, c10::SymInt, std::int64_t,
                  at::IntArrayRef) {
  check_dimensions(gradient, "gradient", 2);
  check_batch(ids, offsets, weights);
}

// --- Autograd ------------------------------------------------------------------------------------

using lookup_function_type = Tensor(const Tensor&, const Tensor&, std::int64_t, std::int64_t, const Tensor&,
                                    const Tensor&, const OptionalTensor&, c10::SymInt, std::int64_t,
                                    at::IntArrayRef);
using update_function_type = void(const Tensor&, const Tensor&, std::int64_t, const Tensor&, const Tensor&,
                                  const OptionalTensor&, c10::SymInt, std::int64_t, at::IntArrayRef);

template <bool inserts>
const auto& lookup_op() {
  static const auto called =
      op<lookup_function_type>(inserts ? "deeprec::tables_lookup_or_insert" : "deeprec::tables_lookup");
  return called;
}

// That `hook` requires a gradient is why the backward pass comes by; its gradient is 0. Where it requires
// none any more, the tables were frozen since the lookup, and nothing is stepped.
template <bool inserts>
struct lookup_function : torch::autograd::Function<lookup_function<inserts>> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& hook, const Tensor& rows,
                        std::int64_t number, std::int64_t width, const Tensor& ids, const Tensor& offsets,
                        const OptionalTensor& weights, const c10::SymInt& bags, std::int64_t keys,
                        std::vector<std::int64_t> positions) {
    const at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({rows, ids, offsets, weights.value_or(Tensor())});
    ctx->saved_data["number"] = number;
    ctx->saved_data["bags"] = bags;
    ctx->saved_data["keys"] = keys;
    ctx->saved_data["positions"] = positions;
    ctx->saved_data["stepped"] = false;
    ctx->saved_data["hook"] = hook;  // not as a saved variable: optimizers write to it
    return lookup_op<inserts>().call(hook, rows, number, width, ids, offsets, weights, bags, keys, positions);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& gradients) {
    static const auto called = op<update_function_type>("deeprec::tables_update");
    if (!ctx->saved_data["hook"].toTensor().requires_grad()) return torch::autograd::variable_list(10);
    TORCH_CHECK(!ctx->saved_data["stepped"].toBool(),
                "deeprec: a lookup must have one backward pass, which steps the rows (has a second one): add "
                "the losses and call backward() once");
    ctx->saved_data["stepped"] = true;
    const auto saved = ctx->get_saved_variables();
    const OptionalTensor weights = saved[3].defined() ? OptionalTensor(saved[3]) : std::nullopt;
    const auto positions = ctx->saved_data["positions"].toIntVector();
    const at::AutoDispatchBelowADInplaceOrView below;
    called.call(saved[0], gradients[0], ctx->saved_data["number"].toInt(), saved[1], saved[2], weights,
                ctx->saved_data["bags"].toSymInt(), ctx->saved_data["keys"].toInt(), positions);
    return {at::zeros({1}, at::TensorOptions(at::kFloat)), {}, {}, {}, {}, {}, {}, {}, {}, {}};
  }
};

template <bool inserts>
Tensor differentiable_lookup(const Tensor& hook, const Tensor& rows, std::int64_t number, std::int64_t width,
                             const Tensor& ids, const Tensor& offsets, const OptionalTensor& weights,
                             c10::SymInt bags, std::int64_t keys, at::IntArrayRef positions) {
  if (weights) refuse_derivatives(*weights, "weights of a batch");
  if (at::GradMode::is_enabled() && hook.requires_grad()) {
    return lookup_function<inserts>::apply(hook, rows, number, width, ids, offsets, weights, bags, keys,
                                           positions.vec());
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  return lookup_op<inserts>().call(hook, rows, number, width, ids, offsets, weights, bags, keys, positions);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(deeprec, m) {
  // `rows` stands for the tables' memory, so that a compiler sees who reads and who writes it.
  m.def(
      "tables_lookup(Tensor hook, Tensor rows, int number, int width, Tensor values, Tensor offsets, "
      "Tensor? weights, SymInt bags, int keys, int[] positions) -> Tensor");
  m.def(
      "tables_lookup_or_insert(Tensor hook, Tensor(a!) rows, int number, int width, Tensor values, "
      "Tensor offsets, Tensor? weights, SymInt bags, int keys, int[] positions) -> Tensor");
  m.def(
      "tables_update(Tensor(a!) rows, Tensor gradient, int number, Tensor values, Tensor offsets, "
      "Tensor? weights, SymInt bags, int keys, int[] positions) -> ()");
  // Each id by itself: a list for each feature.
  m.def("tables_lookup_each(Tensor(a!) rows, int number, Tensor[] ids, bool inserts) -> Tensor[]");
  m.def("tables_step(Tensor(a!) rows, int number, Tensor[] ids, Tensor[] gradients) -> ()");

  using holder = c10::intrusive_ptr<embedding_tables>;
  m.class_<embedding_tables>("EmbeddingTables")
      .def(torch::init<const std::string&, const std::vector<std::string>&, const std::vector<std::int64_t>&,
                       const std::vector<std::int64_t>&, const std::vector<std::string>&,
                       const std::vector<std::vector<std::int64_t>>&,
                       const std::vector<std::vector<std::int64_t>>&, const std::vector<std::vector<double>>&,
                       bool>())
      // What torch.export asks an object for first.
      .def("__obj_flatten__",
           [](const holder&) -> std::string {
             TORCH_CHECK_NOT_IMPLEMENTED(false,
                                         "EmbeddingBagCollection: torch.export must be given no collection, ",
                                         "whose tables it can't save");
           })
      .def("number", [](const holder& self) { return self->number; })
      .def("total_width", [](const holder& self) { return self->all->total_width(); })
      .def("set_options",
           [](const holder& self, double learning_rate, double epsilon, double initial_squares, double beta1,
              double beta2, double weight_decay, std::int64_t rounding_seed) {
             const std::int64_t step = self->all->options.step;
             self->all->options = {
                 learning_rate, epsilon, initial_squares, beta1,
                 beta2,         step,    weight_decay,    static_cast<std::uint64_t>(rounding_seed)};
           })
      .def("learning_rate", [](const holder& self) { return self->all->options.learning_rate; })
      .def("step", [](const holder& self) { return self->all->options.step; })
      .def("set_step", [](const holder& self, std::int64_t step) { self->all->options.step = step; })
      .def("initialize",
           [](const holder& self, std::int64_t t, std::int64_t seed, double bound, std::int64_t first,
              std::int64_t distance) {
             self->at(t).initialize(
                 {static_cast<std::uint64_t>(seed), static_cast<float>(bound), first, distance});
             self->all->regroup();
           })
      .def("bytes", [](const holder& self, std::int64_t t) { return self->dense_at(t).bytes(self->all); })
      .def("state", [](const holder& self, std::int64_t t) { return self->dense_at(t).state(self->all); })
      .def("assign",
           [](const holder& self, std::int64_t t, const Tensor& values) { self->dense_at(t).assign(values); })
      .def("values", [](const holder& self, std::int64_t t) { return self->dense_at(t).values(); })
      // Of tables that grow.
      .def("size", [](const holder& self, std::int64_t t) { return self->growing_at(t).size(); })
      .def("seed", [](const holder& self,
                      std::int64_t t) { return static_cast<std::int64_t>(self->growing_at(t).seed()); })
      .def("keys", [](const holder& self, std::int64_t t) { return self->growing_at(t).keys(); })
      .def("contents", [](const holder& self, std::int64_t t) { return self->contents(t); })
      .def("restore", [](const holder& self, std::int64_t t, const std::vector<Tensor>& from,
                         std::int64_t seed, double bound) { self->restore(t, from, seed, bound); })
      .def("rows_of", [](const holder& self, std::int64_t t,
                         const Tensor& keys) { return self->growing_at(t).rows(keys); })
      .def("assign_to", [](const holder& self, std::int64_t t, const Tensor& keys,
                           const Tensor& values) { self->changed_at(t).assign(keys, values); })
      .def("erase", [](const holder& self, std::int64_t t,
                       const Tensor& keys) { return self->growing_at(t).erase(keys); })
      .def("evict",
           [](const holder& self, std::int64_t t, std::int64_t policy, std::int64_t count, double threshold) {
             return self->changed_at(t).evict(static_cast<growing::policy>(policy), count,
                                              static_cast<float>(threshold));
           })
      .def("statistics", [](const holder& self, std::int64_t t) { return self->statistics(t); })
      .def("save", [](const holder& self, const std::string& path) { self->save(path); })
      .def("load", [](const holder& self, const std::string& path) { self->load(path); });
}

TORCH_LIBRARY_IMPL(deeprec, CPU, m) {
  m.impl("tables_lookup", lookup<false>);
  m.impl("tables_lookup_or_insert", lookup<true>);
  m.impl("tables_update", update);
  m.impl("tables_lookup_each", lookup_each);
  m.impl("tables_step", step);
}
TORCH_LIBRARY_IMPL(deeprec, Meta, m) {
  m.impl("tables_lookup", lookup_shape);
  m.impl("tables_lookup_or_insert", lookup_shape);
  m.impl("tables_update", update_shape);
}
TORCH_LIBRARY_IMPL(deeprec, Autograd, m) {
  m.impl("tables_lookup", differentiable_lookup<false>);
  m.impl("tables_lookup_or_insert", differentiable_lookup<true>);
}

}  // namespace deeprec_torch
