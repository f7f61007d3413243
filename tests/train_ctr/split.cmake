# Which rows test is drawn by their numbers: rows that repeat, with one label or the other, are on both sides.

needs_python()
# Ten kinds of rows that differ in nothing else. The clicks of kind k have the probability 0.05 + 0.07 k.
file(WRITE "${WORK}/rows.py" "
import random, sys
chance = random.Random(int(sys.argv[2]))
rows = []
for _ in range(int(sys.argv[3])):
    kind = chance.randrange(10)
    rows.append(f'{int(chance.random() < 0.05 + 0.07 * kind)},k{kind},{kind}')
for name, rows in (('', rows), ('_turned', [f'{1 - int(r[0])}{r[1:]}' for r in rows]), ('_backwards', rows[::-1])):
    print('y,kind,size', *rows, sep='\\n', file=open(sys.argv[1] + name, 'w'))
")
foreach(part IN ITEMS "first;1;8000" "other;2;8000")
  list(POP_FRONT part name)
  execute_process(COMMAND "${python}" "${WORK}/rows.py" "${WORK}/${name}" ${part} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
foreach(scale IN ITEMS none log standard)
  file(WRITE "${WORK}/${scale}.json" "{\"columns\": [{\"name\": \"y\", \"use\": \"label\"}, {\"name\": \"kind\", \"use\": \"token\"},
       {\"name\": \"size\", \"use\": \"dense\", \"scale\": \"${scale}\"}]}")
endforeach()
set(same --schema "${WORK}/none.json" --model lr --threads 1)

# The AUC of other rows is about 0.75; those of a split, and of a part that validates, are near.
areas(${same} --data "${WORK}/first" --test "${WORK}/other")
set(other ${auc_lr})
foreach(seed IN ITEMS 1 2 3)
  areas(${same} --data "${WORK}/first" --seed ${seed})
  math(EXPR apart "${auc_lr} - ${other}")
  expect(apart GREATER -50000)
  expect(apart LESS 50000)
  areas(${same} --data "${WORK}/first" --test "${WORK}/other" --valid 0.3 --seed ${seed})
  file(READ "${WORK}/result.json" result)
  string(JSON valid GET "${result}" models 0 passes 0 auc)
  expect(valid GREATER 0.70)
  expect(valid LESS 0.80)
endforeach()
# Neither a label nor a scale moves a row; a row that moves is other data.
run(sum plain ${same} --data "${WORK}/first" --save "${WORK}/model")
string(REGEX MATCH "^[0-9]+ rows to train, [0-9]+ to test" plain "${plain}")
expect(plain MATCHES "rows")
foreach(words IN ITEMS "none;first_turned" "log;first" "standard;first" "none;first_backwards")
  list(POP_FRONT words scale file)
  run(sum said --schema "${WORK}/${scale}.json" --data "${WORK}/${file}" --model lr --threads 1)
  string(REGEX MATCH "^[0-9]+ rows to train, [0-9]+ to test" said "${said}")
  expect(said STREQUAL plain)
endforeach()
foreach(file IN ITEMS first_turned first_backwards)
  expect_error(1 "model: trained with another number: hash of the rows" ${same} --data "${WORK}/${file}" --load "${WORK}/model")
endforeach()
# Read again in windows, the same rows test.
run(window said ${same} --data "${WORK}/first" --window 500)
run(again said ${same} --data "${WORK}/first" --window 500 --memory 1)
expect(again STREQUAL window)
