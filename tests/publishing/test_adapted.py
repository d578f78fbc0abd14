import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from informin.fast.precision import weights_sha256
from informin.frozen.adapter import TASKS, LinearAdapter
from informin.model.open import load_model
from informin.model.records import FitRecord
from informin.publishing.card import write_card
from informin.publishing.export import export_checkpoint
from tests.conftest import make_sentences, raises_usage, save_sentence_transformer
from tests.publishing.helpers import TEXTS, contents, largest_difference, metadata, read_json, save_adapted, tables

SENTENCES = make_sentences(60, seed=3)


def fitted(model: SentenceTransformer, **options) -> LinearAdapter:
    return LinearAdapter(**options).fit(model.encode(SENTENCES))


def drift_of(**new) -> dict:
    names = "neighbors_kept rotated_cosine alignment neighbor_distance uniformity effective_rank hubness stsb_dev"
    old = dict.fromkeys(names.split(), 1.0) | {"stsb_dev": 80.0}
    return {"sentences": 60, "old": old, "new": old | new, "warnings": []}


@pytest.fixture(scope="module")
def model(st_mean) -> SentenceTransformer:
    return load_model(st_mean, device="cpu")


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapted") / "m"
    save_adapted(model, fitted(model), folder, drift=drift_of(stsb_dev=79.0))
    return folder


@pytest.mark.parametrize("normalize, options", [(False, {}), (True, {"n_components": 8})])
def test_all_readers_compute_the_adapted_embeddings(encoder, tmp_path, normalize, options):
    source = save_sentence_transformer(tmp_path / "source", encoder, normalize=normalize)
    model = load_model(source, device="cpu")
    adapter = fitted(model, **options)
    expected = adapter.transform(model.encode(TEXTS))
    save_adapted(model, adapter, tmp_path / "new")
    read = SentenceTransformer(str(tmp_path / "new"), device="cpu").encode(TEXTS, normalize_embeddings=True)
    assert largest_difference(read, expected) < 1e-5
    batch = AutoTokenizer.from_pretrained(tmp_path / "new")(TEXTS, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        ours = AutoModel.from_pretrained(tmp_path / "new", trust_remote_code=True).eval()(**batch).pooler_output
    assert largest_difference(torch.nn.functional.normalize(ours), expected) < 1e-5
    assert largest_difference(model.encode(TEXTS), load_model(source, device="cpu").encode(TEXTS)) == 0


@pytest.mark.parametrize("truncate_dim, width", [(8, 8), (64, 32)])
def test_a_truncated_model_is_adapted_as_it_embeds(st_mean, tmp_path, truncate_dim, width):
    model = SentenceTransformer(str(st_mean), device="cpu", truncate_dim=truncate_dim)
    adapter = fitted(model)
    save_adapted(model, adapter, tmp_path / "new", task="clustering")
    read = SentenceTransformer(str(tmp_path / "new"), device="cpu").encode(TEXTS, normalize_embeddings=True)
    assert read.shape == (len(TEXTS), width)
    assert largest_difference(read, adapter.transform(model.encode(TEXTS))) < 1e-5


def test_the_record_names_no_path(saved, st_mean):
    record = FitRecord.load(saved)
    assert (record.base_model["name"], record.base_model["hub_id"]) == (st_mean.name, None)
    assert (record.task, record.texts, record.dimensions) == ("search", 60, 32)
    assert record.options["whitening"] == LinearAdapter().whitening
    assert str(st_mean.parent) not in "".join(map(str, contents(saved).values()))


def test_the_card_of_a_model_in_memory_links_to_no_model(st_mean, tmp_path):
    model = SentenceTransformer(str(st_mean), device="cpu")
    save_adapted(model, fitted(model), tmp_path / "new")
    assert FitRecord.load(tmp_path / "new").base_model["hub_id"] is None
    card = (tmp_path / "new" / "README.md").read_text()
    assert "base_model" not in metadata(card) and "huggingface.co/SentenceTransformer" not in card


def test_the_card_says_what_the_adapter_is_for(saved, model, tmp_path):
    card = " ".join((saved / "README.md").read_text().split())
    assert "similar documents" in card and "not for question answering" in card
    save_adapted(model, fitted(model, **TASKS["clustering"]), tmp_path / "c", task="clustering")
    card = " ".join((tmp_path / "c" / "README.md").read_text().split())
    assert "clusters, labels and near-duplicates" in card and "not for question answering" in card


def test_the_card_begins_with_what_became_worse(saved, model, tmp_path):
    card = (saved / "README.md").read_text()
    assert "Spearman x 100 on STS-B dev is 79.00, and 80.00 before." in card.partition("## Usage")[0]
    save_adapted(model, fitted(model), tmp_path / "better", drift=drift_of(stsb_dev=81.0))
    assert "is worse than" not in (tmp_path / "better" / "README.md").read_text()


def test_the_card_lists_the_options_and_the_drift(saved):
    shown = tables((saved / "README.md").read_text())
    assert shown["Option"]["n_neighbors"] == ["10"]
    assert shown["Drift on 60 sentences"]["STS-B dev"] == ["80.00", "79.00"]


def test_the_license_of_the_source_model_is_kept(bert, tmp_path, monkeypatch):
    """Also of a relative path, after a change of the working directory."""
    source = save_sentence_transformer(tmp_path / "source", bert)
    (source / "README.md").write_text("---\nlicense: other\nlicense_name: rail-m\nlicense_link: LICENSE\n---\n# m\n")
    monkeypatch.chdir(tmp_path)
    model = load_model("source", device="cpu")
    monkeypatch.chdir(bert)
    save_adapted(model, fitted(model), tmp_path / "new")
    values = metadata((tmp_path / "new" / "README.md").read_text())
    assert [values[name] for name in ("license", "license_name", "license_link")] == ["other", "rail-m", "LICENSE"]


def test_the_card_is_written_again_for_a_repository(saved, tmp_path):
    export_checkpoint(saved, tmp_path / "again")
    assert write_card(tmp_path / "again", "alice/m", "a" * 40)
    card = (tmp_path / "again" / "README.md").read_text()
    assert f'SentenceTransformer("alice/m", revision="{"a" * 40}")' in card
    assert "\n# m\n" in card


def test_an_export_of_the_output_keeps_adapter_and_record(saved, tmp_path):
    export_checkpoint(saved, tmp_path / "again")
    one, other = (load_model(path, device="cpu") for path in (saved, tmp_path / "again"))
    assert weights_sha256(one) == weights_sha256(other)
    assert read_json(tmp_path / "again" / "fit.json") == read_json(saved / "fit.json")


def test_queries_and_documents_of_a_model_with_prompts(bert, tmp_path):
    prompts = {"query": "old ", "document": "young "}
    model = load_model(save_sentence_transformer(tmp_path / "source", bert, prompts=prompts), device="cpu")
    save_adapted(model, fitted(model), tmp_path / "new")
    assert "`model.encode_query`" in (tmp_path / "new" / "README.md").read_text()
    read = SentenceTransformer(str(tmp_path / "new"), device="cpu")
    assert not np.allclose(read.encode_query(TEXTS), read.encode_document(TEXTS), atol=1e-3)


def test_a_used_folder_is_not_overwritten(saved, model):
    before = contents(saved)
    with raises_usage("output_dir"):
        save_adapted(model, fitted(model), saved)
    assert contents(saved) == before
