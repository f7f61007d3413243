# Parquet files by a schema: the rows of the same table in text, to the bit; and files that must be refused. ARROW_PROGRAM of the
# environment is train_ctr built with Arrow.

if(NOT python)
  message("SKIPPED: no program python3")
  return()
endif()
file(WRITE "${WORK}/small.json" "{\"columns\": [{\"name\": \"y\", \"use\": \"label\"}, {\"name\": \"page\", \"use\": \"token\"}]}")
file(WRITE "${WORK}/magic.parquet" "PAR1more")
if("$ENV{ARROW_PROGRAM}" STREQUAL "")
  foreach(schema IN ITEMS "" "--schema;${WORK}/small.json")
    expect_error(1 "magic.parquet: is a Parquet file, and this train_ctr was built without Arrow. Fix: cmake -DDEEPREC_ARROW=ON, or write"
                 --data "${WORK}/magic.parquet" ${schema})
  endforeach()
  message("SKIPPED: no Arrow")
  return()
endif()
set(PROGRAM "$ENV{ARROW_PROGRAM}")
execute_process(COMMAND "${python}" -c "import pyarrow.parquet" RESULT_VARIABLE code OUTPUT_QUIET ERROR_QUIET)
if(code)
  message("SKIPPED: Python has no pyarrow")
  return()
