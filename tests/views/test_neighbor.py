"""The neighbor view: ids of rows, and the partners of a batch."""

from types import SimpleNamespace

import torch
from datasets import Dataset

from informin.views import Neighbor, neighbor
from informin.views.neighbor import row_ids
from informin.views.sentence_ids import sentence_ids
from tests.conftest import raises_usage

ROWS = Dataset.from_dict({"input_ids": [[2, 5, 3], [2, 3], [2, 5, 3], [2, 6, 3], [2, 5, 5, 3]]})


def test_equal_rows_have_equal_ids(monkeypatch):
    monkeypatch.setattr(neighbor, "CHUNK", 2)
    ids = row_ids(ROWS)
    assert ids[0] == ids[2] and len(set(ids.tolist())) == 4
    padded = torch.tensor([[2, 5, 3, 0], [2, 3, 0, 0]])
    assert torch.equal(sentence_ids(padded, (padded > 0).long()), ids[:2]), "as in a batch"


def test_second_views_are_nearest_mutual_neighbors():
    indices = torch.tensor([[3, 1], [2, 4], [1, 0], [0, 4], [0, 2]])
    view = Neighbor(view_neighbors=2)
    view.prepare(ROWS, SimpleNamespace(nearest=lambda k: (indices[:, :k], None), first=torch.arange(5)))
    second = view.second_views({"row": torch.tensor([4, 0, 1])}, None, seed=0)
    assert second.row.tolist() == [4, 3, 2], "row 4 has no mutual neighbor"
    assert list(second.tokens) == [ROWS[i]["input_ids"] for i in (4, 3, 2)]
    ids = row_ids(ROWS)
    assert second.related.tolist() == [[ids[4], ids[4]], [ids[3], ids[0]], [ids[2], ids[1]]]


def test_copies_have_the_same_second_view():
    indices = torch.tensor([[1], [0], [1], [4], [3]])  # row 2 is a copy of row 0
    view = Neighbor(view_neighbors=1)
    view.prepare(ROWS, SimpleNamespace(nearest=lambda k: (indices, None), first=torch.tensor([0, 1, 0, 3, 4])))
    second = view.second_views({"row": torch.tensor([0, 2])}, None, seed=0)
    assert second.row.tolist() == [1, 1] and second.related.tolist() == [[row_ids(ROWS)[1]]] * 2


def test_needs_a_guide_with_its_number_of_neighbors():
    needs = Neighbor(view_neighbors=7).guide_needs
    assert (needs.sentences, needs.neighbors, needs.neighbors_option) == ("training", 7, "view_neighbors")
    with raises_usage("view_neighbors", found="is 0", needed="1 or more"):
        Neighbor(view_neighbors=0)
