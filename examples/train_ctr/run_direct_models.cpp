// Models whose step is also written by hand.
#include "model_run.hpp"
#include "models/dlrm.hpp"
#include "models/logistic_regression.hpp"
#include "models/wide_deep.hpp"

namespace ctr {

const click_model_runs dlrm_runs = runs_of_model<dlrm>;
const click_model_runs wide_deep_runs = runs_of_model<wide_deep>;
const click_model_runs logistic_regression_runs = runs_of_model<logistic_regression>;

const click_model_runs* find_click_model(std::string_view name) {
  for (const click_model_runs* model : click_models) {
    if (name == model->name) return model;
  }
  return nullptr;
}

}  // namespace ctr
