// Models whose step is a graph alone.
#include "model_run.hpp"
#include "models/dcn.hpp"
#include "models/deepfm.hpp"

namespace ctr {

const click_model_runs deepfm_runs = runs_of_model<deepfm>;
const click_model_runs dcn_runs = runs_of_model<dcn>;

}  // namespace ctr
