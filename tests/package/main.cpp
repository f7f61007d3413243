#include <deeprec/deeprec.hpp>

#include <cstdio>

int main() {
  std::printf("deeprec %d.%d.%d\n", DEEPREC_VERSION_MAJOR, DEEPREC_VERSION_MINOR,
              DEEPREC_VERSION_PATCH);
#if defined(DEEPREC_WITH_CUDA)
#error "nobody asked for CUDA"
#endif
}
