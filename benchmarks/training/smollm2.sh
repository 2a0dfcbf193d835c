#!/bin/bash
# Makes drafters for smollm2 from nothing but the model: a corpus, two EAGLE heads, a draft model, decision models, a length predictor.
# Each command goes on where it was stopped when it is run again.
#
#   bash benchmarks/training/smollm2.sh FOLDER [TOKENS] [MINUTES]
#
# TOKENS of the corpus (2,000,000, whose hidden states take 9 GB) and MINUTES of the EAGLE-3 head (75); the other two get a third of them.
set -euo pipefail

out=${1:?give a folder}
tokens=${2:-2000000}
minutes=${3:-75}
foredraft=${FOREDRAFT:-.venv/bin/foredraft}
common=(--model smollm2 --data "$out/corpus" --max-length 1024 --tokens-per-batch 2048 --optimizer muon
  --warmup-steps 50 --lr-floor 0.02 --held-out 0.03 --eval-steps 300 --resume)

"$foredraft" data generate --model smollm2 --out "$out/corpus" --tokens "$tokens" --keep-states
# One step ahead first: the second step learns in minutes what the first has learnt.
"$foredraft" train eagle --variant 3 "${common[@]}" --steps-ahead 1 --lr 1.5e-3 \
  --out "$out/eagle3-one-step" --minutes $((minutes * 2 / 5))
"$foredraft" train eagle --variant 3 "${common[@]}" --steps-ahead 4 --later-share 0.25 --lr 1e-3 \
  --start-from "$out/eagle3-one-step" --out "$out/eagle3" --minutes $((minutes * 3 / 5))
"$foredraft" train eagle --variant 1 "${common[@]}" --feature 0.1 --soft-label 1 --lr 2e-3 \
  --out "$out/eagle1" --minutes $((minutes / 3))
"$foredraft" train draft-model --layers 2 --target-head "${common[@]}" --lr 2e-3 \
  --out "$out/draft-model" --minutes $((minutes / 3))

for kind in soft hard; do # they say where drafts of the draft model that ships end
  "$foredraft" train decision --model smollm2 --data "$out/corpus" --kind "$kind" --resume --out "$out/decision-$kind"
done

"$foredraft" train length-predictor --model smollm2 --data "$out/corpus" --drafter "$out/eagle3" --positions 160000 \
  --draft-cost 0.085 --resume --out "$out/length-eagle3"

for kind in eagle3 eagle1 draft-model decision-soft decision-hard length-eagle3; do
  ls -l "$out/$kind"/{config.json,model.safetensors,recipe.json}
done
