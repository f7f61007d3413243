# Columns whose fields have any number of tokens, through every model and way of stepping.

needs_python()
file(WRITE "${WORK}/rows.py" "
import csv, random, sys
chance = random.Random(int(sys.argv[2]))
with open(sys.argv[1], 'w', newline='') as out:
    to = csv.writer(out)
    to.writerow(['y', 'n', 'tags', 'city', 'words'])
    for _ in range(int(sys.argv[3])):
        tags = [f't{int(chance.paretovariate(0.6)) % 300}' for _ in range(chance.choice([0, 1, 1, 2, 3, 9]))]
        words = chance.choices(['red', 'green', 'blue', 'other'], k=chance.randrange(4))
        hit = ('t1' in tags) + ('blue' in words)
        to.writerow([int(chance.random() < (0.1, 0.6, 0.95)[hit]), chance.randrange(50), '|'.join(tags), f'c{chance.randrange(9)}', ';'.join(words)])
")
foreach(part IN ITEMS "train;1;4000" "test;2;1500")
  list(GET part 0 name)
  list(GET part 1 seed)
  list(GET part 2 count)
  execute_process(COMMAND "${python}" "${WORK}/rows.py" "${WORK}/${name}" ${seed} ${count} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
file(WRITE "${WORK}/bags.json" [=[{"columns": [{"name": "y", "use": "label"}, {"name": "n", "use": "count"},
  {"name": "tags", "use": "tokens", "pooling": "mean"}, {"name": "city", "use": "token"},
  {"name": "words", "use": "tokens", "separator": ";", "vocabulary": ["red", "green", "blue"]}]}]=])
set(data --schema "${WORK}/bags.json" --data "${WORK}/train" --test "${WORK}/test")

# What decides the label is learnt, by all.
areas(${data} --model lr --model dlrm --model wdl --model deepfm --model dcn --epochs 2)
foreach(model IN ITEMS lr dlrm wdl deepfm dcn)
  expect(auc_${model} GREATER 780000)
endforeach()
# The same bits in every way of stepping.
foreach(models IN ITEMS "dlrm;lr" "wdl;lr")
  list(JOIN models ";--model;" words)
  checksums(one ${data} --model ${words} --threads 1)
  foreach(how IN ITEMS "--threads;3" "--step;graph" "--step;graph;--fusion;--threads;2" "--prefetch;0" "--smart-stage" "--memory;1;--window;4000")
    checksums(other ${data} --model ${words} ${how})
    if(NOT other STREQUAL one)
      message(FATAL_ERROR "${models} ${how}: ${other}, not ${one}")
    endif()
  endforeach()
  checksums(whole ${data} --model ${words} --micro-batch 1)
  checksums(window ${data} --model ${words} --stale-window 1)
  expect(window STREQUAL whole)
endforeach()
checksums(one ${data} --model deepfm --model dcn --threads 1)
checksums(other ${data} --model deepfm --model dcn --threads 3 --fusion)
expect(other STREQUAL one)
# Fields of one token each are as those of a column of single tokens.
execute_process(COMMAND "${python}" -c "
import csv, sys
rows = list(csv.reader(open(sys.argv[1], newline='')))
with open(sys.argv[2], 'w', newline='') as out:
    for row in rows:
        csv.writer(out).writerow([row[0], row[1], row[2].split('|')[0] or 't0'] + row[3:])" "${WORK}/train" "${WORK}/singles"
                COMMAND_ERROR_IS_FATAL ANY)
foreach(use IN ITEMS token "tokens\", \"pooling\": \"mean")
  file(WRITE "${WORK}/one.json" "{\"columns\": [{\"name\": \"y\", \"use\": \"label\"}, {\"name\": \"n\", \"use\": \"count\"},
    {\"name\": \"tags\", \"use\": \"${use}\"}, {\"name\": \"city\", \"use\": \"token\"}]}")
  execute_process(COMMAND "${PROGRAM}" --schema "${WORK}/one.json" --data "${WORK}/singles" --test "${WORK}/singles" --model dlrm --epochs 1 --json
                          "${WORK}/result.json" OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  file(READ "${WORK}/result.json" result)
  string(JSON sum GET "${result}" models 0 checksum)
  string(JSON loss GET "${result}" models 0 logloss)
  message("${use}: ${sum}, ${loss}")
  list(APPEND sums "${sum}")
endforeach()
list(REMOVE_DUPLICATES sums)
list(LENGTH sums count)
expect(count EQUAL 1)
# Saved, loaded, evaluated, predicted.
run(saved said ${data} --model dlrm --save "${WORK}/model" --report "${WORK}/page")
file(READ "${WORK}/result.json" result)
string(JSON trained GET "${result}" models 0 logloss)
execute_process(COMMAND "${PROGRAM}" --load "${WORK}/model" --evaluate "${WORK}/test" --json "${WORK}/found.json" OUTPUT_QUIET
                COMMAND_ERROR_IS_FATAL ANY)
file(READ "${WORK}/found.json" result)
string(JSON found GET "${result}" models 0 logloss)
expect(found STREQUAL trained)
execute_process(COMMAND "${PROGRAM}" --load "${WORK}/model" --predict "${WORK}/test" OUTPUT_VARIABLE said COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "\n" lines "${said}")
list(LENGTH lines count)
expect(count EQUAL 1500)
foreach(option IN ITEMS "--keys;raw" "--importance" "--export;${WORK}/x")
  list(GET option 0 name)
  expect_error(1 "a column of use tokens is not for ${name}" ${data} ${option} --model lr)
endforeach()
