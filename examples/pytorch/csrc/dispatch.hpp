// An op of this package through PyTorch's dispatcher: from an autograd kernel to the kernel below it.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace deeprec_torch {

/// The op of that name, whose schema Function has. Look it up once.
template <class Function>
auto op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>();
}

}  // namespace deeprec_torch
