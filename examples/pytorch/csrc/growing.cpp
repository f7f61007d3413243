#include "growing.hpp"

namespace deeprec_torch {

template class growing_of<deeprec::f32_rows>;
template class growing_of<deeprec::f16_rows>;
template class growing_of<deeprec::bf16_rows>;
template class growing_of<deeprec::int8_rows>;
template class growing_of<deeprec::int4_rows>;

}  // namespace deeprec_torch
