# deeprec_one_unit(<file> <source>...): writes a unit in which each source is a namespace, and whose main runs the program that its
# argument names. A source has `int main() {` at the begin of a line, and no main returns a value.

function(deeprec_one_unit file)
  # What stands for a header in the text of a program: the includes of the others would hide that one is missing.
  set(needs "std::vector vector" "std::string string" "std::to_string string" "std::optional optional" "std::thread thread"
            "std::ofstream fstream" "std::printf cstdio" "std::fputs cstdio" "std::remove cstdio" "std::equal algorithm"
            "std::runtime_error stdexcept" "std::nanf cmath")
  set(includes)
  set(bodies)
  set(calls)
  foreach(source IN LISTS ARGN)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${source}")
    cmake_path(GET source STEM name)
    file(READ "${source}" text)
    string(REGEX MATCHALL "#include <[^>]*>" own "${text}")
    foreach(need IN LISTS needs)
      string(REGEX MATCH "^([^ ]*) (.*)$" need "${need}")
      if(text MATCHES "${CMAKE_MATCH_1}[^a-z_]" AND NOT "#include <${CMAKE_MATCH_2}>" IN_LIST own)
        message(FATAL_ERROR "${source}: ${CMAKE_MATCH_1} must have #include <${CMAKE_MATCH_2}>")
      endif()
    endforeach()
    list(APPEND includes ${own})
    string(REGEX REPLACE "#include [^\n]*" "" text "${text}")
    string(REPLACE "\nint main() {" "\nvoid run() {" run "${text}")
    if(run STREQUAL text)
      message(FATAL_ERROR "${source}: a line must begin with int main() {")
    endif()
    string(APPEND bodies "namespace program_${name} {\n#line 1 \"${source}\"\n${run}}\n")
    string(APPEND calls "  if (name == \"${name}\") return program_${name}::run(), 0;\n")
  endforeach()
  list(REMOVE_DUPLICATES includes)
  list(JOIN includes "\n" includes)
  set(unit "${includes}\n#include <string_view>\n${bodies}
int main(int count, char** words) {
  const std::string_view name = count == 2 ? words[1] : \"\";
${calls}  return 2;
}\n")
  set(before)
  if(EXISTS "${file}")
    file(READ "${file}" before)
  endif()
  if(NOT before STREQUAL unit)
    file(WRITE "${file}" "${unit}")
  endif()
endfunction()
