// smart_stage as an op: a GraphDef with the user's stages in, one with the stages moved out.
// deeprec_tf.smart_stage calls it once, before the graph is run.
#include <string>
#include <utility>
#include <vector>

#include <deeprec/graph/passes/apply_cut.hpp>
#include <deeprec/graph/passes/explain_cut.hpp>
#include <deeprec/graph/passes/smart_stage.hpp>

#include "call.hpp"
#include "graph_def_step.hpp"
#include "staged_graph_def.hpp"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/protobuf/config.pb.h"

namespace deeprec_tf { namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::tstring;

REGISTER_OP("DeeprecSmartStage")
    .Input("graph: string")
    .Input("targets: string")
    .Input("traced_steps: string")
    .Output("staged: string")
    .Output("explanation: string")
    .Output("changed: bool")
    .Output("stayed: string")
    .Output("reasons: string")
    .Attr("rule: {'farthest', 'balanced'} = 'balanced'")
    .Attr("cost_per_byte: float = 0")
    .Attr("stage_threads: int = 1")
    .Attr("most_listed: int = 12")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* c) {
      for (int i = 0; i < 3; ++i) c->set_output(i, c->Scalar());
      for (int i = 3; i < 5; ++i) c->set_output(i, c->UnknownShapeOfRank(1));
      return absl::OkStatus();
    });

class smart_stage_op : public guarded_op {
 public:
  explicit smart_stage_op(OpKernelConstruction* context) : guarded_op(context) {
    std::string rule;
    int threads = 1;
    float cost_per_byte = 0;
    OP_REQUIRES_OK(context, context->GetAttr("rule", &rule));
    OP_REQUIRES_OK(context, context->GetAttr("cost_per_byte", &cost_per_byte));
    OP_REQUIRES_OK(context, context->GetAttr("stage_threads", &threads));
    OP_REQUIRES_OK(context, context->GetAttr("most_listed", &most_listed_));
    options_.rule = rule == "farthest" ? deeprec::stage_rule::farthest : deeprec::stage_rule::balanced;
    options_.cost_per_byte = cost_per_byte;
    options_.stage_threads = threads;
  }

 private:
  void run(OpKernelContext* context) override {
    tensorflow::GraphDef graph;
    OP_REQUIRES(context, graph.ParseFromString(context->input(0).scalar<tstring>()()),
                absl::InvalidArgumentError("deeprec: graph must be a serialized GraphDef (is not)"));
    const auto targets = context->input(1).flat<tstring>();
    step_costs costs;
    const auto traced = context->input(2).flat<tstring>();
    for (index_t i = 0; i < traced.size(); ++i) {
      tensorflow::RunMetadata run;
      OP_REQUIRES(context, run.ParseFromString(traced(i)),
                  absl::InvalidArgumentError("deeprec: traced_steps must be serialized RunMetadata (" +
                                             std::to_string(i) + " is not)"));
      costs.add(run.step_stats());
    }
    const auto step =
        graph_def_step::make(graph, {targets.data(), targets.data() + targets.size()}, std::move(costs));
    OP_REQUIRES_OK(context, step.status());
    deeprec::result<deeprec::flat_graph> flat = deeprec::flatten(*step);
    if (!require(context, flat)) return;
    deeprec::result<deeprec::stage_cut> cut = deeprec::smart_stage(flat.value(), options_);
    if (!require(context, cut)) return;
    deeprec::result<deeprec::staged_graph> staged = deeprec::apply_cut(flat.value(), cut.value());
    if (!require(context, staged)) return;
    const bool changes = cut.value().changes();
    if (changes) graph = staged_graph_writer(graph, *step, flat.value(), cut.value(), staged.value()).run();
    put(context, 0, graph.SerializeAsString());
    put(context, 1, deeprec::explain(flat.value(), cut.value(), most_listed_));
    tensorflow::Tensor* changed = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(2, {}, &changed));
    changed->scalar<bool>()() = changes;
    std::vector<std::string> stayed, reasons;
    for (index_t v = 0; v < flat.value().size(); ++v) {
      std::string why = deeprec::why_stays(flat.value(), cut.value(), v, most_listed_);
      if (why.empty()) continue;
      stayed.emplace_back(flat.value().name(v));
      reasons.push_back(std::move(why));
    }
    put(context, 3, stayed);
    put(context, 4, reasons);
  }

  template <class T>
  static bool require(OpKernelContext* context, const deeprec::result<T>& made) {
    if (made) return true;
    context->CtxFailure(absl::InvalidArgumentError("deeprec: " + made.fault().message()));
    return false;
  }
  static void put(OpKernelContext* context, int output, std::string text) {
    tensorflow::Tensor* out = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(output, {}, &out));
    out->scalar<tstring>()() = std::move(text);
  }
  static void put(OpKernelContext* context, int output, const std::vector<std::string>& texts) {
    tensorflow::Tensor* out = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(output, {static_cast<std::int64_t>(texts.size())}, &out));
    for (std::size_t i = 0; i < texts.size(); ++i)
      out->flat<tstring>()(static_cast<std::int64_t>(i)) = texts[i];
  }

  deeprec::smart_stage_options options_;
  std::int64_t most_listed_ = 12;
};

REGISTER_KERNEL_BUILDER(Name("DeeprecSmartStage").Device(tensorflow::DEVICE_CPU), smart_stage_op);

}}  // namespace deeprec_tf
