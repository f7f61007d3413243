// An op of this package through PyTorch's dispatcher: from an autograd kernel to the kernel below it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
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

/// Derivatives of any kind would be 0.
inline void refuse_derivatives(const at::Tensor& tensor, const char* name) {
  refuse_tangent(tensor, name);
  TORCH_CHECK_NOT_IMPLEMENTED(!at::GradMode::is_enabled() || !tensor.requires_grad(), "deeprec: ", name,
                              " must not require a gradient: they have no gradient here");
}

}  // namespace deeprec_torch
