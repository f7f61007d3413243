// Rows of tokens by farmhash_bucket, as deeprec's readers number them: those of to_hash_bucket_fast.
#include <cstdint>
#include <string_view>

#include <deeprec/data/farmhash.hpp>

#include "call.hpp"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace deeprec_tf { namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::tstring;

REGISTER_OP("DeeprecHashBucket")
    .Input("tokens: string")
    .Output("rows: int64")
    .Attr("num_buckets: int >= 1")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape);

class hash_bucket_op : public guarded_op {
 public:
  explicit hash_bucket_op(OpKernelConstruction* context) : guarded_op(context) {
    OP_REQUIRES_OK(context, context->GetAttr("num_buckets", &rows_));
  }

 private:
  void run(OpKernelContext* context) override {
    const auto tokens = context->input(0).flat<tstring>();
    Tensor* out = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, context->input(0).shape(), &out));
    auto rows = out->flat<std::int64_t>();
    threads(context).parallel_for(tokens.size(), 4096, [&](index_t begin, index_t end, int) {
      for (index_t k = begin; k < end; ++k)
        rows(k) = deeprec::farmhash_bucket(std::string_view(tokens(k).data(), tokens(k).size()), 0, rows_);
    });
  }

  std::int64_t rows_ = 1;
};

REGISTER_KERNEL_BUILDER(Name("DeeprecHashBucket").Device(tensorflow::DEVICE_CPU), hash_bucket_op);

}}  // namespace deeprec_tf
