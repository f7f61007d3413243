// An op of this package through PyTorch's dispatcher: from an autograd kernel to the kernel below it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

namespace deeprec_torch {

/// The op of that name, whose schema Function has. Look it up once.
template <class Function>
auto op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>();
}

/// Forward-mode derivatives would be 0.
inline void refuse_tangent(const at::Tensor& tensor, const char* name) {
  TORCH_CHECK_NOT_IMPLEMENTED(!tensor._fw_grad(0).defined(), "deeprec: ", name,
                              " must have no tangent: forward-mode derivatives are not implemented");
}

}  // namespace deeprec_torch
