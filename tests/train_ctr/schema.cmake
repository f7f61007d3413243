# Columns of one's own: --schema. Rows and bits against Python's csv and against the built-in columns of Criteo; what a
# schema must not be.

needs_python()
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH tests)
set(shipped "${tests}/../examples/train_ctr/schemas")

function(make_rows schema file rows seed) # how...
  execute_process(COMMAND "${python}" "${CMAKE_CURRENT_LIST_DIR}/schema_rows.py" "${schema}" "${file}" ${rows} ${seed} ${ARGN}
                  COMMAND_ERROR_IS_FATAL ANY)
endfunction()
# What the program makes of two files is what Python makes of them.
function(by_hand schema train test)
  execute_process(COMMAND "${PROGRAM}" --schema "${schema}" --data "${train}" --test "${test}" --model lr --export "${WORK}/exported"
                          ${ARGN} OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND "${python}" "${CMAKE_CURRENT_LIST_DIR}/schema_by_hand.py" "${schema}" "${train}" "${test}" "${WORK}/exported"
                  RESULT_VARIABLE code OUTPUT_VARIABLE found ERROR_VARIABLE found)
  message("${schema}: ${found}")
  if(code)
    message(FATAL_ERROR "rows by ${schema} are not those by hand")
  endif()
endfunction()
function(write_schema name text)
  file(WRITE "${WORK}/${name}.json" "${text}")
endfunction()