endif()
foreach(part IN ITEMS "train;1500;1" "test;600;2")
  list(POP_FRONT part name)
  execute_process(COMMAND "${python}" "${CMAKE_CURRENT_LIST_DIR}/parquet_rows.py" "${WORK}/${name}" ${part} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
set(columns [=[{"name": "y", "use": "label"}, {"name": "n", "use": "count"}, {"name": "price", "use": "dense", "scale": "log"},
    {"name": "rate", "use": "dense", "scale": "standard", "mean": 0.5, "deviation": 0.3}, {"name": "seen", "use": "dense"},
    {"name": "city", "use": "token"}, {"name": "page", "use": "token", "rows": 500}, {"name": "hash", "use": "token"},
    {"name": "word", "use": "token", "vocabulary": ["red", "green", "blue"]}, {"name": "flag", "use": "token"},
    {"name": "user", "use": "group"}, {"name": "id", "use": "name"}, {"name": "w", "use": "weight", "missing": 1.5}]=])
file(WRITE "${WORK}/one.json" "{\"missing\": [\"NA\", \"-1\"], \"columns\": [${columns}]}")
file(WRITE "${WORK}/many.json" "{\"missing\": [\"NA\", \"-1\"], \"columns\": [${columns}, {\"name\": \"tags\", \"use\": \"tokens\"},
  {\"name\": \"ids\", \"use\": \"tokens\", \"pooling\": \"mean\"}]}")

foreach(schema IN ITEMS one many)
  set(data --schema "${WORK}/${schema}.json" --model dlrm --model wdl --model lr)
  figures(text ${data} --data "${WORK}/train/rows.csv" --test "${WORK}/test/rows.csv")
  foreach(how IN ITEMS "" "--threads;3" "--memory;1;--window;1500" "--step;graph")
    figures(parquet ${data} --data "${WORK}/train/rows.parquet" --test "${WORK}/test/rows.parquet" ${how})
    same("${text}" "${parquet}" "rows of Parquet by ${schema} ${how} are others")
  endforeach()
  figures(parquet ${data} --data "${WORK}/train/parts" --test "${WORK}/test/rows.csv")
  same("${text}" "${parquet}" "rows of three files by ${schema} are others")
endforeach()

# Evaluation, and predictions with names; of files without label and weight too.
set(data --schema "${WORK}/many.json" --data "${WORK}/train/rows.parquet" --test "${WORK}/test/rows.parquet")
run(sum said ${data} --model dlrm --save "${WORK}/model")
figures(text --load "${WORK}/model" --evaluate "${WORK}/test/rows.csv")
figures(parquet --load "${WORK}/model" --evaluate "${WORK}/test/rows.parquet")
same("${text}" "${parquet}" "an evaluation is another")
foreach(file IN ITEMS rows.csv rows.parquet no_label.parquet)
  execute_process(COMMAND "${PROGRAM}" --load "${WORK}/model" --predict "${WORK}/test/${file}" --output "${WORK}/${file}.out" --output-format csv
                  COMMAND_ERROR_IS_FATAL ANY)
  file(READ "${WORK}/${file}.out" predictions)
  if(file STREQUAL "rows.csv")
    set(text "${predictions}")
    expect(text MATCHES "^id,probability\n2,0[.][0-9]+\n12,")
  endif()
  expect(predictions STREQUAL text)
endforeach()

# What must be refused: the file, the column, and why.
function(refuses words file)
  expect_error(1 "${words}" --schema "${WORK}/many.json" --model lr --data "${WORK}/train/${file}" ${ARGN})
endfunction()
refuses("no_city.parquet: .*the file must have a column 'city' .has none" no_city.parquet)
refuses("no_label.parquet: .*the file must have a column 'y'" no_label.parquet)
refuses("text_price.parquet: .*the column 'price' must be of numbers or booleans .is string" text_price.parquet)
refuses("list_price.parquet: .*the column 'price' must be of numbers or booleans .is list" list_price.parquet)
refuses("float_page.parquet: .*the column 'page' must be of integers or text .is double" float_page.parquet)
refuses("struct_city.parquet: .*the column 'city' must be of integers or text .is struct<name: string>" struct_city.parquet)
refuses("list_city.parquet: .*the column 'city' must be of integers or text .is list" list_city.parquet)
refuses("lists_tags.parquet: .*the column 'tags' must be of integers, text, or lists of them .is list<" lists_tags.parquet)
refuses("too few rows: 0 to train" empty.parquet)
# Of a schema that changes between files, the file that is other.
file(MAKE_DIRECTORY "${WORK}/changing")
foreach(other IN ITEMS no_city text_price)
  file(COPY_FILE "${WORK}/train/rows.parquet" "${WORK}/changing/a.parquet")
  file(COPY_FILE "${WORK}/train/${other}.parquet" "${WORK}/changing/b.parquet")
  expect_error(1 "changing/b.parquet: .*'(city|price)'" --schema "${WORK}/many.json" --data "${WORK}/changing" --model lr)
endforeach()
file(COPY_FILE "${WORK}/train/rows.csv" "${WORK}/changing/b.parquet")
expect_error(1 "changing/b.parquet: must be a Parquet file, as others of its input are" --schema "${WORK}/many.json" --data
             "${WORK}/changing" --model lr)
expect_error(1 "rows.parquet: is a Parquet file, whose columns must be known. Fix: --schema" --data "${WORK}/train/rows.parquet")
file(WRITE "${WORK}/places.json" "{\"header\": false, \"columns\": [{\"use\": \"label\"}, {\"use\": \"token\"}]}")
expect_error(1 "rows.parquet: is a Parquet file, whose columns have names. Fix: a schema with names" --schema "${WORK}/places.json" --data
             "${WORK}/train/rows.parquet")
expect_error_of_script("\"$0\" --schema \"$1\" --data - --model lr < \"$2\"" 1 "-: is a Parquet file" "${WORK}/many.json"
                       "${WORK}/train/rows.parquet")
# Of a bad row its number, from 0, and its column; --skip-bad leaves it out and counts it.
foreach(bad IN ITEMS "label;the label is neither 0 nor 1 .row 150, column 'y'." "null;a number is missing .row 150, column 'y'."
                     "weight;the weight of a row is negative .row 150, column 'w'." "nan;not a finite number .row 150, column 'price'."
                     "endless;not a finite number .row 150, column 'w'." "huge;the number is too large .row 150, column 'price'.")
  list(GET bad 0 name)
  list(GET bad 1 words)
  refuses("bad_${name}.parquet: .*${words}" bad_${name}.parquet)
  refuses("bad_${name}.parquet: .*${words}.*: the first of 3 bad rows, or more .--skip-bad 2" bad_${name}.parquet --skip-bad 2)
endforeach()
run(clean said --schema "${WORK}/many.json" --data "${WORK}/train/clean.parquet" --model lr)
run(dirty said --schema "${WORK}/many.json" --data "${WORK}/train/bad_weight.parquet" --model lr --skip-bad 3)
expect(dirty STREQUAL clean)
file(READ "${WORK}/result.json" result)
string(JSON skipped GET "${result}" rows_skipped)
expect(skipped EQUAL 3)
string(JSON first GET "${result}" skipped 1)
expect(first MATCHES "bad_weight.parquet: .*row 151, column 'w'.")
# Cut in its footer, in its data, in its magic number; and bytes within that are others: one line, or rows.
file(WRITE "${WORK}/cut.py" "
import random, subprocess, sys
program, schema, whole, cut = sys.argv[1:]
data = open(whole, 'rb').read()
footer = int.from_bytes(data[-8:-4], 'little')
chance = random.Random(7)
places = [5, 100, len(data) - footer - 8] + [len(data) - k for k in (1, 2, 3, 4, 5, 6, 7, 8, 9, 20)] + \\
    [len(data) - 8 - chance.randrange(footer) for _ in range(25)]
def run(what, bytes_of, refused):
    open(cut, 'wb').write(bytes_of)
    made = subprocess.run([program, '--schema', schema, '--data', cut, '--model', 'lr', '--threads', '1'], capture_output=True, text=True)
    bad = made.returncode == 1 and made.stderr.startswith('train_ctr: ' + cut + ': ') and made.stderr.count('\\n') == 1
    assert bad or (not refused and made.returncode == 0), (what, made.returncode, made.stderr)
    return bad
for place in places: run(f'cut at {place}', data[:place], True)
refused = 0
for _ in range(40):
    at = chance.randrange(4, len(data))
    refused += run(f'changed at {at}', data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1:], False)
print(f'{len(places)} cuts, 40 changes, of which {refused} refused')
")
execute_process(COMMAND "${python}" "${WORK}/cut.py" "${PROGRAM}" "${WORK}/many.json" "${WORK}/train/rows.parquet" "${WORK}/cut.parquet"
                COMMAND_ERROR_IS_FATAL ANY)
