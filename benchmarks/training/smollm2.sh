#!/bin/bash
# Makes the weights that ship for smollm2, from nothing but the model: a corpus, two EAGLE heads, a draft
# model. Each command goes on where it was stopped when it is run again.
#
#   bash benchmarks/training/smollm2.sh FOLDER [TOKENS] [MINUTES]
#
# TOKENS of the corpus (2,000,000) and MINUTES of the EAGLE-3 head (75); the other two get a third of them.
set -euo pipefail

out=${1:?give a folder}
tokens=${2:-2000000}
minutes=${3:-75}
foredraft=${FOREDRAFT:-.venv/bin/foredraft}
common=(--model smollm2 --data "$out/corpus" --max-length 768 --tokens-per-batch 2048 --lr 1e-3
  --held-out 0.03 --eval-steps 200 --resume)

"$foredraft" data generate --model smollm2 --out "$out/corpus" --tokens "$tokens"
"$foredraft" train eagle --variant 3 "${common[@]}" --out "$out/eagle3" --minutes "$minutes"
"$foredraft" train eagle --variant 1 "${common[@]}" --out "$out/eagle1" --minutes $((minutes / 3))
"$foredraft" train draft-model --layers 2 --target-head "${common[@]}" --out "$out/draft-model" \
  --minutes $((minutes / 3))

for kind in eagle3 eagle1 draft-model; do
  ls -l "$out/$kind"/{config.json,model.safetensors,recipe.json}
done