if(CHECK STREQUAL "schema")
  # Each use of a column, its options, and positions.
  write_schema(all [=[{"missing": ["NA", "-"], "columns": [
    {"name": "y", "use": "label", "at_least": 4}, {"name": "id", "use": "name"}, {"name": "user", "use": "group"},
    {"name": "c", "use": "count"}, {"name": "plain", "use": "dense"}, {"name": "log", "use": "dense", "scale": "log", "missing": -3},
    {"name": "s", "use": "dense", "scale": "standard", "mean": 20, "deviation": 15},
    {"name": "q", "use": "dense", "scale": "quantile", "quantiles": [0, 10, 20, 35, 50]},
    {"name": "t", "use": "token", "rows": 1000000}, {"name": "few", "use": "token", "rows": 7},
    {"name": "v", "use": "token", "vocabulary": ["red", "green", "blue"]}, {"name": "z", "use": "ignored"}]}]=])
  write_schema(places [=[{"header": false, "delimiter": "|", "quote": "'", "columns": [
    {"use": "token", "position": 3}, {"use": "label", "position": 1, "positive": ["yes", "aye"]}, {"use": "dense", "position": 2}]}]=])
  file(WRITE "${WORK}/places" "x|aye|2.5|one\ny|no||two\nz|yes|-1|'one'\n'a|b'|no|0|'two'\n")
  by_hand("${WORK}/places.json" "${WORK}/places" "${WORK}/places")
  file(READ "${tests}/../docs/train_ctr_schema.md" page)
  if(NOT page MATCHES "```json\n([^`]*)```")
    message(FATAL_ERROR "docs/train_ctr_schema.md has no example")
  endif()
  write_schema(page "${CMAKE_MATCH_1}")
  foreach(schema IN ITEMS "${WORK}/all" "${WORK}/page" "${shipped}/criteo" "${shipped}/avazu" "${shipped}/ali_ccp" "${shipped}/movielens"
                          "${shipped}/census" "${shipped}/ipinyou")
    make_rows("${schema}.json" "${WORK}/train" 400 1)
    make_rows("${schema}.json" "${WORK}/test" 150 2 crlf)
    by_hand("${schema}.json" "${WORK}/train" "${WORK}/test")
  endforeach()
  # Any order of columns with a header, quotes, a byte order mark.
  make_rows("${WORK}/all.json" "${WORK}/train" 400 1 shuffled quoted bom)
  make_rows("${WORK}/all.json" "${WORK}/test" 150 2 shuffled)
  by_hand("${WORK}/all.json" "${WORK}/train" "${WORK}/test" --threads 3 --window 50)
  # Real tables, where they are.
  if(EXISTS "${DATA}/census/adult.data")
    by_hand("${shipped}/census.json" "${DATA}/census/adult.data" "${DATA}/census/adult.test")
    set(ratings "${DATA}/movielens/ml-latest-small/ratings.csv")
    by_hand("${shipped}/movielens.json" "${ratings}" "${ratings}")
    areas(--data "${DATA}/census/adult.data" --test "${DATA}/census/adult.test" --schema "${shipped}/census.json" --model wdl --model dcn)
    expect(auc_wdl GREATER 890000)
    expect(auc_dcn GREATER 890000)
  else()
    message("SKIPPED: no census, no MovieLens")
  endif()

  # Every model trains on them, in every way of stepping.
  set(data --schema "${WORK}/all.json" --data "${WORK}/train" --test "${WORK}/test")
  foreach(models IN ITEMS "dlrm;lr" "wdl;deepfm" "dcn;lr")
    list(JOIN models ";--model;" words)
    checksums(direct ${data} --model ${words} --threads 1)
    checksums(again ${data} --model ${words} --threads 3 --prefetch 0)
    expect(again STREQUAL direct)
  endforeach()
  checksums(direct ${data} --keys raw)
  checksums(graph ${data} --keys raw --step graph)
  expect(direct STREQUAL graph)
  # --table-rows is for columns whose size is not given.
  run(sum said ${data} --model lr --table-rows auto --export "${WORK}/exported")
  execute_process(COMMAND "${python}" -c
                          "import struct, sys
data = open(sys.argv[1] + '/first_row.npy', 'rb').read()
head = 10 + struct.unpack('<H', data[8:10])[0]
first = [int(x) for x in struct.unpack('<%d' % ((len(data) - head) // 8) + 'q', data[head:])]
assert [b - a for a, b in zip(first, first[1:])] == [512, 1000001, 8, 6], first"
                          "${WORK}/exported" COMMAND_ERROR_IS_FATAL ANY)
  # A file of words is a list of them.
  file(WRITE "${WORK}/words" "red\r\ngreen\nblue\n")
  file(READ "${WORK}/all.json" text)
  string(REPLACE "[\"red\", \"green\", \"blue\"]" "\"${WORK}/words\"" text "${text}")
  write_schema(words "${text}")
  run(listed said ${data} --model dlrm)
  run(from_file said --schema "${WORK}/words.json" --data "${WORK}/train" --test "${WORK}/test" --model dlrm)
  expect(listed STREQUAL from_file)
  # It is looked up in the folder of its schema, whatever the working directory; a model keeps where it is.
  file(MAKE_DIRECTORY "${WORK}/folder/of" "${WORK}/elsewhere")
  set(kinds words)
  if(ZLIB)
    execute_process(COMMAND gzip -kf "${WORK}/words" COMMAND_ERROR_IS_FATAL ANY)
    list(APPEND kinds words.gz)
  endif()
  execute_process(COMMAND "${python}" -c "import sys; open(sys.argv[1] + '/marked', 'wb').write(b'\\xef\\xbb\\xbfred\\n\\ngreen\\nblue')"
                          "${WORK}" COMMAND_ERROR_IS_FATAL ANY)
  foreach(kind IN LISTS kinds ITEMS marked)
    file(COPY_FILE "${WORK}/${kind}" "${WORK}/folder/${kind}")
    string(REPLACE "\"${WORK}/words\"" "\"../${kind}\"" relative "${text}")
    file(WRITE "${WORK}/folder/of/schema.json" "${relative}")
    execute_process(COMMAND "${PROGRAM}" --schema of/schema.json --data "${WORK}/train" --test "${WORK}/test" --model dlrm --json
                            "${WORK}/result.json" --save "${WORK}/kept" WORKING_DIRECTORY "${WORK}/folder" OUTPUT_QUIET
                    COMMAND_ERROR_IS_FATAL ANY)
    file(READ "${WORK}/result.json" result)
    string(JSON sum GET "${result}" models 0 checksum)
    message("vocabulary ${kind}: ${sum}")
    expect(sum STREQUAL listed)
    execute_process(COMMAND "${PROGRAM}" --load "${WORK}/kept" --evaluate "${WORK}/test" WORKING_DIRECTORY "${WORK}/elsewhere"
                            OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
  file(REMOVE "${WORK}/folder/marked")
  expect_error(1 "schema.columns.10..vocabulary: .*/folder/marked: no such file" --load "${WORK}/kept" --evaluate "${WORK}/test")

  # A model keeps its schema; predictions carry names; evaluation is what training printed, groups as well.
  run(saved said ${data} --model dlrm --save "${WORK}/model")
  file(READ "${WORK}/result.json" trained)
  execute_process(COMMAND "${PROGRAM}" --load "${WORK}/model" --evaluate "${WORK}/test" --json "${WORK}/found.json" OUTPUT_QUIET
                  COMMAND_ERROR_IS_FATAL ANY)
  file(READ "${WORK}/found.json" found)
  foreach(figure IN ITEMS auc logloss group_auc)
    string(JSON one GET "${trained}" models 0 ${figure})
    string(JSON other GET "${found}" models 0 ${figure})
    message("${figure}: ${one}, ${other}")
    expect(one STREQUAL other)
  endforeach()
  execute_process(COMMAND "${PROGRAM}" --load "${WORK}/model" --predict "${WORK}/test" --output "${WORK}/out.csv" --output-format csv
                  COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND "${python}" -c
                          "import csv, sys
rows = list(csv.reader(open(sys.argv[1], newline='')))
data = list(csv.DictReader(open(sys.argv[2], newline='', encoding='utf-8-sig')))
assert rows[0] == ['id', 'probability'] and [r[0] for r in rows[1:]] == [d['id'] for d in data]
assert all(0 < float(r[1]) < 1 for r in rows[1:])"
                          "${WORK}/out.csv" "${WORK}/test" COMMAND_ERROR_IS_FATAL ANY)
  # Predictions need no label and no group.
  execute_process(COMMAND "${python}" -c
                          "import csv, sys
data = list(csv.DictReader(open(sys.argv[1], newline='', encoding='utf-8-sig')))
names = [name for name in data[0] if name not in ('y', 'user')]
to = csv.writer(open(sys.argv[2], 'w', newline=''))
for row in [dict(zip(names, names))] + data: to.writerow([row[name] for name in names])"
                          "${WORK}/test" "${WORK}/bare" COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND "${PROGRAM}" --load "${WORK}/model" --predict "${WORK}/bare" --output "${WORK}/bare.csv" --output-format csv
                  COMMAND_ERROR_IS_FATAL ANY)
  file(SHA256 "${WORK}/out.csv" whole)
  file(SHA256 "${WORK}/bare.csv" bare)
  expect(bare STREQUAL whole)
  run(more said ${data} --model dlrm --load "${WORK}/model" --save "${WORK}/model2")
  run(twice said ${data} --model dlrm --epochs 2)
  expect(more STREQUAL twice)
  expect_error(1 "model: trained with another --schema, or with none" --schema "${WORK}/words.json" --data "${WORK}/train" --test
               "${WORK}/test" --model dlrm --load "${WORK}/model")
  write_rows("${WORK}/rows" 300)
  expect_error(1 "model: trained with another --schema, or with none" --data "${WORK}/rows" --model dlrm --load "${WORK}/model")
  run(saved said --schema "${WORK}/words.json" --data "${WORK}/train" --test "${WORK}/test" --model lr --save "${WORK}/by_words")
  file(WRITE "${WORK}/words" "red\ngreen\nyellow\n")
  expect_error(1 "vocabulary: must have the words that the model was trained with" --load "${WORK}/by_words" --predict "${WORK}/test")

  # Criteo's rows have one checksum in every form: text, compressed, with a header, in another order, in quotes, with CRLF
  # and a byte order mark.
  write_rows("${WORK}/rows" 1200)
  run(builtin said --data "${WORK}/rows" --model dlrm)
  file(READ "${shipped}/criteo.json" text)
  string(REPLACE "\"delimiter\": \"\\t\",\n  \"quote\": \"\",\n  \"header\": false" "\"header\": true" text "${text}")
  write_schema(with_header "${text}")
  execute_process(COMMAND "${python}" -c
                          "import csv, random, sys
rows = list(csv.reader(open(sys.argv[1]), delimiter='\\t'))
names = ['label'] + ['I%d' % i for i in range(1, 14)] + ['C%d' % i for i in range(1, 27)]
def write(path, order, encoding='utf-8', **how):
    with open(path, 'w', newline='', encoding=encoding) as out:
        to = csv.writer(out, **how)
        for row in [names] + rows: to.writerow([row[i] for i in order])
order = list(range(40))
write(sys.argv[2] + '/plain.csv', order, lineterminator='\\n')
write(sys.argv[2] + '/marked.csv', order, encoding='utf-8-sig')
random.Random(3).shuffle(order)
write(sys.argv[2] + '/shuffled.csv', order, quoting=csv.QUOTE_ALL)
folder = sys.argv[2] + '/'
text = open(sys.argv[1]).read()
open(folder + 'spaced', 'w').write('\\n\\r\\n' + text)
open(folder + 'spaced.csv', 'w').write('\\n\\r\\n' + open(folder + 'plain.csv').read())
open(folder + 'commas', 'w').write('\\n' + text.replace('\\t', ','))
open(folder + 'unlabelled', 'w').write(''.join(line.split('\\t', 1)[1] for line in text.splitlines(True)))"
                          "${WORK}/rows" "${WORK}" COMMAND_ERROR_IS_FATAL ANY)
  foreach(file IN ITEMS spaced commas)
    run(sum said --data "${WORK}/${file}" --model dlrm)
    message("${file}: ${sum}")
    expect(sum STREQUAL builtin)
  endforeach()
  set(forms "criteo;rows" "criteo;spaced" "with_header;plain.csv" "with_header;marked.csv" "with_header;shuffled.csv"
            "with_header;spaced.csv")
  if(ZLIB)
    execute_process(COMMAND gzip -kf "${WORK}/shuffled.csv" "${WORK}/rows" COMMAND_ERROR_IS_FATAL ANY)
    list(APPEND forms "with_header;shuffled.csv.gz" "criteo;rows.gz")
  endif()
  find_program(zstd zstd)
  if(ZSTD AND zstd)
    execute_process(COMMAND "${zstd}" -qf "${WORK}/rows" "${WORK}/shuffled.csv" COMMAND_ERROR_IS_FATAL ANY)
    list(APPEND forms "with_header;shuffled.csv.zst" "criteo;rows.zst")
  endif()
  file(COPY_FILE "${shipped}/criteo.json" "${WORK}/criteo.json")
  while(forms)
    list(POP_FRONT forms schema file)
    run(sum said --schema "${WORK}/${schema}.json" --data "${WORK}/${file}" --model dlrm)
    message("${file}: ${sum}")
    expect(sum STREQUAL builtin)
  endwhile()
  # Without a header, rows to predict may lack the label, which is the first field.
  run(sum said --schema "${WORK}/criteo.json" --data "${WORK}/rows" --model lr --save "${WORK}/by_places")
  foreach(file IN ITEMS rows unlabelled)
    execute_process(COMMAND "${PROGRAM}" --load "${WORK}/by_places" --predict "${WORK}/${file}" --output "${WORK}/${file}.out"
                    COMMAND_ERROR_IS_FATAL ANY)
    file(SHA256 "${WORK}/${file}.out" hash_${file})
  endforeach()
  expect(hash_rows STREQUAL hash_unlabelled)
  expect_error(1 "unlabelled:1: .*another number of fields than the list has columns.*.is 39, must be 40." --load "${WORK}/by_places"
               --evaluate "${WORK}/unlabelled")
endif()

if(CHECK STREQUAL "schema_errors")
  set(rows "${WORK}/rows")
  file(WRITE "${rows}" "y,n,t\n1,2,a\n0,3,b\n1,4,a\n0,5,b\n")
  function(refuses words text) # of a schema with this text
    write_schema(bad "${text}")
    expect_error(1 "${words}" --schema "${WORK}/bad.json" --data "${rows}" --train-fraction 0.5)
  endfunction()
  set(y "{\"name\": \"y\", \"use\": \"label\"}")
  set(t "{\"name\": \"t\", \"use\": \"token\"}")
  refuses("bad.json: is no JSON: .*line 1" "{")
  refuses("bad.json: must be an object" "[]")
  refuses("bad.json.columns: must be a list" "{}")
  refuses("bad.json.columns: must be a list" "{\"columns\": {}}")
  refuses("bad.json: has an unknown key: colums" "{\"colums\": [], \"columns\": [${y}, ${t}]}")
  refuses("columns.1.: has an unknown key: row" "{\"columns\": [${y}, {\"name\": \"t\", \"use\": \"token\", \"row\": 3}]}")
  refuses("columns.1.: has an unknown key: scale" "{\"columns\": [${y}, {\"name\": \"t\", \"use\": \"token\", \"scale\": \"log\"}]}")
  refuses("columns.0.: must be an object in braces .is 3" "{\"columns\": [3]}")
  refuses("columns.0.[.]use: must be label, count, dense, token, tokens, weight, group, name or ignored .is lable" "{\"columns\": [{\"name\": \"y\", \"use\": \"lable\"}]}")
  refuses("columns.0.[.]name: must be the column's name" "{\"columns\": [{\"use\": \"label\"}]}")
  refuses("columns.1.[.]rows: must be a whole number from 1 to 67108864 .is 0" "{\"columns\": [${y}, {\"name\": \"t\", \"use\": \"token\", \"rows\": 0}]}")
  refuses("columns.1.[.]rows: must be a whole number .* .is 2.5" "{\"columns\": [${y}, {\"name\": \"t\", \"use\": \"token\", \"rows\": 2.5}]}")
  refuses("columns.1.[.]scale: must be none, log, standard or quantile .is lgo" "{\"columns\": [${y}, {\"name\": \"n\", \"use\": \"dense\", \"scale\": \"lgo\"}, ${t}]}")
  refuses("column n: .*deviation must be above 0" "{\"columns\": [${y}, {\"name\": \"n\", \"use\": \"dense\", \"scale\": \"standard\", \"deviation\": 0}, ${t}]}")
  refuses("column n: .*quantiles must be two numbers or more" "{\"columns\": [${y}, {\"name\": \"n\", \"use\": \"dense\", \"scale\": \"quantile\", \"quantiles\": [2, 1]}, ${t}]}")
  refuses("columns.1.[.]quantiles: must be a list of numbers" "{\"columns\": [${y}, {\"name\": \"n\", \"use\": \"dense\", \"scale\": \"quantile\", \"quantiles\": [2, \"x\"]}]}")
  refuses("a column is listed twice" "{\"columns\": [${y}, ${t}, ${t}]}")
  refuses("must have a column of use label" "{\"columns\": [${t}]}")
  refuses("must have a column of use token or count" "{\"columns\": [${y}]}")
  refuses("two columns are label, weight, group or name" "{\"columns\": [${y}, {\"name\": \"n\", \"use\": \"label\"}, ${t}]}")
  refuses("column n: .*the weight of a missing one must be in .0, 2.20." "{\"columns\": [${y}, {\"name\": \"n\", \"use\": \"weight\", \"missing\": -1}, ${t}]}")
  refuses("delimiter: must be one character" "{\"delimiter\": \"::\", \"columns\": [${y}, ${t}]}")
  refuses("header: must be true or false" "{\"header\": 1, \"columns\": [${y}, ${t}]}")
  refuses("columns.1.[.]position: is not for a file with a header" "{\"columns\": [${y}, {\"name\": \"t\", \"use\": \"token\", \"position\": 2}]}")
  refuses("columns.1.[.]vocabulary: .*a word is listed twice.*.a." "{\"columns\": [${y}, {\"name\": \"t\", \"use\": \"token\", \"vocabulary\": [\"a\", \"b\", \"a\"]}]}")
  execute_process(COMMAND "${python}" -c "import sys; open(sys.argv[1], 'wb').write(b'a\\nb\\0\\n')" "${WORK}/nul_words" COMMAND_ERROR_IS_FATAL ANY)
  file(WRITE "${WORK}/no_words" "\n\n")
  foreach(pair IN ITEMS "/no/words;/no/words: no such file" ".; is a directory" "nul_words;nul_words:2: a NUL byte" "/dev/null;must have words"
                        "no_words;must have words .*no_words has none")
    list(GET pair 0 file)
    list(GET pair 1 words)
    refuses("columns.1.[.]vocabulary: .*${words}" "{\"columns\": [${y}, {\"name\": \"t\", \"use\": \"token\", \"vocabulary\": \"${file}\"}]}")
  endforeach()
  refuses("columns.1.[.]vocabulary: must have words" "{\"columns\": [${y}, {\"name\": \"t\", \"use\": \"token\", \"vocabulary\": []}]}")
  # Keys that would have no effect, numbers that no float is, brackets without end.
  function(refuses_number words keys) # of a dense column n
    refuses("${words}" "{\"columns\": [${y}, {\"name\": \"n\", \"use\": \"dense\", ${keys}}, ${t}]}")
  endfunction()
  function(refuses_label words keys)
    refuses("${words}" "{\"columns\": [{\"name\": \"y\", \"use\": \"label\", ${keys}}, ${t}]}")
  endfunction()
  foreach(key IN ITEMS mean deviation)
    refuses_number("columns.1.[.]${key}: needs .scale.: .standard." "\"${key}\": 2")
    refuses_number("columns.1.[.]${key}: needs .scale.: .standard." "\"scale\": \"log\", \"${key}\": 2")
    refuses_number("columns.1.[.]${key}: must be a number of at most 3.4e38 .is 1e.300" "\"scale\": \"standard\", \"${key}\": 1e300")
  endforeach()
  refuses_number("columns.1.[.]quantiles: needs .scale.: .quantile." "\"scale\": \"standard\", \"quantiles\": [1, 2]")
  refuses_number("columns.1.[.]quantiles: must be a list of numbers of at most 3.4e38" "\"scale\": \"quantile\", \"quantiles\": [1, 1e39]")
  refuses_number("columns.1.[.]missing: must be a number of at most 3.4e38" "\"missing\": -1e300")
  refuses_label("columns.0.[.]at_least: must be a number of at most 3.4e38" "\"at_least\": 1e300")
  refuses_label("columns.0.[.]negative: needs positive" "\"negative\": [\"a\"]")
  foreach(key IN ITEMS positive negative)
    refuses_label("columns.0.[.]${key}: is not for a label with at_least" "\"${key}\": [\"a\"], \"at_least\": 3")
  endforeach()
  refuses_number("columns.1.: has a key twice: missing" "\"missing\": 1, \"missing\": 2")
  refuses("bad.json: has a key twice: header" "{\"header\": true, \"columns\": [${y}, ${t}], \"header\": true}")
  string(REPEAT "[" 200000 deep)
  refuses("bad.json: must have at most 7 brackets in brackets" "{\"columns\": ${deep}")
  refuses("columns.1.[.]rows: is not for a column with a vocabulary" "{\"columns\": [${y}, {\"name\": \"t\", \"use\": \"token\", \"rows\": 3, \"vocabulary\": [\"a\"]}]}")
  # Of the data: the file, the line, the column, and what to do.
  refuses("rows:1: .*the header lacks a column of the list.* Fix: .*column other" "{\"columns\": [${y}, {\"name\": \"other\", \"use\": \"token\"}]}")
  set(good "{\"columns\": [${y}, {\"name\": \"n\", \"use\": \"count\"}, ${t}]}")
  function(refuses_rows words text)
    file(WRITE "${rows}" "${text}")
    refuses("${words}" "${good}")
  endfunction()
  refuses_rows("rows:1:7: .*the header has a column of the list twice.*column t" "y,n,t,t\n1,2,a,b\n")
  refuses_rows("rows:3.*wrong number of fields" "y,n,t\n1,2,a\n1,2\n")
  refuses_rows("rows:2.*the label is neither 0 nor 1" "y,n,t\n2,2,a\n")
  refuses_rows("rows:2:5.*the quote is not closed" "y,n,t\n1,2,\"a\n")
  refuses_rows("rows:2:6.*a quote in a field that does not begin with one" "y,n,t\n1,2,a\"b\n")
  refuses_rows("rows:3:7: .*wrong number of fields .*is 4.*must be 3" "y,n,t\n1,2,a\n1,2,a,b\n")
  refuses_rows("rows:2:3: .*not a number" "y,n,t\n1,two,a\n")
  refuses_rows("rows:1: .*the header lacks a column of the list.* delimiter.*column n" "y;n;t\n1;2;a\n")
  refuses_rows("rows:4:3: .*not a number" "\n\ny,n,t\n1,two,a\n")
  refuses_rows("rows:2: .*the header lacks a column of the list" "\nn,t\n")
  refuses_rows("too few rows: 0 to train" "y,n,t\n")
  refuses_rows("too few rows: 0 to train" "\n\n")
  # Rows without a header: a field for each column, unless one has a position.
  file(WRITE "${rows}" "\n1,2,a,4\n0,3,b,5\n")
  refuses("rows:2: .*another number of fields than the list has columns.* Fix: list all.*.is 4, must be 2." "{\"header\": false, \"columns\": [${y}, ${t}]}")
  refuses("rows:2: .*.is 4, must be 5." "{\"header\": false, \"columns\": [${y}, ${t}, {\"use\": \"ignored\"}, {\"use\": \"ignored\"}, {\"use\": \"ignored\"}]}")
  refuses("rows:2: .*the first row lacks a column" "{\"header\": false, \"columns\": [${y}, {\"use\": \"token\", \"position\": 4}]}")
  refuses_rows("too few rows: 0 to train" "")
  # Bytes that CMake has no text for, a wide file, an endless quote: in memory that does not grow with it.
  execute_process(COMMAND "${python}" -c
                          "import sys
folder = sys.argv[1] + '/'
def write(name, data): open(folder + name, 'wb').write(data)
write('nul', b'y,n,t\\n1,2,a\\n1,3,b\\0c\\n')
write('utf16', 'y,n,t\\n1,2,a\\n'.encode('utf-16'))
write('utf32', 'y,n,t\\n1,2,a\\n'.encode('utf-32'))
names = ['c%d' % i for i in range(100000)]
wide = ','.join(['y'] + names + ['t']) + '\\n'
for r in range(30): wide += ','.join([str(r % 2)] + ['%d' % (r * i % 7) for i in range(100000)] + ['t%d' % (r % 2)]) + '\\n'
write('wide', wide.encode())
write('wide_ragged', wide.encode() + b'1,2\\n')"
                          "${WORK}" COMMAND_ERROR_IS_FATAL ANY)
  foreach(pair IN ITEMS "nul;nul:3:6: .*a NUL byte" "utf16;utf16: .*is text in UTF-16. Fix: iconv"
                        "utf32;utf32: .*is text in UTF-32. Fix: iconv -f UTF-32")
    list(GET pair 0 file)
    list(GET pair 1 words)
    expect_error(1 "${words}" --schema "${WORK}/bad.json" --data "${WORK}/${file}")
  endforeach()
  write_schema(wide "{\"columns\": [${y}, {\"name\": \"c99999\", \"use\": \"count\"}, ${t}]}")
  run(sum said --schema "${WORK}/wide.json" --data "${WORK}/wide" --model lr)
  expect_error(1 "wide_ragged:32:4: .*wrong number of fields .*is 2.*must be 100002" --schema "${WORK}/wide.json" --data
               "${WORK}/wide_ragged")
  expect_error_of_script([=[
    ulimit -v 1500000
    { printf 'y,n,t\n1,2,a\n1,3,"b\n'; head -c 104857600 /dev/zero | tr '\0' x; } | "$0" "$@"]=] 1
                         "-:3:5: .*the quote is not closed. Fix: close it" --schema "${WORK}/bad.json" --data - --memory 100M
                         --threads 1)
  refuses("columns.1.[.]rows: must be a whole number from 1 to 67108864 .is 100000000" "{\"columns\": [${y}, {\"name\": \"t\", \"use\": \"token\", \"rows\": 100000000}]}")
  write_schema(bad "${good}")
  expect_error(2 "--schema is not for din and dssm" --schema "${WORK}/bad.json" --data "${rows}" --model din)
  expect_error(2 "--schema needs --data" --schema "${WORK}/bad.json")
  expect_error(2 "--schema is not for --predict" --schema "${WORK}/bad.json" --load "${rows}" --predict "${rows}")
  # Bad rows that are left out, so many at most: the others train as if they were alone.
  set(text "y,n,t\n")
  foreach(i RANGE 300)
    math(EXPR label "${i} % 3 / 2")
    string(APPEND text "${label},${i},t${label}\n")
  endforeach()
  file(WRITE "${WORK}/clean" "${text}")
  string(REPLACE "0,3,t0\n" "0,3,t0\n1,2\n" text "${text}")
  string(REPLACE "0,100,t0\n" "0,100,t0\n7,5,t\n" text "${text}")
  string(REPLACE "1,200,t1\n" "1,200,t1\n1,5,t,u\n" text "${text}")
  file(WRITE "${WORK}/dirty" "${text}")
  set(data --schema "${WORK}/bad.json" --model lr --data)
  foreach(way IN ITEMS "" "--memory;1;--window;40")
    run(clean said ${data} "${WORK}/clean" ${way})
    execute_process(COMMAND "${PROGRAM}" ${data} "${WORK}/dirty" ${way} --skip-bad 3 --report "${WORK}/page" --save "${WORK}/saved" --json
                            "${WORK}/result.json" OUTPUT_QUIET ERROR_VARIABLE said COMMAND_ERROR_IS_FATAL ANY)
    file(READ "${WORK}/result.json" result)
    string(JSON dirty GET "${result}" models 0 checksum)
    expect(clean STREQUAL dirty)
    string(JSON skipped GET "${result}" rows_skipped)
    expect(skipped EQUAL 3)
    string(JSON first GET "${result}" skipped 1)
    expect(first MATCHES "dirty:104:1: .*the label is neither 0 nor 1")
    string(JSON named LENGTH "${result}" skipped)
    expect(named EQUAL 3)
    if(NOT said MATCHES "left out: [^\n]*dirty:6:4: [^\n]*wrong number[^\n]*\n.*left out: [^\n]*dirty:205:[^\n]*\n.* 3 bad rows are left out\n")
      message(FATAL_ERROR "bad rows are not named:\n${said}")
    endif()
    file(READ "${WORK}/page/report.html" page)
    expect(page MATCHES "rows skipped</th><td[^>]*>3<")
    expect(page MATCHES "dirty:104:1:")
  endforeach()
  # Of files that test and are evaluated, too; more than a few are counted.
  string(REPLACE "0,9,t0\n" "0,9\n0\n5\n6\n7\n" text "${text}")
  file(WRITE "${WORK}/dirtier" "${text}")
  run(tested said ${data} "${WORK}/dirty" --test "${WORK}/dirtier" --skip-bad 8)
  file(READ "${WORK}/result.json" result)
  string(JSON skipped GET "${result}" rows_skipped)
  expect(skipped EQUAL 11)
  string(JSON named LENGTH "${result}" skipped)
  expect(named EQUAL 7)
  execute_process(COMMAND "${PROGRAM}" --load "${WORK}/saved" --evaluate "${WORK}/dirtier" --skip-bad 8 --json "${WORK}/found.json"
                          OUTPUT_QUIET ERROR_QUIET COMMAND_ERROR_IS_FATAL ANY)
  file(READ "${WORK}/found.json" found)
  string(JSON skipped GET "${found}" rows_skipped)
  expect(skipped EQUAL 8)
  expect_error(1 "dirty:6:4: .*wrong number of fields.*: the first of [23] bad rows, or more .--skip-bad 1." ${data} "${WORK}/dirty" --skip-bad 1)
  expect_error(1 "dirtier:6:4: .* .--skip-bad 7." --load "${WORK}/saved" --evaluate "${WORK}/dirtier" --skip-bad 7)
  expect_error(1 "dirty:6:4: .*wrong number of fields" ${data} "${WORK}/dirty")
  expect_error(1 "dirty:1: .*the header lacks" --schema "${WORK}/wide.json" --data "${WORK}/dirty" --skip-bad 100)
  expect_error(2 "--skip-bad is not for --predict" --load "${WORK}/clean" --predict "${WORK}/clean" --skip-bad 1)
  expect_error(2 "--skip-bad is not for din and dssm" --model din --skip-bad 1 --data "${rows}")
  expect_error(2 "--skip-bad needs --data" --skip-bad 1)
  # All labels alike: metrics tell, and none is a nan.
  set(text "y,n,t\n")
  foreach(i RANGE 200)
    string(APPEND text "0,${i},t${i}\n")
  endforeach()
  file(WRITE "${rows}" "${text}")
  execute_process(COMMAND "${PROGRAM}" --schema "${WORK}/bad.json" --data "${rows}" --model lr --json "${WORK}/result.json" OUTPUT_VARIABLE said
                  COMMAND_ERROR_IS_FATAL ANY)
  file(READ "${WORK}/result.json" result)
  string(JSON area TYPE "${result}" models 0 auc)
  expect(area STREQUAL NULL)
  if("${said}${result}" MATCHES "[^a-z]nan[^a-z]")
    message(FATAL_ERROR "labels that are all alike give a nan:\n${said}")
  endif()
endif()
