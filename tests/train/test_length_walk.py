"""Walks along labels count what rounds would come to, one by one."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from foredraft.train.length_labels import Labels
from foredraft.train.length_walk import Counts, Requests, comparison, walk, walk_by
from tests.policies.length_nets import ScriptedLength, length_net

K_MAX = 3


def labels_of(texts: list[list[int | None]]) -> Labels:
    """Labels of texts; None: a place without one. Features are (place, label) twice."""
    found = [
        (place, length, sample)
        for sample, text in enumerate(texts)
        for place, length in enumerate(text)
        if length is not None
    ]
    places, lengths, samples = (torch.tensor(column) for column in zip(*found, strict=True))
    features = torch.stack([places, lengths, places, lengths], -1).float()
    return Labels(features, lengths.float(), places, places, samples)


def requests_of(texts: list[list[int | None]]) -> Requests:
    labels = labels_of(texts)
    everything = torch.ones(len(labels.lengths), dtype=torch.bool)
    return Requests.of(labels, labels.features, everything, K_MAX)


def one_by_one(texts: list[list[int | None]], by_place: list[int]) -> list[tuple[int, int, int]]:
    """(text, place, accepted) of each round, in a plain loop; places without a label are passed over."""
    rounds = []
    for sample, text in enumerate(texts):
        place = 0
        while place < len(text):
            length = text[place]
            if length is None:
                place += 1
                continue
            accepted = min(by_place[place % 4], length)
            rounds.append((sample, place, accepted))
            place += accepted + 1
    return rounds


TEXT = st.lists(st.one_of(st.none(), st.integers(0, K_MAX)), min_size=1, max_size=14)


@given(
    st.lists(TEXT, min_size=1, max_size=4).filter(
        lambda texts: any(length is not None for text in texts for length in text)
    ),
    st.lists(st.integers(0, K_MAX), min_size=4, max_size=4),
)
def test_a_walk_is_its_rounds_one_by_one(
    texts: list[list[int | None]], by_place: list[int]
) -> None:
    requests, labels = requests_of(texts), labels_of(texts)
    table = torch.tensor(by_place)

    def lengths(at: Tensor) -> Tensor:
        return table[requests.places[at] % 4]

    walked = walk_by(requests, lengths)
    found = sorted(
        zip(
            labels.samples[walked.at].tolist(),
            requests.places[walked.at].tolist(),
            walked.accepted.tolist(),
            strict=True,
        )
    )
    assert found == one_by_one(texts, by_place)
    net = ScriptedLength(lambda place, length: by_place[place % 4], k_max=K_MAX)
    by_net = walk(requests, net)
    assert by_net.at.tolist() == walked.at.tolist()
    assert by_net.drafted.tolist() == walked.drafted.tolist()


def test_counts_and_what_they_cost() -> None:
    requests = requests_of([[2, 0, 0, 1, 1, 0]])
    walked = walk_by(requests, lambda at: torch.full_like(at, 2))
    # places 0 (2 of 2), 3 (1 of 2), 5 (0 of 2)
    counts = Counts.of(walked, draft_cost=0.25)
    assert (counts.rounds, counts.emitted, counts.drafted, counts.wasted) == (3, 6, 6, 3)
    assert counts.tokens_per_pass_time == 6 / (3 + 0.25 * 6)
    assert "tokens_per_pass_time" not in Counts.of(walked, None).as_dict()


def test_the_oracle_wastes_nothing_and_no_length_beats_it() -> None:
    torch.manual_seed(0)
    texts: list[list[int | None]] = [torch.randint(0, K_MAX + 1, (30,)).tolist() for _ in range(8)]
    net = ScriptedLength(lambda place, length: 1, k_max=K_MAX)
    found = comparison(requests_of(texts), net, 0.1)
    assert found["predictor"] == found["fixed"]["1"]
    assert found["oracle"]["wasted"] == 0
    best = max(part["tokens_per_pass_time"] for part in found["fixed"].values())
    assert found["oracle"]["tokens_per_pass_time"] > best
    assert list(found["fixed"]) == ["1", "2", "3"]


def test_a_gru_remembers_its_own_request_alone() -> None:
    """Beside other requests, and when some have ended, each is walked as if it were alone."""
    net = length_net(arch="gru", hidden_size=2, k_max=K_MAX, seed=2)
    texts: list[list[int | None]] = [[1, 0, 2, 1, 3, 0, 0], [0, 3], [2, 2, 0, 1]]
    together = walk(requests_of(texts), net)
    labels = labels_of(texts)
    for number, text in enumerate(texts):
        alone, mine = walk(requests_of([text]), net), labels.samples[together.at] == number
        assert alone.drafted.tolist() == together.drafted[mine].tolist()
