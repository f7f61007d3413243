# deeprec::cuda: the headers that call the CUDA run time. Read by the build and by deeprecConfig.
# It neither enables the CUDA language nor chooses an architecture; that is the user's.

if(NOT TARGET CUDA::cudart)
  find_package(CUDAToolkit 12 QUIET)
endif()
if(TARGET CUDA::cudart AND NOT TARGET deeprec::cuda)
  add_library(deeprec::cuda INTERFACE IMPORTED GLOBAL)
  target_link_libraries(deeprec::cuda INTERFACE deeprec::deeprec CUDA::cudart)
  target_compile_definitions(deeprec::cuda INTERFACE DEEPREC_WITH_CUDA=1)
endif()
# deeprec::cublaslt: gemm() on a stream. A target of its own, for the library is large.
if(TARGET CUDA::cublasLt AND TARGET deeprec::cuda AND NOT TARGET deeprec::cublaslt)
  add_library(deeprec::cublaslt INTERFACE IMPORTED GLOBAL)
  target_link_libraries(deeprec::cublaslt INTERFACE deeprec::cuda CUDA::cublasLt)
endif()
# deeprec::nccl: comm/cuda_nccl_ranks.hpp.
if(TARGET deeprec::cuda AND NOT TARGET deeprec::nccl)
  find_path(DEEPREC_NCCL_INCLUDE nccl.h HINTS ENV NCCL_HOME PATH_SUFFIXES include DOC "Folder of <nccl.h>")
  find_library(DEEPREC_NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ENV NCCL_HOME PATH_SUFFIXES lib DOC "NCCL")
  mark_as_advanced(DEEPREC_NCCL_INCLUDE DEEPREC_NCCL_LIBRARY)
  if(DEEPREC_NCCL_INCLUDE AND DEEPREC_NCCL_LIBRARY)
    add_library(deeprec::nccl INTERFACE IMPORTED GLOBAL)
    target_include_directories(deeprec::nccl SYSTEM INTERFACE "${DEEPREC_NCCL_INCLUDE}")
    target_link_libraries(deeprec::nccl INTERFACE deeprec::cuda "${DEEPREC_NCCL_LIBRARY}")
  endif()
endif()
