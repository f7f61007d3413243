# deeprec::mpi: the header that calls MPI, comm/mpi_ranks.hpp. Read by the build and by deeprecConfig.
# By the variables of FindMPI, whose targets are not seen outside of this folder; the C++ bindings of old versions are left out.

find_package(MPI QUIET COMPONENTS CXX)
if(MPI_CXX_FOUND AND NOT TARGET deeprec::mpi)
  add_library(deeprec::mpi INTERFACE IMPORTED GLOBAL)
  target_include_directories(deeprec::mpi SYSTEM INTERFACE ${MPI_CXX_INCLUDE_DIRS})
  target_compile_definitions(deeprec::mpi INTERFACE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
  target_compile_options(deeprec::mpi INTERFACE ${MPI_CXX_COMPILE_OPTIONS})
  target_link_options(deeprec::mpi INTERFACE ${MPI_CXX_LINK_FLAGS})
  target_link_libraries(deeprec::mpi INTERFACE deeprec::deeprec ${MPI_CXX_LIBRARIES})
endif()
