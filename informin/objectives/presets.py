"""The objective of a run: a preset by its name, one term, or a list of terms."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import nn

from informin.errors import UsageError
from informin.objectives.attention_mi import AttentionMI
from informin.objectives.contrast import Contrast
from informin.objectives.contrastive_tension import ContrastiveTension
from informin.objectives.decorrelation import Decorrelation, SelfContrast
from informin.objectives.denoising import Denoising
from informin.objectives.guided_similarity import GuidedSimilarity
from informin.objectives.local_information import LocalInformation
from informin.objectives.masked_lm import MaskedLM
from informin.objectives.reconstruction import Reconstruction
from informin.objectives.replaced_tokens import ReplacedTokens
from informin.objectives.term import Term
from informin.objectives.virtual_augmentation import VirtualAugmentation
from informin.options import check_value


@dataclass(frozen=True)
class Encoder:
    """The encoder for which values are chosen.

    Attributes:
        model_type: Architecture, as `model_type` in the configuration.
        width: Hidden size.
    """

    model_type: str = "bert"
    width: int = 768


BERT_BASE = Encoder()


@dataclass(frozen=True)
class Paper:
    """Hyperparameters of a paper for one encoder, without its terms.

    Attributes:
        source: Where the paper reports them.
        batch_size: Batch size over all processes.
        learning_rate: Peak learning rate.
        warmup_steps: Steps of warmup.
        view_dropout: Dropout rate of each view, or one for both; None for the encoder's own.
    """

    source: str = ""
    batch_size: int = 128
    learning_rate: float = 3e-5
    warmup_steps: int = 0
    view_dropout: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Preset:
    """A named objective.

    Attributes:
        name: Name of the option `objective`.
        title: Name on model cards.
        terms: Returns the terms, in the order of summation, with the values for an encoder.
        papers: Published hyperparameters by architecture and hidden size. Encoders without an entry use the one of
            their architecture at size 768, else BERT-base's.
        projection_head: Projection head, `mlp` or `none`.
        max_seq_length: Maximum number of tokens, 32 in the papers. None chooses a length that fits the sentences.
        view: Name of the view.
        view_options: Values of its fields, if they are not the defaults.
        added: Names of terms that the published objective does not have.
    """

    name: str
    title: str
    terms: Callable[[Encoder], list[Term]]
    papers: dict[tuple[str, int], Paper] = field(default_factory=dict)
    projection_head: str = "mlp"
    max_seq_length: int | None = 32
    view: str = "dropout"
    view_options: Mapping[str, Any] = field(default_factory=dict)
    added: tuple[str, ...] = ()

    def paper(self, encoder: Encoder) -> Paper:
        """Return the hyperparameters for an encoder; the defaults of `Paper` if nothing is published."""
        keys = [(encoder.model_type, encoder.width), (encoder.model_type, 768), ("bert", 768)]
        return next((self.papers[key] for key in keys if key in self.papers), Paper())


_PRESETS = [
    Preset(  # Chen et al. (2022), table 3: contrast and reconstruction
        name="informin",
        title="InforMin-CL",
        terms=lambda encoder: [Contrast(), Reconstruction(weight=4.0 if encoder.model_type == "roberta" else 0.4)],
        papers={
            ("bert", 768): Paper(source="InforMin-CL, table 3, bert-base", batch_size=128, learning_rate=3e-5),
            ("roberta", 768): Paper(source="InforMin-CL, table 3, roberta-base", batch_size=128, learning_rate=1e-5),
            ("roberta", 1024): Paper(source="InforMin-CL, table 3, roberta-large", batch_size=128, learning_rate=3e-5),
        },
    ),
    Preset(  # Gao et al. (2021), appendix A: contrast
        name="simcse",
        title="unsupervised SimCSE",
        terms=lambda encoder: [Contrast()],
        papers={
            ("bert", 768): Paper(source="SimCSE, appendix A, bert-base", batch_size=64, learning_rate=3e-5),
            ("bert", 1024): Paper(source="SimCSE, appendix A, bert-large", batch_size=64, learning_rate=1e-5),
            ("roberta", 768): Paper(source="SimCSE, appendix A, roberta-base", batch_size=512, learning_rate=1e-5),
            ("roberta", 1024): Paper(source="SimCSE, appendix A, roberta-large", batch_size=512, learning_rate=3e-5),
        },
    ),
    Preset(  # Klein and Nabi (2022), section 3.1: self-contrast and decorrelation, without negatives
        name="scd",
        title="SCD",
        terms=lambda encoder: [
            SelfContrast(),
            Decorrelation(weight=0.0033, off_diagonal_weight=0.028)
            if encoder.model_type == "roberta"
            else Decorrelation(weight=0.005, off_diagonal_weight=0.013),
        ],
        papers={
            ("bert", 768): Paper(
                source="SCD, section 3.1, bert-base", batch_size=192, learning_rate=3e-5, view_dropout=(0.05, 0.15)
            ),
            ("roberta", 768): Paper(
                source="SCD, section 3.1, roberta-base", batch_size=192, learning_rate=3e-5, view_dropout=(0.065, 0.24)
            ),
        },
        projection_head="none",
    ),
    Preset(  # Klein and Nabi (2023), section 3.1: contrast with a queue, and attention mutual information
        name="micse",
        title="miCSE",
        terms=lambda encoder: [Contrast(queue_size=384), AttentionMI(weight=2.5e-3)],
        papers={
            ("bert", 768): Paper(
                source="miCSE, section 3.1, bert-base", batch_size=50, learning_rate=3e-5, warmup_steps=250
            ),
        },
    ),
    Preset(  # Carlsson et al. (2021): contrastive tension
        name="ct",
        title="contrastive tension (CT)",
        terms=lambda encoder: [ContrastiveTension()],
        papers={
            ("bert", 768): Paper(source="CT, the authors' code", batch_size=16, learning_rate=1e-5),
        },
        projection_head="none",
        max_seq_length=None,
    ),
    Preset(  # Wang et al. (2021): denoising
        name="tsdae",
        title="TSDAE",
        terms=lambda encoder: [Denoising()],
        papers={("bert", 768): Paper(source="TSDAE, experiments", batch_size=8, learning_rate=3e-5)},
        projection_head="none",
        max_seq_length=None,
        view="deletion",
    ),
    Preset(  # Zhang et al. (2020): local information
        name="isbert",
        title="IS-BERT",
        terms=lambda encoder: [LocalInformation()],
        papers={("bert", 768): Paper(source="IS-BERT, the authors' code", batch_size=32, learning_rate=2e-5)},
        projection_head="none",
        max_seq_length=None,
    ),
    Preset(  # Chuang et al. (2022): contrast and replaced tokens
        name="diffcse",
        title="DiffCSE",
        terms=lambda encoder: [
            Contrast(),
            ReplacedTokens(generator="distilroberta-base")
            if encoder.model_type == "roberta"
            else ReplacedTokens(generator="distilbert-base-uncased"),
        ],
        papers={
            ("bert", 768): Paper(source="DiffCSE, the authors' run_diffcse.sh", batch_size=64, learning_rate=7e-6),
        },
    ),
    Preset(  # Zhang et al. (2022): contrast and virtual augmentation
        name="vascl",
        title="VaSCL",
        terms=lambda encoder: [Contrast(), VirtualAugmentation()],
        papers={
            ("bert", 768): Paper(source="VaSCL, the authors' code", batch_size=1024, learning_rate=5e-6),
            ("roberta", 768): Paper(source="VaSCL, the authors' run_vascl.sh", batch_size=1024, learning_rate=5e-6),
        },
    ),
    Preset(  # Liu et al. (2021): contrast of masked spans
        name="mirrorbert",
        title="Mirror-BERT",
        terms=lambda encoder: [Contrast(temperature=0.04)],
        papers={
            ("bert", 768): Paper(
                source="Mirror-BERT, the authors' mirror_sentence_bert.sh", batch_size=200, learning_rate=2e-5
            ),
        },
        projection_head="none",
        max_seq_length=50,
        view="span_mask",
    ),
    Preset(  # Yan et al. (2021): contrast of a feature cutoff and of shuffled tokens, without dropout
        name="consert",
        title="ConSERT",
        terms=lambda encoder: [Contrast(temperature=0.1)],
        papers={
            ("bert", 768): Paper(
                source="ConSERT, the authors' unsup-consert-base.sh",
                batch_size=96,
                learning_rate=5e-7,
                view_dropout=(0.0,),
            ),
        },
        projection_head="none",
        max_seq_length=64,
        view="augment",
    ),
    Preset(  # Giorgi et al. (2021): contrast of nearby spans, and masked language modeling
        name="declutr",
        title="DeCLUTR",
        terms=lambda encoder: [Contrast(temperature=0.05), MaskedLM(weight=1.0)],
        papers={
            ("roberta", 768): Paper(
                source="DeCLUTR, section 4.2, and the authors' declutr.jsonnet", batch_size=16, learning_rate=5e-5
            ),
            ("bert", 768): Paper(
                source="DeCLUTR, section 4.2, and the authors' declutr.jsonnet", batch_size=16, learning_rate=5e-5
            ),
        },
        projection_head="none",
        max_seq_length=None,
        view="crop",
        view_options={"spans": "nearby", "min_fraction": 1 / 16, "max_fraction": 0.5, "min_tokens": 32},
    ),
    Preset(  # no terms: on the command line, add some by their weights
        name="noncontrastive", title="training without negatives", terms=lambda encoder: []
    ),
    Preset(  # the similarities within a batch follow those of a guide
        name="guided",
        title="guided training",
        terms=lambda encoder: [GuidedSimilarity()],
        projection_head="none",
        max_seq_length=None,
    ),
]
PRESETS = {preset.name: preset for preset in _PRESETS}  # values of the option `objective`


Objective: TypeAlias = str | Preset | Term | Sequence[Any] | Any  # what `InforMinTrainer` takes; see `as_preset`


def as_preset(objective: Objective) -> Preset:
    """Return a preset by its name, or the given terms under the name `custom`.

    Raises:
        UsageError: The name is unknown, or an object is not a term.
    """
    if isinstance(objective, Preset):
        return objective
    if isinstance(objective, str):
        check_value(objective in PRESETS, "objective", objective, f"one of: {', '.join(PRESETS)}")
        return PRESETS[objective]
    terms: list[Any] = list(objective) if isinstance(objective, list | tuple) else [objective]
    for term in terms:
        if not isinstance(term, Term):
            is_module = isinstance(term, nn.Module) or (isinstance(term, type) and issubclass(term, nn.Module))
            raise UsageError(
                f"contains {term!r:.80}",
                option="objective",
                needed="terms, such as Contrast(), or objects of a dataclass that derives from informin.Term",
                fix="Put weights to train in an informin.objectives.term.Head, which `head` of a term returns."
                if is_module
                else None,
            )
    title = f"a custom objective ({', '.join(term.title for term in terms)})"
    return Preset(name="custom", title=title, terms=lambda encoder: terms)


def active_terms(preset: Preset, encoder: Encoder) -> list[Term]:
    """Return the terms whose weight is not 0, in the order of summation.

    A term that needs a guide is copied, because it keeps the guide of its run.

    Raises:
        UsageError: There are no terms, two have the same name, or a name would be ambiguous in the log.
    """
    terms = [copy(term) if term.guide_needs else term for term in preset.terms(encoder) if term.weight]
    if not terms:
        raise UsageError(
            f"{preset.name} has no term with a weight above 0",
            option="objective",
            fix="Set the weight of a term, or pass a list of terms.",
        )
    for term in terms:
        check_value("/" not in term.name, "name", term.name, "the name of a term without /, which the log adds")
        for kind in ("name", "head_name"):
            name = getattr(term, kind)
            check_value("." not in name, kind, name, "a name without dots, which names of modules cannot have")
    for kind in ("name", "head_name"):
        repeated = [name for name, number in Counter(getattr(term, kind) for term in terms).items() if number > 1]
        if repeated:
            raise UsageError(
                f"has two terms with the {kind} {repeated[0]}",
                option="objective",
                fix=f"Give one of them another `{kind}`.",
            )
    return terms
